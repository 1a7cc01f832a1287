# SPDX-License-Identifier: Apache-2.0
"""The pooling emitter: ``reduce_window`` by a simple body.

Windows along the minor dimension are :mod:`.pooling_minor`'s. Where they do not span it, running values are vectors of
it, held in registers over a window. Windows are clipped at the operand's borders, once a row and only for the pixels at
its ends, so that the inner loops have no conditions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.pooling_extremes import Combine, Watch, bare
from gristmill.compiler.emitters.cpu.pooling_minor import MinorPoolingEmitter
from gristmill.compiler.emitters.cpu.pooling_plan import MOST_SPAN, span_of
from gristmill.compiler.emitters.cpu.pooling_sliding import Row, Walk
from gristmill.compiler.emitters.cpu.windows import WindowDimension, bounded_nest, row_strides
from gristmill.compiler.emitters.elemental.contraction import reducer_of, simple_reducer
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelEmitter
from gristmill.compiler.graph import Graph, Node
from gristmill.runtime.types import ElementType

#: Vectors of one pixel reduced together.
_VECTORS = 4

#: Elements of windows along the minor dimension from which on floats are added row by row. Fewer are added in the order
#: of the window, as most compilers do: a loop is compiled sooner, and where a sum nearly vanishes its order decides it.
LEAST_SUMMED = 4096


def is_pooling(node: Node, body: Graph) -> bool:
    """Whether the pooling emitters serve a ``reduce_window`` with this body."""
    element = node.type.element
    if len(node.siblings) != 1 or 0 in (node.type.size, node.operands[0].type.size):
        return False
    if not (element.is_integer or (element.is_float and element.bits >= 16)) or element.bits < 8:
        return False
    reducer = simple_reducer(body)
    if reducer is None or any(b != 1 for b in node.dims("base_dilations")):
        return False
    windows = _windows(node)
    if windows[-1].is_plain:
        return len(windows) > 1 and node.shape[-1] >= 4
    combined = node.type.size * math.prod(w.size for w in windows)
    if element.is_float and reducer in ("add", "multiply") and combined < LEAST_SUMMED:
        return False
    return span_of(windows[-1], 1) <= MOST_SPAN


def _windows(node: Node) -> list[WindowDimension]:
    """The windows of a ``reduce_window``, one for each dimension."""
    return [
        WindowDimension(size, stride, dilation, low, extent, outputs)
        for size, stride, dilation, low, extent, outputs in zip(
            node.dims("window_dimensions"),
            node.dims("window_strides"),
            node.dims("window_dilations"),
            node.dims("padding_low"),
            node.operands[0].shape,
            node.shape,
            strict=True,
        )
    ]


class PoolingEmitter:
    """Compiles one ``reduce_window`` that :func:`is_pooling`, by vectors of channels or along the minor dimension."""

    def __init__(self, source: FusionSource):
        node: Node = source.graph.results[0]
        body = simple_reducer(source.functions[node.symbol("to_apply")])
        assert body is not None, "the fusion pass gives this kind to simple bodies only"
        windows = _windows(node)
        self._emitter: KernelEmitter = (
            ChannelPoolingEmitter(source, windows[:-1], body)
            if windows[-1].is_plain
            else MinorPoolingEmitter(source, windows, body)
        )

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        return self._emitter.emit()


def _combine(kind: str, element: ElementType) -> Combine:
    """One step on vectors of the accumulators' type."""
    if element.is_float:
        ops = {
            "add": arith.AddFOp,
            "multiply": arith.MulFOp,
            "maximum": arith.MaximumFOp,
            "minimum": arith.MinimumFOp,
        }
    else:
        ops = {
            "add": arith.AddIOp,
            "multiply": arith.MulIOp,
            "maximum": arith.MaxUIOp if element.is_unsigned else arith.MaxSIOp,
            "minimum": arith.MinUIOp if element.is_unsigned else arith.MinSIOp,
            "and": arith.AndIOp,
            "or": arith.OrIOp,
        }
    op = ops[kind]
    return lambda a, b: op(a, b).result


class ChannelPoolingEmitter:
    """Compiles one pooling ``reduce_window`` whose windows do not span the last dimension.

    Args:
        source: the fusion.
        windows: one for each dimension but the last.
        body: the operation.
    """

    def __init__(self, source: FusionSource, windows: Sequence[WindowDimension], body: str):
        self.source, self.windows, self.body = source, windows, body
        self.node: Node = source.graph.results[0]
        self.operand, self.initial = self.node.operands[:2]
        self.channels = self.operand.shape[-1]
        #: Whether NaN has to be looked for, as the bare comparison loses it.
        self.looks = self.node.type.element.is_float and body in ("maximum", "minimum")
        self.walk = Walk.of(self.windows, source.target, looks=self.looks)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source)
        work = self.node.type.size * math.prod(w.size for w in self.windows)
        rows = math.prod(self.node.shape[:-2])
        frame.phase(self._rows, rows, worth_splitting(work, 1))
        return frame.finish("pooling", work)

    def _rows(self, phase: PhaseFrame) -> None:
        def row(task: ir.Value) -> None:
            outer = build.delinearize(task, self.node.shape[:-2])
            pixels = self.windows[-1]
            begin, end = pixels.interior
            parts = ((0, begin, True), (begin, end, False), (end, pixels.outputs, True))
            for low, high, is_border in parts:
                if low < high and not is_border and self.walk is not None:
                    self._walk(phase, self.walk, outer, (low, high))
                else:
                    self._pixels(phase, outer, (low, high), is_border)

        phase.each_task(row)

    def _walk(
        self, phase: PhaseFrame, walk: Walk, outer: list[Index], span: tuple[int, int]
    ) -> None:
        """Reduce the windows ``span`` of a row: where the whole row is inside, by walking along it."""

        def one_by_one() -> list[ir.Value]:
            with phase.elemental.scope():
                self._pixels(phase, outer, span, is_border=False)
            return []

        def walked() -> list[ir.Value]:
            with phase.elemental.scope():
                found_nan = self._walk_channels(phase, walk, outer, span)
            if found_nan is not None:
                build.if_else(found_nan, [], one_by_one, list)
            return []

        inside = walk.rows_inside(outer)
        if inside is None:
            walked()
        else:
            build.if_else(inside, [], walked, one_by_one)

    def _walk_channels(
        self, phase: PhaseFrame, walk: Walk, outer: list[Index], span: tuple[int, int]
    ) -> ir.Value | None:
        """Walk along a row for all channels; returns whether NaN was met, if that matters."""
        looks = self.looks
        truth = ir.IntegerType.get_signless(1)
        fine = arith.ConstantOp(truth, ir.BoolAttr.get(True)).result
        for begin, end, width, vectors in self._channel_blocks(walk.vectors):
            row = self._row(phase, walk, outer, width)

            def block(
                channel: ir.Value,
                carried: list[ir.Value],
                row: Row = row,
                vectors: int = vectors,
            ) -> list[ir.Value]:
                for ordered in row.emit(channel, vectors, span):
                    carried = [arith.AndIOp(carried[0], ordered).result]
                return carried

            (fine,) = build.for_loop(begin, end, block, [fine], step=width * vectors)
        if not looks:
            return None
        one = arith.ConstantOp(truth, ir.BoolAttr.get(True)).result
        return arith.XOrIOp(fine, one).result

    def _row(self, phase: PhaseFrame, walk: Walk, outer: list[Index], width: int) -> Row:
        e, node = phase.elemental, self.node
        reducer = reducer_of(e, node)
        wide = reducer.accumulators[0]
        kinds = (
            ir.VectorType.get([width], build.storage_type(node.type.element)),
            ir.VectorType.get([width], build.storage_type(wide)),
        )
        start = reducer.enter([e.value(self.initial, ())])[0]
        return Row(
            walk,
            node,
            build.flatten(phase.arguments[self.operand.result]),
            build.flatten(phase.results[0]),
            kinds,
            outer,
            vector.BroadcastOp(kinds[1], start).result,
            bare(self.body) if self.looks else _combine(self.body, wide),
            Watch(kinds[1], self.source.target.vector_bytes == 64) if self.looks else None,
        )

    def _channel_blocks(self, vectors: int) -> list[tuple[int, int, int, int]]:
        """The channels in blocks: ``begin, end, width, vectors``, of that many vectors of that width each."""
        lanes = self.source.target.lanes(max(4, self.node.type.element.nbytes))
        lanes = min(lanes, 1 << (self.channels.bit_length() - 1))
        result: list[tuple[int, int, int, int]] = []
        done = 0
        for width, count in dict.fromkeys(((lanes, vectors), (lanes, 1), (1, 1))):
            block = width * count
            end = done + (self.channels - done) // block * block
            if done < end:
                result.append((done, end, width, count))
            done = end
        return result

    def _pixels(
        self, phase: PhaseFrame, outer: list[Index], span: tuple[int, int], is_border: bool
    ) -> None:
        def pixel(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                self._pixel(phase, [*outer, at], is_border)
            return []

        if span[0] < span[1]:
            build.for_loop(span[0], span[1], pixel)

    def _pixel(self, phase: PhaseFrame, position: list[Index], is_border: bool) -> None:
        bounds: list[tuple[Index, Index]] = []
        for d, (window, at) in enumerate(zip(self.windows, position, strict=True)):
            whole = window.is_inside or (d == len(self.windows) - 1 and not is_border)
            bounds.append((0, window.size) if whole else window.bounds(at))
        for begin, end, width, count in self._channel_blocks(_VECTORS):

            def step(
                channel: ir.Value, _: list[ir.Value], width: int = width, count: int = count
            ) -> list[ir.Value]:
                with phase.elemental.scope():
                    self._reduce(phase, position, bounds, channel, (width, count))
                return []

            build.for_loop(begin, end, step, step=width * count)

    def _reduce(
        self,
        phase: PhaseFrame,
        position: list[Index],
        bounds: Sequence[tuple[Index, Index]],
        channel: Index,
        form: tuple[int, int],
    ) -> None:
        """Reduce the windows of ``count`` vectors of ``width`` channels."""
        e, node, (width, count) = phase.elemental, self.node, form
        reducer = reducer_of(e, node)
        wide = reducer.accumulators[0]
        combine = _combine(self.body, wide)
        narrow_type = ir.VectorType.get([width], build.storage_type(node.type.element))
        wide_type = ir.VectorType.get([width], build.storage_type(wide))
        converts = narrow_type != wide_type
        source = build.flatten(phase.arguments[self.operand.result])
        strides = row_strides(self.operand.shape[:-1], self.channels)
        base: Index = channel
        for window, at, stride in zip(self.windows, position, strides, strict=True):
            base = build.add(base, build.mul(window.origin(at), stride))

        def element(index: list[Index], values: list[ir.Value]) -> list[ir.Value]:
            at = base
            for window, offset, stride in zip(self.windows, index, strides, strict=True):
                at = build.add(at, build.mul(offset, window.dilation * stride))
            result: list[ir.Value] = []
            for number, value in enumerate(values):
                where = [build.index_value(build.add(at, number * width))]
                loaded = vector.LoadOp(narrow_type, source, where).result
                if converts:
                    loaded = arith.ExtFOp(wide_type, loaded).result
                result.append(combine(value, loaded))
            return result

        start = reducer.enter([e.value(self.initial, ())])[0]
        initial = [vector.BroadcastOp(wide_type, start).result] * count
        target = build.flatten(phase.results[0])
        to = build.linearize([*position, channel], node.shape)
        for number, value in enumerate(bounded_nest(e, bounds, initial, element)):
            if converts:
                value = arith.TruncFOp(narrow_type, value).result
            vector.StoreOp(value, target, [build.index_value(build.add(to, number * width))])
