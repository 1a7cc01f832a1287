# SPDX-License-Identifier: Apache-2.0
"""The select-and-scatter emitter: windows select in one launch, elements gather what selected them in the next.

The first launch leaves the position that each window selects in the workspace. In the second a thread looks, for one
element of the result, at the windows that cover it, in row-major order: no two threads write one element, and the
result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both, choose
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.cpu.select_and_scatter import selected_position
from gristmill.compiler.emitters.elemental.contraction import loop_nest
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import GpuFrame, LaunchFrame
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.types import ArrayType, element_type

_I32, _I64 = element_type("i32"), element_type("i64")


class SelectAndScatterEmitter:
    """Compiles one ``select_and_scatter`` and the data movement fused into its operands."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.operand, self.values, self.initial = self.node.operands
        self.window = self.node.dims("window_dimensions")
        self.strides = self.node.dims("window_strides")
        self.low = self.node.dims("padding_low")
        element = _I32 if self.operand.type.size < 1 << 31 else _I64
        self.positions = ArrayType((self.values.type.size,), element)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = GpuFrame(self.source, self.positions.nbytes)
        if self.values.type.size:
            launch_items(frame, self.values.type.size, self._select)
        launch_items(frame, self.operand.type.size, self._gather)
        return frame.finish("select_and_scatter", self.values.type.size * 10)

    def _view(self, launch: LaunchFrame) -> ir.Value:
        return build.view(launch.workspace, 0, self.positions)

    def _select(self, launch: LaunchFrame, item: Index) -> None:
        """Put what window ``item`` selects, or -1."""
        element = self.positions.element
        index = build.delinearize(item, self.values.shape)
        found, position = selected_position(launch.elemental, self.node, index)
        number = arith.IndexCastOp(build.register_type(element), position).result
        chosen = choose(found, number, build.constant(element, -1))
        build.store(chosen, self._view(launch), (item,), element)

    def _gather(self, launch: LaunchFrame, item: Index) -> None:
        """Combine the values of the windows that selected element ``item``."""
        e, node, element = launch.elemental, self.node, self.positions.element
        at = build.delinearize(item, self.operand.shape)
        here = arith.IndexCastOp(build.register_type(element), build.index_value(item)).result
        counts = [-(-w // s) for w, s in zip(self.window, self.strides, strict=True)]

        def visit(turn: list[Index], carried: list[ir.Value]) -> list[ir.Value]:
            index, inside = self._covering(at, turn, counts)
            position = (build.linearize(index, self.values.shape),)
            chosen = build.load(self._view(launch), position, element)
            same = arith.CmpIOp(arith.CmpIPredicate.eq, chosen, here).result
            for condition in inside:
                same = both(same, condition)
            new = e.call(node.symbol("scatter"), [carried[0], e.value(self.values, index)])[0]
            return [choose(same, new, carried[0])]

        total = [e.value(self.initial, ())]
        if self.values.type.size:
            total = loop_nest(e, counts, total, visit)
        launch.store(0, total[0], at, node.type)

    def _covering(
        self, at: Sequence[Index], turn: Sequence[Index], counts: Sequence[int]
    ) -> tuple[list[Index], list[ir.Value]]:
        """The ``turn``-th window that may cover ``at``, in each dimension, and whether there is such a window."""
        index: list[Index] = []
        conditions: list[ir.Value] = []
        for d, extent in enumerate(self.values.shape):
            last = build.div(build.add(at[d], self.low[d]), self.strides[d])
            window = build.add(build.sub(last, counts[d] - 1), turn[d])
            if isinstance(window, ir.Value) or not 0 <= window < extent:
                conditions += [build.at_least(window, 0), build.less(window, extent)]
                window = build.clamp(window, 0, extent - 1)
            index.append(window)
        return index, conditions
