# SPDX-License-Identifier: Apache-2.0
"""The column emitter: reductions over major dimensions, threads side by side along the kept ones.

The operand's dimensions are batch B, reduced R and kept C, in that order. A block is a tile: x runs over *units* of
consecutive columns (one 16-byte access), so that a warp reads whole lines, y over the rows, every ``block.y``-th of
which a thread accumulates in registers. The block's rows then merge through workgroup memory. Where there are few
tiles, several blocks share the rows of each and leave partial values in the workspace; a second launch merges those in
the same way. With C empty (a reduction of everything) the row emitter does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, element_cost
from gristmill.compiler.emitters.cpu.reduction import reduced_groups
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.gpu.accumulation import Accumulation
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import (
    expand_unit,
    power_above,
    power_below,
    unit_width,
    where,
)
from gristmill.compiler.emitters.gpu.row import RowEmitter
from gristmill.compiler.emitters.gpu.warp import put, take
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Threads of one block.
BLOCK = 256

#: Rows that a thread should have at least where several blocks share the rows.
LEAST_ROWS = 8

#: Partial values of one row at one column.
RowValues = Callable[[Index, Sequence[Index]], list[ir.Value]]


class ColumnEmitter:
    """Compiles a fusion whose results are all those of one ``reduce`` op over major dimensions."""

    def __init__(self, source: FusionSource):
        assert isinstance(source.target, GpuTarget)
        self.source = source
        self.node: Node = source.graph.results[0]
        groups = reduced_groups(self.node)
        assert groups is not None, "the fusion pass gives column only to consecutive dimensions"
        self.batch, self.reduced, self.kept = groups
        self.rows = math.prod(self.reduced)
        e = Elemental(source.graph, [], source.functions)
        self.elements = Accumulation(e, self.node).elements
        # The threads of a block meet in workgroup memory, which has room for the values of so many columns.
        room = power_below(
            max(1, source.target.shared_bytes // sum(x.nbytes for x in self.elements))
        )
        width = unit_width(source.graph, self.node.operands[0].type.size, self.kept)
        self.width = min(width, max(1, room // BLOCK))
        self.units = math.prod(self.kept) // self.width
        self.across = min(WARP, room, power_above(self.units))
        self.down = min(BLOCK, room) // self.across
        self.tiles = -(-self.units // self.across)
        tiles = self.tiles * math.prod(self.batch)
        most = min(
            2 * source.target.multiprocessors // tiles, self.rows // (self.down * LEAST_ROWS)
        )
        self.parts = power_below(max(1, most))

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        if math.prod(self.kept) == 1:
            return RowEmitter(self.source, "column").emit()
        split = self.parts > 1
        frame = GpuFrame(self.source, self._layout() if split else 0)
        tiles, block = self.tiles * math.prod(self.batch), (self.across, self.down)
        frame.launch(self._accumulate, (tiles * self.parts,), block)
        if split:
            frame.launch(self._combine, (tiles,), block)
        work = self.node.operands[0].type.size * element_cost(self.source.graph)
        return frame.finish("column", work)

    def _layout(self) -> int:
        """Workspace: ``[parts, B, C]`` of each partial value."""
        shape = (self.parts, math.prod(self.batch), math.prod(self.kept))
        offset = 0
        self._places: list[tuple[int, ArrayType]] = []
        for element in self.elements:
            array = ArrayType(shape, element)
            self._places.append((offset, array))
            offset += align_up(array.nbytes)
        return offset

    def _views(self, launch: LaunchFrame) -> list[ir.Value]:
        return [build.view(launch.workspace, offset, array) for offset, array in self._places]

    def _accumulate(self, launch: LaunchFrame) -> None:
        """A block's share of the rows of its tile."""
        accumulation = Accumulation(launch.elemental, self.node)
        block = launch.block_number()
        part, tile = build.mod(block, self.parts), build.div(block, self.parts)
        share = -(-self.rows // self.parts)
        first = build.mul(part, share)
        last = build.minimum(build.add(first, share), self.rows)
        number = build.div(tile, self.tiles)
        batch = build.delinearize(number, self.batch)

        def row(at: Index, column: Sequence[Index]) -> list[ir.Value]:
            reduced = build.delinearize(at, self.reduced)
            return accumulation.of([*batch, *reduced, *column])

        def store(column: Sequence[Index], values: list[ir.Value]) -> None:
            if self.parts == 1:
                self._store(launch, accumulation, [*batch, *column], values)
            else:
                at = (part, number, build.linearize(column, self.kept))
                put(self._views(launch), accumulation.elements, values, at)

        self._tile(launch, accumulation, tile, (first, last), row, store)

    def _combine(self, launch: LaunchFrame) -> None:
        """Merge the parts of one tile."""
        accumulation = Accumulation(launch.elemental, self.node)
        tile = launch.block_number()
        number = build.div(tile, self.tiles)
        batch = build.delinearize(number, self.batch)
        views = self._views(launch)

        def part(at: Index, column: Sequence[Index]) -> list[ir.Value]:
            position = build.linearize(column, self.kept)
            return take(views, accumulation.elements, (at, number, position))

        def store(column: Sequence[Index], values: list[ir.Value]) -> None:
            self._store(launch, accumulation, [*batch, *column], values)

        self._tile(launch, accumulation, tile, (0, self.parts), part, store)

    def _store(
        self,
        launch: LaunchFrame,
        accumulation: Accumulation,
        index: Sequence[Index],
        values: list[ir.Value],
    ) -> None:
        results = accumulation.finish(values)
        for number, root in enumerate(self.source.graph.results):
            launch.store(number, results[root.result], index, root.type)

    def _tile(
        self,
        launch: LaunchFrame,
        accumulation: Accumulation,
        tile: Index,
        rows: tuple[Index, Index],
        row_values: RowValues,
        store: Callable[[Sequence[Index], list[ir.Value]], None],
    ) -> None:
        """Merge ``row_values`` of all ``rows`` at the tile's columns and ``store`` them."""
        x, y = launch.thread(), launch.thread(1)
        unit = build.add(build.mul(build.mod(tile, self.tiles), self.across), x)
        inside = None
        if self.units % self.across:
            inside = build.less(unit, self.units)
            unit = build.minimum(unit, self.units - 1)
        columns = expand_unit(unit, self.width, self.kept)
        count = len(accumulation.elements)

        def row(at: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
            with launch.elemental.scope():
                result: list[ir.Value] = []
                for number, column in enumerate(columns):
                    old = flat[number * count : (number + 1) * count]
                    result += accumulation.merge(old, row_values(at, column))
                return result

        first, last, step = build.add(rows[0], y), rows[1], self.down
        if accumulation.ordered:  # neighbouring rows to one thread
            share = build.div(build.add(build.sub(rows[1], rows[0]), self.down - 1), self.down)
            first = build.add(rows[0], build.mul(y, share))
            last, step = build.minimum(build.add(first, share), rows[1]), 1
        initial = [value for _ in columns for value in accumulation.start()]
        flat = build.for_loop(first, last, row, initial, step)
        values = [flat[i : i + count] for i in range(0, len(flat), count)]
        values = self._merge_rows(launch, accumulation, values)
        is_first = build.equal(y, 0) if self.down > 1 else None
        with where(inside, is_first):
            for column, merged in zip(columns, values, strict=True):
                store(column, merged)

    def _merge_rows(
        self, launch: LaunchFrame, accumulation: Accumulation, values: list[list[ir.Value]]
    ) -> list[list[ir.Value]]:
        """Merge the threads of each column pairwise, in order; the result is in those of y = 0."""
        x, y, elements = launch.thread(), launch.thread(1), accumulation.elements
        shape = (self.down, self.width, self.across)
        buffers = [launch.shared(shape, build.storage_type(element)) for element in elements]
        kinds = [value.type for merged in values for value in merged]
        count, offset = len(elements), 1
        while offset < self.down:
            place = build.mod(y, 2 * offset)
            with where(build.equal(place, offset)):
                for lane, merged in enumerate(values):
                    put(buffers, elements, merged, (y, lane, x))
            launch.barrier()

            def merge(
                offset: int = offset, old: Sequence[list[ir.Value]] = values
            ) -> list[ir.Value]:
                result: list[ir.Value] = []
                for lane, merged in enumerate(old):
                    other = take(buffers, elements, (build.add(y, offset), lane, x))
                    result += accumulation.merge(merged, other)
                return result

            def keep(old: Sequence[list[ir.Value]] = values) -> list[ir.Value]:
                return [value for merged in old for value in merged]

            flat = build.if_else(build.equal(place, 0), kinds, merge, keep)
            values = [flat[i : i + count] for i in range(0, len(flat), count)]
            offset *= 2
        return values
