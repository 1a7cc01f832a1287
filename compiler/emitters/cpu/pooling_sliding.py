# SPDX-License-Identifier: Apache-2.0
"""Pooling along a row of windows that lie inside the operand: what neighbouring windows share is reduced once.

A window is reduced column by column, a column being what lies at one place of the last windowed dimension. A row is
walked with the columns that the next window shares in registers: of a 3 x 3 window, 6 elements are read instead of 9
with stride 2, 3 with stride 1.

The largest and smallest floats are found as in :mod:`.pooling_extremes`; a row with NaN is reduced again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.pooling_extremes import Combine, Watch
from gristmill.compiler.emitters.cpu.windows import WindowDimension, row_strides
from gristmill.compiler.graph import Node
from gristmill.compiler.target import Target

#: Loads of one step of the walk at most: they are all written out.
MOST_LOADS = 64
#: Columns of a window from which walking repays one instruction an element in vectors of less than 64 bytes.
LEAST_NARROW = 5


@dataclass(frozen=True)
class Walk:
    """How a row of windows is walked; windows as in :class:`~.windows.WindowDimension`, the last is walked along.

    Attributes:
        windows: one for each dimension but the channels.
        shift: columns that a window is ahead of the one before.
        vectors: vectors of channels that are walked side by side.
    """

    windows: Sequence[WindowDimension]
    shift: int
    vectors: int

    @staticmethod
    def of(windows: Sequence[WindowDimension], target: Target, *, looks: bool) -> Walk | None:
        """How to walk, looking for NaN or not; ``None`` where it would take too many instructions, or gain nothing."""
        last = windows[-1]
        meets = last.stride % last.dilation == 0
        shift = min(last.size, last.stride // last.dilation) if meets else last.size
        wide = target.vector_bytes == 64
        if shift == last.size or not (looks or wide or last.size >= LEAST_NARROW):
            return None
        registers = 24 if wide else 12
        loads = shift * math.prod(w.size for w in windows[:-1])
        for vectors in (4, 2, 1):
            walk = Walk(windows, shift, vectors)
            if (walk.shared + 2) * vectors <= registers and loads * vectors <= MOST_LOADS:
                return walk
        return None

    @property
    def shared(self) -> int:
        """Columns that a window and the next have in common."""
        return self.windows[-1].size - self.shift

    def rows_inside(self, position: Sequence[Index]) -> ir.Value | None:
        """Whether windows at this leading position lie inside the operand; ``None`` where all do."""
        result: ir.Value | None = None
        for window, at in zip(self.windows[:-1], position, strict=True):
            if not window.is_inside:
                begin, end = window.interior
                for inside in (build.at_least(at, begin), build.less(at, end)):
                    result = inside if result is None else arith.AndIOp(result, inside).result
        return result


@dataclass(frozen=True)
class Row:
    """One row of windows, over ``width`` channels a vector.

    Attributes:
        walk: how it is walked.
        node: the ``reduce_window``.
        source, target: operand and result, flat.
        kinds: vectors as loaded and as accumulated.
        position: the leading index.
        start: the initial value, a vector.
        combine: one step of the reduction.
        watch: what looks for NaN, if anything does.
    """

    walk: Walk
    node: Node
    source: ir.Value
    target: ir.Value
    kinds: tuple[ir.VectorType, ir.VectorType]
    position: Sequence[Index]
    start: ir.Value
    combine: Combine
    watch: Watch | None

    def emit(self, channel: Index, vectors: int, span: tuple[int, int]) -> list[ir.Value]:
        """Reduce the windows ``span`` of ``vectors`` vectors; returns for each whether no NaN was met."""
        walk, watch, size = self.walk, self.watch, self.walk.windows[-1].size

        def columns(pixel: Index, v: int, span: range, seen: list[ir.Value]) -> list[ir.Value]:
            """Columns of a window of vector ``v``; ``seen`` is brought up to date."""
            first = build.add(channel, v * self._width)
            loaded = [self._column(pixel, first, j) for j in span]
            if watch is not None:
                seen[v] = watch.look(seen[v], [x for column in loaded for x in column])
            return [reduce(self.combine, column) for column in loaded]

        def step(pixel: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            # One vector after the other, lest all that are loaded wait in registers.
            known, seen = carried[: walk.shared * vectors], carried[walk.shared * vectors :]
            following: list[list[ir.Value]] = []
            for v in range(vectors):
                window = known[v::vectors] + columns(pixel, v, range(walk.shared, size), seen)
                total = reduce(self.combine, [*window, self.start])
                self._store(total, [*self.position, pixel], build.add(channel, v * self._width))
                following.append(window[walk.shift :])
            return [*(x for column in zip(*following, strict=True) for x in column), *seen]

        ordered = [watch.ordered(self.start, self.start)] * vectors if watch is not None else []
        each = [columns(span[0], v, range(walk.shared), ordered) for v in range(vectors)]
        first = [x for column in zip(*each, strict=True) for x in column]
        carried = build.for_loop(*span, step, [*first, *ordered])
        seen = carried[walk.shared * vectors :]
        return [watch.everywhere(note) for note in seen] if watch is not None else []

    @property
    def _width(self) -> int:
        return self.kinds[0].shape[0]

    def _column(self, pixel: Index, channel: Index, column: int) -> list[ir.Value]:
        """The elements of one column of a window."""
        windows, shape = self.walk.windows, self.node.operands[0].shape
        strides = row_strides(shape[:-1], shape[-1])
        base = channel
        for window, at, stride in zip(windows, [*self.position, pixel], strides, strict=True):
            base = build.add(base, build.mul(window.origin(at), stride))
        leading = itertools.product(*(range(w.size) for w in windows[:-1]))
        offsets = [
            sum(
                at * window.dilation * stride
                for at, window, stride in zip((*row, column), windows, strides, strict=True)
            )
            for row in leading
        ]
        return [self._load(build.add(base, offset)) for offset in offsets]

    def _load(self, at: Index) -> ir.Value:
        narrow, wide = self.kinds
        loaded = vector.LoadOp(narrow, self.source, [build.index_value(at)]).result
        return loaded if narrow == wide else arith.ExtFOp(wide, loaded).result

    def _store(self, value: ir.Value, position: Sequence[Index], channel: Index) -> None:
        narrow, wide = self.kinds
        if narrow != wide:
            value = arith.TruncFOp(narrow, value).result
        at = build.linearize([*position, channel], self.node.shape)
        vector.StoreOp(value, self.target, [build.index_value(at)])
