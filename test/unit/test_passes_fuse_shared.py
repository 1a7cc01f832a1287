# SPDX-License-Identifier: Apache-2.0
"""Values that several clusters compute again, or read, wherever in the program these lie."""

from __future__ import annotations

import numpy as np

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source

#: Their operations are more than Python's own calls may nest.
LAYERS = 150


def run(text: str, *inputs: np.ndarray) -> list[np.ndarray]:
    """The results of a module."""
    compilation = compile_stages(import_source(text), host_target())
    with compilation.executable() as executable:
        results = executable(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def test_a_copy_may_read_what_another_copy_computes_itself() -> None:
    """The padded product computes the broadcast at places that it cannot follow through the reshape; the sum can."""
    text = """func.func @main(%w: tensor<4x128xf32>, %x: tensor<128x128xf32>)
        -> (tensor<128x128xf32>, tensor<131x128xf32>) {
      %row = stablehlo.slice %w [1:2, 0:128] : (tensor<4x128xf32>) -> tensor<1x128xf32>
      %flat = stablehlo.reshape %row : (tensor<1x128xf32>) -> tensor<128xf32>
      %all = stablehlo.broadcast_in_dim %flat, dims = [1] : (tensor<128xf32>) -> tensor<128x128xf32>
      %sum = stablehlo.add %all, %x : tensor<128x128xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %product = stablehlo.multiply %all, %x : tensor<128x128xf32>
      %padded = stablehlo.pad %product, %zero, low = [0, 0], high = [3, 0], interior = [0, 0]
          : (tensor<128x128xf32>, tensor<f32>) -> tensor<131x128xf32>
      return %sum, %padded : tensor<128x128xf32>, tensor<131x128xf32>
    }"""
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(s).astype(np.float32) for s in ((4, 128), (128, 128)))
    total, padded = run(text, w, x)
    np.testing.assert_array_equal(total, w[1] + x)
    np.testing.assert_array_equal(padded, np.pad(w[1] * x, ((0, 3), (0, 0))))


def test_a_value_that_every_layer_reads() -> None:
    """As an attention mask: whether it is read elsewhere must not be asked of all that follows, layer by layer."""
    kind = "tensor<8x16xi32>"
    layers = "\n".join(
        f"""%b{n} = stablehlo.add %v{n}, %bias : {kind}
        %m{n} = stablehlo.reduce(%b{n} init: %zero) applies stablehlo.add across dimensions = [1]
            : ({kind}, tensor<i32>) -> tensor<8xi32>
        %w{n} = stablehlo.broadcast_in_dim %m{n}, dims = [0] : (tensor<8xi32>) -> {kind}
        %v{n + 1} = stablehlo.subtract %w{n}, %b{n} : {kind}"""
        for n in range(LAYERS)
    )
    text = f"""func.func @main(%v0: {kind}, %mask: tensor<16xi1>) -> {kind} {{
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<i32>) -> tensor<16xi32>
        %far = stablehlo.constant dense<-9> : tensor<16xi32>
        %row = stablehlo.select %mask, %zeros, %far : tensor<16xi1>, tensor<16xi32>
        %bias = stablehlo.broadcast_in_dim %row, dims = [1] : (tensor<16xi32>) -> {kind}
        {layers}
        return %v{LAYERS} : {kind}
    }}"""
    rng = np.random.default_rng(0)
    value = rng.integers(-9, 9, (8, 16)).astype(np.int32)
    mask = rng.random(16) < 0.5
    expected = value
    for _ in range(LAYERS):
        expected = expected + np.where(mask, 0, -9).astype(np.int32)
        expected = expected.sum(1, keepdims=True, dtype=np.int32) - expected
    np.testing.assert_array_equal(run(text, value, mask)[0], expected)
