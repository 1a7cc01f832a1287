# SPDX-License-Identifier: Apache-2.0
"""``nvgpu.mma.sync`` to ``nvvm.mma.sync`` for the types that ``convert-nvgpu-to-nvvm`` does not serve.

It refuses ``bf16``, and lets sums of ``i8`` products saturate where HLO's wrap. The registers are those of PTX ISA,
"Warp-level matrix multiply-and-accumulate instruction: mma": each holds 4 bytes of a fragment.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import llvm, nvvm, vector

#: PTX type of the factors, by element type.
_TYPES = {"bf16": "bf16", "i8": "s8"}


def convert_products(module: ir.Module) -> None:
    """Replace the ``nvgpu.mma.sync`` of ``bf16`` and ``i8`` in place."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "nvgpu.mma.sync" and _kind(op) in _TYPES:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            value = _product(op)
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _kind(op: ir.Operation) -> str:
    return str(ir.VectorType(op.operands[0].type).element_type)


def _product(op: ir.Operation) -> ir.Value:
    a, b, c = op.operands
    m, n, k = (ir.IntegerAttr(x).value for x in ir.ArrayAttr(op.attributes["mmaShape"]))
    kind = ir.VectorType(c.type)
    sums = [
        vector.ExtractOp(c, [], [row, column]).result for row in range(2) for column in range(2)
    ]
    scalar = str(kind.element_type)
    ptx = ir.Attribute.parse(f"#nvvm.mma_type<{_TYPES[_kind(op)]}>")
    wrapped = ir.Attribute.parse("#nvvm.mma_int_overflow<wrapped>") if scalar == "i32" else None
    struct = nvvm.MmaOp(
        ir.Type.parse(f"!llvm.struct<({', '.join([scalar] * 4)})>"),
        ir.Attribute.parse(f"#nvvm.shape<m = {m}, n = {n}, k = {k}>"),
        ir.Attribute.parse("#nvvm.mma_layout<row>"),
        ir.Attribute.parse("#nvvm.mma_layout<col>"),
        _registers(a),
        _registers(b),
        sums,
        intOverflowBehavior=wrapped,
        multiplicandAPtxType=ptx,
        multiplicandBPtxType=ptx,
    ).result
    parts = [
        llvm.ExtractValueOp(kind.element_type, struct, ir.DenseI64ArrayAttr.get([number])).result
        for number in range(4)
    ]
    return vector.FromElementsOp(kind, parts).result


def _registers(fragment: ir.Value) -> list[ir.Value]:
    """The fragment's 4-byte registers."""
    word = ir.VectorType.get([1], ir.IntegerType.get_signless(32))
    result: list[ir.Value] = []
    for number in range(ir.VectorType(fragment.type).shape[0]):
        register = vector.ExtractOp(fragment, [], [number]).result
        result.append(vector.ExtractOp(vector.BitCastOp(word, register).result, [], [0]).result)
    return result
