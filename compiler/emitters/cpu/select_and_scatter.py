# SPDX-License-Identifier: Apache-2.0
"""The select-and-scatter emitter: each source value is added where its window's selected element lies.

Windows are visited in row-major order, and so are the elements of a window: the first element inside the operand is
selected, and each later one replaces it where ``select(selected, element)`` is false. Leading dimensions that windows
do not span are independent tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both, choose, either
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.contraction import loop_nest, window_position
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.runtime.types import element_type

_PRED = element_type("i1")


class SelectAndScatterEmitter:
    """Compiles one ``select_and_scatter`` and the data movement fused into its operands."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.operand, self.values, self.initial = self.node.operands
        self.window = self.node.dims("window_dimensions")
        self.strides = self.node.dims("window_strides")
        self.low = self.node.dims("padding_low")

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source)
        leading = self._independent()
        tasks = math.prod(self.operand.shape[:leading])
        if self.operand.type.size:
            work = self.values.type.size * math.prod(self.window)
            frame.phase(lambda phase: self._tasks(phase, leading), tasks, worth_splitting(work, 20))
        else:
            frame.phase(lambda phase: None)
        return frame.finish("select_and_scatter", self.values.type.size * math.prod(self.window))

    def _independent(self) -> int:
        """How many leading dimensions have windows of one element that tile the operand."""
        count = 0
        shapes = zip(self.operand.shape, self.values.shape, strict=True)
        for (extent, windows), size, stride, low in zip(
            shapes, self.window, self.strides, self.low, strict=True
        ):
            if (size, stride, low) != (1, 1, 0) or extent != windows:
                break
            count += 1
        return count

    def _tasks(self, phase: PhaseFrame, leading: int) -> None:
        e = phase.elemental
        shape = self.operand.shape

        def task(number: ir.Value) -> None:
            outer = build.delinearize(number, shape[:leading])
            start = e.value(self.initial, ())

            def fill(index: list[Index], _: list[ir.Value]) -> list[ir.Value]:
                phase.store(0, start, [*outer, *index], self.node.type)
                return []

            def visit(index: list[Index], _: list[ir.Value]) -> list[ir.Value]:
                self._visit(phase, [*outer, *index])
                return []

            loop_nest(e, shape[leading:], [], fill)
            loop_nest(e, self.values.shape[leading:], [], visit)

        phase.each_task(task)

    def _visit(self, phase: PhaseFrame, index: list[Index]) -> None:
        """Scatter the source value at ``index``."""
        e = phase.elemental
        found, position = selected_position(e, self.node, index)
        with build.if_then(found), e.scope():
            at = build.delinearize(position, self.operand.shape)
            old = build.load(phase.results[0], at, self.node.type.element)
            value = e.value(self.values, index)
            new = e.call(self.node.symbol("scatter"), [old, value])[0]
            phase.store(0, new, at, self.node.type)


def selected_position(
    e: Elemental, node: Node, index: Sequence[Index]
) -> tuple[ir.Value, ir.Value]:
    """What the window at ``index`` of a ``select_and_scatter`` selects.

    Returns whether some element of the window is inside the operand, and the linear position (``index``) of the
    selected one.
    """
    operand, values, _ = node.operands
    shape, ones = operand.shape, [1] * operand.type.rank
    window = node.dims("window_dimensions")

    def element(offsets: list[Index], carried: list[ir.Value]) -> list[ir.Value]:
        found, position, selected = carried
        at, conditions = window_position(
            index,
            offsets,
            node.dims("window_strides"),
            ones,
            node.dims("padding_low"),
            ones,
            shape,
            window,
            values.shape,
        )
        candidate = e.value(operand, at)
        inside = build.constant(_PRED, True)
        for condition in conditions:
            inside = both(inside, condition)
        keeps = both(found, e.call(node.symbol("select"), [selected, candidate])[0])
        takes = both(inside, _not(keeps))
        here = build.index_value(build.linearize(at, shape))
        return [
            either(found, inside),
            choose(takes, here, position),
            choose(takes, candidate, selected),
        ]

    first = e.value(operand, [0] * len(shape))
    initial = [build.constant(_PRED, False), build.index_value(0), first]
    found, position, _ = loop_nest(e, window, initial, element)
    return found, position


def _not(condition: ir.Value) -> ir.Value:
    return arith.XOrIOp(condition, build.constant(_PRED, True)).result
