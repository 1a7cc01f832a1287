# SPDX-License-Identifier: Apache-2.0
"""In-place updates: ``dynamic_update_slice`` and ``scatter``.

Both write a part of a copy of their operand. The kernel is offered the operand's buffer as its result (``inplace``);
phase 0 copies the operand only when the two pointers differ, phase 1 writes the part. So a loop that updates a large
array touches only what changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from mlir import ir
from mlir.dialects import arith, memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.loop import CHUNK
from gristmill.compiler.emitters.cpu.scatter_problem import ScatterProblem
from gristmill.compiler.emitters.elemental.movement import clamped_starts
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node

#: Elements of one strip of a scatter's windows: strips of wide types do not share cache lines.
STRIP = 32


def same_buffer(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Whether two memrefs start at one address."""
    pointers = [memref.ExtractAlignedPointerAsIndexOp(x).result for x in (lhs, rhs)]
    return arith.CmpIOp(arith.CmpIPredicate.eq, *pointers).result


def copy_phase(frame: KernelFrame, pairs: Sequence[tuple[int, int]]) -> None:
    """Add the phase that copies argument to result, for each ``(argument, result)``, unless they are one buffer."""
    arrays = [frame.source.results[result] for _, result in pairs]
    largest = max(a.size for a in arrays)

    def body(phase: PhaseFrame) -> None:
        for (argument, result), array in zip(pairs, arrays, strict=True):
            source, target = phase.arguments[argument], phase.results[result]
            different = arith.XOrIOp(same_buffer(source, target), _true()).result
            with build.if_then(different):
                _copy_range(phase, build.flatten(source), build.flatten(target), array.size)

    tasks = max(1, -(-largest // CHUNK))
    frame.phase(body, tasks, worth_splitting(largest, 4), pairs, noalias=False)


def _true() -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(1), ir.BoolAttr.get(True)).result


def _copy_range(phase: PhaseFrame, source: ir.Value, target: ir.Value, size: int) -> None:
    def copy(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        memref.StoreOp(memref.LoadOp(source, [iv]).result, target, [iv])
        return []

    low = build.mul(phase.begin, CHUNK)
    high = build.minimum(build.mul(phase.end, CHUNK), size)
    build.for_loop(low, high, copy)


def read_only_by(parameter: Node, user: Node) -> bool:
    """Whether ``parameter`` is read by nothing but ``user``'s op, and once: only then may it be overwritten."""
    readers = {id(u.op) for u in parameter.users}
    return readers == {id(user.op)} and user.operands.count(parameter) == 1


class UpdateEmitter:
    """Compiles a fusion whose root is ``dynamic_update_slice``; its operand is a parameter."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        operand, update = self.node.operands[0], self.node.operands[1]
        pair = (operand.result, 0)
        frame = KernelFrame(self.source)
        copy_phase(frame, [pair])
        shape = update.shape
        rows = max(1, math.prod(shape[:-1]))
        cost = element_cost(self.source.graph)
        if update.type.size:
            frame.phase(self._write, rows, worth_splitting(update.type.size, cost))
        inplace = [pair] if read_only_by(operand, self.node) else []
        return frame.finish("update", update.type.size * cost, inplace)

    def _write(self, phase: PhaseFrame) -> None:
        e = phase.elemental
        operand, update, *starts = self.node.operands
        begin = clamped_starts(e, starts, operand.shape, update.shape)
        shape = update.shape

        def element(index: list[Index]) -> None:
            at = [build.add(b, i) for b, i in zip(begin, index, strict=True)]
            phase.store(0, e.value(update, index), at, self.node.type)

        def row(iv: ir.Value) -> None:
            outer = build.delinearize(iv, shape[:-1])
            if not shape or shape[-1] == 1:
                element([*outer, *([0] if shape else [])])
            else:
                build.for_loop(0, shape[-1], lambda j, _: column(outer, j))

        def column(outer: list[Index], j: ir.Value) -> list[ir.Value]:
            with e.scope():
                element([*outer, j])
            return []

        phase.each_task(row)


class ScatterEmitter:
    """Compiles one ``scatter``; every operand is a parameter.

    Updates of one element are applied in row-major order by one thread: StableHLO leaves the order open but not the
    atomicity. Where updates are windows that do not move along their minor dimension, tasks are strips of it: each
    thread walks all the indices and applies its strip, so no two threads meet at an element.
    """

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.problem = ScatterProblem(self.node)
        self.inputs, self.updates = self.problem.inputs, self.problem.updates

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        roots = self.source.graph.results
        pairs = [(self.inputs[root.result].result, n) for n, root in enumerate(roots)]
        frame = KernelFrame(self.source)
        assert len(roots) == self.problem.count, "the fusion pass keeps every result of a scatter"
        copy_phase(frame, pairs)
        if self.updates[0].type.size and self.inputs[0].type.size:
            tasks = self._strips()
            cost = 2 * element_cost(self.source.graph)
            frame.phase(self._apply, tasks, worth_splitting(self.updates[0].type.size, cost))
        inplace = [p for p, x in zip(pairs, self.inputs, strict=True) if read_only_by(x, self.node)]
        return frame.finish("scatter", self.updates[0].type.size * 10, inplace)

    def _minor_extent(self) -> int:
        """Extent of the window's minor dimension, if there is a window."""
        window = self.problem.window
        return self.updates[0].shape[window[-1]] if window else 1

    def _strips(self) -> int:
        """How many strips the window's minor dimension is cut into."""
        window = self.problem.window
        if not window or window[-1] not in self.problem.apart:
            return 1
        return -(-self._minor_extent() // STRIP)

    def _apply(self, phase: PhaseFrame) -> None:
        shape = self.updates[0].shape
        window, outer = self.problem.window, self.problem.batch
        extent = self._minor_extent()
        low: Index = 0
        high: Index = extent
        if self._strips() > 1:
            low = build.mul(phase.begin, STRIP)
            high = build.minimum(build.mul(phase.end, STRIP), extent)

        def batch(values: list[Index]) -> None:
            starts = self.problem.starts(phase.elemental, values)

            def line(major: list[Index]) -> None:
                self._line(phase, starts, values, major, low, high)

            nest(phase, [shape[d] for d in window[:-1]], line)

        nest(phase, [shape[d] for d in outer], batch)

    def _line(
        self,
        phase: PhaseFrame,
        starts: list[Index],
        batch: list[Index],
        major: list[Index],
        low: Index,
        high: Index,
    ) -> None:
        """Apply one line of a window; whether its other dimensions are inside the input is asked once."""
        problem, window = self.problem, self.problem.window
        base = list(starts)
        for d, offset in zip(problem.window_dims(), major, strict=False):
            base[d] = build.add(base[d], offset)
        if not window:
            with _guard(problem.inside(base, range(len(base)))), phase.elemental.scope():
                self._update(phase, base, problem.update_index(batch, []))
            return
        minor = problem.window_dims()[-1]
        others = [d for d in range(len(base)) if d != minor]

        def column(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                at = list(base)
                at[minor] = build.add(at[minor], iv)
                index = problem.update_index(batch, [*major, iv])
                with _guard(problem.inside(at, [minor])):
                    self._update(phase, at, index)
            return []

        with _guard(problem.inside(base, others)), phase.elemental.scope():
            build.for_loop(low, high, column)

    def _update(self, phase: PhaseFrame, at: list[Index], update_index: list[Index]) -> None:
        """Combine one element of every update into the inputs at ``at``."""
        e = phase.elemental
        old = [build.load(phase.results[n], at, x.type.element) for n, x in enumerate(self.inputs)]
        new = [e.value(x, update_index) for x in self.updates]
        values = e.call(self.node.symbol("to_apply"), [*old, *new], self.problem.captures)
        for n, (value, x) in enumerate(zip(values, self.inputs, strict=True)):
            phase.store(n, value, at, x.type)


@contextmanager
def _guard(condition: ir.Value | None) -> Generator[None]:
    """``scf.if`` around the body of the ``with``, or nothing for ``None``."""
    if condition is None:
        yield
        return
    with build.if_then(condition):
        yield


def nest(phase: PhaseFrame, extents: Sequence[int], body: Callable[[list[Index]], None]) -> None:
    """Nested loops over ``extents`` without carried values."""

    def level(index: list[Index]) -> None:
        if len(index) == len(extents):
            body(index)
        elif extents[len(index)] == 1:
            level([*index, 0])
        else:
            build.for_loop(0, extents[len(index)], lambda iv, _: inside([*index, iv]))

    def inside(index: list[Index]) -> list[ir.Value]:
        with phase.elemental.scope():
            level(index)
        return []

    level([])
