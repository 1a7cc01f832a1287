# SPDX-License-Identifier: Apache-2.0
"""Folded constants against the StableHLO reference interpreter, bit for bit."""

from __future__ import annotations

from typing import Any

import interpreter
import numpy as np
import pytest

from gristmill.compiler.frontends import load_text
from gristmill.compiler.module import HloModule, constant_value
from gristmill.compiler.passes.pipeline import Pipeline
from gristmill.compiler.passes.rewriting import Rewriter

Array = np.ndarray[Any, Any]

INTEGERS = [0, 1, -1, 2, 5, -7, 100, 127, -128]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    0.5,
    1e30,
    -3e-30,
    1e-42,
    np.inf,
    -np.inf,
    np.nan,
    16777217.0,
    3.3,
]


def _spelling(array: Array) -> str:
    name = array.dtype.name
    element = {"bool": "i1", "float32": "f32", "float16": "f16", "float64": "f64"}.get(
        name, name.replace("uint", "ui").replace("int", "i")
    )
    return "tensor<" + "".join(f"{d}x" for d in array.shape) + element + ">"


def _literal(array: Array) -> str:
    if array.dtype == np.bool_:
        return str(array.tolist()).lower()
    return (
        f'"0x{array.tobytes().hex().upper()}"'
        if array.size > 1 or not array.ndim
        else str(array.tolist())
    )


def _fold(op: str, arrays: list[Array], result: str) -> Array | None:
    """The folded value of ``op`` on constants, or ``None`` when the op is left."""
    lines = [
        f"%a{i} = stablehlo.constant dense<{_literal(a)}> : {_spelling(a)}"
        for i, a in enumerate(arrays)
    ]
    text = f"func.func @main() -> {result} {{\n" + "\n".join([*lines, f"%r = {op}"])
    module = load_text(f"{text}\nreturn %r : {result}\n}}")
    Pipeline("fold-constants,dce-hlo").run(module)
    return _returned(module)


def _returned(module: HloModule) -> Array | None:
    rewriter = Rewriter(module, module.function("main"))
    value = rewriter.ops[-1].operands[0]
    kind = rewriter.type(value)
    producer = rewriter.producer(value)
    assert producer is not None
    if producer.name == "hlo.broadcast_in_dim":
        scalar = rewriter.splat(value)
        return None if scalar is None else np.full(kind.shape, scalar)
    return constant_value(producer, module.constants) if producer.name == "hlo.constant" else None


def _reference(op: str, arrays: list[Array], result: str) -> Array:
    arguments = ", ".join(f"%a{i}: {_spelling(a)}" for i, a in enumerate(arrays))
    text = f"func.func @main({arguments}) -> {result} {{\n%r = {op}\nreturn %r : {result}\n}}"
    return interpreter.evaluate(text, *arrays)[0]


def _check(op: str, arrays: list[Array], result: str, *, may_be_left: bool = False) -> None:
    folded = _fold(op, arrays, result)
    if folded is None:
        assert may_be_left, f"{op} was not folded"
        return
    expected = _reference(op, arrays, result)
    assert folded.dtype == expected.dtype
    np.testing.assert_array_equal(folded, expected)
    if folded.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(folded)[numbers], np.signbit(expected)[numbers])


def _pairs(values: list[Any], dtype: str) -> list[Array]:
    table = np.array(values).astype(dtype)
    lhs, rhs = np.meshgrid(table, table)
    return [np.ascontiguousarray(lhs).reshape(-1), np.ascontiguousarray(rhs).reshape(-1)]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize(
    "name",
    "add subtract multiply maximum minimum and or xor shift_left shift_right_logical shift_right_arithmetic".split(),
)
def test_binary_integers(name: str, dtype: str) -> None:
    arrays = _pairs(INTEGERS, dtype)
    kind = _spelling(arrays[0])
    _check(f"stablehlo.{name} %a0, %a1 : {kind}", arrays, kind)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32"])
@pytest.mark.parametrize("name", ["divide", "remainder"])
def test_division(name: str, dtype: str) -> None:
    arrays = _pairs([-100, -7, -1, 1, 2, 3, 100], dtype)
    kind = _spelling(arrays[0])
    _check(f"stablehlo.{name} %a0, %a1 : {kind}", arrays, kind)


def test_division_that_the_specification_leaves_open() -> None:
    arrays = [np.array([1, -128], np.int8), np.array([0, -1], np.int8)]
    kind = _spelling(arrays[0])
    assert _fold(f"stablehlo.divide %a0, %a1 : {kind}", arrays, kind) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_binary_floats(name: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        arrays = _pairs(FLOATS, dtype)
    kind = _spelling(arrays[0])
    _check(f"stablehlo.{name} %a0, %a1 : {kind}", arrays, kind)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_float_extremes(name: str) -> None:
    arrays = _pairs([1.0, -2.0, np.nan, np.inf, 0.0], "float32")
    kind = _spelling(arrays[0])
    _check(f"stablehlo.{name} %a0, %a1 : {kind}", arrays, kind)


@pytest.mark.parametrize("name", ["abs", "negate", "floor", "ceil", "round_nearest_even", "sqrt"])
def test_unary_floats(name: str) -> None:
    array = np.array(FLOATS, np.float32)
    kind = _spelling(array)
    _check(f"stablehlo.{name} %a0 : {kind}", [array], kind)


@pytest.mark.parametrize("name", ["abs", "negate", "not", "popcnt", "sign"])
def test_unary_integers(name: str) -> None:
    array = np.array(INTEGERS, np.int8)
    kind = _spelling(array)
    _check(f"stablehlo.{name} %a0 : {kind}", [array], kind)


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize(
    ("dtype", "compare_type"), [("float32", "FLOAT"), ("int32", "SIGNED"), ("uint8", "UNSIGNED")]
)
def test_comparisons(direction: str, dtype: str, compare_type: str) -> None:
    arrays = _pairs(FLOATS if dtype == "float32" else INTEGERS, dtype)
    kind, result = _spelling(arrays[0]), _spelling(arrays[0].astype(np.bool_))
    op = f"stablehlo.compare {direction}, %a0, %a1, {compare_type} : ({kind}, {kind}) -> {result}"
    _check(op, arrays, result)


CONVERSIONS = ["bool", "int8", "int32", "uint32", "float16", "float32", "float64"]


@pytest.mark.parametrize("source", CONVERSIONS)
@pytest.mark.parametrize("target", CONVERSIONS)
def test_conversions(source: str, target: str) -> None:
    values = [0, 1, -1, 2, -7, 100, 0.5, -2.5] if source.startswith("float") else INTEGERS
    array = np.array(values).astype(source)
    if target.startswith("uint"):
        array = array[array >= 0]
    result = _spelling(np.zeros(array.shape, target))
    op = f"stablehlo.convert %a0 : ({_spelling(array)}) -> {result}"
    left = source == target or (target == "float16" and source in ("uint32", "float64"))
    _check(op, [array], result, may_be_left=left)


def test_conversion_out_of_range_is_left() -> None:
    array = np.array([3e9, np.nan], np.float32)
    assert (
        _fold("stablehlo.convert %a0 : (tensor<2xf32>) -> tensor<2xi32>", [array], "tensor<2xi32>")
        is None
    )


MOVES = [
    (
        "stablehlo.transpose %a0, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>",
        "tensor<3x2xi32>",
    ),
    ("stablehlo.reverse %a0, dims = [1] : tensor<2x3xi32>", "tensor<2x3xi32>"),
    ("stablehlo.slice %a0 [0:2, 0:3:2] : (tensor<2x3xi32>) -> tensor<2x2xi32>", "tensor<2x2xi32>"),
    ("stablehlo.reshape %a0 : (tensor<2x3xi32>) -> tensor<3x2xi32>", "tensor<3x2xi32>"),
    (
        "stablehlo.broadcast_in_dim %a0, dims = [2, 0] : (tensor<2x3xi32>) -> tensor<3x1x2xi32>",
        "tensor<3x1x2xi32>",
    ),
    (
        "stablehlo.concatenate %a0, %a0, dim = 1 : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x6xi32>",
        "tensor<2x6xi32>",
    ),
]


@pytest.mark.parametrize(("op", "result"), MOVES)
def test_movement(op: str, result: str) -> None:
    _check(op, [np.arange(6, dtype=np.int32).reshape(2, 3)], result)


def test_pad() -> None:
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.array(9, np.int32)]
    op = (
        "stablehlo.pad %a0, %a1, low = [1, 0], high = [0, 2], interior = [1, 2] : "
        "(tensor<2x3xi32>, tensor<i32>) -> tensor<4x9xi32>"
    )
    _check(op, arrays, "tensor<4x9xi32>")
