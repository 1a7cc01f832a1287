# SPDX-License-Identifier: Apache-2.0
"""Accumulating one or more reductions in one pass over a range of elements.

Reductions with a simple float or integer body are carried in registers: LLVM vectorises and interleaves the loop (adds
carry ``reassoc``); on x86 the largest or smallest ``f32`` is found among the bits of the numbers, see :class:`Extreme`.
The argmax or argmin of a row is searched by vectors (:mod:`.extremum`). Another body that LLVM
cannot recognise is accumulated in lanes: lane *l* of a small array takes elements *l*, *l* + L, *l* + 2 L, … so that
neighbouring lanes run the body side by side as vectors; the lanes are combined at the end. StableHLO leaves the
grouping of a reduction to the implementation but not the order of the elements, so lanes are for bodies that commute.
A body that does so without NaN only runs over the row again, in order, when there was one; so does an argmax.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypedDict

from mlir import ir
from mlir.dialects import arith, llvm

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import extremum
from gristmill.compiler.emitters.cpu.extremum import Elements
from gristmill.compiler.emitters.cpu.frame import side_by_side
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.commutation import Order, order_of
from gristmill.compiler.emitters.elemental.contraction import (
    Reducer,
    loop_nest,
    reduce_operands,
    reducer_of,
    simple_reducer,
)
from gristmill.compiler.graph import Node
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, element_type

_F32 = element_type("f32")

#: Flags of a maximum or minimum whose value nobody reads if an element is NaN; :func:`settled` takes it.
NO_NAN = llvm.FastmathFlags.nnan | llvm.FastmathFlags.nsz

#: Turns of a loop times values it carries, at most, where LLVM may unroll it whole.
_SHORT = 128

#: Lanes of a reduction that is not carried in registers.
LANES = 32


def uses_lanes(e: Elemental, node: Node, columns: Sequence[int]) -> bool:
    """Whether the reduction accumulates in lanes."""
    body = e.functions[node.symbol("to_apply")]
    if simple_reducer(body) is not None:
        return False
    long = len(columns) == 1 and columns[0] >= 2 * LANES
    return long and order_of(body, len(node.siblings)) is not Order.GIVEN


def lane_bytes(node: Node) -> int:
    """Scratch bytes that the lanes of ``node``, or a block of an argmax, may need."""
    inputs, _, _ = reduce_operands(node)
    nbytes = sum(-(-LANES * max(4, x.type.element.nbytes) // 64) * 64 for x in inputs)
    return nbytes if len(inputs) == 1 else max(nbytes, extremum.BLOCK_BYTES)


@dataclass
class Accumulation:
    """One ``reduce`` op being accumulated for one row.

    Attributes:
        e: the computation.
        node: the reduce.
        row: the leading index of the elements it reads.
    """

    e: Elemental
    node: Node
    row: Sequence[Index]

    @property
    def reducer(self) -> Reducer:
        """The body."""
        return reducer_of(self.e, self.node)

    def initial(self) -> list[ir.Value]:
        """Initial accumulators."""
        _, initial, _ = reduce_operands(self.node)
        return self.reducer.enter([self.e.value(x, ()) for x in initial])

    def elements(self, column: Sequence[Index]) -> list[ir.Value]:
        """The elements at ``column`` as accumulators."""
        inputs, _, _ = reduce_operands(self.node)
        return self.reducer.enter([self.e.value(x, [*self.row, *column]) for x in inputs])

    def step(self, values: Sequence[ir.Value], column: Sequence[Index]) -> list[ir.Value]:
        """Carried values after the elements at ``column``."""
        return self.reducer.combine(values, self.elements(column))

    def finish(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Accumulators, of carried values."""
        return list(values)


class Extreme(Accumulation):
    """``maximum`` or ``minimum`` of ``f32``, NaN and signed zeros included, as three integer reductions.

    An x86 ``maximum`` that lets NaN through and tells zeros apart is six instructions in a chain; a minimum or maximum
    of integers is one. The bits of non-negative numbers are ordered as the numbers are, those of negative ones the
    other way round, and NaN lies beyond infinity. So the largest number is the signed maximum of the bits where some
    number is not negative, else their unsigned minimum; the smallest is the unsigned maximum where some number is
    negative, else the unsigned minimum.
    """

    _INFINITY, _MINUS_INFINITY = 0x7F800000, 0xFF800000

    #: The other extreme of the elements alone, of a maximum from -inf on; anything if one is NaN.
    opposite: ir.Value | None = None

    def initial(self) -> list[ir.Value]:
        """Signed maximum, unsigned maximum, unsigned minimum of the bits."""
        bits = _bits(super().initial()[0])
        return [bits, _integer(0) if self.is_from_least() else bits, bits]

    def is_from_least(self) -> bool:
        """Whether this is a maximum from -inf on: then the unsigned maximum is for NaN alone, and may start at 0."""
        return self.is_maximum() and starts_at_minus_infinity(self.node)

    def is_maximum(self) -> bool:
        """Whether the largest is sought, not the smallest."""
        return simple_reducer(self.e.functions[self.node.symbol("to_apply")]) == "maximum"

    def step(self, values: Sequence[ir.Value], column: Sequence[Index]) -> list[ir.Value]:
        """Carried values after the element at ``column``."""
        bits = _bits(self.elements(column)[0])
        operations = (arith.MaxSIOp, arith.MaxUIOp, arith.MinUIOp)
        return [op(value, bits).result for op, value in zip(operations, values, strict=True)]

    def finish(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The extreme number."""
        signed, unsigned, least = values
        lowest = arith.SelectOp(build.less(unsigned, _integer(0)), unsigned, least)
        found = lowest
        if self.is_maximum():
            found = arith.SelectOp(build.at_least(signed, _integer(0)), signed, least)
        above, below = arith.CmpIPredicate.sgt, arith.CmpIPredicate.ugt
        nan = arith.OrIOp(
            arith.CmpIOp(above, signed, _integer(self._INFINITY)).result,
            arith.CmpIOp(below, unsigned, _integer(self._MINUS_INFINITY)).result,
        )
        f32 = ir.F32Type.get()
        if self.is_from_least():
            self.opposite = arith.BitcastOp(f32, lowest.result).result
        number = arith.BitcastOp(f32, found.result).result
        return [arith.SelectOp(nan.result, build.constant(_F32, math.nan), number).result]


class Bounds(Extreme):
    """The ``maximum`` of ``f32`` from -inf on where nobody reads it if an element is NaN, and the minimum beside it.

    Two instructions an element instead of :class:`Extreme`'s three. With a NaN, which the flag denies, both are some
    number or other.
    """

    def initial(self) -> list[ir.Value]:
        """Largest and least."""
        return [build.constant(_F32, -math.inf), build.constant(_F32, math.inf)]

    def step(self, values: Sequence[ir.Value], column: Sequence[Index]) -> list[ir.Value]:
        """Carried values after the element at ``column``."""
        (element,) = self.elements(column)
        return [
            op(value, element, fastmathFlags=NO_NAN).result
            for op, value in zip((llvm.MaxNumOp, llvm.MinNumOp), values, strict=True)
        ]

    def finish(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The largest."""
        largest, self.opposite = map(settled, values)
        return [largest]


def settled(number: ir.Value) -> ir.Value:
    """``number``, whatever it is if LLVM may take it for anything.

    ``freeze`` would do, but LLVM moves it into loops and takes the flags off what it meets there.
    """
    return llvm.InlineAsmOp(number.type, [number], "", "=x,0").result


def starts_at_minus_infinity(node: Node) -> bool:
    """Whether the initial value of the reduction ``node``, of floats, is the constant -inf."""
    start = node.operands[1].constant
    return start is not None and float(start.flat[0]) == -math.inf


def _bits(number: ir.Value) -> ir.Value:
    return arith.BitcastOp(ir.IntegerType.get_signless(32), number).result


def _integer(value: int) -> ir.Value:
    return build.constant(element_type("i32"), value)


def accumulation(
    e: Elemental, node: Node, row: Sequence[Index], target: Target, unordered: Collection[Node] = ()
) -> Accumulation:
    """How ``node`` is accumulated on ``target``; nobody reads those that are ``unordered`` if an element is NaN."""
    plain = Accumulation(e, node, row)
    extreme = simple_reducer(e.functions[node.symbol("to_apply")]) in ("maximum", "minimum")
    single = plain.reducer.accumulators[0] == _F32
    # Elsewhere (AArch64) a maximum with NaN is one instruction.
    if not (extreme and single and target.triple.startswith("x86_64")):
        return plain
    bounds = Bounds(e, node, row)
    return bounds if node in unordered and bounds.is_from_least() else Extreme(e, node, row)


def with_initial(
    e: Elemental, node: Node, row: Sequence[Index], target: Target, value: ir.Value
) -> ir.Value:
    """The result of the reduction ``node`` whose elements combine to ``value``: its initial value joins in."""
    group = accumulation(e, node, row, target)
    values = group.finish(group.reducer.combine(group.initial(), [value]))
    return group.reducer.leave(values)[0]


def accumulate(
    e: Elemental,
    columns: Sequence[int],
    groups: Sequence[Accumulation],
    visit: Callable[[Sequence[Index]], None],
    arguments: Sequence[ir.Value],
    scratch: ir.Value,
    scratch_offset: int,
    target: Target,
    asked: Collection[Node] = (),
    merged: int = 1,
) -> list[list[ir.Value]]:
    """Run over ``columns``, calling ``visit`` at each and accumulating every group; returns final accumulators.

    Searches by vectors ask for the next row of the parameters ``asked`` on their way. The last ``merged`` columns are
    run over in one loop.
    """
    results: dict[int, list[ir.Value]] = {}
    for group in groups:
        plan = extremum.plan(e, group.node, columns[0], target) if len(columns) == 1 else None
        if plan is not None:
            source = reduce_operands(group.node)[0][0]
            ahead = columns[0] if extremum.read_in_place(plan, source) in asked else 0
            elements = Elements(e, source, group.row, arguments, scratch, scratch_offset, ahead)
            found, nan = extremum.find(plan, elements, 0, columns[0])
            values = group.reducer.combine(group.initial(), found)
            results[id(group)] = _in_order_if(nan, group, columns[0], values)
    others = [g for g in groups if id(g) not in results]
    lanes = [g for g in others if uses_lanes(e, g.node, columns)]
    carried = [g for g in others if g not in lanes]
    starts = [g.initial() for g in carried]
    initial = [value for start in starts for value in start]

    def body(column: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        visit(column)
        following: list[ir.Value] = []
        position = 0
        for group, start in zip(carried, starts, strict=True):
            current = values[position : position + len(start)]
            following += group.step(current, column)
            position += len(start)
        return following

    outer, inner = columns[: len(columns) - merged], columns[len(columns) - merged :]
    extents = [*outer, math.prod(inner)]

    def at(place: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        # Where elements lie one after another, they are loaded by the place itself: nothing is left of the division.
        return body([*place[:-1], *build.delinearize(place[-1], inner)], values)

    finals = loop_nest(e, extents, initial, at, **_short_loop(extents, len(initial), target))
    for group, start in zip(carried, starts, strict=True):
        results[id(group)] = group.finish(finals[: len(start)])
        finals = finals[len(start) :]
    for group in lanes:
        results[id(group)] = _accumulate_lanes(group, columns[0], scratch, scratch_offset)
    return [results[id(g)] for g in groups]


class _LoopHints(TypedDict, total=False):
    unroll: int
    interleave: int


def _short_loop(columns: Sequence[int], carried: int, target: Target) -> _LoopHints:
    """How the loop over short rows is to be compiled.

    LLVM would unroll it before its vectoriser sees it, and then combine the elements one by one.
    """
    vectors = columns[-1] // target.lanes(4) if columns else 0
    if not vectors or columns[-1] * max(1, carried) > _SHORT:
        return {}
    return {"unroll": 1, "interleave": side_by_side(vectors)}


def _accumulate_lanes(
    group: Accumulation, width: int, scratch: ir.Value, offset: int
) -> list[ir.Value]:
    e, reducer = group.e, group.reducer
    buffers: list[ir.Value] = []
    for element in reducer.accumulators:
        buffers.append(build.view(scratch, offset, ArrayType((LANES,), element)))
        offset += -(-LANES * element.nbytes // 64) * 64

    def put(values: Sequence[ir.Value], at: Index) -> None:
        for buffer, element, value in zip(buffers, reducer.accumulators, values, strict=True):
            build.store(value, buffer, (at,), element)

    def take(at: Index) -> list[ir.Value]:
        return [
            build.load(buffer, (at,), element)
            for buffer, element in zip(buffers, reducer.accumulators, strict=True)
        ]

    def fill(lane: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        with e.scope():
            put(group.elements([lane]), lane)
        return []

    def step(lane: ir.Value, base: Index) -> list[ir.Value]:
        with e.scope():
            put(reducer.combine(take(lane), group.elements([build.add(base, lane)])), lane)
        return []

    def chunk(base: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        build.for_loop(0, LANES, lambda lane, _: step(lane, base))
        return []

    build.for_loop(0, LANES, fill)
    whole = width // LANES * LANES
    build.for_loop(LANES, whole, chunk, step=LANES)
    build.for_loop(0, width - whole, lambda lane, _: step(lane, whole))

    def combine(lane: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        with e.scope():
            return reducer.combine(values, take(lane))

    values = build.for_loop(0, LANES, combine, group.initial())  # once: it need not be neutral
    if order_of(e.functions[group.node.symbol("to_apply")], len(values)) is Order.ANY:
        return values
    return _in_order_if(_some_nan(values), group, width, values)


def _in_order_if(
    condition: ir.Value | None, group: Accumulation, width: int, values: list[ir.Value]
) -> list[ir.Value]:
    """``values``, or if ``condition`` what the elements of the row give when combined in order."""
    if condition is None:
        return values
    e, reducer = group.e, group.reducer

    def element(column: ir.Value, current: list[ir.Value]) -> list[ir.Value]:
        with e.scope():
            return reducer.combine(current, group.elements([column]))

    def in_order() -> list[ir.Value]:
        with e.scope():
            return build.for_loop(0, width, element, group.initial())

    return build.if_else(condition, [v.type for v in values], in_order, lambda: values)


def _some_nan(values: Sequence[ir.Value]) -> ir.Value:
    """Whether a number among ``values`` is NaN."""
    flags = [
        arith.CmpFOp(arith.CmpFPredicate.UNO, value, value).result
        for value in values
        if isinstance(value.type, ir.FloatType)
    ]
    return functools.reduce(lambda a, b: arith.OrIOp(a, b).result, flags)


def reduced_groups(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """``(batch, reduced, kept)`` extents when the reduced dimensions are consecutive, else ``None``."""
    shape, dimensions = node.operands[0].shape, sorted(node.dims("dimensions"))
    if not dimensions or dimensions != list(range(dimensions[0], dimensions[-1] + 1)):
        return None
    return shape[: dimensions[0]], tuple(shape[d] for d in dimensions), shape[dimensions[-1] + 1 :]
