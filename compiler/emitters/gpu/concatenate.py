# SPDX-License-Identifier: Apache-2.0
"""The concatenate emitter: the items of all parts side by side, each thread in the part of its item.

An item is a unit of consecutive elements of one part. The items of a part follow those of the part before, so that all
threads of a warp, but for a few at the seams, are in one part: finding it is a branch that does not diverge.
"""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, element_cost
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import MOST_WIDTH, expand_unit
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node


class ConcatenateEmitter:
    """Compiles a fusion whose root is a ``concatenate``; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.dimension = self.node.integer("dimension")
        self.parts = [x for x in self.node.operands if x.type.size]
        width = min(MOST_WIDTH, BUFFER_ALIGNMENT // self.node.type.element.nbytes)
        while width > 1 and any(x.shape[-1] % width for x in self.parts):
            width //= 2
        self.width = max(1, width)
        #: Where each part starts along the dimension, and among the items.
        self.offsets, self.firsts = [0], [0]
        for part in self.parts:
            self.offsets.append(self.offsets[-1] + part.shape[self.dimension])
            self.firsts.append(self.firsts[-1] + part.type.size // self.width)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = GpuFrame(self.source)
        launch_items(frame, self.firsts[-1], self._item)
        return frame.finish("concatenate", self.node.type.size * element_cost(self.source.graph))

    def _item(self, launch: LaunchFrame, item: Index) -> None:
        self._choose(launch, item, 0, len(self.parts) - 1)

    def _choose(self, launch: LaunchFrame, item: Index, first: int, last: int) -> None:
        """The item's part, known to be one of ``first`` to ``last``: a binary search over branches."""
        if first == last:
            self._copy(launch, item, first)
            return
        middle = (first + last + 1) // 2
        before = build.less(item, self.firsts[middle])

        def branch(low: int, high: int) -> list[ir.Value]:
            with launch.elemental.scope():
                self._choose(launch, item, low, high)
            return []

        build.if_else(before, [], lambda: branch(first, middle - 1), lambda: branch(middle, last))

    def _copy(self, launch: LaunchFrame, item: Index, number: int) -> None:
        """Store one unit of part ``number``."""
        part = self.parts[number]
        unit = build.sub(item, self.firsts[number])
        indices = expand_unit(unit, self.width, part.shape)
        values = [launch.elemental.value(part, index) for index in indices]
        for index, value in zip(indices, values, strict=True):
            at = list(index)
            at[self.dimension] = build.add(at[self.dimension], self.offsets[number])
            launch.store(0, value, at, self.node.type)
