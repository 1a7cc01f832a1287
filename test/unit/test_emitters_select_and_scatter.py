# SPDX-License-Identifier: Apache-2.0
"""``select_and_scatter`` against the StableHLO reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter import evaluate

import gristmill

RNG = np.random.default_rng(3)

SELECTS = {
    "GE": "%r = stablehlo.compare GE, %a, %b : ({e}, {e}) -> tensor<i1>",
    "LT": "%r = stablehlo.compare LT, %a, %b : ({e}, {e}) -> tensor<i1>",
}


def text(
    operand: tuple[int, ...],
    source: tuple[int, ...],
    attributes: str,
    element: str = "f32",
    select: str = "GE",
    scatter: str = "add",
) -> str:
    def kind(shape: tuple[int, ...]) -> str:
        return "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"

    scalar = f"tensor<{element}>"
    zero = "0.0" if element.startswith("f") else "1"
    return f"""func.func @main(%x: {kind(operand)}, %s: {kind(source)}) -> {kind(operand)} {{
  %z = stablehlo.constant dense<{zero}> : {scalar}
  %0 = "stablehlo.select_and_scatter"(%x, %s, %z) ({{
  ^bb0(%a: {scalar}, %b: {scalar}):
    {SELECTS[select].format(e=scalar)}
    stablehlo.return %r : tensor<i1>
  }}, {{
  ^bb0(%a: {scalar}, %b: {scalar}):
    %r = stablehlo.{scatter} %a, %b : {scalar}
    stablehlo.return %r : {scalar}
  }}) {{{attributes}}} : ({kind(operand)}, {kind(source)}, {scalar}) -> {kind(operand)}
  return %0 : {kind(operand)}
}}"""


CASES: list[tuple[tuple[int, ...], tuple[int, ...], str]] = [
    ((2, 4, 6), (2, 3, 4), "window_dimensions = array<i64: 1, 2, 3>"),
    ((2, 4, 6), (2, 1, 6), "window_dimensions = array<i64: 1, 4, 1>"),
    (
        (9, 9, 3),
        (4, 4, 3),
        "window_dimensions = array<i64: 3, 3, 1>, window_strides = array<i64: 2, 2, 1>",
    ),
    (
        (4, 5),
        (5, 6),
        "window_dimensions = array<i64: 2, 2>, padding = dense<1> : tensor<2x2xi64>",
    ),
    (
        (2, 4),
        (2, 4),
        "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>, "
        "padding = dense<[[0, 0], [2, 2]]> : tensor<2x2xi64>",
    ),
]


def sample(element: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    kind = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[element]
    return RNG.integers(-4, 5, shape).astype(kind)


@pytest.mark.parametrize(("operand", "source", "attributes"), CASES)
@pytest.mark.parametrize("select", ["GE", "LT"])
def test_windows(
    operand: tuple[int, ...], source: tuple[int, ...], attributes: str, select: str
) -> None:
    module = text(operand, source, attributes, select=select)
    arrays = sample("f32", operand), sample("f32", source)
    np.testing.assert_array_equal(gristmill.compile(module)(*arrays), evaluate(module, *arrays)[0])


@pytest.mark.parametrize(("element", "scatter"), [("i32", "multiply"), ("f64", "maximum")])
def test_bodies(element: str, scatter: str) -> None:
    operand, source, attributes = CASES[2]
    module = text(operand, source, attributes, element, scatter=scatter)
    arrays = sample(element, operand), sample(element, source)
    np.testing.assert_array_equal(gristmill.compile(module)(*arrays), evaluate(module, *arrays)[0])


def test_first_of_equal_elements_is_selected() -> None:
    operand, source, attributes = CASES[0]
    module = text(operand, source, attributes)
    x = np.zeros(operand, np.float32)
    s = np.ones(source, np.float32)
    got = gristmill.compile(module)(x, s)
    wanted = np.zeros(operand, np.float32)
    wanted[:, :3, :4] = 1
    np.testing.assert_array_equal(got, wanted)


def test_nan_replaces_and_is_replaced_as_select_says() -> None:
    operand, source, attributes = CASES[2]
    module = text(operand, source, attributes)
    x, s = sample("f32", operand), sample("f32", source)
    x[::2, ::3] = np.nan
    np.testing.assert_array_equal(gristmill.compile(module)(x, s), evaluate(module, x, s)[0])
