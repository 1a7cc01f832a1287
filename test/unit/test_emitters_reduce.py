# SPDX-License-Identifier: Apache-2.0
"""Reductions whose initial value is not neutral combine it once, however they are split."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gristmill

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
