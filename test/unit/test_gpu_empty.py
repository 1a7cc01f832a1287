# SPDX-License-Identifier: Apache-2.0
"""Programs on a GPU whose results, or parts of them, hold no elements."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill

DOT = """
func.func @main(%a: tensor<{b}x{m}x{k}xf32>, %b: tensor<{b}x{k}x{n}xf32>) -> tensor<{b}x{m}x{n}xf32> {{
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : (tensor<{b}x{m}x{k}xf32>, tensor<{b}x{k}x{n}xf32>) -> tensor<{b}x{m}x{n}xf32>
  return %0 : tensor<{b}x{m}x{n}xf32>
}}
"""

TRANSPOSE = """
func.func @main(%a: tensor<40x0x3xf32>) -> (tensor<3x0x40xf32>, tensor<40x0x3xf32>) {
  %0 = stablehlo.transpose %a, dims = [2, 1, 0] : (tensor<40x0x3xf32>) -> tensor<3x0x40xf32>
  %1 = stablehlo.exponential %a : tensor<40x0x3xf32>
  return %0, %1 : tensor<3x0x40xf32>, tensor<40x0x3xf32>
}
"""


@pytest.mark.parametrize(
    ("b", "m", "n", "k"),
    [(0, 64, 64, 128), (0, 64, 1, 128), (2, 0, 64, 128), (2, 64, 0, 128), (2, 64, 64, 0)],
)
def test_products(b: int, m: int, n: int, k: int) -> None:
    lhs, rhs = np.ones((b, m, k), np.float32), np.ones((b, k, n), np.float32)
    with gristmill.compile(DOT.format(b=b, m=m, n=n, k=k), device="simulator") as program:
        result = program(lhs, rhs)
    assert result.shape == (b, m, n)
    assert not result.any()


def test_nothing_is_launched() -> None:
    with gristmill.compile(TRANSPOSE, device="simulator") as program:
        results = program(np.zeros((40, 0, 3), np.float32))
    assert [x.shape for x in results] == [(3, 0, 40), (40, 0, 3)]
