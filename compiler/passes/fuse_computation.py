# SPDX-License-Identifier: Apache-2.0
"""Which loops and branches become one native kernel as a whole (kind ``computation``).

A ``while``, ``if`` or ``case`` whose every value, in all nested computations, is small is run by one thread inside one
kernel: scalars live in registers, so an iteration costs what its arithmetic costs. Arrays that a ``while`` only reads a
few elements of at a time, or writes a few of, may be of any size: a scan over numbers is such a loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.compiler.emitters.cpu.carried import Carried
from gristmill.compiler.emitters.elemental import RULES
from gristmill.compiler.graph import Graph, Node
from gristmill.dialects import hlo

#: Elements of the largest value that a computation kernel may hold.
MAX_ELEMENTS = 64
#: The same of the values that are computed, where larger arrays are read or written in parts: a few elements are worth
#: the call of a kernel that vectorises already.
MAX_SCANNED = 1
#: Elements of a larger array that is written in parts: it is copied once, by the one thread that runs the loop.
MAX_UPDATED = 1 << 20
#: Operations in all nested computations at most.
MAX_OPERATIONS = 200

_STRUCTURAL = frozenset("parameter constant while if case func.call".split())


def is_small_computation(node: Node, graphs: Mapping[str, Graph]) -> bool:
    """Whether ``node`` (a ``while``, ``if`` or ``case``) is to be compiled into one kernel."""
    assert node.op is not None
    operations = 0
    pending, seen = list(hlo.computations(node.op)), set[str]()
    large = {n for n, x in enumerate(node.siblings) if x.type.size > MAX_ELEMENTS}
    most = MAX_SCANNED if large else MAX_ELEMENTS
    exempt: set[Node] = set()
    if node.kind == "while" and large:
        found = _parts(node, large, graphs)
        if found is None:
            return False
        exempt = found
    elif any(x.type.size > most for x in [*node.operands, *node.siblings]):
        return False
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in graphs[name].nodes:
            operations += 1
            if (inner.type.size > most and inner not in exempt) or operations > MAX_OPERATIONS:
                return False
            if inner.kind not in _STRUCTURAL and inner.kind not in RULES:
                return False
            if inner.op is not None:
                pending += list(hlo.computations(inner.op))
    return True


def _parts(node: Node, large: set[int], graphs: Mapping[str, Graph]) -> set[Node] | None:
    """The values in the computations of a ``while`` that stand for ``large`` carried arrays; None if all are needed."""
    cond, body = graphs[node.symbol("cond")], graphs[node.symbol("body")]
    carried = Carried.of(cond, body)
    if not all(n in carried.updated or carried.is_read_in_parts(cond, body, n) for n in large):
        return None
    if any(node.siblings[n].type.size > MAX_UPDATED for n in large & carried.updated):
        return None
    values = {graph.parameters[n] for graph in (cond, body) for n in large}
    return values | {body.results[n] for n in large}
