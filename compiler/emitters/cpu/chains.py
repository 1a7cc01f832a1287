# SPDX-License-Identifier: Apache-2.0
"""Where a loop over a long chain of dear operations is cut into several, one after the other.

A processor looks for work among the next few hundred instructions only, and fewer than that may wait for operands. A
chain of two transcendental functions has too many of them for enough elements to be under way at once; each half, in a
loop of its own, keeps twice as many. What the first half leaves lies in a stage in the first-level cache, for which a
loop has load and store units to spare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.compiler.emitters.cpu.frame import node_cost, reachable, reached_in_place
from gristmill.compiler.graph import Graph, Node
from gristmill.dialects import hlo

#: Cost of a part's longest chain at least: shorter ones are as well computed together.
_LEAST_PART = 12

#: Cost of what is computed a second time after a cut, at most.
_MOST_TWICE = 2

#: How often parts are cut in two: there are seven stages at most, which leaves room in the first-level cache.
_HALVINGS = 3

#: Operations that take no time, or as much as a load.
_FREE = frozenset(("parameter", "constant", "broadcast_in_dim", "reshape", "iota", "slice"))


def cuts(graph: Graph) -> list[Node]:
    """Values to be computed by loops of their own before the results, in this order; each may read those before it."""
    return _cuts(reachable(graph.results), frozenset(graph.results), _HALVINGS)


def _cuts(nodes: Sequence[Node], results: frozenset[Node], halvings: int) -> list[Node]:
    """The cuts of a part, whose operations are given in program order; operands of other parts are at hand."""
    depths, heights = _chains(nodes)
    best, least = -1, _LEAST_PART
    if max(depths.values(), default=0) < 2 * least or not halvings:
        return []
    within = frozenset(nodes)
    for place, rest in enumerate(_read_later(nodes, results)):
        node = nodes[place]
        length = min(depths[node], heights[node])
        if length >= least and node in rest and _is_cut(node, within, rest, results):
            best, least = place, length + 1
    if best < 0:
        return []
    before, after = nodes[: best + 1], nodes[best + 1 :]
    first, second = (_cuts(part, results, halvings - 1) for part in (before, after))
    return [*first, nodes[best], *second]


def _is_cut(node: Node, within: frozenset[Node], rest: set[Node], results: frozenset[Node]) -> bool:
    """Whether ``node`` is all that later ones need of the dear values so far, and can be staged.

    It can if they read it at the index of the element of ``results`` that is computed. ``rest`` of a part ``within``
    are read later, it included.
    """
    element = node.type.element
    plain = element.kind != "complex" and element.bits >= 8 and node.kind not in _FREE
    if not plain or any(x.shape != node.shape for x in results):
        return False
    return _is_cheap(rest - {node}, within) and reached_in_place(node) is not None


def _is_cheap(nodes: Iterable[Node], within: frozenset[Node]) -> bool:
    """Whether ``nodes`` may be computed twice, with what they depend on ``within`` a part."""
    seen, stack, cost = set[Node](), list(nodes), 0
    while stack and cost <= _MOST_TWICE:
        node = stack.pop()
        if node in within and node not in seen:
            seen.add(node)
            stack += node.operands
            cost += _cost(node)
    return cost <= _MOST_TWICE


def _cost(node: Node) -> int:
    """Cost of an element of ``node``; what may loop, or read what others have not just read, is not cheap."""
    if node.kind in _FREE:
        return 0
    definition = hlo.OPS.get(node.kind)
    elementwise = definition is not None and "elementwise" in definition.traits
    return node_cost(node) if elementwise else max(node_cost(node), _MOST_TWICE + 1)


def _chains(nodes: Sequence[Node]) -> tuple[dict[Node, int], dict[Node, int]]:
    """For each node the cost of the longest chain that ends with it, and of the longest that follows it."""
    depths: dict[Node, int] = {}
    for node in nodes:
        depths[node] = _cost(node) + max((depths.get(x, 0) for x in node.operands), default=0)
    heights = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        for operand in heights.keys() & node.operands:
            heights[operand] = max(heights[operand], heights[node] + _cost(node))
    return depths, heights


def _read_later(nodes: Sequence[Node], results: frozenset[Node]) -> Iterable[set[Node]]:
    """For each of ``nodes`` those up to it that some after it reads, or that are stored; in one set that changes."""
    places = {node: place for place, node in enumerate(nodes)}
    live: set[Node] = set()
    read_last: dict[int, list[Node]] = {}
    for place, node in enumerate(nodes):
        last = max((places.get(x, -1) for x in node.users), default=-1)
        last = len(nodes) if node in results else last
        if last > place:
            live.add(node)
            read_last.setdefault(last, []).append(node)
        live.difference_update(read_last.pop(place, ()))
        yield live
