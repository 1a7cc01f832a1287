# SPDX-License-Identifier: Apache-2.0
"""Rows of several dimensions, of which the last two are run over in one loop where nothing tells them apart."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill import CompileOptions

_CENTRED = """
func.func public @main(%x: tensor<{shape}xf32>, %y: tensor<{operand}xf32>) -> tensor<{shape}xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [{columns}]
    : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{rows}xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<{rows}xf32>) -> tensor<{shape}xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<{shape}xf32>
  %3 = stablehlo.broadcast_in_dim %y, dims = [{dims}] : (tensor<{operand}xf32>) -> tensor<{shape}xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<{shape}xf32>
  return %4 : tensor<{shape}xf32>
}}
"""


@pytest.mark.parametrize("columns", [(9, 11), (14, 14), (3, 7, 13), (2, 3, 5, 7)])
@pytest.mark.parametrize("scaled", ["rows", "first", "second last", "last", "both", "all"])
def test_centred_and_scaled(columns: tuple[int, ...], scaled: str) -> None:
    shape = (37, *columns)
    last = len(shape) - 1
    dims = {
        "rows": [0],
        "first": [1],
        "second last": [last - 1],
        "last": [last],
        "both": [last - 1, last],
        "all": list(range(len(shape))),
    }[scaled]
    rng = np.random.default_rng(last)
    x = rng.integers(-8, 8, shape).astype(np.float32)
    y = rng.integers(-8, 8, [shape[d] for d in dims]).astype(np.float32)
    text = _CENTRED.format(
        shape="x".join(map(str, shape)),
        operand="x".join(map(str, y.shape)),
        rows=shape[0],
        columns=", ".join(str(d) for d in range(1, len(shape))),
        dims=", ".join(map(str, dims)),
    )
    executable = gristmill.compile(text, options=CompileOptions(cache=False))
    scale = y.reshape([shape[d] if d in dims else 1 for d in range(len(shape))])
    total = x.sum(tuple(range(1, len(shape))), keepdims=True)
    np.testing.assert_array_equal(executable(x, y), (x - total) * scale)
