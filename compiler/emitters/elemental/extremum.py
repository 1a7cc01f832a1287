# SPDX-License-Identifier: Apache-2.0
"""Recognising the reduction bodies of argmax and argmin.

Frameworks write them as a general body over pairs of a value and its position: comparisons, logic and selects, in one
of many forms. A body of those operations alone, that compares values with values and positions with positions, can
only depend on how the two sides are ordered; so evaluating it once for each order says all about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gristmill.compiler.emitters.elemental.commutation import evaluated
from gristmill.compiler.graph import Graph, Node

_LOGIC = frozenset(("and", "or", "xor", "not"))
_CHOICE = frozenset(("select", "maximum", "minimum"))


@dataclass(frozen=True)
class Extremum:
    """Which of the elements a reduction over (value, position) picks, none of them being NaN.

    Attributes:
        largest: whether the largest value, else the smallest.
        first: whether the first of equal values, else the last.
    """

    largest: bool
    first: bool


def extremum_of(body: Graph) -> Extremum | None:
    """What ``body`` picks when positions ascend, or ``None`` if it is no argmax or argmin."""
    if len(body.parameters) != 4 or len(body.results) != 2 or not _only_orders(body):
        return None
    values = [[0, 1, 0], [1, 0, 0]]  # less, greater, equal
    positions = [[0, 0, 0], [1, 1, 1]]
    samples = [
        np.array(data[side]).astype(body.parameters[number].type.element.dtype)
        for side in range(2)
        for number, data in ((2 * side, values), (2 * side + 1, positions))
    ]
    results = evaluated(body, samples)
    if results is None:
        return None
    value, position = (result.astype(int).tolist() for result in results)
    right_of_less, right_of_greater, right_of_equal = position
    if right_of_less == right_of_greater:
        return None
    if value != [values[side][case] for case, side in enumerate(position)]:
        return None
    return Extremum(largest=right_of_less == 1, first=right_of_equal == 0)


def _only_orders(body: Graph) -> bool:
    """Whether the results depend on nothing but the order of the two values and that of the two positions."""
    parts: dict[Node, int | None] = {p: i % 2 for i, p in enumerate(body.parameters)}
    for node in body.nodes[4:]:
        if node.kind == "compare":
            same = len({parts[operand] for operand in node.operands}) == 1
            if not same or node.string("type") == "TOTALORDER":
                return False
            parts[node] = None
        elif node.kind in _LOGIC and all(parts[operand] is None for operand in node.operands):
            parts[node] = None
        elif node.kind in _CHOICE:
            chosen = {parts[operand] for operand in node.operands[-2:]}
            if len(chosen) != 1:
                return False
            parts[node] = chosen.pop()
        elif node.kind == "constant" and node.type.element.kind == "pred":
            parts[node] = None
        else:
            return False
    return [parts[result] for result in body.results] == [0, 1]
