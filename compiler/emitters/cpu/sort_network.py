# SPDX-License-Identifier: Apache-2.0
"""Sorting integers with vectors: bitonic networks for blocks, a bitonic merge for sorted runs.

A block of a power of two of signed integers is sorted by Batcher's bitonic network in the form whose first
step of each merge compares mirrored elements, so that every comparison puts the smaller value first and no step
depends on a direction. Steps between elements of one vector are shuffles; groups of :data:`GROUP` vectors are
carried through as many steps as fit in registers. Runs are merged a vector at a time: the network merges the held
vector with the next vector of the run whose head is smaller; the lower half is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both, choose, either
from gristmill.compiler.target import Target
from gristmill.runtime.types import ElementType

#: Vectors carried through a network together.
GROUP = 8
#: Bytes of a block sorted by the network alone: it stays in the first-level cache.
BLOCK_BYTES = 16 * 1024


def _shuffle(a: ir.Value, b: ir.Value, mask: Sequence[int]) -> ir.Value:
    return vector.ShuffleOp(a, b, list(mask)).result


def _shift_left(value: int, by: Index) -> Index:
    """``value << by``."""
    return arith.ShLIOp(build.index_value(value), build.index_value(by)).result


def _split(position: ir.Value, bits: Index) -> tuple[Index, Index]:
    """Quotient and remainder by ``1 << bits``."""
    shift = build.index_value(bits)
    mask = build.index_value(build.sub(_shift_left(1, bits), 1))
    return arith.ShRUIOp(position, shift).result, arith.AndIOp(position, mask).result


@dataclass(frozen=True)
class VectorSorter:
    """Emits sorting code for arrays of one signed integer type.

    Attributes:
        element: ``i32`` or ``i64``.
        lanes: elements of one vector, a power of two.
    """

    element: ElementType
    lanes: int

    @staticmethod
    def of(element: ElementType, target: Target) -> VectorSorter:
        """The sorter for ``target``'s vectors."""
        return VectorSorter(element, max(2, target.lanes(element.nbytes)))

    @property
    def block(self) -> int:
        """Elements of the largest block sorted by the network alone."""
        return BLOCK_BYTES // self.element.nbytes

    def padded(self, count: int) -> int:
        """The block (a power of two, at least one vector) that holds ``count`` elements."""
        return max(self.lanes, 1 << (count - 1).bit_length())

    @property
    def _vector(self) -> ir.VectorType:
        return ir.VectorType.get([self.lanes], build.register_type(self.element))

    def _load(self, buffer: ir.Value, at: Index) -> ir.Value:
        return vector.LoadOp(self._vector, buffer, [build.index_value(at)]).result

    def _store(self, value: ir.Value, buffer: ir.Value, at: Index) -> None:
        vector.StoreOp(value, buffer, [build.index_value(at)])

    def _order(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        return arith.MinSIOp(a, b).result, arith.MaxSIOp(a, b).result

    def _reverse(self, value: ir.Value) -> ir.Value:
        return _shuffle(value, value, range(self.lanes - 1, -1, -1))

    def _within(self, value: ir.Value, partner: Sequence[int]) -> ir.Value:
        """One step inside a vector: lane ``i`` meets lane ``partner[i]``; the lower lane gets the smaller value."""
        low, high = self._order(value, _shuffle(value, value, partner))
        pick = [i if i < p else self.lanes + i for i, p in enumerate(partner)]
        return _shuffle(low, high, pick)

    def _descend(self, values: list[ir.Value]) -> list[ir.Value]:
        """Half-cleaner steps over several vectors, then inside each: sorts what the steps above left."""
        distance = len(values) // 2
        while distance:
            for i in range(len(values)):
                if not i & distance:
                    values[i], values[i + distance] = self._order(values[i], values[i + distance])
            distance //= 2
        return [self._finish(v) for v in values]

    def _finish(self, value: ir.Value) -> ir.Value:
        """Sort a vector that is bitonic."""
        distance = self.lanes // 2
        while distance:
            value = self._within(value, [i ^ distance for i in range(self.lanes)])
            distance //= 2
        return value

    def _sort_vector(self, value: ir.Value) -> ir.Value:
        size = 2
        while size <= self.lanes:
            value = self._within(value, [i ^ (size - 1) for i in range(self.lanes)])
            distance = size // 4
            while distance:
                value = self._within(value, [i ^ distance for i in range(self.lanes)])
                distance //= 2
            size *= 2
        return value

    def _mirror(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        low, high = self._order(a, self._reverse(b))
        return low, self._reverse(high)

    def _sort_group(self, values: list[ir.Value]) -> list[ir.Value]:
        """Sort the elements of several vectors, all in registers."""
        values = [self._sort_vector(v) for v in values]
        size = 2
        while size <= len(values):
            for start in range(0, len(values), size):
                for i in range(size // 2):
                    first, last = start + i, start + size - 1 - i
                    values[first], values[last] = self._mirror(values[first], values[last])
                for half in (start, start + size // 2):
                    part = slice(half, half + size // 2)
                    values[part] = self._descend(values[part])
            size *= 2
        return values

    def sort_block(self, buffer: ir.Value, base: Index, size: int) -> None:
        """Sort ``size`` elements (a power of two, at least one vector) of a rank-1 memref from ``base`` on."""
        lanes = self.lanes
        group = min(GROUP, size // lanes)
        span = group * lanes

        def initial(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            start = build.add(base, at)
            self._put(
                buffer, start, self._sort_group(self._take(buffer, start, group, lanes)), lanes
            )
            return []

        build.for_loop(0, size, initial, step=span)
        levels = (size // span).bit_length() - 1

        def merge_step(level: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._merge_step(buffer, base, size, level, group)
            return []

        if levels:
            build.for_loop(0, levels, merge_step)

    def _take(self, buffer: ir.Value, start: Index, count: int, stride: int) -> list[ir.Value]:
        return [self._load(buffer, build.add(start, i * stride)) for i in range(count)]

    def _put(self, buffer: ir.Value, start: Index, values: list[ir.Value], stride: int) -> None:
        for i, value in enumerate(values):
            self._store(value, buffer, build.add(start, i * stride))

    def _merge_step(
        self, buffer: ir.Value, base: Index, size: int, level: ir.Value, group: int
    ) -> None:
        """Merge neighbouring sorted runs of ``span << level`` elements, where ``span`` is a group's."""
        lanes, span = self.lanes, group * self.lanes
        half = _shift_left(span, level)
        group_bits = group.bit_length() - 1
        vectors = size // 2 // lanes

        def mirrored(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            # t counts vectors of first halves, of which there are group << level in a run
            pair, offset = _split(t, build.add(level, group_bits))
            start = build.add(base, build.mul(pair, build.mul(half, 2)))
            first = build.add(start, build.mul(offset, lanes))
            end = build.add(start, build.sub(build.mul(half, 2), lanes))
            last = build.sub(end, build.mul(offset, lanes))
            low, high = self._mirror(self._load(buffer, first), self._load(buffer, last))
            self._store(low, buffer, first)
            self._store(high, buffer, last)
            return []

        def half_clean(step: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            bits = build.add(build.sub(build.sub(level, step), 1), group_bits)
            apart = _shift_left(1, bits)  # in vectors

            def exchange(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                pair, offset = _split(t, bits)
                vector_number = build.add(build.mul(build.mul(pair, apart), 2), offset)
                first = build.add(base, build.mul(vector_number, lanes))
                second = build.add(first, build.mul(apart, lanes))
                low, high = self._order(self._load(buffer, first), self._load(buffer, second))
                self._store(low, buffer, first)
                self._store(high, buffer, second)
                return []

            build.for_loop(0, vectors, exchange)
            return []

        def final(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            start = build.add(base, at)
            values = self._descend(self._take(buffer, start, group, lanes))
            self._put(buffer, start, values, lanes)
            return []

        build.for_loop(0, vectors, mirrored)
        build.for_loop(0, level, half_clean)
        build.for_loop(0, size, final, step=span)

    def merge(
        self,
        source: ir.Value,
        target: ir.Value,
        start: Index,
        first: Index,
        second: Index,
    ) -> None:
        """Merge the sorted runs ``source[start : start + first]`` and the ``second`` elements after it into
        ``target[start:]``; both lengths are positive multiples of a vector."""
        lanes = self.lanes
        middle = build.add(start, first)
        end = build.add(middle, second)
        low, held = self._merge_pair(self._load(source, start), self._load(source, middle))
        self._store(low, target, start)

        def head(at: Index, limit: Index) -> ir.Value:
            return build.load(source, [build.minimum(at, build.sub(limit, lanes))], self.element)

        def step(at: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            i, j, held = values
            smaller = arith.CmpIOp(arith.CmpIPredicate.sle, head(i, middle), head(j, end)).result
            from_first = both(build.less(i, middle), either(smaller, build.at_least(j, end)))
            chosen = choose(from_first, i, j)
            low, high = self._merge_pair(held, self._load(source, chosen))
            self._store(low, target, at)
            following = build.index_value(build.add(chosen, lanes))
            return [choose(from_first, following, i), choose(from_first, j, following), high]

        initial = [
            build.index_value(build.add(start, lanes)),
            build.index_value(build.add(middle, lanes)),
            held,
        ]
        last = build.sub(end, lanes)
        results = build.for_loop(build.add(start, lanes), last, step, initial, step=lanes)
        self._store(results[2], target, last)

    def _merge_pair(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        low, high = self._order(a, self._reverse(b))
        return self._finish(low), self._finish(high)

    def copy(self, source: ir.Value, target: ir.Value, start: Index, end: Index) -> None:
        """Copy whole vectors."""

        def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._store(self._load(source, at), target, at)
            return []

        build.for_loop(start, end, step, step=self.lanes)
