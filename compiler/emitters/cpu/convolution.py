# SPDX-License-Identifier: Apache-2.0
"""The convolution emitter: direct convolution with a tile of pixels by features in registers.

The innermost loops run over the window and the input channels: one step loads the tile's weights as vectors of features
and multiplies them by one broadcast input element a pixel (a vector of channels where depthwise). Operands that are not
laid out for that, or are padded, dilated or narrow, are first copied into the workspace in the form that is: input
as batch, space, channels with its padding; weights as group, block of features, window, channel, features of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem, Tile, WeightChunk
from gristmill.compiler.emitters.cpu.convolution_rows import RowConvolutionEmitter, multiply_add
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.windows import bounded_nest, row_strides
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType

#: Tasks that each thread should have at least.
_TASKS_A_THREAD = 4
#: Pixels that repay copying the weights.
_PACKED_FOR = 64
#: Taps of a row of a depthwise window that are written out.
_MOST_TAPS = 5


class ConvolutionEmitter:
    """Compiles one ``convolution``."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = source.graph.results[0]
        self.problem = ConvProblem.of(self.node)
        problem = self.problem
        #: Whether windows are clipped at the operand's borders; copying it would cost more than the work.
        self.clips = problem.depthwise and problem.natural_input and not problem.reads_input
        begin, end = problem.window(-1).interior
        width = end - begin if self.clips else problem.outputs[-1]
        tile = self.tile = Tile.of(problem, width, source.target, source.blocking)
        fills = problem.features == tile.features
        self.clips = self.clips and fills
        # Vectors of channels must not run past the last one.
        self.reads_input = self.clips or (problem.reads_input and (fills or not problem.depthwise))
        # Of all features' rows a narrow block reads strips, which lie apart and meet in the same sets of a cache.
        pixels = problem.batch * math.prod(problem.outputs)
        strips = not problem.depthwise and problem.features * problem.groups > tile.block
        packs = strips and source.target.vector_bytes < 64 and pixels >= _PACKED_FOR
        self.reads_kernel = problem.reads_kernel and fills and not packs
        self.writes_output = problem.writes_output and fills
        self.weights = WeightChunk.of(problem, tile, source.target)
        self.blocks = _blocks_of_task(problem, tile, source.target)
        weights = tile.features * problem.taps * problem.channels * problem.element.nbytes
        #: Whether all of a row's features are computed before the next row: its input and all weights stay near.
        self.rows_first = self.blocks > 1 or (
            not problem.depthwise and weights <= source.target.l2_bytes // 2
        )
        self.space = problem.extents if self.reads_input else problem.padded
        self.inputs = tile.features if problem.depthwise else problem.inputs

    @property
    def _input_type(self) -> ArrayType:
        batch = self.problem.batch * (self.problem.groups if self.problem.batch_groups else 1)
        return ArrayType((batch, *self.space, self.inputs), self.problem.element)

    @property
    def _kernel_type(self) -> ArrayType:
        problem, tile = self.problem, self.tile
        blocks = tile.features // tile.block
        shape = (problem.groups, blocks, problem.taps, problem.channels, tile.block)
        return ArrayType(shape, problem.element)

    @property
    def _input_bytes(self) -> int:
        return 0 if self.reads_input else -(-self._input_type.nbytes // 64) * 64

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        if self.problem.runs_along_rows:
            return RowConvolutionEmitter(self.source).emit()
        problem, tile = self.problem, self.tile
        workspace = self._input_bytes + (0 if self.reads_kernel else self._kernel_type.nbytes)
        row = 0 if self.weights is None else tile.chunk
        staged = row + (0 if self.writes_output else tile.pixels)
        scratch = staged * tile.block * problem.element.nbytes
        frame = KernelFrame(self.source, workspace, scratch)
        if not self.reads_input:
            array = self._input_type
            rows = array.size // (array.shape[-1] * array.shape[-2])
            frame.phase(self._copy_input, rows, worth_splitting(array.size, 5))
        if not self.reads_kernel:
            array = self._kernel_type
            rows = array.size // array.shape[-1]
            frame.phase(self._copy_kernel, rows, worth_splitting(array.size, 5))
        frame.phase(self._compute, self._tasks, worth_splitting(problem.work, 1))
        return frame.finish("convolution", 2 * problem.work)

    def _copy_input(self, phase: PhaseFrame) -> None:
        problem, e = self.problem, phase.elemental
        node, lhs = self.node, self.node.operands[0]
        array = self._input_type
        target = build.view(phase.workspace, 0, array)
        where = node.dims("input_spatial_dimensions")
        outer = array.shape[:-2]
        zero = build.constant(problem.element, 0)

        def source(position: Sequence[Index]) -> tuple[list[Index], ir.Value]:
            """Where a padded position lies in the operand, and whether it does."""
            inside = build.constant(arithmetic.element_type("i1"), 1)
            result: list[Index] = []
            for at, low, base, extent in zip(
                position, problem.low, problem.base, problem.extents, strict=True
            ):
                shifted = build.sub(at, low)
                inside = both(inside, build.at_least(shifted, 0))
                if base > 1:
                    safe = build.maximum(shifted, 0)
                    inside = both(inside, build.equal(build.mod(safe, base), 0))
                    shifted = build.div(safe, base)
                inside = both(inside, build.less(shifted, extent))
                result.append(shifted)
            return result, inside

        def pixel(batch: Index, position: list[Index]) -> None:
            at, inside = source(position)

            def copy(channel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                with e.scope():
                    index: list[Index] = [0] * len(lhs.shape)
                    index[node.integer("input_batch_dimension")] = batch
                    index[node.integer("input_feature_dimension")] = channel
                    for d, component in zip(where, at, strict=False):
                        index[d] = component
                    value = arithmetic.convert(
                        lhs.type.element, problem.element, e.value(lhs, index)
                    )
                    build.store(value, target, [batch, *position, channel], problem.element)
                return []

            def clear(channel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                build.store(zero, target, [batch, *position, channel], problem.element)
                return []

            def copied() -> list[ir.Value]:
                build.for_loop(0, problem.inputs, copy)
                build.for_loop(problem.inputs, self.inputs, clear)
                return []

            def cleared() -> list[ir.Value]:
                build.for_loop(0, self.inputs, clear)
                return []

            build.if_else(inside, [], copied, cleared)

        def row(task: ir.Value) -> None:
            batch, *position = build.delinearize(task, outer)

            def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                pixel(batch, [*position, at])
                return []

            build.for_loop(0, array.shape[-2], step)

        phase.each_task(row)

    def _copy_kernel(self, phase: PhaseFrame) -> None:
        problem, e = self.problem, phase.elemental
        node, rhs = self.node, self.node.operands[1]
        array = self._kernel_type
        target = build.view(phase.workspace, self._input_bytes, array)
        where = node.dims("kernel_spatial_dimensions")

        def row(task: ir.Value) -> None:
            group, block, tap, channel = build.delinearize(task, array.shape[:-1])
            first = build.mul(block, self.tile.block)
            window = [
                build.sub(size - 1, at) if flipped else at
                for at, size, flipped in zip(
                    build.delinearize(tap, problem.kernel),
                    problem.kernel,
                    problem.reversal,
                    strict=True,
                )
            ]

            def copy(feature: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                with e.scope():
                    index: list[Index] = [0] * len(rhs.shape)
                    index[node.integer("kernel_input_feature_dimension")] = channel
                    index[node.integer("kernel_output_feature_dimension")] = build.add(
                        build.mul(group, problem.features), build.add(first, feature)
                    )
                    for d, component in zip(where, window, strict=False):
                        index[d] = component
                    value = e.value(rhs, index)
                    wide = arithmetic.convert(rhs.type.element, problem.element, value)
                    build.store(
                        wide, target, [group, block, tap, channel, feature], problem.element
                    )
                return []

            def clear(feature: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                zero = build.constant(problem.element, 0)
                build.store(zero, target, [group, block, tap, channel, feature], problem.element)
                return []

            count: Index = self.tile.block
            if problem.features % count:
                count = build.minimum(build.sub(problem.features, first), count)
            build.for_loop(0, count, copy)
            build.for_loop(count, self.tile.block, clear)

        phase.each_task(row)

    @property
    def _grid(self) -> tuple[int, ...]:
        """Tasks by group, block of features, batch, leading space, chunk of pixels, and again blocks of features."""
        problem, tile = self.problem, self.tile
        parts = -(-tile.features // (tile.block * self.blocks))
        return (
            problem.groups,
            1 if self.rows_first else parts,
            problem.batch,
            *problem.outputs[:-1],
            1 if self.clips else -(-problem.outputs[-1] // tile.chunk),
            parts if self.rows_first else 1,
        )

    @property
    def _tasks(self) -> int:
        return math.prod(self._grid)

    def _compute(self, phase: PhaseFrame) -> None:
        width, tile = self.problem.outputs[-1], self.tile
        source = phase.arguments[self.node.operands[0].result] if self.reads_input else None
        kernel = phase.arguments[self.node.operands[1].result] if self.reads_kernel else None
        if source is None:
            source = build.view(phase.workspace, 0, self._input_type)
        if kernel is None:
            kernel = build.view(phase.workspace, self._input_bytes, self._kernel_type)
        flat = build.flatten(source), build.flatten(kernel)

        def row(task: ir.Value) -> None:
            group, outer, batch, *space, chunk, part = build.delinearize(task, self._grid)
            first = build.mul(part if self.rows_first else outer, tile.block * self.blocks)
            work = _Tiles(self, phase, flat, group, first, batch, space)
            if self.clips:
                begin, end = self.problem.window(-1).interior
                _tiles(begin, end, tile.pixels, work.emit)
                _clipped(work, 0, begin)
                _clipped(work, end, width)
                return
            if self.weights is None:
                self.row(chunk, work.emit)
            else:
                work.accumulate(chunk, self.weights)

        phase.each_task(row)

    def row(self, chunk: Index, body: Callable[[Index, int], None]) -> None:
        """``body(pixel, pixels)`` for the tiles of a chunk of a row of pixels."""
        width, tile = self.problem.outputs[-1], self.tile
        if width <= tile.chunk:
            for begin, end, pixels in tile.spans(width):
                _tiles(begin, end, pixels, body)
            return
        begin = build.mul(chunk, tile.chunk)
        rest = width % tile.pixels
        end = build.minimum(build.add(begin, tile.chunk), width - rest)
        _tiles(begin, end, tile.pixels, body)
        if rest:
            final = build.less(width - 1, build.add(begin, tile.chunk))
            with build.if_then(final):
                body(width - rest, rest)


def _blocks_of_task(problem: ConvProblem, tile: Tile, target: Target) -> int:
    """Blocks of features that a task computes of a tile of pixels before it goes on to the next.

    One, unless depthwise: all features read the same channels. Depthwise each block reads channels of its own, which
    lie side by side in memory, so a row is read once when all are done together. Their weights must stay in the
    first-level cache, and tasks enough be left.
    """
    rows = problem.batch * math.prod(problem.outputs[:-1])
    parts = -(-_TASKS_A_THREAD * target.max_threads // max(1, rows))
    count = -(-(tile.features // tile.block) // parts)
    weights = count * problem.taps * tile.block * problem.element.nbytes
    return count if problem.depthwise and weights <= target.l1_bytes * 3 // 4 else 1


def _tiles(begin: Index, end: Index, pixels: int, body: Callable[[Index, int], None]) -> None:
    """Tiles of ``pixels`` from ``begin`` on, and a smaller one for what is known to be left."""

    def step(pixel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(pixel, pixels)
        return []

    rest = 0
    if isinstance(begin, int) and isinstance(end, int):
        rest = (end - begin) % pixels
        end -= rest
    build.for_loop(begin, end, step, step=pixels)
    if rest:
        body(end, rest)


def _clipped(work: _Tiles, begin: int, end: int) -> None:
    """Single pixels whose windows cross the operand's border."""

    def step(pixel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        work.emit(pixel, 1, is_border=True)
        return []

    if begin < end:
        build.for_loop(begin, end, step)


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one task.

    Attributes:
        flat: the input and the weights as flat memrefs.
        first: the first feature of the group's that is computed.
        space: the leading spatial position.
    """

    owner: ConvolutionEmitter
    phase: PhaseFrame
    flat: tuple[ir.Value, ir.Value]
    group: Index
    first: Index
    batch: Index
    space: Sequence[Index]

    def emit(self, pixel: Index, pixels: int, is_border: bool = False) -> None:
        """Compute ``pixels`` from ``pixel`` on; ``is_border``: their windows may lie partly outside."""
        owner = self.owner
        if owner.blocks == 1:
            self._block(pixel, pixels, is_border)
            return

        def block(first: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            replace(self, first=first)._block(pixel, pixels, is_border)
            return []

        end = build.add(self.first, owner.blocks * owner.tile.block)
        end = build.minimum(end, owner.tile.features)
        build.for_loop(self.first, end, block, step=owner.tile.block)

    def accumulate(self, chunk: Index, weights: WeightChunk) -> None:
        """Compute a chunk of a row of pixels, all of it for each chunk of ``weights``; sums wait in scratch."""
        owner, problem, e = self.owner, self.owner.problem, self.phase.elemental
        tile, kernel, channels = owner.tile, problem.kernel, problem.channels
        array = ArrayType((tile.chunk * tile.block,), problem.element)
        sums = build.view(self.phase.scratch, 0, array)
        start = build.mul(chunk, tile.chunk)

        def place(pixel: Index, number: int) -> list[ir.Value]:
            at = build.mul(build.sub(pixel, start), tile.block)
            return [build.index_value(build.add(at, number * tile.lanes))]

        def keep(pixel: Index, values: Sequence[ir.Value]) -> None:
            for number, value in enumerate(values):
                vector.StoreOp(value, sums, place(pixel, number))

        def kept(pixel: Index, pixels: int) -> list[ir.Value]:
            count = pixels * tile.vectors
            return [vector.LoadOp(self._kind, sums, place(pixel, i)).result for i in range(count)]

        def part(outer: list[Index], _: list[ir.Value]) -> list[ir.Value]:
            *window, low = outer
            low = build.mul(low, weights.channels)
            high: Index = build.add(low, weights.channels)
            if channels % weights.channels:
                high = build.minimum(high, channels)
            inner = [(0, size) for size in kernel[weights.leading :]]

            def add(pixel: Index, pixels: int) -> None:
                step = self._step(pixel, pixels)
                bounds = [*inner, (low, high)]
                values = kept(pixel, pixels)
                keep(pixel, bounded_nest(e, bounds, values, lambda at, v: step([*window, *at], v)))

            owner.row(chunk, add)
            return []

        owner.row(chunk, lambda pixel, pixels: keep(pixel, [self._zero] * pixels * tile.vectors))
        outer = [*kernel[: weights.leading], -(-channels // weights.channels)]
        bounded_nest(e, [(0, size) for size in outer], [], part)
        owner.row(chunk, lambda pixel, n: self._store(pixel, n, kept(pixel, n)))

    @property
    def _kind(self) -> ir.VectorType:
        return ir.VectorType.get(
            [self.owner.tile.lanes], build.register_type(self.owner.problem.element)
        )

    @property
    def _zero(self) -> ir.Value:
        return vector.BroadcastOp(self._kind, build.constant(self.owner.problem.element, 0)).result

    def _block(self, pixel: Index, pixels: int, is_border: bool) -> None:
        """As :meth:`emit`, of the first block of features."""
        problem, e = self.owner.problem, self.phase.elemental
        zeros = [self._zero] * (pixels * self.owner.tile.vectors)
        bounds = [*self._bounds(pixel, is_border), (0, problem.channels)]
        shares = problem.depthwise and problem.strides[-1] == 1 and not is_border
        if shares and problem.kernel[-1] <= _MOST_TAPS:
            base = self._input_base(pixel)
            window_rows = bounded_nest(
                e, bounds[:-2], zeros, lambda at, sums: self._taps(base, at, sums)
            )
            self._store(pixel, pixels, window_rows)
            return
        sums = bounded_nest(e, bounds, zeros, self._step(pixel, pixels))
        self._store(pixel, pixels, sums)

    def _step(
        self, pixel: Index, pixels: int
    ) -> Callable[[list[Index], list[ir.Value]], list[ir.Value]]:
        """What one position of the window and one channel add to the sums of a tile."""
        owner, tile, problem = self.owner, self.owner.tile, self.owner.problem
        kind = self._kind
        base, weights = self._input_base(pixel), self._kernel_base()
        steps = row_strides(owner.space, owner.inputs)

        def step(index: list[Index], sums: list[ir.Value]) -> list[ir.Value]:
            *window, channel = index
            at = build.add(base, channel)
            for position, dilation, stride in zip(window, problem.dilations, steps, strict=True):
                at = build.add(at, build.mul(position, dilation * stride))
            tap = build.linearize([*window, channel], [*problem.kernel, problem.channels])
            weight = build.add(weights, build.mul(tap, self._weight_row))
            columns = [
                self._load(kind, 1, build.add(weight, v * tile.lanes)) for v in range(tile.vectors)
            ]
            result: list[ir.Value] = []
            for p in range(pixels):
                here = build.add(at, p * problem.strides[-1] * owner.inputs)
                for v, column in enumerate(columns):
                    if problem.depthwise:
                        factor = self._load(kind, 0, build.add(here, v * tile.lanes))
                    else:
                        scalar = build.load(self.flat[0], [here], problem.element)
                        factor = vector.BroadcastOp(kind, scalar).result
                    total = sums[p * tile.vectors + v]
                    result.append(multiply_add(problem, total, factor, column))
            return result

        return step

    def _taps(self, base: Index, position: list[Index], sums: list[ir.Value]) -> list[ir.Value]:
        """One row of a depthwise window: an input vector is loaded once for all the pixels whose windows hold it."""
        owner, tile, problem, kind = self.owner, self.owner.tile, self.owner.problem, self._kind
        taps, stride, dilation = problem.kernel[-1], problem.strides[-1], problem.dilations[-1]
        at, result = base, list(sums)
        steps = row_strides(owner.space, owner.inputs)
        for where, apart, step in zip(position, problem.dilations, steps, strict=False):
            at = build.add(at, build.mul(where, apart * step))
        readers: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(len(sums) // tile.vectors):
            for tap in range(taps):
                readers.setdefault(pixel * stride + tap * dilation, []).append((pixel, tap))
        first = build.mul(build.linearize([*position, 0], problem.kernel), self._weight_row)
        weights = build.add(self._kernel_base(), first)
        for v in range(tile.vectors):
            shift = v * tile.lanes
            columns = [
                self._load(kind, 1, build.add(weights, tap * self._weight_row + shift))
                for tap in range(taps)
            ]
            for column, pairs in sorted(readers.items()):
                factor = self._load(kind, 0, build.add(at, column * owner.inputs + shift))
                for pixel, tap in pairs:
                    number = pixel * tile.vectors + v
                    result[number] = multiply_add(problem, result[number], factor, columns[tap])
        return result

    def _bounds(self, pixel: Index, is_border: bool) -> list[tuple[Index, Index]]:
        """The window positions that lie inside the operand, for each dimension."""
        problem = self.owner.problem
        result: list[tuple[Index, Index]] = []
        for d, at in enumerate([*self.space, pixel]):
            if not self.owner.clips or (d == len(self.space) and not is_border):
                result.append((0, problem.kernel[d]))
            else:
                result.append(problem.window(d).bounds(at))
        return result

    def _load(self, kind: ir.Type, operand: int, at: Index) -> ir.Value:
        return vector.LoadOp(kind, self.flat[operand], [build.index_value(at)]).result

    def _input_base(self, pixel: Index) -> Index:
        owner, problem = self.owner, self.owner.problem
        batch = self.batch
        if problem.batch_groups:
            batch = build.add(build.mul(self.group, problem.batch), batch)
        position = [
            problem.window(d).origin(at) if owner.clips else build.mul(at, problem.strides[d])
            for d, at in enumerate([*self.space, pixel])
        ]
        shape = (1, *owner.space, owner.inputs)
        channel: Index = self.first if problem.depthwise else 0
        if not problem.batch_groups and not problem.depthwise:
            channel = build.mul(self.group, problem.channels)
        return build.linearize([batch, *position, channel], shape)

    @property
    def _weight_row(self) -> int:
        """Elements from one window position or channel to the next."""
        problem = self.owner.problem
        if self.owner.reads_kernel:
            return problem.features * problem.groups
        return self.owner.tile.block

    def _kernel_base(self) -> Index:
        problem = self.owner.problem
        if self.owner.reads_kernel:
            return build.add(build.mul(self.group, problem.features), self.first)
        feature = build.add(build.mul(self.group, self.owner.tile.features), self.first)
        return build.mul(feature, problem.taps * problem.channels)

    def _store(self, pixel: Index, pixels: int, sums: Sequence[ir.Value]) -> None:
        owner, tile, problem = self.owner, self.owner.tile, self.owner.problem
        feature = build.add(build.mul(self.group, problem.features), self.first)
        if owner.writes_output:
            result = build.flatten(self.phase.results[0])
            shape = owner.node.shape if len(owner.node.shape) > 2 else (problem.batch, 1, -1)
            shape = (*shape[:-1], problem.features * problem.groups)
            base = build.linearize([self.batch, *self.space, pixel, feature], shape)
            for p in range(pixels):
                for v in range(tile.vectors):
                    at = build.add(base, p * shape[-1] + v * tile.lanes)
                    value = sums[p * tile.vectors + v]
                    vector.StoreOp(value, result, [build.index_value(at)])
            return
        array = ArrayType((tile.pixels * tile.block,), problem.element)
        before = 0 if owner.weights is None else tile.chunk * tile.block * problem.element.nbytes
        buffer = build.view(self.phase.scratch, before, array)
        for number, value in enumerate(sums):
            vector.StoreOp(value, buffer, [build.index_value(number * tile.lanes)])
        self._store_elements(buffer, pixel, pixels, feature)

    def _store_elements(self, buffer: ir.Value, pixel: Index, pixels: int, feature: Index) -> None:
        """Store a tile kept in scratch element by element, wherever the output's elements lie."""
        owner, problem, node = self.owner, self.owner.problem, self.owner.node
        block = owner.tile.block
        count = build.minimum(build.sub(problem.features, self.first), block)

        def store(column: Index, p: ir.Value) -> list[ir.Value]:
            at = build.add(build.mul(p, block), column)
            value = build.load(buffer, [at], problem.element)
            index: list[Index] = [0] * len(node.shape)
            index[node.integer("output_batch_dimension")] = self.batch
            index[node.integer("output_feature_dimension")] = build.add(feature, column)
            position = [*self.space, build.add(pixel, p)]
            for d, component in zip(node.dims("output_spatial_dimensions"), position, strict=False):
                index[d] = component
            narrow = arithmetic.convert(problem.element, node.type.element, value)
            self.phase.store(0, narrow, index, node.type)
            return []

        def columns(column: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, pixels, lambda p, _: store(column, p))
            return []

        build.for_loop(0, count, columns)
