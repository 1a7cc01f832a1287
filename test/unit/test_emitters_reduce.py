# SPDX-License-Identifier: Apache-2.0
"""Reductions whose initial value is not neutral combine it once, however they are split."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source

BODIES = {
    "add": ["%r = stablehlo.add %a, %b : tensor<i32>"],
    "xor": ["%r = stablehlo.xor %a, %b : tensor<i32>"],
    "a + b + 2 a b": [  # associative and commutative
        "%p = stablehlo.multiply %a, %b : tensor<i32>",
        "%d = stablehlo.add %p, %p : tensor<i32>",
        "%s = stablehlo.add %a, %b : tensor<i32>",
        "%r = stablehlo.add %d, %s : tensor<i32>",
    ],
}
#: Shapes and the dimensions reduced: in registers, in lanes, in blocks shared between threads, by rows and by columns.
FORMS = {
    "a short row": ((5,), (0,)),
    "rows in lanes": ((3, 100), (1,)),
    "everything, in blocks": ((300_000,), (0,)),
    "everything of two dimensions": ((300, 1000), (0, 1)),
    "columns in blocks": ((2000, 150), (0,)),
    "columns of two dimensions": ((40, 50, 150), (0, 1)),
    "narrow columns in blocks": ((9000, 17), (0,)),
    "narrow columns of two dimensions": ((30, 301, 40), (0, 1)),
    "wide rows": ((97, 3000), (0,)),
    "wide rows of two dimensions": ((9, 11, 5000), (0, 1)),
    "wide rows of a batch": ((40, 7, 3001), (1,)),
    "rows that are planes": ((250, 8, 80), (0,)),
}


def combined(
    name: str, rows: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """``rows`` combined along the first dimension, starting from 3."""
    if name == "add":
        return np.add.reduce(rows, 0, dtype=np.int32, initial=3)
    if name == "xor":
        return np.bitwise_xor.reduce(rows, 0, initial=3)
    # 1 + 2 r is the product of all 1 + 2 x, and halving it needs one bit more.
    product = np.multiply.reduce(1 + 2 * rows.astype(np.int64), 0, initial=7)
    return ((product - 1) // 2).astype(np.int32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BODIES)
def test_the_initial_value_counts_once(name: str, form: str) -> None:
    shape, dimensions = FORMS[form]
    kept = tuple(size for axis, size in enumerate(shape) if axis not in dimensions)
    kind, result = (f"tensor<{''.join(f'{s}x' for s in sizes)}i32>" for sizes in (shape, kept))
    body = "\n".join(BODIES[name])
    text = f"""func.func @main(%x: {kind}) -> {result} {{
  %init = stablehlo.constant dense<3> : tensor<i32>
  %0 = "stablehlo.reduce"(%x, %init) <{{dimensions = array<i64: {str(dimensions).strip("(),")}>}}> ({{
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    {body}
    stablehlo.return %r : tensor<i32>
  }}) : ({kind}, tensor<i32>) -> {result}
  return %0 : {result}
}}
"""
    array = np.random.default_rng(0).integers(-9, 9, shape, np.int32)
    rows = np.moveaxis(array, dimensions, range(len(dimensions)))
    rows = rows.reshape(math.prod(shape[axis] for axis in dimensions), *kept)
    np.testing.assert_array_equal(gristmill.compile(text)(array), combined(name, rows))


@pytest.mark.parametrize(("form", "rows"), [("everything", 2048), ("columns", 2048)])
@pytest.mark.parametrize("nbytes", [16, 32, 64])
def test_streams_lie_apart_where_vectors_are_short(form: str, rows: int, nbytes: int) -> None:
    kept, dimensions = ("", "0, 1") if form == "everything" else ("1024x", "0")
    text = f"""func.func @main(%x: tensor<{rows}x1024xf32>) -> tensor<{kept}f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [{dimensions}]
    : (tensor<{rows}x1024xf32>, tensor<f32>) -> tensor<{kept}f32>
  return %0 : tensor<{kept}f32>
}}
"""
    target = replace(host_target(), vector_bytes=nbytes)
    compilation = compile_stages(import_source(text), target, keep_stages=True)
    kernels = compilation.emit("kernels")
    assert isinstance(kernels, str)
    phase = kernels[: kernels.index("@kernel_0_column_1")]
    # Positions of the third and fourth stream: twice and three times a quarter of the block further on.
    assert (len(re.findall(r"muli .*%c[23]_?\d* overflow", phase)) >= 2) == (nbytes < 64)
    array = np.random.default_rng(6).integers(-9, 9, (rows, 1024)).astype(np.float32)
    with compilation.executable() as executable:
        total = executable(array)
    np.testing.assert_array_equal(total, array.sum(0 if form == "columns" else None))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_first_of_several_nans_wins(name: str, dtype: str) -> None:
    array = np.zeros((3, 200), np.float64)
    array[0, [40, 65, 130]] = np.nan  # neighbours of other lanes
    array[1, [90, 3]] = 1
    array = array.astype(dtype)
    function = jax.jit(lambda x: getattr(jax.lax, name)(x, 1, np.int32))
    with jax.enable_x64(True):
        lowered = function.lower(array)
    result = gristmill.compile(lowered)(array)
    wide = array.astype(np.float64)  # numpy also takes the first NaN
    np.testing.assert_array_equal(result, getattr(np, name)(wide, 1))


@pytest.mark.parametrize("nbytes", [16, 32, 64])
def test_a_search_asks_for_the_next_row_on_its_way(nbytes: int) -> None:
    array = np.random.default_rng(7).standard_normal((64, 512)).astype(np.float32)
    lowered = jax.jit(lambda x: jax.lax.argmax(x, 1, np.int32)).lower(array)
    target = replace(host_target(), vector_bytes=nbytes, l2_bytes=4096)
    compilation = compile_stages(import_source(lowered), target, keep_stages=True)
    kernels = compilation.emit("kernels")
    assert isinstance(kernels, str)
    # With the first block and with each block of the loop; or for the whole row behind that.
    assert kernels.count("memref.prefetch") == (1 if nbytes == 64 else 2 * 4 * nbytes // 64)
    with compilation.executable() as executable:
        np.testing.assert_array_equal(executable(array), array.argmax(1))


_INF, _NAN, _MINUS_NAN = math.inf, math.nan, math.copysign(math.nan, -1)

#: Rows: what they contain among numbers of both signs, or of one; the largest and the smallest of it all.
EXTREMES = {
    "ordinary": ([3.5, -7.25], "both", 3.5, -7.25),
    "negative": ([-7.25, -1e-3], "negative", -1e-3, -7.25),
    "positive": ([7.25, 1e-3], "positive", 7.25, 1e-3),
    "infinities": ([_INF, -_INF], "both", _INF, -_INF),
    "all minus infinity": ([-_INF], "none", -_INF, -_INF),
    "zeros": ([0.0, -0.0], "none", 0.0, -0.0),
    "zero above": ([-0.0, 0.0], "negative", 0.0, -2.0),
    "minus zero above": ([-0.0], "negative", -0.0, -2.0),
    "minus zero below": ([0.0, -0.0], "positive", 2.0, -0.0),
    "subnormal": ([1e-40, -1e-40], "none", 1e-40, -1e-40),
    "nan": ([_NAN], "both", _NAN, _NAN),
    "nan beside infinity": ([_NAN, _INF, -_INF], "both", _NAN, _NAN),
    "minus nan": ([_MINUS_NAN], "both", _NAN, _NAN),
    "minus nan among negative": ([_MINUS_NAN], "negative", _NAN, _NAN),
    "minus nan among positive": ([_MINUS_NAN], "positive", _NAN, _NAN),
}


@pytest.mark.parametrize("width", [7, 256, 1000])
@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_extreme_of_a_row(name: str, kind: str, width: int) -> None:
    text = f"""func.func @main(%x: tensor<{len(EXTREMES)}x{width}x{kind}>) -> tensor<{len(EXTREMES)}x{kind}> {{
  %init = stablehlo.constant dense<{"0xFF" if name == "maximum" else "0x7F"}{_INFINITIES[kind]}> : tensor<{kind}>
  %0 = stablehlo.reduce(%x init: %init) applies stablehlo.{name} across dimensions = [1]
    : (tensor<{len(EXTREMES)}x{width}x{kind}>, tensor<{kind}>) -> tensor<{len(EXTREMES)}x{kind}>
  return %0 : tensor<{len(EXTREMES)}x{kind}>
}}
"""
    rng = np.random.default_rng(4)
    rows: list[np.ndarray] = []
    want: list[float] = []
    for special, others, largest, smallest in EXTREMES.values():
        sign = {"both": rng.choice([-1, 1], width), "negative": -1, "positive": 1, "none": 0}[
            others
        ]
        row = sign * np.full(width, 2.0) if others != "none" else np.full(width, special[0])
        row[rng.choice(width, len(special), replace=False)] = special
        rows.append(row)
        want.append(largest if name == "maximum" else smallest)
    dtype = np.dtype({"f32": "f4", "f64": "f8", "bf16": "bfloat16"}[kind])
    got = np.asarray(gristmill.compile(text)(np.array(rows).astype(dtype)), np.float64)
    expected = np.array(want).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])


_INFINITIES = {"f32": "800000", "f64": "F0000000000000", "bf16": "80"}

#: Bodies that do not commute: of ``%a`` and ``%b``, the last or the first that is not 0.
PICKING = {"last": "%b, %a", "first": "%a, %b"}


@pytest.mark.parametrize("name", PICKING)
@pytest.mark.parametrize("element", ["f32", "i32"])
def test_elements_keep_their_order(name: str, element: str) -> None:
    preferred, other = PICKING[name].split(", ")
    text = f"""func.func @main(%x: tensor<4x300x{element}>) -> tensor<4x{element}> {{
  %zero = stablehlo.constant dense<{"0.0" if element == "f32" else "0"}> : tensor<{element}>
  %0 = "stablehlo.reduce"(%x, %zero) <{{dimensions = array<i64: 1>}}> ({{
  ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
    %skip = stablehlo.compare EQ, {preferred}, %zero : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
    %r = stablehlo.select %skip, {other}, {preferred} : tensor<i1>, tensor<{element}>
    stablehlo.return %r : tensor<{element}>
  }}) : (tensor<4x300x{element}>, tensor<{element}>) -> tensor<4x{element}>
  return %0 : tensor<4x{element}>
}}
"""
    array = np.random.default_rng(0).integers(-2, 3, (4, 300))
    array[:, :3] = array[:, -40:] = 0
    array = array.astype(np.float32 if element == "f32" else np.int32)
    rows = [row[row != 0] for row in array]
    want = [row[-1 if name == "last" else 0] for row in rows]
    np.testing.assert_array_equal(gristmill.compile(text)(array), want)
