# SPDX-License-Identifier: Apache-2.0
"""Who touched which bytes last: the memory of the race detector."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.runtime.debug.sites import Site


@dataclass(slots=True, eq=False)
class Use:
    """An operation that touches memory, at a point of a timeline.

    Attributes:
        name, place: what it is, and the stream or thread on which it runs.
        site: the line that asked for it.
        timeline, tick: its point in time; it is before whatever knows this tick of this timeline.
    """

    name: str
    place: str
    site: Site | None
    timeline: int = 0
    tick: int = 0


#: The bytes ``start..stop``, the last write of all of them, and the reads since.
_Span = tuple[int, int, "Use | None", tuple[Use, ...]]
#: A use that touched ``start..stop`` before, and whether it wrote.
Clash = tuple[Use, bool, int, int]


class Shadow:
    """A map from bytes to their uses, kept as disjoint spans in order. Not thread-safe."""

    def __init__(self) -> None:
        self._stops: list[int] = []
        self._spans: list[_Span] = []

    def read(self, start: int, stop: int, use: Use, known: Callable[[Use], bool]) -> list[Clash]:
        """Note that ``use`` reads; returns the writes that are not ``known`` to be before it."""
        first, last, inside, before, after = self._cut(start, stop)
        clashes: list[Clash] = []
        spans: list[_Span] = []
        at = start
        for low, high, write, reads in inside:
            if at < low:
                spans.append((at, low, None, (use,)))
            if write is not None and write is not use and not known(write):
                clashes.append((write, True, low, high))
            kept = tuple(r for r in reads if r is not use and not known(r))
            spans.append((low, high, write, (*kept, use)))
            at = high
        if at < stop:
            spans.append((at, stop, None, (use,)))
        self._replace(first, last, before + spans + after)
        return clashes

    def write(self, start: int, stop: int, use: Use, known: Callable[[Use], bool]) -> list[Clash]:
        """Note that ``use`` writes; returns the uses that are not ``known`` to be before it."""
        first, last, inside, before, after = self._cut(start, stop)
        clashes: list[Clash] = []
        for low, high, write, reads in inside:
            if write is not None and write is not use and not known(write):
                clashes.append((write, True, low, high))
            if reads:
                clashes += [(r, False, low, high) for r in reads if r is not use and not known(r)]
        self._replace(first, last, [*before, (start, stop, use, ()), *after])
        return clashes

    def forget(self, start: int, stop: int) -> None:
        """The bytes are no longer what they were: nothing conflicts with their past."""
        first, last, _, before, after = self._cut(start, stop)
        self._replace(first, last, before + after)

    def _cut(self, start: int, stop: int) -> tuple[int, int, list[_Span], list[_Span], list[_Span]]:
        """The places of the spans that overlap, what of them is inside, and what is left and right."""
        first = last = bisect_right(self._stops, start)
        if last < len(self._spans):
            span = self._spans[last]
            if span[0] == start and span[1] == stop:  # the same bytes as before
                return first, first + 1, [span], [], []
        inside: list[_Span] = []
        before: list[_Span] = []
        after: list[_Span] = []
        while last < len(self._spans) and self._spans[last][0] < stop:
            low, high, write, reads = self._spans[last]
            if low < start:
                before.append((low, start, write, reads))
            if high > stop:
                after.append((stop, high, write, reads))
            inside.append((max(low, start), min(high, stop), write, reads))
            last += 1
        return first, last, inside, before, after

    def _replace(self, first: int, last: int, spans: list[_Span]) -> None:
        self._spans[first:last] = spans
        self._stops[first:last] = [span[1] for span in spans]

    def __len__(self) -> int:
        return len(self._spans)
