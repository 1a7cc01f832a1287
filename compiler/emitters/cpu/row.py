# SPDX-License-Identifier: Apache-2.0
"""The row emitter: reductions over the minor dimensions and everything around them, one row at a time.

A row fusion's values are *full* (leading dimensions R, minor dimensions C) or *per row* (shape R, up to unit
dimensions); every ``reduce`` in it reduces exactly C. So each row is computed alone, in a few loops over its C
elements that stay in the L1 cache: softmax and layer norm read and write memory once.

Stages. A reduction that depends on no other belongs to stage 0, one that depends on reductions of stage *s* to stage
*s* + 1. Stage *s* is one loop over the columns that feeds all its reductions; the last loop stores the full results.
Values that are dear (an exponential, say) and needed again in a later loop are kept in a row buffer in scratch
memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlir import ir
from mlir.dialects import llvm

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import extremum, reduction, softmax, streaming
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    argument_of,
    element_cost,
    interleaving,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.loop import STRETCH
from gristmill.compiler.emitters.cpu.row_plan import (
    full_index,
    merged_columns,
    plan_rows,
    row_index,
    row_inplace_pairs,
)
from gristmill.compiler.emitters.cpu.short_rows import ShortRows, are_short
from gristmill.compiler.emitters.cpu.softmax_rows import SoftmaxRows
from gristmill.compiler.emitters.elemental import Elemental, scalar_source
from gristmill.compiler.emitters.elemental.contraction import reducer_of
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Bytes of a row that are prefetched at most.
MOST_PREFETCHED = 8 * 1024


class RowEmitter:
    """Compiles a row fusion; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.plan = plan_rows(source.graph)
        self.width = math.prod(self.plan.columns)
        self._merged = merged_columns(source.graph, self.plan)
        # Offsets in scratch memory: of kept nodes, of the stages of streamed results, of reductions in lanes.
        self._offsets: dict[Node, int] = {}
        self._stages: dict[int, int] = {}
        self._lane_offset = 0
        shape, rank = (*self.plan.rows, *self.plan.columns), len(self.plan.rows)
        known = source.target.fma and source.target.triple.startswith("x86_64")
        results = source.graph.results if known else []
        roots = [node for _, node in self.plan.full[-1]] if known else []
        self._softmaxes = softmax.find(roots, shape, rank, source.functions)
        sums = softmax.find_sums(results, rank, source.functions)
        self._unordered = softmax.unordered(sums, results)
        self._by_vectors = self._plan_power_pass(sums)
        # The least elements of the row at hand, by the reduction that finds the largest.
        self._least: dict[Node, ir.Value] = {}

    def _plan_power_pass(self, sums: Sequence[softmax.PowerSum]) -> softmax.PowerSum | None:
        """The sum of exponentials that is all that the second pass computes, for it to do so by vectors.

        What they are of is kept in a row buffer unless an argument holds it.
        """
        plan = self.plan
        least = softmax.LEAST_BLOCKS * softmax.block_of(self.source.target)
        wide = len(plan.columns) == 1 and self.width >= least
        if not wide or len(plan.stages) != 2 or plan.full[1] or len(sums) != 1:
            return None
        (found,) = sums
        alone = plan.stages == [[found.largest], [found.total]]
        if not alone or plan.kept[1] not in ([], [found.power]):
            return None
        if argument_of(found.x) is None and found.x not in plan.kept[0]:
            plan.kept[0].append(found.x)
        return found

    def emit(self) -> KernelDefinition:
        """Emit the kernel: tasks are rows."""
        plan, width = self.plan, self.width
        short = are_short(self.source, plan)
        frame = KernelFrame(self.source, scratch_bytes=0 if short else self.lay_out(0))
        rows = math.prod(plan.rows)
        cost = element_cost(self.source.graph)
        body = ShortRows(self.source, plan).emit if short else self._rows
        frame.phase(body, max(1, rows), worth_splitting(rows * width, cost))
        return frame.finish("row", rows * width * cost, row_inplace_pairs(self.source.graph, plan))

    def lay_out(self, scratch: int) -> int:
        """Place what a row needs in scratch memory from byte ``scratch`` on; returns where that ends."""
        plan, width = self.plan, self.width
        for node in (n for kept in plan.kept for n in kept):
            self._offsets[node] = scratch
            scratch += align_up(width * node.type.element.nbytes)
        for number, node in (item for full in plan.full for item in full):
            if streaming.streams_rows(self.source, number, width):
                self._stages[number] = scratch
                scratch += align_up(width * node.type.element.nbytes)
        self._lane_offset = scratch
        lane_bytes = max(
            (reduction.lane_bytes(node) for stage in plan.stages for node in stage), default=0
        )
        return scratch + lane_bytes

    def _rows(self, phase: PhaseFrame) -> None:
        def any_rows() -> list[ir.Value]:
            phase.each_task(lambda row: self.row(phase, row))
            return []

        def softmax_rows() -> list[ir.Value]:
            self._plain_softmax(phase).emit()
            return []

        if self._is_plain_softmax():
            aligned = streaming.is_aligned(build.flatten(phase.results[0]), self.source.target)
            build.if_else(aligned, [], softmax_rows, any_rows)
        else:
            any_rows()
        if self._stages:
            streaming.finish(self.source.target)

    def row(
        self, phase: PhaseFrame, task: ir.Value, targets: Mapping[int, ir.Value] | None = None
    ) -> None:
        """Compute row ``task``; results that have one of ``targets``, of a row or of one element, go there."""
        plan, targets = self.plan, targets or {}
        row = build.delinearize(task, plan.rows)
        for loop, stage in enumerate([*plan.stages, []]):
            if loop == 1:
                self._prefetch(phase, task)
            if loop == 1 and self._by_vectors is not None:
                self._powers(phase, row, self._by_vectors)
            elif stage:
                self._columns(phase, row, loop, stage, targets)
            elif plan.full[loop]:
                self._last(phase, row, loop, targets)
        for number, node in plan.per_row:
            index = row_index(node, row)
            value = phase.elemental.value(node, index)
            if number in targets:
                build.store(value, targets[number], (0,), node.type.element)
            else:
                phase.store(number, value, index, node.type)

    def _last(
        self, phase: PhaseFrame, row: list[Index], loop: int, targets: Mapping[int, ir.Value]
    ) -> None:
        """The last pass over a row, which stores results."""

        def emit() -> None:
            if self._in_stretches(loop):
                self._stretches(phase, row, loop)
            else:
                self._columns(phase, row, loop, [], targets)

        first = [*row, *(0 for _ in self.plan.columns)]
        softmax.by_reciprocals(phase.elemental, self._softmaxes, self._least, first, emit)

    def _in_stretches(self, loop: int) -> bool:
        """Whether loop ``loop`` does nothing but store results, all of them streamed, over one dimension."""
        full = self.plan.full[loop]
        streamed = bool(full) and all(number in self._stages for number, _ in full)
        return streamed and len(self.plan.columns) == 1 and self.width % STRETCH == 0

    def _is_plain_softmax(self) -> bool:
        """Whether the kernel is the softmax of the rows of an argument and nothing else, and is streamed."""
        found = self._by_vectors
        return (
            found is not None
            and argument_of(found.x) is not None
            and [x.quotient for x in self._softmaxes if x.total is found.total]
            == self.source.graph.results
            and 0 in self._stages
            and self.width % softmax.block_of(self.source.target) == 0
        )

    def _plain_softmax(self, phase: PhaseFrame) -> SoftmaxRows:
        found = self._by_vectors
        assert found is not None
        argument = argument_of(found.x)
        assert argument is not None
        return SoftmaxRows(
            phase,
            found,
            phase.arguments[argument.result],
            self._row_buffer(phase, found.power),
            self.plan.rows,
            self.width,
            self._is_asked_for(argument),
            self.source.target,
        )

    def _powers(self, phase: PhaseFrame, row: list[Index], found: softmax.PowerSum) -> None:
        """The second pass over a row: the exponentials of ``found`` and their sum, by vectors."""
        e, target = phase.elemental, self.source.target
        argument, start, ahead = argument_of(found.x), 0, 0
        if argument is None:
            x = self._row_buffer(phase, found.x)
        else:
            x, start = build.flatten(phase.arguments[argument.result]), self._start(row)
            # Two rows on: lines of the next one would be wanted before they come.
            ahead = 2 * self.width if argument in self._asked(e) else 0
        kept = found.power in self._offsets
        powers = self._row_buffer(phase, found.power) if kept else None
        block = softmax.block_of(target)
        power_pass = softmax.PowerPass(x, start, powers, self.width, block, found.below, ahead)
        largest = e.value(found.largest, row_index(found.largest, row))
        number = power_pass.emit(e.value(found.top, [*row, 0]), largest, self._least[found.largest])
        total = reduction.with_initial(e, found.total, row, target, number)
        e.bind(found.total, scalar_source(total))
        if powers is not None:
            e.bind(found.power, self._row_source(powers, found.power))

    def _start(self, row: Sequence[Index]) -> Index:
        """Linear position of the first element of a row."""
        return build.mul(build.linearize(row, self.plan.rows), self.width)

    def _stretches(self, phase: PhaseFrame, row: list[Index], loop: int) -> None:
        """The last pass over a row whose results are streamed.

        Stretch by stretch, so that the stores past the caches, which memory takes slowly, alternate with arithmetic.
        """
        e, full = phase.elemental, self.plan.full[loop]
        shape = (*self.plan.rows, *self.plan.columns)
        stages = {number: self._stage(phase, number) for number, _ in full}
        start = self._start(row)
        count = interleaving(self.source.graph, STRETCH, self.source.target)

        def column(low: Index, at: ir.Value) -> list[ir.Value]:
            with e.scope():
                index = [*row, build.add(low, at)]
                for number, node in full:
                    value = e.value(node, full_index(node, index, shape))
                    build.store(value, stages[number], (at,), node.type.element)
            return []

        def stretch(low: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, STRETCH, lambda at, _: column(low, at), interleave=count)
            for number, staged in stages.items():
                array, target = self.source.results[number], self.source.target
                where = build.add(start, low)
                streaming.copy_out(staged, phase.results[number], where, STRETCH, array, target)
            return []

        build.for_loop(0, self.width, stretch, step=STRETCH)

    def _prefetch(self, phase: PhaseFrame, number: ir.Value) -> None:
        """Ask for the next row of large arguments: hardware prefetchers follow a row, not from one row to the next."""
        rows, asked = math.prod(self.plan.rows), self._asked(phase.elemental)
        # LLVM orders loads and prefetches as it likes; what was read so far comes first.
        llvm.InlineAsmOp(None, [], "", "~{memory}", has_side_effects=True)
        following = build.minimum(build.add(number, 1), rows - 1)
        start = build.mul(following, self.width)
        for parameter, buffer in zip(self.source.graph.parameters, phase.arguments, strict=True):
            step = build.LINE_BYTES // parameter.type.element.nbytes
            if not self._is_asked_for(parameter) or parameter in asked:
                continue
            flat = build.flatten(buffer)

            def line(at: ir.Value, _: list[ir.Value], flat: ir.Value = flat) -> list[ir.Value]:
                build.prefetch(flat, build.add(start, at))
                return []

            build.for_loop(0, self.width, line, step=step)

    def _is_asked_for(self, parameter: Node) -> bool:
        """Whether a parameter is large, and its rows no longer than prefetchers need help with."""
        rows, array = math.prod(self.plan.rows), parameter.type
        large = array.size == rows * self.width and array.nbytes > self.source.target.l2_bytes
        return large and array.nbytes // rows <= MOST_PREFETCHED

    def _asked(self, e: Elemental) -> set[Node]:
        """Parameters whose next row is asked for while this one is searched, not all at once.

        With AVX-512 it is unknown whether that is better too.
        """
        plan, found = self.plan, set[Node]()
        if self.source.target.vector_bytes == 64 or len(plan.columns) != 1:
            return found
        if self._by_vectors is not None:
            parameter = argument_of(self._by_vectors.x)
            if parameter is not None and self._is_asked_for(parameter):
                found.add(parameter)
        for node in plan.stages[0] if plan.stages else []:
            search = extremum.plan(e, node, self.width, self.source.target)
            parameter = search and extremum.read_in_place(search, node.operands[0])
            if parameter is not None and self._is_asked_for(parameter):
                found.add(parameter)
        return found

    def _columns(
        self,
        phase: PhaseFrame,
        row: list[Index],
        loop: int,
        stage: list[Node],
        targets: Mapping[int, ir.Value],
    ) -> None:
        """One pass over the row: feed the reductions of ``stage``, keep and store what is due."""
        e = phase.elemental
        kept = [(node, self._row_buffer(phase, node)) for node in self.plan.kept[loop]]

        shape = (*self.plan.rows, *self.plan.columns)

        stages = {
            number: self._stage(phase, number)
            for number, _ in self.plan.full[loop]
            if number in self._stages
        }
        buffers = {**targets, **stages}

        def visit(column: Sequence[Index]) -> None:
            index = [*row, *column]
            position = build.linearize(column, self.plan.columns)
            for node, buffer in kept:
                element = node.type.element
                build.store(
                    e.value(node, full_index(node, index, shape)), buffer, (position,), element
                )
            for number, node in self.plan.full[loop]:
                at = full_index(node, index, shape)
                value = e.value(node, at)
                if number in buffers:
                    build.store(value, buffers[number], (position,), node.type.element)
                else:
                    phase.store(number, value, at, node.type)

        target = self.source.target
        groups = [reduction.accumulation(e, node, row, target, self._unordered) for node in stage]
        results = reduction.accumulate(
            e,
            self.plan.columns,
            groups,
            visit,
            phase.arguments,
            phase.scratch,
            self._lane_offset,
            self.source.target,
            self._asked(e) if loop == 0 else (),
            self._merged,
        )
        for node, group, values in zip(stage, groups, results, strict=True):
            if isinstance(group, reduction.Extreme) and group.opposite is not None:
                self._least[node] = group.opposite
            for sibling, value in zip(
                node.siblings, reducer_of(e, node).leave(values), strict=True
            ):
                e.bind(sibling, scalar_source(value))
        for number, staged in stages.items():
            start = self._start(row)
            array, target = self.source.results[number], self.source.target
            streaming.copy_out(staged, phase.results[number], start, self.width, array, target)
        for node, buffer in kept:
            e.bind(node, self._row_source(buffer, node))

    def _stage(self, phase: PhaseFrame, number: int) -> ir.Value:
        offset, array = self._stages[number], self.source.results[number]
        return streaming.stage(phase, offset, self.width, array)

    def _row_buffer(self, phase: PhaseFrame, node: Node) -> ir.Value:
        array = ArrayType((self.width,), node.type.element)
        return build.view(phase.scratch, self._offsets[node], array)

    def _row_source(self, buffer: ir.Value, node: Node):
        def source(index: Sequence[Index]) -> ir.Value:
            columns = self.plan.columns
            position = build.linearize(list(index)[-len(columns) :], columns)
            return build.load(buffer, (position,), node.type.element)

        return source
