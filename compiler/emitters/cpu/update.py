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
from gristmill.compiler.emitters.elemental.core import to_index
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
    frame.phase(body, tasks, worth_splitting(largest, 4), pairs)


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
        frame = KernelFrame(self.source, noalias=False)
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
    atomicity. Where updates are windows, tasks are strips of the windows' minor dimension: each thread walks all the
    indices and applies its strip, so no two threads meet at an element.
    """

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.count = len(self.node.siblings)
        operands = self.node.operands
        self.inputs, self.indices = operands[: self.count], operands[self.count]
        self.updates = operands[self.count + 1 : 2 * self.count + 1]
        self.captures = operands[2 * self.count + 1 :]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        roots = self.source.graph.results
        pairs = [(self.inputs[root.result].result, n) for n, root in enumerate(roots)]
        frame = KernelFrame(self.source, noalias=False)
        assert len(roots) == self.count, "the fusion pass keeps every result of a scatter"
        copy_phase(frame, pairs)
        if self.updates[0].type.size and self.inputs[0].type.size:
            tasks = -(-self._strip_extent() // STRIP)
            cost = 2 * element_cost(self.source.graph)
            frame.phase(self._apply, tasks, worth_splitting(self.updates[0].type.size, cost))
        inplace = [p for p, x in zip(pairs, self.inputs, strict=True) if read_only_by(x, self.node)]
        return frame.finish("scatter", self.updates[0].type.size * 10, inplace)

    def _strip_extent(self) -> int:
        """Extent of the dimension that tasks are strips of: the window's minor one, if there is a window."""
        window = self.node.dims("update_window_dims")
        return self.updates[0].shape[window[-1]] if window else 1

    def _apply(self, phase: PhaseFrame) -> None:
        shape = self.updates[0].shape
        window = self.node.dims("update_window_dims")
        outer = [d for d in range(len(shape)) if d not in window]
        extent = self._strip_extent()
        low: Index = 0
        high: Index = extent
        if extent > STRIP:
            low = build.mul(phase.begin, STRIP)
            high = build.minimum(build.mul(phase.end, STRIP), extent)

        def batch(values: list[Index]) -> None:
            starts = self._starts(phase, values)

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
        window = self.node.dims("update_window_dims")
        base = list(starts)
        for d, offset in zip(self._window_dims(), major, strict=False):
            base[d] = build.add(base[d], offset)
        if not window:
            with _guard(self._inside(base, range(len(base)))), phase.elemental.scope():
                self._update(phase, base, self._update_index(batch, []))
            return
        minor = self._window_dims()[-1]
        others = [d for d in range(len(base)) if d != minor]

        def column(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                at = list(base)
                at[minor] = build.add(at[minor], iv)
                index = self._update_index(batch, [*major, iv])
                with _guard(self._inside(at, [minor])):
                    self._update(phase, at, index)
            return []

        with _guard(self._inside(base, others)), phase.elemental.scope():
            build.for_loop(low, high, column)

    def _window_dims(self) -> list[int]:
        """Input dimensions that window offsets are added to, in window order."""
        node = self.node
        skipped = {*node.dims("inserted_window_dims"), *node.dims("input_batching_dims")}
        return [d for d in range(len(self.inputs[0].shape)) if d not in skipped]

    def _inside(self, at: list[Index], dims: Sequence[int]) -> ir.Value | None:
        """Whether ``at`` is inside the input in ``dims``; ``None`` where it cannot be outside."""
        inside: ir.Value | None = None
        indexed = set(self.node.dims("scatter_dims_to_operand_dims"))
        for d in dims:
            if d not in indexed:
                continue  # a plain window or batching index: within the extent by the operation's rules
            extent = self.inputs[0].shape[d]
            for condition in (build.at_least(at[d], 0), build.less(at[d], extent)):
                inside = condition if inside is None else arith.AndIOp(inside, condition).result
        return inside

    def _starts(self, phase: PhaseFrame, batch: list[Index]) -> list[Index]:
        """Where this scatter index's window starts in the input (``full_start_index`` + batching index)."""
        node, e = self.node, phase.elemental
        result: list[Index] = [0] * len(self.inputs[0].shape)
        vector_dim = node.integer("index_vector_dim")
        for position, d in enumerate(node.dims("scatter_dims_to_operand_dims")):
            at = list(batch)
            if vector_dim < len(self.indices.shape):
                at.insert(vector_dim, position)
            result[d] = to_index(self.indices.type.element, e.value(self.indices, at))
        batching = zip(
            node.dims("input_batching_dims"),
            node.dims("scatter_indices_batching_dims"),
            strict=True,
        )
        for d, start_dim in batching:
            result[d] = batch[start_dim - (1 if start_dim > vector_dim else 0)]
        return result

    def _update(self, phase: PhaseFrame, at: list[Index], update_index: list[Index]) -> None:
        """Combine one element of every update into the inputs at ``at``."""
        e = phase.elemental
        old = [build.load(phase.results[n], at, x.type.element) for n, x in enumerate(self.inputs)]
        new = [e.value(x, update_index) for x in self.updates]
        values = e.call(self.node.symbol("to_apply"), [*old, *new], self.captures)
        for n, (value, x) in enumerate(zip(values, self.inputs, strict=True)):
            phase.store(n, value, at, x.type)

    def _update_index(self, batch: list[Index], window: list[Index]) -> list[Index]:
        where = self.node.dims("update_window_dims")
        outer, inner = iter(batch), iter(window)
        return [
            next(inner) if d in where else next(outer) for d in range(len(self.updates[0].shape))
        ]


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
