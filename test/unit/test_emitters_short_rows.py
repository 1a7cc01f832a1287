# SPDX-License-Identifier: Apache-2.0
"""Rows shorter than a few vectors, computed side by side: values against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill import CompileOptions

_SOFTMAX = """
func.func public @main(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [{last}]
    : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{rows}xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [{dims}] : (tensor<{rows}xf32>) -> tensor<{shape}xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<{shape}xf32>
  %3 = stablehlo.exponential %2 : tensor<{shape}xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [{last}]
    : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{rows}xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [{dims}] : (tensor<{rows}xf32>) -> tensor<{shape}xf32>
  %6 = stablehlo.divide %3, %5 : tensor<{shape}xf32>
  return %6 : tensor<{shape}xf32>
}}
"""

_ARGMAX = """
func.func public @main(%x: tensor<{shape}xf32>) -> tensor<{rows}xi32> {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = {last} : tensor<{shape}xi32>
  %0:2 = stablehlo.reduce(%x init: %low), (%i init: %zero) across dimensions = [{last}]
    : (tensor<{shape}xf32>, tensor<{shape}xi32>, tensor<f32>, tensor<i32>) -> (tensor<{rows}xf32>, tensor<{rows}xi32>)
    reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<i32>, %d: tensor<i32>) {{
    %1 = stablehlo.compare GT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.compare NE, %a, %a, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.or %1, %2 : tensor<i1>
    %4 = stablehlo.compare EQ, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %5 = stablehlo.compare LT, %c, %d, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %6 = stablehlo.and %4, %5 : tensor<i1>
    %7 = stablehlo.or %3, %6 : tensor<i1>
    %8 = stablehlo.select %3, %a, %b : tensor<i1>, tensor<f32>
    %9 = stablehlo.select %7, %c, %d : tensor<i1>, tensor<i32>
    stablehlo.return %8, %9 : tensor<f32>, tensor<i32>
  }}
  return %0#1 : tensor<{rows}xi32>
}}
"""

_SUM_AND_CENTRED = """
func.func public @main(%x: tensor<{rows}x2x{width}xi32>, %y: tensor<{rows}xi32>)
    -> (tensor<{rows}xi32>, tensor<{rows}x2x{width}xi32>) {{
  %zero = stablehlo.constant dense<5> : tensor<i32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [{first}, {second}]
    : (tensor<{rows}x2x{width}xi32>, tensor<i32>) -> tensor<{rows}xi32>
  %1 = stablehlo.add %0, %y : tensor<{rows}xi32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [{dims}] : (tensor<{rows}xi32>) -> tensor<{rows}x2x{width}xi32>
  %3 = stablehlo.subtract %x, %2 : tensor<{rows}x2x{width}xi32>
  return %1, %3 : tensor<{rows}xi32>, tensor<{rows}x2x{width}xi32>
}}
"""


def _run(text: str, *arguments: np.ndarray) -> list[np.ndarray]:
    executable = gristmill.compile(text, options=CompileOptions(cache=False))
    results = executable(*arguments)
    return [np.asarray(x) for x in (results if isinstance(results, (tuple, list)) else [results])]


def _text(template: str, rows: tuple[int, ...], width: int) -> str:
    rank = len(rows)
    return template.format(
        shape="x".join(map(str, (*rows, width))),
        rows="x".join(map(str, rows)),
        width=width,
        last=rank,
        first=rank,
        second=rank + 1,
        dims=", ".join(map(str, range(rank))),
    )


ROWS = [(1,), (7,), (4099,), (3, 5), (2, 1, 1001), (129, 67)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [2, 3, 10, 31])
def test_softmax(rows: tuple[int, ...], width: int) -> None:
    x = np.random.default_rng(width).normal(0, 20, (*rows, width)).astype(np.float32)
    x.reshape(-1, width)[0, -1] = -np.inf
    wide = np.exp((x - x.max(-1, keepdims=True)).astype(np.float64))
    expected = wide / wide.sum(-1, keepdims=True)
    (found,) = _run(_text(_SOFTMAX, rows, width), x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-38)


def test_softmax_with_nan_spoils_its_row_alone() -> None:
    x = np.random.default_rng(1).normal(size=(100, 5)).astype(np.float32)
    x[17, 2] = np.nan
    (found,) = _run(_text(_SOFTMAX, (100,), 5), x)
    assert np.isnan(found[17]).all()
    assert np.isfinite(np.delete(found, 17, axis=0)).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [3, 5, 12])
def test_argmax(rows: tuple[int, ...], width: int) -> None:
    x = np.random.default_rng(width).integers(0, 4, (*rows, width)).astype(np.float32)
    x.reshape(-1, width)[-1, 1] = np.nan
    (found,) = _run(_text(_ARGMAX, rows, width), x)
    np.testing.assert_array_equal(found, np.argmax(x, axis=-1))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [2, 3, 13])
def test_two_dimensions_reduced_and_two_results(rows: tuple[int, ...], width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(-99, 99, (*rows, 2, width), dtype=np.int32)
    y = rng.integers(-99, 99, rows, dtype=np.int32)
    total = x.sum((-2, -1), dtype=np.int32) + 5 + y
    found, centred = _run(_text(_SUM_AND_CENTRED, rows, width), x, y)
    np.testing.assert_array_equal(found, total)
    np.testing.assert_array_equal(centred, x - total[..., None, None])
