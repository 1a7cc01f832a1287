# SPDX-License-Identifier: Apache-2.0
"""The transpose emitter: square tiles through workgroup memory, for permutations that move the minor dimension.

A block reads a tile along the operand's minor dimension, whatever is fused into the operand computed on the way, and
writes it along the result's, so that warps read and write whole lines. A thread takes as many consecutive elements as
fill 32 bits, and a row of the tile has one element more than the tile is wide: lanes that read a column then touch 32
different banks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import where
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node

#: Rows of a tile that one thread reads and writes.
ROWS = 4


class TransposeEmitter:
    """Compiles a fusion whose root is a ``transpose``; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        permutation, shape = self.node.dims("permutation"), self.node.shape
        real = [d for d in range(len(shape)) if shape[d] != 1]
        #: Result dimension that is the operand's minor one, and the result's own minor dimension.
        self.across = permutation.index(max(permutation[d] for d in real))
        self.along = real[-1]
        self.outer = [d for d in real if d not in (self.across, self.along)]
        self.packed = max(1, 4 // self.node.type.element.nbytes)
        while shape[self.across] % self.packed or shape[self.along] % self.packed:
            self.packed //= 2
        self.tile = WARP * self.packed

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        shape = self.node.shape
        tiles = [-(-shape[d] // self.tile) for d in (self.across, self.along)]
        grid = math.prod(tiles) * math.prod(shape[d] for d in self.outer)
        frame = GpuFrame(self.source)
        block = (WARP, self.tile // ROWS)
        frame.launch(lambda launch: self._tile(launch, tiles), (grid,), block)
        return frame.finish("transpose", self.node.type.size)

    def _tile(self, launch: LaunchFrame, tiles: list[int]) -> None:
        e, shape, element = launch.elemental, self.node.shape, self.node.type.element
        extents = [*(shape[d] for d in self.outer), *tiles]
        *outer, row, column = build.delinearize(launch.block_number(), extents)
        across, along = build.mul(row, self.tile), build.mul(column, self.tile)
        pitch = self.tile + 1
        buffer = launch.shared((self.tile, pitch), build.storage_type(element))

        def read(x: Index, y: Index) -> None:
            """The elements ``x`` of the operand's minor dimension in row ``y`` of the tile."""
            values: list[ir.Value] = []
            for lane in range(self.packed):
                at = self._index(outer, build.add(build.add(across, x), lane), build.add(along, y))
                values.append(e.value(self.node.operands[0], self._operand_index(at)))
            for lane, value in enumerate(values):
                build.store(value, buffer, (y, build.add(x, lane)), element)

        def write(x: Index, y: Index) -> None:
            """The elements ``x`` of the result's minor dimension in column ``y`` of the tile."""
            lanes = [build.add(x, lane) for lane in range(self.packed)]
            values = [build.load(buffer, (lane, y), element) for lane in lanes]
            for lane, value in zip(lanes, values, strict=True):
                at = self._index(outer, build.add(across, y), build.add(along, lane))
                launch.store(0, value, at, self.node.type)

        self._each(launch, (across, shape[self.across]), (along, shape[self.along]), read)
        launch.barrier()
        self._each(launch, (along, shape[self.along]), (across, shape[self.across]), write)

    def _each(
        self,
        launch: LaunchFrame,
        minor: tuple[Index, int],
        major: tuple[Index, int],
        body: Callable[[Index, Index], None],
    ) -> None:
        """Run ``body(x, y)`` for a thread's places in the tile; ``(start, extent)`` of the two dimensions."""
        x = build.mul(launch.thread(), self.packed)
        inside = None
        if minor[1] % self.tile:
            inside = build.less(build.add(minor[0], x), minor[1])
        for turn in range(ROWS):
            y = build.add(launch.thread(1), turn * launch.block[1])
            in_row = None
            if major[1] % self.tile:
                in_row = build.less(build.add(major[0], y), major[1])
            with where(inside, in_row), launch.elemental.scope():
                body(x, y)

    def _index(self, outer: list[Index], across: Index, along: Index) -> list[Index]:
        index: list[Index] = [0] * len(self.node.shape)
        for d, component in zip(self.outer, outer, strict=True):
            index[d] = component
        index[self.across], index[self.along] = across, along
        return index

    def _operand_index(self, index: list[Index]) -> list[Index]:
        at: list[Index] = [0] * len(index)
        for position, dimension in enumerate(self.node.dims("permutation")):
            at[dimension] = index[position]
        return at
