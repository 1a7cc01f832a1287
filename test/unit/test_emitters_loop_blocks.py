# SPDX-License-Identifier: Apache-2.0
"""Loops over rows of few elements, block by block, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.emitters.cpu.loop import short_dimensions

RNG = np.random.default_rng(4)


def kind(shape: tuple[int, ...]) -> str:
    return "tensor<" + "".join(f"{size}x" for size in shape) + "f32>"


@pytest.mark.parametrize(
    ("shape", "dimensions"),
    [
        ((8, 28, 2, 28, 2), 3),
        ((8, 28, 2, 40, 2), 2),
        ((4, 28, 64, 1), 2),
        ((100, 100, 7), 2),
        ((3, 2, 2), 3),
        ((100, 8), 0),  # rows that are tasks
        ((100000, 3), 0),  # too long a block
        ((5,), 0),
        ((), 0),
    ],
)
def test_short_dimensions(shape: tuple[int, ...], dimensions: int) -> None:
    assert short_dimensions(shape) == dimensions


@pytest.mark.parametrize("times", [(2, 2), (3, 3), (1, 5), (2, 1), (7, 7)])
@pytest.mark.parametrize("shape", [(6, 5, 9), (2, 64, 33), (3, 1, 1), (40, 30, 2)])
def test_repeated_elements(shape: tuple[int, ...], times: tuple[int, int]) -> None:
    planes, rows, columns = shape
    spread, whole = (
        (planes, rows, times[0], columns, times[1]),
        (planes, rows * times[0], columns * times[1]),
    )
    program = gristmill.compile(f"""func.func @main(%x: {kind(shape)}) -> {kind(whole)} {{
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1, 3] : ({kind(shape)}) -> {kind(spread)}
  %1 = stablehlo.reshape %0 : ({kind(spread)}) -> {kind(whole)}
  return %1 : {kind(whole)}
}}""")
    x = RNG.standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(program(x), x.repeat(times[0], 1).repeat(times[1], 2))


@pytest.mark.parametrize("last", [1, 2, 3, 7])
@pytest.mark.parametrize("middle", [1, 10, 64, 3000])
def test_broadcast_rows(middle: int, last: int) -> None:
    """Elements along each dimension of an array of short rows."""
    shape = (9, middle, last)
    text = f"""func.func @main(%x: {kind(shape[:1])}, %y: {kind(shape[1:2])}, %z: {kind(shape[2:])}) -> {kind(shape)} {{
  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : ({kind(shape[:1])}) -> {kind(shape)}
  %1 = stablehlo.broadcast_in_dim %y, dims = [1] : ({kind(shape[1:2])}) -> {kind(shape)}
  %2 = stablehlo.broadcast_in_dim %z, dims = [2] : ({kind(shape[2:])}) -> {kind(shape)}
  %3 = stablehlo.multiply %0, %1 : {kind(shape)}
  %4 = stablehlo.subtract %3, %2 : {kind(shape)}
  return %4 : {kind(shape)}
}}"""
    x, y, z = (RNG.integers(-9, 9, size).astype(np.float32) for size in shape)
    want = x[:, None, None] * y[:, None] - z
    np.testing.assert_array_equal(gristmill.compile(text)(x, y, z), want)
