# SPDX-License-Identifier: Apache-2.0
"""Loops over numbers that read and write arrays a few elements at a time, against numpy and the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import evaluate

import gristmill
from gristmill.compiler.compile import compile_stages, import_source

RNG = np.random.default_rng(12)
SIZE, STEPS = 300, 250


def loop(carried: str, body: str, returned: str, arguments: str = "%xs, %ys") -> str:
    """A ``while`` of ``STEPS`` turns over two arrays, a counter and a sum; ``body`` defines what is ``returned``."""
    array = f"tensor<{SIZE}xf32>"
    kinds = f"{array}, {array}, tensor<i32>, tensor<f32>"
    return f"""func.func @main(%xs: {array}, %ys: {array}) -> ({kinds}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %r:4 = stablehlo.while({carried}, %i = %zero, %s = %none) : {kinds}
  cond {{
    %n = stablehlo.constant dense<{STEPS}> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %x1 = stablehlo.dynamic_slice %x, %i, sizes = [1] : ({array}, tensor<i32>) -> tensor<1xf32>
    %x0 = stablehlo.reshape %x1 : (tensor<1xf32>) -> tensor<f32>
    %t = stablehlo.add %s, %x0 : tensor<f32>
    %t1 = stablehlo.reshape %t : (tensor<f32>) -> tensor<1xf32>
    {body}
    stablehlo.return {returned}, %j, %t : {kinds}
  }}
  return %r#0, %r#1, %r#2, %r#3 : {kinds}
}}"""


def update(result: str, array: str, at: str = "%i") -> str:
    kind = f"tensor<{SIZE}xf32>"
    operands = f"({kind}, tensor<1xf32>, tensor<i32>) -> {kind}"
    return f"{result} = stablehlo.dynamic_update_slice {array}, %t1, {at} : {operands}"


SCAN = loop("%x = %xs, %y = %ys", update("%u", "%y"), "%x, %u")
#: The same index twice as far on: the last are clamped.
CLAMPED = loop(
    "%x = %xs, %y = %ys",
    "%k = stablehlo.add %i, %i : tensor<i32>\n    " + update("%u", "%y", "%k"),
    "%x, %u",
)
#: What cannot be done in place: an array that is read and written, two that change places, one written twice.
READ_AND_WRITTEN = loop("%x = %xs, %y = %ys", update("%u", "%x"), "%u, %y")
EXCHANGED = loop("%x = %xs, %y = %ys", update("%u", "%y"), "%u, %x")
WRITTEN_TWICE = loop(
    "%x = %xs, %y = %ys", update("%v", "%y") + "\n    " + update("%u", "%v", "%j"), "%x, %u"
)
BOTH_RESULTS = loop("%x = %xs, %y = %ys", update("%u", "%y"), "%u, %u")


def fused(text: str) -> str:
    stages = compile_stages(import_source(text), stop_after="fused", keep_stages=True)
    return str(stages.emit("fused"))


@pytest.mark.parametrize("text", [SCAN, CLAMPED])
def test_a_scan_over_numbers_is_one_kernel(text: str) -> None:
    assert fused(text).count("hlov.fusion") == 1
    assert 'kind = "computation"' in fused(text)


@pytest.mark.parametrize("text", [READ_AND_WRITTEN, EXCHANGED, WRITTEN_TWICE, BOTH_RESULTS])
def test_arrays_that_are_copied_stay_outside(text: str) -> None:
    assert 'kind = "computation"' not in fused(text)


@pytest.mark.parametrize(
    "text", [SCAN, CLAMPED, READ_AND_WRITTEN, EXCHANGED, WRITTEN_TWICE, BOTH_RESULTS]
)
def test_values(text: str) -> None:
    x, y = (RNG.integers(-9, 9, SIZE).astype(np.float32) for _ in range(2))
    for got, wanted in zip(gristmill.compile(text)(x, y), evaluate(text, x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_scan_against_numpy() -> None:
    x, y = (RNG.integers(-9, 9, SIZE).astype(np.float32) for _ in range(2))
    kept, sums, count, total = gristmill.compile(SCAN)(x, y)
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(sums, [*np.cumsum(x[:STEPS]), *y[STEPS:]])
    assert (count, total) == (STEPS, x[:STEPS].sum())


def test_small_arrays_that_are_kept_or_updated() -> None:
    """Beside values of several elements, in a kernel whose arrays are all small."""
    text = SCAN.replace(f"{SIZE}x", "40x").replace(f"dense<{STEPS}>", "dense<40>")
    x, y = (RNG.integers(-9, 9, 40).astype(np.float32) for _ in range(2))
    for got, wanted in zip(gristmill.compile(text)(x, y), evaluate(text, x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)
