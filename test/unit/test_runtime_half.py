# SPDX-License-Identifier: Apache-2.0
"""Code for CPUs that convert no halves: the expected values are numpy's."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

import gristmill
from gristmill.compiler.codegen.testing import run_phase
from gristmill.compiler.target import Target
from gristmill.runtime import knobs
from gristmill.runtime.llvm.target import default_triple

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="every other architecture's CPUs convert halves"
)

Array = np.ndarray[Any, Any]

CONVERT = """
func.func @convert(%a: memref<{n}x{source}>, %r: memref<{n}x{result}>, %w: memref<64xi8>, %s: memref<64xi8>,
                   %b: index, %e: index) {{
  %c1 = arith.constant 1 : index
  scf.for %i = %b to %e step %c1 {{
    %x = memref.load %a[%i] : memref<{n}x{source}>
    %y = arith.{operation} %x : {source} to {result}
    memref.store %y, %r[%i] : memref<{n}x{result}>
  }}
  return
}}
"""

ARGMAX = """
func.func @main(%x: tensor<5x19xf16>) -> tensor<5xi32> {
  %i = stablehlo.iota dim = 1 : tensor<5x19xi32>
  %low = stablehlo.constant dense<0xFC00> : tensor<f16>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.reduce(%x init: %low), (%i init: %zero) across dimensions = [1]
      : (tensor<5x19xf16>, tensor<5x19xi32>, tensor<f16>, tensor<i32>) -> (tensor<5xf16>, tensor<5xi32>)
      reducer(%a: tensor<f16>, %c: tensor<f16>) (%b: tensor<i32>, %d: tensor<i32>) {
    %gt = stablehlo.compare GT, %a, %c, FLOAT : (tensor<f16>, tensor<f16>) -> tensor<i1>
    %nan = stablehlo.compare NE, %a, %a, FLOAT : (tensor<f16>, tensor<f16>) -> tensor<i1>
    %first = stablehlo.or %gt, %nan : tensor<i1>
    %eq = stablehlo.compare EQ, %a, %c, FLOAT : (tensor<f16>, tensor<f16>) -> tensor<i1>
    %lt = stablehlo.compare LT, %b, %d, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %tie = stablehlo.and %eq, %lt : tensor<i1>
    %take = stablehlo.or %first, %tie : tensor<i1>
    %value = stablehlo.select %first, %a, %c : tensor<i1>, tensor<f16>
    %index = stablehlo.select %take, %b, %d : tensor<i1>, tensor<i32>
    stablehlo.return %value, %index : tensor<f16>, tensor<i32>
  }
  return %r#1 : tensor<5xi32>
}
"""

ELEMENTWISE = """
func.func @main(%x: tensor<64xELEMENT>) -> (tensor<64xELEMENT>, tensor<64xELEMENT>, tensor<64xELEMENT>) {
  %e = stablehlo.exponential %x : tensor<64xELEMENT>
  %f = stablehlo.floor %x : tensor<64xELEMENT>
  %r = stablehlo.round_nearest_even %x : tensor<64xELEMENT>
  return %e, %f, %r : tensor<64xELEMENT>, tensor<64xELEMENT>, tensor<64xELEMENT>
}
"""


def converted(values: Array, dtype: type[np.floating[Any]], operation: str) -> Array:
    """What code for the first x86-64 CPUs makes of ``values``."""
    kinds = {np.dtype(np.float16): "f16", np.dtype(np.float32): "f32"}
    text = CONVERT.format(
        n=values.size,
        source=kinds[values.dtype],
        result=kinds[np.dtype(dtype)],
        operation=operation,
    )
    result = np.zeros(values.shape, dtype)
    oldest = Target(default_triple(), "x86-64", "", vector_bytes=16, fma=False)
    run_phase(text, "convert", [values, result], end=values.size, target=oldest)
    return result


def same_numbers(found: Array, expected: Array) -> None:
    """Equal bits; of NaNs, of which there are many, the sign."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    np.testing.assert_array_equal(found, expected)


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def test_every_half_becomes_a_float() -> None:
    found = converted(HALVES, np.float32, "extf")
    same_numbers(found, HALVES.astype(np.float32))
    quiet = found.view(np.uint32)[np.isnan(found)] & 0x400000
    assert quiet.all()


def test_floats_become_the_nearest_half() -> None:
    """All halves, the middles between them, what is next to either, and floats of all magnitudes."""
    with np.errstate(all="ignore"):
        exact = np.sort(np.unique(HALVES[np.isfinite(HALVES)].astype(np.float32)))
        middles = (exact[1:] + exact[:-1]) / 2
        edges = np.array([65519.996, 65520, 65520.004, 3e38, np.inf, np.nan, 1e-45, 2**-25], "f4")
        points = np.concatenate([exact, middles, edges, -edges])
        near = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
        any_bits = np.random.default_rng(0).integers(0, 1 << 32, 50_000, np.uint64)
        values = np.concatenate([points, *near, any_bits.astype(np.uint32).view(np.float32)])
        same_numbers(converted(values, np.float16, "truncf"), values.astype(np.float16))


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2"])
def test_argmax_of_halves(cpu: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 19)).astype(np.float16)
    x[2, 7] = np.nan
    with knobs.CPU.scope(cpu), gristmill.compile(ARGMAX) as executable:
        np.testing.assert_array_equal(executable(x), x.argmax(1))


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2"])
@pytest.mark.parametrize("element", [np.float16, np.float32, np.float64])
def test_functions_without_instructions_for_them(cpu: str, element: type[Any]) -> None:
    """Fused multiply-add, and rounding before SSE4.1, come from the C library."""
    x = np.linspace(-5, 5, 64).astype(element)
    text = ELEMENTWISE.replace("ELEMENT", f"f{8 * x.itemsize}")
    with knobs.CPU.scope(cpu), gristmill.compile(text) as executable:
        exponential, floor, rounded = executable(x)
    np.testing.assert_allclose(exponential, np.exp(x), rtol=2 * float(np.finfo(element).eps))
    np.testing.assert_array_equal(floor, np.floor(x))
    np.testing.assert_array_equal(rounded, np.round(x))
