# SPDX-License-Identifier: Apache-2.0
"""Pooling windows against the StableHLO reference interpreter, most of them in dimensions but the minor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter import evaluate

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source

RNG = np.random.default_rng(9)
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "i32": np.int32,
    "ui8": np.uint8,
}

#: Operand, result, attributes, whether the pooling emitter serves it.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, bool]] = {
    "nhwc": (
        (2, 9, 11, 40),
        (2, 5, 6, 40),
        "window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>, "
        "padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>",
        True,
    ),
    "valid": ((7, 8, 5), (5, 7, 5), "window_dimensions = array<i64: 3, 2, 1>", True),
    "dilated": (
        (9, 12, 16),
        (8, 8, 16),
        "window_dimensions = array<i64: 2, 3, 1>, window_dilations = array<i64: 3, 2, 1>, "
        "padding = dense<[[0, 2], [1, -1], [0, 0]]> : tensor<3x2xi64>",
        True,
    ),
    "all_padding": (
        (2, 3, 8),
        (8, 9, 8),
        "window_dimensions = array<i64: 2, 2, 1>, "
        "padding = dense<[[4, 3], [3, 4], [0, 0]]> : tensor<3x2xi64>",
        True,
    ),
    "two_dimensions": (
        (30, 70),
        (10, 70),
        "window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 3, 1>",
        True,
    ),
    "minor_window": ((6, 30), (6, 28), "window_dimensions = array<i64: 1, 3>", True),
    "base_dilation": (
        (5, 8),
        (8, 8),
        "window_dimensions = array<i64: 2, 1>, base_dilations = array<i64: 2, 1>",
        False,
    ),
}


for _size, _stride, _dilation in ((3, 1, 1), (4, 2, 1), (3, 2, 2), (5, 3, 1), (2, 3, 1), (6, 1, 1)):
    _outputs = (13 + 2 - (_size - 1) * _dilation - 1) // _stride + 1
    CASES[f"row_{_size}_{_stride}_{_dilation}"] = (
        (5, 13, 23),
        (5, _outputs, 23),
        f"window_dimensions = array<i64: 3, {_size}, 1>, window_strides = array<i64: 1, {_stride}, 1>, "
        f"window_dilations = array<i64: 1, {_dilation}, 1>, "
        "padding = dense<[[1, 1], [1, 1], [0, 0]]> : tensor<3x2xi64>",
        True,
    )


def module(name: str, element: str, body: str) -> str:
    operand, result, attributes, _ = CASES[name]

    def kind(shape: tuple[int, ...]) -> str:
        return "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"

    scalar = f"tensor<{element}>"
    # An identity of the body over the values below: what padding counts as is otherwise left open.
    low = 0 if element.startswith("u") else -3
    number = {"add": 0, "multiply": 1, "minimum": 4, "maximum": low}[body]
    start = f"{number}.0" if element.startswith("f") else str(number)
    return f"""func.func @main(%x: {kind(operand)}) -> {kind(result)} {{
  %z = stablehlo.constant dense<{start}> : {scalar}
  %0 = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%a: {scalar}, %b: {scalar}):
    %r = stablehlo.{body} %a, %b : {scalar}
    stablehlo.return %r : {scalar}
  }}) {{{attributes}}} : ({kind(operand)}, {scalar}) -> {kind(result)}
  return %0 : {kind(result)}
}}"""


def check(name: str, element: str, body: str) -> None:
    text = module(name, element, body)
    low = 0 if element.startswith("u") else -3
    x = RNG.integers(low, 4, CASES[name][0]).astype(DTYPES[element])
    np.testing.assert_array_equal(gristmill.compile(text)(x), evaluate(text, x)[0])


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of few floats are loops otherwise."""
    monkeypatch.setattr("gristmill.compiler.emitters.cpu.pooling.LEAST_SUMMED", 0)


@pytest.mark.parametrize("body", ["add", "maximum"])
@pytest.mark.parametrize("name", CASES)
def test_windows(name: str, body: str) -> None:
    check(name, "f32", body)
    source = import_source(module(name, "f32", body))
    stages = compile_stages(source, stop_after="fused", keep_stages=True)
    assert ('kind = "pooling"' in str(stages.emit("fused"))) == CASES[name][3]


@pytest.mark.parametrize("body", ["add", "multiply", "minimum", "maximum"])
@pytest.mark.parametrize("element", list(DTYPES))
def test_types(element: str, body: str) -> None:
    check("valid", element, body)


@pytest.mark.parametrize("body", ["minimum", "maximum"])
@pytest.mark.parametrize("name", ["nhwc", "valid", "row_3_1_1", "row_4_2_1"])
def test_nan_wins(name: str, body: str) -> None:
    """NaN of either sign, at every place of a pixel row and of its channels."""
    text = module(name, "f32", body)
    shape = CASES[name][0]
    with gristmill.compile(text) as program:
        for sign in (np.nan, -np.nan):
            x = np.clip(RNG.standard_normal(shape).astype(np.float32), -3, 3)
            x[..., RNG.integers(shape[-3]), RNG.integers(shape[-2]), 3] = np.copysign(np.nan, sign)
            np.testing.assert_array_equal(program(x), evaluate(text, x)[0])
        for pixel in range(shape[-2]):
            x = np.clip(RNG.standard_normal(shape).astype(np.float32), -3, 3)
            x[..., shape[-3] // 2, pixel, RNG.integers(shape[-1])] = np.nan
            np.testing.assert_array_equal(program(x), evaluate(text, x)[0])


#: CPUs whose code this one runs.
CPUS = ["x86-64", "x86-64-v3", *(["x86-64-v4"] if "+avx512f" in host_target().features else [])]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("body", ["add", "maximum"])
def test_vectors_of_other_cpus(cpu: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CPU", cpu)
    for name in ("nhwc", "row_3_1_1", "row_6_1_1"):
        check(name, "f32", body)
    if body == "maximum":
        test_nan_wins("row_3_1_1", body)
