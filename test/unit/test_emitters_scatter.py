# SPDX-License-Identifier: Apache-2.0
"""Scatters of windows: how they are split over threads, and the order of updates that meet at an element."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import compile_stages, import_source

TEXT = """
func.func @main(%a: tensor<{a}xf32>, %i: tensor<{n}x1xi32>, %u: tensor<{n}x{w}xf32>) -> tensor<{a}xf32> {{
  %0 = "stablehlo.scatter"(%a, %i, %u) <{{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [{inserted}],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %r = stablehlo.subtract %y, %x : tensor<f32>
      stablehlo.return %r : tensor<f32>
  }}) : (tensor<{a}xf32>, tensor<{n}x1xi32>, tensor<{n}x{w}xf32>) -> tensor<{a}xf32>
  return %0 : tensor<{a}xf32>
}}
"""


def tasks(text: str) -> int:
    """Tasks of the phase that applies the updates."""
    (kernel,) = compile_stages(import_source(text), stop_after="rt").kernels
    return kernel.phases[-1].tasks


def test_overlapping_windows_are_applied_in_order() -> None:
    rng = np.random.default_rng(0)
    width, count = 128, 4000
    a, u = (rng.integers(0, 9, s).astype(np.float32) for s in (6000, (count, width)))
    starts = np.arange(count, dtype=np.int32)[:, None]
    expected = a.copy()
    for k in range(count):
        expected[k : k + width] = u[k] - expected[k : k + width]
    text = TEXT.format(a=6000, n=count, w=width, inserted="")
    with gristmill.compile(text) as program:
        for _ in range(4):
            np.testing.assert_array_equal(program(a, starts, u, threads=2), expected)


@pytest.mark.parametrize(
    ("a", "n", "inserted", "wanted"),
    [
        ("6000", 4000, "", 1),  # windows move along their dimension: they may overlap
        ("6000", 1, "", 4),  # a single window does not meet itself
        ("50x128", 4000, "0", 4),  # rows: windows meet as a whole or not at all
    ],
)
def test_tasks_never_meet(a: str, n: int, inserted: str, wanted: int) -> None:
    assert tasks(TEXT.format(a=a, n=n, w=128, inserted=inserted)) == wanted
