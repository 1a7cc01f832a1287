# SPDX-License-Identifier: Apache-2.0
"""Sets of integers kept as disjoint half-open intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Half-open intervals, sorted, disjoint, neighbours joined. Not thread-safe.

    An interval with ``start >= stop`` is empty: adding it changes nothing, it overlaps nothing.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def overlaps(self, start: int, stop: int) -> tuple[int, int] | None:
        """The first part of ``start..stop`` that is in the set, or None."""
        index = bisect_right(self._stops, start)
        if start >= stop or index == len(self._starts) or self._starts[index] >= stop:
            return None
        return max(start, self._starts[index]), min(stop, self._stops[index])

    def add(self, start: int, stop: int) -> None:
        """Put ``start..stop`` into the set."""
        if start >= stop:
            return
        # The intervals that overlap or touch it become one with it.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of ``start..stop`` that are not in the set, in order."""
        found: list[tuple[int, int]] = []
        for low, high in self:
            if high <= start:
                continue
            if low >= stop:
                break
            if low > start:
                found.append((start, low))
            start = high
        if start < stop:
            found.append((start, stop))
        return found

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of ``start..stop`` is in the set."""
        index = bisect_right(self._starts, start) - 1
        return start >= stop or (index >= 0 and self._stops[index] >= stop)

    @property
    def total(self) -> int:
        """How many integers are in the set."""
        return sum(self._stops) - sum(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._stops, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{low}..{high}" for low, high in self) + "}"
