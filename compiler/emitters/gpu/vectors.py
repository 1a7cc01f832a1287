# SPDX-License-Identifier: Apache-2.0
"""Vector accesses of GPU kernels, with the alignment that makes each of them one instruction."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, math, memref, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, type_bytes


def load(buffer: ir.Value, index: Sequence[Index], width: int) -> ir.Value:
    """``width`` neighbouring elements of a memref, aligned to their own size; a scalar when that is 1."""
    at = [build.index_value(i) for i in index]
    if width == 1:
        return memref.LoadOp(buffer, at).result
    kind = ir.VectorType.get([width], ir.MemRefType(buffer.type).element_type)
    return vector.LoadOp(kind, buffer, at, alignment=_alignment(kind)).result


def store(value: ir.Value, buffer: ir.Value, index: Sequence[Index]) -> None:
    """Store a vector, aligned to its own size, or a scalar."""
    at = [build.index_value(i) for i in index]
    if isinstance(value.type, ir.VectorType):
        vector.StoreOp(value, buffer, at, alignment=_alignment(value.type))
    else:
        memref.StoreOp(value, buffer, at)


def _alignment(kind: ir.VectorType) -> int:
    return min(BUFFER_ALIGNMENT, type_bytes(kind))


def element(value: ir.Value, number: int) -> ir.Value:
    """One element of a vector; a scalar itself."""
    if not isinstance(value.type, ir.VectorType):
        return value
    return vector.ExtractOp(value, [], [number]).result


def elements(value: ir.Value) -> list[ir.Value]:
    """The elements of a one-dimensional vector, or the scalar itself."""
    count = value.type.shape[0] if isinstance(value.type, ir.VectorType) else 1
    return [element(value, number) for number in range(count)]


def splat(value: ir.Value, width: int) -> ir.Value:
    """A vector with ``value`` everywhere; the scalar itself when ``width`` is 1."""
    if width == 1:
        return value
    return vector.BroadcastOp(ir.VectorType.get([width], value.type), value).result


def zero_like(kind: ir.Type) -> ir.Value:
    """Zero of a scalar or vector type."""
    scalar = kind.element_type if isinstance(kind, ir.VectorType) else kind
    zero = ir.IntegerAttr.get(scalar, 0) if _is_integer(scalar) else ir.FloatAttr.get(scalar, 0.0)
    if isinstance(kind, ir.VectorType):
        return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, zero)).result
    return arith.ConstantOp(kind, zero).result


def plus(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """The sum of two scalars or vectors."""
    make = arith.AddIOp if _is_integer(lhs.type) else arith.AddFOp
    return make(lhs, rhs).result


def multiply_add(lhs: ir.Value, rhs: ir.Value, total: ir.Value) -> ir.Value:
    """``lhs * rhs + total``, fused for floats; scalars or vectors."""
    if _is_integer(total.type):
        return arith.AddIOp(total, arith.MulIOp(lhs, rhs).result).result
    if isinstance(total.type, ir.VectorType):
        return vector.FMAOp(lhs, rhs, total).result
    return math.FmaOp(lhs, rhs, total).result


def _is_integer(kind: ir.Type) -> bool:
    scalar = kind.element_type if isinstance(kind, ir.VectorType) else kind
    return isinstance(scalar, ir.IntegerType)


def both(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Whether both conditions hold."""
    return arith.AndIOp(lhs, rhs).result


def from_elements(values: Sequence[ir.Value]) -> ir.Value:
    """A vector of scalars; the scalar itself when it is alone."""
    if len(values) == 1:
        return values[0]
    kind = ir.VectorType.get([len(values)], values[0].type)
    return vector.FromElementsOp(kind, list(values)).result
