# SPDX-License-Identifier: Apache-2.0
"""Constants keep their values and, when large, the producer's memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir as source_ir

from gristmill.compiler.frontends import from_lowered, load_text
from gristmill.compiler.module import INLINE_CONSTANT_BYTES, constant_value
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ELEMENT_TYPES, element_type_of


def text_of(data: np.ndarray, element: str) -> str:
    kind = "x".join([*map(str, data.shape), element])
    raw = data.tobytes().hex().upper()
    return (
        f"func.func @main() -> tensor<{kind}> {{\n"
        f'  %0 = stablehlo.constant dense<"0x{raw}"> : tensor<{kind}>\n'
        f"  return %0 : tensor<{kind}>\n}}\n"
    )


def values(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(3)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    element = element_type_of(dtype)
    limit = 1 << min(element.bits, 8)
    bits = generator.integers(0, limit, (*shape, dtype.itemsize), np.uint8)
    return bits.view(dtype).reshape(shape)


def the_constant(text: str) -> tuple[np.ndarray, bool]:
    """The value of the only constant, and whether it is inline."""
    module = load_text(text)
    (block,) = module.function("main").regions[0].blocks
    (op,) = [op for op in block.operations if hlo.short_name(op) == "constant"]
    return constant_value(op, module.constants), not module.constants


@pytest.mark.parametrize("shape", [(3, 41), (50, 47)], ids=["small", "large"])
@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_bits_survive(name: str, shape: tuple[int, ...]):
    expected = values(ELEMENT_TYPES[name].dtype, shape)
    got, inline = the_constant(text_of(expected, name))
    assert got.dtype == expected.dtype
    assert got.tobytes() == expected.tobytes()
    assert inline == (expected.nbytes < INLINE_CONSTANT_BYTES)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("dense<7> : tensor<4xi32>", np.full(4, 7, np.int32)),
        ("dense<true> : tensor<3xi1>", np.ones(3, np.bool_)),
        ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
        ("dense<> : tensor<0x2xf32>", np.empty((0, 2), np.float32)),
        ("dense<0x7FC00000> : tensor<f32>", np.float32(np.nan)),
        ("dense<-0.0> : tensor<bf16>", np.array(-0.0, ml_dtypes.bfloat16)),
        ("dense<18446744073709551615> : tensor<ui64>", np.array(2**64 - 1, np.uint64)),
    ],
)
def test_small_forms(body: str, expected: np.ndarray):
    kind = body.rpartition(" : ")[2]
    got, inline = the_constant(
        f"func.func @main() -> {kind} {{ %0 = stablehlo.constant {body} return %0 : {kind} }}"
    )
    assert inline
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def test_a_large_splat_is_a_broadcast_scalar():
    kind = "tensor<300x4xf32>"
    module = load_text(
        f"func.func @main() -> {kind} {{ %0 = stablehlo.constant dense<2.5> : {kind} return %0 : {kind} }}"
    )
    text = str(module.module)
    assert not module.constants
    assert "value = dense<2.500000e+00> : tensor<f32>" in text
    assert (
        f'"hlo.broadcast_in_dim"(%0) {{dimensions = array<i64>}} : (tensor<f32>) -> {kind}' in text
    )


def test_equal_large_constants_share_one_array():
    data = text_of(values(np.dtype(np.float32), (300,)), "f32")
    constant = data.splitlines()[1]
    twice = data.replace(constant, constant + "\n" + constant.replace("%0", "%1"))
    assert list(load_text(twice).constants) == ["const0"]


@pytest.mark.parametrize("count", [2, 300])
def test_resources_are_read(count: int):
    expected = np.arange(count, dtype=np.int32)
    blob = (np.uint32(4).tobytes() + expected.tobytes()).hex()
    got, inline = the_constant(
        f"""func.func @main() -> tensor<{count}xi32> {{
          %0 = stablehlo.constant dense_resource<blob> : tensor<{count}xi32>
          return %0 : tensor<{count}xi32>
        }}
        {{-# dialect_resources: {{ builtin: {{ blob: "0x{blob}" }} }} #-}}"""
    )
    assert got.tolist() == expected.tolist()
    assert inline == (count == 2)


def test_a_resource_without_data_is_reported():
    with pytest.raises(UnsupportedError, match="does not hold the data of dense_resource<blob>"):
        load_text(
            """func.func @main() -> tensor<2xi32> {
              %0 = stablehlo.constant dense_resource<blob> : tensor<2xi32>
              return %0 : tensor<2xi32>
            }"""
        )


def dense_constants(lowered: Any) -> list[np.ndarray]:
    """The memory of the constants of a lowered JAX program."""
    held: list[np.ndarray] = []

    def visit(op: source_ir.Operation) -> source_ir.WalkResult:
        if op.name == "stablehlo.constant":
            held.append(np.frombuffer(memoryview(op.attributes["value"]), np.float32))
        return source_ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(visit)
    return held


def test_large_jax_constants_are_not_copied():
    jax = pytest.importorskip("jax")
    weights = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    lowered = jax.jit(lambda x: x @ weights).lower(np.ones((1, 512), np.float32))
    module = from_lowered(lowered)
    (imported,) = module.constants.values()
    np.testing.assert_array_equal(imported, weights)
    assert not imported.flags.writeable
    assert any(np.shares_memory(imported, array) for array in dense_constants(lowered))
    del lowered
    np.testing.assert_array_equal(imported, weights)
