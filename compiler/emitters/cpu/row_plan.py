# SPDX-License-Identifier: Apache-2.0
"""How rows are computed: the stages of a row fusion's reductions, see :mod:`.row`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlir import ir

from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    node_cost,
    reachable,
    reached_in_place,
    run_together,
)
from gristmill.compiler.emitters.elemental.contraction import reduce_operands
from gristmill.compiler.graph import Graph, Node
from gristmill.dialects import hlo

#: Operations whose value is at hand: reading one again costs nothing but a load.
_LEAVES = ("parameter", "constant", "reduce", "dot_general")

#: Subtree cost (tenths of a nanosecond an element) from which keeping a value beats computing it again.
KEEP_COST = 4


@dataclass
class RowPlan:
    """How one row is computed.

    Attributes:
        rows: the leading dimensions R.
        columns: the reduced dimensions C.
        stages: reductions by stage; one representative node per ``reduce`` op.
        full: (result number, node) of full results, by the loop that stores them.
        per_row: (result number, node) of per-row results.
        kept: nodes to keep in a row buffer, by the loop that computes them.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    stages: list[list[Node]]
    full: list[list[tuple[int, Node]]]
    per_row: list[tuple[int, Node]]
    kept: list[list[Node]] = field(default_factory=list["list[Node]"])


def plan_rows(graph: Graph) -> RowPlan:
    """Work out stages, where results are stored and what is kept."""
    nodes = reachable(graph.results)
    level: dict[Node, int] = {}
    stages: list[list[Node]] = []
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    present = set(nodes)
    for node in nodes:
        level[node] = max((level[x] for x in node.operands), default=0)
        if node.kind != "reduce":
            continue
        stage = level[node]
        level[node] = stage + 1
        if node.result != min(s.result for s in node.siblings if s in present):
            continue
        source, reduced = node.operands[0].shape, node.dims("dimensions")
        rows, columns = source[: min(reduced)], source[min(reduced) :]
        while len(stages) <= stage:
            stages.append([])
        stages[stage].append(node)
    width = math.prod(columns)
    full: list[list[tuple[int, Node]]] = [[] for _ in range(len(stages) + 1)]
    per_row: list[tuple[int, Node]] = []
    for number, root in enumerate(graph.results):
        if root.type.size == math.prod(rows) * width and (width != 1 or root.kind != "reduce"):
            full[level[root]].append((number, root))
        else:
            per_row.append((number, root))
    plan = RowPlan(rows, columns, stages, full, per_row)
    plan.kept = _plan_kept(plan, level)
    return plan


def _loop_roots(plan: RowPlan, loop: int) -> list[Node]:
    roots = [node for _, node in plan.full[loop]]
    if loop < len(plan.stages):
        for reduce in plan.stages[loop]:
            roots += reduce_operands(reduce)[0]
    return roots


def _plan_kept(plan: RowPlan, level: dict[Node, int]) -> list[list[Node]]:
    """Nodes computed in one loop, needed in a later one, and dear to recompute."""
    size = math.prod(plan.rows) * math.prod(plan.columns)
    kept: list[list[Node]] = [[] for _ in plan.full]
    computed: dict[Node, int] = {}
    for loop in range(len(plan.full)):
        fresh: set[Node] = set()
        stack = _loop_roots(plan, loop)
        while stack:
            node = stack.pop()
            if node in fresh or node.kind in _LEAVES:
                continue
            first = computed.get(node)
            if first is not None and node.type.size == size and _is_worth_keeping(node):
                if node not in kept[first]:
                    kept[first].append(node)
                continue
            fresh.add(node)
            stack.extend(node.operands)
        for node in fresh:
            computed.setdefault(node, loop)
    return [sorted(nodes, key=lambda n: n.order) for nodes in kept]


def _is_read_in_place(node: Node) -> bool:
    """Whether every path from ``node`` stays at its own elements until a reduction or a result."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        for user in current.users:
            if user in seen or user.kind == "reduce":
                continue
            if user.op is None or not (
                hlo.has_trait(user.op, "elementwise") or _only_renames(user, current)
            ):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _only_renames(user: Node, node: Node) -> bool:
    """Whether ``user`` is ``node`` with other unit dimensions."""
    real, others = ([size for size in x.shape if size != 1] for x in (user, node))
    return user.kind == "reshape" and real == others


def _is_worth_keeping(node: Node) -> bool:
    """Whether the node is dear, and all that read it do so at the row's own elements, which a row buffer has."""
    return _is_read_in_place(node) and _subtree_cost(node) >= KEEP_COST


def _subtree_cost(node: Node) -> int:
    """Cost of recomputing an element of ``node`` from parameters and what is the same for a whole row."""
    total, stack, seen = 0, [node], {node}
    while stack:
        current = stack.pop()
        total += node_cost(current)
        for operand in current.operands:
            whole = operand.type.size == node.type.size and operand not in seen
            if whole and operand.kind not in _LEAVES:
                seen.add(operand)
                stack.append(operand)
    return total


def merged_columns(graph: Graph, plan: RowPlan) -> int:
    """How many of the last columns are run over in one loop: two if no full value tells them apart, else one.

    Of three LLVM does not see that their elements lie one after another.
    """
    together = len(plan.columns) > 1 and run_together(graph, (*plan.rows, *plan.columns))
    return 2 if together else 1


def row_inplace_pairs(graph: Graph, plan: RowPlan) -> list[tuple[int, int]]:
    """(parameter, result) pairs that may share a buffer.

    Full results of the last loop may overwrite an argument that is read at the same index only. Earlier loops have
    read the whole row by then; other results must not depend on the argument.
    """
    if len(graph.results) != 1 or not plan.full[-1]:
        return []
    root = graph.results[0]
    return [
        (parameter.result, 0)
        for parameter in graph.parameters
        if parameter.shape == root.shape
        and parameter.type.element.nbytes == root.type.element.nbytes
        and reached_in_place(parameter, frozenset(("reduce",))) is not None
    ]


def row_index(node: Node, row: Sequence[Index]) -> list[Index]:
    """Index of a per-row result: its non-unit dimensions are the row's."""
    real = iter([r for r in row if isinstance(r, ir.Value)])
    return [0 if size == 1 else next(real) for size in node.shape]


def full_index(node: Node, index: Sequence[Index], shape: Sequence[int]) -> list[Index]:
    """Index of a full value whose shape may have other unit dimensions than ``shape``, (R, C), that ``index`` is of."""
    if node.shape == tuple(shape):
        return list(index)
    real = iter([i for i, size in zip(index, shape, strict=True) if size != 1])
    return [0 if size == 1 else next(real) for size in node.shape]
