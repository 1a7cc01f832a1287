# SPDX-License-Identifier: Apache-2.0
"""Which values a computation shows to be never positive, so that cheaper code computes what depends on them.

NaN counts as neither sign. What cannot be shown is false: these functions look at a few operations, not at data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gristmill.compiler.graph import Graph, Node, is_uniform

#: Operations that are followed towards the operands.
_DEPTH = 6

#: For each dimension of a value the dimension of another that it is read at; None where it has one element.
_Places = list["int | None"]


def never_positive(node: Node, functions: Mapping[str, Graph], depth: int = _DEPTH) -> bool:
    """Whether no element of ``node``, floats, is greater than 0."""
    if not node.type.element.is_float or depth == 0:
        return False

    def never(operand: Node) -> bool:
        return never_positive(operand, functions, depth - 1)

    operands = node.operands
    if node.kind == "subtract":
        if bound_of(operands[0], operands[1], functions) is not None:
            return True
        return never(operands[0]) and _never_negative(operands[1])
    if node.kind == "negate":
        return _never_negative(operands[0])
    if node.kind in ("multiply", "divide"):
        one, other = operands
        commuted = node.kind == "multiply" and never(other) and _never_negative(one)
        return commuted or (never(one) and _never_negative(other))
    if node.kind == "minimum":
        return any(map(never, operands))
    if node.kind in ("add", "maximum"):
        return all(map(never, operands))
    if node.kind == "select":
        return all(map(never, operands[1:]))
    if node.kind in ("broadcast_in_dim", "reshape", "convert"):
        return never(operands[0])
    return node.kind == "constant" and _uniform(node) <= 0


def _never_negative(node: Node) -> bool:
    """Whether no element of ``node`` is less than 0, nor -0."""
    if node.kind == "broadcast_in_dim":
        return _never_negative(node.operands[0])
    if node.kind == "multiply":
        return node.operands[0] is node.operands[1]
    if node.kind == "constant":
        return math.copysign(1.0, _uniform(node)) > 0 and _uniform(node) >= 0
    return node.kind in ("abs", "exponential", "logistic")


def _uniform(node: Node) -> float:
    """The one number that the elements of a constant are; NaN if they differ or are not at hand."""
    data = node.constant
    return math.nan if data is None or not is_uniform(data) else float(data.flat[0])


def bound_of(elements: Node, node: Node, functions: Mapping[str, Graph]) -> Node | None:
    """The maximum of ``elements`` that ``node`` spreads over them again: at each index it is NaN or at least theirs."""
    places: _Places = list(range(node.type.rank))
    while node.kind in ("reshape", "broadcast_in_dim", "maximum"):
        if node.kind == "maximum":
            found = [
                x for x in node.operands if x.kind in ("reduce", "reshape", "broadcast_in_dim")
            ]
            if len(found) != 1:
                return None
            node = found[0]
            continue
        operand = node.operands[0]
        moved = _spread(node, operand, places)
        if moved is None:
            return None
        node, places = operand, moved
    if node.kind != "reduce" or len(node.siblings) != 1 or node.operands[0] is not elements:
        return None
    reduced = node.dims("dimensions")
    kept = [d for d in range(elements.type.rank) if d not in reduced]
    in_place = all(p is None or p == d for p, d in zip(places, kept, strict=True))
    return node if in_place and _is_maximum(functions[node.symbol("to_apply")]) else None


def _is_maximum(body: Graph) -> bool:
    """Whether the body of a reduction is the maximum of its two parameters."""
    (result, *others), parameters = body.results, set(body.parameters)
    return not others and result.kind == "maximum" and set(result.operands) == parameters


def _spread(node: Node, operand: Node, places: _Places) -> _Places | None:
    """The places of ``operand``, which ``node`` spreads or gives other unit dimensions."""
    if node.kind == "broadcast_in_dim":
        numbers = node.dims("dimensions")
        return [
            None if size == 1 else places[number]
            for size, number in zip(operand.shape, numbers, strict=True)
        ]
    real = [(p, size) for p, size in zip(places, node.shape, strict=True) if size != 1]
    if [size for _, size in real] != [size for size in operand.shape if size != 1]:
        return None
    rest = iter(real)
    return [None if size == 1 else next(rest)[0] for size in operand.shape]
