# SPDX-License-Identifier: Apache-2.0
"""Pooling windows along the minor dimension against their definition in numpy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.emitters.cpu import pooling

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i32": np.int32,
    "ui8": np.uint8,
    "i8": np.int8,
    "i64": np.int64,
}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of few floats are loops otherwise."""
    monkeypatch.setattr(pooling, "LEAST_SUMMED", 0)


@dataclass(frozen=True)
class Window:
    """One dimension: windows of ``size`` taps, ``dilation`` apart, over a padded operand."""

    extent: int
    size: int = 1
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0

    @property
    def outputs(self) -> int:
        span = (self.size - 1) * self.dilation + 1
        return max(0, (self.extent + self.low + self.high - span) // self.stride + 1)


def module(windows: list[Window], element: str, body: str) -> str:
    def kind(shape: list[int]) -> str:
        return "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"

    def dims(name: str) -> str:
        return "array<i64: " + ", ".join(str(getattr(w, name)) for w in windows) + ">"

    scalar, rank = f"tensor<{element}>", len(windows)
    operand, result = kind([w.extent for w in windows]), kind([w.outputs for w in windows])
    padding = ", ".join(f"[{w.low}, {w.high}]" for w in windows)
    return f"""func.func @main(%x: {operand}, %z: {scalar}) -> {result} {{
  %0 = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%a: {scalar}, %b: {scalar}):
    %r = stablehlo.{body} %a, %b : {scalar}
    stablehlo.return %r : {scalar}
  }}) {{window_dimensions = {dims("size")}, window_strides = {dims("stride")},
       window_dilations = {dims("dilation")}, padding = dense<[{padding}]> : tensor<{rank}x2xi64>}}
    : ({operand}, {scalar}) -> {result}
  return %0 : {result}
}}"""


def combined(body: str, a: Array, b: Array) -> Array:
    """One application of the body; of zeros, -0 is the smaller."""
    if body in ("add", "multiply"):
        return a + b if body == "add" else a * b
    result = np.maximum(a, b) if body == "maximum" else np.minimum(a, b)
    zeros = a + b if body == "maximum" else -(-a + -b)
    return np.where((a == 0) & (b == 0), zeros, result)


def pooled(windows: list[Window], body: str, x: Array, start: Array) -> Array:
    """The definition: the initial value and the taps inside the operand, one after the other, in ``f64`` if float."""
    wide = x.astype(np.float64 if x.dtype.kind in "fV" else x.dtype)
    total = np.full([w.outputs for w in windows], start).astype(wide.dtype)
    with np.errstate(all="ignore"):
        for tap in itertools.product(*(range(w.size) for w in windows)):
            places = [
                np.arange(w.outputs) * w.stride + t * w.dilation - w.low
                for w, t in zip(windows, tap, strict=True)
            ]
            places = np.meshgrid(*places, indexing="ij")
            inside = np.logical_and.reduce(
                [(p >= 0) & (p < w.extent) for p, w in zip(places, windows, strict=True)]
            )
            taken = wide[tuple(np.where(inside, p, 0) for p in places)]
            total = np.where(inside, combined(body, total, taken), total)
        return total.astype(x.dtype)


def check(windows: list[Window], element: str, body: str, x: Array, start: Any) -> None:
    start = np.asarray(start, DTYPES[element])
    with gristmill.compile(module(windows, element, body)) as program:
        got = np.asarray(program(x, start))
    want = pooled(windows, body, x, start)
    wide = np.float64 if got.dtype.kind in "fV" else got.dtype
    got, want = got.astype(wide), want.astype(wide)
    np.testing.assert_array_equal(got, want)
    signs = ~np.isnan(want) if want.dtype.kind == "f" else np.zeros(want.shape, bool)
    np.testing.assert_array_equal(np.signbit(got)[signs], np.signbit(want)[signs])


def elements(rng: Any, shape: list[int], element: str, body: str) -> tuple[Array, Any]:
    """Elements whose combination is exact in any order, and an initial value."""
    if body == "multiply":
        numbers = rng.choice([1, 1, 1, 1, 2 if element in ("f32", "f64") else 1], shape)
        return (numbers * rng.choice([1, 255 if element == "ui8" else -1], shape)).astype(
            DTYPES[element]
        ), 1
    if element.startswith(("i", "u")):
        low = 0 if element.startswith("u") else -100
        return rng.integers(low, 100, shape).astype(DTYPES[element]), 7
    numbers = rng.integers(-9, 9, shape).astype(np.float64)
    if body == "add":
        return (numbers / 4).astype(DTYPES[element]), 0.5
    return numbers.astype(DTYPES[element]), -np.inf if body == "maximum" else np.inf


def random_windows(rng: Any) -> list[Window]:
    """Windows of one to four dimensions with few results; the last does something."""
    rank = int(rng.integers(1, 5))
    while True:
        windows: list[Window] = []
        for d in range(rank):
            if d < rank - 1 and rng.random() < 0.5:
                windows.append(Window(int(rng.integers(1, 4))))
                continue
            most = 90 if d == rank - 1 else 9
            size = int(rng.choice([1, 2, 3, 4, 5, 7, 9, 13]))
            low, high = (int(n) for n in rng.choice([-2, -1, 0, 0, 0, 1, 1, 2, size + 1], 2))
            steps = (int(n) for n in (rng.choice([1, 1, 2, 2, 3, 5]), rng.choice([1, 1, 1, 2, 3])))
            windows.append(Window(int(rng.integers(1, most)), size, *steps, low, high))
        outputs = [w.outputs for w in windows]
        last = windows[-1]
        plain = last == Window(last.extent)
        if not plain and 0 not in outputs and all(w.extent + w.low + w.high > 0 for w in windows):
            return windows


@pytest.mark.parametrize("seed", range(48))
def test_random_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = random_windows(rng)
    element = str(rng.choice(list(DTYPES)))
    bodies = ["add", "multiply", "minimum", "maximum"]
    for body in rng.choice(bodies[:1] if element in ("bf16", "f16") else bodies, 1):
        shape = [w.extent for w in windows]
        check(windows, element, body, *elements(rng, shape, element, body))


#: Ways that random windows seldom take.
SHAPES: dict[str, list[Window]] = {
    "tiled": [Window(2), Window(14, 2, 2), Window(14, 2, 2)],
    "padded": [Window(2), Window(14, 3, 2, 1, 1, 1), Window(14, 3, 2, 1, 1, 1)],
    "same": [Window(3), Window(7, 3, 1, 1, 1, 1), Window(7, 3, 1, 1, 1, 1)],
    "whole": [Window(3), Window(7, 7), Window(7, 7)],
    "across": [Window(3), Window(21, 21, 1), Window(63, 21, 21)],
    "across_line": [Window(5), Window(63, 21, 21)],
    "many_rows": [Window(2), Window(61, 3, 1, 1, 1, 1), Window(100, 3, 2, 1, 0, 1)],
    "two_steps": [Window(3), Window(70, 31, 1, 1, 15, 15)],
    "two_steps_apart": [Window(40, 3, 2), Window(90, 24, 2, 1, 3, 3)],
    "long": [Window(5000, 3, 1, 1, 1, 1)],
    "long_two_steps": [Window(2), Window(9001, 33, 1, 2, 32, 32)],
    "long_staged": [Window(5, 3, 1, 1, 1, 1), Window(6000, 5, 3, 1, 2, 2)],
    "long_flat": [Window(3000), Window(6, 3, 3)],
    "many_taps": [Window(2), Window(300, 40, 3, 3, 7, 60)],
    "volume": [Window(4, 3, 1, 1, 1, 1), Window(9, 2, 2), Window(18, 3, 2, 1, 1, 1)],
    "outside": [Window(4, 2, 1, 1, 5, 5), Window(10, 2, 1, 1, 14, 13)],
    "nothing": [Window(2, 2, 1, 1, 2, -2), Window(10, 2)],
    "cut": [Window(9, 2, 1, 1, -2, -3), Window(40, 3, 2, 1, -5, -7)],
    "picked": [Window(6, 1, 2), Window(33, 1, 2)],
}


@pytest.mark.parametrize("element", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("body", ["add", "maximum"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, body: str, element: str) -> None:
    rng, windows = np.random.default_rng(1), SHAPES[name]
    x, start = elements(rng, [w.extent for w in windows], element, body)
    if element == "bf16" and body == "add":  # sums of up to 8 bits
        x = np.where(rng.random(x.shape) < 0.1, x, 0).astype(x.dtype)
    check(windows, element, body, x, start)


@pytest.mark.parametrize("name", SHAPES)
def test_has_an_emitter(name: str) -> None:
    source = import_source(module(SHAPES[name], "f32", "maximum"))
    fused = str(compile_stages(source, stop_after="fused", keep_stages=True).emit("fused"))
    assert 'kind = "pooling"' in fused


def special(rng: Any, shape: list[int], dtype: Any) -> Array:
    """Zeros of either sign, few other numbers, infinities."""
    numbers = [0.0, -0.0, 0.0, -0.0, 1.0, -1.0, np.inf, -np.inf]
    return rng.choice(numbers, shape, p=[0.3, 0.3, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]).astype(dtype)


@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("body", ["minimum", "maximum"])
@pytest.mark.parametrize("name", ["tiled", "same", "two_steps", "across_line", "long", "volume"])
def test_special_numbers(name: str, body: str, element: str) -> None:
    """NaN of either sign anywhere wins; -0 is less than +0; whatever the initial value is."""
    rng, windows = np.random.default_rng(2), SHAPES[name]
    shape = [w.extent for w in windows]
    with gristmill.compile(module(windows, element, body)) as program:
        for start in (-np.inf, np.inf, 0.0, -0.0, np.nan):
            for nans in (0, 1, 3):
                x = special(rng, shape, DTYPES[element])
                for place in rng.integers(x.size, size=nans):
                    x.reshape(-1)[place] = np.copysign(np.nan, rng.choice([-1, 1]))
                first = np.asarray(start, x.dtype)
                got = np.asarray(program(x, first)).astype(np.float64)
                want = pooled(windows, body, x, first).astype(np.float64)
                np.testing.assert_array_equal(got, want)
                real = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(got)[real], np.signbit(want)[real])


@pytest.mark.parametrize("body", ["minimum", "maximum"])
@pytest.mark.parametrize("name", ["same", "padded", "across_line"])
def test_nan_at_every_place(name: str, body: str) -> None:
    rng, windows = np.random.default_rng(3), SHAPES[name]
    shape = [w.extent for w in windows]
    x = rng.integers(1, 9, shape).astype(np.float32)
    start = np.float32(-np.inf if body == "maximum" else np.inf)
    with gristmill.compile(module(windows, "f32", body)) as program:
        for place in range(x.size // shape[0]):
            y = x.copy()
            y.reshape(-1)[place] = np.nan
            np.testing.assert_array_equal(program(y, start), pooled(windows, body, y, start))


#: CPUs whose code this one runs.
CPUS = ["x86-64", "x86-64-v3", *(["x86-64-v4"] if "+avx512f" in host_target().features else [])]


@pytest.mark.parametrize("cpu", CPUS)
def test_vectors_of_other_cpus(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CPU", cpu)
    for name in ("padded", "two_steps_apart", "long_flat", "across"):
        for body in ("add", "maximum"):
            test_shapes(name, body, "f32")
    test_special_numbers("same", "maximum", "f32")


def test_few_floats_are_added_in_the_order_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 12)).astype(np.float32)
    windows = [Window(12, 3), Window(12, 3)]
    text = module(windows, "f32", "add")
    got = gristmill.compile(text)(x, np.zeros((), np.float32))
    wanted = np.zeros((10, 10), np.float32)
    for row, column in itertools.product(range(3), range(3)):
        wanted += x[row : row + 10, column : column + 10]
    np.testing.assert_array_equal(got, wanted)
