# SPDX-License-Identifier: Apache-2.0
"""Cumulative reductions: ``reduce_window`` whose window is the whole prefix (or suffix) of one dimension.

A *line* runs along the scanned dimension. Four ways:

* *columns*: with a wide inner extent, running values of many lines are kept in scratch and updated as vectors;
* *vectors*: a line of neighbours is scanned in vector registers (:mod:`.vector_scan`) if the body is one operation;
* *chunks*: a few long lines of that kind are cut into chunks, one a thread: first the totals of all chunks, then the
  scan of each from where the chunks before it end;
* *lines*: any others are scanned one step at a time, :data:`LANES` side by side, so that the latency of one step is
  hidden by the others.

Vectors and chunks take the body to be associative, like every reduction here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import streaming, vector_scan
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.vector_scan import VectorScan
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.contraction import (
    Reducer,
    reduce_operands,
    reducer_of,
    simple_reducer,
)
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.types import ArrayType, ElementType

#: Lines or chunks scanned side by side.
LANES = 8
#: Inner extent from which running values are kept as columns, and the columns of one task.
_MIN_COLUMNS, _COLUMNS = 16, 512
#: Lengths from which a line is worth scanning in vectors and cutting into chunks.
_MIN_VECTORS, _MIN_CUT = 64, 2048


def scanned_dimension(node: Node) -> int | None:
    """The dimension along which a ``reduce_window`` accumulates, or ``None`` if it does not."""
    shape, sizes = node.operands[0].shape, node.dims("window_dimensions")
    wide = [d for d, size in enumerate(sizes) if size != 1]
    steps = ("window_strides", "base_dilations", "window_dilations")
    if len(wide) != 1 or any(step != 1 for name in steps for step in node.dims(name)):
        return None
    low, high = node.dims("padding_low"), node.dims("padding_high")
    dimension = wide[0]
    if any(low[d] or high[d] for d in range(len(shape)) if d != dimension):
        return None
    length = shape[dimension]
    padding = (low[dimension], high[dimension])
    whole = length == sizes[dimension] and padding in ((length - 1, 0), (0, length - 1))
    return dimension if whole else None


@dataclass(frozen=True)
class _Lane:
    """One scan in progress: positions ``start, start + 1, …`` of a line."""

    line: Index
    start: Index


class CumulativeEmitter:
    """Compiles one cumulative ``reduce_window``."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.inputs, self.initial, _ = reduce_operands(self.node)
        shape = self.inputs[0].shape
        dimension = scanned_dimension(self.node)
        assert dimension is not None, "the fusion pass gives this kind to cumulative windows only"
        self.dimension, self.shape, self.length = dimension, shape, shape[dimension]
        self.is_reversed = self.node.dims("padding_low")[dimension] == 0
        self.kind = simple_reducer(source.functions[self.node.symbol("to_apply")])
        self.outer = math.prod(shape[:dimension])
        self.inner = math.prod(shape[dimension + 1 :])

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        size = self.node.type.size
        lines, threads = self.outer * self.inner, self.source.target.max_threads
        short = lines < (threads if self._in_vectors else LANES * threads)
        if size == 0:
            frame = KernelFrame(self.source)
            frame.phase(lambda phase: None)
        elif self.inner >= _MIN_COLUMNS:
            frame = self._emit_columns()
        elif short and self.length >= _MIN_CUT and self.kind is not None:
            frame = self._emit_chunks(lines, threads)
        elif self._in_vectors and self.length >= _MIN_VECTORS:
            frame = self._emit_vectors(lines)
        else:
            frame = self._emit_lines(lines)
        return frame.finish("cumulative", size)

    @property
    def _accumulator(self) -> ElementType:
        """Type of the (first) running value."""
        e = Elemental(self.source.graph, [], self.source.functions)
        return reducer_of(e, self.node).accumulators[0]

    @property
    def _in_vectors(self) -> bool:
        return self.inner == 1 and vector_scan.scans(self.kind, self._accumulator)

    def _index(self, line: Index, position: Index) -> list[Index]:
        others = [s for d, s in enumerate(self.shape) if d != self.dimension]
        index = build.delinearize(line, others)
        at = build.sub(self.length - 1, position) if self.is_reversed else position
        index.insert(self.dimension, at)
        return index

    def _start(self, phase: PhaseFrame, reducer: Reducer) -> list[ir.Value]:
        return reducer.enter([phase.elemental.value(x, ()) for x in self.initial])

    def _elements(self, phase: PhaseFrame, reducer: Reducer, index: list[Index]) -> list[ir.Value]:
        return reducer.enter([phase.elemental.value(x, index) for x in self.inputs])

    def _store(
        self, phase: PhaseFrame, reducer: Reducer, index: list[Index], values: Sequence[ir.Value]
    ) -> None:
        narrow = reducer.leave(values)
        for number, root in enumerate(self.source.graph.results):
            phase.store(number, narrow[root.result], index, root.type)

    def _scan(
        self,
        phase: PhaseFrame,
        lanes: Sequence[_Lane],
        length: Index,
        running: Sequence[Sequence[ir.Value]],
        stores: bool,
        first: Index = 0,
    ) -> list[list[ir.Value]]:
        """Continue the scans of all lanes over steps ``first <= k < length``; returns where they end."""
        reducer = reducer_of(phase.elemental, self.node)
        count = len(reducer.accumulators)

        def step(k: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
            following: list[ir.Value] = []
            with phase.elemental.scope():
                for number, lane in enumerate(lanes):
                    index = self._index(lane.line, build.add(lane.start, k))
                    old = flat[number * count : (number + 1) * count]
                    values = reducer.combine(old, self._elements(phase, reducer, index))
                    following += values
                    if stores:
                        self._store(phase, reducer, index, values)
            return following

        flat = build.for_loop(first, length, step, [v for values in running for v in values])
        return [flat[i : i + count] for i in range(0, len(flat), count)]

    def _emit_lines(self, lines: int) -> KernelFrame:
        frame = KernelFrame(self.source)
        groups, single = divmod(lines, LANES)

        def scan(phase: PhaseFrame, first: Index, count: int) -> None:
            start = self._start(phase, reducer_of(phase.elemental, self.node))
            lanes = [_Lane(build.add(first, i), 0) for i in range(count)]
            self._scan(phase, lanes, self.length, [start] * count, True)

        def task(phase: PhaseFrame, number: ir.Value) -> None:
            if groups:
                with build.if_then(build.less(number, groups)), phase.elemental.scope():
                    scan(phase, build.mul(number, LANES), LANES)
            if single:
                with build.if_then(build.at_least(number, groups)), phase.elemental.scope():
                    scan(phase, build.add(number, groups * (LANES - 1)), 1)

        work = worth_splitting(self.node.type.size, 10)
        frame.phase(
            lambda phase: phase.each_task(lambda number: task(phase, number)),
            groups + single,
            work,
        )
        return frame

    def _vector_scan(
        self,
        phase: PhaseFrame,
        line: Index,
        start: Index,
        count: int,
        running: ir.Value,
        streamed: bool = False,
    ) -> ir.Value:
        """Scan ``count`` positions of a line in vectors, ``streamed`` past the caches; returns the last result."""
        e, element = phase.elemental, self._accumulator
        reducer = reducer_of(e, self.node)

        def load(position: Index) -> ir.Value:
            with e.scope():
                return self._elements(phase, reducer, self._index(line, position))[0]

        def store(position: Index, value: ir.Value) -> None:
            self._store(phase, reducer, self._index(line, position), [value])

        def place(buffer: ir.Value, node: Node) -> tuple[ir.Value, Index] | None:
            if self.is_reversed or node.type.element != element:
                return None
            return build.flatten(buffer), build.mul(line, self.length)

        operand = self.inputs[0]
        is_argument = operand.kind == "parameter"
        source = place(phase.arguments[operand.result], operand) if is_argument else None
        result = place(phase.results[0], self.node)
        places = vector_scan.Line(load, store, source, result, streamed)
        assert self.kind is not None, "only bodies of one operation are scanned in vectors"
        scan = VectorScan(self.kind, element, self.source.target, phase.scratch)
        return scan.emit(places, start, count, running)

    def _emit_vectors(self, lines: int) -> KernelFrame:
        frame = KernelFrame(self.source, scratch_bytes=vector_scan.STAGE_BYTES)

        def lines_of(phase: PhaseFrame, streamed: bool) -> list[ir.Value]:
            def task(line: ir.Value) -> None:
                start = self._start(phase, reducer_of(phase.elemental, self.node))
                self._vector_scan(phase, line, 0, self.length, start[0], streamed)

            phase.each_task(task)
            return []

        def body(phase: PhaseFrame) -> None:
            if not self._streamed:
                lines_of(phase, False)
                return
            aligned = streaming.is_aligned(phase.results[0], self.source.target)
            build.if_else(
                aligned, [], lambda: lines_of(phase, True), lambda: lines_of(phase, False)
            )
            streaming.finish(self.source.target)

        frame.phase(body, lines, worth_splitting(self.node.type.size, 5))
        return frame

    @property
    def _streamed(self) -> bool:
        """Whether lines scanned in vectors go past the caches: measured with AVX2 only."""
        in_order = not self.is_reversed and self.node.type.element == self._accumulator
        short = self.source.target.vector_bytes < 64
        return short and in_order and streaming.streams(self.source, 0, self.length)

    def _emit_columns(self) -> KernelFrame:
        blocks = -(-self.inner // _COLUMNS)
        width = min(self.inner, _COLUMNS)
        elements = [x.type.element for x in self.inputs]
        nbytes = [-(-width * max(4, x.nbytes) // 64) * 64 for x in elements]
        frame = KernelFrame(self.source, scratch_bytes=sum(nbytes))
        rest = self.shape[self.dimension + 1 :]

        def task(phase: PhaseFrame, number: ir.Value) -> None:
            e = phase.elemental
            reducer = reducer_of(e, self.node)
            block = build.div(number, blocks)
            first = build.mul(build.mod(number, blocks), _COLUMNS)
            count = width if blocks == 1 else build.minimum(build.sub(self.inner, first), width)
            running: list[ir.Value] = []
            for i, element in enumerate(reducer.accumulators):
                array = ArrayType((width,), element)
                running.append(build.view(phase.scratch, sum(nbytes[:i]), array))
            start = self._start(phase, reducer)
            outer = build.delinearize(block, self.shape[: self.dimension])

            def put(values: Sequence[ir.Value], at: Index) -> None:
                for buffer, element, value in zip(
                    running, reducer.accumulators, values, strict=True
                ):
                    build.store(value, buffer, [at], element)

            def clear(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                put(start, j)
                return []

            def row(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                at = build.sub(self.length - 1, k) if self.is_reversed else k
                build.for_loop(0, count, lambda j, _: column(at, j))
                return []

            def column(at: Index, j: ir.Value) -> list[ir.Value]:
                with e.scope():
                    inner = build.delinearize(build.add(first, j), rest)
                    index = [*outer, at, *inner]
                    old = [
                        build.load(buffer, [j], element)
                        for buffer, element in zip(running, reducer.accumulators, strict=True)
                    ]
                    values = reducer.combine(old, self._elements(phase, reducer, index))
                    put(values, j)
                    self._store(phase, reducer, index, values)
                return []

            build.for_loop(0, count, clear)
            build.for_loop(0, self.length, row)

        frame.phase(
            lambda phase: phase.each_task(lambda number: task(phase, number)),
            self.outer * blocks,
            worth_splitting(self.node.type.size, 10),
        )
        return frame

    def _emit_chunks(self, lines: int, threads: int) -> KernelFrame:
        side = 1 if self._in_vectors else LANES
        chunks = side * threads
        length = self.length // chunks
        nbytes = -(-lines * chunks * 8 // 64) * 64
        frame = KernelFrame(self.source, nbytes, vector_scan.STAGE_BYTES)

        def lanes(number: ir.Value) -> tuple[Index, Index, list[_Lane]]:
            line, group = build.div(number, threads), build.mod(number, threads)
            first = build.mul(group, side)
            starts = [build.mul(build.add(first, i), length) for i in range(side)]
            return line, first, [_Lane(line, start) for start in starts]

        def totals(phase: PhaseFrame, reducer: Reducer) -> ir.Value:
            array = ArrayType((lines * chunks,), reducer.accumulators[0])
            return build.view(phase.workspace, 0, array)

        def reduce(phase: PhaseFrame, number: ir.Value) -> None:
            reducer = reducer_of(phase.elemental, self.node)
            line, first, group = lanes(number)
            initial = [self._elements(phase, reducer, self._index(x.line, x.start)) for x in group]
            results = self._scan(phase, group, length, initial, False, first=1)
            base = build.add(build.mul(line, chunks), first)
            for i, values in enumerate(results):
                at = [build.add(base, i)]
                build.store(values[0], totals(phase, reducer), at, reducer.accumulators[0])

        def scan(phase: PhaseFrame, number: ir.Value) -> None:
            reducer = reducer_of(phase.elemental, self.node)
            line, first, group = lanes(number)
            base, buffer = build.mul(line, chunks), totals(phase, reducer)

            def total(at: Index) -> list[ir.Value]:
                position = [build.add(base, at)]
                return [build.load(buffer, position, reducer.accumulators[0])]

            def before(k: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
                return reducer.combine(values, total(k))

            running = [build.for_loop(0, first, before, self._start(phase, reducer))]
            for i in range(side - 1):
                running.append(reducer.combine(running[-1], total(build.add(first, i))))
            if self._in_vectors:
                begin, start = running[0][0], group[0].start
                ends = [[self._vector_scan(phase, line, start, length, begin)]]
            else:
                ends = self._scan(phase, group, length, running, True)
            rest = self.length - chunks * length
            if rest:
                with build.if_then(build.equal(first, chunks - side)):
                    tail = [_Lane(line, chunks * length)]
                    self._scan(phase, tail, rest, ends[-1:], True)

        for body in (reduce, scan):
            frame.phase(
                lambda phase, body=body: phase.each_task(lambda number: body(phase, number)),
                lines * threads,
                True,
            )
        return frame
