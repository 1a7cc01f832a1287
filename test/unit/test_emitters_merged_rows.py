# SPDX-License-Identifier: Apache-2.0
"""Loops over short rows of images, which are run over together where nothing tells them apart."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill import CompileOptions

_SCALED = """
func.func public @main(%x: tensor<{shape}xf32>, %y: tensor<{operand}xf32>)
    -> (tensor<{shape}xf32>, tensor<{shape}xf32>) {{
  %0 = stablehlo.broadcast_in_dim %y, dims = [{dims}] : (tensor<{operand}xf32>) -> tensor<{shape}xf32>
  %1 = stablehlo.multiply %x, %0 : tensor<{shape}xf32>
  %2 = stablehlo.subtract %1, %x : tensor<{shape}xf32>
  return %1, %2 : tensor<{shape}xf32>, tensor<{shape}xf32>
}}
"""


@pytest.mark.parametrize(
    "shape",
    [
        (4, 8, 7, 7),
        (2, 16, 14, 13),
        (1, 3, 224, 224),  # few long rows once they are one
        (1, 3, 5, 6),  # too few tasks
        (9, 4, 2, 3),  # rows of less than a vector, also together
        (64, 3, 255),
        (64, 2, 257),
        (20, 1, 30),
    ],
)
@pytest.mark.parametrize("along", [(0,), (-3,), (-2,), (-1,), (-2, -1)])
def test_scaled(shape: tuple[int, ...], along: tuple[int, ...]) -> None:
    dims = [d % len(shape) for d in along]
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, shape).astype(np.float32)
    y = rng.integers(-8, 8, [shape[d] for d in dims]).astype(np.float32)
    text = _SCALED.format(
        shape="x".join(map(str, shape)),
        operand="x".join(map(str, y.shape)),
        dims=", ".join(map(str, dims)),
    )
    scaled, difference = gristmill.compile(text, options=CompileOptions(cache=False))(x, y)
    scale = y.reshape([shape[d] if d in dims else 1 for d in range(len(shape))])
    np.testing.assert_array_equal(scaled, x * scale)
    np.testing.assert_array_equal(difference, x * scale - x)
