# SPDX-License-Identifier: Apache-2.0
"""A ``gpu.module`` to CPU code that simulates it: every GPU thread a coroutine.

The same functions that become PTX are taken: a ``gpu.func`` turns into a function of one thread, whose parameters are
the kernel's, its workgroup memory, the thread's record and its six coordinates. Barriers and exchanges between lanes
become suspension points; LLVM's coroutine passes split the function there, so that switching threads costs a few
nanoseconds and needs no stacks. :mod:`.simulator_scheduler` resumes the threads.

The native function of a kernel NAME, for the simulator device and the tests' software driver alike:

    int64_t NAME(void *const *params, const uint32_t dims[6], int64_t order, int64_t report[8])

``params[i]`` points to parameter *i*; ``dims`` are grid and block, x first. ``order`` permutes the threads: any order
must give the same results. It returns 0 or the code of the first fault, with the details in ``report``, which is all
zeros before (:mod:`gristmill.runtime.simulator_report`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from mlir import ir
from mlir.dialects import arith, func, llvm

from gristmill.compiler.emitters.gpu.frame import type_bytes
from gristmill.compiler.lowering import simulator_async, simulator_checks, simulator_mma
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.lowering.simulator_scheduler import (
    AT_BARRIER,
    AT_EXCHANGE,
    BARRIERS,
    EXCHANGES,
    SLOT_BYTES,
    SLOTS,
    THREAD,
)
from gristmill.compiler.module import symbol_name
from gristmill.errors import LoweringError

_WORKGROUP = ", #gpu.address_space<workgroup>"

#: Suspends the calling thread; the text of the LLVM IR module is where these calls become intrinsics.
_WAIT = "gristmill_sim_wait"


@dataclass(frozen=True)
class SimulatedKernel:
    """A launch function of the module.

    Attributes:
        name: of the kernel.
        parameters: number of pointers it takes.
        shared: offset of each of its workgroup memrefs.
        shared_bytes: of all of them, a multiple of 64.
        suspends: whether threads wait for one another.
    """

    name: str
    parameters: int
    shared: tuple[int, ...]
    shared_bytes: int
    suspends: bool


def to_simulator(module: ir.Module, checks: bool = True) -> tuple[ir.Module, list[SimulatedKernel]]:
    """The thread functions of the module's ``gpu.module`` in the LLVM dialect; the source is left as it is.

    With ``checks`` memory accesses are checked (:mod:`.simulator_checks`). Raises ``LoweringError`` for an operation of
    the GPU dialects that the simulator does not know.
    """
    source = ir.Module.parse(str(module), module.context)
    result = ir.Module.create(loc=ir.Location.unknown(module.context))
    kernels: list[SimulatedKernel] = []
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(result.body):
            pointer = ir.Type.parse("!llvm.ptr")
            i64 = ir.IntegerType.get_signless(64)
            func.FuncOp(_WAIT, ([pointer, i64], []), visibility="private")
        simulator_checks.declare(result)
        simulator_async.declare(result)
        for view in source.body.operations:
            if view.operation.name != "gpu.module":
                continue
            for inner in list(view.operation.regions[0].blocks[0].operations):
                if inner.operation.name == "gpu.func":
                    kernels.append(_Thread(inner.operation, result, checks).convert())
                else:
                    result.body.append(inner.operation.clone())
        # On the CPU workgroup memory is memory like any other.
        result = ir.Module.parse(str(result).replace(_WORKGROUP, ""))
        lower_to_llvm_dialect(result)
    return result, kernels


def thread_function(kernel: str) -> str:
    """Name of the function of one thread of ``kernel``."""
    return f"{kernel}_thread"


class _Thread:
    """Turns one ``gpu.func`` into the function of one thread."""

    def __init__(self, function: ir.Operation, module: ir.Module, checks: bool):
        self.source, self.module, self.checks = function, module, checks
        self.name = symbol_name(function)
        self.suspends = False
        self.queue: ir.Value | None = None

    def convert(self) -> SimulatedKernel:
        """Append the thread's function to the module."""
        block = self.source.regions[0].blocks[0]
        signature = ir.TypeAttr(self.source.attributes["function_type"]).value
        parameters = len(cast("list[ir.Type]", ir.FunctionType(signature).inputs))
        shared = [a.type for a in list(block.arguments)[parameters:]]
        pointer, index = ir.Type.parse("!llvm.ptr"), ir.IndexType.get()
        here = ir.Location.unknown()
        self.record = block.add_argument(pointer, here)
        self.coordinates = [block.add_argument(index, here) for _ in range(6)]
        types = [argument.type for argument in block.arguments]
        with ir.InsertionPoint(self.module.body):
            function = func.FuncOp(thread_function(self.name), (types, []))
        if "arg_attrs" in self.source.attributes:
            given = list(ir.ArrayAttr(self.source.attributes["arg_attrs"]))
            none = [ir.DictAttr.get({})] * (len(types) - len(given))
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([*given, *none])
        block.append_to(function.operation.regions[0])
        block = function.operation.regions[0].blocks[0]
        buffers = list(block.arguments)[parameters : parameters + len(shared)]
        self.checker = simulator_checks.Instrumenter(
            function.operation, self.module, self.record, buffers, self.name
        )
        self._replace(function.operation)
        if self.checks:
            self.checker.run()
        offset = 0
        places: list[int] = []
        for kind in shared:
            places.append(offset)
            offset += -(-_memref_bytes(ir.MemRefType(kind)) // 64) * 64
        suspends = self.suspends or bool(shared)
        return SimulatedKernel(self.name, parameters, tuple(places), offset, suspends)

    def _replace(self, function: ir.Operation) -> None:
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith(("gpu.", "nvgpu.", "nvvm.")):
                found.append(op)
            return ir.WalkResult.ADVANCE

        function.walk(visit, ir.WalkOrder.PRE_ORDER)
        for op in found:
            rule = _RULES.get(op.name)
            if rule is None:
                raise LoweringError(
                    f"the simulator does not know {op.name}; add a rule in compiler/lowering/simulator.py",
                    location=str(op.location),
                    op=op.name,
                )
            with ir.InsertionPoint(op), op.location:
                values = rule(self, op)
            for result, value in zip(op.results, values, strict=True):
                result.replace_all_uses_with(value)
            op.erase()

    def wait(self, state: int) -> None:
        """Let other threads run until the scheduler finds the condition of ``state`` met."""
        self.suspends = True
        i64 = ir.IntegerType.get_signless(64)
        number = arith.ConstantOp(i64, state).result
        func.CallOp([], _WAIT, [self.record, number])

    def field(self, offset: int, kind: ir.Type) -> ir.Value:
        """A field of the thread's record."""
        return llvm.LoadOp(kind, self._at(self.record, offset)).result

    def count(self, offset: int) -> ir.Value:
        """Add one to a counter of the record; returns what it was."""
        i64 = ir.IntegerType.get_signless(64)
        before = self.field(offset, i64)
        after = arith.AddIOp(before, arith.ConstantOp(i64, 1).result).result
        llvm.StoreOp(after, self._at(self.record, offset))
        return before

    def _at(self, base: ir.Value, offset: int | ir.Value) -> ir.Value:
        pointer, byte = ir.Type.parse("!llvm.ptr"), ir.IntegerType.get_signless(8)
        dynamic = [] if isinstance(offset, int) else [offset]
        static = [offset if isinstance(offset, int) else -(1 << 31)]
        return llvm.GEPOp(pointer, base, dynamic, static, byte, None).result

    def exchange(self, values: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Show ``values`` to the warp; returns a function from a lane (i64) to that lane's values."""
        slots = self.show(values)

        def of_lane(lane: ir.Value) -> list[ir.Value]:
            return [
                llvm.LoadOp(value.type, place, alignment=8).result
                for value, place in zip(values, self._slot(slots, lane, values), strict=True)
            ]

        return of_lane

    def show(self, values: list[ir.Value]) -> ir.Value:
        """Show ``values`` to the warp; returns where: the slot of lane 0, of ``SLOT_BYTES`` as each lane's.

        A value takes a multiple of 8 bytes. Slots are used in turn, two sets of them: a lane that is ahead writes the
        other set.
        """
        i64 = ir.IntegerType.get_signless(64)
        sizes = [type_bytes(value.type) for value in values]
        if sum(-(-size // 8) * 8 for size in sizes) > SLOT_BYTES:
            raise LoweringError(
                f"{self.name}: an exchange of {sizes} bytes exceeds the simulator's slots"
            )
        one = arith.ConstantOp(i64, 1).result
        parity = arith.AndIOp(self.count(EXCHANGES), one).result
        half = arith.ConstantOp(i64, 32 * SLOT_BYTES).result
        slots = self._at(
            self.field(SLOTS, ir.Type.parse("!llvm.ptr")), arith.MulIOp(parity, half).result
        )
        for value, place in zip(values, self._slot(slots, self.lane(), values), strict=True):
            llvm.StoreOp(value, place, alignment=8)
        self.wait(AT_EXCHANGE)
        return slots

    def _slot(self, slots: ir.Value, lane: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Where a lane's values are."""
        stride = arith.ConstantOp(ir.IntegerType.get_signless(64), SLOT_BYTES).result
        base, offset = self._at(slots, arith.MulIOp(lane, stride).result), 0
        places: list[ir.Value] = []
        for value in values:
            places.append(self._at(base, offset))
            offset += -(-type_bytes(value.type) // 8) * 8
        return places

    def lane(self) -> ir.Value:
        """The thread's number in its warp, i64."""
        i64 = ir.IntegerType.get_signless(64)
        return arith.AndIOp(self.field(THREAD, i64), arith.ConstantOp(i64, 31).result).result


def _coordinate(base: int):
    def rule(thread: _Thread, op: ir.Operation) -> list[ir.Value]:
        axis = "xyz".index(str(op.attributes["dimension"])[len("#gpu<dim ")])
        return [thread.coordinates[base + axis]]

    return rule


def _barrier(thread: _Thread, op: ir.Operation) -> list[ir.Value]:
    thread.count(BARRIERS)
    thread.wait(AT_BARRIER)
    return []


def _shuffle(thread: _Thread, op: ir.Operation) -> list[ir.Value]:
    """PTX ISA, ``shfl.sync``: the source lane and whether it is inside the segment of ``width`` lanes."""
    i64 = ir.IntegerType.get_signless(64)
    value, offset, width = op.operands
    mode = str(op.attributes["mode"]).removeprefix("#gpu<shuffle_mode ").rstrip(">")
    offset, width = (arith.ExtUIOp(i64, x).result for x in (offset, width))
    lane = thread.lane()
    one = arith.ConstantOp(i64, 1).result
    within = arith.SubIOp(width, one).result
    outside = arith.XOrIOp(within, arith.ConstantOp(i64, -1).result).result
    first = arith.AndIOp(lane, outside).result
    last = arith.OrIOp(first, within).result
    signed = arith.CmpIPredicate
    if mode == "xor":
        source = arith.XOrIOp(lane, offset).result
        valid = arith.CmpIOp(signed.sle, source, last).result
    elif mode == "down":
        source = arith.AddIOp(lane, offset).result
        valid = arith.CmpIOp(signed.sle, source, last).result
    elif mode == "up":
        source = arith.SubIOp(lane, offset).result
        valid = arith.CmpIOp(signed.sge, source, first).result
    else:
        source = arith.OrIOp(first, arith.AndIOp(offset, within).result).result
        valid = arith.ConstantOp(ir.IntegerType.get_signless(1), 1).result
    source = arith.SelectOp(valid, source, lane).result
    return [*thread.exchange([value])(source), valid]


def _return(thread: _Thread, op: ir.Operation) -> list[ir.Value]:
    func.ReturnOp([])
    return []


_RULES: dict[str, Callable[[_Thread, ir.Operation], list[ir.Value]]] = {
    "gpu.thread_id": _coordinate(0),
    "gpu.block_id": _coordinate(3),
    "gpu.barrier": _barrier,
    "gpu.shuffle": _shuffle,
    "gpu.return": _return,
    "nvgpu.ldmatrix": simulator_mma.ldmatrix,
    "nvgpu.mma.sync": simulator_mma.mma,
    "nvvm.convert.float.to.tf32": simulator_mma.to_tf32,
    "nvgpu.device_async_copy": simulator_async.start,
    "nvgpu.device_async_create_group": simulator_async.close_group,
    "nvgpu.device_async_wait": simulator_async.wait,
}


def _memref_bytes(kind: ir.MemRefType) -> int:
    return math.prod(kind.shape) * type_bytes(kind.element_type)
