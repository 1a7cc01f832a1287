# SPDX-License-Identifier: Apache-2.0
"""What an attention fusion computes: a product, a computation on its rows, and a product of what that gives.

    scores[b, m, t] = sum_d Q[b, m, d] * K[b, t, d]
    weights[b, m, :] = rows(scores[b, m, :])
    output[b, m, n] = sum_t weights[b, m, t] * V[b, t, n]

``rows`` is anything that a row fusion computes from a score at its own place: scales, masks, biases, softmax. A
softmax's division is left to the output, which has fewer elements: ``sum_t e[t] * V[t] / sum_t e[t]``, where no
``e[t]`` exceeds 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.compiler.emitters.cpu.dot_fusion import problem_of
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem
from gristmill.compiler.emitters.cpu.frame import reachable
from gristmill.compiler.emitters.cpu.row_plan import plan_rows
from gristmill.compiler.graph import Graph, Node
from gristmill.dialects import hlo

#: Fewer rows than this against one set of keys leave packing the keys without a gain.
LEAST_ROWS = 16


@dataclass(frozen=True)
class Attention:
    """An attention fusion's computation.

    Attributes:
        scores: the first product.
        weights: what the rows are made into, the left operand of the second product.
        output: the second product.
        first, second: the problems of the products; ``first.n == second.k``.
        softmax: where the weights are a softmax: its exponentials, and their sums, which divide the output instead.
    """

    scores: Node
    weights: Node
    output: Node
    first: DotProblem
    second: DotProblem
    softmax: tuple[Node, Node] | None = None


def attention_of(graph: Graph, functions: Mapping[str, Graph]) -> Attention | None:
    """``graph`` as attention in f32; None where its products cannot, or had better not, share blocks of rows.

    ``functions`` has the bodies of its reductions.
    """
    dots = [node for node in reachable(graph.results) if node.kind == "dot_general"]
    if len(dots) != 2:
        return None
    scores, output = dots
    weights = output.operands[0]
    operands = [*scores.operands, output.operands[1]]
    if any(x.kind != "parameter" for x in operands) or weights.kind == "parameter":
        return None
    nodes = [*operands, scores, weights, output]
    if any(node.type.element.name != "f32" or not node.type.size for node in nodes):
        return None
    problems = problem_of(scores), problem_of(output)
    attention = Attention(scores, weights, output, *problems, _softmax(weights, functions))
    fits = (
        _is_worthwhile(attention)
        and _shares_rows(attention)
        and _has_rows(graph, attention)
        and _in_place(attention)
    )
    return attention if fits else None


def _real(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _is_worthwhile(attention: Attention) -> bool:
    """Whether the scores outweigh what the blocks share; layers of a network with a row computation between do not."""
    first, second = attention.first, attention.second
    outweigh = first.n >= max(first.k, second.n) and first.m >= LEAST_ROWS
    return outweigh and (first.batch > 1 or attention.softmax is not None)


def _shares_rows(attention: Attention) -> bool:
    """Whether a block of rows of the scores is one of the weights, dense in both."""
    first, second, weights = attention.first, attention.second, attention.weights
    left = second.lhs
    order = [*left.batch_dims, *left.free_dims, *left.contract_dims]
    real = [d for d in order if weights.shape[d] != 1]
    return (
        (first.batch, first.m, first.n) == (second.batch, second.m, second.k)
        and first.n == attention.scores.shape[-1] == weights.shape[-1]
        and real == sorted(real)
        and _real(attention.scores.shape) == _real(weights.shape)
        and first.lhs.free.stride is not None
        and first.lhs.contract.stride is not None
    )


def _has_rows(graph: Graph, attention: Attention) -> bool:
    """Whether the weights are computed a row of scores at a time."""
    plan = plan_rows(rows_of(graph, attention))
    first = attention.first
    return (
        plan.columns == (first.n,)
        and first.n > 1
        and math.prod(plan.rows) == first.batch * first.m
        and len(plan.per_row) == (attention.softmax is not None)
        and all(len(node.siblings) == 1 for stage in plan.stages for node in stage)
    )


def rows_of(graph: Graph, attention: Attention) -> Graph:
    """The computation from the scores to the weights alone, or to a softmax's exponentials and sums."""
    results = attention.softmax or [attention.weights]
    return dataclasses.replace(graph, results=list(results))


def _in_place(attention: Attention) -> bool:
    """Whether each score is read at its own place only, up to where rows are reduced or the weights are complete."""
    stack, seen = [attention.scores], {attention.scores}
    while stack:
        node = stack.pop()
        if node is attention.weights:
            continue
        for user in node.users:
            if user in seen or user.kind == "reduce":
                continue
            assert user.op is not None
            renamed = user.kind == "reshape" and _real(user.shape) == _real(node.shape)
            if not renamed and not hlo.has_trait(user.op, "elementwise"):
                return False
            seen.add(user)
            stack.append(user)
    return attention.weights in seen and attention.weights.users == [attention.output]


def _softmax(weights: Node, functions: Mapping[str, Graph]) -> tuple[Node, Node] | None:
    """The exponentials and their sum, if ``weights`` is their quotient and a row's maximum was taken off before."""
    if weights.kind != "divide":
        return None
    exponential, divisor = weights.operands
    shifted = exponential.operands[0] if exponential.kind == "exponential" else None
    if shifted is None or shifted.kind != "subtract":
        return None
    total = _row_value(divisor, exponential, "add", functions)
    top = _row_value(shifted.operands[1], shifted.operands[0], "maximum", functions)
    return None if total is None or top is None else (exponential, total)


def _row_value(
    node: Node, elements: Node, body: str, functions: Mapping[str, Graph]
) -> Node | None:
    """The reduction by ``body`` of the rows of ``elements`` that ``node`` spreads over them again."""
    while node.kind in ("reshape", "broadcast_in_dim"):
        operand = node.operands[0]
        if node.kind == "broadcast_in_dim":
            real = [
                d
                for d, size in zip(node.dims("dimensions"), operand.shape, strict=True)
                if size != 1
            ]
            kept = [d for d, size in enumerate(node.shape[:-1]) if size != 1]
            if operand.type.size == node.type.size or real != kept:
                return None
        elif _real(operand.shape) != _real(node.shape):
            return None
        node = operand
    if node.kind != "reduce" or node.operands[0] is not elements:
        return None
    results = functions[node.symbol("to_apply")].results
    return node if [r.kind for r in results] == [body] else None
