# SPDX-License-Identifier: Apache-2.0
"""The simulator's rules for matrix operations of a warp: ``ldmatrix``, ``mma.sync`` and the conversion to ``tf32``.

A lane holds *fragments*: a few 4-byte registers of ``p`` elements each (``p`` is 4 divided by the bytes of one). With
``g = lane / 4`` and ``t = lane % 4``, PTX ISA ("Matrix fragments for mma.m16n8k8", "… m16n8k16", "… m16n8k32") places

====== =========== =====================================================================
matrix shape       register ``i``, element ``e``
====== =========== =====================================================================
A      16 × ``8p`` row ``g + 8 (i % 2)``, column ``p t + e + 4p (i / 2)``
B      ``8p`` × 8  row ``p t + e + 4p i``, column ``g``
C, D   16 × 8      row ``g + 8 i``, column ``2 t + e`` (two registers' worth of two sums)
====== =========== =====================================================================

The order in which the products are added is not specified there; here it is along ``k``, each step rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mlir import ir
from mlir.dialects import arith, vector

#: Lanes that hold one row of A (one column of B).
_QUAD = 4

#: Bytes of what one lane reads for ``ldmatrix``.
_ROW_BYTES = 16


class Warp(Protocol):
    """What the rules need of the thread being converted."""

    def exchange(self, values: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Show values to the warp; returns a function from a lane to that lane's values."""
        ...

    def lane(self) -> ir.Value:
        """The thread's number in its warp, i64."""
        ...


def ldmatrix(thread: Warp, op: ir.Operation) -> list[ir.Value]:
    """PTX ISA, "Warp-level matrix load instruction: ldmatrix".

    Lane ``l`` reads row ``l % 8`` of 8 by 16-byte matrix ``l / 8``; then each lane gets, of every matrix, the 4 bytes
    of row ``g`` from ``4 t`` on; transposed, the 16-bit elements ``2 t`` and ``2 t + 1`` of column ``g``.
    """
    result = ir.VectorType(op.results[0].type)
    count, per_register = result.shape
    element = result.element_type
    buffer, *index = op.operands
    lanes = ir.VectorType.get([_ROW_BYTES // (4 // per_register)], element)
    row = vector.LoadOp(lanes, buffer, index).result
    of_lane = thread.exchange([row])
    group, within = _split(thread.lane())
    transpose = ir.BoolAttr(op.attributes["transpose"]).value
    registers: list[ir.Value] = []
    for matrix in range(count):
        if transpose:
            rows = [_plus(_times(within, 2), 8 * matrix + e) for e in range(2)]
            parts = [_element(of_lane(r)[0], group) for r in rows]
        else:
            (data,) = of_lane(_plus(group, 8 * matrix))
            first = _times(within, per_register)
            parts = [_element(data, _plus(first, e)) for e in range(per_register)]
        registers += parts
    return [vector.FromElementsOp(result, registers).result]


def mma(thread: Warp, op: ir.Operation) -> list[ir.Value]:
    """PTX ISA, "Warp-level matrix multiply-and-accumulate instruction: mma" (see the module docstring)."""
    a, b, c = op.operands
    kind = ir.VectorType(c.type)
    p = ir.VectorType(a.type).shape[1]
    of_lane = thread.exchange([_flat(a), _flat(b)])
    group, within = _split(thread.lane())
    quads = [_plus(_times(group, _QUAD), t) for t in range(_QUAD)]
    rows = [of_lane(lane)[0] for lane in quads]
    results: list[ir.Value] = []
    columns: list[list[ir.Value]] = []
    for e in range(2):
        column = _plus(_times(within, 2), e)
        columns.append([of_lane(_plus(_times(column, _QUAD), t))[1] for t in range(_QUAD)])
    for half in range(2):
        for e in range(2):
            total = vector.ExtractOp(c, [], [half, e]).result
            for k_half in range(2):
                for t in range(_QUAD):
                    left = _part(rows[t], (2 * k_half + half) * p, p, kind.element_type)
                    right = _part(columns[e][t], k_half * p, p, kind.element_type)
                    total = _accumulate(total, left, right)
            results.append(total)
    return [vector.FromElementsOp(kind, results).result]


def to_tf32(thread: Warp, op: ir.Operation) -> list[ir.Value]:
    """PTX ISA, ``cvt.rna.tf32.f32``: to nearest, halves away from zero; the low 13 bits are zero."""
    i32 = ir.IntegerType.get_signless(32)
    value = op.operands[0]
    bits = arith.BitcastOp(i32, value).result
    rounded = arith.AddIOp(bits, _constant(i32, 0x1000)).result
    number = arith.CmpFOp(arith.CmpFPredicate.ORD, value, value).result
    kept = arith.SelectOp(number, rounded, bits).result
    return [arith.AndIOp(kept, _constant(i32, -0x2000)).result]


def _accumulate(total: ir.Value, left: Sequence[ir.Value], right: Sequence[ir.Value]) -> ir.Value:
    is_integer = isinstance(total.type, ir.IntegerType)
    for a, b in zip(left, right, strict=True):
        if is_integer:
            total = arith.AddIOp(total, arith.MulIOp(a, b).result).result
        else:
            total = arith.AddFOp(total, arith.MulFOp(a, b).result).result
    return total


def _part(data: ir.Value, first: int, count: int, sums: ir.Type) -> list[ir.Value]:
    """Elements of a flat fragment in the type of the sums, as the multiplier sees them."""
    values = [vector.ExtractOp(data, [], [first + e]).result for e in range(count)]
    if isinstance(sums, ir.IntegerType):
        return [arith.ExtSIOp(sums, value).result for value in values]
    if values[0].type != sums:
        return [arith.ExtFOp(sums, value).result for value in values]
    # tf32: the multiplier ignores the low 13 bits.
    i32 = ir.IntegerType.get_signless(32)
    mask = _constant(i32, -0x2000)
    bits = [arith.BitcastOp(i32, value).result for value in values]
    return [arith.BitcastOp(sums, arith.AndIOp(x, mask).result).result for x in bits]


def _flat(fragment: ir.Value) -> ir.Value:
    kind = ir.VectorType(fragment.type)
    flat = ir.VectorType.get([kind.shape[0] * kind.shape[1]], kind.element_type)
    return vector.ShapeCastOp(flat, fragment).result


def _split(lane: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``g`` and ``t``."""
    quad = _constant(lane.type, _QUAD)
    return arith.DivUIOp(lane, quad).result, arith.RemUIOp(lane, quad).result


def _element(data: ir.Value, number: ir.Value) -> ir.Value:
    index = arith.IndexCastOp(ir.IndexType.get(), number).result
    return vector.ExtractOp(data, [index], [ir.ShapedType.get_dynamic_size()]).result


def _plus(value: ir.Value, number: int) -> ir.Value:
    return arith.AddIOp(value, _constant(value.type, number)).result


def _times(value: ir.Value, number: int) -> ir.Value:
    return arith.MulIOp(value, _constant(value.type, number)).result


def _constant(kind: ir.Type, number: int) -> ir.Value:
    return arith.ConstantOp(kind, number).result
