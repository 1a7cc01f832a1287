# SPDX-License-Identifier: Apache-2.0
"""Argmax and argmin over the minor dimension, against Python: every type, width, and way of breaking ties."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.emitters.elemental.extremum import Extremum, extremum_of
from gristmill.compiler.graph import load_graph
from gristmill.runtime.types import element_type

Array = np.ndarray[Any, Any]

#: JAX's: a NaN wins, of equal values the lowest position.
JAX = """%better = stablehlo.compare {D}T, %x, %y : ({V}, {V}) -> tensor<i1>
    %nan = stablehlo.compare NE, %x, %x : ({V}, {V}) -> tensor<i1>
    %left = stablehlo.or %better, %nan : tensor<i1>
    %same = stablehlo.compare EQ, %x, %y : ({V}, {V}) -> tensor<i1>
    %before = stablehlo.compare LT, %i, %j : ({P}, {P}) -> tensor<i1>
    %tie = stablehlo.and %same, %before : tensor<i1>
    %take = stablehlo.or %left, %tie : tensor<i1>
    %v = stablehlo.select %left, %x, %y : tensor<i1>, {V}
    %p = stablehlo.select %take, %i, %j : tensor<i1>, {P}"""
#: One comparison decides: of equal values the first (GE) or the last (GT); what follows a NaN replaces it.
PLAIN = """%take = stablehlo.compare {D}{E}, %x, %y : ({V}, {V}) -> tensor<i1>
    %v = stablehlo.select %take, %x, %y : tensor<i1>, {V}
    %p = stablehlo.select %take, %i, %j : tensor<i1>, {P}"""
BODIES = {
    "argmax": (JAX, "G", "T"),
    "argmin": (JAX, "L", "T"),
    "first largest": (PLAIN, "G", "E"),
    "last largest": (PLAIN, "G", "T"),
    "first smallest": (PLAIN, "L", "E"),
    "last smallest": (PLAIN, "L", "T"),
}
COMPARISONS = {"GT": operator.gt, "GE": operator.ge, "LT": operator.lt, "LE": operator.le}


def _literal(element: str, number: float) -> str:
    if element == "i1":
        return str(bool(number)).lower()
    return repr(float(number)) if element_type(element).is_float else str(number)


def module(
    body: str,
    shape: tuple[int, ...],
    element: str,
    position: str = "i32",
    initial: tuple[float, int] = (0, 0),
    prologue: str = "",
) -> str:
    template, direction, equal = BODIES[body]
    value, index = f"tensor<{element}>", f"tensor<{position}>"
    operations = template.format(D=direction, E=equal, V=value, P=index)
    source, places = (f"tensor<{'x'.join(map(str, shape))}x{kind}>" for kind in (element, position))
    lead = "".join(f"{size}x" for size in shape[:-1])
    values, positions = f"tensor<{lead}{element}>", f"tensor<{lead}{position}>"
    axis = len(shape) - 1
    return f"""func.func @main(%arg: {source}) -> ({values}, {positions}) {{
  {prologue.format(T=source) or f"%a = stablehlo.reshape %arg : ({source}) -> {source}"}
  %n = stablehlo.constant dense<{_literal(element, initial[0])}> : {value}
  %z = stablehlo.constant dense<{initial[1]}> : {index}
  %iota = stablehlo.iota dim = {axis} : {places}
  %0:2 = stablehlo.reduce(%a init: %n), (%iota init: %z) across dimensions = [{axis}] :
      ({source}, {places}, {value}, {index}) -> ({values}, {positions})
  reducer(%x: {value}, %y: {value}) (%i: {index}, %j: {index}) {{
    {operations}
    stablehlo.return %v, %p : {value}, {index}
  }}
  return %0#0, %0#1 : {values}, {positions}
}}
"""


def folded(body: str, rows: Array, initial: tuple[float, int]) -> tuple[Array, Array]:
    """The body applied from left to right."""
    template, direction, equal = BODIES[body]
    better = COMPARISONS[direction + equal]
    found: list[tuple[Any, int]] = []
    for row in rows.reshape(-1, rows.shape[-1]):
        value, place = rows.dtype.type(initial[0]), initial[1]
        for j, y in enumerate(row):
            left = better(value, y) or (template is JAX and value != value)
            first = template is JAX and value == y and place < j
            place = place if left or first else j
            value = value if left else y
        found.append((value, place))
    values, places = zip(*found, strict=True)
    shape = rows.shape[:-1]
    return np.array(values, rows.dtype).reshape(shape), np.array(places).reshape(shape)


def check(body: str, rows: Array, element: str, initial: tuple[int, int] = (0, 0)) -> None:
    values, places = gristmill.compile(module(body, rows.shape, element, initial=initial))(rows)
    expected = folded(body, rows, initial)
    np.testing.assert_array_equal(places, expected[1])
    np.testing.assert_array_equal(values.astype(np.float64), expected[0].astype(np.float64))


def ties(element: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Small numbers, each many times; 1 to 9, as the initial value is 0."""
    return np.random.default_rng(seed).integers(1, 10, shape).astype(element_type(element).dtype)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("width", [4, 17, 64, 66, 129, 1000])
def test_ties(body: str, width: int) -> None:
    rows = ties("f32", (5, width), width)
    rows[1] = 3  # all equal
    rows[2] = np.arange(width) + 1
    rows[3] = -np.arange(width) - 1
    rows[4, : width // 2] = 0.0
    rows[4, width // 2 :] = -0.0
    check(body, rows, "f32", (-1 if body in ("argmax", "first largest") else 4, 2))


@pytest.mark.parametrize("body", ["argmax", "last smallest"])
@pytest.mark.parametrize(
    "element",
    ["f64", "bf16", "f16", "f8E5M2", "i4", "i8", "ui8", "i16", "i32", "ui32", "i64", "ui64"],
)
def test_types(body: str, element: str) -> None:
    rows = ties(element, (2, 3, 203))
    check(body, rows, element)


@pytest.mark.parametrize("element", ["i8", "i32", "i64", "ui8", "ui32", "ui64"])
def test_extreme_integers(element: str) -> None:
    dtype = element_type(element).dtype
    limits = np.iinfo(dtype)
    rows = np.random.default_rng(0).integers(
        limits.min, limits.max, (4, 150), dtype=dtype, endpoint=True
    )
    rows[:, [30, 77]] = [limits.min, limits.max]
    for body in ("argmax", "argmin"):
        text = module(body, rows.shape, element, initial=(int(rows[0, 0]), 0))
        _, places = gristmill.compile(text)(rows)
        np.testing.assert_array_equal(places, getattr(np, body)(rows, 1))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", [(30,), (1, 130), (100_000,)])
def test_all_elements(body: str, shape: tuple[int, ...]) -> None:
    """A long row is cut into blocks for several threads."""
    rows = ties("f32", shape)
    check(body, rows, "f32")
    if BODIES[body][0] is JAX:  # the other is not associative where there is a NaN
        rows[..., 25] = np.nan
        check(body, rows, "f32")


def test_all_elements_of_a_matrix() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.argmax(), x.argmin()

    array = ties("f32", (300, 400))
    largest, smallest = gristmill.compile(jax.jit(both).lower(array))(array)
    assert (largest, smallest) == (array.argmax(), array.argmin())


def test_truth_values() -> None:
    rows = np.zeros((4, 100), np.bool_)
    rows[1, [40, 41]] = rows[2, 99] = True
    text = module("argmax", rows.shape, "i1", initial=(False, 0))
    values, places = gristmill.compile(text)(rows)
    np.testing.assert_array_equal(values, rows.max(1))
    np.testing.assert_array_equal(places, [0, 40, 99, 0])


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("width", [20, 200])
def test_nan(body: str, element: str, width: int) -> None:
    rows = ties("f32", (8, width))
    for row, column in ((1, 0), (2, width - 1), (3, 5), (3, 9), (4, width // 2), (7, 16)):
        rows[row, column] = np.nan
    rows[5] = np.nan
    rows[6] = -np.inf
    rows[6, 7] = np.inf
    check(body, rows.astype(element_type(element).dtype), element)


@pytest.mark.parametrize("body", ["argmax", "last smallest"])
def test_values_computed_on_the_way(body: str) -> None:
    rows = ties("f32", (3, 150))
    text = module(body, rows.shape, "f32", prologue="%a = stablehlo.negate %arg : {T}")
    values, places = gristmill.compile(text)(rows)
    expected = folded(body, -rows, (0, 0))
    np.testing.assert_array_equal(places, expected[1])
    np.testing.assert_array_equal(values, expected[0])


def test_positions_of_a_narrow_type_wrap() -> None:
    rows = np.zeros((2, 300), np.float32)
    rows[0, 280] = rows[1, 100] = 1
    text = module("argmax", rows.shape, "f32", position="i8")
    _, places = gristmill.compile(text)(rows)
    np.testing.assert_array_equal(places, [280 - 256, 100])


#: What each of these bodies picks.
PICKS = {
    "argmax": Extremum(largest=True, first=True),
    "argmin": Extremum(largest=False, first=True),
    "first largest": Extremum(largest=True, first=True),
    "last largest": Extremum(largest=True, first=False),
    "first smallest": Extremum(largest=False, first=True),
    "last smallest": Extremum(largest=False, first=False),
}


def recognised(text: str) -> Extremum | None:
    source = import_source(text)
    with source.context:
        (body,) = (f for name, f in source.functions().items() if name != "main")
        return extremum_of(load_graph(body))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("element", ["f32", "ui8", "i64"])
def test_bodies_are_recognised(body: str, element: str) -> None:
    assert recognised(module(body, (4, 100), element)) == PICKS[body]


#: Lines of the body "last largest" replaced so that it is something else.
OTHERS = {
    "values compared with positions": ("%take", "stablehlo.compare GT, %x, %j"),
    "the smallest value, but not its position": ("%v", "stablehlo.minimum %x, %y"),
    "values that are neither": ("%v", "stablehlo.add %x, %y"),
    "always the right": ("%take", "stablehlo.compare GT, %x, %x"),
    "by a total order": ("%take", "stablehlo.compare GT, %x, %y, TOTALORDER"),
}


@pytest.mark.parametrize("change", OTHERS)
def test_other_bodies_are_not(change: str) -> None:
    element = "f32" if "total" in change else "i32"
    result, operation = OTHERS[change]
    text = module("last largest", (4, 100), element)
    old = next(line for line in text.splitlines() if line.lstrip().startswith(result))
    scalar = f"tensor<{element}>"
    types = f"({scalar}, {scalar}) -> tensor<i1>" if result == "%take" else scalar
    assert recognised(text.replace(old, f"{result} = {operation} : {types}")) is None
