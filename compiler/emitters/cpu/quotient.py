# SPDX-License-Identifier: Apache-2.0
"""A softmax's quotients: the elements of a row, e^(x - max x), by one number, their sum, without dividing.

With r = 1 / d, q = e r and e - q d, which a fused multiply-add gives exactly, q + (e - q d) r rounds to the quotient
e / d rounded correctly. That is Markstein's theorem where q is off by less than a place. It is off by 1.5 at most here,
and the theorem's argument still holds: with u = 2^-24 and e, d from 1 to 2, the corrected sum is within 3 u² of e / d
unless the first error is within 3 u² of 1.5 places, which takes e and d within 6 u of 2, three pairs, tried. Nearer
errors meet a midpoint between numbers only at half a place, where the sum errs by d u² / 4 and e / d lies u² / d off.

Nothing may underflow: e must be 2^-100 or larger (or +0) and the sum from 1 to 2^20. The former holds where the
largest x of the row is at most 69 above the least; rows of which it is not known are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as mlir_math

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import reachable
from gristmill.compiler.emitters.elemental import Elemental, Source
from gristmill.compiler.emitters.elemental.ranges import bound_of
from gristmill.compiler.graph import Graph, Node
from gristmill.runtime.types import element_type

_F32 = element_type("f32")

#: Largest difference of two x in a row: e^-69 exceeds 2^-100. Bounds of the sum.
_MOST_APART, _SUMS = 69.0, (1.0, 2.0**20)


@dataclass(frozen=True)
class Quotient:
    """One such division.

    Attributes:
        node: the quotient.
        top: what was taken off each x, the same all along a row.
        largest: the reduction that found it.
    """

    node: Node
    top: Node
    largest: Node


def find(
    roots: Sequence[Node], shape: Sequence[int], rank: int, functions: Mapping[str, Graph]
) -> list[Quotient]:
    """The divisions of a softmax among what ``roots`` need; rows are the first ``rank`` dimensions of ``shape``."""
    found: list[Quotient] = []
    for node in reachable(roots):
        if node.kind != "divide" or node.type.element != _F32 or node.shape != tuple(shape):
            continue
        power, total = node.operands
        shifted = power.operands[0] if power.kind == "exponential" else None
        if shifted is None or shifted.kind != "subtract" or not _is_same_for_row(total, rank):
            continue
        x, top = shifted.operands
        largest = bound_of(x, top, functions)
        if largest is not None and _is_same_for_row(top, rank):
            found.append(Quotient(node, top, largest))
    return found


def _is_same_for_row(node: Node, rank: int) -> bool:
    """Whether ``node`` spreads values of the first ``rank`` dimensions over the others."""
    if node.kind != "broadcast_in_dim":
        return False
    operand = node.operands[0]
    places = zip(node.dims("dimensions"), operand.shape, strict=True)
    return all(place < rank or size == 1 for place, size in places)


def by_reciprocals(
    e: Elemental,
    quotients: Sequence[Quotient],
    least: Mapping[Node, ir.Value],
    first: Sequence[Index],
    emit: Callable[[], None],
) -> None:
    """What ``emit`` emits, without divisions if the row permits that.

    ``least`` are the least elements of a row by the reduction that found the largest, ``first`` the row's first index.
    """
    known = [x for x in quotients if x.largest in least]
    if not known:
        emit()
        return
    allowed: ir.Value | None = None
    sources: dict[Node, Source] = {}
    for quotient in known:
        total = e.value(quotient.node.operands[1], first)
        apart = arith.SubFOp(e.value(quotient.top, first), least[quotient.largest]).result
        for value, bound, above in (
            (apart, _MOST_APART, False),
            (total, _SUMS[0], True),
            (total, _SUMS[1], False),
        ):
            kind = arith.CmpFPredicate.OGE if above else arith.CmpFPredicate.OLE
            holds = arith.CmpFOp(kind, value, build.constant(_F32, bound)).result
            allowed = holds if allowed is None else arith.AndIOp(allowed, holds).result
        reciprocal = arith.DivFOp(build.constant(_F32, 1.0), total).result
        sources[quotient.node] = _source(e, quotient.node.operands[0], total, reciprocal)

    def multiplied() -> list[ir.Value]:
        with e.bound(sources):
            emit()
        return []

    def divided() -> list[ir.Value]:
        with e.scope():
            emit()
        return []

    assert allowed is not None
    build.if_else(allowed, [], multiplied, divided)


def _source(e: Elemental, dividend: Node, divisor: ir.Value, reciprocal: ir.Value) -> Source:
    """``dividend / divisor`` by the formula of this module."""

    def source(index: Sequence[Index]) -> ir.Value:
        value = e.value(dividend, index)
        near = arith.MulFOp(value, reciprocal).result
        opposite = arith.NegFOp(near).result
        rest = mlir_math.FmaOp(opposite, divisor, value).result
        return mlir_math.FmaOp(rest, reciprocal, near).result

    return source
