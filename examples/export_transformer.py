# SPDX-License-Identifier: Apache-2.0
"""Makes examples/models/transformer.*: a small transformer exported from JAX.

    python examples/export_transformer.py

Needs jax. The module's text has its weights as arguments; the .npz files hold the token ids
and weights (transformer.in.npz) and what XLA:CPU computed from them (transformer.out.npz). The demo
itself needs no jax.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 2, 64, 4, 96, 32
FOLDER = Path(__file__).parent / "models"


def parameters(seed: int) -> dict[str, np.ndarray]:
    """Weights of every layer stacked, small random values on a grid that compresses well."""
    generator = np.random.default_rng(seed)

    def make(*shape: int, scale: float) -> np.ndarray:
        grid = generator.integers(-15, 16, shape) / 16
        return (grid * scale).astype(np.float32)

    inner = 4 * WIDTH
    return {
        "embedding": make(VOCABULARY, WIDTH, scale=1.0),
        "position": make(LENGTH, WIDTH, scale=0.25),
        "norm1": 1 + make(LAYERS, WIDTH, scale=0.125),
        "norm2": 1 + make(LAYERS, WIDTH, scale=0.125),
        "final": 1 + make(WIDTH, scale=0.125),
        "qkv": make(LAYERS, WIDTH, 3 * WIDTH, scale=0.125),
        "out": make(LAYERS, WIDTH, WIDTH, scale=0.125),
        "up": make(LAYERS, WIDTH, inner, scale=0.125),
        "down": make(LAYERS, inner, WIDTH, scale=0.0625),
    }


def normalise(x: jax.Array, gain: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain


def attention(x: jax.Array, qkv: jax.Array, out: jax.Array) -> jax.Array:
    split = (x @ qkv).reshape(LENGTH, 3, HEADS, WIDTH // HEADS)
    query, key, value = split[:, 0], split[:, 1], split[:, 2]
    scores = jnp.einsum("qhd,khd->hqk", query, key) / np.float32(np.sqrt(WIDTH // HEADS))
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, value).reshape(LENGTH, WIDTH) @ out


def transformer(tokens: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Next-token probabilities and the likeliest next token at each position."""
    x = p["embedding"][tokens] + p["position"]
    for layer in range(LAYERS):
        x = x + attention(normalise(x, p["norm1"][layer]), p["qkv"][layer], p["out"][layer])
        hidden = jax.nn.gelu(normalise(x, p["norm2"][layer]) @ p["up"][layer], approximate=False)
        x = x + hidden @ p["down"][layer]
    logits = normalise(x, p["final"]) @ p["embedding"].T / np.float32(WIDTH**0.5)
    return jax.nn.softmax(logits, axis=-1), jnp.argmax(logits, axis=-1).astype(jnp.int32)


def main() -> None:
    """Export the module and record its inputs and outputs."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, LENGTH).astype(np.int32)
    weights = parameters(0)
    lowered = jax.jit(transformer, keep_unused=True).lower(tokens, weights)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "transformer.mlir").write_text(lowered.as_text())
    inputs = [tokens, *jax.tree.leaves(weights)]
    outputs = jax.tree.leaves(jax.jit(transformer)(tokens, weights))
    for name, prefix, arrays in (("in", "arg", inputs), ("out", "out", outputs)):
        named = {f"{prefix}{i}": np.asarray(a) for i, a in enumerate(arrays)}
        np.savez_compressed(FOLDER / f"transformer.{name}.npz", **named)


if __name__ == "__main__":
    main()
