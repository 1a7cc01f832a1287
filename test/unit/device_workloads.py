# SPDX-License-Identifier: Apache-2.0
"""Workloads for device checks: what models spend their time on, as JAX functions, in a full and a reduced size.

The full sizes are those of common benchmarks; the reduced ones are for the simulator. JAX on the CPU gives the
expected results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """A program.

    Attributes:
        make: the function and its arguments, given ``full`` (else reduced) and a random generator.
        tolerance: the largest difference from the expected result, absolute or relative to its largest value.
        flops: of the full size, where products dominate; else 0.
    """

    name: str
    make: Callable[[bool, np.random.Generator], tuple[Callable[..., Any], list[Array]]]
    tolerance: float = 1e-4
    flops: int = 0


WORKLOADS: list[Workload] = []


def workload(tolerance: float = 1e-4, flops: int = 0) -> Callable[[Any], Any]:
    """Register a function ``(full, rng) -> (function, arguments)`` under its name."""

    def register(make: Any) -> Any:
        WORKLOADS.append(Workload(make.__name__, make, tolerance, flops))
        return make

    return register


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def rows(full: bool) -> tuple[int, int]:
    return (4096, 1024) if full else (37, 96)


def layer_norm(x: Any, gain: Any, shift: Any) -> Any:
    import jax

    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + shift


def heads_attention(q: Any, k: Any, v: Any) -> Any:
    import jax.numpy as jnp

    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.float32(np.sqrt(q.shape[-1]))
    mask = np.tril(np.ones(scores.shape[-2:], bool))
    scores = jnp.where(mask, scores, np.float32(-1e9))
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def block(x: Any, heads: int, p: list[Any]) -> Any:
    import jax

    batch, length, width = x.shape
    h = layer_norm(x, p[0], p[1])
    qkv = (h @ p[2] + p[3]).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    a = heads_attention(q, k, v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + a @ p[4] + p[5]
    h = layer_norm(x, p[6], p[7])
    return x + jax.nn.gelu(h @ p[8] + p[9]) @ p[10] + p[11]


def block_parameters(rng: np.random.Generator, d: int) -> list[Array]:
    one, zero, s = np.ones(d, np.float32), np.zeros(d, np.float32), d**-0.5
    return [
        *(one, zero, normal(rng, d, 3 * d, scale=s), np.zeros(3 * d, np.float32)),
        *(normal(rng, d, d, scale=s), zero, one, zero),
        *(normal(rng, d, 4 * d, scale=s), np.zeros(4 * d, np.float32)),
        *(normal(rng, 4 * d, d, scale=s / 2), zero),
    ]


@workload()
def add_one(full: bool, rng: Any) -> Any:
    return lambda x: x + 1, [normal(rng, 8)]


@workload()
def gelu_chain(full: bool, rng: Any) -> Any:
    import jax

    return lambda x, b: jax.nn.gelu(jax.nn.gelu(x + b) * 2), [
        normal(rng, *rows(full)),
        normal(rng, rows(full)[1]),
    ]


@workload()
def softmax(full: bool, rng: Any) -> Any:
    import jax

    return lambda x: jax.nn.softmax(x, -1), [normal(rng, *rows(full))]


@workload()
def layernorm(full: bool, rng: Any) -> Any:
    n = rows(full)[1]
    return layer_norm, [normal(rng, *rows(full)), normal(rng, n), normal(rng, n)]


@workload()
def rmsnorm_residual(full: bool, rng: Any) -> Any:
    import jax

    def run(x: Any, r: Any, w: Any) -> Any:
        s = x + r
        return s * jax.lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-6) * w, s

    return run, [normal(rng, *rows(full)), normal(rng, *rows(full)), normal(rng, rows(full)[1])]


@workload(1e-3)
def sum_all(full: bool, rng: Any) -> Any:
    return lambda x: x.sum(), [normal(rng, *rows(full))]


@workload()
def column_sum(full: bool, rng: Any) -> Any:
    return lambda x: x.sum(0), [normal(rng, *rows(full))]


@workload(0)
def transpose(full: bool, rng: Any) -> Any:
    return lambda x: x.T, [normal(rng, *rows(full))]


@workload(0)
def transpose_0231(full: bool, rng: Any) -> Any:
    shape = (8, 64, 56, 56) if full else (2, 5, 7, 6)
    return lambda x: x.transpose(0, 2, 3, 1), [normal(rng, *shape)]


def product(full: bool, rng: Any, small: tuple[int, int, int], large: tuple[int, int, int]) -> Any:
    import jax.numpy as jnp

    m, k, n = large if full else small
    return jnp.matmul, [normal(rng, m, k), normal(rng, k, n)]


@workload(1e-4, 2 * 1024**3)
def matmul_1024(full: bool, rng: Any) -> Any:
    return product(full, rng, (65, 48, 70), (1024, 1024, 1024))


@workload(1e-4, 2 * 256**3)
def matmul_256(full: bool, rng: Any) -> Any:
    return product(full, rng, (32, 32, 32), (256, 256, 256))


@workload(1e-4, 2 * 4096**2)
def vector_matrix(full: bool, rng: Any) -> Any:
    return product(full, rng, (1, 100, 130), (1, 4096, 4096))


@workload(1e-4, 2 * 16 * 128**3)
def batched_matmul(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp

    b, n = (16, 128) if full else (3, 24)
    return jnp.matmul, [normal(rng, b, n, n), normal(rng, b, n, n)]


@workload(2e-2, 2 * 4096**3)
def matmul_bf16(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp
    import ml_dtypes

    n = 4096 if full else 64
    return jnp.matmul, [normal(rng, n, n).astype(ml_dtypes.bfloat16) for _ in range(2)]


@workload(1e-4, 2 * 64 * (784 * 512 + 512 * 512 + 512 * 10))
def mlp(full: bool, rng: Any) -> Any:
    import jax

    sizes = (784, 512, 512, 10) if full else (30, 24, 20, 10)

    def run(x: Any, *p: Any) -> Any:
        for i in range(0, 6, 2):
            x = x @ p[i] + p[i + 1]
            x = jax.nn.relu(x) if i < 4 else x
        return x

    parameters = [
        item
        for a, b in itertools.pairwise(sizes)
        for item in (normal(rng, a, b, scale=a**-0.5), normal(rng, b))
    ]
    return run, [normal(rng, 64 if full else 9, sizes[0]), *parameters]


@workload(1e-4, 4 * 8 * 512 * 512 * 64)
def attention(full: bool, rng: Any) -> Any:
    shape = (1, 8, 512, 64) if full else (1, 2, 17, 8)
    return heads_attention, [normal(rng, *shape) for _ in range(3)]


@workload(1e-3, 2 * 128 * 12 * 768**2)
def transformer_block(full: bool, rng: Any) -> Any:
    t, d, h = (128, 768, 12) if full else (12, 32, 2)
    return lambda x, *p: block(x, h, list(p)), [normal(rng, 1, t, d), *block_parameters(rng, d)]


def convolution(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    from jax import lax

    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


@workload(1e-4, 2 * 56 * 56 * 64 * 64 * 9)
def conv_3x3(full: bool, rng: Any) -> Any:
    n, c = (56, 64) if full else (9, 8)
    return convolution, [normal(rng, 1, n, n, c), normal(rng, 3, 3, c, c, scale=0.1)]


@workload()
def depthwise_3x3(full: bool, rng: Any) -> Any:
    n, c = (112, 32) if full else (10, 6)
    return lambda x, w: convolution(x, w, groups=c), [
        normal(rng, 1, n, n, c),
        normal(rng, 3, 3, 1, c),
    ]


@workload(1e-4, 2 * 3136 * (256 * 64 * 2 + 64 * 64 * 9))
def resnet_bottleneck(full: bool, rng: Any) -> Any:
    import jax

    n, c, m = (56, 256, 64) if full else (6, 16, 8)

    def run(x: Any, *p: Any) -> Any:
        h = x
        for i in range(3):
            w, gain, shift = p[3 * i : 3 * i + 3]
            h = convolution(h, w) * gain + shift
            h = jax.nn.relu(h) if i < 2 else h
        return jax.nn.relu(h + x)

    arguments = [normal(rng, 1, n, n, c)]
    for size, a, b in ((1, c, m), (3, m, m), (1, m, c)):
        arguments += [normal(rng, size, size, a, b, scale=0.1), normal(rng, b), normal(rng, b)]
    return run, arguments


@workload(0)
def max_pool(full: bool, rng: Any) -> Any:
    from jax import lax

    shape = (1, 112, 112, 64) if full else (1, 11, 11, 5)

    def run(x: Any) -> Any:
        return lax.reduce_window(
            x, np.float32(-np.inf), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        )

    return run, [normal(rng, *shape)]


@workload(0)
def gather_rows(full: bool, rng: Any) -> Any:
    n, d, count = (50257, 768, 512) if full else (100, 24, 17)
    return lambda t, i: t[i], [
        normal(rng, n, d),
        rng.integers(0, n, count).astype(np.int32),
    ]


@workload()
def scatter_add(full: bool, rng: Any) -> Any:
    n, d, count = (10000, 128, 4096) if full else (50, 16, 70)
    return lambda t, i, u: t.at[i].add(u), [
        normal(rng, n, d),
        rng.integers(0, n, count).astype(np.int32),
        normal(rng, count, d),
    ]


@workload(0)
def sort_rows(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp

    return lambda x: jnp.sort(x, -1), [normal(rng, *((1000, 1000) if full else (9, 77)))]


@workload(0)
def argmax(full: bool, rng: Any) -> Any:
    return lambda x: x.argmax(-1).astype(np.int32), [normal(rng, *rows(full))]


@workload(1e-3)
def cumulative_sum(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp

    return lambda x: jnp.cumsum(x, 1), [normal(rng, *((1024, 4096) if full else (5, 150)))]


@workload()
def threefry_normal(full: bool, rng: Any) -> Any:
    import jax

    count = 1 << 20 if full else 300
    return lambda key: jax.random.normal(key, (count,)), [np.array([0, 42], np.uint32)]


@workload()
def while_loop(full: bool, rng: Any) -> Any:
    from jax import lax

    count = 10000 if full else 50
    return lambda x: lax.fori_loop(0, count, lambda _, y: y + 0.001 * (1 - y * y), x), [
        np.float32(0.125)
    ]


@workload(1e-3)
def scan_rnn(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    t, b, d = (128, 8, 256) if full else (4, 3, 40)

    def run(xs: Any, h: Any, wx: Any, wh: Any, shift: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ wx + h @ wh + shift)
            return h, h

        return lax.scan(step, h, xs)

    s = d**-0.5
    matrices = [normal(rng, d, d, scale=s), normal(rng, d, d, scale=s)]
    return run, [normal(rng, t, b, d), normal(rng, b, d), *matrices, normal(rng, d)]


@workload()
def fft(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp

    shape = (1024, 1024) if full else (3, 64)
    return jnp.fft.fft, [(normal(rng, *shape) + 1j * normal(rng, *shape)).astype(np.complex64)]


@workload(1e-5)
def exponential(full: bool, rng: Any) -> Any:
    import jax.numpy as jnp

    return jnp.exp, [normal(rng, 1 << 20 if full else 1000)]


@workload(0)
def one_hot_histogram(full: bool, rng: Any) -> Any:
    import jax

    count = 65536 if full else 200
    return lambda i: jax.nn.one_hot(i, 256, dtype=np.int32).sum(0), [
        rng.integers(0, 256, count).astype(np.int32)
    ]


@workload(1e-3)
def gpt(full: bool, rng: Any) -> Any:
    layers, t, d, h, vocabulary = (12, 64, 768, 12, 50257) if full else (2, 8, 24, 2, 60)

    def run(tokens: Any, wte: Any, wpe: Any, *p: Any) -> Any:
        x = wte[tokens] + wpe[: tokens.shape[1]]
        for i in range(layers):
            x = block(x, h, list(p[12 * i : 12 * i + 12]))
        return layer_norm(x, p[-2], p[-1]) @ wte.T

    arguments = [
        rng.integers(0, vocabulary, (1, t)).astype(np.int32),
        normal(rng, vocabulary, d, scale=0.03),
        normal(rng, 2 * t, d, scale=0.02),
    ]
    for _ in range(layers):
        arguments += block_parameters(rng, d)
    return run, [*arguments, np.ones(d, np.float32), np.zeros(d, np.float32)]


@workload(1e-3)
def mlp_training_step(full: bool, rng: Any) -> Any:
    import jax
    import jax.numpy as jnp

    run, (x, *parameters) = mlp(full, rng)
    labels = rng.integers(0, 10, len(x)).astype(np.int32)

    def step(x: Any, y: Any, *p: Any) -> Any:
        def loss(p: Any) -> Any:
            logits = jax.nn.log_softmax(run(x, *p), -1)
            return -jnp.mean(jnp.sum(jax.nn.one_hot(y, 10) * logits, -1))

        value, gradients = jax.value_and_grad(loss)(p)
        return (value, *(a - 0.125 * g for a, g in zip(p, gradients, strict=True)))

    return step, [x, labels, *parameters]


def prepared(item: Workload, full: bool) -> tuple[str, list[Array], list[Array]]:
    """A workload's StableHLO, its arguments, and the results of JAX on the CPU."""
    import jax

    function, arguments = item.make(full, np.random.default_rng(7))
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    results = jax.tree_util.tree_leaves(jax.jit(function)(*arguments))
    return lowered.as_text(), arguments, [np.asarray(r) for r in results]


def difference(got: Array, want: Array) -> float:
    """The largest difference, relative to the largest expected magnitude (at least 1)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    scale = max(1.0, float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)))
    worst = float(np.max(np.where(same, 0.0, np.abs(a - b)))) / scale
    return worst if np.isfinite(worst) else float("inf")
