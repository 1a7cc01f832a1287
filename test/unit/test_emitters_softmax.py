# SPDX-License-Identifier: Apache-2.0
"""Rows of a softmax: quotients are correctly rounded, NaN and masked elements come out as they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.options import CompileOptions

_LINES = """  %m = stablehlo.reduce(%x init: %i) applies stablehlo.maximum across dimensions = [1]
    : (tensor<{n}x{c}xf32>, tensor<f32>) -> tensor<{n}xf32>
  %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<{n}xf32>) -> tensor<{n}x{c}xf32>
  %s = stablehlo.subtract %x, %b : tensor<{n}x{c}xf32>
  %e = stablehlo.exponential %s : tensor<{n}x{c}xf32>
  %t = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<{n}x{c}xf32>, tensor<f32>) -> tensor<{n}xf32>
  %u = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<{n}xf32>) -> tensor<{n}x{c}xf32>
  %v = stablehlo.divide %e, %u : tensor<{n}x{c}xf32>
"""

_PROGRAM = (
    """
func.func @main(%x: tensor<{n}x{c}xf32>) -> (tensor<{n}x{c}xf32>, tensor<{n}xf32>, tensor<{n}x{c}xf32>) {{
  %i = stablehlo.constant dense<{start}> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
"""
    + _LINES
    + """  return %e, %t, %v : tensor<{n}x{c}xf32>, tensor<{n}xf32>, tensor<{n}x{c}xf32>
}}"""
)

_MINUS_INFINITY = "0xFF800000"


def _rows(columns: int) -> np.ndarray:
    """Rows of every kind: usual ones, all positive or negative, at and beyond the limit, masked, with NaN or inf."""
    random = np.random.default_rng(5)
    x = random.standard_normal((200, columns)) * 10.0 ** random.integers(-4, 3, (200, 1))
    x[20:40] = np.abs(x[20:40])
    x[40:60] = -np.abs(x[40:60])
    x[60:80] = random.uniform(-68.9, 0, (20, columns)) + random.uniform(-50, 50, (20, 1))
    x[80:100] = random.uniform(-110, 0, (20, columns))
    x[100:110, ::3] = -np.inf
    x[110:112] = -np.inf
    x[112:114, columns // 2] = np.nan
    x[114:116, -1] = np.inf
    x[116:118] = 0.0
    x[118:120] = -0.0
    x[120, :] = -np.nan
    x[121:125, :5] = 88
    return x.astype(np.float32)


@pytest.mark.parametrize("columns", [1000, 1024, 24])
@pytest.mark.parametrize("start", [_MINUS_INFINITY, "0.0", "0x7FC00000"])
def test_quotients_are_rounded_correctly(columns: int, start: str) -> None:
    x = _rows(columns)
    text = _PROGRAM.format(n=len(x), c=columns, start=start)
    powers, sums, quotients = gristmill.compile(text, options=CompileOptions(cache=False))(x)
    with np.errstate(all="ignore"):
        want = powers / sums[:, None]
    np.testing.assert_array_equal(quotients, want)
    assert not np.signbit(quotients[~np.isnan(quotients)]).any()
    assert np.isnan(powers[112:114]).all()  # the maximum is NaN


_SOFTMAX = (
    """
func.func @main(%a: tensor<{n}x{c}xf32>, %w: tensor<{n}x{c}xf32>) -> tensor<{n}x{c}xf32> {{
  %i = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %x = {x}
"""
    + _LINES
    + """  return %v : tensor<{n}x{c}xf32>
}}"""
)


def _softmax(columns: int, *, computed: bool) -> str:
    """The softmax of the rows of an argument, or of a sum."""
    kind = f"tensor<200x{columns}xf32>"
    x = f"stablehlo.reshape %a : ({kind}) -> {kind}"
    if computed:
        x = f"stablehlo.add %a, %w : {kind}"
    return _SOFTMAX.format(n=200, c=columns, x=x)


@pytest.mark.parametrize("columns", [1024, 1000, 96])
@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize("start", [_MINUS_INFINITY, "-1.0e30"])
def test_softmax_alone(columns: int, computed: bool, start: str) -> None:
    """Where only the quotients are read: against numpy in f64, on rows of every kind."""
    x, text = _rows(columns), _softmax(columns, computed=computed)
    text = text.replace(_MINUS_INFINITY, start)
    got = gristmill.compile(text, options=CompileOptions(cache=False))(x, np.zeros_like(x))
    with np.errstate(all="ignore"):
        shifted = x - np.maximum(
            x.max(axis=1, keepdims=True), np.float32(start.replace(_MINUS_INFINITY, "-inf"))
        )
        powers = np.exp(shifted.astype(np.float64))
        want = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=4e-7, atol=1.5e-45)
    assert np.isnan(want[112:116]).all()


_FINITE = """%f = stablehlo.is_finite %m : (tensor<200xf32>) -> tensor<200xi1>
  %y = stablehlo.constant dense<0.0> : tensor<200xf32>
  %o = stablehlo.select %f, %m, %y : tensor<200xi1>, tensor<200xf32>
  %b = stablehlo.broadcast_in_dim %o"""


@pytest.mark.parametrize("columns", [1024, 1000])
@pytest.mark.parametrize("maximum_too", [True, False])
@pytest.mark.parametrize("finite", [True, False])
def test_logarithm_of_the_sum(columns: int, maximum_too: bool, finite: bool) -> None:
    """log Σ e^x without and with the maximum beside it, which then must be NaN where an element is.

    Where a maximum that is not ``finite`` is replaced by 0, infinity comes out.
    """
    x, text = _rows(columns), _softmax(columns, computed=False)
    if finite:
        text = text.replace("%b = stablehlo.broadcast_in_dim %m", _FINITE)
    before, _ = text.split("  %u =")
    logarithm = (
        "  %l = stablehlo.log %t : tensor<200xf32>\n  %r = stablehlo.add %l, %m : tensor<200xf32>\n"
    )
    kinds = ["tensor<200xf32>"] * (2 if maximum_too else 1)
    names = ["%r", "%m"][: len(kinds)]
    before = before.replace(f"-> tensor<200x{columns}xf32> {{", f"-> ({', '.join(kinds)}) {{", 1)
    text = f"{before}{logarithm}  return {', '.join(names)} : {', '.join(kinds)}\n}}"
    got = gristmill.compile(text, options=CompileOptions(cache=False))(x, x)
    largest = x.max(axis=1)
    with np.errstate(all="ignore"):
        top = np.where(np.isfinite(largest), largest, 0) if finite else largest
        powers = np.exp((x - top[:, None]).astype(np.float64))
        want = np.log(powers.sum(axis=1)) + top
    if maximum_too:
        got, maxima = got
        np.testing.assert_array_equal(maxima, largest)
    np.testing.assert_allclose(got, want, rtol=4e-7, atol=1e-6)


@pytest.mark.parametrize("l2_bytes", [4096, 1 << 20])
def test_a_sum_that_starts_at_one(l2_bytes: int) -> None:
    """e^x / (1 + Σ e^x), past the caches and not: against numpy in f64."""
    x = np.random.default_rng(6).standard_normal((200, 1024)).astype(np.float32)
    text = _softmax(1024, computed=False).replace("dense<0.0>", "dense<1.0>")
    target = replace(host_target(), l2_bytes=l2_bytes, l3_bytes=2 * l2_bytes)
    got = compile_stages(import_source(text), target).executable()(x, x)
    powers = np.exp((x - x.max(axis=1, keepdims=True)).astype(np.float64))
    want = powers / (1 + powers.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(got, want, rtol=4e-7)


@pytest.mark.parametrize("columns", [1024, 512, 544])
@pytest.mark.parametrize("offset", [0, 4])
def test_softmax_past_the_caches(columns: int, offset: int) -> None:
    """As vectors where the output is aligned for that, else as ordinary: the same either way."""
    x = _rows(columns)
    text = _softmax(columns, computed=False)
    small = replace(host_target(), l2_bytes=4096, l3_bytes=8192)
    compilation = compile_stages(import_source(text), small, keep_stages=True)
    assert "nontemporal" in str(compilation.emit("kernels"))
    raw = np.zeros(x.nbytes + 128, np.uint8)
    first = -raw.ctypes.data % 64 + offset
    out = raw[first : first + x.nbytes].view(np.float32).reshape(x.shape)
    compilation.executable()(x, x, out=out)
    want = gristmill.compile(text, options=CompileOptions(cache=False))(x, x)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("start", "both"), [(_MINUS_INFINITY, True), ("0.0", False)])
def test_rows_are_divided_where_need_be(start: str, both: bool) -> None:
    """Two forms of the last pass; one, with a division, where the least element is not found with the largest."""
    text = _PROGRAM.format(n=64, c=1024, start=start)
    options = CompileOptions(cache=False)
    kernels = gristmill.compile_stages(text, options=options, keep_stages=True).emit("kernels")
    last = kernels[kernels.rindex("arith.addf") :]
    assert ("scf.if" in last) == both
    assert last.count("arith.divf") == (2 if both else 1)
