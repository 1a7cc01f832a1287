# SPDX-License-Identifier: Apache-2.0
"""Arguments of the logistic function that are a x + b x³ of another value x, however they are written.

The tanh form of GELU has one, x logistic(2 sqrt(2/π) (x + 0.044715 x³)) after the pass ``rewrite-sigmoids``. Polynomial
and function together take fewer operations, and roundings, than one after the other. As x and x³ have factors of one
sign the sum does not cancel, and what its coefficients are rounded by is a place of it at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gristmill.compiler.graph import Node, is_uniform

#: Operations that are followed towards the operands.
_DEPTH = 6

#: Sizes of coefficients from which on, and up to which, nothing overflows or underflows that matters.
_LEAST, _MOST = 2.0**-30, 2.0**30

#: The x of a polynomial, if it has any, and its coefficients from the constant term on.
_Polynomial = tuple[Node | None, list[float]]


@dataclass(frozen=True)
class Cubic:
    """linear x + cubic x³.

    Attributes:
        variable: x, of the shape of the sum.
        linear, cubic: of one sign, and not 0.
    """

    variable: Node
    linear: float
    cubic: float


def find(node: Node, is_at_hand: Callable[[Node], bool]) -> Cubic | None:
    """``node`` as a :class:`Cubic`, if it is one in ``f32``; values that are at hand are not taken apart."""
    if node.type.element.name != "f32":
        return None
    variable, coefficients = _polynomial(node, is_at_hand, _DEPTH)
    if variable is None or len(coefficients) != 4:
        return None
    constant, linear, square, cubic = coefficients
    in_range = all(_LEAST <= abs(x) <= _MOST for x in (linear, cubic))
    fits = in_range and linear * cubic > 0 and constant == square == 0
    return Cubic(variable, linear, cubic) if fits else None


def _polynomial(node: Node, is_at_hand: Callable[[Node], bool], depth: int) -> _Polynomial:
    """``node`` as a polynomial of degree 3 at most; it is x itself where it is not seen to be another."""
    constant = _constant(node)
    if constant is not None:
        return None, [constant]
    if node.kind in ("add", "multiply") and depth and not is_at_hand(node):
        (x, a), (y, b) = (_polynomial(operand, is_at_hand, depth - 1) for operand in node.operands)
        if x is None or y is None or x is y:
            result = _sum(a, b) if node.kind == "add" else _product(a, b)
            if len(result) <= 4:
                return x or y, result
    return node, [0.0, 1.0]


def _sum(a: list[float], b: list[float]) -> list[float]:
    size = max(len(a), len(b))
    padded = [[*x, *[0.0] * (size - len(x))] for x in (a, b)]
    return [x + y for x, y in zip(*padded, strict=True)]


def _product(a: list[float], b: list[float]) -> list[float]:
    result = [0.0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            result[i + j] += x * y
    return result


def _constant(node: Node) -> float | None:
    """The one number that the elements of a constant are."""
    while node.kind == "broadcast_in_dim":
        node = node.operands[0]
    data = node.constant
    return float(data.flat[0]) if data is not None and is_uniform(data) else None
