# SPDX-License-Identifier: Apache-2.0
"""Constants packed at compile time: which, and that results stay what numpy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gristmill.compiler.compile import Compilation, compile_stages, import_source
from gristmill.runtime.executable import Executable

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


W = normal(96, 256) / 10
SQUARE = normal(256, 256) / 16
BIAS = normal(256)
X = normal(16, 96)


def build(function: Callable[..., Any], *inputs: Array) -> tuple[Compilation, str]:
    compilation = compile_stages(import_source(jax.jit(function).lower(*inputs)), keep_stages=True)
    fused = compilation.emit("fused")
    assert isinstance(fused, str)
    return compilation, fused


def check(compilation: Compilation, want: Array, *inputs: Array) -> None:
    with Executable(compilation.program()) as executable:
        for threads in (1, 2):
            got = executable(*inputs, threads=threads)
            assert isinstance(got, np.ndarray)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "rows", [9, 16, 64]
)  # heights whose panels divide 256 with vectors of any width
@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer(rows: int, transposed: bool) -> None:
    """The epilogue needs to know its row and column."""
    x, other = normal(rows, 96), normal(rows, 256)
    weights = np.ascontiguousarray(W.T) if transposed else W

    def layer(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.maximum(x @ (weights.T if transposed else weights) + BIAS, 0) - y

    compilation, fused = build(layer, x, other)
    assert "_packed" in fused
    assert "x96x" in fused.partition("func.func private")[2]
    want = np.maximum(x.astype(np.float64) @ W + BIAS, 0) - other
    check(compilation, want, x, other)


def test_the_plain_matrix_is_gone() -> None:
    compilation, fused = build(lambda x: x @ W, X)
    assert "_packed" in fused
    check(compilation, X.astype(np.float64) @ W, X)
    assert [c.shape for c in compilation.program().constants if c.ndim > 1] != [W.shape]
    assert sum(c.nbytes for c in compilation.program().constants) == W.nbytes


def test_leading_dimensions_are_rows() -> None:
    x = normal(2, 3, 4, 96)
    compilation, fused = build(lambda x: jnp.tanh(x @ W + BIAS), x)
    assert "_packed" in fused
    check(compilation, np.tanh(x.astype(np.float64) @ W + BIAS), x)


def test_several_products_share_one_packed_matrix() -> None:
    x = normal(16, 256)
    compilation, fused = build(lambda x: jnp.tanh(jnp.tanh(x @ SQUARE) @ SQUARE), x)
    assert fused.count("dense_resource<") == 1
    wide = x.astype(np.float64)
    check(compilation, np.tanh(np.tanh(wide @ SQUARE) @ SQUARE), x)
    assert sum(c.nbytes for c in compilation.program().constants) == SQUARE.nbytes


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda x, w: x @ w, (X, W), id="an argument"),
        pytest.param(lambda x: x @ W, (normal(65, 96),), id="many rows"),
        pytest.param(lambda x: x @ W, (normal(1, 96),), id="one row, streamed"),
        pytest.param(lambda x: x @ W[:, :250], (X,), id="a width that panels do not divide"),
        pytest.param(
            lambda x, rows: x @ SQUARE + jnp.take(SQUARE, rows, axis=0),
            (normal(16, 256), np.arange(16, dtype=np.int32)),
            id="used elsewhere",
        ),
        pytest.param(
            lambda x: x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16), (X,), id="another type"
        ),
    ],
)
def test_the_rest_stays(function: Callable[..., Any], inputs: tuple[Array, ...]) -> None:
    assert "_packed" not in build(function, *inputs)[1]


def test_uses_that_want_different_panels_stay() -> None:
    """One multiplies by the matrix, one by its transpose."""
    x = normal(16, 256)

    def both(x: jax.Array) -> jax.Array:
        return lax.dot_general(jnp.tanh(x @ SQUARE), SQUARE, (((1,), (1,)), ((), ())))

    compilation, fused = build(both, x)
    assert "_packed" not in fused
    check(compilation, np.tanh(x.astype(np.float64) @ SQUARE) @ SQUARE.T, x)


@pytest.mark.parametrize("kind", ["float32", "int8", "bfloat16"])
def test_an_argument_may_come_in_panels(kind: str) -> None:
    """The layout that packing makes, of any type, from outside."""
    x, w = RNG.integers(-4, 5, (40, 48)), RNG.integers(-4, 5, (3, 48, 64))
    inputs = [np.asarray(jnp.asarray(a, kind)) for a in (x, w)]

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        wide = jnp.int32 if kind == "int8" else jnp.float32
        dims = (((1,), (1,)), ((), ()))
        return lax.dot_general(x, w, dims, preferred_element_type=wide)

    compilation, _ = build(product, *inputs)
    check(compilation, np.einsum("mk,pkw->mpw", x, w), *inputs)
