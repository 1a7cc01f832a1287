# SPDX-License-Identifier: Apache-2.0
"""What a traced program did, as data: steps on tracks, what they waited for, and where the host waited.

Times are nanoseconds since the trace began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gristmill.runtime.debug.sites import Site


class Track(NamedTuple):
    """A row of the timeline: a stream of a device, or a thread of the host."""

    process: str
    name: str


@dataclass(slots=True)
class Step:
    """A piece of work of a device.

    Attributes:
        name: as its operation is called.
        category: ``copy``, ``kernel`` or ``host`` (a function that runs on a stream).
        kind: for copies ``h2d``, ``d2h``, ``d2d`` or ``h2h``.
        nbytes: what a copy moves, or what is written.
        track: the stream.
        ordered: whether it is in the stream's order, or is only carried by it.
        submitted, started, ended: when it was given, ran, and was done.
        after: the indices of the steps it had to wait for, the one before it on the stream included.
        site: the line that gave it.
        failed, unfinished: how it ended, if not well.
    """

    name: str
    category: str
    kind: str
    nbytes: int
    track: Track
    ordered: bool
    submitted: int
    started: int
    ended: int
    after: tuple[int, ...] = ()
    site: Site | None = None
    failed: bool = False
    unfinished: bool = False

    @property
    def duration(self) -> int:
        """Nanoseconds that it ran."""
        return self.ended - self.started


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Something a thread of the host did, or waited for; ``after`` are steps a wait ended with."""

    thread: str
    name: str
    started: int
    ended: int
    waits: bool
    after: tuple[int, ...] = ()
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """A transfer of a manager, made of many steps."""

    name: str
    started: int
    ended: int
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The live bytes of a device's memory space, since the trace began, from a time on."""

    time: int
    name: str
    nbytes: int


@dataclass(slots=True)
class Trace:
    """A traced program. ``duration`` is from the beginning to the end of the trace."""

    duration: int
    steps: list[Step] = field(default_factory=list[Step])
    host: list[HostSpan] = field(default_factory=list[HostSpan])
    transfers: list[TransferSpan] = field(default_factory=list[TransferSpan])
    memory: list[MemorySample] = field(default_factory=list[MemorySample])
    #: Things not recorded, because the limit was reached.
    dropped: int = 0

    def tracks(self) -> dict[Track, list[int]]:
        """The indices of the steps of each track, in the order in which they ran."""
        found: dict[Track, list[int]] = {}
        for index, step in enumerate(self.steps):
            found.setdefault(step.track, []).append(index)
        for indices in found.values():
            indices.sort(key=lambda i: (self.steps[i].started, self.steps[i].ended))
        return found

    def waits(self) -> list[tuple[Track, int, int, int]]:
        """Where streams stood still for dependencies: track, start, end, and the step that waited."""
        found: list[tuple[Track, int, int, int]] = []
        for track, indices in self.tracks().items():
            free = 0
            for index in indices:
                step = self.steps[index]
                ready = max((self.steps[other].ended for other in step.after), default=0)
                start = max(free, step.submitted)
                stop = min(ready, step.started)
                if stop > start:
                    found.append((track, start, stop, index))
                free = max(free, step.ended)
        return found
