# SPDX-License-Identifier: Apache-2.0
"""Typed builders of common ``hlo`` ops with inferred result types.

Every function creates one op at the current insertion point, with the current location, and returns
its (first) result. Shapes are in elements, dimensions count from 0. Operands must already fit:
builders infer, the verifier checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor, mlir_type, tensor


def _one(
    name: str,
    result: Tensor | ir.Type,
    operands: Sequence[ir.Value],
    **attributes: hlo.AttributeValue,
) -> ir.Value:
    kind = mlir_type(result) if isinstance(result, Tensor) else result
    return hlo.build(name, [kind], operands, loc=None, ip=None, **attributes).results[0]


def unary(name: str, operand: ir.Value) -> ir.Value:
    """The elementwise op ``name`` whose result has the operand's type, for example ``"negate"``."""
    return _one(name, operand.type, [operand])


def binary(name: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """The elementwise op ``name`` whose result has the operands' type, for example ``"add"``."""
    return _one(name, lhs.type, [lhs, rhs])


def add(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs + rhs``."""
    return binary("add", lhs, rhs)


def subtract(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs - rhs``."""
    return binary("subtract", lhs, rhs)


def multiply(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs * rhs``."""
    return binary("multiply", lhs, rhs)


def divide(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs / rhs``."""
    return binary("divide", lhs, rhs)


def negate(operand: ir.Value) -> ir.Value:
    """``-operand``."""
    return unary("negate", operand)


def convert(operand: ir.Value, element: str) -> ir.Value:
    """``operand`` with element type ``element`` (an MLIR spelling such as ``bf16``)."""
    return _one("convert", tensor(operand).with_element(element), [operand])


def part(operand: ir.Value, which: str) -> ir.Value:
    """The ``real`` or ``imag`` part of a complex value."""
    kind = tensor(operand)
    return _one(which, kind.with_element(kind.element[len("complex<") : -1]), [operand])


def complex_(real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """The complex value of two parts."""
    kind = tensor(real)
    return _one("complex", kind.with_element(f"complex<{kind.element}>"), [real, imaginary])


def compare(
    lhs: ir.Value, rhs: ir.Value, direction: str, *, compare_type: str | None = None
) -> ir.Value:
    """Elementwise comparison; ``direction`` is EQ, NE, GE, GT, LE or LT.

    ``compare_type`` defaults to what the element type calls for: FLOAT, SIGNED or UNSIGNED.
    """
    kind = tensor(lhs)
    if compare_type is None:
        unsigned = kind.is_unsigned or kind.is_pred
        compare_type = (
            "FLOAT" if kind.is_float or kind.is_complex else "UNSIGNED" if unsigned else "SIGNED"
        )
    return _one(
        "compare", kind.with_element("i1"), [lhs, rhs], direction=direction, type=compare_type
    )


def select(pred: ir.Value, on_true: ir.Value, on_false: ir.Value) -> ir.Value:
    """``on_true`` where ``pred``, else ``on_false``."""
    return _one("select", on_true.type, [pred, on_true, on_false])


def constant(value: ir.Attribute, kind: Tensor | None = None) -> ir.Value:
    """A constant of an elements attribute: ``dense<…>`` or ``dense_resource<…>``.

    ``kind`` is needed for complex constants, whose inline value has another type: pairs of real numbers.
    """
    return _one("constant", value.type if kind is None else kind, [], value=value)


def scalar(value: float | bool, element: str) -> ir.Value:
    """A rank-0 constant of element type ``element``."""
    kind = ir.Type.parse(element)
    item: ir.Attribute
    if Tensor((), element).is_float:
        item = ir.FloatAttr.get(kind, float(value))
    elif element == "i1":
        item = ir.BoolAttr.get(bool(value))
    else:
        # The binding takes 64-bit signed values: an unsigned one of the upper half is given by its bits.
        bits = int(value)
        item = ir.IntegerAttr.get(kind, bits - (1 << 64) if bits >= 1 << 63 else bits)
    ranked = ir.RankedTensorType.get([], kind)
    return _one("constant", ranked, [], value=ir.DenseElementsAttr.get_splat(ranked, item))


def splat(value: float | bool, record: Tensor) -> ir.Value:
    """``value`` in every element: a rank-0 constant, broadcast when the shape has dimensions."""
    item = scalar(value, record.element)
    return broadcast_in_dim(item, record.shape, []) if record.shape else item


def iota(record: Tensor, dimension: int) -> ir.Value:
    """0, 1, 2, … along ``dimension``."""
    return _one("iota", record, [], dimension=dimension)


def broadcast_in_dim(
    operand: ir.Value, shape: Sequence[int], dimensions: Sequence[int]
) -> ir.Value:
    """``operand`` broadcast to ``shape``; its dimension i becomes dimension ``dimensions[i]``."""
    record = tensor(operand).with_shape(tuple(shape))
    return _one("broadcast_in_dim", record, [operand], dimensions=dimensions)


def reshape(operand: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The same elements in row-major order under another shape."""
    return _one("reshape", tensor(operand).with_shape(tuple(shape)), [operand])


def transpose(operand: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Result dimension i is operand dimension ``permutation[i]``."""
    kind = tensor(operand)
    shape = tuple(kind.shape[d] for d in permutation)
    return _one("transpose", kind.with_shape(shape), [operand], permutation=permutation)


def slice_(
    operand: ir.Value,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> ir.Value:
    """Elements ``start, start + stride, … < limit`` of every dimension; strides default to 1."""
    steps = list(strides) if strides is not None else [1] * len(start_indices)
    shape = tuple(
        max(0, -(-(limit - start) // step))
        for start, limit, step in zip(start_indices, limit_indices, steps, strict=True)
    )
    return _one(
        "slice",
        tensor(operand).with_shape(shape),
        [operand],
        start_indices=start_indices,
        limit_indices=limit_indices,
        strides=steps,
    )


def reverse(operand: ir.Value, dimensions: Sequence[int]) -> ir.Value:
    """``operand`` with the order of elements reversed along ``dimensions``."""
    return _one("reverse", operand.type, [operand], dimensions=dimensions)


def pad(
    operand: ir.Value,
    padding_value: ir.Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> ir.Value:
    """``operand`` with padding before, after and between its elements; negative edges crop."""
    kind = tensor(operand)
    inner = list(interior) if interior is not None else [0] * kind.rank
    shape = tuple(
        lo + size + max(size - 1, 0) * gap + hi
        for size, lo, hi, gap in zip(kind.shape, low, high, inner, strict=True)
    )
    return _one(
        "pad", kind.with_shape(shape), [operand, padding_value], low=low, high=high, interior=inner
    )


def concatenate(inputs: Sequence[ir.Value], dimension: int) -> ir.Value:
    """The inputs one after the other along ``dimension``."""
    kinds = [tensor(value) for value in inputs]
    shape = list(kinds[0].shape)
    shape[dimension] = sum(kind.shape[dimension] for kind in kinds)
    return _one("concatenate", kinds[0].with_shape(shape), inputs, dimension=dimension)


def dot_general(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    lhs_batching_dimensions: Sequence[int] = (),
    rhs_batching_dimensions: Sequence[int] = (),
    lhs_contracting_dimensions: Sequence[int],
    rhs_contracting_dimensions: Sequence[int],
    element: str | None = None,
    **optional: hlo.AttributeValue,
) -> ir.Value:
    """The generalised matrix product: batch dimensions, free dimensions of lhs, then of rhs.

    ``element`` is the result's element type (default: that of ``lhs``); ``optional`` may hold
    ``precision`` and ``algorithm``.
    """
    left, right = tensor(lhs), tensor(rhs)
    shape = [left.shape[d] for d in lhs_batching_dimensions]
    shape += _free(left, lhs_batching_dimensions, lhs_contracting_dimensions)
    shape += _free(right, rhs_batching_dimensions, rhs_contracting_dimensions)
    return _one(
        "dot_general",
        Tensor(tuple(shape), element or left.element),
        [lhs, rhs],
        lhs_batching_dimensions=lhs_batching_dimensions,
        rhs_batching_dimensions=rhs_batching_dimensions,
        lhs_contracting_dimensions=lhs_contracting_dimensions,
        rhs_contracting_dimensions=rhs_contracting_dimensions,
        **optional,
    )


def reduce(
    inputs: Sequence[ir.Value],
    initial_values: Sequence[ir.Value],
    dimensions: Sequence[int],
    to_apply: str,
    captures: Sequence[ir.Value] = (),
) -> list[ir.Value]:
    """Reduce ``dimensions`` of the inputs with the outlined function ``to_apply``."""
    results = [
        mlir_type(
            Tensor(
                tuple(size for d, size in enumerate(tensor(value).shape) if d not in dimensions),
                tensor(initial).element,
            )
        )
        for value, initial in zip(inputs, initial_values, strict=True)
    ]
    operands = [*inputs, *initial_values, *captures]
    op = hlo.build("reduce", results, operands, dimensions=dimensions, to_apply=to_apply)
    return list(op.results)


def _free(kind: Tensor, batching: Sequence[int], contracting: Sequence[int]) -> list[int]:
    used = {*batching, *contracting}
    return [size for d, size in enumerate(kind.shape) if d not in used]
