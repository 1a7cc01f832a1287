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

#: Cost of a part's longest chain at least: shorter ones are as well computed together.
_LEAST_PART = 12

#: Cost of what is computed a second time after a cut, at most.
_MOST_TWICE = 2

#: Operations that take no time, or as much as a load.
_FREE = frozenset(("parameter", "constant", "broadcast_in_dim", "reshape", "iota", "slice"))


def cuts(graph: Graph) -> list[Node]:
    """Values to be computed by loops of their own before the results, in this order; each may read those before it."""
    return _cuts(reachable(graph.results), graph.results[0].shape)


def _cuts(nodes: Sequence[Node], shape: tuple[int, ...]) -> list[Node]:
    """The cuts of a part, whose operations are given in program order; operands of other parts are at hand."""
    depths, heights = _chains(nodes)
    best, least = -1, _LEAST_PART
    for place, rest in enumerate(_read_later(nodes)):
        node = nodes[place]
        length = min(depths[node], heights[node])
        if length < least or node not in rest or not _can_be_staged(node, shape):
            continue
        if _cost(_needed(rest - {node}, nodes)) <= _MOST_TWICE:
            best, least = place, length + 1
    if best < 0:
        return []
    return [*_cuts(nodes[: best + 1], shape), nodes[best], *_cuts(nodes[best + 1 :], shape)]


def _chains(nodes: Sequence[Node]) -> tuple[dict[Node, int], dict[Node, int]]:
    """For each node the cost of the longest chain that ends with it, and of the longest that follows it."""
    depths: dict[Node, int] = {}
    for node in nodes:
        depths[node] = _cost([node]) + max((depths.get(x, 0) for x in node.operands), default=0)
    heights = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        for operand in heights.keys() & node.operands:
            heights[operand] = max(heights[operand], heights[node] + _cost([node]))
    return depths, heights


def _read_later(nodes: Sequence[Node]) -> Iterable[set[Node]]:
    """For each of ``nodes`` those up to it that some after it reads."""
    places = {node: place for place, node in enumerate(nodes)}
    last = {node: max((places.get(x, -1) for x in node.users), default=-1) for node in nodes}
    live: set[Node] = set()
    for place, node in enumerate(nodes):
        live = {x for x in (*live, node) if last[x] > place}
        yield live


def _needed(roots: Iterable[Node], nodes: Sequence[Node]) -> set[Node]:
    """Those of ``nodes`` from which ``roots`` are computed."""
    within, seen = set(nodes), set[Node]()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in within and node not in seen:
            seen.add(node)
            stack += node.operands
    return seen


def _can_be_staged(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether ``node`` is an element of a result of ``shape`` that is read at that element's index only."""
    element = node.type.element
    plain = element.kind != "complex" and element.bits >= 8 and node.kind not in _FREE
    return plain and node.shape == shape and reached_in_place(node) is not None


def _cost(nodes: Iterable[Node]) -> int:
    return sum(0 if x.kind in _FREE else node_cost(x) for x in nodes)
