# SPDX-License-Identifier: Apache-2.0
"""The simulator: kernels of a ``gpu.module`` compute on the CPU what a GPU would, in every order of threads."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_support import compile_for_gpu, run_on_simulator

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

COUNT = """
func.func @main(%n: tensor<i32>) -> tensor<i32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %zero) : tensor<i32>, tensor<i32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.add %s, %j : tensor<i32>
    stablehlo.return %j, %t : tensor<i32>, tensor<i32>
  }
  return %r#1 : tensor<i32>
}
"""


@pytest.mark.parametrize("order", [0, 1, 6, 31])
def test_elementwise_and_row_reduction(order: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((100, 64)).astype(np.float32)
    b = rng.standard_normal(64).astype(np.float32)
    full, sums = run_on_simulator(ROWS, a, b, order=order)
    expected = np.tanh(a.astype(np.float64) + b)
    np.testing.assert_allclose(full, expected, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(sums, expected.sum(1), rtol=1e-5, atol=1e-5)


def test_loops() -> None:
    (total,) = run_on_simulator(COUNT, np.int32(10))
    assert total == 55


def test_vectors_in_ptx() -> None:
    program = compile_for_gpu(
        "func.func @main(%a: tensor<4194304xf32>) -> tensor<4194304xf32> {"
        "%0 = stablehlo.add %a, %a : tensor<4194304xf32> return %0 : tensor<4194304xf32> }"
    )
    ptx = program.ptx()
    assert "ld.global" in ptx
    assert ".v4" in ptx
    assert "st.global.v4" in ptx
