# SPDX-License-Identifier: Apache-2.0
"""The loop emitter: every element of every result, computed by the thread that stores it.

Threads run over the linear index of the results, neighbouring threads over neighbouring elements, so that a warp's
accesses coalesce. A thread computes as many consecutive elements as fill one 16-byte access of the narrowest result
when the last dimension allows it; LLVM's load-store vectoriser makes ``ld.global.v4`` of them. The grid has as many
blocks as fill the device some times over and strides over the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, element_cost
from gristmill.compiler.emitters.cpu.loop import (
    inplace_pairs,
    is_elementwise,
    linear_source,
    loop_cost,
)
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import GpuTarget

#: Cost (tenths of a nanosecond on a CPU core) of an element from which a thread computes one element only.
DEAR = 200


class LoopEmitter:
    """Compiles a fusion of elementwise, data-movement and generic operations; see the module docstring."""

    def __init__(self, source: FusionSource, kind: str = "loop"):
        assert isinstance(source.target, GpuTarget)
        self.source, self.target, self.kind = source, source.target, kind

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        graph = self.source.graph
        frame = GpuFrame(self.source)
        shape = graph.results[0].shape
        size = math.prod(shape)
        width = self._width(shape)
        body = self._linear if is_elementwise(graph.results) else self._general
        launch_items(
            frame, size // width, lambda launch, item: body(launch, build.mul(item, width), width)
        )
        return frame.finish(self.kind, size * element_cost(graph), inplace_pairs(graph))

    def _width(self, shape: Sequence[int]) -> int:
        """Consecutive elements of one thread."""
        graph = self.source.graph
        if loop_cost(graph) >= DEAR:
            return 1
        width = min(BUFFER_ALIGNMENT // max(1, r.type.element.nbytes) for r in graph.results)
        last = math.prod(shape) if is_elementwise(graph.results) else (shape[-1] if shape else 1)
        while width > 1 and last % width:
            width //= 2
        enough = self.target.max_threads
        while width > 1 and math.prod(shape) // width < enough // 8:
            width //= 2  # a small result is better spread over the device
        return max(1, width)

    def _linear(self, launch: LaunchFrame, first: Index, width: int) -> None:
        """Elements ``first`` to ``first + width``; every buffer is read at the linear index."""
        graph = self.source.graph
        results = [build.flatten(x) for x in launch.results]
        for parameter, buffer in zip(graph.parameters, launch.arguments, strict=True):
            launch.elemental.bind(parameter, linear_source(build.flatten(buffer), parameter))
        indices = [(build.add(first, lane),) for lane in range(width)]
        values = [[launch.elemental.value(root, at) for root in graph.results] for at in indices]
        for number, (root, buffer) in enumerate(zip(graph.results, results, strict=True)):
            for at, lane in zip(indices, values, strict=True):
                build.store(lane[number], buffer, at, root.type.element)

    def _general(self, launch: LaunchFrame, first: Index, width: int) -> None:
        """As :meth:`_linear`, with the multi-index of the results."""
        graph = self.source.graph
        *outer, last = build.delinearize(first, graph.results[0].shape) or [0]
        indices = [
            [*outer, build.add(last, lane)] if graph.results[0].shape else []
            for lane in range(width)
        ]
        values = [[launch.elemental.value(root, at) for root in graph.results] for at in indices]
        for number, root in enumerate(graph.results):
            for at, lane in zip(indices, values, strict=True):
                launch.store(number, lane[number], at, root.type)
