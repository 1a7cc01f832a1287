# SPDX-License-Identifier: Apache-2.0
"""Scans on a GPU: parts of a warp, blocks, tiles in turn, columns, segments of long lines."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gpu_check import assert_ptx, kinds, run_in_orders
from gpu_support import compile_for_gpu

SCAN = """
func.func @main(%a: tensor<{shape}x{t}>) -> tensor<{shape}x{t}> {{
  %z = stablehlo.constant dense<{init}> : tensor<{t}>
  %0 = "stablehlo.reduce_window"(%a, %z) <{{
    window_dimensions = array<i64: {window}>, padding = dense<{padding}> : tensor<{rank}x2xi64>}}> ({{
    ^bb0(%x: tensor<{t}>, %y: tensor<{t}>):
      {body}
      stablehlo.return %r : tensor<{t}>
  }}) : (tensor<{shape}x{t}>, tensor<{t}>) -> tensor<{shape}x{t}>
  return %0 : tensor<{shape}x{t}>
}}
"""

#: Keeps the right one unless it is 0: associative, not commutative.
LAST = """%zero = stablehlo.constant dense<0> : tensor<i32>
      %c = stablehlo.compare EQ, %y, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %r = stablehlo.select %c, %x, %y : tensor<i1>, tensor<i32>"""


def scan(
    shape: tuple[int, ...],
    axis: int,
    t: str,
    body: str,
    init: str = "0",
    *,
    backwards: bool = False,
) -> str:
    length, rank = shape[axis], len(shape)
    window = [length if d == axis else 1 for d in range(rank)]
    pair = [0, length - 1] if backwards else [length - 1, 0]
    padding = [pair if d == axis else [0, 0] for d in range(rank)]
    return SCAN.format(
        shape="x".join(map(str, shape)),
        t=t,
        init=init,
        window=", ".join(map(str, window)),
        padding=padding,
        rank=rank,
        body=body if "%r =" in body else f"%r = stablehlo.{body} %x, %y : tensor<{t}>",
    )


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((9,), 0),
        ((5, 40), 1),  # parts of a warp
        ((3, 700), 1),  # one tile of a block
        ((3, 2500), 1),  # tiles in turn
        ((2, 300, 3), 1),
        ((9, 40), 0),  # columns
        ((700, 33), 0),  # columns in segments
        ((20001,), 0),  # blocks in segments
    ],
)
def test_sum(shape: tuple[int, ...], axis: int, backwards: bool) -> None:
    a = np.random.default_rng(0).integers(-3, 4, shape).astype(np.int32)
    flipped = np.flip(a, axis) if backwards else a
    wanted = np.cumsum(flipped, axis, dtype=np.int32)
    expected = np.flip(wanted, axis) if backwards else wanted
    program = run_in_orders(scan(shape, axis, "i32", "add", backwards=backwards), [a], [expected])
    assert kinds(program) == ["cumulative"]


@pytest.mark.parametrize("shape", [(100,), (3000,), (30000,), (1000, 40)])
def test_order_is_kept_and_the_initial_value_comes_first(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a = (rng.integers(1, 1000, shape) * (rng.random(shape) < 0.1)).astype(np.int32)
    last = np.where(a != 0, np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), -1)
    at = np.maximum.accumulate(last, 0)
    expected = np.where(at >= 0, np.take_along_axis(a, np.maximum(at, 0), 0), 77).astype(np.int32)
    run_in_orders(scan(shape, 0, "i32", LAST, "77"), [a], [expected])


@pytest.mark.parametrize(
    ("t", "dtype", "tolerance"),
    [
        ("f32", np.float32, 1e-6),
        ("f64", np.float64, 1e-13),
        ("bf16", ml_dtypes.bfloat16, 1e-2),
        ("i8", np.int8, 0.0),
        ("complex<f32>", np.complex64, 1e-5),
    ],
)
def test_types(t: str, dtype: type, tolerance: float) -> None:
    a = np.random.default_rng(2).integers(-2, 3, (2, 1501)).astype(dtype)
    wide = np.int64 if t == "i8" else (np.complex128 if t[0] == "c" else np.float64)
    expected = np.cumsum(a.astype(wide), 1).astype(dtype if t == "i8" else wide)
    init = "(0.0, 0.0)" if t[0] == "c" else ("0" if t == "i8" else "0.0")
    run_in_orders(scan((2, 1501), 1, t, "add", init), [a], [expected], tolerance=tolerance)


def test_ptx() -> None:
    program = compile_for_gpu(scan((512, 4096), 1, "f32", "add", "0.0"))
    assert_ptx(
        program, r"ld\.global(\.nc)?\.v4", r"st\.global\.v4", r"shfl\.sync\.up", r"bar\.sync"
    )
