# SPDX-License-Identifier: Apache-2.0
"""Cumulative reductions against numpy and the StableHLO reference interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from interpreter import evaluate

import gristmill

RNG = np.random.default_rng(2)
SHAPES = [
    ((9,), 0),
    ((5, 40), 1),
    ((19, 3), 0),
    ((8, 33), 1),
    ((11, 30), 1),
    ((2, 50, 40), 1),
    ((7, 1200), 0),
    ((40003,), 0),
    ((3, 8192), 1),
    ((2, 3001, 3), 1),
    ((5, 64), 1),
    ((6, 100), 1),
    ((3, 1037), 1),
    ((1, 40003), 1),
]


def run(function: Any, *arrays: np.ndarray[Any, Any]) -> Any:
    return gristmill.compile(jax.jit(function).lower(*arrays))(*arrays)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sum(shape: tuple[int, ...], axis: int, backwards: bool) -> None:
    x = RNG.integers(-3, 4, shape).astype(np.float32)  # sums are exact in any order
    got = run(lambda a: jax.lax.cumsum(a, axis, reverse=backwards), x)
    flipped = np.flip(x, axis) if backwards else x
    wanted = np.cumsum(flipped, axis)
    np.testing.assert_array_equal(got, np.flip(wanted, axis) if backwards else wanted)


@pytest.mark.parametrize("shape", [(4, 50), (4, 203), (1, 9001)])
@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float64"]
)
def test_types(dtype: str, shape: tuple[int, ...]) -> None:
    x = RNG.integers(0, 3, shape)
    x[:, 40:] = 0  # the sums are exact
    x[:, -1] = 1
    x = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    with jax.enable_x64(True):
        got = run(lambda a: jax.lax.cummax(a, 1), x)
        np.testing.assert_array_equal(got, np.maximum.accumulate(x, 1))
        got = run(lambda a: jax.lax.cumsum(a, 1, reverse=True), x)
    wanted = np.cumsum(x[:, ::-1].astype(np.float64), 1)[:, ::-1]
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


@pytest.mark.parametrize("shape", [(3, 4096), (20_000,)])
def test_error(shape: tuple[int, ...]) -> None:
    """Higham, Accuracy and Stability of Numerical Algorithms, 4.2: n u times the sum of magnitudes bounds any order."""
    x = RNG.standard_normal(shape).astype(np.float32)
    got = run(lambda a: jax.lax.cumsum(a, len(shape) - 1), x)
    wide = x.astype(np.float64)
    bound = np.arange(shape[-1]) * 2.0**-24 * np.cumsum(np.abs(wide), -1) * 1.01
    assert (np.abs(got - np.cumsum(wide, -1)) <= bound).all()


def test_sums_of_computed_elements() -> None:
    x = RNG.integers(-3, 4, (5, 150)).astype(np.float32)
    got = run(lambda a: jax.lax.cumsum(2 * a + 1, 1), x)
    np.testing.assert_array_equal(got, np.cumsum(2 * x + 1, 1))


@pytest.mark.parametrize("shape", [(30,), (100,), (5000,), (30, 20)])
def test_product_and_minimum(shape: tuple[int, ...]) -> None:
    x = RNG.choice(np.array([1, -1, 1, 2, 0.5], np.float32), shape)
    np.testing.assert_array_equal(run(lambda a: jnp.cumprod(a, 0), x), np.cumprod(x, 0))
    got = run(lambda a: jax.lax.cummin(a, 0), x)
    np.testing.assert_array_equal(got, np.minimum.accumulate(x, 0))


@pytest.mark.parametrize("width", [200, 5000])
def test_nan_passes_on(width: int) -> None:
    x = np.ones((3, width), np.float32)
    x[1, width // 2] = np.nan
    got = run(lambda a: jax.lax.cummax(a, 1), x)
    assert np.isnan(got[1, width // 2 :]).all()
    assert not np.isnan(got[1, : width // 2]).any()


TWO_OPERANDS = """func.func @main(%x: tensor<{n}xf32>, %i: tensor<{n}xi32>) -> (tensor<{n}xf32>, tensor<{n}xi32>) {{
  %z = stablehlo.constant dense<-1.0> : tensor<f32>
  %k = stablehlo.constant dense<-1> : tensor<i32>
  %0:2 = "stablehlo.reduce_window"(%x, %i, %z, %k) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<i32>):
    %p = stablehlo.compare GE, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %p, %a, %c : tensor<i1>, tensor<f32>
    %w = stablehlo.select %p, %b, %d : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }}) {{window_dimensions = array<i64: {n}>, padding = dense<[[{low}, 0]]> : tensor<1x2xi64>}}
    : (tensor<{n}xf32>, tensor<{n}xi32>, tensor<f32>, tensor<i32>) -> (tensor<{n}xf32>, tensor<{n}xi32>)
  return %0#0, %0#1 : tensor<{n}xf32>, tensor<{n}xi32>
}}"""


def test_two_operands() -> None:
    text = TWO_OPERANDS.format(n=37, low=36)
    x = RNG.integers(0, 10, 37).astype(np.float32)
    i = np.arange(37, dtype=np.int32)
    for mine, wanted in zip(gristmill.compile(text)(x, i), evaluate(text, x, i), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_other_windows_are_not_cumulative() -> None:
    text = TWO_OPERANDS.format(n=37, low=20).replace("array<i64: 37>", "array<i64: 21>")
    x = RNG.integers(0, 10, 37).astype(np.float32)
    i = np.arange(37, dtype=np.int32)
    for mine, wanted in zip(gristmill.compile(text)(x, i), evaluate(text, x, i), strict=True):
        np.testing.assert_array_equal(mine, wanted)
