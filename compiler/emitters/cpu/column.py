# SPDX-License-Identifier: Apache-2.0
"""The column emitter: reductions over major dimensions, and over everything.

The operand's dimensions are batch B, reduced R and kept C, in that order. Phase 0 gives each task a batch and a block
of rows: it streams them once, adding a few rows at a time into an accumulator row of C elements that stays in cache,
and leaves the partial accumulators in the workspace. Phase 1 combines the blocks' partials. With C empty (a reduction
of everything) a block is accumulated in registers instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import extremum, reduction
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    worth_splitting,
)
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.contraction import (
    loop_nest,
    reduce_operands,
    reducer_of,
    simple_reducer,
)
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.types import ArrayType, ElementType

#: Blocks that rows are split into when they are worth sharing between threads.
BLOCKS = 16

#: Rows added at a time: one at a time is a load and a store of an accumulator for each load of an element, four make
#: do with as many. More rows are more streams of memory than the prefetchers follow well. With AVX-512 neighbours,
#: repaid where accumulators are more than its registers hold, for a store of 64 bytes takes as long as two loads. With
#: shorter vectors a quarter of the block apart: while one stream waits, as its prefetcher starts anew at the next page,
#: three go on. docs/notes/2026-11-30-columns.md.
ROWS, _REGISTERS = 4, 32
#: Cost of an element, in tenths of a nanosecond, above which the accumulators no longer matter.
_CHEAP = 8
#: Columns up to which LLVM unrolls the loop over them and then makes vectors of rows, by gathers.
_UNROLLED = 48


class ColumnEmitter:
    """Compiles a fusion whose results are all those of one ``reduce`` op over major dimensions."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        groups = reduction.reduced_groups(self.node)
        assert groups is not None, "the fusion pass gives column only to consecutive dimensions"
        self.batch, self.reduced, self.kept = groups

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        elements = self.node.operands[0].type.size
        cost = element_cost(self.source.graph)
        parallel = worth_splitting(elements, cost)
        batches, rows = math.prod(self.batch), self.reduced[0]
        blocks = min(rows, max(1, BLOCKS // batches)) if parallel else 1
        self.blocks = max(1, blocks)
        self.group, self.rolled = self._rows_at_a_time(cost)
        self._layout()
        frame = KernelFrame(self.source, self.workspace_bytes, self.lane_bytes)
        frame.phase(self._partials, max(1, batches * self.blocks), parallel)
        frame.phase(self._combine, max(1, batches))
        return frame.finish("column", elements * cost)

    def _rows_at_a_time(self, cost: int) -> tuple[int, bool]:
        """How many rows are added at a time, and whether the loop over columns is kept from being unrolled."""
        target, accumulator = self.source.target, self._accumulators()[0]
        kind = simple_reducer(self.source.functions[self.node.symbol("to_apply")])
        quick = self._far or kind in ("add", "multiply") or not accumulator.is_float
        quick = quick and kind is not None and cost <= _CHEAP
        if not self.kept:
            long = self.blocks > 1 and self.reduced[0] >= 2 * ROWS * self.blocks
            return ROWS if self._far and quick and long else 1, False
        width, minor = math.prod(self.kept), self.kept[-1]
        vectors = minor // target.lanes(accumulator.nbytes)
        narrow = vectors > 0 and minor <= _UNROLLED
        repaid = self._far or vectors > _REGISTERS or width > minor
        several = vectors and quick and (narrow or repaid)
        return ROWS if several else 1, narrow

    @property
    def _far(self) -> bool:
        """Whether rows that are added at a time lie far apart."""
        return self.source.target.vector_bytes < 64

    def _layout(self) -> None:
        """Workspace: per accumulated value, ``[batches * blocks, C]`` partials on cache-line boundaries."""
        width = max(1, math.prod(self.kept))
        count = max(1, math.prod(self.batch) * self.blocks)
        self.partials: list[tuple[int, ArrayType]] = []
        offset = 0
        for element in self._accumulators():
            line = max(1, 64 // element.nbytes)
            padded = -(-width // line) * line  # no two tasks share a cache line
            array = ArrayType((count, padded), element)
            self.partials.append((offset, array))
            offset += -(-array.nbytes // 64) * 64
        self.workspace_bytes = offset
        self.lane_bytes = reduction.lane_bytes(self.node)

    def _accumulators(self) -> list[ElementType]:
        e = Elemental(self.source.graph, [], self.source.functions)
        return reducer_of(e, self.node).accumulators

    def _views(self, phase: PhaseFrame) -> list[ir.Value]:
        return [build.view(phase.workspace, offset, array) for offset, array in self.partials]

    def _put(
        self, views: Sequence[ir.Value], values: Sequence[ir.Value], at: Sequence[Index]
    ) -> None:
        for view, (_, array), value in zip(views, self.partials, values, strict=True):
            build.store(value, view, at, array.element)

    def _take(self, views: Sequence[ir.Value], at: Sequence[Index]) -> list[ir.Value]:
        return [
            build.load(view, at, array.element)
            for view, (_, array) in zip(views, self.partials, strict=True)
        ]

    def _partials(self, phase: PhaseFrame) -> None:
        views = self._views(phase)

        def task(iv: ir.Value) -> None:
            batch = build.delinearize(build.div(iv, self.blocks), self.batch)
            block = build.mod(iv, self.blocks)
            low = build.div(build.mul(block, self.reduced[0]), self.blocks)
            high = build.div(build.mul(build.add(block, 1), self.reduced[0]), self.blocks)
            self._block(phase, views, iv, batch, low, high)

        phase.each_task(task)

    def _block(
        self,
        phase: PhaseFrame,
        views: list[ir.Value],
        task: ir.Value,
        batch: list[Index],
        low: Index,
        high: Index,
    ) -> None:
        """Accumulate rows ``[low, high)`` of the first reduced dimension.

        The only block starts with the initial value; several start with their first element, for
        the initial value, which need not be neutral, is combined once.
        """
        if self.kept:
            inner = math.prod(self.reduced[1:])
            low, high = build.mul(low, inner), build.mul(high, inner)
            self._columns(phase.elemental, views, task, batch, low, high)
        else:
            self._put(views, self._everything(phase, batch, low, high), (task, 0))

    def _everything(
        self, phase: PhaseFrame, batch: list[Index], low: Index, high: Index
    ) -> list[ir.Value]:
        """The accumulators of ``[low, high)``, in registers.

        Rows of one accumulated value are read in as many streams as are added at a time: even parts of the block.
        """
        e, inner = phase.elemental, self.reduced[1:]
        reducer, width = reducer_of(e, self.node), len(self._accumulators())
        apart = build.div(build.sub(high, low), self.group)

        def first_of(stream: int) -> Index:
            return build.add(low, build.mul(apart, stream))

        def add(row: Index, at: Sequence[Index], values: list[ir.Value]) -> list[ir.Value]:
            """Combine an element of a row of each stream into its accumulators; ``values`` are those of all."""
            added: list[ir.Value] = []
            for stream in range(len(values) // width):
                place = [*batch, build.add(row, build.mul(apart, stream)), *at]
                taken = values[stream * width : (stream + 1) * width]
                added += reducer.combine(taken, self._elements(e, place))
            return added

        def rest_of_first(iv: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                return add(low, build.delinearize(iv, inner), values)

        def row(iv: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                return loop_nest(e, inner, values, lambda at, v: add(iv, at, v))

        def in_order() -> list[ir.Value]:
            with e.scope():
                if self.blocks == 1:
                    return build.for_loop(low, high, row, self._initial(e))
                values: list[ir.Value] = []
                for stream in range(self.group):
                    values += self._elements(e, [*batch, first_of(stream), *(0 for _ in inner)])
                if math.prod(inner) > 1:
                    values = build.for_loop(1, math.prod(inner), rest_of_first, values)
                values = build.for_loop(build.add(low, 1), first_of(1), row, values)
                if self.group == 1:
                    return values
                total = functools.reduce(lambda a, b: reducer.combine([a], [b])[0], values)
                return build.for_loop(first_of(self.group), high, row, [total])

        return self._extremum(phase, batch, low, high, in_order) or in_order()

    def _columns(
        self,
        e: Elemental,
        views: list[ir.Value],
        task: ir.Value,
        batch: list[Index],
        low: Index,
        high: Index,
    ) -> None:
        """Add rows ``[low, high)``, counted over all reduced dimensions, into the accumulators of ``task``."""
        reducer = reducer_of(e, self.node)

        def row_index(row: Index) -> list[Index]:
            return [*batch, *build.delinearize(row, self.reduced)]

        def clear(column: list[Index], _: list[ir.Value]) -> list[ir.Value]:
            only = self.blocks == 1
            start = self._initial(e) if only else self._elements(e, [*row_index(low), *column])
            self._put(views, start, (task, build.linearize(column, self.kept)))
            return []

        def add_rows(first: ir.Value, count: int, apart: Index = 1) -> list[ir.Value]:
            with e.scope():
                places = [build.add(first, build.mul(apart, number)) for number in range(count)]
                rows = [row_index(place) for place in places]

                def add(column: list[Index], _: list[ir.Value]) -> list[ir.Value]:
                    position = (task, build.linearize(column, self.kept))
                    added = [self._elements(e, [*row, *column]) for row in rows]
                    while len(added) > 1:  # as a tree: a chain would take as many times as long
                        pairs = zip(added[::2], added[1::2], strict=True)
                        added = [reducer.combine(one, two) for one, two in pairs]
                    taken = self._take(views, position)
                    self._put(views, reducer.combine(taken, added[0]), position)
                    return []

                loop_nest(e, self.kept, [], add, unroll=int(self.rolled))
            return []

        loop_nest(e, self.kept, [], clear)
        if self.blocks > 1:
            low = build.add(low, 1)
        groups = build.div(build.sub(high, low), self.group)
        middle = build.add(low, build.mul(groups, self.group))
        if self._far:
            end = build.add(low, groups)
            build.for_loop(low, end, lambda iv, _: add_rows(iv, self.group, groups))
        else:
            build.for_loop(low, middle, lambda iv, _: add_rows(iv, self.group), step=self.group)
        if self.group > 1:
            build.for_loop(middle, high, lambda iv, _: add_rows(iv, 1))

    def _elements(self, e: Elemental, at: Sequence[Index]) -> list[ir.Value]:
        """The elements at an index of the operands, as accumulators."""
        inputs, _, _ = reduce_operands(self.node)
        return reducer_of(e, self.node).enter([e.value(x, at) for x in inputs])

    def _extremum(
        self,
        phase: PhaseFrame,
        batch: list[Index],
        low: Index,
        high: Index,
        in_order: Callable[[], list[ir.Value]],
    ) -> list[ir.Value]:
        """The argmax or argmin of a block; empty if the reduction is none."""
        e, least = phase.elemental, self.reduced[0] // self.blocks
        plan = extremum.plan(e, self.node, least, self.source.target)
        if plan is None or len(self.reduced) > 1:
            return []
        source = self.node.operands[0]
        elements = extremum.Elements(e, source, batch, phase.arguments, phase.scratch, 0)
        values, nan = extremum.find(plan, elements, low, high)
        if self.blocks == 1:
            values = reducer_of(e, self.node).combine(self._initial(e), values)
        if nan is None:
            return values
        return build.if_else(nan, [v.type for v in values], in_order, lambda: values)

    def _initial(self, e: Elemental) -> list[ir.Value]:
        """The initial values, as accumulators."""
        _, initial, _ = reduce_operands(self.node)
        return reducer_of(e, self.node).enter([e.value(x, ()) for x in initial])

    def _combine(self, phase: PhaseFrame) -> None:
        """Combine the blocks of each batch and store the results."""
        views, e = self._views(phase), phase.elemental
        reducer = reducer_of(e, self.node)

        def batch_task(iv: ir.Value) -> None:
            base = build.mul(iv, self.blocks)
            batch = build.delinearize(iv, self.batch)

            def column_body(column: list[Index], _: list[ir.Value]) -> list[ir.Value]:
                position = build.linearize(column, self.kept)

                def block(number: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
                    row = build.add(base, number)
                    return reducer.combine(values, self._take(views, (row, position)))

                if self.blocks == 1:
                    final = self._take(views, (base, position))
                else:
                    final = build.for_loop(0, self.blocks, block, self._initial(e))
                for number, root in enumerate(self.source.graph.results):
                    value = reducer.leave(final)[root.result]
                    phase.store(number, value, [*batch, *column], root.type)
                return []

            loop_nest(e, self.kept, [], column_body)

        phase.each_task(batch_task)
