# SPDX-License-Identifier: Apache-2.0
"""Updates on a GPU: slices, scatters (direct, atomic, the last update, serial), select-and-scatter."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_check import assert_ptx, kinds, run_in_orders
from gpu_support import GpuProgram, compile_for_gpu

SLICE = """
func.func @main(%a: tensor<{a}x{t}>, %u: tensor<{u}x{t}>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<{a}x{t}> {{
  %0 = stablehlo.add %u, %u : tensor<{u}x{t}>
  %1 = stablehlo.dynamic_update_slice %a, %0, %i, %j
    : (tensor<{a}x{t}>, tensor<{u}x{t}>, tensor<i32>, tensor<i32>) -> tensor<{a}x{t}>
  return %1 : tensor<{a}x{t}>
}}
"""

SCATTER = """
func.func @main(%a: tensor<{a}x{t}>, %i: tensor<{n}x1xi32>, %u: tensor<{u}x{t}>) -> tensor<{a}x{t}> {{
  %0 = "stablehlo.scatter"(%a, %i, %u) <{{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{window}], inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = {unique}}}> ({{
    ^bb0(%x: tensor<{t}>, %y: tensor<{t}>):
      {body}
      stablehlo.return %r : tensor<{t}>
  }}) : (tensor<{a}x{t}>, tensor<{n}x1xi32>, tensor<{u}x{t}>) -> tensor<{a}x{t}>
  return %0 : tensor<{a}x{t}>
}}
"""

WINDOWS = """
func.func @main(%a: tensor<10x3xf32>, %i: tensor<6x1xi32>, %u: tensor<6x4x3xf32>) -> tensor<10x3xf32> {
  %0 = "stablehlo.scatter"(%a, %i, %u) <{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %r = stablehlo.subtract %y, %x : tensor<f32>
      stablehlo.return %r : tensor<f32>
  }) : (tensor<10x3xf32>, tensor<6x1xi32>, tensor<6x4x3xf32>) -> tensor<10x3xf32>
  return %0 : tensor<10x3xf32>
}
"""

POOL_GRADIENT = """
func.func @main(%a: tensor<2x{h}x{h}x3xf32>, %s: tensor<2x{o}x{o}x3xf32>) -> tensor<2x{h}x{h}x3xf32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.select_and_scatter"(%a, %s, %z) <{{
    window_dimensions = array<i64: 1, {w}, {w}, 1>, window_strides = array<i64: 1, {st}, {st}, 1>,
    padding = dense<[[0, 0], [{p}, {p}], [{p}, {p}], [0, 0]]> : tensor<4x2xi64>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %c = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}, {{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %c = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }}) : (tensor<2x{h}x{h}x3xf32>, tensor<2x{o}x{o}x3xf32>, tensor<f32>) -> tensor<2x{h}x{h}x3xf32>
  return %0 : tensor<2x{h}x{h}x3xf32>
}}
"""


def scatter(t: str, op: str, *, window: int = 0, unique: bool = False, rows: int = 40) -> str:
    body = f"%r = stablehlo.{op} %x, %y : tensor<{t}>"
    if op == "set":
        body = f"%r = stablehlo.convert %y : tensor<{t}>"
    tail = f"x{window}" if window else ""
    return SCATTER.format(
        a=f"{rows}{tail}",
        n=100,
        u=f"100{tail}",
        t=t,
        body=body,
        window="1" if window else "",
        unique=str(unique).lower(),
    )


def launches(program: GpuProgram) -> int:
    (spec,) = program.specs.values()
    return len(spec.phases)


@pytest.mark.parametrize(("t", "dtype"), [("f32", np.float32), ("i8", np.int8), ("i64", np.int64)])
def test_dynamic_update_slice_is_clamped(t: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    a, u = (rng.integers(0, 50, shape).astype(dtype) for shape in ((13, 11), (3, 5)))
    expected = a.copy()
    expected[4:7, 6:11] = u + u
    text = SLICE.format(a="13x11", u="3x5", t=t)
    program = run_in_orders(text, [a, u, np.int32(4), np.int32(9)], [expected])
    assert kinds(program) == ["update"]


@pytest.mark.parametrize(
    ("t", "op", "window", "count"),
    [
        ("f32", "add", 0, 2),
        ("f32", "add", 12, 2),
        ("f32", "maximum", 0, 2),
        ("i32", "add", 3, 2),
        ("ui32", "maximum", 0, 2),
        ("i64", "minimum", 0, 2),
        ("f32", "multiply", 5, 2),  # serial
        ("i8", "add", 0, 2),  # serial
        ("f32", "set", 0, 4),
        ("i32", "set", 7, 4),
    ],
)
def test_scatter_where_updates_meet(t: str, op: str, window: int, count: int) -> None:
    rng = np.random.default_rng(1)
    names = {"f32": "float32", "ui32": "uint32"}
    dtype = np.dtype(names.get(t, f"int{t[1:]}"))
    tail = (window,) if window else ()
    a, u = (rng.integers(1, 5, (n, *tail)).astype(dtype) for n in (40, 100))
    indices = rng.integers(-3, 43, (100, 1)).astype(np.int32)  # some outside
    expected = a.copy()
    combine = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply}
    for k, i in enumerate(indices[:, 0]):
        if 0 <= i < 40:
            expected[i] = u[k] if op == "set" else combine[op](expected[i], u[k])
    program = run_in_orders(scatter(t, op, window=window), [a, indices, u], [expected])
    assert kinds(program) == ["scatter"]
    assert launches(program) == count


def test_windows_that_overlap_are_applied_in_order() -> None:
    rng = np.random.default_rng(4)
    a, u = (rng.integers(0, 9, shape).astype(np.float32) for shape in ((10, 3), (6, 4, 3)))
    starts = np.array([[0], [1], [2], [1], [8], [-2]], np.int32)
    expected = a.copy()
    for k, start in enumerate(starts[:, 0]):
        for row in range(4):
            if 0 <= start + row < 10:
                expected[start + row] = u[k, row] - expected[start + row]
    run_in_orders(WINDOWS, [a, starts, u], [expected])


def test_numbers_of_many_updates_are_wide() -> None:
    text = scatter("i8", "set").replace("100x", "2147483648x")
    assert "atomic_rmw maxs" in str(compile_for_gpu(scatter("i8", "set")).module)
    assert ": (i64, memref<40xi64>" in str(compile_for_gpu(text).module)


def test_scatter_of_unique_indices() -> None:
    rng = np.random.default_rng(2)
    a, u = (rng.standard_normal((n, 6)).astype(np.float32) for n in (120, 100))
    indices = rng.permutation(120)[:100, None].astype(np.int32)
    expected = a.copy()
    expected[indices[:, 0]] *= u
    text = scatter("f32", "multiply", window=6, unique=True, rows=120)
    program = run_in_orders(text, [a, indices, u], [expected])
    (spec,) = program.specs.values()
    launch = spec.phases[1].launch
    assert launch is not None
    assert launch.grid[0] * launch.block[0] >= 600  # a thread an element, not a thread a column


@pytest.mark.parametrize(
    ("h", "w", "st", "p"), [(6, 2, 2, 0), (7, 3, 2, 1), (5, 3, 1, 1), (9, 2, 3, 0)]
)
def test_select_and_scatter(h: int, w: int, st: int, p: int) -> None:
    rng = np.random.default_rng(3)
    o = (h + 2 * p - w) // st + 1
    a = rng.integers(0, 6, (2, h, h, 3)).astype(np.float32)
    s = rng.integers(1, 9, (2, o, o, 3)).astype(np.float32)
    program = run_in_orders(POOL_GRADIENT.format(h=h, o=o, w=w, st=st, p=p), [a, s])
    assert kinds(program) == ["select_and_scatter"]


@pytest.mark.parametrize(
    ("t", "op", "pattern"),
    [
        ("f32", "add", r"(red|atom)\S*\.add\.f32"),
        ("i32", "maximum", r"(red|atom)\S*\.max\.s32"),
        ("f32", "maximum", r"atom\S*\.cas"),
    ],
)
def test_atomics_in_ptx(t: str, op: str, pattern: str) -> None:
    assert_ptx(compile_for_gpu(scatter(t, op)), pattern)


def test_copies_are_wide() -> None:
    assert_ptx(
        compile_for_gpu(SLICE.format(a="64x64", u="3x5", t="f32")),
        r"ld\.global(\.nc)?\.v4",
        r"st\.global\.v4",
    )
