# SPDX-License-Identifier: Apache-2.0
"""Loops over windows that are clipped at an operand's borders, shared by the window emitters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import Elemental


@dataclass(frozen=True)
class WindowDimension:
    """One dimension of windows over an operand that is not dilated itself.

    Attributes:
        size, stride, dilation: of the window.
        low: padding before the operand.
        extent: the operand's extent.
        outputs: number of windows.
    """

    size: int
    stride: int
    dilation: int
    low: int
    extent: int
    outputs: int

    @property
    def interior(self) -> tuple[int, int]:
        """The windows that lie inside the operand as a whole: ``begin <= window < end``."""
        span = (self.size - 1) * self.dilation + 1
        begin = min(self.outputs, max(0, -(-self.low // self.stride)))
        end = (self.extent + self.low - span) // self.stride + 1
        return begin, max(begin, min(self.outputs, end))

    @property
    def is_inside(self) -> bool:
        """Whether every window lies inside the operand."""
        return self.interior == (0, self.outputs)

    @property
    def is_plain(self) -> bool:
        """Whether the windows are the operand's elements one by one."""
        steps = self.size == self.stride == 1
        return steps and self.low == 0 and self.outputs == self.extent

    def origin(self, window: Index) -> Index:
        """Where a window starts; negative in the padding."""
        return build.sub(build.mul(window, self.stride), self.low)

    def bounds(self, window: Index) -> tuple[Index, Index]:
        """The positions inside a window that lie inside the operand."""
        origin = self.origin(window)
        before = build.maximum(build.sub(0, origin), 0)
        inside = build.maximum(build.sub(self.extent, origin), 0)
        first = build.div(build.add(before, self.dilation - 1), self.dilation)
        last = build.div(build.add(inside, self.dilation - 1), self.dilation)
        return first, build.minimum(last, self.size)


def bounded_nest(
    e: Elemental,
    bounds: Sequence[tuple[Index, Index]],
    carried: Sequence[ir.Value],
    body: Callable[[list[Index], list[ir.Value]], list[ir.Value]],
    *,
    unroll: Sequence[int] = (),
) -> list[ir.Value]:
    """Nested loops carrying values; none for a dimension of one known position.

    ``unroll`` is said of each dimension, see :func:`build.for_loop`.
    """

    def level(index: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        if len(index) == len(bounds):
            return body(index, values)
        low, high = bounds[len(index)]
        if low == 0 and high == 1:
            return level([*index, 0], values)

        def inner(at: ir.Value, current: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                return level([*index, at], current)

        turns = unroll[len(index)] if unroll else 0
        return build.for_loop(low, high, inner, values, unroll=turns)

    return level([], list(carried))


def row_strides(space: Sequence[int], inner: int) -> list[int]:
    """Elements between neighbours along each dimension of ``space``, each element of it being ``inner`` elements."""
    result: list[int] = []
    for size in reversed(space):
        result.insert(0, inner)
        inner *= size
    return result
