# SPDX-License-Identifier: Apache-2.0
"""The ``fuse`` pass: group operations into ``fusion`` ops, one kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir
from mlir.dialects import func

from gristmill.compiler.graph import Graph, Node, load_graph
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.fuse_clusters import CONTROL, Cluster, Clustering
from gristmill.compiler.passes.fuse_computation import is_small_computation
from gristmill.dialects import hlo


@dataclass(frozen=True)
class FusePass(Pass):
    """Replace operations by ``fusion`` ops whose computations are compiled as one kernel each.

    Requires: calls inlined, barriers removed. Guarantees: in ``main`` and in the computations of every ``while``,
    ``if`` and ``case`` reached from it there are only ``fusion``, ``while``, ``if``, ``case``, ``constant``,
    ``reshape`` (a renamed buffer) and ``func.return``. A loop or branch over small values becomes a ``computation``
    fusion as a whole, a custom call a fusion of its own. Does not handle unknown operations: they become fusions of a
    kind named after the op, which no emitter may have.
    """

    name: ClassVar[str] = "fuse"

    def run(self, module: HloModule) -> None:
        """Fuse in place."""
        functions = module.functions()
        graphs = {name: load_graph(op) for name, op in functions.items()}
        numbers = _Numbers()
        pending, done = ["main"], set[str]()
        while pending:
            name = pending.pop()
            if name in done or name not in graphs:
                continue
            done.add(name)
            pending += _Fuser(module, graphs[name], graphs, numbers).run()


class _Numbers:
    """Names for fused computations."""

    def __init__(self) -> None:
        self._next = 0

    def name(self) -> str:
        self._next += 1
        return f"fused_computation_{self._next - 1}"


class _Fuser:
    """Fuses one function."""

    def __init__(
        self, module: HloModule, graph: Graph, graphs: dict[str, Graph], numbers: _Numbers
    ):
        self._module, self._graph, self._graphs, self._numbers = module, graph, graphs, numbers
        self._values: dict[Node, ir.Value] = {n: n.value for n in graph.parameters}

    def run(self) -> list[str]:
        """Rewrite the function; returns the computations of control flow that remain to be fused."""
        clusters = Clustering(self._graph, self._graphs).run()
        owner = {n: c for c in clusters for n in c.root.siblings}
        for cluster in clusters:
            owner.update(dict.fromkeys(cluster.outputs, cluster))
        block = self._graph.function.regions[0].blocks[0]
        original = [view.operation for view in block.operations]
        terminator = original[-1]
        nested: list[str] = []
        with self._module.context, ir.InsertionPoint(terminator):
            for unit in _order(self._graph, clusters, owner):
                if isinstance(unit, Cluster):
                    self._emit_cluster(unit)
                else:
                    nested += self._emit_plain(unit)
            for number, result in enumerate(self._graph.results):
                terminator.operands[number] = self._values[result]
            for op in reversed(original[:-1]):
                op.erase()
        return nested

    def _emit_plain(self, node: Node) -> list[str]:
        """Copy an operation that stays outside kernels; wrap a small loop as a computation, a custom call as itself."""
        assert node.op is not None
        operands = [self._values[x] for x in node.operands]
        small = node.kind in ("while", "if", "case") and is_small_computation(node, self._graphs)
        if small or node.kind == "custom_call":
            kind = "computation" if small else node.kind
            live = [s for s in node.siblings if s.users or s in self._graph.results]
            roots = live if small and live else list(node.siblings)
            cluster = Cluster(node, kind, roots=roots)
            cluster.index = dict.fromkeys(node.siblings, ())
            self._emit_cluster(cluster)
            return []
        copy = node.op.clone()
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        for sibling, result in zip(node.siblings, copy.results, strict=True):
            self._values[sibling] = result
        return list(hlo.computations(node.op)) if node.kind in ("while", "if", "case") else []

    def _emit_cluster(self, cluster: Cluster) -> None:
        results = cluster.results()
        members = _members_needed(cluster, results)
        inside = set(members)
        inputs: list[Node] = []
        for member in members:
            inputs += [x for x in member.operands if x not in inside and x not in inputs]
        name = self._numbers.name()
        with _location(cluster.root):
            self._outline(name, members, inputs, results)
            fusion = hlo.build(
                "fusion",
                [r.value.type for r in results],
                [self._values[x] for x in inputs],
                calls=name,
                kind=cluster.kind,
            )
        for node, value in zip(results, fusion.results, strict=True):
            self._values[node] = value

    def _outline(
        self, name: str, members: Sequence[Node], inputs: Sequence[Node], results: Sequence[Node]
    ) -> None:
        kinds = [x.value.type for x in inputs], [r.value.type for r in results]
        with ir.InsertionPoint(self._module.module.body):
            function = func.FuncOp(name, kinds, visibility="private")
        block = function.add_entry_block()
        values: dict[Node, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for node in members:
                if node in values or node.op is None:
                    continue
                copy = node.op.clone()
                for number, operand in enumerate(node.operands):
                    copy.operands[number] = values[operand]
                for sibling, result in zip(node.siblings, copy.results, strict=True):
                    values[sibling] = result
            func.ReturnOp([values[r] for r in results])


def _location(node: Node) -> ir.Location:
    assert node.op is not None
    return node.op.location


def _members_needed(cluster: Cluster, results: Sequence[Node]) -> list[Node]:
    """Members that the results depend on inside the cluster, in program order."""
    needed: set[Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in needed or node not in cluster.index:
            continue
        needed.add(node)
        stack += node.operands
    return sorted(needed, key=lambda n: n.order)


def _order(
    graph: Graph, clusters: Sequence[Cluster], owner: dict[Node, Cluster]
) -> list[Cluster | Node]:
    """Clusters and remaining operations in an order where every value is computed before it is read."""
    units: list[Cluster | Node] = []
    placed: set[int] = set()
    results = set(graph.results)

    def inputs(unit: Cluster | Node) -> list[Node]:
        if isinstance(unit, Node):
            return unit.operands
        members = _members_needed(unit, unit.results())
        inside = set(members)
        return [x for m in members for x in m.operands if x not in inside]

    def unit_of(node: Node) -> Cluster | Node | None:
        if node in owner:
            return owner[node]
        return None if node.kind == "parameter" else node.siblings[0]

    def place(start: Cluster | Node) -> None:
        """Depth-first, operands first, without recursion (programs are deep)."""
        stack: list[tuple[Cluster | Node, bool]] = [(start, False)]
        while stack:
            unit, ready = stack.pop()
            if id(unit) in placed:
                continue
            if ready:
                placed.add(id(unit))
                units.append(unit)
                continue
            stack.append((unit, True))
            for node in reversed(sorted(inputs(unit), key=lambda n: n.order)):
                dependency = unit_of(node)
                if dependency is not None and id(dependency) not in placed:
                    stack.append((dependency, False))

    wanted = [*clusters, *(n for n in graph.nodes if n.kind in CONTROL)]
    anchors: list[tuple[int, Cluster | Node]] = []
    for unit in wanted:
        if isinstance(unit, Cluster):
            anchors.append((unit.root.order, unit))
        elif unit.kind not in ("parameter", "constant") and unit.result == 0:
            anchors.append((unit.order, unit))
    for _, unit in sorted(anchors, key=lambda pair: pair[0]):
        place(unit)
    for node in results:
        unit = unit_of(node)
        if unit is not None:
            place(unit)
    return units
