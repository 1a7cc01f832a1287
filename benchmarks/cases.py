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


def complex_normal(generator: np.random.Generator, *shape: int) -> Array:
    """Normal complex numbers."""
    return (normal(generator, *shape) + 1j * normal(generator, *shape)).astype(np.complex64)


def definite(generator: np.random.Generator, size: int) -> Array:
    """A symmetric positive definite matrix, well conditioned."""
    a = normal(generator, size, size)
    return (a @ a.T / np.float32(size) + np.eye(size, dtype=np.float32)).astype(np.float32)


def triangular_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    lower = np.linalg.cholesky(definite(generator, size)).astype(np.float32)
    return [lower, normal(generator, size, 32)]


def scatter_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    indices = generator.integers(0, size, 4096).astype(np.int32)
    return [normal(generator, size, 64), indices, normal(generator, 4096, 64)]


def np_scatter_add(table: Array, indices: Array, rows: Array) -> Array:
    result = table.copy()
    np.add.at(result, indices, rows)
    return result


def sort_pairs(keys: jax.Array, values: jax.Array) -> jax.Array:
    return lax.sort((keys, values), dimension=-1, num_keys=1)[1]


def np_sort_pairs(keys: Array, values: Array) -> Array:
    return np.take_along_axis(values, np.argsort(keys, axis=-1, kind="stable"), axis=-1)


def pair_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    values = np.broadcast_to(np.arange(size, dtype=np.int32), (16, size))
    return [normal(generator, 16, size), np.ascontiguousarray(values)]


def convolution(
    groups: int = 1, dilation: int = 1, stride: int = 1, padding: str = "SAME"
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A two-dimensional convolution, channels last."""

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            feature_group_count=x.shape[-1] if groups < 0 else groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    return convolve


def np_convolution(x: Array, w: Array, dilation: int = 1) -> Array:
    """Patches times a matrix, at stride 1 with padding that keeps the size."""
    batch, height, width, channels = x.shape
    taps, _, _, features = w.shape
    reach = dilation * (taps // 2)
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
    patches = [
        padded[:, i * dilation : i * dilation + height, j * dilation : j * dilation + width]
        for i in range(taps)
        for j in range(taps)
    ]
    rows = np.concatenate(patches, -1).reshape(-1, taps * taps * channels)
    return (rows @ w.reshape(-1, features)).reshape(batch, height, width, features)


def np_depthwise(x: Array, w: Array) -> Array:
    height, width = x.shape[1:3]
    reach = w.shape[0] // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
    result = np.zeros_like(x)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            result += padded[:, i : i + height, j : j + width] * w[i, j, 0]
    return result


def image_inputs(channels: int, features: int, groups: int = 1, batch: int = 1) -> Make:
    """An image of ``size`` × ``size`` and 3×3 weights."""

    def make(generator: np.random.Generator, size: int) -> list[Array]:
        fan = channels // groups
        weights = normal(generator, 3, 3, fan, features) / np.float32(3 * fan**0.5)
        return [normal(generator, batch, size, size, channels), weights]

    return make


def max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")


def np_max_pool(x: Array) -> Array:
    height, width = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 3) // 2 + 1
    parts = [
        x[:, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    return np.maximum.reduce(parts)


def moving_sum(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, 0.0, lax.add, (1, 64), (1, 1), "VALID")


def np_moving_sum(x: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, 64, axis=-1).sum(-1)


def add_noise(key: jax.Array, x: jax.Array) -> jax.Array:
    return x + jax.random.normal(key, x.shape, x.dtype)


def key_inputs(generator: np.random.Generator, size: int) -> list[Array]:
    return [generator.integers(0, 2**32, 2, np.uint32), normal(generator, size)]


def one_hot_count(classes: jax.Array) -> jax.Array:
    return jax.nn.one_hot(classes, 256, dtype=jnp.int32).sum(0)


def complex_rational(x: jax.Array, y: jax.Array) -> jax.Array:
    """Arithmetic and one function of complex numbers, reduced to a real number each."""
    z = x * y + x / (y + 3)
    return jnp.abs(jnp.exp(z * 0.1) - y)


def np_complex_rational(x: Array, y: Array) -> Array:
    z = x * y + x / (y + np.float32(3))
    return np.abs(np.exp(z * np.float32(0.1)) - y)


def spectrum(x: jax.Array) -> jax.Array:
    return jnp.abs(jnp.fft.fft(x, axis=-1))


def np_spectrum(x: Array) -> Array:
    return np.abs(np.fft.fft(x, axis=-1)).astype(np.float32)


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
    Case("sort", (128, 100_000), lambda g, n: [normal(g, 16, n)], jnp.sort, np.sort),
    Case("sort_pairs", (1000, 50_000), pair_inputs, sort_pairs, np_sort_pairs),
    Case(
        "top_k",
        (1000, 50_000),
        lambda g, n: [normal(g, 16, n)],
        lambda x: lax.top_k(x, 10)[0],
        lambda x: np.sort(np.partition(x, -10, axis=-1)[:, -10:], axis=-1)[:, ::-1],
    ),
    Case(
        "scatter_add",
        (1000, 50_000),
        scatter_inputs,
        lambda t, i, u: t.at[i].add(u),
        np_scatter_add,
    ),
    Case("scatter", (50_000,), scatter_inputs, lambda t, i, u: t.at[i].max(u)),
    Case("conv", (14, 56), image_inputs(64, 64), convolution(), np_convolution),
    Case("conv_first", (224,), image_inputs(3, 64), convolution(stride=2)),
    Case(
        "conv_dilated",
        (28,),
        image_inputs(64, 64),
        convolution(dilation=2),
        lambda x, w: np_convolution(x, w, 2),
    ),
    Case("conv_grouped", (28,), image_inputs(128, 128, 8), convolution(8)),
    Case(
        "conv_depthwise",
        (28, 112),
        image_inputs(96, 96, 96),
        convolution(-1),
        np_depthwise,
    ),
    Case(
        "max_pool",
        (28, 112),
        lambda g, n: [normal(g, 1, n, n, 64)],
        max_pool,
        np_max_pool,
    ),
    Case(
        "moving_sum",
        (4096,),
        lambda g, n: [normal(g, 64, n)],
        moving_sum,
        np_moving_sum,
        1e-3,
    ),
    Case("fft", (1024, 4096), lambda g, n: [complex_normal(g, 64, n)], spectrum, np_spectrum),
    Case("fft_odd", (1000, 1009), lambda g, n: [complex_normal(g, 64, n)], spectrum, np_spectrum),
    Case(
        "rfft",
        (1024,),
        lambda g, n: [normal(g, 256, n)],
        lambda x: jnp.abs(jnp.fft.rfft(x)),
        lambda x: np.abs(np.fft.rfft(x)).astype(np.float32),
    ),
    Case(
        "cumsum",
        (512, 4096),
        lambda g, n: [normal(g, 256, n)],
        lambda x: jnp.cumsum(x, axis=-1),
        lambda x: np.cumsum(x, axis=-1),
        1e-3,
    ),
    Case("cumsum_columns", (2048,), square, lambda x: jnp.cumsum(x, axis=0), None, 1e-3),
    Case("add_noise", (4096, 1_000_000), key_inputs, add_noise),
    Case(
        "transpose_0213",
        (256,),
        lambda g, n: [normal(g, 8, n, 12, 64)],
        lambda x: jnp.transpose(x, (0, 2, 1, 3)),
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)),
    ),
    Case(
        "transpose_0231",
        (56,),
        lambda g, n: [normal(g, 8, 64, n, n)],
        lambda x: jnp.transpose(x, (0, 2, 3, 1)),
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
    ),
    Case(
        "cholesky",
        (64, 512),
        lambda g, n: [definite(g, n)],
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        lambda a: np.linalg.cholesky(a),
    ),
    Case(
        "triangular_solve",
        (64, 512),
        triangular_inputs,
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    ),
    Case(
        "one_hot",
        (65_536,),
        lambda g, n: [g.integers(0, 256, n).astype(np.int32)],
        one_hot_count,
        lambda c: np.bincount(c, minlength=256).astype(np.int32),
    ),
    Case(
        "complex",
        (4096, 1_000_000),
        lambda g, n: [complex_normal(g, n), complex_normal(g, n)],
        complex_rational,
        np_complex_rational,
    ),
)
