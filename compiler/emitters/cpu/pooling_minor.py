# SPDX-License-Identifier: Apache-2.0
"""Pooling with windows along the minor dimension: first whole rows are combined, then neighbours within a row.

The rows of the operand that a row of windows covers are combined by vectors into a *stage* in scratch memory, between
paddings that hold the operation's identity. The windows of a row are then vectors of the stage at the places of the
window's taps: shifted against each other with stride 1, every other element of two with stride 2, elements one by one
with others. A window of many taps is combined in two steps, see :class:`~.pooling_plan.Taps`.

A chunk of rows is staged before its windows are combined: what has just been stored is not yet to be had in vectors
that lie otherwise.

The largest and smallest floats are found as in :mod:`.pooling_extremes`; a chunk in doubt is reduced again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import vector_scan
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.pooling_extremes import Combine, bare
from gristmill.compiler.emitters.cpu.pooling_plan import MOST_WRITTEN, RowPlan, Taps, span_of
from gristmill.compiler.emitters.cpu.pooling_vectors import Strided, Vectors, each, halves
from gristmill.compiler.emitters.cpu.windows import WindowDimension, bounded_nest, row_strides
from gristmill.compiler.emitters.elemental import Elemental, arithmetic
from gristmill.compiler.emitters.elemental.contraction import reducer_of
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.types import ArrayType


@dataclass(frozen=True)
class _Way:
    """How elements are combined.

    Attributes:
        combine: the operation.
        is_watched: whether it may go wrong.
        is_rare: whether it is for what went wrong: then no taps are written out.
    """

    combine: Combine
    is_watched: bool = False
    is_rare: bool = False


@dataclass(frozen=True)
class _Chunk:
    """A chunk of rows of one plane.

    Attributes:
        outer: the plane.
        first, rows: its rows.
        begin, count: windows of a row.
    """

    outer: list[Index]
    first: Index
    rows: Index
    begin: Index
    count: Index


class MinorPoolingEmitter:
    """Compiles one ``reduce_window`` by the simple ``body`` over ``windows``, one for each dimension."""

    def __init__(self, source: FusionSource, windows: Sequence[WindowDimension], body: str):
        self.source, self.body = source, body
        self.node: Node = source.graph.results[0]
        self.windows, self.last = list(windows[:-1]), windows[-1]
        is_alone = all(w.is_plain for w in self.windows)
        if is_alone:
            rows = math.prod(w.outputs for w in self.windows)
            self.windows = [WindowDimension(1, 1, 1, 0, rows, rows)]
        if self.last.outputs == 1:  # as any other window that shares nothing with the next
            self.last = replace(self.last, stride=span_of(self.last, 1) + 2)
        narrow = self.node.type.element
        wide = reducer_of(Elemental(source.graph, [], source.functions), self.node).accumulators[0]
        self.vectors = Vectors(narrow, wide, source.target)
        self.plan = RowPlan.of(
            self.last,
            self.windows[-1].outputs,
            wide.nbytes,
            source.target,
            is_idempotent=body not in ("add", "multiply"),
            is_alone=is_alone,
        )

    @property
    def tasks(self) -> tuple[int, ...]:
        """Planes, chunks of a plane's rows and of a row."""
        return (*(w.outputs for w in self.windows[:-1]), *self.plan.chunks)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source, scratch_bytes=self.plan.stages * self.plan.stage_bytes)
        work = self.node.type.size * math.prod(w.size for w in (*self.windows, self.last))
        frame.phase(
            lambda phase: _RowPhase(self, phase).emit(),
            math.prod(self.tasks),
            worth_splitting(work, 1),
        )
        return frame.finish("pooling", work)


class _RowPhase:
    """Emits the phase of the kernel."""

    def __init__(self, emitter: MinorPoolingEmitter, phase: PhaseFrame):
        self.phase, self.body, self.tasks = phase, emitter.body, emitter.tasks
        self.plan, self.vectors = emitter.plan, emitter.vectors
        self.windows, self.last = emitter.windows, emitter.last
        operand, initial = emitter.node.operands[:2]
        self.operand = build.flatten(phase.arguments[operand.result])
        self.result = build.flatten(phase.results[0])
        self.strides = row_strides([w.extent for w in self.windows], self.last.extent)
        nbytes, wide = self.plan.stage_bytes, self.vectors.wide
        array = ArrayType((nbytes // wide.nbytes,), wide)
        stages = [
            build.view(phase.scratch, number * nbytes, array) for number in range(self.plan.stages)
        ]
        #: What taps are taken from.
        self.sources = stages or [self.operand]
        e = phase.elemental
        self.start = reducer_of(e, emitter.node).enter([e.value(initial, ())])[0]
        self.neutral = build.constant(wide, vector_scan.identity(self.body, wide))

    def emit(self) -> None:
        """Emit all tasks."""
        is_padded_once = self.plan.chunks[1] == 1
        if is_padded_once and not self.plan.is_direct:
            self._pad(0)

        def task(number: ir.Value) -> None:
            chunk = self._chunk(number)
            if not (is_padded_once or self.plan.is_direct):
                self._pad(chunk.begin)
            self._reduce(chunk)

        self.phase.each_task(task)

    def _chunk(self, task: ir.Value) -> _Chunk:
        *outer, row, column = build.delinearize(task, self.tasks)
        first, rows = _piece(row, self.plan.rows, self.plan.height)
        begin, count = _piece(column, self.plan.columns, self.last.outputs)
        return _Chunk(outer, first, rows, begin, count)

    def _reduce(self, chunk: _Chunk) -> None:
        if self.plan.is_direct:
            self._borders(chunk)
        if not (self.vectors.wide.is_float and self.body in ("maximum", "minimum")):
            self._reduce_by(chunk, _Way(self._exact))
            return
        fine = self._reduce_by(chunk, _Way(bare(self.body), is_watched=True))
        assert fine is not None, "it was watched"

        def again() -> list[ir.Value]:
            self._reduce_by(chunk, _Way(self._exact, is_rare=True))
            return []

        build.if_else(fine, [], list, again)

    def _exact(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arithmetic.binary(self.body, self.vectors.wide, a, b)

    def _reduce_by(self, chunk: _Chunk, way: _Way) -> ir.Value | None:
        """Reduce a chunk one way; returns whether all is fine, if it is watched."""
        fine = self.vectors.watch(1).ordered(self.start, self.start) if way.is_watched else None
        if not self.plan.is_direct:
            fine = self._stage_rows(chunk, way, fine)
        first, last = self.plan.taps(in_steps=not way.is_rare)
        if first is not None:
            self._first_step(chunk, way, first, max(x.reach for x in last if x.stage))
        return self._windows(chunk, way, last, fine)

    def _pad(self, begin: Index) -> None:
        """Fill what lies outside the operand of the first stage for windows from ``begin`` on."""
        low, high = self._inside(begin)

        def row(at: Index, _: ir.Value | None) -> None:
            into = self.plan.place(at)

            def fill(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                self.vectors.store(self.neutral, self.sources[0], build.add(into, position))
                return []

            build.for_loop(0, low, fill)
            build.for_loop(high, self.plan.span, fill)

        each(0, self.plan.rows, row, None)

    def _inside(self, begin: Index) -> tuple[Index, Index]:
        """The staged positions that lie inside the operand: first and end, for windows from ``begin`` on."""
        origin, span = self.last.origin(begin), self.plan.span
        low = build.minimum(build.maximum(build.sub(0, origin), 0), span)
        high = build.minimum(build.sub(self.last.extent, origin), span)
        return low, build.maximum(high, low)

    def _stage_rows(self, chunk: _Chunk, way: _Way, fine: ir.Value | None) -> ir.Value | None:
        """Combine the rows of the operand that each row of windows covers."""
        window = self.windows[-1]
        begin, end = window.interior
        for low, high, is_whole in (
            (0, begin, False),
            (begin, end, True),
            (end, window.outputs, False),
        ):

            def row(at: Index, fine: ir.Value | None, is_whole: bool = is_whole) -> ir.Value | None:
                with self.phase.elemental.scope():
                    return self._stage_row(chunk, at, way, fine, is_whole=is_whole)

            if low < high:
                after = build.add(chunk.first, chunk.rows)
                lower, upper = build.maximum(low, chunk.first), build.minimum(high, after)
                fine = each(lower, upper, row, fine)
        return fine

    def _stage_row(
        self, chunk: _Chunk, at: Index, way: _Way, fine: ir.Value | None, *, is_whole: bool
    ) -> ir.Value | None:
        bounds: list[tuple[Index, Index]] = []
        base = self.last.origin(chunk.begin)
        for window, index, stride in zip(
            self.windows, [*chunk.outer, at], self.strides, strict=True
        ):
            whole = window.is_inside or (is_whole and window is self.windows[-1])
            bounds.append((0, window.size) if whole else window.bounds(index))
            base = build.add(base, build.mul(window.origin(index), stride))
        into = self.plan.place(build.sub(at, chunk.first))
        low, high = self._inside(chunk.begin)

        def visit(position: Index, width: int, seen: list[ir.Value]) -> list[ir.Value]:
            value, *seen = self._column(bounds, build.add(base, position), width, way, seen)
            self.vectors.store(value, self.sources[0], build.add(into, position))
            return seen

        return self.vectors.sweep(low, build.sub(high, low), self.vectors.lanes, visit, fine)

    def _column(
        self,
        bounds: Sequence[tuple[Index, Index]],
        base: Index,
        width: int,
        way: _Way,
        seen: list[ir.Value],
    ) -> list[ir.Value]:
        """Combine the rows within ``bounds`` at ``width`` places; the notes follow the result."""

        def load(index: Sequence[Index]) -> ir.Value:
            at = base
            for offset, window, stride in zip(index, self.windows, self.strides, strict=True):
                at = build.add(at, build.mul(offset, window.dilation * stride))
            return self.vectors.load(self.operand, at, width)

        def step(index: list[Index], carried: list[ir.Value]) -> list[ir.Value]:
            loaded = load(index)
            notes = self.vectors.looked(carried[1:], [loaded], width)
            return [way.combine(carried[0], loaded), *notes]

        taps = [
            range(low, high)
            for low, high in bounds
            if isinstance(low, int) and isinstance(high, int)
        ]
        is_known = len(taps) == len(bounds) and not way.is_rare
        if is_known and 0 < math.prod(map(len, taps)) <= MOST_WRITTEN:
            loaded = [load(index) for index in itertools.product(*taps)]
            return [reduce(way.combine, loaded), *self.vectors.looked(seen, loaded, width)]
        initial = [self.vectors.spread(self.neutral, width), *seen]
        unroll = [int(way.is_rare)] * len(bounds)
        return bounded_nest(self.phase.elemental, bounds, initial, step, unroll=unroll)

    def _first_step(self, chunk: _Chunk, way: _Way, taps: Taps, reach: int) -> None:
        """Combine ``taps`` at every position up to ``reach`` after the beginning of the last window."""
        windows = build.mul(build.sub(chunk.count, 1), self.last.stride)
        count = build.add(windows, reach + 1)

        def row(at: Index, _: ir.Value | None) -> None:
            base = self.plan.place(at)

            def visit(position: Index, width: int, seen: list[ir.Value]) -> list[ir.Value]:
                where = build.add(base, position)
                elements = Strided(self.vectors, where, width, 1, taps.reach)
                self.vectors.store(self._neighbours([taps], elements, way), self.sources[1], where)
                return seen

            self.vectors.sweep(0, count, self.vectors.lanes, visit, None)

        each(0, chunk.rows, row, None)

    def _windows(
        self, chunk: _Chunk, way: _Way, taps: Sequence[Taps], fine: ir.Value | None
    ) -> ir.Value | None:
        """Combine the ``taps`` of all windows of a chunk; of those inside the operand, if taken from there."""
        stride, size = self.last.stride, self.last.size
        by_vectors = stride == 1 or (
            stride == 2 and size > 1 and not any(_is_loop(x, way) for x in taps)
        )
        lanes = self.vectors.lanes if by_vectors else 1
        is_across = self.plan.is_across and not way.is_rare
        reach = max(x.reach for x in taps)
        first, count = self._spanned(chunk)

        def row(at: Index, fine: ir.Value | None) -> ir.Value | None:
            base, into = self._places(chunk, at)

            def visit(window: Index, width: int, seen: list[ir.Value]) -> list[ir.Value]:
                where = build.add(base, build.mul(window, stride))
                elements = Strided(self.vectors, where, width, stride, reach)
                if is_across:
                    value, *seen = self._across(where, way, seen)
                else:
                    value = self._neighbours(taps, elements, way)
                value = way.combine(value, self.vectors.spread(self.start, width))
                if self.plan.is_direct:
                    seen = self.vectors.looked(seen, elements.loaded, width)
                seen = [self.vectors.watch(width).doubt(x, self.body, value) for x in seen]
                self.vectors.store(value, self.result, build.add(into, window))
                return seen

            return self.vectors.sweep(first, count, lanes, visit, fine)

        if self.plan.is_flat:
            count = build.mul(chunk.rows, self.last.outputs)
            return row(0, fine)
        return each(0, chunk.rows, row, fine)

    def _places(self, chunk: _Chunk, row: Index) -> tuple[Index, Index]:
        """Where a row of a chunk has what its first window reads, and the result of that."""
        line = build.linearize(
            [*chunk.outer, build.add(chunk.first, row)], [w.outputs for w in self.windows]
        )
        into = build.add(build.mul(line, self.last.outputs), chunk.begin)
        if not self.plan.is_direct:
            return self.plan.place(row), into
        return build.add(self.plan.place(line), build.mul(chunk.begin, self.last.stride)), into

    def _spanned(self, chunk: _Chunk) -> tuple[Index, Index]:
        """The windows of a row that are combined by vectors, from the chunk's beginning: first and how many."""
        if not self.plan.is_direct:
            return 0, chunk.count
        low, high = (build.sub(x, chunk.begin) for x in self.last.interior)
        first = build.minimum(build.maximum(low, 0), chunk.count)
        end = build.maximum(build.minimum(high, chunk.count), first)
        return first, build.sub(end, first)

    def _borders(self, chunk: _Chunk) -> None:
        """Reduce the windows that lie partly outside the operand, one by one."""
        if self.last.is_inside:
            return
        first, count = self._spanned(chunk)
        ranges = ((0, first), (build.add(first, count), chunk.count))

        def row(at: Index, _: ir.Value | None) -> None:
            base, into = self._places(chunk, at)

            def window(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                where = build.add(base, build.mul(number, self.last.stride))

                def step(index: list[Index], carried: list[ir.Value]) -> list[ir.Value]:
                    place = build.add(where, build.mul(index[0], self.last.dilation))
                    return [self._exact(carried[0], self.vectors.load(self.operand, place, 1))]

                bounds = [self.last.bounds(build.add(chunk.begin, number))]
                value = bounded_nest(self.phase.elemental, bounds, [self.start], step)[0]
                self.vectors.store(value, self.result, build.add(into, number))
                return []

            for low, high in ranges:
                build.for_loop(low, high, window)

        each(0, chunk.rows, row, None)

    def _across(self, base: Index, way: _Way, seen: list[ir.Value]) -> list[ir.Value]:
        """Combine a window of many neighbours by vectors of them; the note of a single element follows the result."""
        vectors, size = self.vectors, self.last.size
        width = min(vectors.lanes, 1 << (size.bit_length() - 1))
        end = size // width * width

        def step(at: Index, carried: list[ir.Value]) -> list[ir.Value]:
            loaded = vectors.load(self.sources[0], build.add(base, at), width)
            return [way.combine(carried[0], loaded), *vectors.looked(carried[1:], [loaded], width)]

        first = vectors.load(self.sources[0], base, width)
        carried = [first, *(vectors.watch(width).ordered(first, first) for _ in seen)]
        carried = build.for_loop(width, end, step, carried, step=width)
        if end < size and self.plan.is_idempotent:
            carried, end = step(size - width, carried), size
        total, *notes = carried
        seen = [
            arith.AndIOp(known, vectors.watch(width).everywhere(note)).result
            for known, note in zip(seen, notes, strict=True)
        ]
        while width > 1:
            total, width = way.combine(*halves(total)), width // 2
            if (size - end) & width:
                loaded = vectors.load(self.sources[0], build.add(base, end), width)
                total, end = way.combine(total, loaded), end + width
        return [total, *seen]

    def _neighbours(self, taps: Sequence[Taps], elements: Strided, way: _Way) -> ir.Value:
        """Combine the taps of neighbouring windows."""
        total: list[ir.Value] = []

        def add(total: list[ir.Value], group: Taps, tap: Index) -> list[ir.Value]:
            offset = build.add(build.mul(tap, group.distance), group.offset)
            value = elements.load(group.stage, self.sources[group.stage], offset)
            return [way.combine(total[0], value) if total else value]

        for group in taps:
            if _is_loop(group, way):
                step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]]
                step = lambda tap, total, group=group: add(total, group, tap)  # noqa: E731
                total = total or [self.vectors.spread(self.neutral, elements.width)]
                total = build.for_loop(0, group.count, step, total, unroll=int(way.is_rare))
            else:
                for tap in range(group.count):
                    total = add(total, group, tap)
        return elements.in_order(total[0])


def _is_loop(taps: Taps, way: _Way) -> bool:
    """Whether taps are combined in a loop."""
    return way.is_rare or taps.count > MOST_WRITTEN


def _piece(number: Index, size: int, whole: int) -> tuple[Index, Index]:
    """Where piece ``number`` of ``whole`` begins and how long it is, pieces being ``size`` long but for the last."""
    begin = build.mul(number, size)
    return begin, size if whole % size == 0 else build.minimum(build.sub(whole, begin), size)
