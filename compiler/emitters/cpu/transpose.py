# SPDX-License-Identifier: Apache-2.0
"""The transpose emitter: for permutations that move the minor dimension.

Reading along the operand's minor dimension and writing along the result's needs both to be blocked: V x V blocks (V the
lanes of a vector) are loaded as V vectors, transposed in registers by log2(V) rounds of interleaves, and stored as V
vectors. A task is one tile of the result, made as ``transpose_tiles`` describes. Dimensions shorter than a vector, and
numbers of more than 8 bytes, are copied element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlir import ir

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
from gristmill.compiler.emitters.cpu.transpose_tiles import Tile, Tiling
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node

T = TypeVar("T")

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
        shape = list(self.movement.shape)
        shape[self.across], shape[self.along] = tiling.counts if tiling else self._counts
        # The tiles of the same rows of the operand follow each other: the prefetchers go along.
        order = [*(d for d in range(len(shape)) if d != self.across), self.across]
        frame = KernelFrame(self.source, scratch_bytes=tiling.scratch_bytes if tiling else 0)

        def task(phase: PhaseFrame, iv: ir.Value) -> None:
            position = build.delinearize(iv, [shape[d] for d in order])
            index = [position[order.index(d)] for d in range(len(shape))]
            Tile(tiling, phase, index).emit() if tiling else self._elements(phase, index)

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

    @property
    def _counts(self) -> tuple[int, int]:
        """Number of tiles across and along that are copied element by element."""
        across, along = (self.movement.shape[d] for d in (self.across, self.along))
        return -(-across // ELEMENTS), -(-along // ELEMENTS)

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
