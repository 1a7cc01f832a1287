# SPDX-License-Identifier: Apache-2.0
"""How windows along the minor dimension are pooled: in which pieces, what is staged, how many taps a step has."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import LINE_BYTES, Index
from gristmill.compiler.emitters.cpu.windows import WindowDimension
from gristmill.compiler.target import Target

#: Part of the first-level cache that a stage should take: rows of the operand pass through it as well.
_STAGE_SHARE = 4
#: Positions that a window along a row may span: so much of a row is staged at least.
MOST_SPAN = 8192
#: Taps of a window along a row from which two steps, or vectors of taps, may be better than one tap after the other.
_LEAST_TAPS = 8
#: Taps that are written out at most.
MOST_WRITTEN = 32


@dataclass(frozen=True)
class Taps:
    """Evenly spaced taps of windows along a row.

    Attributes:
        stage: number of the stage they are in.
        offset: of the first from where a window begins.
        count: how many there are.
        distance: from one to the next.
    """

    stage: int
    offset: int
    count: int
    distance: int

    @property
    def reach(self) -> int:
        """Offset of the last."""
        return self.offset + (self.count - 1) * self.distance


@dataclass(frozen=True)
class RowPlan:
    """Rows of windows in chunks of ``rows`` rows by ``columns`` windows.

    A row's positions count from what the first window's first tap reads.

    Attributes:
        window: the windows along a row.
        height: rows of a plane, the innermost of the other dimensions.
        rows, columns: of a chunk at most.
        is_direct: whether elements are taken from the operand, not from a stage in scratch memory.
        first: taps of the first step of two, 0 where one is better.
        is_idempotent: whether elements may be combined twice.
        lead: elements before a row's first position, so that vectors of the operand are aligned in the stage.
        pitch: elements from row to row.
        nbytes: of an accumulator.
    """

    window: WindowDimension
    height: int
    rows: int
    columns: int
    is_direct: bool
    first: int
    is_idempotent: bool
    lead: int
    pitch: int
    nbytes: int

    @staticmethod
    def of(
        window: WindowDimension,
        height: int,
        nbytes: int,
        target: Target,
        *,
        is_idempotent: bool,
        is_alone: bool,
    ) -> RowPlan:
        """The plan of rows with accumulators of ``nbytes``, whose windows span no other dimension if ``is_alone``."""
        room, line = target.l1_bytes // _STAGE_SHARE // nbytes, LINE_BYTES // nbytes
        columns, rows = window.outputs, height
        if span_of(window, columns) > 2 * room:
            least = max(room, 2 * span_of(window, 1)) // window.stride
            columns = min(columns, -(-least // line) * line)
        first = _first_step(window, is_idempotent=is_idempotent)
        span, lead = span_of(window, columns), -max(0, window.low) % line
        pitch, tiled = -(-(lead + span) // line) * line, window.outputs * window.stride
        is_direct = is_alone and not first and (window.size <= MOST_WRITTEN or _is_across(window))
        fits = span <= tiled <= window.extent and height * tiled <= 2 * room
        if is_direct:
            lead, pitch = -window.low, window.extent
        elif fits and not window.low and not first and columns == window.outputs:
            lead, pitch, room = 0, tiled, height * tiled
        chunks = -(-height // max(1, min(height, room // pitch)))
        rows = -(-height // chunks)
        return RowPlan(
            window, height, rows, columns, is_direct, first, is_idempotent, lead, pitch, nbytes
        )

    @property
    def chunks(self) -> tuple[int, int]:
        """Chunks of a plane's rows and of a row."""
        return -(-self.height // self.rows), -(-self.window.outputs // self.columns)

    @property
    def is_flat(self) -> bool:
        """Whether the windows of all rows of a chunk are as far apart as those of one row."""
        whole = self.is_direct or self.rows == self.height
        inside = self.window.is_inside or not self.is_direct
        flat = self.pitch == self.columns * self.window.stride
        return whole and inside and flat and self.columns == self.window.outputs

    @property
    def is_across(self) -> bool:
        """Whether a window's neighbouring taps make vectors, not the same tap of neighbouring windows."""
        return _is_across(self.window)

    @property
    def span(self) -> int:
        """Positions of a row of a chunk."""
        return span_of(self.window, self.columns)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return 0 if self.is_direct else 2 if self.first else 1

    @property
    def stage_bytes(self) -> int:
        """Scratch bytes of one stage, with a line that vectors may read beyond its end."""
        return self.rows * self.pitch * self.nbytes + LINE_BYTES

    def place(self, row: Index) -> Index:
        """Where a row has its first position."""
        return build.add(build.mul(row, self.pitch), self.lead)

    def taps(self, *, in_steps: bool) -> tuple[Taps | None, list[Taps]]:
        """The taps of a first step, if there is one, and those of the last."""
        size, dilation, first = self.window.size, self.window.dilation, self.first
        if not (in_steps and first):
            return None, [Taps(0, 0, size, dilation)]
        taps, rest = [Taps(1, 0, size // first, first * dilation)], size % first
        if rest and self.is_idempotent:
            # One more result of the first step, that ends where the window does.
            taps.append(Taps(1, (size - first) * dilation, 1, 0))
        elif rest:
            taps.append(Taps(0, (size - rest) * dilation, rest, dilation))
        return Taps(0, 0, first, dilation), taps


def span_of(window: WindowDimension, outputs: int) -> int:
    """Positions from the first tap of a window to the last one of the window ``outputs`` - 1 after it."""
    return (outputs - 1) * window.stride + (window.size - 1) * window.dilation + 1


def _is_across(window: WindowDimension) -> bool:
    return window.stride > 2 and window.size >= _LEAST_TAPS and window.dilation == 1


def _first_step(window: WindowDimension, *, is_idempotent: bool) -> int:
    """Taps of the first step of two, 0 where one is better."""
    if window.stride > 2 or window.size < _LEAST_TAPS:
        return 0

    def cost(first: int) -> int:
        rest = window.size % first
        singles = min(rest, 1) if is_idempotent else rest
        return window.stride * (first + 1) + window.size // first + singles

    first = min(range(2, window.size), key=cost)
    return first if cost(first) < window.size else 0
