# SPDX-License-Identifier: Apache-2.0
"""Windows over elements set apart, the gradient of pooling windows that do not overlap, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import compile_stages, import_source

RNG = np.random.default_rng(6)
EXTENTS = (2, 4, 5)


def module(
    sizes: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...], *, gap: int = 1
) -> tuple[str, tuple[int, ...]]:
    """Sums over windows of an operand with ``gap`` less than a window between elements; the shape that is padded."""
    gaps = [size - gap for size in sizes]
    padded = tuple(
        n + (n - 1) * g + a + b for n, g, a, b in zip(EXTENTS, gaps, low, high, strict=True)
    )
    result = [n - size + 1 for n, size in zip(padded, sizes, strict=True)]

    def kind(shape: tuple[int, ...] | list[int]) -> str:
        return "tensor<" + "".join(f"{size}x" for size in shape) + "f32>"

    text = f"""func.func @main(%x: {kind(EXTENTS)}) -> {kind(result)} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.pad %x, %z, low = {list(low)}, high = {list(high)}, interior = {gaps}
    : ({kind(EXTENTS)}, tensor<f32>) -> {kind(padded)}
  %1 = "stablehlo.reduce_window"(%0, %z) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }}) {{window_dimensions = array<i64: {str(sizes)[1:-1]}>}} : ({kind(padded)}, tensor<f32>) -> {kind(result)}
  return %1 : {kind(result)}
}}"""
    return text, padded


def expected(
    x: np.ndarray, padded: tuple[int, ...], sizes: tuple[int, ...], low: tuple[int, ...], gap: int
) -> np.ndarray:
    """The definition: elements at their places, those that lie inside, then sums of windows."""
    apart = np.zeros(padded, np.float32)
    for index in np.ndindex(*x.shape):
        place = tuple(
            i * (1 + size - gap) + a for i, size, a in zip(index, sizes, low, strict=True)
        )
        if all(0 <= p < n for p, n in zip(place, padded, strict=True)):
            apart[place] = x[index]
    return np.lib.stride_tricks.sliding_window_view(apart, sizes).sum((-1, -2, -3))


@pytest.mark.parametrize(
    ("sizes", "low", "high"),
    [
        ((1, 2, 2), (0, 1, 1), (0, 1, 1)),
        ((1, 3, 2), (0, 2, 1), (0, 4, 2)),
        ((1, 1, 4), (0, 0, 3), (0, 0, 3)),
        ((1, 3, 3), (0, 1, 0), (0, 2, 1)),
        ((2, 2, 5), (1, 3, 9), (1, 0, 7)),
        ((1, 2, 3), (0, -1, -2), (0, -1, 2)),
        ((1, 2, 1), (1, 1, -1), (0, 1, 2)),
    ],
)
def test_elements_are_repeated(
    sizes: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]
) -> None:
    text, padded = module(sizes, low, high)
    x = RNG.standard_normal(EXTENTS).astype(np.float32)
    np.testing.assert_array_equal(
        gristmill.compile(text)(x), expected(x, padded, sizes, low, gap=1)
    )
    assert "reduce_window" not in fused(text)


def test_windows_that_overlap_are_reduced() -> None:
    sizes, low, high = (2, 3, 3), (0, 2, 2), (0, 2, 2)
    text, padded = module(sizes, low, high, gap=2)
    x = RNG.integers(-9, 9, EXTENTS).astype(np.float32)
    np.testing.assert_array_equal(
        gristmill.compile(text)(x), expected(x, padded, sizes, low, gap=2)
    )
    assert "reduce_window" in fused(text)


def fused(text: str) -> str:
    stages = compile_stages(import_source(text), stop_after="fused", keep_stages=True)
    return str(stages.emit("fused"))
