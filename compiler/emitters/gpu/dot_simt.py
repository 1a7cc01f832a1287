# SPDX-License-Identifier: Apache-2.0
"""Matrix products without tensor cores: a tile of sums for each block, a smaller one in each thread's registers.

A step brings ``depth`` elements of the sum of both operands into workgroup memory, in the type of the sums and with
``k`` outermost, so that a thread reads its rows and columns as vectors. Tiles are double-buffered: while a step is
computed, the elements of the next are on their way from global memory into registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot_build import widen
from gristmill.compiler.emitters.gpu import vectors
from gristmill.compiler.emitters.gpu.dot_operand import TileShare
from gristmill.compiler.emitters.gpu.dot_tiles import Bands, Cut, Position, Product, store_tile
from gristmill.compiler.emitters.gpu.frame import LaunchFrame, type_bytes

#: Columns of a thread that lie together: one access of ``f32``.
_PIECE = 4

#: Elements between a row of a tile and the next, beyond its width: stores along ``k`` meet different banks.
_PADDING = 4

#: Threads of a warp along the columns.
_WARP_COLUMNS = 8

#: Threads of a multiprocessor that leave each of them 128 registers, and 255 where elements are fetched one by one.
_RESIDENT, _NARROW_RESIDENT = 512, 256


@dataclass(frozen=True)
class SimtTile:
    """Sizes: a block's tile, the part of it in one thread's registers, elements of the sum in one step."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def overhead(self) -> float:
        """Instructions for each multiply-add."""
        loads = (self.thread_rows + self.thread_columns) / 2
        return 1 + loads / (self.thread_rows * self.thread_columns)

    @property
    def bands(self) -> Bands:
        """How sums leave the registers."""
        return Bands(self.rows // self.thread_rows, self.thread_rows, min(2, self.thread_rows))

    def shared_bytes(self, nbytes: int) -> int:
        """Workgroup memory for sums of ``nbytes`` bytes."""
        tiles = 2 * self.depth * (self.rows + self.columns + 2 * _PADDING)
        return nbytes * max(tiles, math.prod(self.bands.shape(_cut(self))))


def _cut(tile: SimtTile) -> Cut:
    return Cut(tile.rows, tile.columns, tile.depth, 1, 1)


def emit_simt(launch: LaunchFrame, product: Product, cut: Cut, tile: SimtTile) -> None:
    """The code of one block."""
    is_narrow = 1 in (product.lhs.width, product.rhs.width)
    launch.reside((_NARROW_RESIDENT if is_narrow else _RESIDENT) // tile.threads)
    _Block(launch, product, cut, tile).emit()


class _Block:
    def __init__(self, launch: LaunchFrame, product: Product, cut: Cut, tile: SimtTile):
        self.launch, self.product, self.cut, self.tile = launch, product, cut, tile
        self.position = Position.of(launch, product, cut)
        self.kind = build.register_type(product.accumulate)
        nbytes = type_bytes(self.kind)
        i8 = ir.IntegerType.get_signless(8)
        space = launch.shared((tile.shared_bytes(nbytes),), i8)
        pitches = (tile.rows + _PADDING, tile.columns + _PADDING)
        shapes = [(2, tile.depth, pitch) for pitch in pitches]
        self.tiles = [
            shared_view(space, 0, shapes[0], self.kind),
            shared_view(space, math.prod(shapes[0]) * nbytes, shapes[1], self.kind),
        ]
        self.stage = shared_view(space, 0, tile.bands.shape(cut), self.kind)
        self.sides = [
            (product.lhs, self.position.m, TileShare(product.lhs, tile.rows, tile.depth, tile.threads)),
            (product.rhs, self.position.n, TileShare(product.rhs, tile.columns, tile.depth, tile.threads)),
        ]  # fmt: skip
        self.chunks = [share.chunks(launch.thread()) for _, _, share in self.sides]
        self.row, self.column = self._place()

    def _place(self) -> tuple[Index, Index]:
        """The thread's number down and across the tile. A warp is a rectangle, to share what it reads."""
        tile = self.tile
        across = tile.columns // tile.thread_columns
        width = min(_WARP_COLUMNS, across)
        thread = self.launch.thread()
        outer, warp_column, row, column = build.delinearize(
            thread, (tile.threads // (32 // width * across), across // width, 32 // width, width)
        )
        down = build.add(build.mul(outer, 32 // width), row)
        return down, build.add(build.mul(warp_column, width), column)

    def emit(self) -> None:
        self._put(0, self._fetch(self.position.step))
        self.launch.barrier()
        tile = self.tile
        pieces = tile.thread_rows * (tile.thread_columns // self._piece)
        kind = ir.VectorType.get([self._piece], self.kind)
        sums = [vectors.zero_like(kind)] * pieces

        def step(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            following = build.add(build.add(self.position.step, number), 1)
            values = self._fetch(following)
            now = build.mod(number, 2)
            sums = self._multiply(now, sums)
            self._put(build.sub(1, now), values)
            self.launch.barrier()
            return sums

        sums = build.for_loop(0, self.cut.steps, step, sums)
        store_tile(
            self.launch, self.product, self.cut, self.position, tile.bands, self.stage,
            lambda band: self._stage(band, sums),
        )  # fmt: skip

    @property
    def _piece(self) -> int:
        return min(_PIECE, self.tile.thread_columns)

    def _fetch(self, step: Index) -> list[list[ir.Value]]:
        """The thread's share of both operands' tiles of a step, as stored."""
        start = build.mul(step, self.tile.depth)
        result: list[list[ir.Value]] = []
        for (operand, first, share), chunks in zip(self.sides, self.chunks, strict=True):
            values: list[ir.Value] = []
            for chunk in chunks:
                free, k = build.add(first, chunk.free), build.add(start, chunk.k)
                conditions = share.conditions(chunk, free, k)
                values.append(operand.read(self.launch, self.position.batch, free, k, conditions))
            result.append(values)
        return result

    def _put(self, buffer: Index, values: list[list[ir.Value]]) -> None:
        """Put fetched elements, widened, into one of the two buffers."""
        for (operand, _, _), chunks, target, fetched in zip(
            self.sides, self.chunks, self.tiles, values, strict=True
        ):
            for chunk, raw in zip(chunks, fetched, strict=True):
                wide = widen(raw, operand.element, self.product.accumulate)
                if chunk.exists is None:
                    _spread(wide, target, buffer, chunk.k, chunk.free, operand.along == "k")
                    continue
                with build.if_then(chunk.exists):
                    _spread(wide, target, buffer, chunk.k, chunk.free, operand.along == "k")

    def _multiply(self, buffer: Index, sums: list[ir.Value]) -> list[ir.Value]:
        tile, piece = self.tile, self._piece
        pieces = tile.thread_columns // piece
        sums = list(sums)
        for k in range(tile.depth):
            rows: list[ir.Value] = []
            step = min(_PIECE, tile.thread_rows)
            first = build.mul(self.row, tile.thread_rows)
            for at in range(0, tile.thread_rows, step):
                rows += vectors.elements(
                    vectors.load(self.tiles[0], [buffer, k, build.add(first, at)], step)
                )
            columns = [
                vectors.load(self.tiles[1], [buffer, k, self._column(part)], piece)
                for part in range(pieces)
            ]
            for r, row in enumerate(rows):
                factor = vectors.splat(row, piece)
                for part, column in enumerate(columns):
                    at = r * pieces + part
                    sums[at] = vectors.multiply_add(factor, column, sums[at])
        return sums

    def _column(self, part: int) -> Index:
        """First column of one of the thread's pieces; neighbouring threads read neighbouring pieces."""
        tile, piece = self.tile, self._piece
        stride = tile.columns // (tile.thread_columns // piece)
        return build.add(build.mul(self.column, piece), part * stride)

    def _stage(self, band: int, sums: list[ir.Value]) -> None:
        tile, bands = self.tile, self.tile.bands
        pieces = tile.thread_columns // self._piece
        first = build.mul(self.row, bands.rows)
        for within in range(bands.rows):
            for part in range(pieces):
                value = sums[(band * bands.rows + within) * pieces + part]
                vectors.store(value, self.stage, [build.add(first, within), self._column(part)])


def _spread(
    value: ir.Value, target: ir.Value, buffer: Index, k: Index, free: Index, along_k: bool
) -> None:
    """Store the elements of a chunk to a tile with ``k`` outermost."""
    if not along_k:
        vectors.store(value, target, [buffer, k, free])
        return
    for number, element in enumerate(vectors.elements(value)):
        vectors.store(element, target, [buffer, build.add(k, number), free])


def shared_view(space: ir.Value, offset: int, shape: tuple[int, ...], kind: ir.Type) -> ir.Value:
    """A memref over the bytes of workgroup memory from ``offset`` on."""
    where = ir.MemRefType(space.type).memory_space
    target = ir.MemRefType.get(list(shape), kind, memory_space=where)
    return memref.ViewOp(target, space, build.index_value(offset), []).result
