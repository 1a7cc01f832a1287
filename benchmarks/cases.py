# SPDX-License-Identifier: Apache-2.0
"""The programs that ``benchmarks/run.py`` times: in JAX, the same in numpy, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = np.ndarray[Any, Any]
Make = Callable[[np.random.Generator, int], list[Array]]


@dataclass(frozen=True)
class Case:
    """One program at several sizes.

    Attributes:
        name: shown in the table and matched by ``--only``.
        sizes: the values of the size parameter that are timed.
        make: inputs for a size.
        function: the program in JAX.
        reference: the program in numpy, when numpy has a fair way to write it.
        tolerance: largest accepted difference to XLA's result, relative to its largest element.
    """

    name: str
    sizes: tuple[int, ...]
    make: Make
    function: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    tolerance: float = 1e-4


def normal(generator: np.random.Generator, *shape: int) -> Array:
    return generator.standard_normal(shape, dtype=np.float32)


def square(generator: np.random.Generator, size: int) -> list[Array]:
    return [normal(generator, size, size)]


def two_squares(generator: np.random.Generator, size: int) -> list[Array]:
    return [normal(generator, size, size), normal(generator, size, size) / size**0.5]


def np_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias


def np_layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = np.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(1e-5)) * gain + bias


def norm_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    return [normal(generator, size, 768), normal(generator, 768), normal(generator, 768)]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / np.float32(q.shape[-1] ** 0.5)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def np_attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.transpose(0, 2, 1) / np.float32(q.shape[-1] ** 0.5)
    return np_softmax(scores) @ v


def attention_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    return [normal(generator, 8, size, 64) for _ in range(3)]


def perceptron(
    x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array
) -> jax.Array:
    return jnp.maximum(x @ w1 + b1, 0) @ w2 + b2


def np_perceptron(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def perceptron_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    wide = 2 * size
    w1, w2 = normal(generator, size, wide), normal(generator, wide, size)
    biases = normal(generator, wide), normal(generator, size)
    return [normal(generator, 64, size), w1 / size**0.5, biases[0], w2 / wide**0.5, biases[1]]


def recurrent(xs: jax.Array, state: jax.Array, wx: jax.Array, wh: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ wx + h @ wh)
        return h, h

    return lax.scan(step, state, xs)[1]


def np_recurrent(xs: Array, state: Array, wx: Array, wh: Array) -> Array:
    states: list[Array] = []
    for x in xs:
        state = np.tanh(x @ wx + state @ wh)
        states.append(state)
    return np.stack(states)


def recurrent_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    weights = [normal(generator, size, size) / size for _ in range(2)]
    return [normal(generator, 64, 8, size), normal(generator, 8, size), *weights]


def counting_loop(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 5000, lambda i, v: v * 0.999 + jnp.float32(i), x)


def gather_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    indices = generator.integers(0, size, 4096).astype(np.int32)
    return [normal(generator, size, 128), indices]


CASES: tuple[Case, ...] = (
    Case(
        "add",
        (8, 4096, 4_000_000),
        lambda g, n: [normal(g, n)],
        lambda x: x + 1,
        lambda x: x + np.float32(1),
    ),
    Case("gelu", (4096, 1_000_000), lambda g, n: [normal(g, n)], jax.nn.gelu),
    Case("softmax", (128, 1024), square, lambda x: jax.nn.softmax(x, axis=-1), np_softmax),
    Case("layer_norm", (64, 2048), norm_inputs, layer_norm, np_layer_norm),
    Case("column_sum", (512, 2048), square, lambda x: x.sum(0), lambda x: x.sum(0), 1e-3),
    Case("transpose", (512, 2048), square, lambda x: x.T, lambda x: np.ascontiguousarray(x.T)),
    Case("matmul", (64, 256, 1024), two_squares, lambda a, b: a @ b, lambda a, b: a @ b),
    Case("perceptron", (128, 512), perceptron_inputs, perceptron, np_perceptron),
    Case("attention", (64, 256), attention_inputs, attention, np_attention),
    Case("gather", (1000, 50_000), gather_inputs, lambda t, i: t[i], lambda t, i: t[i]),
    Case(
        "argmax",
        (128, 2048),
        square,
        lambda x: jnp.argmax(x, axis=-1).astype(jnp.int32),
        lambda x: np.argmax(x, axis=-1).astype(np.int32),
    ),
    Case("recurrent", (64, 256), recurrent_inputs, recurrent, np_recurrent, 1e-3),
    Case("loop", (16, 1024), lambda g, n: [normal(g, n)], counting_loop, None, 1e-3),
)
