# SPDX-License-Identifier: Apache-2.0
"""The convolution emitter: direct convolution with a tile of pixels by features in registers.

The innermost loops run over the window and the input channels: one step loads the tile's weights as vectors of features
and multiplies them by one broadcast input element a pixel (a vector of channels where depthwise). Operands that are not
laid out for that, or are padded or narrow, are first copied into the workspace in the form that is: input as batch,
space, channels with its padding; weights as group, block of features, window, channel, features of a block.

The pixels of a tile are of one residue (see :mod:`.conv_dimension`): where the input is dilated they lie apart in the
output, and the window's loops run over the taps that read an element, the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.conv_pack import (
    copy_input,
    copy_kernel,
    copy_kernel_channels_last,
)
from gristmill.compiler.emitters.cpu.conv_planes import (
    block_side,
    keep_sums,
    stage_of,
    store_planes,
)
from gristmill.compiler.emitters.cpu.conv_problem import (
    ConvProblem,
    Tile,
    WeightChunk,
    blocks_of_task,
)
from gristmill.compiler.emitters.cpu.convolution_rows import RowConvolutionEmitter
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.windows import bounded_nest, row_strides
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelEmitter
from gristmill.runtime.types import ArrayType

#: Pixels that repay copying the weights.
_PACKED_FOR = 32
#: Taps of a row of a depthwise window that are written out.
_MOST_TAPS = 5


class ConvolutionEmitter:
    """Compiles one ``convolution``, by tiles of pixels and features or along rows of outputs."""

    def __init__(self, source: FusionSource):
        along_rows = ConvProblem.of(source.graph.results[0]).runs_along_rows
        self._emitter: KernelEmitter = (
            RowConvolutionEmitter(source) if along_rows else TileConvolutionEmitter(source)
        )

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        return self._emitter.emit()


class TileConvolutionEmitter:
    """Compiles one ``convolution`` by tiles of pixels and features."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = source.graph.results[0]
        self.problem = ConvProblem.of(self.node)
        problem = self.problem
        #: Whether windows are clipped at the operand's borders; copying it would cost more than the work.
        self.clips = (
            problem.depthwise
            and problem.natural_input
            and not (problem.reads_input or problem.is_dilated)
        )
        begin, end = problem.window(-1).interior
        width = end - begin if self.clips else problem.width
        tile = self.tile = Tile.of(problem, width, source.target, source.blocking)
        fills = problem.features == tile.features
        self.clips = self.clips and fills
        # Vectors of channels must not run past the last one.
        self.reads_input = self.clips or (problem.reads_input and (fills or not problem.depthwise))
        # Where they lie, the features of a block may be strips far apart, which meet in the same sets of a cache, and
        # vectors that lie across cache lines: numpy aligns arrays to 16 bytes.
        packs = not problem.depthwise and problem.batch * math.prod(problem.outputs) >= _PACKED_FOR
        self.reads_kernel = problem.reads_kernel and fills and not packs and tile.channels == 1
        self.writes_output = problem.writes_output and fills
        self.weights = WeightChunk.of(problem, tile, source.target)
        self.blocks = blocks_of_task(problem, tile, source.target)
        #: Pixels and features of the blocks by which planes of features are stored.
        self.side = 0 if self.clips or self.blocks > 1 else block_side(problem, tile)
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
        inner = problem.channels, tile.block
        if tile.channels > 1:
            inner = tile.block, problem.channels
        return ArrayType((problem.groups, blocks, problem.taps, *inner), problem.element)

    @property
    def _input_bytes(self) -> int:
        return 0 if self.reads_input else -(-self._input_type.nbytes // 64) * 64

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        problem, tile = self.problem, self.tile
        workspace = self._input_bytes + (0 if self.reads_kernel else self._kernel_type.nbytes)
        row = 0 if self.weights is None else tile.chunk
        staged = tile.chunk if self.side else row + (0 if self.writes_output else tile.pixels)
        scratch = staged * tile.block * problem.element.nbytes
        frame = KernelFrame(self.source, workspace, scratch)
        if not self.reads_input:
            array = self._input_type
            rows = array.size // (array.shape[-1] * array.shape[-2])
            copy = partial(copy_input, problem=problem, array=array)
            frame.phase(copy, rows, worth_splitting(array.size, 5))
        if not self.reads_kernel:
            array = self._kernel_type
            rows = array.size // array.shape[-1]
            copier = copy_kernel if tile.channels == 1 else copy_kernel_channels_last
            copy = partial(copier, problem=problem, array=array, offset=self._input_bytes)
            frame.phase(copy, rows, worth_splitting(array.size, 5))
        frame.phase(self._compute, self._tasks, worth_splitting(problem.work, 1))
        return frame.finish("convolution", 2 * problem.work)

    @property
    def _grid(self) -> tuple[int, ...]:
        """Tasks by group, block of features, batch, leading space, residue and chunk of pixels, blocks of features."""
        problem, tile = self.problem, self.tile
        parts = -(-tile.features // (tile.block * self.blocks))
        return (
            problem.groups,
            1 if self.rows_first else parts,
            problem.batch,
            *problem.outputs[:-1],
            problem.dimensions[-1].residues,
            1 if self.clips else -(-problem.width // tile.chunk),
            parts if self.rows_first else 1,
        )

    @property
    def _tasks(self) -> int:
        return math.prod(self._grid)

    def _compute(self, phase: PhaseFrame) -> None:
        tile, last = self.tile, self.problem.dimensions[-1]
        source = phase.arguments[self.node.operands[0].result] if self.reads_input else None
        kernel = phase.arguments[self.node.operands[1].result] if self.reads_kernel else None
        if source is None:
            source = build.view(phase.workspace, 0, self._input_type)
        if kernel is None:
            kernel = build.view(phase.workspace, self._input_bytes, self._kernel_type)
        flat = build.flatten(source), build.flatten(kernel)
        wide, narrow = last.windows(0), last.windows(last.residues - 1)

        def row(task: ir.Value) -> None:
            group, outer, batch, *position, chunk, part = build.delinearize(task, self._grid)
            first = build.mul(part if self.rows_first else outer, tile.block * self.blocks)
            taps = [
                d.first(window) for d, window in zip(self.problem.dimensions, position, strict=True)
            ]
            work = _Tiles(self, phase, flat, group, first, batch, position, taps, wide)
            if wide == narrow:
                work.chunk(chunk)
                return
            longer = last.outputs % last.period
            with build.if_then(build.less(position[-1], longer)):
                work.chunk(chunk)
            with build.if_then(build.at_least(position[-1], longer)):
                replace(work, width=narrow).chunk(chunk)

        phase.each_task(row)


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
        position: the leading spatial position, then the residue of the pixels.
        taps: along each dimension, the first tap of their windows that reads an element.
        width: the number of pixels of the residue in a row.
        begin: the first pixel of the chunk.
    """

    owner: TileConvolutionEmitter
    phase: PhaseFrame
    flat: tuple[ir.Value, ir.Value]
    group: Index
    first: Index
    batch: Index
    position: Sequence[Index]
    taps: Sequence[Index]
    width: int
    begin: Index = 0

    def chunk(self, chunk: Index) -> None:
        """Compute a chunk of a row of pixels."""
        owner = self.owner
        if owner.clips:
            begin, end = owner.problem.window(-1).interior
            _tiles(begin, end, owner.tile.pixels, self.emit)
            _clipped(self, 0, begin)
            _clipped(self, end, self.width)
            return
        begin = build.mul(chunk, owner.tile.chunk) if self.width > owner.tile.chunk else 0
        replace(self, begin=begin)._chunk()

    def _chunk(self) -> None:
        owner = self.owner
        if owner.weights is None:
            self._row(self.emit)
        else:
            self._accumulate(owner.weights)
        if owner.side:
            pixels = self.begin, build.minimum(build.add(self.begin, owner.tile.chunk), self.width)
            where = self.batch, self.group, self.first, self.position[:-1]
            store_planes(self.phase, owner.problem, owner.tile, owner.side, pixels, where)

    def _row(self, body: Callable[[Index, int], None]) -> None:
        """``body(pixel, pixels)`` for the tiles of the chunk."""
        width, tile = self.width, self.owner.tile
        if width <= tile.chunk:
            for begin, end, pixels in tile.spans(width):
                _tiles(begin, end, pixels, body)
            return
        rest = width % tile.pixels
        end = build.minimum(build.add(self.begin, tile.chunk), width - rest)
        _tiles(self.begin, end, tile.pixels, body)
        if rest:
            final = build.less(width - 1, build.add(self.begin, tile.chunk))
            with build.if_then(final):
                body(width - rest, rest)

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

    def _accumulate(self, weights: WeightChunk) -> None:
        """Compute the chunk of pixels, all of it for each chunk of ``weights``; sums wait in scratch."""
        owner = self.owner
        tile, channels = owner.tile, owner.problem.channels
        window = [(0, count) for count in self._counts]
        sums = stage_of(self.phase, owner.problem, tile)

        def place(pixel: Index, number: int) -> list[ir.Value]:
            at = build.mul(build.sub(pixel, self.begin), tile.block)
            return [build.index_value(build.add(at, number * tile.lanes))]

        def keep(pixel: Index, values: Sequence[ir.Value]) -> None:
            for number, value in enumerate(values):
                vector.StoreOp(value, sums, place(pixel, number))

        def kept(pixel: Index, pixels: int) -> list[ir.Value]:
            count = pixels * tile.vectors
            return [vector.LoadOp(self._kind, sums, place(pixel, i)).result for i in range(count)]

        def part(outer: list[Index], _: list[ir.Value]) -> list[ir.Value]:
            *leading, low = outer
            low = build.mul(low, weights.channels)
            high: Index = build.add(low, weights.channels)
            if channels % weights.channels:
                high = build.minimum(high, channels)
            bounds = [*window[weights.leading :], (low, high)]

            def add(pixel: Index, pixels: int) -> None:
                step = self._step(pixel, pixels)
                values = kept(pixel, pixels)
                keep(pixel, self._nest(bounds, values, lambda at, v: step([*leading, *at], v)))

            self._row(add)
            return []

        self._row(lambda pixel, pixels: keep(pixel, [self._zero] * pixels * tile.vectors))
        parts = -(-channels // weights.channels)
        bounded_nest(self.phase.elemental, [*window[: weights.leading], (0, parts)], [], part)
        if not owner.side:
            self._row(lambda pixel, n: self._store(pixel, n, kept(pixel, n)))

    def _nest(
        self,
        bounds: Sequence[tuple[Index, Index]],
        carried: Sequence[ir.Value],
        body: Callable[[list[Index], list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Loops over taps and channels.

        The innermost takes several turns at a time, presumably since the end of few is foreseen more often: two gain 2
        to 8 % over one, and four 7 % over two with AVX-512, 1 % without.
        """
        turns = build.TILE_TURNS
        if self.owner.source.target.vector_registers > 16:
            turns *= 2
        outer = 0 if self.owner.problem.depthwise else 1
        unroll = [outer] * (len(bounds) - 1) + [turns]
        return bounded_nest(self.phase.elemental, bounds, carried, body, unroll=unroll)

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
        problem = self.owner.problem
        zeros = [self._zero] * (pixels * self.owner.tile.vectors)
        bounds = [
            *self._bounds(pixel, is_border),
            (0, problem.channels // self.owner.tile.channels),
        ]
        shares = problem.depthwise and problem.dimensions[-1].advance == 1 and not is_border
        count = self._counts[-1]
        if shares and isinstance(count, int) and count <= _MOST_TAPS:
            base = self._input_base(pixel)
            window_rows = self._nest(
                bounds[:-2], zeros, lambda at, sums: self._window_row(base, at, count, sums)
            )
            self._store(pixel, pixels, window_rows)
            return
        sums = self._nest(bounds, zeros, self._step(pixel, pixels))
        self._store(pixel, pixels, sums)

    def _step(
        self, pixel: Index, pixels: int
    ) -> Callable[[list[Index], list[ir.Value]], list[ir.Value]]:
        """What one of the taps that read and one channel, or a vector of them, add to the sums of a tile."""
        owner, tile, problem = self.owner, self.owner.tile, self.owner.problem
        kind = self._kind
        base, weights = self._input_base(pixel), self._kernel_base()
        steps = row_strides(owner.space, owner.inputs)
        apart = tile.lanes if tile.channels == 1 else problem.channels

        def step(index: list[Index], sums: list[ir.Value]) -> list[ir.Value]:
            *window, number = index
            channel = build.mul(number, tile.channels)
            at = build.add(base, channel)
            for number, d, stride in zip(window, problem.dimensions, steps, strict=True):
                at = build.add(at, build.mul(number, d.spacing * stride))
            weight = build.add(weights, self._weight(self._tap(window), channel))
            columns = [
                self._load(kind, 1, build.add(weight, v * apart)) for v in range(tile.vectors)
            ]
            result: list[ir.Value] = []
            for p in range(pixels):
                here = build.add(at, p * problem.dimensions[-1].advance * owner.inputs)
                for v, column in enumerate(columns):
                    if problem.depthwise:
                        factor = self._load(kind, 0, build.add(here, v * tile.lanes))
                    elif tile.channels > 1:
                        factor = self._load(kind, 0, here)
                    else:
                        scalar = build.load(self.flat[0], [here], problem.element)
                        factor = vector.BroadcastOp(kind, scalar).result
                    total = sums[p * tile.vectors + v]
                    result.append(problem.multiply_add(total, factor, column))
            return result

        return step

    def _window_row(
        self, base: Index, rows: list[Index], taps: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """One row of a depthwise window: an input vector is loaded once for all the pixels whose windows hold it."""
        owner, tile, problem, kind = self.owner, self.owner.tile, self.owner.problem, self._kind
        last = problem.dimensions[-1]
        at, result = base, list(sums)
        steps = row_strides(owner.space, owner.inputs)
        for number, d, step in zip(rows, problem.dimensions, steps, strict=False):
            at = build.add(at, build.mul(number, d.spacing * step))
        readers: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(len(sums) // tile.vectors):
            for tap in range(taps):
                readers.setdefault(pixel * last.advance + tap * last.spacing, []).append(
                    (pixel, tap)
                )
        first = build.linearize(self._tap([*rows, 0]), problem.kernel)
        weights = build.add(self._kernel_base(), build.mul(first, self._weight_row))
        apart = last.tap_step * self._weight_row
        for v in range(tile.vectors):
            shift = v * tile.lanes
            columns = [
                self._load(kind, 1, build.add(weights, tap * apart + shift)) for tap in range(taps)
            ]
            for column, pairs in sorted(readers.items()):
                factor = self._load(kind, 0, build.add(at, column * owner.inputs + shift))
                for pixel, tap in pairs:
                    number = pixel * tile.vectors + v
                    result[number] = problem.multiply_add(result[number], factor, columns[tap])
        return result

    def _bounds(self, pixel: Index, is_border: bool) -> list[tuple[Index, Index]]:
        """Of the taps that read an element, counted from the first, those that lie inside, for each dimension."""
        problem, last = self.owner.problem, len(self.position) - 1
        windows = [*self.position[:-1], pixel]
        result: list[tuple[Index, Index]] = []
        for d, (window, count) in enumerate(zip(windows, self._counts, strict=True)):
            clipped = self.owner.clips and (d < last or is_border)
            result.append(problem.window(d).bounds(window) if clipped else (0, count))
        return result

    @property
    def _counts(self) -> list[Index]:
        """The number of taps that read an element, for each dimension."""
        pairs = zip(self.owner.problem.dimensions, self.taps, strict=True)
        return [d.taps(first) for d, first in pairs]

    def _tap(self, window: Sequence[Index]) -> list[Index]:
        """The taps of those numbers among the ones that read an element."""
        triples = zip(self.taps, window, self.owner.problem.dimensions, strict=True)
        return [build.add(first, build.mul(number, d.tap_step)) for first, number, d in triples]

    def _load(self, kind: ir.Type, operand: int, at: Index) -> ir.Value:
        return vector.LoadOp(kind, self.flat[operand], [build.index_value(at)]).result

    def _input_base(self, pixel: Index) -> Index:
        owner, problem = self.owner, self.owner.problem
        batch = self.batch
        if problem.batch_groups:
            batch = build.add(build.mul(self.group, problem.batch), batch)
        position = [
            d.origin(window, first, 0 if owner.clips else d.padding)
            for d, window, first in zip(problem.dimensions, self.position, self.taps, strict=True)
        ]
        advance = problem.dimensions[-1].advance
        position[-1] = build.add(build.mul(pixel, advance), position[-1])
        shape = (1, *owner.space, owner.inputs)
        channel: Index = self.first if problem.depthwise else 0
        if not problem.batch_groups and not problem.depthwise:
            channel = build.mul(self.group, problem.channels)
        return build.linearize([batch, *position, channel], shape)

    def _weight(self, tap: Sequence[Index], channel: Index) -> Index:
        """Where the first weights of a tap and channel lie, counted from the block's."""
        problem, tile = self.owner.problem, self.owner.tile
        if tile.channels > 1:
            shape = (*problem.kernel, tile.block, problem.channels)
            return build.linearize([*tap, 0, channel], shape)
        position = build.linearize([*tap, channel], [*problem.kernel, problem.channels])
        return build.mul(position, self._weight_row)

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

    def _output(self, pixel: Index) -> list[Index]:
        """Where a pixel of the residue lies in the output."""
        *leading, residue = self.position
        apart = self.owner.problem.dimensions[-1].period
        return [*leading, build.add(build.mul(pixel, apart), residue)]

    def _store(self, pixel: Index, pixels: int, sums: Sequence[ir.Value]) -> None:
        owner, tile, problem = self.owner, self.owner.tile, self.owner.problem
        feature = build.add(build.mul(self.group, problem.features), self.first)
        if owner.side:
            keep_sums(self.phase, problem, tile, build.sub(pixel, self.begin), sums)
            return
        if tile.channels > 1:
            for number, value in enumerate(sums):
                p, column = divmod(number, tile.vectors)
                self._store_element(
                    self._total(value), build.add(pixel, p), build.add(feature, column)
                )
            return
        if owner.writes_output:
            result = build.flatten(self.phase.results[0])
            shape = owner.node.shape if len(owner.node.shape) > 2 else (problem.batch, 1, -1)
            shape = (*shape[:-1], problem.features * problem.groups)
            base = build.linearize([self.batch, *self._output(pixel), feature], shape)
            apart = problem.dimensions[-1].period * shape[-1]
            for p in range(pixels):
                for v in range(tile.vectors):
                    at = build.add(base, p * apart + v * tile.lanes)
                    value = sums[p * tile.vectors + v]
                    vector.StoreOp(value, result, [build.index_value(at)])
            return
        array = ArrayType((tile.pixels * tile.block,), problem.element)
        before = 0 if owner.weights is None else tile.chunk * tile.block * problem.element.nbytes
        buffer = build.view(self.phase.scratch, before, array)
        for number, value in enumerate(sums):
            vector.StoreOp(value, buffer, [build.index_value(number * tile.lanes)])
        self._store_elements(buffer, pixel, pixels, feature)

    def _total(self, sums: ir.Value) -> ir.Value:
        """The sum of a vector's elements."""
        element = self.owner.problem.element
        flags = arith.FastMathFlags.reassoc if element.is_float else None
        kind = build.register_type(element)
        return vector.ReductionOp(kind, vector.CombiningKind.ADD, sums, fastmath=flags).result

    def _store_elements(self, buffer: ir.Value, pixel: Index, pixels: int, feature: Index) -> None:
        """Store a tile kept in scratch element by element, wherever the output's elements lie."""
        problem, block = self.owner.problem, self.owner.tile.block
        count = build.minimum(build.sub(problem.features, self.first), block)

        def store(column: Index, p: ir.Value) -> list[ir.Value]:
            at = build.add(build.mul(p, block), column)
            value = build.load(buffer, [at], problem.element)
            self._store_element(value, build.add(pixel, p), build.add(feature, column))
            return []

        def columns(column: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, pixels, lambda p, _: store(column, p))
            return []

        build.for_loop(0, count, columns)

    def _store_element(self, value: ir.Value, pixel: Index, feature: Index) -> None:
        problem, node = self.owner.problem, self.owner.node
        index = problem.output_index(self.batch, feature, self._output(pixel))
        narrow = arithmetic.convert(problem.element, node.type.element, value)
        self.phase.store(0, narrow, index, node.type)
