# SPDX-License-Identifier: Apache-2.0
"""Matrix products on tensor cores: ``mma.sync`` on fragments that ``ldmatrix`` reads from swizzled tiles.

A step brings 64 bytes of the sum of every row and column into workgroup memory: 32 elements of ``f16`` or ``bf16``,
64 of ``i8``, 16 of ``f32`` (rounded to ``tf32`` by the multiplier). ``STAGES`` steps are in flight: a step's tiles are
fetched while those before are computed, by ``cp.async`` where an access has 4 bytes or more and lies right, else
through registers.

A tile is kept with ``k`` innermost, or, where 16-bit elements lie along the rows (columns), as they lie; ``ldmatrix``
then transposes. The 16-byte chunks of a row are permuted by an exclusive or with the row's number, so that the eight
rows that ``ldmatrix`` reads at once lie in different banks and no padding is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, memref, nvgpu, nvvm, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu import vectors
from gristmill.compiler.emitters.gpu.dot_operand import Chunk, TileOperand, TileShare
from gristmill.compiler.emitters.gpu.dot_tiles import Bands, Cut, Position, Product, store_tile
from gristmill.compiler.emitters.gpu.frame import WARP, LaunchFrame

#: Bytes of the sum in one step.
MMA_DEPTH_BYTES = 64

#: Steps whose tiles are in workgroup memory.
STAGES = 3

#: Bytes of what ``ldmatrix`` reads as one row, and of the sum in one ``mma``.
_CHUNK, _MMA_BYTES = 16, 32

#: Rows and columns of one ``mma``.
_ROWS, _COLUMNS = 16, 8

#: Blocks that are to fit a multiprocessor at once, by the sums of a thread: 168 and 128 registers each suffice there.
#: Elements that are fetched one by one, and a convolution's addresses, take many registers: those blocks get all 255.
_RESIDENT = {128: 2, 64: 3}
_MOST_RESIDENT, _LEAST_RESIDENT = 4, 2

#: Bytes that one ``cp.async`` may have.
_ASYNC_BYTES = (4, 8, 16)


@dataclass(frozen=True)
class MmaTile:
    """Sizes of a block's tile and of a warp's part of it."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int

    @property
    def warps(self) -> tuple[int, int]:
        """Warps down and across the tile."""
        return self.rows // self.warp_rows, self.columns // self.warp_columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * math.prod(self.warps)

    @property
    def overhead(self) -> float:
        """Instructions for each ``mma``."""
        rows, columns = self.warp_rows // _ROWS, self.warp_columns // _COLUMNS
        return 1 + (rows + columns / 2) / (rows * columns)

    @property
    def bands(self) -> Bands:
        """How sums leave the registers."""
        return Bands(self.warps[0], self.warp_rows, _ROWS)


MMA_TILES = (
    MmaTile(128, 128, 64, 64),
    MmaTile(128, 64, 64, 32),
    MmaTile(64, 128, 32, 64),
    MmaTile(64, 64, 32, 32),
    MmaTile(32, 64, 16, 32),
    MmaTile(64, 32, 32, 16),
    MmaTile(16, 64, 16, 16),
    MmaTile(64, 16, 16, 16),
)


def emit_mma(launch: LaunchFrame, product: Product, cut: Cut, tile: MmaTile) -> None:
    """The code of one block."""
    sums = tile.warp_rows * tile.warp_columns // WARP
    is_greedy = product.is_gathered or 1 in (product.lhs.width, product.rhs.width)
    launch.reside(_LEAST_RESIDENT if is_greedy else _RESIDENT.get(sums, _MOST_RESIDENT))
    _Block(launch, product, cut, tile).emit()


class _Tiles:
    """One operand's tiles in workgroup memory.

    Args:
        space: bytes of workgroup memory, and ``offset`` of the tiles in it.
        first: first row (column) that the block computes.
        rows: of the tile.
    """

    def __init__(
        self, space: ir.Value, offset: int, operand: TileOperand, first: Index, rows: int, threads: int
    ):  # fmt: skip
        self.operand, self.first, self.rows = operand, first, rows
        self.kind = build.storage_type(operand.element)
        self.nbytes = operand.element.nbytes
        self.depth = MMA_DEPTH_BYTES // self.nbytes
        self.share = TileShare(operand, rows, self.depth, threads)
        #: Whether a row of the tile is one of k, as the operand lies in memory.
        self.transposed = operand.along == "free" and self.nbytes == 2
        self.shape = (self.depth, rows) if self.transposed else (rows, self.depth)
        direct = self.transposed or operand.along == "k"
        # A group of copies must have one from every thread: the text of an empty group cannot be read back.
        self.is_async = (
            direct and operand.width * self.nbytes in _ASYNC_BYTES and self.share.is_even
        )
        where = ir.MemRefType(space.type).memory_space
        shape = [STAGES * self.shape[0], self.shape[1]]
        target = ir.MemRefType.get(shape, self.kind, memory_space=where)
        self.memory = memref.ViewOp(target, space, build.index_value(offset), []).result

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return _CHUNK // self.nbytes

    def place(self, stage: Index, free: Index, k: Index) -> list[Index]:
        """Where an element of the tile lies."""
        row, column = (k, free) if self.transposed else (free, k)
        chunk, within = build.div(column, self.chunk), build.mod(column, self.chunk)
        column = build.add(build.mul(self._swizzle(row, chunk), self.chunk), within)
        return [build.add(build.mul(stage, self.shape[0]), row), column]

    def _swizzle(self, row: Index, chunk: Index) -> Index:
        count = self.shape[1] // self.chunk
        # Rows of fewer than 8 chunks share the 128 bytes of all banks.
        together = max(1, 8 // count)
        mask = build.mod(build.div(row, together), min(8, count))
        if isinstance(mask, int) and isinstance(chunk, int):
            return mask ^ chunk
        return arith.XOrIOp(build.index_value(mask), build.index_value(chunk)).result

    def read(self, launch: LaunchFrame, batch: Index, chunk: Chunk, step: Index) -> ir.Value:
        """A chunk of a step's tile, through a register."""
        free, k = build.add(self.first, chunk.free), build.add(build.mul(step, self.depth), chunk.k)
        conditions = self.share.conditions(chunk, free, k)
        return self.operand.read(launch, batch, free, k, conditions)

    def put(self, value: ir.Value, chunk: Chunk, stage: Index) -> None:
        """Store a chunk."""
        in_row = self.transposed or self.operand.along == "k"
        if in_row:
            vectors.store(value, self.memory, self.place(stage, chunk.free, chunk.k))
            return
        for number, element in enumerate(vectors.elements(value)):
            where = self.place(stage, build.add(chunk.free, number), chunk.k)
            vectors.store(element, self.memory, where)

    def copy(
        self, launch: LaunchFrame, batch: Index, chunk: Chunk, step: Index, stage: Index
    ) -> ir.Value:
        """Start an asynchronous copy of a chunk; what lies outside the operand becomes zero."""
        free, k = build.add(self.first, chunk.free), build.add(build.mul(step, self.depth), chunk.k)
        conditions = self.share.conditions(chunk, free, k)
        offset, inside = self.operand.source(batch, free, k, conditions)
        width = self.operand.width
        count = build.index_value(width)
        if inside is not None:
            count = arith.SelectOp(inside, count, build.index_value(0)).result
        buffer = self.operand.buffer(launch)
        where = [build.index_value(i) for i in self.place(stage, chunk.free, chunk.k)]
        bypass = width * self.nbytes == _CHUNK
        return nvgpu.DeviceAsyncCopyOp(
            self.memory, where, buffer, [build.index_value(offset)], width,
            srcElements=count, bypassL1=bypass or None,
        ).result  # fmt: skip

    def fragments(self, stage: Index, first: Index, k: int, lane: Index, is_lhs: bool) -> ir.Value:
        """Sixteen rows (columns) of ``k`` to ``k + 32 bytes``: four 8 by 16-byte matrices.

        PTX ISA, "Warp-level matrix load instruction: ldmatrix": lane ``l`` names row ``l % 8`` of matrix ``l / 8``. The
        matrices' order is that of the registers of ``mma``'s operand: for the left one rows first, for
        the right one ``k`` first.
        """
        row, half = build.mod(lane, 8), build.mod(build.div(lane, 8), 2)
        quarter = build.div(lane, 16)
        by_row, by_k = (half, quarter) if is_lhs else (quarter, half)
        if self.transposed:
            # A matrix's rows are k: eight rows of the operand are its columns.
            k_at = build.add(build.add(build.mul(by_k, 8), row), k)
            free = build.add(first, build.mul(by_row, 8))
        else:
            k_at = build.add(build.mul(by_k, self.chunk), k)
            free = build.add(first, build.add(build.mul(by_row, 8), row))
        kind = ir.VectorType.get([4, 4 // self.nbytes], self.kind)
        where = [build.index_value(i) for i in self.place(stage, free, k_at)]
        fragments = nvgpu.LdMatrixOp(kind, self.memory, where, self.transposed, 4).result
        return _to_tf32(fragments) if self.operand.element.name == "f32" else fragments


class _Block:
    def __init__(self, launch: LaunchFrame, product: Product, cut: Cut, tile: MmaTile):
        self.launch, self.product, self.cut, self.tile = launch, product, cut, tile
        self.position = Position.of(launch, product, cut)
        self.sum = build.register_type(product.accumulate)
        staged = math.prod(tile.bands.shape(cut)) * product.accumulate.nbytes
        stage_bytes = STAGES * MMA_DEPTH_BYTES
        nbytes = max(staged, stage_bytes * (tile.rows + tile.columns))
        space = launch.shared((nbytes,), ir.IntegerType.get_signless(8))
        where = ir.MemRefType(space.type).memory_space
        shape = ir.MemRefType.get(list(tile.bands.shape(cut)), self.sum, memory_space=where)
        self.stage = memref.ViewOp(shape, space, build.index_value(0), []).result
        at = self.position
        self.sides = [
            _Tiles(space, 0, product.lhs, at.m, tile.rows, tile.threads),
            _Tiles(space, stage_bytes * tile.rows, product.rhs, at.n, tile.columns, tile.threads),
        ]
        self.chunks = [side.share.chunks(launch.thread()) for side in self.sides]
        self.lane = launch.lane()
        self.warp_row, self.warp_column = build.delinearize(launch.warp(), tile.warps)

    def emit(self) -> None:
        tile = self.tile
        group: ir.Value | None = None
        for ahead in range(STAGES - 1):
            step = build.add(self.position.step, ahead)
            group = self._copy(step, ahead)
            self._put(ahead, self._fetch(step))
        kind = ir.VectorType.get([2], self.sum)
        count = tile.warp_rows // _ROWS * (tile.warp_columns // _COLUMNS)
        sums = [vectors.zero_like(kind)] * (2 * count)

        def turn(number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            if group is not None:
                nvgpu.DeviceAsyncWaitOp(group, numGroups=STAGES - 2)
            self.launch.barrier()
            ahead = build.add(number, STAGES - 1)
            stage = build.mod(ahead, STAGES)
            step = build.add(self.position.step, ahead)
            self._copy(step, stage)
            values = self._fetch(step)
            sums = self._multiply(build.mod(number, STAGES), sums)
            self._put(stage, values)
            return sums

        sums = build.for_loop(0, self.cut.steps, turn, sums)
        if group is not None:
            nvgpu.DeviceAsyncWaitOp(group, numGroups=0)
        store_tile(
            self.launch, self.product, self.cut, self.position, tile.bands, self.stage,
            lambda band: self._stage(band, sums),
        )  # fmt: skip

    def _copy(self, step: Index, stage: Index) -> ir.Value | None:
        """Start the asynchronous copies of a step, as one group; None when there are none."""
        tokens = [
            side.copy(self.launch, self.position.batch, chunk, step, stage)
            for side, chunks in zip(self.sides, self.chunks, strict=True)
            for chunk in chunks
            if side.is_async
        ]
        return nvgpu.DeviceAsyncCreateGroupOp(tokens).result if tokens else None

    def _fetch(self, step: Index) -> list[list[ir.Value]]:
        """The thread's share of what goes through registers, by operand."""
        return [
            []
            if side.is_async
            else [side.read(self.launch, self.position.batch, chunk, step) for chunk in chunks]
            for side, chunks in zip(self.sides, self.chunks, strict=True)
        ]

    def _put(self, stage: Index, values: list[list[ir.Value]]) -> None:
        for side, chunks, fetched in zip(self.sides, self.chunks, values, strict=True):
            for chunk, value in zip(chunks, fetched, strict=False):
                if chunk.exists is None:
                    side.put(value, chunk, stage)
                    continue
                with build.if_then(chunk.exists):
                    side.put(value, chunk, stage)

    def _multiply(self, stage: Index, sums: list[ir.Value]) -> list[ir.Value]:
        tile = self.tile
        lhs, rhs = self.sides
        depth = _MMA_BYTES // lhs.nbytes
        row, column = (
            build.mul(self.warp_row, tile.warp_rows),
            build.mul(self.warp_column, tile.warp_columns),
        )
        sums = list(sums)
        for k in range(0, lhs.depth, depth):
            left = [
                lhs.fragments(stage, build.add(row, at), k, self.lane, True)
                for at in range(0, tile.warp_rows, _ROWS)
            ]
            right: list[ir.Value] = []
            for at in range(0, tile.warp_columns, 2 * _COLUMNS):
                both = rhs.fragments(stage, build.add(column, at), k, self.lane, False)
                right += [_half(both, number) for number in range(2)]
            for i, a in enumerate(left):
                for j, b in enumerate(right):
                    at = 2 * (i * len(right) + j)
                    sums[at : at + 2] = self._mma(a, b, sums[at : at + 2], depth)
        return sums

    def _mma(self, a: ir.Value, b: ir.Value, sums: list[ir.Value], depth: int) -> list[ir.Value]:
        kind = ir.VectorType.get([2, 2], self.sum)
        total = vectors.zero_like(kind)
        for number, pair in enumerate(sums):
            total = vector.InsertOp(pair, total, [], [number]).result
        i64 = ir.IntegerType.get_signless(64)
        shape = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, x) for x in (_ROWS, _COLUMNS, depth)])
        tf32 = self.product.lhs.element.name == "f32"
        total = nvgpu.MmaSyncOp(kind, a, b, total, shape, tf32Enabled=tf32 or None).result
        return [vector.ExtractOp(total, [], [number]).result for number in range(2)]

    def _stage(self, band: int, sums: list[ir.Value]) -> None:
        """PTX ISA, "Matrix fragments for mma.m16n8k16": a lane has columns 2·(lane % 4) and the next of rows lane / 4
        and that + 8."""
        tile = self.tile
        columns = tile.warp_columns // _COLUMNS
        row = build.add(build.mul(self.warp_row, _ROWS), build.div(self.lane, 4))
        column = build.add(
            build.mul(self.warp_column, tile.warp_columns), build.mul(build.mod(self.lane, 4), 2)
        )
        for j in range(columns):
            for half in range(2):
                value = sums[2 * (band * columns + j) + half]
                where = [build.add(row, 8 * half), build.add(column, j * _COLUMNS)]
                vectors.store(value, self.stage, where)


def _to_tf32(fragments: ir.Value) -> ir.Value:
    """Rounded to nearest; the multiplier alone would cut off the low bits."""
    kind, i32 = ir.VectorType(fragments.type), ir.IntegerType.get_signless(32)
    rounding = ir.Attribute.parse("#nvvm.fp_rnd_mode<rna>")
    words = [
        nvvm.ConvertFloatToTF32Op(
            i32, vector.ExtractOp(fragments, [], [number, 0]).result, rnd=rounding
        ).result
        for number in range(kind.shape[0])
    ]
    values = [arith.BitcastOp(kind.element_type, word).result for word in words]
    return vector.FromElementsOp(kind, values).result


def _half(fragments: ir.Value, number: int) -> ir.Value:
    """Two of four fragments."""
    kind = ir.VectorType(fragments.type)
    result = vectors.zero_like(ir.VectorType.get([2, kind.shape[1]], kind.element_type))
    for i in range(2):
        part = vector.ExtractOp(fragments, [], [2 * number + i]).result
        result = vector.InsertOp(part, result, [], [i]).result
    return result
