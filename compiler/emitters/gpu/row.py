# SPDX-License-Identifier: Apache-2.0
"""The row emitter: reductions over the minor dimensions and everything around them, a group of threads a row.

Stages are those of the CPU's row emitter (:func:`~gristmill.compiler.emitters.cpu.row_plan.plan_rows`): one pass
over the columns feeds the reductions of a stage, the last pass stores the full results. A thread takes *units* of
consecutive columns (one 16-byte access), every T-th unit of its row, so that neighbouring threads read neighbouring
units.

Where the body of a reduction may not commute, a thread takes consecutive units instead, and all merges keep their
order.

* Short rows: T is a power of two up to a warp and a block has several rows; partial values merge by shuffles.
* Long rows: T is the block; warps merge by shuffles, the block through workgroup memory.
* Few very long rows: several blocks a row, one launch a pass; partial values of the blocks lie in the workspace.

While a thread has few columns its passes are unrolled, and what one pass has loaded or computed is still in registers
in the next: softmax and layer norm read and write memory once. Otherwise later passes compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, element_cost
from gristmill.compiler.emitters.cpu.row_plan import (
    full_index,
    plan_rows,
    row_index,
    row_inplace_pairs,
)
from gristmill.compiler.emitters.elemental import Elemental, scalar_source
from gristmill.compiler.emitters.elemental.contraction import reduce_operands
from gristmill.compiler.emitters.gpu.accumulation import Accumulation
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import (
    expand_unit,
    power_above,
    power_below,
    unit_width,
    where,
)
from gristmill.compiler.emitters.gpu.warp import put, reduce_block, reduce_lanes, take
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Graph, Node
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Columns of one thread up to which its passes are unrolled: what they share stays in registers.
UNROLLED = 16

#: Threads of a block whose passes are unrolled, or are loops: the former need more registers.
MOST_UNROLLED, MOST_LOOPED = 512, 1024

#: Threads of a block that has several rows.
SHORT_BLOCK = 256

#: Columns that a block should have at least where several share a row.
LEAST_PART = 4096

#: Threads of a block where several share a row.
PART_BLOCK = 256


@dataclass(frozen=True)
class RowGeometry:
    """How rows map to threads.

    Attributes:
        width: columns of one unit.
        units: of one row.
        threads: of one row, in one block: a power of two.
        rows: of one block.
        parts: blocks of one row: a power of two.
        unrolled: whether a thread's passes are unrolled.
    """

    width: int
    units: int
    threads: int
    rows: int = 1
    parts: int = 1
    unrolled: bool = False

    @property
    def turns(self) -> int:
        """Units of one thread at most."""
        return -(-self.units // self.threads)


def plan_geometry(
    graph: Graph, rows: int, columns: Sequence[int], target: GpuTarget
) -> RowGeometry:
    """Choose the mapping for ``rows`` rows of ``columns``."""
    width = unit_width(graph, rows * math.prod(columns), columns)
    units = math.prod(columns) // width
    total = units * width
    parts = power_below(max(1, min(2 * target.multiprocessors // rows, total // LEAST_PART)))
    if rows * 2 <= target.multiprocessors and parts > 1:
        return RowGeometry(width, units, PART_BLOCK, parts=parts)
    enough = power_above(units)
    threads = min(enough, power_above(-(-total // UNROLLED)))
    # Few rows: more threads for each, down to one unit a thread.
    while threads < min(enough, MOST_UNROLLED) and rows * threads < target.max_threads // 2:
        threads *= 2
    unrolled = threads <= MOST_UNROLLED
    threads = min(threads, MOST_LOOPED)
    together = max(1, min(SHORT_BLOCK // threads, power_above(rows))) if threads <= WARP else 1
    if threads * together < WARP:
        together = WARP // threads  # whole warps: all lanes take part in shuffles
    return RowGeometry(width, units, threads, together, 1, unrolled)


@dataclass
class _Row:
    """One row as one thread sees it.

    Attributes:
        index: the row's, one entry for each leading dimension.
        number: the same, linear.
        thread: the thread's number among those of the row.
        inside: whether there is such a row; ``None`` where there always is.
        first, last: units of this block's part of the row.
    """

    index: list[Index]
    number: Index
    thread: Index
    inside: ir.Value | None
    first: Index
    last: Index


class RowEmitter:
    """Compiles a row fusion, or a reduction of everything; see the module docstring."""

    def __init__(self, source: FusionSource, kind: str = "row"):
        assert isinstance(source.target, GpuTarget)
        self.source, self.kind = source, kind
        self.plan = plan_rows(source.graph)
        self.rows = math.prod(self.plan.rows)
        self.geometry = plan_geometry(source.graph, self.rows, self.plan.columns, source.target)
        e = Elemental(source.graph, [], source.functions)
        reductions = [node for stage in self.plan.stages for node in stage]
        #: Whether some body may not commute, so that threads take consecutive units.
        self._ordered = any(Accumulation(e, node).ordered for node in reductions)
        self._expanded: dict[int, list[list[Index]]] = {}
        self._places: dict[Node, list[tuple[int, ArrayType]]] = {}

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        plan, geometry = self.plan, self.geometry
        loops = [*plan.stages, []]
        if geometry.parts == 1:
            frame = GpuFrame(self.source)
            grid = -(-self.rows // geometry.rows)
            frame.launch(self._whole, (grid,), (geometry.threads * geometry.rows,))
        else:
            frame = GpuFrame(self.source, self._layout())
            for loop in range(len(loops)):
                passes = bool(plan.full[loop] or loops[loop])
                parts, threads = (geometry.parts, geometry.threads) if passes else (1, WARP)
                body = partial(self._part, loop=loop, parts=parts)
                frame.launch(body, (self.rows * parts,), (threads,))
        work = self.rows * geometry.units * geometry.width * element_cost(self.source.graph)
        return frame.finish(self.kind, work, row_inplace_pairs(self.source.graph, plan))

    # One block, or a part of one, for each row.

    def _whole(self, launch: LaunchFrame) -> None:
        geometry, e = self.geometry, launch.elemental
        number: Index = launch.block_number()
        thread, inside = launch.thread(), None
        if geometry.rows > 1:
            number = build.add(
                build.mul(number, geometry.rows), build.div(thread, geometry.threads)
            )
            thread = build.mod(thread, geometry.threads)
            if self.rows % geometry.rows:
                inside = build.less(number, self.rows)
                number = build.minimum(number, self.rows - 1)
        row = self._row(number, thread, inside, 0, geometry.units)
        for loop, stage in enumerate([*self.plan.stages, []]):
            accumulations = [Accumulation(e, node) for node in stage]
            if stage or self.plan.full[loop]:
                values = self._pass(launch, row, loop, accumulations)
                self._merge(launch, accumulations, values, geometry.threads)
        self._store_per_row(launch, row)

    def _row(
        self, number: Index, thread: Index, inside: ir.Value | None, first: Index, last: Index
    ) -> _Row:
        index = build.delinearize(number, self.plan.rows)
        real = zip(index, self.plan.rows, strict=True)
        index = [i if size == 1 else build.index_value(i) for i, size in real]
        return _Row(index, number, thread, inside, first, last)

    def _merge(
        self,
        launch: LaunchFrame,
        accumulations: Sequence[Accumulation],
        values: Sequence[list[ir.Value]],
        threads: int,
    ) -> list[list[ir.Value]]:
        """Merge the threads' values and give the reductions' results to the computation."""
        merged: list[list[ir.Value]] = []
        for accumulation, partial_values in zip(accumulations, values, strict=True):
            merged.append(
                reduce_block(
                    launch,
                    partial_values,
                    accumulation.elements,
                    accumulation.merge,
                    threads,
                    ordered=accumulation.ordered,
                )
            )
            _bind(launch.elemental, accumulation, merged[-1])
        return merged

    def _pass(
        self, launch: LaunchFrame, row: _Row, loop: int, accumulations: Sequence[Accumulation]
    ) -> list[list[ir.Value]]:
        """One pass over the columns of a thread: stores what is due, returns the partial values."""
        values = [a.start() for a in accumulations]
        if not self.geometry.unrolled:
            return self._looped(launch, row, loop, accumulations, values)
        geometry = self.geometry
        for turn in range(geometry.turns):
            unit = build.add(row.thread, turn * geometry.threads)
            whole = (turn + 1) * geometry.threads <= geometry.units
            if self._ordered:  # neighbouring units to one thread
                unit = build.add(build.mul(row.thread, geometry.turns), turn)
                whole = geometry.turns * geometry.threads == geometry.units
            valid = None
            if not whole:
                valid = build.less(unit, geometry.units)
                unit = build.minimum(unit, geometry.units - 1)
            columns = self._columns(turn, unit)
            values = self._unit(launch, row, loop, columns, valid, accumulations, values)
        return values

    def _looped(
        self,
        launch: LaunchFrame,
        row: _Row,
        loop: int,
        accumulations: Sequence[Accumulation],
        values: Sequence[list[ir.Value]],
    ) -> list[list[ir.Value]]:
        counts = [len(v) for v in values]

        def turn(unit: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
            with launch.elemental.scope():
                current = _split(flat, counts)
                columns = expand_unit(unit, self.geometry.width, self.plan.columns)
                merged = self._unit(launch, row, loop, columns, None, accumulations, current)
                return [value for values in merged for value in values]

        first, last, step = build.add(row.first, row.thread), row.last, self.geometry.threads
        if self._ordered:  # neighbouring units to one thread
            share = -(-self.geometry.units // (self.geometry.parts * self.geometry.threads))
            first = build.add(row.first, build.mul(row.thread, share))
            last, step = build.minimum(build.add(first, share), row.last), 1
        flat = [value for x in values for value in x]
        return _split(build.for_loop(first, last, turn, flat, step), counts)

    def _columns(self, turn: int, unit: Index) -> list[list[Index]]:
        """The unit's column indices: the same SSA values in every pass, so that values are found again."""
        if turn not in self._expanded:
            self._expanded[turn] = expand_unit(unit, self.geometry.width, self.plan.columns)
        return self._expanded[turn]

    def _unit(
        self,
        launch: LaunchFrame,
        row: _Row,
        loop: int,
        columns: Sequence[Sequence[Index]],
        valid: ir.Value | None,
        accumulations: Sequence[Accumulation],
        values: Sequence[list[ir.Value]],
    ) -> list[list[ir.Value]]:
        """One unit: accumulate its elements, store its full results."""
        shape = (*self.plan.rows, *self.plan.columns)
        indices = [[*row.index, *column] for column in columns]
        merged = list(values)
        for number, accumulation in enumerate(accumulations):
            source = reduce_operands(accumulation.node)[0][0]
            for index in indices:
                at = full_index(source, index, shape)
                merged[number] = accumulation.add(merged[number], at, valid)
        stores: list[tuple[int, ir.Value, list[Index], ArrayType]] = []
        for number, node in self.plan.full[loop]:
            for index in indices:
                at = full_index(node, index, shape)
                stores.append((number, launch.elemental.value(node, at), at, node.type))

        if stores:
            with where(row.inside, valid):
                for item in stores:
                    launch.store(*item)
        return merged

    def _store_per_row(self, launch: LaunchFrame, row: _Row) -> None:
        """The thread with number 0 of the row stores the row's results."""
        stores: list[tuple[int, ir.Value, list[Index], ArrayType]] = []
        for number, node in self.plan.per_row:
            index = row_index(node, row.index)
            stores.append((number, launch.elemental.value(node, index), index, node.type))

        if stores:
            is_first = build.equal(row.thread, 0) if self.geometry.threads > 1 else None
            with where(row.inside, is_first):
                for item in stores:
                    launch.store(*item)

    # Several blocks for each row.

    def _layout(self) -> int:
        """Place the blocks' partial values in the workspace, ``[rows * parts]`` each; returns its size."""
        e = Elemental(self.source.graph, [], self.source.functions)
        offset = 0
        for node in (node for stage in self.plan.stages for node in stage):
            places: list[tuple[int, ArrayType]] = []
            for element in Accumulation(e, node).elements:
                array = ArrayType((self.rows * self.geometry.parts,), element)
                places.append((offset, array))
                offset += align_up(array.nbytes)
            self._places[node] = places
        return offset

    def _part(self, launch: LaunchFrame, loop: int, parts: int) -> None:
        """Pass number ``loop`` over a block's part of its row."""
        e = launch.elemental
        row = self._part_of_row(launch, parts)
        for stage in self.plan.stages[:loop]:
            for node in stage:
                self._take_partials(launch, Accumulation(e, node), row.number)
        stage = [*self.plan.stages, []][loop]
        accumulations = [Accumulation(e, node) for node in stage]
        if stage or self.plan.full[loop]:
            values = self._pass(launch, row, loop, accumulations)
            merged = self._merge(launch, accumulations, values, self.geometry.threads)
            self._put_partials(launch, accumulations, merged)
        if loop == len(self.plan.stages):
            is_first = build.equal(build.mod(launch.block_number(), parts), 0)
            row.inside = is_first if parts > 1 else None
            self._store_per_row(launch, row)

    def _part_of_row(self, launch: LaunchFrame, parts: int) -> _Row:
        block, units = launch.block_number(), self.geometry.units
        part, share = build.mod(block, parts), -(-units // parts)
        first = build.mul(part, share)
        last = build.minimum(build.add(first, share), units)
        return self._row(build.div(block, parts), launch.thread(), None, first, last)

    def _views(self, launch: LaunchFrame, accumulation: Accumulation) -> list[ir.Value]:
        places = self._places[accumulation.node]
        return [build.view(launch.workspace, offset, array) for offset, array in places]

    def _put_partials(
        self,
        launch: LaunchFrame,
        accumulations: Sequence[Accumulation],
        merged: Sequence[list[ir.Value]],
    ) -> None:
        with build.if_then(build.equal(launch.thread(), 0)):
            for accumulation, values in zip(accumulations, merged, strict=True):
                views = self._views(launch, accumulation)
                put(views, accumulation.elements, values, (launch.block_number(),))

    def _take_partials(self, launch: LaunchFrame, accumulation: Accumulation, row: Index) -> None:
        """Merge the partial values of the row's blocks, in every thread."""
        parts, elements = self.geometry.parts, accumulation.elements
        views = self._views(launch, accumulation)
        lanes = min(parts, WARP)
        base = build.add(
            build.mul(row, parts), build.mul(build.mod(launch.lane(), lanes), parts // lanes)
        )
        values = take(views, elements, (base,))
        for number in range(1, parts // lanes):
            other = take(views, elements, (build.add(base, number),))
            values = accumulation.merge(values, other)
        merged = reduce_lanes(
            launch, values, accumulation.merge, lanes, ordered=accumulation.ordered
        )
        _bind(launch.elemental, accumulation, merged)


def _bind(e: Elemental, accumulation: Accumulation, values: list[ir.Value]) -> None:
    results = accumulation.finish(values)
    for sibling, value in zip(accumulation.node.siblings, results, strict=True):
        e.bind(sibling, scalar_source(value))


def _split(flat: Sequence[ir.Value], counts: Sequence[int]) -> list[list[ir.Value]]:
    values = iter(flat)
    return [[next(values) for _ in range(count)] for count in counts]
