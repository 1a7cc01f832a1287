# SPDX-License-Identifier: Apache-2.0
"""Tiles of a transpose: what they measure, and how one is made of blocks that are transposed in registers.

A tile is done in groups of a cache line across: what one line of each of the operand's rows becomes. Groups begin where
the lines do, wherever the operand begins, so that every line is read once: where the operand's pitch is critical (see
below), a line has left the first-level cache before a second read. Two detours go by a stage in that cache:

- What is fused into the transpose is computed in one, in the operand's order, before it is transposed.
- Rows of a result are collected in another and stored as runs if their pitch is critical, so that they compete for the
  same few sets of the caches, or if the result is stored past the caches. The runs of a group are stored while the
  blocks of the next one are transposed: the one waits for memory, the other for the core.

Groups and tiles that do not divide the extents overlap: the elements in common are written twice, with the same values.
Complex numbers of 8 bytes pass through both stages, where they are integers of 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlir import ir
from mlir.dialects import arith, memref, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import streaming
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType, ElementType, element_type

if TYPE_CHECKING:
    from gristmill.compiler.emitters.cpu.transpose import TransposeEmitter

#: Bytes of the operand's stage; with that of the result it fits the first-level cache.
STAGE_BYTES = 16 * 1024

#: Lines of a row of the operand to which one more group adds little.
LEAST_LINES = 16

#: Elements of a run of the result; and bytes, if the operand is computed in a stage or has elements of 8 bytes.
RUN_ELEMENTS, RUN_BYTES = 128, 256

#: Groups that lines of the operand are asked for ahead; and from a last-level cache that many cores share.
AHEAD, AHEAD_SHARED = 4, 1

#: Lines of a row that are asked for one after the other where vectors are shorter than AVX-512's (measured on Zen 3).
SPAN = 4

#: Groups of a tile: enough to make little of its first and last one, few enough to share among threads.
GROUPS = 32

#: Rows whose pitch is a multiple of this many bytes meet in few sets of the first-level cache.
CRITICAL_PITCH = 2048


@dataclass(frozen=True)
class Tiling:
    """The sizes of a transpose's tiles, in elements unless stated otherwise.

    Attributes:
        owner: what the transpose is.
        lanes: of a vector; blocks are ``lanes`` by ``lanes``.
        width: of a group, across.
        rows: of the operand in a tile, which lie along the result's minor dimension.
    """

    owner: TransposeEmitter
    lanes: int
    width: int
    rows: int

    @staticmethod
    def of(owner: TransposeEmitter) -> Tiling | None:
        """The tiles of a transpose; None where it is to be copied element by element."""
        nbytes = owner.array.element.nbytes
        lanes = min(16, owner.source.target.lanes(nbytes))
        tiling = Tiling(owner, lanes, 0, 0)
        if lanes < 4 or min(tiling.across, tiling.along) < lanes or nbytes > 8:
            return None
        short = tiling.stages_operand or nbytes == 8
        run = min(RUN_ELEMENTS, RUN_BYTES // nbytes) if short else RUN_ELEMENTS
        width = min(build.LINE_BYTES // nbytes, tiling.across // lanes * lanes)
        return replace(tiling, width=width, rows=_side(tiling.along, run, lanes))

    @property
    def across(self) -> int:
        """Extent of the operand's minor dimension."""
        return self.owner.movement.shape[self.owner.across]

    @property
    def along(self) -> int:
        """Extent of the result's minor dimension."""
        return self.owner.movement.shape[self.owner.along]

    @property
    def element(self) -> ElementType:
        """What is moved."""
        return self.owner.array.element

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers, which vectors cannot hold."""
        return self.element.kind == "complex"

    @property
    def streamed(self) -> bool:
        """Whether the result goes past the caches."""
        return streaming.streams(self.owner.source, 0, math.gcd(self.rows, self.along))

    @property
    def stages_operand(self) -> bool:
        """Whether the operand is computed in a stage."""
        return self.owner.operand.kind != "parameter" or self.is_complex

    @property
    def stages_result(self) -> bool:
        """Whether the result is collected in a stage."""
        critical = self.result_pitch * self.element.nbytes % CRITICAL_PITCH == 0
        return critical or self.streamed or self.is_complex

    @property
    def follows_lines(self) -> bool:
        """Whether groups begin where lines of the operand do: all its rows begin at the same place of a line."""
        if self.stages_operand or self.across < LEAST_LINES * self.width:
            return False
        nbytes = self.element.nbytes
        line = build.LINE_BYTES
        return self.width * nbytes == line and self.operand_pitch * nbytes % line == 0

    @property
    def ahead(self) -> int:
        """Groups that lines of the operand are asked for ahead."""
        return AHEAD_SHARED if self.owner.source.target.shares_l3 else AHEAD

    @property
    def columns(self) -> int:
        """Positions across of a tile whose operand is computed in a stage."""
        most = STAGE_BYTES // self.element.nbytes // self.rows
        return _side(self.across, max(self.width, most), self.width)

    @property
    def groups(self) -> int:
        """Number of groups across: one more than would do if lines and operand begin at the same place."""
        spare = self.width - 1 if self.follows_lines else 0
        return -(-(self.across + spare) // self.width)

    @property
    def blocks(self) -> int:
        """Number of blocks of a group."""
        return self.rows // self.lanes * (self.width // self.lanes)

    @property
    def span(self) -> int:
        """Lines of a row that are asked for one after the other."""
        most = SPAN if self.owner.source.target.vector_bytes < 64 else 1
        return max(1, min(most, self.rows // self.blocks))

    @property
    def counts(self) -> tuple[int, int]:
        """Number of tiles across and along."""
        staged = -(-self.across // self.columns)
        across = staged if self.stages_operand else -(-self.groups // GROUPS)
        return across, -(-self.along // self.rows)

    @property
    def result_pitch(self) -> int:
        """From one of the result's rows to the next."""
        return math.prod(self.owner.movement.shape[self.owner.across + 1 :])

    @property
    def operand_pitch(self) -> int:
        """From one of the operand's rows to the next."""
        movement = self.owner.movement
        shape = movement.operand(movement.shape)
        return math.prod(shape[movement.permutation[self.owner.along] + 1 :])

    @property
    def operand_bytes(self) -> int:
        """Bytes of the operand's stage."""
        nbytes = self.columns * self.rows * self.element.nbytes
        return align_up(nbytes) if self.stages_operand else 0

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the stages."""
        result = 2 * self.width * self.rows * self.element.nbytes
        return self.operand_bytes + (result if self.stages_result else 0)


@dataclass(frozen=True)
class Rows:
    """Rows in a one-dimensional memref: the first begins at ``start``, each other ``pitch`` elements further on."""

    buffer: ir.Value
    start: Index
    pitch: int

    def at(self, row: Index, column: Index = 0) -> Index:
        """Linear position of an element."""
        return build.add(self.start, build.add(build.mul(row, self.pitch), column))

    def load(self, row: Index, column: Index, lanes: int) -> ir.Value:
        """A vector."""
        kind = ir.VectorType.get([lanes], ir.MemRefType(self.buffer.type).element_type)
        return vector.LoadOp(kind, self.buffer, [build.index_value(self.at(row, column))]).result

    def store(self, value: ir.Value, row: Index, column: Index) -> None:
        """Store a vector."""
        vector.StoreOp(value, self.buffer, [build.index_value(self.at(row, column))])


@dataclass(frozen=True)
class Tile:
    """One tile being emitted; ``position`` is its number in each dimension of the result."""

    tiling: Tiling
    phase: PhaseFrame
    position: Sequence[Index]

    def emit(self) -> None:
        """Emit it."""
        tiling, owner = self.tiling, self.tiling.owner
        corner = list(self.position)
        corner[owner.along] = _corner(self.position[owner.along], tiling.rows, tiling.along)
        number = self.position[owner.across]
        if tiling.stages_operand:
            corner[owner.across] = _corner(number, tiling.columns, tiling.across)
            self._compute(corner)
            groups = Groups(self._operand_stage(self._word), 0, tiling.columns, tiling.width)
            low, high = 0, tiling.columns // tiling.width
        else:
            corner[owner.across] = 0
            source = self._operand(corner)
            first = build.sub(0, self._past_line(source)) if tiling.follows_lines else 0
            groups = Groups(source, first, tiling.across, tiling.width)
            low, high = _share(number, tiling.counts[0], tiling.groups)
        start = build.linearize(corner, owner.movement.shape)
        result = Rows(build.flatten(self.phase.results[0]), start, tiling.result_pitch)
        emit = self._staged if tiling.stages_result else self._direct
        emit(groups, result, low, high)

    @property
    def _word(self) -> ElementType:
        """The elements as vectors hold them."""
        return element_type("ui64") if self.tiling.is_complex else self.tiling.element

    def _operand(self, corner: Sequence[Index]) -> Rows:
        """The operand's rows of a tile, in place."""
        owner = self.tiling.owner
        shape = owner.movement.operand(owner.movement.shape)
        start = build.linearize(owner.movement.operand(corner), shape)
        buffer = build.flatten(self.phase.arguments[owner.operand.result])
        return Rows(buffer, start, self.tiling.operand_pitch)

    def _past_line(self, rows: Rows) -> Index:
        """How many elements into a line rows begin."""
        nbytes = self.tiling.element.nbytes
        address = memref.ExtractAlignedPointerAsIndexOp(rows.buffer).result
        first = build.add(address, build.mul(rows.start, nbytes))
        return build.div(build.mod(first, build.LINE_BYTES), nbytes)

    def _operand_stage(self, element: ElementType) -> Rows:
        """The stage of the operand."""
        tiling = self.tiling
        array = ArrayType((tiling.columns * tiling.rows,), element)
        return Rows(build.view(self.phase.scratch, 0, array), 0, tiling.columns)

    def _result_stage(self, group: Index, element: ElementType) -> Rows:
        """The stage of a group; it is not that of the group before."""
        tiling = self.tiling
        size = tiling.width * tiling.rows
        array = ArrayType((2 * size,), element)
        buffer = build.view(self.phase.scratch, tiling.operand_bytes, array)
        return Rows(buffer, build.mul(build.mod(group, 2), size), tiling.rows)

    def _compute(self, corner: Sequence[Index]) -> None:
        """Compute the operand's rows of a tile into its stage."""
        owner, index = self.tiling.owner, list(corner)
        stage = self._operand_stage(self.tiling.element)

        def element(r: ir.Value, c: ir.Value) -> list[ir.Value]:
            with self.phase.elemental.scope():
                index[owner.along] = build.add(corner[owner.along], r)
                index[owner.across] = build.add(corner[owner.across], c)
                where = [build.index_value(stage.at(r, c))]
                value = owner.value(self.phase, index)
                build.store(value, stage.buffer, where, self.tiling.element)
            return []

        def row(r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, self.tiling.columns, lambda c, _: element(r, c), unroll=1)
            return []

        build.for_loop(0, self.tiling.rows, row)

    def _direct(self, groups: Groups, result: Rows, low: Index, high: Index) -> None:
        """Transpose groups to the result in place, a strip of rows that make whole lines of the result after another.

        A line that is written in parts long after each other is fetched once for each.
        """
        tiling = self.tiling
        height = min(build.LINE_BYTES // tiling.element.nbytes, tiling.rows)

        def strip(first: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            last: Index = build.add(first, height)
            if tiling.rows % height:
                last = build.minimum(last, tiling.rows)

            def group(g: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                column = groups.column(g)
                build.for_loop(first, last, lambda j, _: blocks(column, j), step=tiling.lanes)
                return []

            build.for_loop(low, high, group)
            return []

        def blocks(column: Index, j: ir.Value) -> list[ir.Value]:
            for i in range(0, tiling.width, tiling.lanes):
                at = build.add(column, i)
                self._block(groups.source, at, result, at, j)
            return []

        build.for_loop(0, tiling.rows, strip, step=height)

    def _staged(self, groups: Groups, result: Rows, low: Index, high: Index) -> None:
        """Transpose groups to stages; the stage of a group is stored while the next is transposed."""
        tiling = self.tiling
        across = tiling.width // tiling.lanes

        def group(g: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            column = groups.column(g)
            before = build.sub(g, 1)
            past = groups.column(before)

            def block(b: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                with build.if_then(build.less(g, high)):
                    i = build.mul(build.mod(b, across), tiling.lanes)
                    j = build.mul(build.div(b, across), tiling.lanes)
                    stage = self._result_stage(g, self._word)
                    self._block(groups.source, build.add(column, i), stage, i, j)
                if not tiling.stages_operand:
                    self._prefetch(groups, build.sub(g, low), column, b)
                with build.if_then(build.less(low, g)):
                    rows = _share(b, tiling.blocks, tiling.width)
                    self._drain(before, result, past, rows)
                return []

            build.for_loop(0, tiling.blocks, block)
            return []

        build.for_loop(low, build.add(high, 1), group)

    def _block(self, source: Rows, column: Index, target: Rows, row: Index, j: Index) -> None:
        """Transpose a block: rows from ``j`` on of ``source`` to columns from ``j`` on of ``target``."""
        lanes = self.tiling.lanes
        rows = [source.load(build.add(j, r), column, lanes) for r in range(lanes)]
        for c, transposed in enumerate(transpose_vectors(rows, self.tiling.element.nbytes)):
            target.store(transposed, build.add(row, c), j)

    def _prefetch(self, groups: Groups, number: Index, column: Index, block: ir.Value) -> None:
        """Ask the second-level cache for a block's share of the lines ahead; its group, ``number``, is at ``column``.

        A tile has more rows than a prefetcher follows, and stores past the caches keep it from running ahead. Where
        several lines of a row are asked for together, every so many groups ask for the next ones, for a part of the
        rows each.
        """
        tiling, source = self.tiling, groups.source
        turn = build.mod(number, tiling.span)
        column = build.add(column, build.mul(build.sub(tiling.ahead, turn), tiling.width))
        if tiling.span > 1:  # behind the last column follow the next rows
            wrapped = build.add(column, tiling.rows * tiling.operand_pitch - tiling.across)
            ends = build.at_least(column, tiling.across)
            column = arith.SelectOp(ends, build.index_value(wrapped), column).result
        share = max(1, tiling.rows // (tiling.blocks * tiling.span))
        first = build.mul(build.add(build.mul(turn, tiling.blocks), block), share)
        for r in range(share):
            for line in range(tiling.span):
                at = source.at(build.add(first, r), build.add(column, line * tiling.width))
                build.prefetch(source.buffer, at, is_near=False)

    def _drain(self, group: Index, result: Rows, column: Index, rows: tuple[Index, Index]) -> None:
        """Store ``rows`` of the stage of a group, which begins at row ``column`` of the result."""
        tiling = self.tiling
        stage, target = self._result_stage(group, tiling.element), tiling.owner.source.target

        def row(r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            first, at = stage.at(r), result.at(build.add(column, r))
            if tiling.streamed:
                streaming.copy_out(
                    stage.buffer,
                    self.phase.results[0],
                    at,
                    tiling.rows,
                    tiling.owner.array,
                    target,
                    first=first,
                )
            elif tiling.is_complex:
                build.for_loop(0, tiling.rows, lambda c, _: element(first, at, c), unroll=1)
            else:
                for c in range(0, tiling.rows, tiling.lanes):
                    result.store(stage.load(r, c, tiling.lanes), build.add(column, r), c)
            return []

        def element(first: Index, at: Index, c: ir.Value) -> list[ir.Value]:
            value = build.load(stage.buffer, [build.add(first, c)], tiling.element)
            build.store(value, result.buffer, [build.add(at, c)], tiling.element)
            return []

        build.for_loop(*rows, row)


@dataclass(frozen=True)
class Groups:
    """Where groups of ``width`` positions across lie in the rows of ``source``: side by side from ``first`` on.

    ``first`` may lie before the rows; what would lie outside is moved to the nearest place inside ``extent``.
    """

    source: Rows
    first: Index
    extent: int
    width: int

    def column(self, group: Index) -> Index:
        """Where a group begins."""
        start = build.add(self.first, build.mul(group, self.width))
        return build.clamp(start, 0, self.extent - self.width)


def _share(number: Index, parts: int, total: int) -> tuple[Index, Index]:
    """Where part ``number`` of ``total`` things in as many even parts begins and ends."""
    low, high = (build.div(build.mul(n, total), parts) for n in (number, build.add(number, 1)))
    return low, high


def _side(extent: int, most: int, lanes: int) -> int:
    """Length of equal tiles of ``extent``, at most ``most``, a multiple of ``lanes`` that is no longer than it."""
    tiles = -(-extent // (most // lanes * lanes))
    return min(align_up(-(-extent // tiles), lanes), extent // lanes * lanes)


def _corner(tile: Index, side: int, extent: int) -> Index:
    """Where a tile begins; the last one ends with the extent."""
    start = build.mul(tile, side)
    return build.minimum(start, extent - side) if extent % side else start


def transpose_vectors(rows: list[ir.Value], nbytes: int) -> list[ir.Value]:
    """The columns of a square block of elements of ``nbytes`` given by its rows.

    Pieces of 16 bytes are transposed within themselves by rounds that interleave the elements of two rows, and then
    moved as wholes: shuffles across such pieces of a vector take longer on x86.
    """
    lanes, kind = len(rows), ir.VectorType(rows[0].type)
    if nbytes == 2:  # a CPU that does not compute with such floats moves them one by one
        words = ir.VectorType.get([lanes], ir.IntegerType.get_signless(16))
        rows = [vector.BitCastOp(words, row).result for row in rows]
    size = min(lanes, 16 // nbytes)
    groups = [_interleaved(rows[r : r + size], lanes) for r in range(0, lanes, size)]
    regrouped = [_regrouped([group[c] for group in groups], size) for c in range(size)]
    columns = [regrouped[c][piece] for piece in range(lanes // size) for c in range(size)]
    return [vector.BitCastOp(kind, c).result for c in columns] if nbytes == 2 else columns


def _interleaved(rows: list[ir.Value], lanes: int) -> list[ir.Value]:
    """Each piece of as many elements as there are rows is transposed: log2(rows) rounds that interleave two rows."""
    half = len(rows) // 2
    pairs = [(x, x + lanes) for p in range(0, lanes, 2 * half) for x in range(p, p + half)]
    low = [x for pair in pairs for x in pair]
    high = [x + half for x in low]
    for _ in range(half.bit_length()):
        mixed: list[ir.Value] = []
        for r in range(half):
            mixed.append(vector.ShuffleOp(rows[r], rows[r + half], low).result)
            mixed.append(vector.ShuffleOp(rows[r], rows[r + half], high).result)
        rows = mixed
    return rows


def _regrouped(vectors: list[ir.Value], size: int) -> list[ir.Value]:
    """Pieces of ``size`` elements, transposed: vector v holds piece v of each; log2(vectors) rounds of pairs."""
    count = len(vectors)
    for _ in range(count.bit_length() - 1):
        parts: list[list[ir.Value]] = []
        for first in (0, 1):  # the even pieces of both, and the odd
            mask = [p * size + x for p in range(first, 2 * count, 2) for x in range(size)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            parts.append([vector.ShuffleOp(a, b, mask).result for a, b in pairs])
        vectors = [*parts[0], *parts[1]]
    return vectors
