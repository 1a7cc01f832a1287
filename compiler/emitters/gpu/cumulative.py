# SPDX-License-Identifier: Apache-2.0
"""The cumulative emitter: scans of lines by blocks, warps or threads.

A *line* runs along the scanned dimension. Values are merged in the line's order throughout, so that the body need only
be associative, as StableHLO asks; the initial value takes part once, at the start.

* *blocks*: lines whose elements are neighbours. A block takes tiles of its line in turn; a thread scans its consecutive
  elements, lanes scan the threads' totals by shuffles, and a loop over the warps' totals in workgroup memory carries on
  from the tile before. Short lines take a part of a warp each, and no workgroup memory.
* *columns*: with a wide inner extent a thread scans a line, its neighbours the lines beside it; and very short lines.

A few long lines are cut into segments: one launch leaves the segments' totals in the workspace, a second scans each
segment from where the ones before it end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.cumulative import scanned_dimension
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.elemental.contraction import Reducer, reduce_operands, reducer_of
from gristmill.compiler.emitters.elemental.core import Elemental
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import power_above, where
from gristmill.compiler.emitters.gpu.warp import put, shuffle, take
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Threads of a block.
BLOCK = 256

#: Elements of one thread in a tile at most.
MOST_WIDTH = 8

#: Inner extent from which, and length up to which, a thread scans a line alone.
LEAST_COLUMNS, MOST_ALONE = WARP, 16

#: Segments of one line at most, and the elements that one should have for a block or a thread.
MOST_SEGMENTS, LEAST_BLOCK_SEGMENT, LEAST_THREAD_SEGMENT = 64, 4096, 64

#: Elements that a thread that scans a line alone loads together.
UNROLL = 4


class CumulativeEmitter:
    """Compiles one cumulative ``reduce_window``."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.inputs, self.initial, _ = reduce_operands(self.node)
        self.shape = self.inputs[0].shape
        dimension = scanned_dimension(self.node)
        assert dimension is not None, "the fusion pass gives this kind to cumulative windows only"
        self.dimension, self.length = dimension, self.shape[dimension]
        self.is_reversed = self.node.dims("padding_low")[dimension] == 0
        self.inner = math.prod(self.shape[dimension + 1 :])
        self.lines = math.prod(self.shape[:dimension]) * self.inner
        self.is_column = self.inner >= LEAST_COLUMNS or self.length <= MOST_ALONE
        nbytes = max(x.type.element.nbytes for x in self.inputs)
        self.width = max(1, min(MOST_WIDTH, BUFFER_ALIGNMENT // nbytes))
        self.threads = min(BLOCK, power_above(-(-self.length // self.width)))
        self._cut()

    def _cut(self) -> None:
        """Choose the segments of a line."""
        most = self.source.target.max_threads
        if self.is_column:
            tile, least, wanted = UNROLL, LEAST_THREAD_SEGMENT, most // (2 * self.lines)
        else:
            tile, least = self.threads * self.width, LEAST_BLOCK_SEGMENT
            wanted = most // (4 * BLOCK * self.lines)
        segments = max(1, min(MOST_SEGMENTS, wanted, self.length // least))
        # Whole tiles: a total must not count what is beyond the line.
        self.segment = self.length
        if segments > 1:
            self.segment = -(-self.length // (segments * tile)) * tile
        self.segments = -(-self.length // self.segment)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        size = self.node.type.size
        cut = self.segments > 1
        frame = GpuFrame(self.source, self._layout() if cut else 0)
        for stores in (False, True) if cut else (True,):
            if self.is_column:
                self._launch_columns(frame, stores)
            else:
                self._launch_blocks(frame, stores)
        return frame.finish("cumulative", size)

    def _layout(self) -> int:
        """Workspace: ``[segments, lines]`` totals of each value."""
        e = Elemental(self.source.graph, [], self.source.functions)
        self._places: list[tuple[int, ArrayType]] = []
        offset = 0
        for element in reducer_of(e, self.node).accumulators:
            array = ArrayType((self.segments, self.lines), element)
            self._places.append((offset, array))
            offset += align_up(array.nbytes)
        return offset

    def _totals(self, launch: LaunchFrame) -> list[ir.Value]:
        return [build.view(launch.workspace, offset, array) for offset, array in self._places]

    def _index(self, line: Index, position: Index) -> list[Index]:
        others = [s for d, s in enumerate(self.shape) if d != self.dimension]
        index = build.delinearize(line, others)
        at = build.sub(self.length - 1, position) if self.is_reversed else position
        index.insert(self.dimension, at)
        return index

    def _elements(
        self, launch: LaunchFrame, reducer: Reducer, line: Index, position: Index
    ) -> list[ir.Value]:
        index = self._index(line, position)
        return reducer.enter([launch.elemental.value(x, index) for x in self.inputs])

    def _store(
        self,
        launch: LaunchFrame,
        reducer: Reducer,
        line: Index,
        position: Index,
        values: Sequence[ir.Value],
    ) -> None:
        index, narrow = self._index(line, position), reducer.leave(values)
        for number, root in enumerate(self.source.graph.results):
            launch.store(number, narrow[root.result], index, root.type)

    def _start(
        self, launch: LaunchFrame, reducer: Reducer, line: Index, segment: Index
    ) -> list[ir.Value]:
        """The initial value and the totals of the segments before ``segment``."""
        first = reducer.enter([launch.elemental.value(x, ()) for x in self.initial])
        if self.segments == 1:
            return first
        totals = self._totals(launch)

        def before(number: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            total = take(totals, reducer.accumulators, (number, line))
            return reducer.combine(values, total)

        return build.for_loop(0, segment, before, first)

    # A thread for each line.

    def _launch_columns(self, frame: GpuFrame, stores: bool) -> None:
        # The last segment's total is not needed.
        count = self.segments if stores else self.segments - 1

        def scan(launch: LaunchFrame, item: Index) -> None:
            reducer = reducer_of(launch.elemental, self.node)
            segment, line = build.div(item, self.lines), build.mod(item, self.lines)
            first = build.mul(segment, self.segment)
            if stores:
                start = self._start(launch, reducer, line, segment)
                last = build.minimum(build.add(first, self.segment), self.length)
                self._scan_line(launch, reducer, line, (first, last), start, stores)
                return
            start = self._elements(launch, reducer, line, first)
            bounds = (build.add(first, 1), build.add(first, self.segment))
            total = self._scan_line(launch, reducer, line, bounds, start, stores)
            put(self._totals(launch), reducer.accumulators, total, (segment, line))

        launch_items(frame, count * self.lines, scan)

    def _scan_line(
        self,
        launch: LaunchFrame,
        reducer: Reducer,
        line: Index,
        bounds: tuple[Index, Index],
        start: list[ir.Value],
        stores: bool,
    ) -> list[ir.Value]:
        """Go on from ``start`` over the positions in ``bounds``."""
        unroll = UNROLL if stores and self.length % UNROLL == 0 else 1

        def step(position: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            with launch.elemental.scope():
                places = [build.add(position, lane) for lane in range(unroll)]
                loaded = [self._elements(launch, reducer, line, at) for at in places]
                for at, elements in zip(places, loaded, strict=True):
                    values = reducer.combine(values, elements)
                    if stores:
                        self._store(launch, reducer, line, at, values)
            return values

        return build.for_loop(*bounds, step, start, unroll)

    # A block, or a part of a warp, for each line.

    def _launch_blocks(self, frame: GpuFrame, stores: bool) -> None:
        threads = self.threads
        together = max(1, min(BLOCK // threads, power_above(self.lines))) if threads <= WARP else 1
        together = max(together, WARP // threads)  # whole warps
        count = self.segments if stores else self.segments - 1
        grid = -(-self.lines // together) * count

        def scan(launch: LaunchFrame) -> None:
            block, thread = launch.block_number(), launch.thread()
            segment, line = build.mod(block, count), build.div(block, count)
            inside = None
            if together > 1:
                line = build.add(build.mul(line, together), build.div(thread, threads))
                thread = build.mod(thread, threads)
                if self.lines % together:
                    inside = build.less(line, self.lines)
                    line = build.minimum(line, self.lines - 1)
            self._segment(launch, line, segment, thread, inside, stores)

        frame.launch(scan, (grid,), (threads * together,))

    def _segment(
        self,
        launch: LaunchFrame,
        line: Index,
        segment: Index,
        thread: Index,
        inside: ir.Value | None,
        stores: bool,
    ) -> None:
        reducer = reducer_of(launch.elemental, self.node)
        tile = self.threads * self.width
        first = build.mul(segment, self.segment)
        shared = self._warp_buffers(launch, reducer)

        def run(base: Index, carry: list[ir.Value]) -> list[ir.Value]:
            return self._tile(launch, reducer, line, base, thread, (carry, inside, shared, stores))

        if self.length <= tile:
            run(first, self._start(launch, reducer, line, segment))
            return
        last = build.minimum(build.add(first, self.segment), self.length)

        def turn(base: ir.Value, carry: list[ir.Value]) -> list[ir.Value]:
            with launch.elemental.scope():
                return run(base, carry)

        if stores:
            build.for_loop(first, last, turn, self._start(launch, reducer, line, segment), tile)
            return
        # Without an initial value: the total of the first tile is the first carry.
        start = self._tile(launch, reducer, line, first, thread, (None, inside, shared, stores))
        total = build.for_loop(build.add(first, tile), last, turn, start, tile)
        with where(build.equal(thread, 0)):
            put(self._totals(launch), reducer.accumulators, total, (segment, line))

    def _warp_buffers(self, launch: LaunchFrame, reducer: Reducer) -> list[ir.Value]:
        warps = self.threads // WARP
        if warps <= 1:
            return []
        return [launch.shared((warps,), build.storage_type(x)) for x in reducer.accumulators]

    def _tile(
        self,
        launch: LaunchFrame,
        reducer: Reducer,
        line: Index,
        base: Index,
        thread: Index,
        state: tuple[list[ir.Value] | None, ir.Value | None, list[ir.Value], bool],
    ) -> list[ir.Value]:
        """Scan one tile from ``base``; returns its last value.

        What is beyond the line is read at the line's end; it reaches no value that is stored.
        """
        carry, inside, shared, stores = state
        first = build.add(base, build.mul(thread, self.width))
        places = [build.add(first, lane) for lane in range(self.width)]
        whole = self.length % self.width == 0 and self.length % (self.threads * self.width) == 0
        scanned: list[list[ir.Value]] = []
        for at in places:
            limited = at if whole else build.minimum(at, self.length - 1)
            elements = self._elements(launch, reducer, line, limited)
            scanned.append(reducer.combine(scanned[-1], elements) if scanned else elements)
        lanes = min(self.threads, WARP)
        through = _scan_lanes(launch, reducer, scanned[-1], lanes)
        before, total = carry, through
        if shared:
            before, total = self._scan_warps(launch, reducer, through, carry, shared)
        if stores:
            assert before is not None, "stores have an initial value"
            exclusive = [shuffle(launch, value, 1, "up", lanes) for value in through]
            is_first = build.equal(build.mod(thread, lanes), 0)
            start = _choose(is_first, before, reducer.combine(before, exclusive))
            results = [reducer.combine(start, values) for values in scanned]
            for at, values in zip(places, results, strict=True):
                with where(inside, None if whole else build.less(at, self.length)):
                    self._store(launch, reducer, line, at, values)
        return total

    def _scan_warps(
        self,
        launch: LaunchFrame,
        reducer: Reducer,
        through: list[ir.Value],
        carry: list[ir.Value] | None,
        shared: list[ir.Value],
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """The values before this warp, ``carry`` included, and those after the last warp, in every thread."""
        warp, elements = launch.warp(), reducer.accumulators
        with where(build.equal(launch.lane(), WARP - 1)):
            put(shared, elements, through, (warp,))
        launch.barrier()
        count, skipped = len(elements), 0
        if carry is None:
            carry, skipped = take(shared, elements, (0,)), 1

        def merge(number: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            before, running = values[:count], values[count:]
            here = _choose(build.equal(number, warp), running, before)
            return [*here, *reducer.combine(running, take(shared, elements, (number,)))]

        warps = self.threads // WARP
        values = build.for_loop(skipped, warps, merge, [*carry, *carry])
        launch.barrier()
        return values[:count], values[count:]


def _scan_lanes(
    launch: LaunchFrame, reducer: Reducer, values: list[ir.Value], lanes: int
) -> list[ir.Value]:
    """Each lane's values merged with those of the lower lanes of its group of ``lanes``."""
    lane, offset = build.mod(launch.thread(), lanes), 1
    while offset < lanes:
        other = [shuffle(launch, value, offset, "up", lanes) for value in values]
        has_other = build.at_least(lane, offset)
        values = _choose(has_other, reducer.combine(other, values), values)
        offset *= 2
    return values


def _choose(
    condition: ir.Value, then: Sequence[ir.Value], otherwise: Sequence[ir.Value]
) -> list[ir.Value]:
    return [arith.SelectOp(condition, a, b).result for a, b in zip(then, otherwise, strict=True)]
