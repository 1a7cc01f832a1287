# SPDX-License-Identifier: Apache-2.0
"""Builders infer the result types that the verifier demands; type records say what MLIR says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mlir import ir

from gristmill.compiler.module import elements_from_numpy, elements_to_numpy, make_context
from gristmill.dialects import builders
from gristmill.dialects.types import Tensor, converts_exactly, mlir_type, parse_tensor, tensor
from gristmill.dialects.verify import verify_module
from gristmill.runtime.types import element_type

Value = ir.Value

CASES: list[tuple[str, Callable[[Value, Value], Value], str]] = [
    ("add", builders.add, "tensor<2x3xf32>"),
    ("compare", lambda x, y: builders.compare(x, y, "LT"), "tensor<2x3xi1>"),
    ("select", lambda x, y: builders.select(builders.compare(x, y, "EQ"), x, y), "tensor<2x3xf32>"),
    ("convert", lambda x, y: builders.convert(x, "bf16"), "tensor<2x3xbf16>"),
    ("reshape", lambda x, y: builders.reshape(x, [6]), "tensor<6xf32>"),
    ("transpose", lambda x, y: builders.transpose(x, [1, 0]), "tensor<3x2xf32>"),
    (
        "broadcast",
        lambda x, y: builders.broadcast_in_dim(x, [4, 2, 3], [1, 2]),
        "tensor<4x2x3xf32>",
    ),
    ("slice", lambda x, y: builders.slice_(x, [0, 0], [2, 3], [1, 2]), "tensor<2x2xf32>"),
    ("reverse", lambda x, y: builders.reverse(x, [0]), "tensor<2x3xf32>"),
    (
        "pad",
        lambda x, y: builders.pad(x, builders.scalar(0.0, "f32"), [1, 0], [0, -1], [0, 2]),
        "tensor<3x6xf32>",
    ),
    ("concatenate", lambda x, y: builders.concatenate([x, y, x], 0), "tensor<6x3xf32>"),
    (
        "dot_general",
        lambda x, y: builders.dot_general(
            x,
            y,
            lhs_contracting_dimensions=[1],
            rhs_contracting_dimensions=[1],
            precision="HIGHEST,HIGHEST",
        ),
        "tensor<2x2xf32>",
    ),
    (
        "batched dot",
        lambda x, y: builders.dot_general(
            x,
            y,
            lhs_batching_dimensions=[0],
            rhs_batching_dimensions=[0],
            lhs_contracting_dimensions=[1],
            rhs_contracting_dimensions=[1],
            element="f64",
        ),
        "tensor<2xf64>",
    ),
    ("iota", lambda x, y: builders.iota(Tensor((2, 3), "i32"), 1), "tensor<2x3xi32>"),
    ("splat", lambda x, y: builders.splat(1, Tensor((2, 3), "ui8")), "tensor<2x3xui8>"),
    ("scalar", lambda x, y: builders.scalar(True, "i1"), "tensor<i1>"),
    (
        "reduce",
        lambda x, y: builders.reduce([x], [builders.scalar(0.0, "f32")], [0], "sum")[0],
        "tensor<3xf32>",
    ),
]

PROGRAM = """
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) { return }
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
"""


@pytest.mark.parametrize(
    ("build", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_inferred_types_verify(build: Callable[[Value, Value], Value], expected: str) -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(PROGRAM)
        block = module.body.operations[0].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_terminator(block):
            value = build(block.arguments[0], block.arguments[1])
        assert str(value.type) == expected
        assert module.operation.verify()
        verify_module(module)


def test_constant_keeps_its_elements() -> None:
    data = np.array([[1.5, -0.0], [np.inf, 2.0]])
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse("module {}")
        with ir.InsertionPoint(module.body):
            value = builders.constant(elements_from_numpy(data, element_type("bf16")))
        assert str(value.type) == "tensor<2x2xbf16>"
        read = elements_to_numpy(value.owner.attributes["value"])
    np.testing.assert_array_equal(read.astype(np.float64), data)


@pytest.mark.parametrize(
    "text",
    [
        "tensor<f32>",
        "tensor<4x8xbf16>",
        "tensor<0x3xui8>",
        "tensor<2xcomplex<f32>>",
        "tensor<1xi1>",
    ],
)
def test_type_records_round_trip(text: str) -> None:
    record = parse_tensor(text)
    assert record is not None
    assert str(record) == text
    with make_context():
        assert mlir_type(record) == ir.Type.parse(text)
        assert tensor(ir.Type.parse(text)) == record


@pytest.mark.parametrize(
    "text", ["tensor<?xf32>", "tensor<*xf32>", "f32", "memref<2xf32>", "tensor<2xf32, 1 : i32>"]
)
def test_other_types_have_no_record(text: str) -> None:
    assert parse_tensor(text) is None


NUMPY = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


@pytest.mark.parametrize("source", NUMPY)
@pytest.mark.parametrize("target", NUMPY)
def test_exact_conversions_lose_no_value(source: str, target: str) -> None:
    """numpy's ``can_cast`` answers the same question, but for f16, whose range it takes for too small."""
    expected = np.can_cast(NUMPY[source], NUMPY[target], "safe")
    if source in ("i64", "ui64", "i32", "ui32") and target.startswith("f"):
        bits = Tensor((), source).bits - source.startswith("i")
        expected = bits <= {"f16": 11, "f32": 24, "f64": 53}[target]
    assert converts_exactly(source, target) == expected
