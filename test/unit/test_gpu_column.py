# SPDX-License-Identifier: Apache-2.0
"""Columns on a GPU: tiles of a block, rows split over blocks, reductions of everything."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gpu_check import assert_ptx, kinds, run_in_orders
from gpu_support import compile_for_gpu

COLUMN = """
func.func @main(%a: tensor<{source}x{t}>) -> tensor<{target}x{t}> {{
  %z = stablehlo.constant dense<{init}> : tensor<{t}>
  %s = stablehlo.reduce(%a init: %z) applies stablehlo.{op} across dimensions = [{dims}]
    : (tensor<{source}x{t}>, tensor<{t}>) -> tensor<{target}x{t}>
  return %s : tensor<{target}x{t}>
}}
"""

WHOLE = """
func.func @main(%a: tensor<{n}xf32>) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.multiply %a, %a : tensor<{n}xf32>
  %s = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<{n}xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}}
"""

ARGMAX = """
func.func @main(%a: tensor<{r}x{c}xf32>) -> tensor<{c}xi32> {{
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = 0 : tensor<{r}x{c}xi32>
  %0:2 = stablehlo.reduce(%a init: %n), (%i init: %z) across dimensions = [0]
    : (tensor<{r}x{c}xf32>, tensor<{r}x{c}xi32>, tensor<f32>, tensor<i32>) -> (tensor<{c}xf32>, tensor<{c}xi32>)
  reducer(%x: tensor<f32>, %y: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {{
    %gt = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %eq = stablehlo.compare EQ, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %lt = stablehlo.compare LT, %j, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %tie = stablehlo.and %eq, %lt : tensor<i1>
    %left = stablehlo.or %gt, %tie : tensor<i1>
    %v = stablehlo.select %left, %x, %y : tensor<i1>, tensor<f32>
    %w = stablehlo.select %left, %j, %k : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }}
  return %0#1 : tensor<{c}xi32>
}}
"""


@pytest.mark.parametrize(
    ("source", "dims", "target"),
    [
        ("7x5", "0", "5"),
        ("100x64", "0", "64"),
        ("3x50x33", "1", "3x33"),
        ("6x7x8x9", "0, 1", "8x9"),
        ("9000x3", "0", "3"),  # many rows: several blocks share them
        ("4096x40", "0", "40"),
        ("40x1x300", "0, 1", "300"),
    ],
)
def test_sums(source: str, dims: str, target: str) -> None:
    shape = [int(s) for s in source.split("x")]
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = a.astype(np.float64).sum(tuple(int(d) for d in dims.split(",")))
    text = COLUMN.format(source=source, target=target, dims=dims, t="f32", op="add", init="0.0")
    assert kinds(run_in_orders(text, [a], [expected], tolerance=1e-5)) == ["column"]


@pytest.mark.parametrize(
    ("t", "op", "init"),
    [
        ("i1", "and", "true"),
        ("i8", "add", "0"),
        ("i64", "minimum", "9223372036854775807"),
        ("i32", "add", "9"),  # not the identity: takes part once
        ("ui16", "maximum", "3"),
    ],
)
def test_bodies_and_initial_values(t: str, op: str, init: str) -> None:
    dtype = np.dtype("bool" if t == "i1" else ("uint16" if t == "ui16" else f"int{t[1:]}"))
    raw = np.random.default_rng(4).integers(0, 100, (5000, 24))
    a = raw > 0 if t == "i1" else raw.astype(dtype)
    reduce = {"and": np.all, "add": np.sum, "minimum": np.min, "maximum": np.max}[op]
    expected = np.asarray(reduce(a, axis=0)).astype(dtype)
    if init == "9":
        expected += 9
    text = COLUMN.format(source="5000x24", target="24", dims="0", t=t, op=op, init=init)
    run_in_orders(text, [a], [expected])


def test_halves_and_complex() -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((2000, 48)).astype(ml_dtypes.bfloat16)
    text = COLUMN.format(source="2000x48", target="48", dims="0", t="bf16", op="add", init="0.0")
    run_in_orders(text, [a], [a.astype(np.float64).sum(0)], tolerance=1e-2)
    c = (rng.standard_normal((300, 5)) + 1j * rng.standard_normal((300, 5))).astype(np.complex64)
    t, init = "complex<f32>", "(0.0, 0.0)"
    text = COLUMN.format(source="300x5", target="5", dims="0", t=t, op="add", init=init)
    run_in_orders(text, [c], [c.sum(0)], tolerance=1e-5)


@pytest.mark.parametrize("count", [4, 40])
def test_many_sums_fit_the_workgroup_memory(count: int) -> None:
    """The operand's bytes would be units of 8 columns, whose sums take 8 bytes each."""
    powers = [f"%p{k} = stablehlo.add %p{k - 1}, %p0 : tensor<500x64xf64>" for k in range(1, count)]
    names, sides = [f"%p{k}" for k in range(count)], ("a", "b")
    arguments = ", ".join(f"%{side}{k}: tensor<f64>" for side in sides for k in range(count))
    sums = [f"%s{k} = stablehlo.add %a{k}, %b{k} : tensor<f64>" for k in range(count)]
    kinds_of = {
        shape: ", ".join([f"tensor<{shape}f64>"] * count) for shape in ("500x64x", "64x", "")
    }
    text = f"""
func.func @main(%a: tensor<500x64xi8>, %z: tensor<f64>) -> ({kinds_of["64x"]}) {{
  %p0 = stablehlo.convert %a : (tensor<500x64xi8>) -> tensor<500x64xf64>
  {chr(10).join(powers)}
  %r:{count} = "stablehlo.reduce"({", ".join([*names, *["%z"] * count])}) <{{dimensions = array<i64: 0>}}> ({{
    ^bb0({arguments}):
      {chr(10).join(sums)}
      stablehlo.return {", ".join(f"%s{k}" for k in range(count))} : {kinds_of[""]}
  }}) : ({kinds_of["500x64x"]}, {kinds_of[""]}) -> ({kinds_of["64x"]})
  return {", ".join(f"%r#{k}" for k in range(count))} : {kinds_of["64x"]}
}}
"""
    a = np.random.default_rng(9).integers(-9, 9, (500, 64)).astype(np.int8)
    total = a.astype(np.float64).sum(0)
    expected = [3 + (k + 1) * total for k in range(count)]
    program = run_in_orders(text, [a, np.float64(3)], expected)
    assert kinds(program) == ["column"]
    used = [p.launch.shared_bytes for s in program.specs.values() for p in s.phases if p.launch]
    assert max(used) <= program.target.shared_bytes


@pytest.mark.parametrize(("r", "c"), [(50, 6), (6000, 4)])
def test_argmax_takes_the_first_of_equals(r: int, c: int) -> None:
    a = np.random.default_rng(c).integers(0, 9, (r, c)).astype(np.float32)
    run_in_orders(ARGMAX.format(r=r, c=c), [a], [a.argmax(0).astype(np.int32)])


@pytest.mark.parametrize(("r", "c"), [(37, 6), (6000, 4)])
def test_order_is_kept_where_the_body_does_not_commute(r: int, c: int) -> None:
    """The first element that is not 0: associative, and only that."""
    text = f"""
func.func @main(%a: tensor<{r}x{c}xi32>) -> tensor<{c}xi32> {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.reduce(%a init: %z) across dimensions = [0]
    : (tensor<{r}x{c}xi32>, tensor<i32>) -> tensor<{c}xi32>
  reducer(%x: tensor<i32>, %y: tensor<i32>) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %e = stablehlo.compare EQ, %x, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %v = stablehlo.select %e, %y, %x : tensor<i1>, tensor<i32>
    stablehlo.return %v : tensor<i32>
  }}
  return %0 : tensor<{c}xi32>
}}
"""
    rng = np.random.default_rng(8)
    a = (rng.integers(1, 1000, (r, c)) * (rng.random((r, c)) < 0.2)).astype(np.int32)
    expected = np.array([column[column != 0][0] for column in a.T], np.int32)
    run_in_orders(text, [a], [expected])


@pytest.mark.parametrize("n", [16387, 200000])
def test_everything(n: int) -> None:
    a = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    expected = (a.astype(np.float64) ** 2).sum()
    program = run_in_orders(WHOLE.format(n=n), [a], [np.float64(expected)], tolerance=1e-5)
    assert kinds(program) == ["column"]


def test_mapping_and_ptx() -> None:
    text = COLUMN.format(source="8192x1024", target="1024", dims="0", t="f32", op="add", init="0.0")
    program = compile_for_gpu(text)
    (spec,) = program.specs.values()
    # 8 tiles of 32 x 4 columns, each shared by 16 blocks of 8 rows of threads.
    launches = [(p.launch.grid, p.launch.block) for p in spec.phases if p.launch]
    assert launches == [((128, 1, 1), (32, 8, 1)), ((8, 1, 1), (32, 8, 1))]
    assert_ptx(program, r"ld\.global(\.nc)?\.v4", r"st\.shared", r"bar\.sync")
