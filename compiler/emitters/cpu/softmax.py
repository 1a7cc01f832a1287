# SPDX-License-Identifier: Apache-2.0
"""What the rows of a softmax, e^(x - max x) by their sum, permit that rows in general do not.

*The maximum.* If an element is NaN, so are its exponential, the sum and every quotient (the logarithm of the sum, too).
Where nothing else reads the maximum it need not notice NaN (:func:`unordered`), which takes one instruction an element.

*Exponentials.* The least element, found on the same way, tells whether any of them comes near zero. Mostly none does,
and :class:`PowerPass`, which computes and adds them by vectors, need not watch for that.

*Quotients.* With r = 1 / d, q = e r and e - q d, which a fused multiply-add gives exactly, q + (e - q d) r rounds to
the quotient e / d rounded correctly. That is Markstein's theorem where q is off by less than a place. It is off by
1.5 at most here, and the theorem's argument still holds: with u = 2^-24 and e, d from 1 to 2, the corrected sum is
within 3 u² of e / d unless the first error is within 3 u² of 1.5 places, which takes e and d within 6 u of 2, three
pairs, tried. Nearer errors meet a midpoint between numbers only at half a place, where the sum errs by d u² / 4 and e
/ d lies u² / d off. Nothing may underflow: e must be 2^-100 or larger (or +0) and the sum from 1 to 2^20. The former
holds where the largest x of the row is at most 69 above the least; rows of which it is not known are divided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector
from mlir.dialects import math as mlir_math

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import reachable
from gristmill.compiler.emitters.cpu.reduction import starts_at_minus_infinity
from gristmill.compiler.emitters.elemental import Elemental, Source
from gristmill.compiler.emitters.elemental.contraction import simple_reducer
from gristmill.compiler.emitters.elemental.ranges import bound_of
from gristmill.compiler.emitters.math import BOUNDED_EXPONENTIAL, NONPOSITIVE_EXPONENTIAL
from gristmill.compiler.emitters.math import emit as emit_function
from gristmill.compiler.graph import Graph, Node
from gristmill.compiler.target import Target
from gristmill.runtime.types import element_type

_F32 = element_type("f32")

#: Largest difference of two x in a row: e^-69 exceeds 2^-100. Bounds of the sum.
_MOST_APART, _SUMS = 69.0, (1.0, 2.0**20)

#: Blocks of a row, at least, for a :class:`PowerPass`: a shorter one does not repay two forms of the pass.
LEAST_BLOCKS = 4

#: Operations whose result, a float, is NaN where an operand is.
_LET_NAN_THROUGH = frozenset(
    "add subtract multiply divide negate exponential log log_plus_one broadcast_in_dim reshape convert".split()
)


@dataclass(frozen=True)
class PowerSum:
    """A sum of each row's e^(x - max x).

    Attributes:
        total: the reduction.
        power: what it adds.
        top: what was taken off each x, the same all along a row.
        largest: the reduction that found it.
        below: whether no x is above ``top``, as it may be where that is chosen by what the maximum is.
    """

    total: Node
    power: Node
    top: Node
    largest: Node
    below: bool

    @property
    def x(self) -> Node:
        """What the exponentials are of."""
        return self.largest.operands[0]


@dataclass(frozen=True)
class Softmax:
    """The exponentials of each row by a number.

    Attributes:
        quotient: the division.
        top, largest: as in :class:`PowerSum`.
        total: the reduction that adds the exponentials, if that is what they are divided by.
    """

    quotient: Node
    top: Node
    largest: Node
    total: Node | None


def find_sums(results: Sequence[Node], rank: int, functions: Mapping[str, Graph]) -> list[PowerSum]:
    """Each sum of exponentials among what ``results`` need; rows are the first ``rank`` dimensions."""
    found: list[PowerSum] = []
    for node in reachable(results):
        if node.kind != "reduce" or len(node.siblings) != 1 or node.type.element != _F32:
            continue
        power, reducer = node.operands[0], functions[node.symbol("to_apply")]
        bound = _bound(power, rank, functions)
        reference = bound or _reference(power, rank, functions)
        if reference and simple_reducer(reducer) == "add" and _is_of_rows(node, rank):
            top, largest = reference
            if starts_at_minus_infinity(largest):
                found.append(PowerSum(node, power, top, largest, bound is not None))
    return found


def find(
    roots: Sequence[Node], shape: Sequence[int], rank: int, functions: Mapping[str, Graph]
) -> list[Softmax]:
    """Each softmax among what ``roots`` need; rows are the first ``rank`` dimensions of ``shape``."""
    found: list[Softmax] = []
    sums = find_sums(roots, rank, functions)
    for node in reachable(roots):
        if node.kind != "divide" or node.type.element != _F32 or node.shape != tuple(shape):
            continue
        power, divisor = node.operands
        bound = _bound(power, rank, functions)
        if bound and _is_same_for_row(divisor, rank):
            number = _spread_by(divisor)
            totals = [x.total for x in sums if x.total is number and x.power is power]
            found.append(Softmax(node, *bound, totals[0] if totals else None))
    return found


def _shift(power: Node, rank: int) -> tuple[Node, Node] | None:
    """The x and the number, the same all along a row, of e^(x - number)."""
    shifted = power.operands[0] if power.kind == "exponential" else None
    if shifted is None or shifted.kind != "subtract":
        return None
    x, number = shifted.operands
    return (x, number) if _is_same_for_row(number, rank) else None


def _bound(power: Node, rank: int, functions: Mapping[str, Graph]) -> tuple[Node, Node] | None:
    """What ``power``, e^(x - max x), takes off each x, and the reduction that finds it."""
    shift = _shift(power, rank)
    largest = bound_of(*shift, functions) if shift else None
    return (shift[1], largest) if shift and largest else None


def _reference(power: Node, rank: int, functions: Mapping[str, Graph]) -> tuple[Node, Node] | None:
    """As :func:`_bound`, where what is taken off depends on the maximum in any way."""
    shift = _shift(power, rank)
    if shift is None:
        return None
    x, top = shift
    maxima = [
        node
        for node in reachable([top])
        if node.kind == "reduce"
        and node.operands[0] is x
        and len(node.siblings) == 1
        and _is_of_rows(node, rank)
        and simple_reducer(functions[node.symbol("to_apply")]) == "maximum"
    ]
    return (top, maxima[0]) if len(maxima) == 1 else None


def _is_of_rows(reduction: Node, rank: int) -> bool:
    return reduction.dims("dimensions") == list(range(rank, reduction.operands[0].type.rank))


def _is_same_for_row(node: Node, rank: int) -> bool:
    """Whether ``node`` spreads values of the first ``rank`` dimensions over the others."""
    if node.kind != "broadcast_in_dim":
        return False
    operand = node.operands[0]
    places = zip(node.dims("dimensions"), operand.shape, strict=True)
    return all(place < rank or size == 1 for place, size in places)


def _spread_by(node: Node) -> Node:
    """The values that ``node`` spreads."""
    while node.kind in ("broadcast_in_dim", "reshape"):
        node = node.operands[0]
    return node


def unordered(sums: Sequence[PowerSum], results: Sequence[Node]) -> set[Node]:
    """Maxima that nothing reads if an element is NaN: then all ``results`` that need one are NaN, as the sum is."""
    nodes = reachable(results)
    found: set[Node] = set()
    for power_sum in sums:
        needing, nan = {power_sum.largest}, {power_sum.total}
        for node in nodes:
            if any(x in needing for x in node.operands):
                needing.add(node)
            through = node.kind in _LET_NAN_THROUGH and node.type.element.is_float
            if through and any(x in nan for x in node.operands):
                nan.add(node)
        if all(node in nan for node in results if node in needing):
            found.add(power_sum.largest)
    return found


def block_of(target: Target) -> int:
    """Elements whose exponentials are computed side by side."""
    return 4 * target.lanes(4)


@dataclass(frozen=True)
class PowerPass:
    """How the exponentials of a row are computed and added by vectors.

    Attributes:
        x: memref of one dimension with the row's elements from ``start`` on.
        start: see ``x``.
        powers: memref that takes the exponentials, from 0 on, if they are needed again.
        width: elements of a row, a block at least.
        block: elements computed side by side.
        below: as in :class:`PowerSum`.
        ahead: how many elements further on cache lines of ``x`` are asked for; 0 for none.
    """

    x: ir.Value
    start: Index
    powers: ir.Value | None
    width: int
    block: int
    below: bool
    ahead: int

    def emit(self, top: ir.Value, largest: ir.Value, least: ir.Value) -> ir.Value:
        """The sum of e^(x - ``top``), where x is from ``least`` to ``largest``."""
        apart = arith.SubFOp(top, least).result
        moderate = _holds(arith.CmpFPredicate.OLE, apart, _MOST_APART)
        if not self.below:
            below = arith.CmpFOp(arith.CmpFPredicate.OLE, largest, top).result
            moderate = arith.AndIOp(moderate, below).result
        otherwise = NONPOSITIVE_EXPONENTIAL if self.below else "exponential"
        (total,) = build.if_else(
            moderate,
            [top.type],
            lambda: [self._sum(top, BOUNDED_EXPONENTIAL)],
            lambda: [self._sum(top, otherwise)],
        )
        return total

    def _sum(self, top: ir.Value, function: str) -> ir.Value:
        kind, half = (ir.VectorType.get([n], top.type) for n in (self.block, self.block // 2))
        tops = vector.BroadcastOp(kind, top).result
        nothing, zeros = (
            vector.BroadcastOp(x, build.constant(_F32, 0)).result for x in (kind, half)
        )

        def step(at: Index, sums: list[ir.Value], again: int = 0) -> list[ir.Value]:
            power = self._block(at, tops, function)
            if again:
                bits = ir.VectorType.get([self.block], ir.IntegerType.get_signless(1))
                flags = [ir.BoolAttr.get(place >= again) for place in range(self.block)]
                fresh = ir.DenseElementsAttr.get(flags, bits)
                power = arith.SelectOp(arith.ConstantOp(bits, fresh), power, nothing).result
            # Half as many sums as exponentials, for registers.
            low, high = (
                vector.ExtractStridedSliceOp(half, power, [first], [self.block // 2], [1]).result
                for first in (0, self.block // 2)
            )
            return [arith.AddFOp(sums[0], arith.AddFOp(low, high).result).result]

        rest = self.width % self.block
        sums = build.for_loop(0, self.width - rest, step, [zeros], step=self.block)
        if rest:  # a block that begins earlier
            sums = step(self.width - self.block, sums, self.block - rest)
        flags = arith.FastMathFlags.reassoc
        return vector.ReductionOp(
            top.type, vector.CombiningKind.ADD, sums[0], fastmath=flags
        ).result

    def _block(self, at: Index, tops: ir.Value, function: str) -> ir.Value:
        """The exponentials of the block at ``at``, stored if they are needed again."""
        place = build.add(self.start, at)
        for line in range(0, self.block if self.ahead else 0, build.LINE_BYTES // 4):
            build.prefetch(self.x, build.add(place, self.ahead + line))
        x = vector.LoadOp(tops.type, self.x, [build.index_value(place)]).result
        power = emit_function(function, [arith.SubFOp(x, tops).result])
        if self.powers is not None:
            vector.StoreOp(power, self.powers, [build.index_value(at)])
        return power


@dataclass(frozen=True)
class Divisor:
    """What the powers of a row are divided by, scalar or spread over vectors.

    Attributes:
        number: the sum.
        reciprocal: 1 / ``number``.
        exact: whether the correction of this module gives the quotients, as ``i1``.
    """

    number: ir.Value
    reciprocal: ir.Value
    exact: ir.Value

    def divide(self, dividend: ir.Value) -> ir.Value:
        """``dividend / number``, where that is exact, by the formula of this module."""
        near = arith.MulFOp(dividend, self.reciprocal).result
        opposite = arith.NegFOp(near).result
        rest = mlir_math.FmaOp(opposite, self.number, dividend).result
        return mlir_math.FmaOp(rest, self.reciprocal, near).result

    def spread(self, kind: ir.Type) -> Divisor:
        """The same for vectors of type ``kind``."""
        number, reciprocal = (
            vector.BroadcastOp(kind, x).result for x in (self.number, self.reciprocal)
        )
        return Divisor(number, reciprocal, self.exact)


def divisor_of(total: ir.Value, top: ir.Value, least: ir.Value) -> Divisor:
    """The divisor of a row whose exponentials, of x - ``top`` with ``least`` for the least x, add up to ``total``."""
    apart = arith.SubFOp(top, least).result
    exact = _holds(arith.CmpFPredicate.OLE, apart, _MOST_APART)
    for predicate, bound in zip(
        (arith.CmpFPredicate.OGE, arith.CmpFPredicate.OLE), _SUMS, strict=True
    ):
        exact = arith.AndIOp(exact, _holds(predicate, total, bound)).result
    return Divisor(total, arith.DivFOp(build.constant(_F32, 1.0), total).result, exact)


def by_reciprocals(
    e: Elemental,
    softmaxes: Sequence[Softmax],
    least: Mapping[Node, ir.Value],
    first: Sequence[Index],
    emit: Callable[[], None],
) -> None:
    """What ``emit`` emits, without divisions if the row permits that.

    ``least`` are the least elements of a row by the reduction that found the largest, ``first`` the row's first index.
    """
    divisors = {
        x.quotient: divisor_of(
            e.value(x.quotient.operands[1], first), e.value(x.top, first), least[x.largest]
        )
        for x in softmaxes
        if x.largest in least
    }
    if not divisors:
        emit()
        return

    def multiplied() -> list[ir.Value]:
        with e.bound({node: _source(e, node, divisor) for node, divisor in divisors.items()}):
            emit()
        return []

    def divided() -> list[ir.Value]:
        with e.scope():
            emit()
        return []

    exact = functools.reduce(
        lambda a, b: arith.AndIOp(a, b).result, (x.exact for x in divisors.values())
    )
    build.if_else(exact, [], multiplied, divided)


def _holds(predicate: arith.CmpFPredicate, value: ir.Value, bound: float) -> ir.Value:
    return arith.CmpFOp(predicate, value, build.constant(_F32, bound)).result


def _source(e: Elemental, quotient: Node, divisor: Divisor) -> Source:
    return lambda index: divisor.divide(e.value(quotient.operands[0], index))
