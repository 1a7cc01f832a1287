# SPDX-License-Identifier: Apache-2.0
"""What the simulator checks of every memory access: bounds, races and uninitialised reads of shared memory.

:func:`instrument` rewrites the thread function of a kernel before it is lowered. Every access through a memref has its
indices compared with the memref's shape; an index outside is reported and replaced by 0, so that the simulation
survives. Accesses of workgroup memory also go through ``gristmill_sim_access``, which keeps two stamps for each byte:

    bit 63      there was an access
    bit 62      it was atomic
    bits 48-59  thread; or 1024 + w: several threads of warp w; or 1056: threads of several warps
    bits 24-47  barriers that the thread had passed
    bits 0-23   exchanges that the thread had made

of the last write and of the reads since. Two accesses of different threads, not both reads nor both atomic, are
*ordered* when their barrier counts differ, or when the threads are in one warp and an exchange lies between them. Two
that are not ordered are a race, whatever order the simulator happens to run them in: a missing barrier is found even
when the result is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, func, llvm, memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.gpu.frame import type_bytes
from gristmill.compiler.lowering.simulator_scheduler import ATOMIC, READ, WRITE
from gristmill.runtime.simulator_report import OUT_OF_BOUNDS

#: Operand number of the memref and of the first index, by operation; the value stored, if any, comes first.
_ACCESSES = {
    "memref.load": (0, 1, "read"),
    "memref.store": (1, 2, "write"),
    "vector.load": (0, 1, "read"),
    "vector.store": (1, 2, "write"),
    "memref.atomic_rmw": (1, 2, "atomic"),
    "memref.generic_atomic_rmw": (0, 1, "atomic"),
}

FAULT = "gristmill_sim_fault"
ACCESS = "gristmill_sim_access"

_MODES = {"read": READ, "write": WRITE, "atomic": ATOMIC}


class Instrumenter:
    """Instruments one thread function.

    Args:
        function: the ``func.func`` of one thread.
        module: the module it is in; texts that name operations become globals there.
        record: the thread's record.
        shared: the function's workgroup memrefs.
        kernel: its name, for messages.
    """

    def __init__(
        self,
        function: ir.Operation,
        module: ir.Module,
        record: ir.Value,
        shared: Sequence[ir.Value],
        kernel: str,
    ):
        self.function, self.module, self.record, self.kernel = function, module, record, kernel
        self.shared = list(shared)
        self._texts: dict[str, str] = {}

    def run(self) -> None:
        """Instrument every access of the function."""
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name in _ACCESSES:
                found.append(op)
            return ir.WalkResult.ADVANCE

        self.function.walk(visit, ir.WalkOrder.PRE_ORDER)
        for op in found:
            with ir.InsertionPoint(op), op.location:
                self.access(op)

    def access(self, op: ir.Operation) -> None:
        """Check the indices of one access and, in workgroup memory, its bytes."""
        number, first, mode = _ACCESSES[op.name]
        buffer = op.operands[number]
        kind = ir.MemRefType(buffer.type)
        value = op.operands[0] if number else op.results[0]
        lanes = 1
        if op.name in ("vector.load", "vector.store"):
            lanes = ir.VectorType(value.type).shape[-1]
        text = self.text(f"{self.kernel}: {op.name} of {kind}")
        indices: list[ir.Value] = []
        for dimension, extent in enumerate(kind.shape):
            position = first + dimension
            index = op.operands[position]
            reach = lanes if dimension == kind.rank - 1 else 1
            index = self.bound(index, extent - reach + 1, text)
            op.operands[position] = index
            indices.append(index)
        if self.is_shared(buffer):
            self.check(buffer, kind, indices, lanes, mode, text)

    def bound(self, index: ir.Value, limit: int, text: ir.Value) -> ir.Value:
        """``index`` if it is in ``[0, limit)``; else 0, after a report."""
        inside = arith.CmpIOp(arith.CmpIPredicate.ult, index, build.index_value(limit)).result
        true = arith.ConstantOp(ir.IntegerType.get_signless(1), 1).result
        outside = arith.XOrIOp(inside, true).result
        with build.if_then(outside):
            self.fault(OUT_OF_BOUNDS, text, _wide(index), _constant(limit))
        return arith.SelectOp(inside, index, build.index_value(0)).result

    def fault(self, code: int, text: ir.Value, value: ir.Value, other: ir.Value) -> None:
        """Report a fault of this thread."""
        func.CallOp([], FAULT, [self.record, _constant(code), text, value, other])

    def is_shared(self, buffer: ir.Value) -> bool:
        """Whether the memref is, or is a view of, workgroup memory."""
        while buffer not in self.shared:
            owner = buffer.owner
            if isinstance(owner, ir.Block):
                return False
            owner = owner.operation
            if not owner.name.startswith("memref."):
                return False
            if not owner.operands or not isinstance(owner.operands[0].type, ir.MemRefType):
                return False
            buffer = owner.operands[0]
        return True

    def check(
        self,
        buffer: ir.Value,
        kind: ir.MemRefType,
        indices: Sequence[ir.Value],
        lanes: int,
        mode: str,
        text: ir.Value,
    ) -> None:
        """Check the bytes of one access of workgroup memory for races and, if it reads, for having been written."""
        width = type_bytes(kind.element_type)
        strides, offset = kind.get_strides_and_offset()
        place: build.Index = offset
        for index, stride in zip(indices, strides, strict=True):
            place = build.add(place, build.mul(index, stride))
        start = memref.ExtractAlignedPointerAsIndexOp(buffer).result
        address = _wide(build.index_value(build.add(build.mul(place, width), start)))
        numbers = [_constant(lanes * width), _constant(_MODES[mode])]
        func.CallOp([], ACCESS, [self.record, address, *numbers, text])

    def text(self, text: str) -> ir.Value:
        """The address of a zero-terminated text."""
        if text not in self._texts:
            name = f"{self.kernel}_text_{len(self._texts)}"
            data = [*text.encode(), 0]
            kind = ir.Type.parse(f"!llvm.array<{len(data)} x i8>")
            with ir.InsertionPoint(self.module.body):
                llvm.GlobalOp(
                    ir.TypeAttr.get(kind), name, ir.Attribute.parse("#llvm.linkage<internal>"),
                    constant=True, value=ir.StringAttr.get(text + "\0"),
                )  # fmt: skip
            self._texts[text] = name
        symbol = ir.FlatSymbolRefAttr.get(self._texts[text])
        return llvm.AddressOfOp(ir.Type.parse("!llvm.ptr"), symbol).result


def declare(module: ir.Module) -> None:
    """Declare the functions that instrumented code calls; :mod:`.simulator_scheduler` defines them."""
    pointer, i64 = ir.Type.parse("!llvm.ptr"), ir.IntegerType.get_signless(64)
    with ir.InsertionPoint(module.body):
        func.FuncOp(FAULT, ([pointer, i64, pointer, i64, i64], []), visibility="private")
        func.FuncOp(ACCESS, ([pointer, i64, i64, i64, pointer], []), visibility="private")


def _constant(number: int) -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(64), number).result


def _wide(index: ir.Value) -> ir.Value:
    return arith.IndexCastOp(ir.IntegerType.get_signless(64), index).result
