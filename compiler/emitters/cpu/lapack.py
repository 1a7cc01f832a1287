# SPDX-License-Identifier: Apache-2.0
"""Calls of LAPACK routines: operands are copied to the results that the routine overwrites, then one call a matrix.

The matrices of a batch are the tasks. How much workspace a routine wants is asked when the kernel is emitted; it lies
in the thread's scratch memory, and so do the routine's scalar arguments, which Fortran takes by address.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.lapack_arguments import (
    ROUTINES,
    Argument,
    Copied,
    Given,
    Letter,
    Made,
    Null,
    Number,
    Problem,
    Size,
    Work,
)
from gristmill.compiler.emitters.cpu.update import copy_phase, read_only_by
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError
from gristmill.runtime import lapack
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType, element_type

_INT_MAX = 2**31 - 1


class LapackEmitter:
    """Compiles one ``lapack`` operation."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = source.graph.results[0]
        op = self.node.op
        assert op is not None, "a fused computation returns an operation's result"
        assert len(source.graph.results) == len(self.node.siblings), "every result is needed"
        self.routine = self.node.string("routine")
        items = [item.partition("=") for item in self.node.string("options").split(",") if item]
        self.problem = Problem(
            [x.type for x in self.node.operands],
            [x.type for x in self.node.siblings],
            {name: value for name, _, value in items},
        )
        self.arguments = ROUTINES[hlo.string(op, "routine")[1:]](self.problem)
        self.sizes = self._sizes()
        self.places, self.scratch_bytes = self._layout()

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source, scratch_bytes=self.scratch_bytes)
        pairs = self.problem.overwritten
        copy_phase(frame, pairs)
        parameters = self.source.graph.parameters
        batch = self.problem.batch
        flops = 4 * sum(kind.size for kind in self.source.arguments) * self.problem.order
        frame.phase(self._tasks, batch, worth_splitting(flops, 1), noalias=False)
        inplace = [(a, r) for a, r in pairs if read_only_by(parameters[a], self.node)]
        return frame.finish("lapack", flops, inplace)

    # Workspace

    def _sizes(self) -> dict[str, int]:
        """Elements of each workspace; those that the routine is to say are asked for."""
        works = {a.name: a for a in self.arguments if isinstance(a, Work)}
        sizes = {name: work.count for name, work in works.items() if work.count is not None}
        asked = [name for name in works if name not in sizes]
        if asked:
            answers = {name: ctypes.create_string_buffer(64) for name in works}
            actual = [self._queried(argument, sizes, answers) for argument in self.arguments]
            function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(actual))
            function(lapack.address(self.routine))(*actual)
            for name in asked:
                sizes[name] = _answer(answers[name], works[name])
        if max(sizes.values(), default=0) > _INT_MAX or self.problem.order > _INT_MAX:
            raise UnsupportedError(
                f"{self.routine} of {self.problem.operands[0]} is too large for LAPACK"
            )
        return sizes

    def _queried(self, argument: Argument, sizes: dict[str, int], answers: dict[str, Any]) -> Any:
        """The address of an argument of the call that asks for workspace sizes."""
        if isinstance(argument, Null):
            return None
        if isinstance(argument, Number):
            value: Any = ctypes.c_int32(argument.value)
        elif isinstance(argument, Letter):
            value = ctypes.create_string_buffer(argument.value.encode())
        elif isinstance(argument, Size):
            value = ctypes.c_int32(sizes.get(argument.of, -1))
        elif isinstance(argument, Work):
            value = answers[argument.name]
        else:
            value = ctypes.create_string_buffer(64)  # an array, not touched by a query
        return ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)

    def _layout(self) -> tuple[list[int], int]:
        """Where each argument keeps what it needs in the scratch memory, and the end: scalars, then arrays."""
        places = [8 * number for number in range(len(self.arguments))]
        end = align_up(8 * len(places))
        for number, argument in enumerate(self.arguments):
            nbytes = 0
            if isinstance(argument, Work):
                nbytes = self.sizes[argument.name] * argument.element.nbytes
            elif isinstance(argument, Copied):
                nbytes = self.problem.each(self.problem.operands[argument.operand])
            if nbytes:
                places[number] = end
                end = align_up(end + nbytes)
        return places, end

    # Code

    def _tasks(self, phase: PhaseFrame) -> None:
        pointer = ir.Type.parse("!llvm.ptr")
        name = lapack.PREFIX + self.routine
        _declare(phase, name, [pointer] * len(self.arguments))
        for number, argument in enumerate(self.arguments):
            self._store_scalar(phase, number, argument)

        def task(batch: ir.Value) -> None:
            actual = [self._actual(phase, n, a, batch) for n, a in enumerate(self.arguments)]
            attributes: dict[str, ir.Attribute] = {
                "callee": ir.FlatSymbolRefAttr.get(name),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(actual), 0]),
                "op_bundle_sizes": ir.Attribute.parse("array<i32>"),
            }
            ir.Operation.create("llvm.call", [], actual, attributes)

        phase.each_task(task)

    def _store_scalar(self, phase: PhaseFrame, number: int, argument: Argument) -> None:
        if isinstance(argument, Number | Size):
            count = argument.value if isinstance(argument, Number) else self.sizes[argument.of]
            self._put(phase, number, "i32", count)
        elif isinstance(argument, Letter):
            self._put(phase, number, "i8", ord(argument.value))

    def _put(self, phase: PhaseFrame, number: int, element: str, value: int) -> None:
        kind = element_type(element)
        slot = build.view(phase.scratch, self.places[number], ArrayType((1,), kind))
        build.store(build.constant(kind, value), slot, [0], kind)

    def _actual(
        self, phase: PhaseFrame, number: int, argument: Argument, batch: ir.Value
    ) -> ir.Value:
        """The address to pass for one matrix of the batch."""
        problem = self.problem
        if isinstance(argument, Null):
            return _pointer(build.index_value(0))
        if isinstance(argument, Given | Made):
            given = isinstance(argument, Given)
            buffers = phase.arguments if given else phase.results
            kinds = problem.operands if given else problem.results
            place = argument.operand if isinstance(argument, Given) else argument.result
            return _address(buffers[place], build.mul(batch, problem.each(kinds[place])))
        if isinstance(argument, Copied):
            self._copy(phase, number, argument.operand, batch)
        return _address(phase.scratch, self.places[number])

    def _copy(self, phase: PhaseFrame, number: int, operand: int, batch: ir.Value) -> None:
        kind = self.problem.operands[operand]
        count = kind.size // max(self.problem.batch, 1)
        source = build.flatten(phase.arguments[operand])
        first = build.mul(batch, count)
        target = build.view(
            phase.scratch, self.places[number], ArrayType((max(count, 1),), kind.element)
        )

        def element(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            value = build.load(source, [build.add(first, i)], kind.element)
            build.store(value, target, [i], kind.element)
            return []

        build.for_loop(0, count, element)


def _answer(buffer: Any, work: Work) -> int:
    """The size that a query left in a workspace's first element; rounded up, as f32 cannot hold every integer."""
    kind = work.element
    if kind.kind == "int":
        return max(1, ctypes.c_int32.from_buffer(buffer).value)
    half = kind.nbytes // (2 if kind.kind == "complex" else 1)
    number = (ctypes.c_float if half == 4 else ctypes.c_double).from_buffer(buffer).value
    return max(1, math.ceil(number * (1 + 2**-22)))


def _declare(phase: PhaseFrame, name: str, kinds: Sequence[ir.Type]) -> None:
    """Declare a function without result in the kernel's module."""
    owner: Any = phase.begin.owner
    module = owner.owner.operation.parent
    text = ", ".join(map(str, kinds))
    with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
        ir.Operation.create(
            "llvm.func",
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": ir.TypeAttr.get(ir.Type.parse(f"!llvm.func<void ({text})>")),
                "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
            },
            regions=1,
        )


def _address(buffer: ir.Value, offset: Index) -> ir.Value:
    """The address ``offset`` bytes into a buffer."""
    start = memref.ExtractAlignedPointerAsIndexOp(buffer).result
    return _pointer(build.index_value(build.add(start, offset)))


def _pointer(address: ir.Value) -> ir.Value:
    wide = arith.IndexCastOp(ir.IntegerType.get_signless(64), address).result
    return ir.Operation.create("llvm.inttoptr", [ir.Type.parse("!llvm.ptr")], [wide]).results[0]
