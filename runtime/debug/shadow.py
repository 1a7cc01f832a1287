# SPDX-License-Identifier: Apache-2.0
"""Who touched which bytes last: the memory of the race detector."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gristmill.runtime.debug.clocks import Clock
from gristmill.runtime.debug.sites import Site


class Use:
    """An operation that touches memory, at a point of a timeline.

    Attributes:
        name, place: what it is, and the stream or thread on which it runs.
        site: the line that asked for it.
        timeline, tick: its point in time; it is before whatever knows this tick of this timeline.
    """

    __slots__ = ("name", "place", "site", "tick", "timeline")

    def __init__(self, name: str, place: str, site: Site | None) -> None:
        self.name = name
        self.place = place
        self.site = site
        self.timeline = self.tick = 0

    def is_before(self, clock: Clock) -> bool:
        """Whether whoever has ``clock`` comes after it."""
        return clock.get(self.timeline, 0) >= self.tick


#: The bytes ``start..stop``, the last write of all of them, and the reads since.
_Span = tuple[int, int, "Use | None", tuple[Use, ...]]
#: A use that touched ``start..stop`` before, and whether it wrote.
Clash = tuple[Use, bool, int, int]
_NONE: Sequence[Clash] = ()


class Shadow:
    """A map from bytes to their uses, kept as disjoint spans in order. Not thread-safe."""

    def __init__(self) -> None:
        self._stops: list[int] = []
        self._spans: list[_Span] = []

    def read(self, start: int, stop: int, use: Use, clock: Clock) -> Sequence[Clash]:
        """Note that ``use`` reads; returns the writes that are not before ``clock``."""
        at = bisect_right(self._stops, start)
        if at < len(self._spans):
            low, high, write, reads = self._spans[at]
            if low == start and high == stop:  # the same bytes as before
                if reads:
                    last = reads[-1]
                    if len(reads) > 1 or clock.get(last.timeline, 0) < last.tick:
                        kept = _readers(reads, use, clock)
                    else:
                        kept = (use,)
                else:
                    kept = (use,)
                self._spans[at] = (start, stop, write, kept)
                if write is None or write is use or clock.get(write.timeline, 0) >= write.tick:
                    return _NONE
                return [(write, True, start, stop)]
        return self._read_parts(start, stop, use, clock)

    def write(self, start: int, stop: int, use: Use, clock: Clock) -> Sequence[Clash]:
        """Note that ``use`` writes; returns the uses that are not before ``clock``."""
        at = bisect_right(self._stops, start)
        if at < len(self._spans):
            span = self._spans[at]
            if span[0] == start and span[1] == stop:
                self._spans[at] = (start, stop, use, ())
                return _unordered(span, use, clock)
        first, last, inside, before, after = self._cut(start, stop)
        self._replace(first, last, [*before, (start, stop, use, ()), *after])
        return [clash for span in inside for clash in _unordered(span, use, clock)]

    def _read_parts(self, start: int, stop: int, use: Use, clock: Clock) -> Sequence[Clash]:
        first, last, inside, before, after = self._cut(start, stop)
        clashes: list[Clash] = []
        spans: list[_Span] = []
        at = start
        for low, high, write, reads in inside:
            if at < low:
                spans.append((at, low, None, (use,)))
            if write is not None and write is not use and not write.is_before(clock):
                clashes.append((write, True, low, high))
            spans.append((low, high, write, _readers(reads, use, clock)))
            at = high
        if at < stop:
            spans.append((at, stop, None, (use,)))
        self._replace(first, last, before + spans + after)
        return clashes

    def forget(self, start: int, stop: int) -> None:
        """The bytes are no longer what they were: nothing conflicts with their past."""
        first, last, _, before, after = self._cut(start, stop)
        self._replace(first, last, before + after)

    def _cut(self, start: int, stop: int) -> tuple[int, int, list[_Span], list[_Span], list[_Span]]:
        """The places of the spans that overlap, what of them is inside, and what is left and right."""
        first = last = bisect_right(self._stops, start)
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


def _readers(reads: tuple[Use, ...], use: Use, clock: Clock) -> tuple[Use, ...]:
    """The reads that a later write must come after, now that ``use`` reads too."""
    for read in reads:
        if read is not use and clock.get(read.timeline, 0) < read.tick:
            break
    else:
        return (use,)
    return (*(r for r in reads if r is not use and not r.is_before(clock)), use)


def _unordered(span: _Span, use: Use, clock: Clock) -> Sequence[Clash]:
    """What of a span is not before a write by ``use``."""
    low, high, write, reads = span
    if not reads and (write is None or clock.get(write.timeline, 0) >= write.tick):
        return _NONE
    clashes: list[Clash] = []
    if write is not None and write is not use and clock.get(write.timeline, 0) < write.tick:
        clashes.append((write, True, low, high))
    for read in reads:
        if read is not use and clock.get(read.timeline, 0) < read.tick:
            clashes.append((read, False, low, high))
    return clashes
