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
from mlir.dialects import arith, func, llvm, vector

from gristmill.compiler.lowering.simulator_scheduler import SLOT_BYTES

#: Lanes that hold one row of A (one column of B).
_QUAD = 4

#: Bytes of what one lane reads for ``ldmatrix``.
_ROW_BYTES = 16


class Warp(Protocol):
    """What the rules need of the thread being converted."""

    module: ir.Module

    def show(self, values: list[ir.Value]) -> ir.Value:
        """Show values to the warp; returns the address of lane 0's, ``SLOT_BYTES`` before those of the next."""
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
    count, p = result.shape
    kind = ir.VectorType.get([_ROW_BYTES // (4 // p)], result.element_type)
    buffer, *index = op.operands
    slots = thread.show([vector.LoadOp(kind, buffer, index).result])
    transposed = ir.BoolAttr(op.attributes["transpose"]).value

    def body(slots: ir.Value, lane: ir.Value) -> ir.Value:
        group, within = _split(lane)
        parts: list[ir.Value] = []
        for matrix in range(count):
            if transposed:
                rows = [_plus(_times(within, 2), 8 * matrix + e) for e in range(2)]
                parts += [_element(_of_lane(slots, row, 0, kind), group) for row in rows]
            else:
                data = _of_lane(slots, _plus(group, 8 * matrix), 0, kind)
                parts += [_element(data, _plus(_times(within, p), e)) for e in range(p)]
        return vector.FromElementsOp(flat, parts).result

    flat = ir.VectorType.get([count * p], result.element_type)
    name = f"ldmatrix_{count}_{result.element_type}{'_transposed' if transposed else ''}"
    value = _call(thread, name, [slots, thread.lane()], flat, body)
    return [vector.ShapeCastOp(result, value).result]


def mma(thread: Warp, op: ir.Operation) -> list[ir.Value]:
    """PTX ISA, "Warp-level matrix multiply-and-accumulate instruction: mma" (see the module docstring)."""
    a, b, c = op.operands
    kind = ir.VectorType(c.type)
    factor, p = ir.VectorType(a.type).element_type, ir.VectorType(a.type).shape[1]
    left, right = (ir.VectorType.get([registers * p], factor) for registers in (4, 2))
    flat = ir.VectorType.get([4], kind.element_type)
    slots = thread.show([vector.ShapeCastOp(left, a).result, vector.ShapeCastOp(right, b).result])

    def body(slots: ir.Value, lane: ir.Value, sums: ir.Value) -> ir.Value:
        group, within = _split(lane)
        quad = range(_QUAD)
        rows = [_of_lane(slots, _plus(_times(group, _QUAD), t), 0, left) for t in quad]
        columns: list[list[ir.Value]] = []
        for e in range(2):
            first = _times(_plus(_times(within, 2), e), _QUAD)
            columns.append([_of_lane(slots, _plus(first, t), _ROW_BYTES, right) for t in quad])
        results: list[ir.Value] = []
        for half in range(2):
            for e in range(2):
                total = vector.ExtractOp(sums, [], [2 * half + e]).result
                for k_half in range(2):
                    for t in quad:
                        x = _part(rows[t], (2 * k_half + half) * p, p, kind.element_type)
                        y = _part(columns[e][t], k_half * p, p, kind.element_type)
                        total = _accumulate(total, x, y)
                results.append(total)
        return vector.FromElementsOp(flat, results).result

    sums = vector.ShapeCastOp(flat, c).result
    value = _call(thread, f"mma_{factor}", [slots, thread.lane(), sums], flat, body)
    return [vector.ShapeCastOp(kind, value).result]


def _call(
    thread: Warp,
    name: str,
    arguments: list[ir.Value],
    result: ir.Type,
    body: Callable[..., ir.Value],
) -> ir.Value:
    """Call a function, made of ``body`` when the module has none of that name yet.

    Not inlined: a kernel has many such operations, and what surrounds a suspension point is dear to compile.
    """
    name = f"gristmill_sim_{name}"
    if name not in ir.SymbolTable(thread.module.operation):
        kinds = [argument.type for argument in arguments]
        with ir.InsertionPoint(thread.module.body), ir.Location.unknown():
            function = func.FuncOp(name, (kinds, [result]), visibility="private")
            noinline = ir.ArrayAttr.get([ir.StringAttr.get("noinline")])
            function.attributes["passthrough"] = noinline
            block = function.add_entry_block()
        with ir.InsertionPoint(block), ir.Location.unknown():
            func.ReturnOp([body(*block.arguments)])
    return func.CallOp([result], name, arguments).result


def _of_lane(slots: ir.Value, lane: ir.Value, offset: int, kind: ir.VectorType) -> ir.Value:
    """What a lane shows, ``offset`` bytes into its slot."""
    pointer, byte = ir.Type.parse("!llvm.ptr"), ir.IntegerType.get_signless(8)
    where = _plus(_times(lane, SLOT_BYTES), offset)
    place = llvm.GEPOp(pointer, slots, [where], [-(1 << 31)], byte, None).result
    return llvm.LoadOp(kind, place, alignment=8).result


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
