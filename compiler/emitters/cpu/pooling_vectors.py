# SPDX-License-Identifier: Apache-2.0
"""Elements by vectors, or one by one, for pooling along the minor dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir
from mlir.dialects import arith, memref, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.pooling_extremes import Watch
from gristmill.compiler.target import Target
from gristmill.runtime.types import ElementType

#: Bytes within which x86 moves the elements of a vector by one instruction.
_PART_BYTES = 16

#: Vectors of a row that LLVM may write out.
_MOST_WRITTEN = 8

#: Emits what is done at a place, in a vector of some width: takes and returns the notes of what was seen.
Visit = Callable[[Index, int, list[ir.Value]], list[ir.Value]]


def each(
    low: Index,
    high: Index,
    body: Callable[[Index, ir.Value | None], ir.Value | None],
    fine: ir.Value | None,
) -> ir.Value | None:
    """A loop over rows; ``body`` takes and returns whether all is ``fine``, ``None`` where nobody asks."""

    def step(at: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        result = body(at, carried[0] if carried else None)
        return [] if result is None else [result]

    results = build.for_loop(low, high, step, [] if fine is None else [fine], unroll=1)
    return results[0] if results else None


@dataclass(frozen=True)
class Vectors:
    """Vectors of elements; a width of 1 is a single one.

    Attributes:
        narrow, wide: types of the elements and of accumulators.
        target: the CPU.
    """

    narrow: ElementType
    wide: ElementType
    target: Target

    @property
    def lanes(self) -> int:
        """Accumulators of a vector register."""
        return self.target.lanes(self.wide.nbytes)

    def load(self, source: ir.Value, at: Index, width: int) -> ir.Value:
        """Accumulators from a flat memref of elements or accumulators."""
        where = [build.index_value(at)]
        single = ir.MemRefType(source.type).element_type
        if width == 1:
            value = memref.LoadOp(source, where).result
        else:
            value = vector.LoadOp(ir.VectorType.get([width], single), source, where).result
        if single == build.storage_type(self.wide):
            return value
        return arith.ExtFOp(self._kind(self.wide, width), value).result

    def store(self, value: ir.Value, target: ir.Value, at: Index) -> None:
        """Store accumulators to a flat memref of elements or accumulators."""
        where = [build.index_value(at)]
        single = ir.MemRefType(target.type).element_type
        width = value.type.shape[0] if isinstance(value.type, ir.VectorType) else 1
        if single != build.storage_type(self.wide):
            value = arith.TruncFOp(self._kind(self.narrow, width), value).result
        if width == 1:
            memref.StoreOp(value, target, where)
        else:
            vector.StoreOp(value, target, where)

    def spread(self, value: ir.Value, width: int) -> ir.Value:
        """An accumulator in all lanes."""
        if width == 1:
            return value
        return vector.BroadcastOp(self._kind(self.wide, width), value).result

    def watch(self, width: int) -> Watch:
        """What notes where accumulators are fine."""
        return Watch(self._kind(self.wide, width), self.target.vector_bytes == 64)

    def looked(
        self, seen: Sequence[ir.Value], elements: Sequence[ir.Value], width: int
    ) -> list[ir.Value]:
        """Notes, if any, where none of the elements is NaN."""
        return [self.watch(width).look(note, elements) for note in seen]

    def sweep(
        self,
        begin: Index,
        count: Index,
        lanes: int,
        visit: Visit,
        fine: ir.Value | None,
    ) -> ir.Value | None:
        """Visit ``count`` places from ``begin`` on in vectors of ``lanes`` at most.

        Of a number that is known, the last vector overlaps the one before it; any other leaves some places one by one.
        Returns whether all is ``fine`` and all that was noted, too, if that is asked.
        """
        if not isinstance(count, int):
            whole = build.mul(build.div(count, lanes), lanes)
            fine = self._run(begin, (0, whole), lanes, visit, fine)
            return self._run(begin, (whole, count), 1, visit, fine) if lanes > 1 else fine
        if count == 0:
            return fine
        width = min(lanes, 1 << (count.bit_length() - 1))
        last = count - width if count % width else None
        return self._run(begin, (0, count // width * width), width, visit, fine, last)

    def _run(
        self,
        begin: Index,
        span: tuple[Index, Index],
        width: int,
        visit: Visit,
        fine: ir.Value | None,
        last: int | None = None,
    ) -> ir.Value | None:
        """Visit the places ``span`` after ``begin`` in vectors of one width, then one at ``last``."""
        low, high = span
        # LLVM would write out some dozen vectors, for no gain.
        long = isinstance(high, int) and width > 1 and high > _MOST_WRITTEN * width
        watch, seen = self.watch(width), list[ir.Value]()
        if fine is not None:
            zero = self.spread(build.constant(self.wide, 0), width)
            seen = [watch.ordered(zero, zero)]

        def step(at: ir.Value, seen: list[ir.Value]) -> list[ir.Value]:
            return visit(build.add(begin, at), width, seen)

        seen = build.for_loop(low, high, step, seen, step=width, unroll=int(long))
        if last is not None:
            seen = visit(build.add(begin, last), width, seen)
        for note in seen:
            fine = arith.AndIOp(fine, watch.everywhere(note)).result
        return fine

    @staticmethod
    def _kind(element: ElementType, width: int) -> ir.Type:
        single = build.storage_type(element)
        return ir.VectorType.get([width], single) if width > 1 else single


@dataclass
class Strided:
    """Loads of accumulators ``stride`` apart, with stride 2 in an order of their own until all are combined.

    Of each two vectors, the even and the odd elements are picked within 16 bytes, which is one instruction on x86;
    what has been combined is put in order once.

    Attributes:
        vectors: what loads.
        base: where the first is.
        width: how many; one with a stride above 2.
        stride: from one to the next.
        reach: largest offset from ``base``; what is beyond the elements there is not read.
        loaded: all that was loaded.
    """

    vectors: Vectors
    base: Index
    width: int
    stride: int
    reach: int
    loaded: list[ir.Value] = field(default_factory=list[ir.Value])
    _pairs: dict[tuple[int, int], list[ir.Value]] = field(
        default_factory=dict[tuple[int, int], list[ir.Value]]
    )

    def load(self, number: int, source: ir.Value, offset: Index) -> ir.Value:
        """The accumulators at ``offset`` of ``source``, which is called ``number``."""
        if not self._is_apart:
            return self._load(source, offset)
        assert isinstance(offset, int), "loops over taps take elements one by one"
        first = offset - (offset % 2 or (offset == self.reach and offset > 0))
        key = (number, first)
        if key not in self._pairs:
            self._pairs[key] = [self._load(source, at) for at in (first, first + self.width)]
        part, width = self._part, self.width
        lanes = [
            side * width + begin + lane
            for begin in range(0, width, part)
            for side in (0, 1)
            for lane in range(offset - first, part, 2)
        ]
        return vector.ShuffleOp(*self._pairs[key], lanes).result

    def in_order(self, value: ir.Value) -> ir.Value:
        """What was combined of loaded accumulators, in order."""
        part, width = self._part, self.width
        if not self._is_apart or part == width:
            return value
        lanes = [
            begin + side * (part // 2) + lane
            for side in (0, 1)
            for begin in range(0, width, part)
            for lane in range(part // 2)
        ]
        return vector.ShuffleOp(value, value, lanes).result

    @property
    def _is_apart(self) -> bool:
        return self.width > 1 and self.stride == 2

    @property
    def _part(self) -> int:
        return min(self.width, _PART_BYTES // self.vectors.wide.nbytes)

    def _load(self, source: ir.Value, offset: Index) -> ir.Value:
        self.loaded.append(self.vectors.load(source, build.add(self.base, offset), self.width))
        return self.loaded[-1]


def halves(value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lower and the upper half of a vector; of two lanes, single elements."""
    width = ir.VectorType(value.type).shape[0]
    if width == 2:
        lower, upper = (vector.ExtractOp(value, [], [lane]).result for lane in (0, 1))
        return lower, upper
    parts = (range(width // 2), range(width // 2, width))
    lower, upper = (vector.ShuffleOp(value, value, list(part)).result for part in parts)
    return lower, upper
