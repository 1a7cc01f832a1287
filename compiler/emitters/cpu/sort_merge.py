# SPDX-License-Identifier: Apache-2.0
"""A stable merge sort of tuples for any comparator.

Blocks of :data:`BLOCK` tuples are sorted by odd-even transposition, which only ever exchanges neighbours that are out
of order and so is stable; runs are then merged bottom-up, choosing without branches. The result is a permutation of
the input even where the comparator is not an order (comparisons of NaNs, say).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both, while_loop
from gristmill.compiler.emitters.elemental.arithmetic import select
from gristmill.runtime.types import ArrayType, ElementType, element_type

_PRED = element_type("i1")

#: Tuples sorted by exchanging neighbours, before merging.
BLOCK = 8

Before = Callable[[list[ir.Value], list[ir.Value]], ir.Value]
Read = Callable[[Index], list[ir.Value]]
Write = Callable[[Index, list[ir.Value]], None]


@dataclass(frozen=True)
class _Tuples:
    """An array of tuples, one memref an element."""

    buffers: Sequence[ir.Value]
    elements: Sequence[ElementType]

    def load(self, at: Index) -> list[ir.Value]:
        pairs = zip(self.buffers, self.elements, strict=True)
        return [build.load(buffer, [at], element) for buffer, element in pairs]

    def store(self, at: Index, values: Sequence[ir.Value]) -> None:
        for buffer, element, value in zip(self.buffers, self.elements, values, strict=True):
            build.store(value, buffer, [at], element)


@dataclass(frozen=True)
class MergeSorter:
    """Emits the sort of one row of ``length`` tuples of ``elements``."""

    elements: Sequence[ElementType]
    length: int

    @property
    def _bytes(self) -> int:
        return sum(self._column_bytes(x) for x in self.elements)

    def _column_bytes(self, element: ElementType) -> int:
        return -(-self.length * element.nbytes // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        """Scratch that :meth:`sort` uses: two copies of the row."""
        return 2 * self._bytes

    def _tuples(self, scratch: ir.Value, offset: int) -> _Tuples:
        buffers: list[ir.Value] = []
        for element in self.elements:
            buffers.append(build.view(scratch, offset, ArrayType((self.length,), element)))
            offset += self._column_bytes(element)
        return _Tuples(buffers, self.elements)

    def sort(self, scratch: ir.Value, before: Before, read: Read, write: Write) -> None:
        """Sort the tuples that ``read`` gives by ``before`` (is the first strictly before the second) and pass them to
        ``write`` by position."""
        source, target = self._tuples(scratch, 0), self._tuples(scratch, self._bytes)

        def load(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            source.store(position, read(position))
            return []

        def store(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            write(position, source.load(position))
            return []

        build.for_loop(0, self.length, load)
        self._sort_blocks(source, before)
        width = BLOCK
        while width < self.length:
            self._merge_level(source, target, width, before)
            source, target, width = target, source, 2 * width
        build.for_loop(0, self.length, store)

    def _sort_blocks(self, tuples: _Tuples, before: Before) -> None:
        def exchange(at: Index) -> None:
            following = build.add(at, 1)
            first, second = tuples.load(at), tuples.load(following)
            swap = before(second, first)
            pairs = list(zip(first, second, strict=True))
            tuples.store(at, [select(swap, b, a) for a, b in pairs])
            tuples.store(following, [select(swap, a, b) for a, b in pairs])

        def block(start: Index, size: int) -> None:
            def rounds(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                first = build.add(start, build.mod(number, 2))
                last = build.add(start, size - 1)

                def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                    exchange(at)
                    return []

                build.for_loop(first, last, step, step=2)
                return []

            if size > 1:
                build.for_loop(0, size, rounds)

        def whole(start: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            block(start, BLOCK)
            return []

        full = self.length // BLOCK * BLOCK
        build.for_loop(0, full, whole, step=BLOCK)
        block(full, self.length - full)

    def _merge_level(self, source: _Tuples, target: _Tuples, width: int, before: Before) -> None:
        def pair(start: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            middle = build.index_value(build.minimum(build.add(start, width), self.length))
            end = build.index_value(build.minimum(build.add(start, 2 * width), self.length))
            _merge(source, target, (start, middle, end), before)
            return []

        build.for_loop(0, self.length, pair, step=2 * width)


def _merge(
    source: _Tuples,
    target: _Tuples,
    bounds: tuple[ir.Value, ir.Value, ir.Value],
    before: Before,
) -> None:
    start, middle, end = bounds
    index = ir.IndexType.get()

    def advance(position: ir.Value, condition: ir.Value) -> ir.Value:
        return arith.AddIOp(position, arith.IndexCastUIOp(index, condition).result).result

    def unfinished(values: list[ir.Value]) -> ir.Value:
        return both(build.less(values[0], middle), build.less(values[1], end))

    def step(values: list[ir.Value]) -> list[ir.Value]:
        i, j, at = values
        first, second = source.load(i), source.load(j)
        later = before(second, first)
        true = build.constant(_PRED, True)
        target.store(at, [select(later, b, a) for a, b in zip(first, second, strict=True)])
        return [
            advance(i, arith.XOrIOp(later, true).result),
            advance(j, later),
            build.index_value(build.add(at, 1)),
        ]

    i, j, at = while_loop([start, middle, start], unfinished, step)

    def rest(low: ir.Value, high: ir.Value, at: Index) -> None:
        def copy(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            to = build.add(at, build.sub(position, low))
            target.store(to, source.load(position))
            return []

        build.for_loop(low, high, copy)

    rest(i, middle, at)
    rest(j, end, at)
