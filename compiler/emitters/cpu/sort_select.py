# SPDX-License-Identifier: Apache-2.0
"""The first elements of a sorted row without sorting the row.

A buffer keeps the best records (key and position in 64 bits, as in :mod:`.sort`) found so far. The row passes by in
chunks, whose records below the *bound* are appended; when the buffer is full it is sorted, all but the records wanted
are dropped, and the last of these is the new bound. A chunk whose smallest key is not below that of the bound, as soon
most are, is passed over: a key equal to the bound's comes later in the row than the records that have it, so it does
not belong to the first ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import either
from gristmill.compiler.emitters.cpu.sort_keys import I32, I64
from gristmill.compiler.emitters.cpu.sort_network import VectorSorter
from gristmill.runtime.types import ArrayType

#: Keys of one chunk.
CHUNK = 64
#: Rows shorter than this many buffers are sorted.
_LEAST_BUFFERS = 3

_LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Selection:
    """How the first elements of a row are selected.

    Attributes:
        sorter: of 64-bit records.
        length: elements of a row.
        count: how many are wanted.
        size: records of the buffer.
    """

    sorter: VectorSorter
    length: int
    count: int
    size: int

    @staticmethod
    def of(sorter: VectorSorter, length: int, count: int) -> Selection | None:
        """The selection of ``count`` of ``length`` elements, or ``None`` where sorting them all is better."""
        size = sorter.padded(max(2 * count, count + CHUNK))
        if count < 1 or size > sorter.block or length < _LEAST_BUFFERS * size:
            return None
        return Selection(sorter, length, count, size)

    @property
    def scratch_bytes(self) -> int:
        """Of the buffer."""
        return self.size * I64.nbytes

    def emit(self, scratch: ir.Value, key: Callable[[Index], ir.Value]) -> ir.Value:
        """Emit the selection from a row whose element at a position has the ascending key ``key(position)``, an
        ``i32``; returns the buffer, which begins with the records wanted, in order."""
        return _Row(self, scratch, key).emit()


class _Row:
    def __init__(self, plan: Selection, scratch: ir.Value, key: Callable[[Index], ir.Value]):
        self.plan, self.key = plan, key
        self.buffer = build.view(scratch, 0, ArrayType((plan.size,), I64))

    def emit(self) -> ir.Value:
        plan = self.plan
        whole = plan.length // CHUNK * CHUNK
        rest = plan.length - whole
        last = whole + CHUNK if rest else whole

        def step(base: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            """Make room; take in a chunk, the rest, or nothing. The sort, which is long, is in one place."""
            full = build.less(plan.size - CHUNK, state[0])
            state = _if(either(full, build.equal(base, last)), lambda s: self._shrink(s[0]), state)
            if rest:
                is_rest = build.equal(base, whole)
                state = _if(is_rest, lambda s: self._append(base, rest, s), state)
            in_row = build.less(base, whole)
            return _if(in_row, lambda s: self._chunk(base, s), state)

        state = [build.index_value(0), build.constant(I64, _LARGEST)]
        build.for_loop(0, last + CHUNK, step, state, step=CHUNK)
        return self.buffer

    def _shrink(self, count: ir.Value) -> list[ir.Value]:
        """Sort the buffer's ``count`` records; returns the number of those kept and the bound."""
        plan = self.plan
        self._pad(count)
        plan.sorter.sort_block(self.buffer, 0, plan.size)
        return [
            build.index_value(plan.count),
            build.load(self.buffer, [plan.count - 1], I64),
        ]

    def _pad(self, count: ir.Value) -> None:
        def fill(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.store(build.constant(I64, _LARGEST), self.buffer, [at], I64)
            return []

        build.for_loop(count, self.plan.size, fill)

    def _chunk(self, base: Index, state: list[ir.Value]) -> list[ir.Value]:
        """Append the records of a chunk below the bound, if any."""
        count, bound = state

        def least(i: ir.Value, smallest: list[ir.Value]) -> list[ir.Value]:
            return [arith.MinSIOp(smallest[0], self.key(build.add(base, i))).result]

        highest = build.constant(I32, (1 << 31) - 1)
        smallest = build.for_loop(0, CHUNK, least, [highest])[0]
        high = arith.ShRSIOp(bound, build.constant(I64, 32)).result
        below = _less(smallest, arith.TruncIOp(build.register_type(I32), high).result)
        few = build.less(count, self.plan.count)
        return _if(either(below, few), lambda s: self._append(base, CHUNK, s), state)

    def _append(self, base: Index, length: int, state: list[ir.Value]) -> list[ir.Value]:
        """Append those of the ``length`` records from ``base`` on that are below the bound."""
        bound = state[1]

        def put(i: ir.Value, count: list[ir.Value]) -> list[ir.Value]:
            position = build.add(base, i)
            record = _record(self.key(position), position)
            build.store(record, self.buffer, count, I64)
            one = arith.IndexCastUIOp(ir.IndexType.get(), _less(record, bound)).result
            return [build.index_value(build.add(count[0], one))]

        return [build.for_loop(0, length, put, [state[0]])[0], bound]


def _if(
    condition: ir.Value,
    then: Callable[[list[ir.Value]], list[ir.Value]],
    state: list[ir.Value],
) -> list[ir.Value]:
    """``then(state)`` if the condition holds, else the state as it is."""
    kinds = [value.type for value in state]
    return build.if_else(condition, kinds, lambda: then(state), lambda: state)


def _less(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.CmpIOp(arith.CmpIPredicate.slt, a, b).result


def _record(key: ir.Value, position: Index) -> ir.Value:
    wide = build.register_type(I64)
    high = arith.ShLIOp(arith.ExtSIOp(wide, key).result, build.constant(I64, 32)).result
    return arith.OrIOp(high, arith.IndexCastOp(wide, build.index_value(position)).result).result
