# SPDX-License-Identifier: Apache-2.0
"""Programs for tests of the device runtime: compiled from StableHLO, with numpy's results beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.compiler.compile import import_source
from gristmill.compiler.compile_gpu import compile_gpu_stages
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import gpu_target
from gristmill.runtime.device_program import DeviceProgram

Array = np.ndarray[Any, Any]

#: tanh(a + b), and its row sums.
ROWS = """
func.func @main(%a: tensor<100x64xf32>, %b: tensor<64xf32>) -> (tensor<100x64xf32>, tensor<100xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %c = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<64xf32>) -> tensor<100x64xf32>
  %d = stablehlo.add %a, %c : tensor<100x64xf32>
  %e = stablehlo.tanh %d : tensor<100x64xf32>
  %r = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<100x64xf32>, tensor<f32>) -> tensor<100xf32>
  return %e, %r : tensor<100x64xf32>, tensor<100xf32>
}
"""

#: x doubled n times; the predicate is the device's.
DOUBLING = """
func.func @main(%n: tensor<i32>, %x: tensor<1000xf32>) -> tensor<1000xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<1000xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.add %s, %s : tensor<1000xf32>
    stablehlo.return %j, %t : tensor<i32>, tensor<1000xf32>
  }
  return %r#1 : tensor<1000xf32>
}
"""

#: One of three functions of x, by an index.
CHOICE = """
func.func @main(%i: tensor<i32>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %r = "stablehlo.case"(%i) ({
    %a = stablehlo.add %x, %x : tensor<8xf32>
    stablehlo.return %a : tensor<8xf32>
  }, {
    %b = stablehlo.multiply %x, %x : tensor<8xf32>
    stablehlo.return %b : tensor<8xf32>
  }, {
    %c = stablehlo.negate %x : tensor<8xf32>
    stablehlo.return %c : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}
"""

#: x + 1, which may take the memory of x.
INCREMENT = """
func.func @main(%x: tensor<5000xf32> {tf.aliasing_output = 0 : i32}) -> tensor<5000xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<5000xf32>
  %r = stablehlo.add %x, %one : tensor<5000xf32>
  return %r : tensor<5000xf32>
}
"""

#: (x @ w) @ w with a large constant w.
PRODUCTS = """
func.func @main(%x: tensor<16x32xf32>, %w: tensor<32x32xf32>) -> (tensor<16x32xf32>, tensor<16x32xf32>) {
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
    : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
    : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  return %b, %c : tensor<16x32xf32>, tensor<16x32xf32>
}
"""


def device_program(
    text: str, images: tuple[str, ...] = ("simulator",), chip: str = "sm_80", **options: Any
) -> DeviceProgram:
    """The program of StableHLO text."""
    chosen = CompileOptions(images=images, **options)
    return compile_gpu_stages(import_source(text), gpu_target(chip), options=chosen).program()


def random_array(*shape: int, seed: int = 0) -> Array:
    """Normal f32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
