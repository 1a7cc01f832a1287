# SPDX-License-Identifier: Apache-2.0
"""Cumulative reductions against numpy and the StableHLO reference interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
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


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.float16])
def test_types(dtype: Any) -> None:
    x = RNG.integers(0, 3, (4, 100)).astype(dtype)
    got = run(lambda a: jax.lax.cummax(a, 1), x)
    np.testing.assert_array_equal(got, np.maximum.accumulate(x, 1))
    got = run(lambda a: jax.lax.cumsum(a, 1), x)
    np.testing.assert_array_equal(got, np.cumsum(x, 1, dtype=dtype))


@pytest.mark.parametrize("shape", [(30,), (5000,), (30, 20)])
def test_product_and_minimum(shape: tuple[int, ...]) -> None:
    x = RNG.choice(np.array([1, -1, 1, 2, 0.5], np.float32), shape)
    np.testing.assert_array_equal(run(lambda a: jnp.cumprod(a, 0), x), np.cumprod(x, 0))
    got = run(lambda a: jax.lax.cummin(a, 0), x)
    np.testing.assert_array_equal(got, np.minimum.accumulate(x, 0))


def test_nan_passes_on() -> None:
    x = np.ones((3, 5000), np.float32)
    x[1, 2500] = np.nan
    got = run(lambda a: jax.lax.cummax(a, 1), x)
    assert np.isnan(got[1, 2500:]).all()
    assert not np.isnan(got[1, :2500]).any()


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
