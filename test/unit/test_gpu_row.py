# SPDX-License-Identifier: Apache-2.0
"""Rows on a GPU: several a block, one a block, several blocks a row; any body, any type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_check import assert_ptx, run_in_orders
from gpu_support import compile_for_gpu

Array = np.ndarray[Any, Any]

SOFTMAX = """
func.func @main(%a: tensor<{r}x{c}x{t}>) -> tensor<{r}x{c}x{t}> {{
  %n = stablehlo.constant dense<{low}> : tensor<{t}>
  %z = stablehlo.constant dense<0.0> : tensor<{t}>
  %m = stablehlo.reduce(%a init: %n) applies stablehlo.maximum across dimensions = [1]
    : (tensor<{r}x{c}x{t}>, tensor<{t}>) -> tensor<{r}x{t}>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<{r}x{t}>) -> tensor<{r}x{c}x{t}>
  %d = stablehlo.subtract %a, %mb : tensor<{r}x{c}x{t}>
  %e = stablehlo.exponential %d : tensor<{r}x{c}x{t}>
  %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<{r}x{c}x{t}>, tensor<{t}>) -> tensor<{r}x{t}>
  %sb = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<{r}x{t}>) -> tensor<{r}x{c}x{t}>
  %r = stablehlo.divide %e, %sb : tensor<{r}x{c}x{t}>
  return %r : tensor<{r}x{c}x{t}>
}}
"""

REDUCE = """
func.func @main(%a: tensor<{r}x{c}x{t}>) -> tensor<{r}x{t}> {{
  %z = stablehlo.constant dense<{init}> : tensor<{t}>
  %s = stablehlo.reduce(%a init: %z) applies stablehlo.{op} across dimensions = [1]
    : (tensor<{r}x{c}x{t}>, tensor<{t}>) -> tensor<{r}x{t}>
  return %s : tensor<{r}x{t}>
}}
"""

ARGMAX = """
func.func @main(%a: tensor<{r}x{c}x{t}>) -> (tensor<{r}x{t}>, tensor<{r}xi32>) {{
  %n = stablehlo.constant dense<{low}> : tensor<{t}>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = 1 : tensor<{r}x{c}xi32>
  %0:2 = stablehlo.reduce(%a init: %n), (%i init: %z) across dimensions = [1]
    : (tensor<{r}x{c}x{t}>, tensor<{r}x{c}xi32>, tensor<{t}>, tensor<i32>) -> (tensor<{r}x{t}>, tensor<{r}xi32>)
  reducer(%x: tensor<{t}>, %y: tensor<{t}>) (%j: tensor<i32>, %k: tensor<i32>) {{
    %gt = stablehlo.compare GT, %x, %y : (tensor<{t}>, tensor<{t}>) -> tensor<i1>
    %eq = stablehlo.compare EQ, %x, %y : (tensor<{t}>, tensor<{t}>) -> tensor<i1>
    %lt = stablehlo.compare LT, %j, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %tie = stablehlo.and %eq, %lt : tensor<i1>
    %left = stablehlo.or %gt, %tie : tensor<i1>
    %v = stablehlo.select %left, %x, %y : tensor<i1>, tensor<{t}>
    %w = stablehlo.select %left, %j, %k : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<{t}>, tensor<i32>
  }}
  return %0#0, %0#1 : tensor<{r}x{t}>, tensor<{r}xi32>
}}
"""

NORM = """
func.func @main(%a: tensor<{r}x{c}xf32>, %g: tensor<{c}xf32>) -> (tensor<{r}x{c}xf32>, tensor<{r}xf32>) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<{c}.0> : tensor<{r}xf32>
  %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<{r}x{c}xf32>, tensor<f32>) -> tensor<{r}xf32>
  %m = stablehlo.divide %s, %n : tensor<{r}xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<{r}xf32>) -> tensor<{r}x{c}xf32>
  %d = stablehlo.subtract %a, %mb : tensor<{r}x{c}xf32>
  %q = stablehlo.multiply %d, %d : tensor<{r}x{c}xf32>
  %t = stablehlo.reduce(%q init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<{r}x{c}xf32>, tensor<f32>) -> tensor<{r}xf32>
  %v = stablehlo.divide %t, %n : tensor<{r}xf32>
  %i = stablehlo.rsqrt %v : tensor<{r}xf32>
  %ib = stablehlo.broadcast_in_dim %i, dims = [0] : (tensor<{r}xf32>) -> tensor<{r}x{c}xf32>
  %gb = stablehlo.broadcast_in_dim %g, dims = [1] : (tensor<{c}xf32>) -> tensor<{r}x{c}xf32>
  %x = stablehlo.multiply %d, %ib : tensor<{r}x{c}xf32>
  %y = stablehlo.multiply %x, %gb : tensor<{r}x{c}xf32>
  return %y, %m : tensor<{r}x{c}xf32>, tensor<{r}xf32>
}}
"""

#: Rows and columns for every mapping: parts of a warp, warps, blocks, loops, several blocks.
SHAPES = [(5, 7), (37, 64), (3, 1000), (1024, 130), (5, 4096), (9, 9000), (2, 20001)]


def softmax(a: Array) -> Array:
    e = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize(("r", "c"), SHAPES)
def test_softmax(r: int, c: int) -> None:
    a = np.random.default_rng(r).standard_normal((r, c)).astype(np.float32)
    text = SOFTMAX.format(r=r, c=c, t="f32", low="0xFF800000")
    run_in_orders(text, [a], [softmax(a)], tolerance=3e-6)


@pytest.mark.parametrize(("t", "low"), [("bf16", "0xFF80"), ("f16", "0xFC00")])
def test_softmax_of_halves(t: str, low: str) -> None:
    dtype = ml_dtypes.bfloat16 if t == "bf16" else np.float16
    a = np.random.default_rng(1).standard_normal((9, 264)).astype(dtype)
    text = SOFTMAX.format(r=9, c=264, t=t, low=low)
    run_in_orders(text, [a], [softmax(a.astype(np.float64))], tolerance=2e-2)


@pytest.mark.parametrize(("r", "c"), [(6, 96), (4, 2000), (2, 16388)])
def test_layer_norm_and_a_result_per_row(r: int, c: int) -> None:
    rng = np.random.default_rng(c)
    a, g = (
        rng.standard_normal((r, c)).astype(np.float32),
        rng.standard_normal(c).astype(np.float32),
    )
    mean = a.astype(np.float64).mean(1, keepdims=True)
    expected = (a - mean) / np.sqrt(((a - mean) ** 2).mean(1, keepdims=True)) * g
    run_in_orders(NORM.format(r=r, c=c), [a, g], [expected, mean[:, 0]], tolerance=1e-5)


@pytest.mark.parametrize(("r", "c"), [(6, 5), (11, 33), (3, 2050), (2, 16400)])
def test_argmax_takes_the_first_of_equals(r: int, c: int) -> None:
    a = np.random.default_rng(c).integers(0, 9, (r, c)).astype(np.float32)
    text = ARGMAX.format(r=r, c=c, t="f32", low="0xFF800000")
    run_in_orders(text, [a], [a.max(1), a.argmax(1).astype(np.int32)])


@pytest.mark.parametrize("t", ["f64", "i64", "i8", "ui16"])
def test_argmax_of_other_widths(t: str) -> None:
    dtype = {"f64": np.float64, "i64": np.int64, "i8": np.int8, "ui16": np.uint16}[t]
    a = np.random.default_rng(3).integers(0, 100, (4, 300)).astype(dtype)
    text = ARGMAX.format(r=4, c=300, t=t, low="0.0" if t == "f64" else "0")
    run_in_orders(text, [a], [a.max(1), a.argmax(1).astype(np.int32)])


@pytest.mark.parametrize(
    ("t", "op", "init"),
    [
        ("i1", "or", "false"),
        ("i1", "and", "true"),
        ("i8", "add", "0"),
        ("i32", "maximum", "-2147483648"),
        ("ui32", "minimum", "4294967295"),
        ("i64", "xor", "5"),
        ("i32", "add", "7"),  # not the identity: takes part once
        ("f32", "maximum", "0.5"),
    ],
)
def test_bodies_and_initial_values(t: str, op: str, init: str) -> None:
    names = {"i1": "bool", "f32": "float32"}
    dtype = np.dtype(names.get(t, t.replace("ui", "uint") if t[0] == "u" else f"int{t[1:]}"))
    raw = np.random.default_rng(4).integers(0, 100, (7, 350))
    a = raw > 1 if t == "i1" else (raw / 100 if t == "f32" else raw).astype(dtype)
    run_in_orders(REDUCE.format(r=7, c=350, t=t, op=op, init=init), [a])


@pytest.mark.parametrize("c", [3, 100, 1001])
def test_complex_sum(c: int) -> None:
    rng = np.random.default_rng(5)
    a = (rng.standard_normal((5, c)) + 1j * rng.standard_normal((5, c))).astype(np.complex64)
    text = REDUCE.format(r=5, c=c, t="complex<f32>", op="add", init="(0.0, 0.0)")
    run_in_orders(text, [a], [a.astype(np.complex128).sum(1)], tolerance=1e-5)


@pytest.mark.parametrize(("r", "c"), [(5, 30), (3, 1002), (2, 20000)])
def test_order_is_kept_where_the_body_does_not_commute(r: int, c: int) -> None:
    """The first element is associative, and only that."""
    text = f"""
func.func @main(%a: tensor<{r}x{c}xi32>) -> tensor<{r}xi32> {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.reduce(%a init: %z) across dimensions = [1]
    : (tensor<{r}x{c}xi32>, tensor<i32>) -> tensor<{r}xi32>
  reducer(%x: tensor<i32>, %y: tensor<i32>) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %e = stablehlo.compare EQ, %x, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %v = stablehlo.select %e, %y, %x : tensor<i1>, tensor<i32>
    stablehlo.return %v : tensor<i32>
  }}
  return %0 : tensor<{r}xi32>
}}
"""
    rng = np.random.default_rng(8)
    a = (rng.integers(1, 1000, (r, c)) * (rng.random((r, c)) < 0.3)).astype(np.int32)
    run_in_orders(text, [a], [np.array([row[row != 0][0] for row in a], np.int32)])


def test_geometry() -> None:
    def launches(r: int, c: int) -> list[tuple[int, int]]:
        program = compile_for_gpu(REDUCE.format(r=r, c=c, t="f32", op="add", init="0.0"))
        (spec,) = program.specs.values()
        return [(p.launch.grid[0], p.launch.block[0]) for p in spec.phases if p.launch]

    assert launches(100000, 32) == [(782, 256)]  # two threads a row
    assert launches(2000, 2048) == [(2000, 128)]  # one block a row
    assert launches(2, 1 << 20) == [(2 * 64, 256), (2, 32)]  # 64 blocks a row, then a warp a row


def test_ptx() -> None:
    text = SOFTMAX.format(r=4096, c=1024, t="f32", low="0xFF800000")
    program = compile_for_gpu(text)
    assert_ptx(
        program, r"ld\.global(\.nc)?\.v4", r"st\.global\.v4", r"shfl\.sync\.bfly", r"bar\.sync"
    )
    # 64 threads read their 16 columns once.
    assert len([x for x in program.ptx().splitlines() if "ld.global" in x]) == 4
