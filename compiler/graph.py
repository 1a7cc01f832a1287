# SPDX-License-Identifier: Apache-2.0
"""A light read-only view of one ``hlo`` function as a dataflow graph.

Walking MLIR through the bindings costs microseconds an access; analyses that visit an op many times (fusion, the
elemental emitter) read the function once into :class:`Node` objects and work on those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.module import array_type, inline_constant
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType


@dataclass(eq=False)
class Node:
    """One value of a function: a parameter or one result of an operation.

    Attributes:
        kind: ``parameter`` or the op's short name.
        type: array type of the value.
        operands: the nodes the op reads, in operand order.
        op: the operation (``None`` for a parameter).
        result: which result of ``op`` this is; the parameter number for a parameter.
        value: the MLIR value.
        users: nodes that read this one (each once; filled for the whole graph).
        order: position in program order; parameters come first.
        siblings: the nodes of every result of ``op``, this one included, in result order.
    """

    kind: str
    type: ArrayType
    operands: list[Node]
    op: ir.Operation | None
    result: int
    value: ir.Value
    order: int
    users: list[Node] = field(default_factory=list["Node"])
    siblings: list[Node] = field(default_factory=list["Node"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.type.shape

    def dims(self, name: str) -> list[int]:
        """An ``array<i64>`` attribute of the op."""
        assert self.op is not None
        return hlo.dims(self.op, name)

    def integer(self, name: str) -> int:
        """An integer attribute of the op."""
        assert self.op is not None
        return hlo.integer(self.op, name)

    def string(self, name: str) -> str:
        """A string attribute of the op (``""`` when absent)."""
        assert self.op is not None
        return hlo.string(self.op, name)

    def symbol(self, name: str) -> str:
        """A symbol attribute of the op."""
        assert self.op is not None
        return hlo.symbol(self.op, name)

    @cached_property
    def constant(self) -> np.ndarray[Any, Any] | None:
        """The value of an inline ``constant``; ``None`` for anything else."""
        if self.kind != "constant" or self.op is None:
            return None
        value = self.op.attributes["value"]
        if is_resource(value):
            return None
        return inline_constant(self.op)

    @property
    def location(self) -> str:
        """The op's source location as text."""
        return str(self.op.location) if self.op is not None else ""


def is_uniform(data: np.ndarray[Any, Any]) -> bool:
    """Whether there are elements and all have the same bits: 0.0 and -0.0 differ, equal NaNs do not."""
    if data.size == 0:
        return False
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(data.size, -1)
    return bool((flat == flat[0]).all())


def is_resource(attribute: ir.Attribute) -> bool:
    """Whether the attribute is ``dense_resource<…>``, whose data lives outside the IR."""
    return not isinstance(attribute, ir.DenseElementsAttr)  # the bindings downcast only these


@dataclass
class Graph:
    """A function as nodes.

    Attributes:
        name: the function's symbol.
        parameters: its parameters.
        nodes: every value in program order, parameters first.
        results: what it returns.
        function: the ``func.func``.
    """

    name: str
    parameters: list[Node]
    nodes: list[Node]
    results: list[Node]
    function: ir.Operation


def load_graph(function: ir.Operation) -> Graph:
    """Read a single-block ``func.func`` of static tensors into a :class:`Graph`."""
    block = function.regions[0].blocks[0]
    by_value: dict[ir.Value, Node] = {}
    nodes: list[Node] = []
    for number, argument in enumerate(block.arguments):
        node = Node("parameter", array_type(argument), [], None, number, argument, len(nodes))
        by_value[argument] = node
        nodes.append(node)
    parameters = list(nodes)
    results: list[Node] = []
    for view in list(block.operations):
        op = view.operation
        operands = [by_value[operand] for operand in op.operands]
        if op.name == "func.return":
            results = operands
            continue
        kind = hlo.short_name(op)
        siblings: list[Node] = []
        for number, result in enumerate(op.results):
            node = Node(kind, array_type(result), operands, op, number, result, len(nodes))
            node.siblings = siblings
            siblings.append(node)
            by_value[result] = node
            nodes.append(node)
            for operand in dict.fromkeys(operands):
                operand.users.append(node)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    return Graph(name, parameters, nodes, results, function)
