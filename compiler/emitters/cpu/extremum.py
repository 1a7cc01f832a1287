# SPDX-License-Identifier: Apache-2.0
"""Argmax and argmin of one row, in vector registers.

Every lane of a few vectors keeps the best value it has seen and the column at which its *block*, the elements read in
one step, began; a row whose width is no multiple of a block ends with a block that overlaps the one before, for seeing
an element twice changes nothing. The lanes are combined at the end: the best value, then the first (or last) of
the columns that hold it. NaN takes no part in that: it is only noticed, and the caller goes over such a row in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import argument_of
from gristmill.compiler.emitters.elemental import Elemental, arithmetic
from gristmill.compiler.emitters.elemental.core import from_index
from gristmill.compiler.emitters.elemental.extremum import Extremum, extremum_of
from gristmill.compiler.graph import Node
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, ElementType, element_type

#: Vectors of one step at most: enough chains to hide the latency of a compare and a select, and few enough for the
#: 16 registers of AVX2.
_VECTORS = 4
#: Scratch bytes for a block whose elements are computed.
BLOCK_BYTES = _VECTORS * 64


@dataclass(frozen=True)
class RowExtremum:
    """How the argmax or argmin of rows is found.

    Attributes:
        picks: which element is taken.
        value: type that values are compared in.
        position: type of positions, the results'.
        lanes: elements of a vector.
        vectors: vectors of a block.
    """

    picks: Extremum
    value: ElementType
    position: ElementType
    lanes: int
    vectors: int

    @property
    def block(self) -> int:
        """Elements of a block."""
        return self.lanes * self.vectors

    @property
    def array(self) -> ArrayType:
        """A block as an array."""
        return ArrayType((self.block,), self.value)


def plan(e: Elemental, node: Node, least: int, target: Target) -> RowExtremum | None:
    """How to find ``node``, a reduction of the last dimension, if it is an argmax or argmin.

    ``least`` is the least number of elements searched at a time: too few need another way.
    """
    picks = extremum_of(e.functions[node.symbol("to_apply")])
    if picks is None or node.operands[1].kind != "iota":
        return None
    source, position = node.operands[0], node.operands[1].type.element
    dimension, width = source.type.rank - 1, source.shape[-1]
    counts = node.operands[1].integer("dimension") == dimension and position.is_integer
    limit = 1 << min(31, position.bits - (0 if position.is_unsigned else 1))
    if not counts or width > limit:
        return None
    value = _compared(source.type.element)
    if value is None:
        return None
    lanes = target.lanes(value.nbytes)
    vectors = min(_VECTORS, least // lanes)
    return RowExtremum(picks, value, position, lanes, vectors) if vectors else None


def _compared(element: ElementType) -> ElementType | None:
    """A 32 or 64 bit type that has all values of ``element`` in the same order."""
    if element.bits >= 32 and element.kind != "complex":
        return element
    names = {"float": "f32", "int": "i32", "uint": "ui32", "pred": "ui32"}
    return element_type(names[element.kind]) if element.kind in names else None


def read_in_place(plan: RowExtremum, node: Node) -> Node | None:
    """The parameter whose elements are those of ``node``, if they can be read from there."""
    argument = argument_of(node)
    return argument if argument is not None and argument.type.element == plan.value else None


@dataclass(frozen=True)
class Elements:
    """Where the elements of one row come from.

    Attributes:
        e: the computation.
        node: the value that they belong to.
        row: its leading index.
        arguments: memrefs of the computation's parameters.
        scratch: :data:`BLOCK_BYTES` bytes at ``offset``.
        offset: where they start.
        ahead: how many elements further on cache lines are asked for, if elements are read in place.
    """

    e: Elemental
    node: Node
    row: Sequence[Index]
    arguments: Sequence[ir.Value]
    scratch: ir.Value
    offset: int
    ahead: int = 0

    def blocks(self, plan: RowExtremum) -> Callable[[Index], list[ir.Value]]:
        """A function from a column to the vectors of the block that begins there."""
        source = read_in_place(plan, self.node)
        kind = ir.VectorType.get([plan.lanes], build.register_type(plan.value))
        if source is not None:
            buffer = build.flatten(self.arguments[source.result])
            width = self.node.shape[-1]
            start = build.mul(build.linearize(self.row, self.node.shape[:-1]), width)
        else:
            buffer, start = build.view(self.scratch, self.offset, plan.array), 0

        def block(base: Index) -> list[ir.Value]:
            if source is None:
                self._compute(buffer, base, plan)
            first = build.add(start, base) if source is not None else 0
            for at in range(
                0, plan.block if self.ahead else 0, build.LINE_BYTES // plan.value.nbytes
            ):
                build.prefetch(buffer, build.add(first, self.ahead + at))
            places = [build.add(first, number * plan.lanes) for number in range(plan.vectors)]
            return [vector.LoadOp(kind, buffer, [build.index_value(at)]).result for at in places]

        return block

    def _compute(self, buffer: ir.Value, base: Index, plan: RowExtremum) -> None:
        e, node = self.e, self.node

        def put(lane: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                value = e.value(node, [*self.row, build.add(base, lane)])
                wide = arithmetic.convert(node.type.element, plan.value, value)
                build.store(wide, buffer, (lane,), plan.value)
            return []

        build.for_loop(0, plan.block, put)


def find(
    plan: RowExtremum, elements: Elements, low: Index, high: Index
) -> tuple[list[ir.Value], ir.Value | None]:
    """``[best value, its position]`` of columns ``[low, high)``, a block of them at least.

    Also, for floats, whether there is a NaN: then the two mean nothing.
    """
    (value, position), nan = _Search(plan, elements.blocks(plan)).emit(low, high)
    return [arithmetic.convert(plan.value, elements.node.type.element, value), position], nan


class _Search:
    """Emits the search of one row; ``block(base)`` gives the vectors of the block at column ``base``."""

    def __init__(self, row: RowExtremum, block: Callable[[Index], list[ir.Value]]):
        self.row, self.block = row, block
        kind = ir.IntegerType.get_signless(row.value.bits)
        self.columns = ir.VectorType.get([row.lanes], kind)
        self.column = element_type(f"i{row.value.bits}")

    def emit(self, low: Index, high: Index) -> tuple[list[ir.Value], ir.Value | None]:
        """As :func:`find`."""
        row = self.row
        best = self.block(low)
        count = len(best)
        begins = [self._broadcast(low)] * count
        nans = [self._nans(best, self._splat(0))] if row.value.is_float else []

        def step(base: Index, state: list[ir.Value]) -> list[ir.Value]:
            best, begins, nans = state[:count], state[count : 2 * count], state[2 * count :]
            found = self.block(base)
            begin = self._broadcast(base)
            better = [self._better(x, old) for x, old in zip(found, best, strict=True)]
            return [
                *map(arithmetic.select, better, found, best),
                *(arithmetic.select(b, begin, old) for b, old in zip(better, begins, strict=True)),
                *(self._nans(found, old) for old in nans),
            ]

        whole = build.sub(high, build.mod(build.sub(high, low), row.block))
        second = build.add(low, row.block)
        state = build.for_loop(second, whole, step, [*best, *begins, *nans], step=row.block)
        if isinstance(whole, ir.Value) or whole != high:
            state = step(build.sub(high, row.block), state)
        best, begins, nans = state[:count], state[count : 2 * count], state[2 * count :]
        return self._combine(best, begins), self._any(nans[0]) if nans else None

    def _better(self, new: ir.Value, old: ir.Value) -> ir.Value:
        picks = self.row.picks
        direction = ("G" if picks.largest else "L") + ("T" if picks.first else "E")
        return arithmetic.compare(direction, "FLOAT", self.row.value, new, old)

    def _nans(self, values: list[ir.Value], old: ir.Value) -> ir.Value:
        """``old`` with all bits set in the lanes where a value is NaN: two values a comparison."""
        for i in range(0, len(values), 2):
            pair = values[i], values[min(i + 1, len(values) - 1)]
            unordered = arith.CmpFOp(arith.CmpFPredicate.UNO, *pair).result
            old = arithmetic.select(unordered, self._splat(-1), old)
        return old

    def _any(self, flags: ir.Value) -> ir.Value:
        found = self._reduce(vector.CombiningKind.OR, flags)
        return arithmetic.compare("NE", "", self.column, found, build.constant(self.column, 0))

    def _combine(self, best: list[ir.Value], begins: list[ir.Value]) -> list[ir.Value]:
        """The best value of all lanes, and the first (or last) column that holds it."""
        row, kinds = self.row, vector.CombiningKind
        names = ("MAX", "MIN") if row.picks.largest else ("MIN", "MAX")
        suffix = "NUMF" if row.value.is_float else "UI" if row.value.is_unsigned else "SI"
        op = kinds.__members__[names[0] + suffix]
        fastmath = arith.FastMathFlags.nnan if row.value.is_float else None

        def better(a: ir.Value, b: ir.Value) -> ir.Value:
            return arithmetic.select(self._better(b, a), b, a)

        value = self._reduce(op, functools.reduce(better, best), fastmath)
        highest = vector.BroadcastOp(best[0].type, value).result
        absent = (1 << (row.value.bits - 1)) - 1 if row.picks.first else -1
        nearer = arith.MinSIOp if row.picks.first else arith.MaxSIOp
        nearest = self._splat(absent)
        for number, (values, begin) in enumerate(zip(best, begins, strict=True)):
            places = range(number * row.lanes, (number + 1) * row.lanes)
            at = arith.AddIOp(begin, self._constant(np.array(places))).result
            holds = arithmetic.compare("EQ", "FLOAT", row.value, values, highest)
            nearest = nearer(nearest, arithmetic.select(holds, at, self._splat(absent))).result
        column = self._reduce(kinds.MINSI if row.picks.first else kinds.MAXSI, nearest)
        index = arith.IndexCastUIOp(ir.IndexType.get(), column).result
        return [value, from_index(row.position, index)]

    def _reduce(
        self, kind: vector.CombiningKind, value: ir.Value, fastmath: Any = None
    ) -> ir.Value:
        element = ir.VectorType(value.type).element_type
        return vector.ReductionOp(element, kind, value, fastmath=fastmath).result

    def _broadcast(self, base: Index) -> ir.Value:
        if isinstance(base, int):
            return self._splat(base)
        number = arith.IndexCastOp(self.columns.element_type, base).result
        return vector.BroadcastOp(self.columns, number).result

    def _splat(self, number: int) -> ir.Value:
        return self._constant(np.full(self.row.lanes, number))

    def _constant(self, numbers: np.ndarray[Any, Any]) -> ir.Value:
        data = numbers.astype(self.column.dtype)
        return arith.ConstantOp(
            self.columns, ir.DenseElementsAttr.get(data, type=self.columns)
        ).result
