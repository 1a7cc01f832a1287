# SPDX-License-Identifier: Apache-2.0
"""A dot fusion: one ``dot_general`` and the elementwise computation of its result (the epilogue)."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot import emit_dot
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem
from gristmill.compiler.emitters.cpu.frame import FusionSource, reachable
from gristmill.compiler.emitters.elemental import Elemental, buffer_source, scalar_source
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node


class DotFusionEmitter:
    """Compiles a fusion around one ``dot_general`` whose operands are parameters."""

    def __init__(self, source: FusionSource):
        self.source = source
        dots = [n for n in reachable(source.graph.results) if n.kind == "dot_general"]
        assert len(dots) == 1, "a dot fusion has one dot_general"
        self.node = dots[0]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        node, source = self.node, self.source
        lhs, rhs = node.operands
        problem = DotProblem.of(
            lhs.type,
            rhs.type,
            node.type.element,
            lhs_batch=node.dims("lhs_batching_dimensions"),
            rhs_batch=node.dims("rhs_batching_dimensions"),
            lhs_contract=node.dims("lhs_contracting_dimensions"),
            rhs_contract=node.dims("rhs_contracting_dimensions"),
        )
        alone = source.graph.results == [node]
        return emit_dot(
            source.name,
            problem,
            source.target,
            arguments=source.arguments,
            results=source.results,
            lhs=lhs.result,
            rhs=rhs.result,
            epilogue=None if alone else self._epilogue,
            blocking=source.blocking,
        )

    def _epilogue(
        self, value: ir.Value, index: Sequence[Index], buffers: Sequence[ir.Value]
    ) -> list[ir.Value]:
        graph = self.source.graph
        sources = [
            buffer_source(buffer, parameter.type.element)
            for buffer, parameter in zip(buffers, graph.parameters, strict=False)
        ]
        e = Elemental(graph, sources, self.source.functions)
        e.bind(self.node, scalar_source(value))
        return [e.value(root, matching_index(root, self.node, index)) for root in graph.results]


def matching_index(root: Node, node: Node, index: Sequence[Index]) -> list[Index]:
    """``index`` of ``node`` as an index of ``root``, whose unit dimensions may lie elsewhere."""
    real = iter([i for i, size in zip(index, node.shape, strict=True) if size != 1])
    return [0 if size == 1 else next(real) for size in root.shape]
