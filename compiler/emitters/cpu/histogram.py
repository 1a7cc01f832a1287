# SPDX-License-Identifier: Apache-2.0
"""The histogram emitter: counts that are written as a sum of indicators (:mod:`.histogram_problem`).

Each task counts a block of ids into tables of its own. The ids are first brought into a stage of 32-bit numbers, a
stretch at a time and in vectors, where whatever is no class becomes one class more, so that counting has no branches.
Neighbouring ids are counted in different tables: where they are equal, as in sorted data, the second would wait for the
store of the first. The tables are then summed, and the sums of the blocks by a second phase.
"""

from __future__ import annotations

import math

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    node_cost,
    reachable,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.histogram_problem import Histogram, histogram_of
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.elemental.contraction import reduce_operands, reducer_of
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import Target
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Ids staged at a time.
STRETCH = 1024
#: Blocks of one set of counts at most, and ids of a block at least.
BLOCKS, LEAST_BLOCK = 16, 4096
#: Columns of one task of the second phase.
COLUMNS = 2048

#: Cost of counting an id in tenths of a nanosecond.
_COST = 4

_COUNT = arithmetic.element_type("i32")


def tables_of(histogram: Histogram, target: Target) -> int:
    """The number of tables of a task: equal ids want many, the caches and few ids want few."""
    nbytes = (histogram.width + 1) * _COUNT.nbytes
    limits = {8: target.l1_bytes // 4, 4: target.l1_bytes // 2, 2: target.l2_bytes // 2}
    for tables, limit in limits.items():
        if tables * nbytes <= limit and tables * histogram.width <= 2 * histogram.count:
            return tables
    return 1


class HistogramEmitter:
    """Compiles a fusion whose result is one sum of indicators."""

    def __init__(self, source: FusionSource):
        self.source = source
        histogram = histogram_of(source.graph, source.functions)
        assert histogram is not None, "find-histograms gives this kind to histograms only"
        self.histogram: Histogram = histogram
        work = histogram.count * histogram.batches
        cost = _COST + sum(map(node_cost, reachable([histogram.ids])))
        self.parallel = worth_splitting(work, cost)
        self.tables = tables_of(histogram, source.target)
        self.blocks = self._blocks() if self.parallel else 1
        #: Length of one table, on cache-line boundaries: the classes, and one for all other ids.
        self.length = align_up((histogram.width + 1) * _COUNT.nbytes) // _COUNT.nbytes

    def _blocks(self) -> int:
        """Blocks of each set of counts: enough to share, but beside counting ids their tables must cost little."""
        count, width = self.histogram.count, self.histogram.width
        cheap = max(count // (4 * self.tables * width), min(2, count // width))
        return max(1, min(-(-BLOCKS // self.histogram.batches), count // LEAST_BLOCK, cheap))

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        histogram, several = self.histogram, self.blocks > 1
        tasks = histogram.batches * self.blocks
        self._sums = ArrayType((tasks, self.length), _COUNT)
        self._stage = ArrayType((STRETCH + self.tables,), _COUNT)
        self._tables = ArrayType((self.tables, self.length), _COUNT)
        self._offset = align_up(self._stage.nbytes)
        frame = KernelFrame(
            self.source, self._sums.nbytes if several else 0, self._offset + self._tables.nbytes
        )
        frame.phase(self._count, tasks, self.parallel)
        if several:
            chunks = -(-histogram.width // COLUMNS)
            frame.phase(
                self._combine,
                histogram.batches * chunks,
                worth_splitting(tasks * histogram.width, 1),
            )
        return frame.finish("histogram", histogram.count * histogram.batches)

    def _count(self, phase: PhaseFrame) -> None:
        """Count a block of ids; store the counts, or leave them to the second phase."""
        histogram = self.histogram
        tables = build.view(phase.scratch, self._offset, self._tables)
        stage = build.view(phase.scratch, 0, self._stage)
        size = self.tables * self.length
        zero = build.constant(_COUNT, 0)

        def clear(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.store(zero, build.flatten(tables), [at], _COUNT)
            return []

        def task(number: ir.Value) -> None:
            build.for_loop(0, size, clear)
            batch = build.div(number, self.blocks)
            block = build.mod(number, self.blocks)
            low = build.div(build.mul(block, histogram.count), self.blocks)
            high = build.div(build.mul(build.add(block, 1), histogram.count), self.blocks)

            def stretch(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                many = build.minimum(build.sub(high, at), STRETCH)
                self._fill(phase, stage, batch, at, many)
                self._add(stage, tables, many)
                return []

            build.for_loop(low, high, stretch, step=STRETCH)
            self._sum_tables(phase, tables, number)

        phase.each_task(task)

    def _fill(
        self, phase: PhaseFrame, stage: ir.Value, batch: Index, start: ir.Value, many: Index
    ) -> None:
        """Stage ``many`` ids from ``start`` on, and as many of no class as make whole turns of :meth:`_add`."""
        histogram, e = self.histogram, phase.elemental
        outside = build.constant(_COUNT, histogram.width)
        shape = histogram.ids.shape
        outer = build.delinearize(batch, [shape[d] for d in histogram.batch])

        def one(offset: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            at: list[Index] = [0] * len(shape)
            reduced = build.delinearize(
                build.add(start, offset), [shape[d] for d in histogram.reduced]
            )
            for d, component in zip(histogram.reduced, reduced, strict=True):
                at[d] = component
            for d, component in zip(histogram.batch, outer, strict=True):
                at[d] = component
            with e.scope():
                value = self._class(e.value(histogram.ids, at))
            build.store(value, stage, [offset], _COUNT)
            return []

        build.for_loop(0, many, one)
        for number in range(self.tables - 1):
            build.store(outside, stage, [build.add(many, number)], _COUNT)

    def _class(self, value: ir.Value) -> ir.Value:
        """An id in 32 bits; what is no class, negative numbers included, as the number of classes."""
        element, width = self.histogram.ids.type.element, self.histogram.width
        if element.bits < 32:
            wide = (arith.ExtUIOp if element.is_unsigned else arith.ExtSIOp)(
                build.register_type(_COUNT), value
            )
            value = wide.result
        element = _COUNT if element.bits < 32 else element
        value = arith.MinUIOp(value, build.constant(element, width)).result
        return arithmetic.convert(element, _COUNT, value)

    def _add(self, stage: ir.Value, tables: ir.Value, many: Index) -> None:
        """Count ``many`` staged ids, each table taking every ``tables``-th."""
        one = build.constant(_COUNT, 1)

        def turn(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            for number in range(self.tables):
                found = build.load(stage, [build.add(at, number)], _COUNT)
                where = [number, arith.IndexCastUIOp(ir.IndexType.get(), found).result]
                more = arith.AddIOp(build.load(tables, where, _COUNT), one).result
                build.store(more, tables, where, _COUNT)
            return []

        build.for_loop(0, many, turn, step=self.tables)

    def _sum_tables(self, phase: PhaseFrame, tables: ir.Value, task: ir.Value) -> None:
        """Sum a task's tables."""
        sums = build.view(phase.workspace, 0, self._sums) if self.blocks > 1 else None

        def column(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            total = build.load(tables, [0, at], _COUNT)
            for number in range(1, self.tables):
                total = arith.AddIOp(total, build.load(tables, [number, at], _COUNT)).result
            if sums is None:
                self._store(phase, task, at, total)
            else:
                build.store(total, sums, [task, at], _COUNT)
            return []

        build.for_loop(0, self.histogram.width, column)

    def _combine(self, phase: PhaseFrame) -> None:
        """Sum the blocks of a chunk of columns."""
        width = self.histogram.width
        chunks = -(-width // COLUMNS)
        sums = build.view(phase.workspace, 0, self._sums)

        def task(number: ir.Value) -> None:
            batch = build.div(number, chunks)
            low = build.mul(build.mod(number, chunks), COLUMNS)
            first = build.mul(batch, self.blocks)

            def column(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                total = build.load(sums, [first, at], _COUNT)
                for block in range(1, self.blocks):
                    more = build.load(sums, [build.add(first, block), at], _COUNT)
                    total = arith.AddIOp(total, more).result
                self._store(phase, batch, at, total)
                return []

            build.for_loop(low, build.minimum(build.add(low, COLUMNS), width), column)

        phase.each_task(task)

    def _store(self, phase: PhaseFrame, batch: Index, column: ir.Value, count: ir.Value) -> None:
        """Add the sum's initial value to a count and store it."""
        histogram, e = self.histogram, phase.elemental
        node, shape = histogram.node, histogram.ids.shape
        with e.scope():
            reducer = reducer_of(e, node)
            _, initial, _ = reduce_operands(node)
            start = reducer.enter([e.value(x, ()) for x in initial])
            total = arithmetic.convert(_COUNT, reducer.accumulators[0], count)
            value = reducer.leave(reducer.combine(start, [total]))[0]
        outer = iter(build.delinearize(batch, [shape[d] for d in histogram.batch]))
        kept = [d for d in range(len(shape)) if d not in histogram.reduced]
        index = [column if d == histogram.classes else next(outer) for d in kept]
        assert math.prod(node.shape) == histogram.batches * histogram.width
        phase.store(0, value, index, node.type)
