# SPDX-License-Identifier: Apache-2.0
"""Vector clocks over the timelines of streams, unordered operations and the host.

A clock maps timelines to ticks: whoever has it is after all these points. Every stream is a timeline of
its own. An operation that is in no stream's order takes any timeline whose last tick it knows, so that
there are only about as many timelines as there is work at once.
"""

from __future__ import annotations

Clock = dict[int, int]
#: The host's own timeline: what the threads of the program do.
HOST = 0


class Timelines:
    """The timelines, and the clock of the host. Not thread-safe.

    All threads of the program share one clock: that they order their calls among themselves, by means
    nobody sees, is their business.
    """

    def __init__(self) -> None:
        self._last: list[int] = [0]
        self._streams: dict[int, int] = {}
        self._owned: set[int] = {HOST}
        self._free: list[int] = []
        #: What the host has seen. Replaced when it grows, never changed.
        self.host: Clock = {}

    def tick_stream(self, stream: int, clock: Clock) -> tuple[int, int]:
        """The next point of a stream (by ``id``), noted in ``clock``."""
        timeline = self._streams.get(stream)
        if timeline is None:
            timeline = self._streams[stream] = self._take(clock)
            self._owned.add(timeline)
        return self._tick(timeline, clock)

    def tick_unordered(self, clock: Clock, hint: int | None) -> tuple[int, int]:
        """A point of any timeline after ``clock``; ``hint`` is one to try first."""
        if hint is not None and hint not in self._owned and clock.get(hint, 0) == self._last[hint]:
            return self._tick(hint, clock)
        return self._tick(self._take(clock), clock)

    def tick_after_host(self, clock: Clock) -> tuple[int, int]:
        """A point of any timeline after ``clock``, which is what the host has seen."""
        timeline = self._free.pop() if self._free else -1
        last = self._last[timeline]
        if timeline < 0 or timeline in self._owned or clock.get(timeline, 0) != last:
            return self.tick_unordered(clock, None)
        self._last[timeline] = clock[timeline] = last + 1
        return timeline, last + 1

    def tick_host(self) -> tuple[int, int]:
        """The next point of the host."""
        self.host = dict(self.host)
        return self._tick(HOST, self.host)

    def end_stream(self, stream: int) -> None:
        """The stream is gone; the host has seen all of it."""
        timeline = self._streams.pop(stream, None)
        if timeline is not None:
            self._owned.discard(timeline)
            self._free.append(timeline)

    def host_sees(self, clock: Clock) -> None:
        """Let the host be after ``clock``."""
        news = [(t, tick) for t, tick in clock.items() if tick > self.host.get(t, 0)]
        if not news:
            return
        self.host = dict(self.host)
        for timeline, tick in news:
            self.host[timeline] = tick
            if tick == self._last[timeline] and timeline not in self._owned:
                self._free.append(timeline)

    def _take(self, clock: Clock) -> int:
        while self._free:
            timeline = self._free[-1]
            last = self._last[timeline]
            if timeline not in self._owned and self.host.get(timeline, 0) == last:
                if clock.get(timeline, 0) != last:
                    break  # an operation submitted before the host saw this one
                return self._free.pop()
            self._free.pop()
        self._last.append(0)
        return len(self._last) - 1

    def _tick(self, timeline: int, clock: Clock) -> tuple[int, int]:
        tick = self._last[timeline] = clock[timeline] = self._last[timeline] + 1
        return timeline, tick

    def __len__(self) -> int:
        return len(self._last)


def join(clock: Clock, other: Clock) -> None:
    """Let ``clock`` be after ``other`` too."""
    for timeline, tick in other.items():
        if tick > clock.get(timeline, 0):
            clock[timeline] = tick
