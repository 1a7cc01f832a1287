# SPDX-License-Identifier: Apache-2.0
"""Programs exported from JAX, compiled and run; the expected values are XLA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import gristmill

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)


def whole(*shape: int, low: int = 0, high: int = 10, dtype: Any = np.int32) -> Array:
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def check(function: Callable[..., Any], *inputs: Array, tolerance: float = 1e-5) -> None:
    """Compare with XLA within ``tolerance`` of the largest element; integers must be equal."""
    with jax.enable_x64(any(a.dtype.itemsize == 8 for a in inputs)):
        jitted = jax.jit(function)
        executable = gristmill.compile(jitted.lower(*inputs))
        want = [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(*inputs))]
    got = executable(*inputs)
    got = list(got) if isinstance(got, tuple) else [got]
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in want]
    for g, w in zip(got, want, strict=True):
        if w.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w)
        else:
            scale = max(1.0, float(np.abs(w.astype(np.float64)).max(initial=0)))
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=0, atol=tolerance * scale
            )


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / 8
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def recurrent(xs: Any, state: Any, w: Any) -> Any:
    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(x + h @ w)
        return h, h.sum()

    return lax.scan(step, state, xs)


def collatz(n: Any) -> Any:
    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        value, count = state
        return lax.select(value % 2 == 0, value // 2, 3 * value + 1), count + 1

    return lax.while_loop(lambda s: s[0] != 1, step, (n, jnp.int32(0)))[1]


def train_step(x: Any, y: Any, w1: Any, w2: Any) -> Any:
    def loss(parameters: tuple[Any, Any]) -> Any:
        hidden = jax.nn.relu(x @ parameters[0])
        return jnp.square(hidden @ parameters[1] - y).mean()

    gradients = jax.grad(loss)((w1, w2))
    return w1 - 0.1 * gradients[0], w2 - 0.1 * gradients[1]


ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "erf": jax.scipy.special.erf,
    "mixed": lambda x: jnp.where(x > 0, jnp.exp(-x), jnp.sin(x) * jnp.cos(x)) ** 2,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_elementwise(name: str, dtype: Any) -> None:
    tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    check(ELEMENTWISE[name], normal(37, 5, dtype=dtype), tolerance=tolerance)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), (normal(33, 70),)),
    "layer_norm": (layer_norm, (normal(9, 130), normal(130), normal(130))),
    "column_sum": (lambda x: x.sum(0), (normal(100, 17),)),
    "sum_of_all": (lambda x: x.sum(), (normal(100, 17),)),
    "argmax": (lambda x: jnp.argmax(x, axis=-1), (normal(13, 50),)),
    "argmin_of_ties": (lambda x: jnp.argmin(x, axis=0), (whole(50, 13),)),
    "cumsum": (lambda x: jnp.cumsum(x, axis=0), (normal(20, 3),)),
    "transpose": (lambda x: x.transpose(2, 0, 1) + 1, (normal(5, 6, 7),)),
    "concatenate": (lambda a, b: jnp.concatenate([a, b * 2], 1), (normal(3, 4), normal(3, 5))),
    "pad_and_slice": (lambda x: jnp.pad(x, ((1, 2), (0, 3)))[::2, 1:], (normal(5, 6),)),
    "reverse": (lambda x: x[::-1, ::2], (normal(5, 6),)),
    "gather_rows": (lambda t, i: t[i], (normal(20, 8), whole(4, 3, high=20))),
    "scatter_add": (lambda x, i: x.at[i].add(1.5), (normal(10), whole(6))),
    "update_slice": (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
                     (normal(8, 4), normal(2, 4), np.int32(7).reshape(()))),
    "matmul": (lambda a, b: a @ b, (normal(37, 65), normal(65, 20))),
    "matmul_epilogue": (lambda a, b, c: jax.nn.relu(a @ b + c),
                        (normal(64, 64), normal(64, 48), normal(48))),
    "matrix_vector": (lambda a, b: a @ b, (normal(37, 65), normal(65))),
    "batched_matmul": (lambda a, b: a @ b, (normal(3, 17, 9), normal(3, 9, 5))),
    "einsum_odd_order": (lambda a, b: jnp.einsum("iab,bja->ji", a, b), (normal(4, 5, 6), normal(6, 7, 5))),
    "int8_matmul": (lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
                    (whole(8, 9, low=-128, high=127, dtype=np.int8),
                     whole(9, 7, low=-128, high=127, dtype=np.int8))),
    "attention": (attention, (normal(2, 9, 64), normal(2, 11, 64), normal(2, 11, 64))),
    "recurrent": (recurrent, (normal(12, 3, 8), normal(3, 8), normal(8, 8))),
    "while": (collatz, (np.int32(27).reshape(()),)),
    "branches": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda v: v * 2], x),
                 (np.int32(2).reshape(()), normal(6))),
    "training_step": (train_step, (normal(16, 8), normal(16, 2), normal(8, 12), normal(12, 2))),
    "integers": (lambda a, b: (a // b, a % b, a << 2, jnp.bitwise_xor(a, b)),
                 (whole(50, low=-20), whole(50, low=1))),
    "unsigned_wrap": (lambda a: (a * a + 7, a - 1 > a), (whole(20, high=2**31, dtype=np.uint32),)),
    "booleans": (lambda x: (jnp.any(x > 1, axis=1), jnp.all(x > -2, axis=0)), (normal(6, 7),)),
    "convolution": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
                    (normal(1, 3, 9, 9), normal(4, 3, 3, 3))),
    "empty": (lambda x: (x.sum(), x + 1), (normal(0, 4),)),
    "one_value_twice": (lambda x: (x + 1, x + 1, x), (normal(4),)),
    "long_double_sum": (lambda x: (x / 3).sum(), (normal(1000, dtype=np.float64),)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, inputs = PROGRAMS[name]
    check(function, *inputs)


def test_jit_compiles_once_for_each_signature() -> None:
    traced: list[tuple[int, ...]] = []

    @gristmill.jit
    def double(x: Any) -> Any:
        traced.append(x.shape)
        return x * 2

    for shape in ((3,), (3,), (4,)):
        np.testing.assert_array_equal(double(normal(*shape)), normal(*shape) * 2)
    assert traced == [(3,), (4,)]
