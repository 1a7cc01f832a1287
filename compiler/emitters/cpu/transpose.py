# SPDX-License-Identifier: Apache-2.0
"""The transpose emitter: for permutations that move the minor dimension.

Reading along the operand's minor dimension and writing along the result's needs both to be blocked: V x V blocks (V the
lanes of a vector) are loaded as V vectors, transposed in registers by log2(V) rounds of interleaves, and stored as V
vectors, so every cache line is used whole. A task is one tile of blocks. Two detours go by a stage in the first-level
cache:

- What is fused into the transpose is computed there, in the operand's order, before it is transposed.
- Rows of a result are collected there and stored as runs if their pitch makes them compete for the same sets of the
  caches, or if the result is stored past the caches.

Tiles that do not divide the extents overlap: the elements in common are written twice, with the same values. Complex
numbers of 8 bytes pass through both stages, where they are integers of 64 bits; dimensions shorter than a vector, and
wider numbers, are copied element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import streaming
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.loop import bind_linear, is_elementwise
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType, ElementType, element_type

T = TypeVar("T")

#: Bytes of a stage; two of them fit the first-level cache.
STAGE_BYTES = 16 * 1024

#: Rows whose pitch is a multiple of this meet in few sets of the first-level cache.
CRITICAL_PITCH = 2048

#: Sides of a tile that is copied element by element.
ELEMENTS = 128


@dataclass(frozen=True)
class Movement:
    """A transpose in normal form.

    Attributes:
        shape: of the result.
        permutation: the operand's dimension of each of the result's.
    """

    shape: tuple[int, ...]
    permutation: tuple[int, ...]

    @staticmethod
    def of(node: Node) -> Movement:
        """What a ``transpose`` moves, dimension by dimension."""
        return Movement(node.shape, tuple(node.dims("permutation")))

    def merged(self) -> Movement:
        """The same movement of memory, without unit dimensions and with neighbours that stay neighbours as one."""
        real = [d for d, size in enumerate(self.shape) if size != 1]
        order = sorted(self.permutation[d] for d in real)
        groups: list[list[int]] = []
        for d in real:
            place = order.index(self.permutation[d])
            if groups and place == order.index(self.permutation[groups[-1][-1]]) + 1:
                groups[-1].append(d)
            else:
                groups.append([d])
        places = [self.permutation[group[0]] for group in groups]
        shape = tuple(math.prod(self.shape[d] for d in group) for group in groups)
        return Movement(shape, tuple(sorted(places).index(place) for place in places))

    def operand(self, index: Sequence[T]) -> list[T]:
        """An index or a shape of the result, in the order of the operand's dimensions."""
        return [index[self.permutation.index(d)] for d in range(len(index))]


class TransposeEmitter:
    """Compiles a fusion whose root is a ``transpose``; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        node = source.graph.results[0]
        self.operand: Node = node.operands[0]
        self.array = node.type
        #: Whether what is fused into the transpose can be computed by linear position.
        self.linear = is_elementwise([self.operand])
        movement = Movement.of(node)
        self.movement = movement.merged() if self.linear else movement
        shape = self.movement.shape
        real = [d for d, size in enumerate(shape) if size != 1]
        #: Result dimension that is the operand's minor one, and the result's own minor dimension.
        self.across = max(real, key=lambda d: self.movement.permutation[d])
        self.along = real[-1]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        tiling = Tiling.of(self)
        sides = (tiling.columns, tiling.rows) if tiling else (ELEMENTS, ELEMENTS)
        shape = list(self.movement.shape)
        for d, side in zip((self.across, self.along), sides, strict=True):
            shape[d] = -(-shape[d] // side)
        frame = KernelFrame(self.source, scratch_bytes=tiling.scratch_bytes if tiling else 0)

        def task(phase: PhaseFrame, iv: ir.Value) -> None:
            index = build.delinearize(iv, shape)
            tiling.emit(phase, index) if tiling else self._elements(phase, index)

        def body(phase: PhaseFrame) -> None:
            if self.linear:
                bind_linear(phase, self.source.graph)
            phase.each_task(lambda iv: task(phase, iv))
            if tiling and tiling.streamed:
                streaming.finish(self.source.target)

        cost = 2 * element_cost(self.source.graph)
        frame.phase(body, max(1, math.prod(shape)), worth_splitting(self.array.size, cost))
        return frame.finish("transpose")

    def value(self, phase: PhaseFrame, index: Sequence[Index]) -> ir.Value:
        """The result's element at ``index`` of the movement's shape."""
        at: Sequence[Index] = self.movement.operand(index)
        if self.linear:
            at = [build.linearize(at, self.movement.operand(self.movement.shape))]
        return phase.elemental.value(self.operand, at)

    def _elements(self, phase: PhaseFrame, tile: list[Index]) -> None:
        """One tile, element by element."""
        shape, index = self.movement.shape, list(tile)
        result = build.flatten(phase.results[0])

        def bounds(d: int) -> tuple[Index, Index]:
            low = build.mul(tile[d], ELEMENTS)
            return low, build.minimum(build.add(low, ELEMENTS), shape[d])

        def element(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                index[self.along] = j
                where = [build.linearize(index, shape)]
                build.store(self.value(phase, index), result, where, self.array.element)
            return []

        def line(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            index[self.across] = i
            build.for_loop(*along, element)
            return []

        along = bounds(self.along)
        build.for_loop(*bounds(self.across), line)


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
class Tiling:
    """A transpose in tiles of ``columns`` positions across and ``rows`` along; both are multiples of ``lanes``."""

    owner: TransposeEmitter
    lanes: int
    columns: int
    rows: int

    @staticmethod
    def of(owner: TransposeEmitter) -> Tiling | None:
        """The tiles of a transpose; None where it is to be copied element by element."""
        element = owner.array.element
        lanes = min(16, owner.source.target.lanes(element.nbytes))
        across, along = (owner.movement.shape[d] for d in (owner.across, owner.along))
        if lanes < 4 or min(across, along) < lanes or element.bits > 64:
            return None
        most = STAGE_BYTES // element.nbytes
        side = 1 << (most.bit_length() - 1) // 2
        rows = _side(along, most // _side(across, side, lanes), lanes)
        return Tiling(owner, lanes, _side(across, max(side, most // rows), lanes), rows)

    @property
    def streamed(self) -> bool:
        """Whether the result goes past the caches."""
        along = self.owner.movement.shape[self.owner.along]
        return streaming.streams(self.owner.source, 0, math.gcd(self.rows, along))

    @property
    def stages_operand(self) -> bool:
        """Whether the operand is computed in a stage."""
        return self.owner.operand.kind != "parameter" or self.is_complex

    @property
    def stages_result(self) -> bool:
        """Whether the result is collected in a stage."""
        pitch = math.prod(self.owner.movement.shape[self.owner.across + 1 :])
        critical = pitch * self.owner.array.element.nbytes % CRITICAL_PITCH == 0
        return critical or self.streamed or self.is_complex

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers, which vectors cannot hold."""
        return self.owner.array.element.kind == "complex"

    @property
    def _stage_bytes(self) -> int:
        return align_up(self.columns * self.rows * self.owner.array.element.nbytes)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the stages."""
        return (self.stages_operand + self.stages_result) * self._stage_bytes

    def _stage(self, phase: PhaseFrame, number: int, pitch: int, element: ElementType) -> Rows:
        """A stage as rows of ``pitch`` elements."""
        array = ArrayType((self.columns * self.rows,), element)
        return Rows(build.view(phase.scratch, number * self._stage_bytes, array), 0, pitch)

    def emit(self, phase: PhaseFrame, tile: Sequence[Index]) -> None:
        """One tile, whose position in each dimension is given."""
        owner, index = self.owner, list(tile)
        shape, across, along = owner.movement.shape, owner.across, owner.along
        index[across] = _corner(tile[across], self.columns, shape[across])
        index[along] = _corner(tile[along], self.rows, shape[along])
        start = build.linearize(index, shape)
        result = Rows(build.flatten(phase.results[0]), start, math.prod(shape[across + 1 :]))
        element = owner.array.element
        word = element_type("ui64") if self.is_complex else element
        if self.stages_operand:
            self._compute(phase, index, self._stage(phase, 0, self.columns, element))
            source = self._stage(phase, 0, self.columns, word)
        else:
            source = self._read(phase, index)
        if not self.stages_result:
            self._blocks(source, result)
            return
        second = int(self.stages_operand)
        self._blocks(source, self._stage(phase, second, self.rows, word))
        self._drain(phase, self._stage(phase, second, self.rows, element), result)

    def _read(self, phase: PhaseFrame, corner: Sequence[Index]) -> Rows:
        """The operand's rows of a tile, in place."""
        movement = self.owner.movement
        shape = movement.operand(movement.shape)
        pitch = math.prod(shape[movement.permutation[self.owner.along] + 1 :])
        start = build.linearize(movement.operand(corner), shape)
        return Rows(build.flatten(phase.arguments[self.owner.operand.result]), start, pitch)

    def _compute(self, phase: PhaseFrame, corner: Sequence[Index], stage: Rows) -> None:
        """Compute the operand's rows of a tile into a stage."""
        owner, index = self.owner, list(corner)

        def element(r: ir.Value, c: ir.Value) -> list[ir.Value]:
            with phase.elemental.scope():
                index[owner.along] = build.add(corner[owner.along], r)
                index[owner.across] = build.add(corner[owner.across], c)
                where = [build.index_value(stage.at(r, c))]
                build.store(owner.value(phase, index), stage.buffer, where, owner.array.element)
            return []

        def row(r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, self.columns, lambda c, _: element(r, c), rolled=True)
            return []

        build.for_loop(0, self.rows, row)

    def _blocks(self, source: Rows, target: Rows) -> None:
        """Transpose the rows of ``source`` to rows of ``target``, block by block."""
        lanes = self.lanes

        def block(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            rows = [source.load(build.add(j, r), i, lanes) for r in range(lanes)]
            for c, column in enumerate(transpose_vectors(rows, lanes)):
                target.store(column, build.add(i, c), j)
            return []

        def strip(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, self.columns, lambda i, _: block(i, j), step=lanes)
            return []

        build.for_loop(0, self.rows, strip, step=lanes)

    def _drain(self, phase: PhaseFrame, stage: Rows, result: Rows) -> None:
        """Store the transposed rows of a stage."""
        array, target = self.owner.array, self.owner.source.target

        def row(r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            if self.streamed:
                streaming.copy_out(
                    stage.buffer,
                    phase.results[0],
                    result.at(r),
                    self.rows,
                    array,
                    target,
                    first=stage.at(r),
                )
                return []
            if self.is_complex:
                build.for_loop(0, self.rows, lambda c, _: element(r, c), rolled=True)
                return []
            for column in range(0, self.rows, self.lanes):
                result.store(stage.load(r, column, self.lanes), r, column)
            return []

        def element(r: ir.Value, c: ir.Value) -> list[ir.Value]:
            value = build.load(stage.buffer, [stage.at(r, c)], array.element)
            build.store(value, result.buffer, [result.at(r, c)], array.element)
            return []

        build.for_loop(0, self.columns, row)


def _side(extent: int, most: int, lanes: int) -> int:
    """Length of equal tiles of ``extent``, at most ``most``, a multiple of ``lanes`` that is no longer than it."""
    tiles = -(-extent // (most // lanes * lanes))
    return min(align_up(-(-extent // tiles), lanes), extent // lanes * lanes)


def _corner(tile: Index, side: int, extent: int) -> Index:
    """Where a tile begins; the last one ends with the extent."""
    start = build.mul(tile, side)
    return build.minimum(start, extent - side) if extent % side else start


def transpose_vectors(rows: list[ir.Value], lanes: int) -> list[ir.Value]:
    """The columns of a square block given by its rows: log2(lanes) rounds that interleave row r with r + lanes/2."""
    half = lanes // 2
    low = [x for pair in zip(range(half), range(lanes, lanes + half), strict=True) for x in pair]
    high = [x + half for x in low]
    for _ in range(lanes.bit_length() - 1):
        interleaved: list[ir.Value] = []
        for r in range(half):
            interleaved.append(vector.ShuffleOp(rows[r], rows[r + half], low).result)
            interleaved.append(vector.ShuffleOp(rows[r], rows[r + half], high).result)
        rows = interleaved
    return rows
