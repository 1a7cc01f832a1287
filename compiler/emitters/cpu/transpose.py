# SPDX-License-Identifier: Apache-2.0
"""The transpose emitter: for permutations that move the minor dimension.

Reading along the operand's minor dimension and writing along the result's needs both to be blocked: V x V blocks (V the
lanes of a vector) are loaded as V vectors, transposed in registers by log2(V) rounds of interleaves, and stored as V
vectors, so every cache line is used whole. A task covers a strip of :data:`STRIP` positions of the operand's minor
dimension. Remainders, and producers fused into the transpose, take the elementwise path.
"""

from __future__ import annotations

import math

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    worth_splitting,
)
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node

#: Positions of the operand's minor dimension that one task covers.
STRIP = 64


class TransposeEmitter:
    """Compiles a fusion whose root is a ``transpose``; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        permutation = self.node.dims("permutation")
        rank = len(permutation)
        shape = self.node.shape
        real = [d for d in range(rank) if shape[d] != 1]
        #: Result dimension that is the operand's minor one, and the result's own minor dimension.
        operand_minor = max(permutation[d] for d in real)
        self.across = permutation.index(operand_minor)
        self.along = real[-1]
        self.outer = [d for d in real if d not in (self.across, self.along)]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        shape = self.node.shape
        strips = -(-shape[self.across] // STRIP)
        tasks = strips * math.prod(shape[d] for d in self.outer)
        frame = KernelFrame(self.source)
        size = self.node.type.size
        cost = 2 * element_cost(self.source.graph)
        frame.phase(lambda p: self._tasks(p, strips), max(1, tasks), worth_splitting(size, cost))
        return frame.finish("transpose")

    def _lanes(self) -> int:
        """Lanes of one block, or 0 where blocks do not apply."""
        element = self.node.type.element
        plain = self.node.operands[0].kind == "parameter" and element.kind != "complex"
        nbytes = element.nbytes
        lanes = min(16, self.source.target.lanes(nbytes))
        return lanes if plain and lanes >= 4 else 0

    def _tasks(self, phase: PhaseFrame, strips: int) -> None:
        shape = self.node.shape
        across, along = shape[self.across], shape[self.along]
        lanes = self._lanes()
        whole = along // lanes * lanes if lanes else 0

        def task(iv: ir.Value) -> None:
            outer = build.delinearize(build.div(iv, strips), [shape[d] for d in self.outer])
            low = build.mul(build.mod(iv, strips), STRIP)
            high = build.minimum(build.add(low, STRIP), across)
            self._strip(phase, outer, low, high, lanes, whole, along)

        phase.each_task(task)

    def _strip(
        self,
        phase: PhaseFrame,
        outer: list[Index],
        low: Index,
        high: Index,
        lanes: int,
        whole: int,
        along: int,
    ) -> None:
        if lanes and whole:
            count = build.div(build.sub(high, low), lanes)
            blocked = build.add(low, build.mul(count, lanes))

            def rows(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                build.for_loop(
                    low, blocked, lambda i, _: self._block(phase, outer, i, j, lanes), step=lanes
                )
                self._elements(phase, outer, blocked, high, j, build.add(j, lanes))
                return []

            build.for_loop(0, whole, rows, step=lanes)
        self._elements(phase, outer, low, high, whole, along)

    def _index(self, outer: list[Index], across: Index, along: Index) -> list[Index]:
        index: list[Index] = [0] * len(self.node.shape)
        for d, component in zip(self.outer, outer, strict=True):
            index[d] = component
        index[self.across], index[self.along] = across, along
        return index

    def _elements(
        self,
        phase: PhaseFrame,
        outer: list[Index],
        low: Index,
        high: Index,
        first: Index,
        last: Index,
    ) -> None:
        """Element by element: ``across`` in ``[low, high)``, ``along`` in ``[first, last)``."""
        if first == last:
            return
        e = phase.elemental

        def element(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            with e.scope():
                index = self._index(outer, i, j)
                phase.store(0, e.value(self.node, index), index, self.node.type)
            return []

        def line(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(first, last, lambda j, _: element(i, j))
            return []

        build.for_loop(low, high, line)

    def _block(
        self, phase: PhaseFrame, outer: list[Index], i: ir.Value, j: ir.Value, lanes: int
    ) -> list[ir.Value]:
        """Transpose one block: rows of the operand at ``j + r``, columns from ``i``."""
        operand = self.node.operands[0]
        kind = ir.VectorType.get([lanes], build.storage_type(self.node.type.element))
        permutation = self.node.dims("permutation")
        rows: list[ir.Value] = []
        for r in range(lanes):
            index = self._index(outer, i, build.add(j, r))
            at: list[Index] = [0] * len(index)
            for position, dimension in enumerate(permutation):
                at[dimension] = index[position]
            buffer = phase.arguments[operand.result]
            rows.append(vector.LoadOp(kind, buffer, [build.index_value(x) for x in at]).result)
        for c, column in enumerate(transpose_vectors(rows, lanes)):
            index = self._index(outer, build.add(i, c), j)
            vector.StoreOp(column, phase.results[0], [build.index_value(x) for x in index])
        return []


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
