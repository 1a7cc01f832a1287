# SPDX-License-Identifier: Apache-2.0
"""Which loops and branches become one native kernel as a whole (kind ``computation``).

A ``while``, ``if`` or ``case`` whose every value, in all nested computations, is small is run by one thread inside one
kernel: scalars live in registers, so an iteration costs what its arithmetic costs.
"""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.compiler.emitters.elemental import RULES
from gristmill.compiler.graph import Graph, Node
from gristmill.dialects import hlo

#: Elements of the largest value that a computation kernel may hold.
MAX_ELEMENTS = 64
#: Operations in all nested computations at most.
MAX_OPERATIONS = 200

_STRUCTURAL = frozenset("parameter constant while if case func.call".split())


def is_small_computation(node: Node, graphs: Mapping[str, Graph]) -> bool:
    """Whether ``node`` (a ``while``, ``if`` or ``case``) is to be compiled into one kernel."""
    assert node.op is not None
    operations = 0
    pending, seen = list(hlo.computations(node.op)), set[str]()
    if any(x.type.size > MAX_ELEMENTS for x in [*node.operands, *node.siblings]):
        return False
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in graphs[name].nodes:
            operations += 1
            if inner.type.size > MAX_ELEMENTS or operations > MAX_OPERATIONS:
                return False
            if inner.kind not in _STRUCTURAL and inner.kind not in RULES:
                return False
            if inner.op is not None:
                pending += list(hlo.computations(inner.op))
    return True
