# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a complex number's absolute value with a constant, as those of an escape-time fractal.

What ``|z| < c`` says of an absolute value rounded to ``f32`` is what ``|z|² < m²`` says, where m lies half way between
c and the number below: no root is taken. |z|² is as good as exact in ``f64``, and so is m², of 50 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gristmill.compiler.graph import Node, is_uniform

#: Sizes of constants from which on, and up to which, no bound is subnormal or infinite.
_LEAST, _MOST = 2.0**-100, 2.0**100


@dataclass(frozen=True)
class Bound:
    """Where the absolute value of ``number`` is at most that whose square is ``square``.

    Attributes:
        number: a node of ``complex<f32>``.
        square: the bound.
        inclusive: whether numbers of this square are within.
    """

    number: Node
    square: float
    inclusive: bool


def find(node: Node, is_at_hand: Callable[[Node], bool]) -> Bound | None:
    """The comparison ``node`` as a :class:`Bound`, if it is one; an absolute value that is at hand is not taken apart.

    Only ``<`` and ``<=``, which are false for infinities and NaN alike.
    """
    magnitude, direction = node.operands[0], node.string("direction")
    if magnitude.kind != "abs" or magnitude.operands[0].type.element.name != "complex<f32>":
        return None
    constant = _constant(node.operands[1])
    if direction not in ("LT", "LE") or is_at_hand(magnitude) or not _LEAST <= constant <= _MOST:
        return None
    last = np.float32(constant)
    last = np.nextafter(last, np.float32(0)) if direction == "LT" else last
    middle = (float(last) + float(np.nextafter(last, np.float32(np.inf)))) / 2
    return Bound(magnitude.operands[0], middle * middle, last.view(np.uint32) % 2 == 0)


def _constant(node: Node) -> float:
    """The one number that the elements of a constant are; NaN if they differ or are not known."""
    while node.kind == "broadcast_in_dim":
        node = node.operands[0]
    data = node.constant
    return float(data.flat[0]) if data is not None and is_uniform(data) else float("nan")
