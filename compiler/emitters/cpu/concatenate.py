# SPDX-License-Identifier: Apache-2.0
"""The concatenate emitter: one loop for each part, so that no element asks which part it is in.

Tasks are rows (all dimensions but the last). Concatenated along the last dimension, a row is one loop a part; along
another, a row lies in one part, which is chosen once. What is fused into the parts is computed where it is stored.
"""

from __future__ import annotations

import math

from mlir import ir

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


class ConcatenateEmitter:
    """Compiles a fusion whose root is a ``concatenate``; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.dimension = self.node.integer("dimension")
        self.parts = [x for x in self.node.operands if x.type.size]
        self.offsets = [0]
        for part in self.parts:
            self.offsets.append(self.offsets[-1] + part.shape[self.dimension])

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        shape = self.node.shape
        cost = element_cost(self.source.graph)
        frame = KernelFrame(self.source)
        tasks = max(1, math.prod(shape[:-1]))
        frame.phase(self._rows, tasks, worth_splitting(self.node.type.size, cost))
        return frame.finish("concatenate", self.node.type.size * cost)

    def _rows(self, phase: PhaseFrame) -> None:
        last = len(self.node.shape) - 1

        def row(iv: ir.Value) -> None:
            outer = build.delinearize(iv, self.node.shape[:-1])
            if self.dimension == last:
                for number in range(len(self.parts)):
                    self._copy(phase, number, outer)
            else:
                self._choose(phase, outer, 0, len(self.parts) - 1)

        if self.node.type.size:
            phase.each_task(row)

    def _choose(self, phase: PhaseFrame, outer: list[Index], first: int, last: int) -> None:
        """Emit the row's part, known to be one of ``first`` to ``last``: a binary search over branches."""
        if first == last:
            self._copy(phase, first, outer)
            return
        middle = (first + last + 1) // 2
        before = build.less(outer[self.dimension], self.offsets[middle])

        def branch(low: int, high: int) -> list[ir.Value]:
            with phase.elemental.scope():
                self._choose(phase, outer, low, high)
            return []

        build.if_else(before, [], lambda: branch(first, middle - 1), lambda: branch(middle, last))

    def _copy(self, phase: PhaseFrame, number: int, outer: list[Index]) -> None:
        """One row of part ``number``; ``outer`` is the result's index without the last dimension."""
        part, offset = self.parts[number], self.offsets[number]
        along_last = self.dimension == len(outer)
        inner = list(outer)
        if not along_last:
            inner[self.dimension] = build.sub(inner[self.dimension], offset)

        def element(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                value = phase.elemental.value(part, [*inner, j])
                at = build.add(j, offset) if along_last else j
                phase.store(0, value, [*outer, at], self.node.type)
            return []

        build.for_loop(0, part.shape[-1], element)
