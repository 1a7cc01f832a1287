# SPDX-License-Identifier: Apache-2.0
"""A dot fusion: one ``dot_general`` and the elementwise computation of its result (the epilogue)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.emitters.build import Index, add, mul
from gristmill.compiler.emitters.cpu.dot import emit_dot
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem, Operand
from gristmill.compiler.emitters.cpu.frame import FusionSource, reachable
from gristmill.compiler.emitters.elemental import Elemental, buffer_source, scalar_source
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Graph, Node


def dot_of(graph: Graph) -> Node:
    """The product of a dot fusion's computation."""
    dots = [n for n in reachable(graph.results) if n.kind == "dot_general"]
    assert len(dots) == 1, "a dot fusion has one dot_general"
    return dots[0]


def problem_of(node: Node) -> DotProblem:
    """What a ``dot_general`` computes."""
    lhs, rhs = node.operands
    return DotProblem.of(
        lhs.type,
        rhs.type,
        node.type.element,
        lhs_batch=node.dims("lhs_batching_dimensions"),
        rhs_batch=node.dims("rhs_batching_dimensions"),
        lhs_contract=node.dims("lhs_contracting_dimensions"),
        rhs_contract=node.dims("rhs_contracting_dimensions"),
    )


def packed_parameter(operand: Node) -> Node | None:
    """The parameter ``[panels, k, columns]`` from which a transpose and a reshape make a product's matrix."""
    transposed = operand.operands[0] if operand.kind == "reshape" else operand
    if transposed.kind != "transpose" or transposed.operands[0].kind != "parameter":
        return None
    parameter = transposed.operands[0]
    fits = parameter.type.rank == 3 and operand.type.rank == 2
    return parameter if fits else None


class DotFusionEmitter:
    """Compiles a fusion around one ``dot_general``.

    Its operands are parameters; the right one may be made of a packed parameter (see :func:`packed_parameter`).
    """

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = dot_of(source.graph)
        self.packed = packed_parameter(self.node.operands[1])

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        node, source = self.node, self.source
        lhs, rhs = node.operands
        problem = problem_of(node)
        if self.packed is not None:
            rhs = self.packed
            # Columns are panels and columns of a panel: the same order.
            problem = dataclasses.replace(problem, rhs=Operand(rhs.type, (), (0, 2), (1,)))
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
        if self.packed is not None:
            *rest, panel, column = index
            index = [*rest, add(mul(panel, self.packed.shape[2]), column)]
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
