# SPDX-License-Identifier: Apache-2.0
"""Makes a trace of what a recording has noted: who waited for whom, and when each piece ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gristmill.runtime.debug.sites import Site
from gristmill.runtime.debug.trace import (
    HostSpan,
    MemorySample,
    Step,
    Trace,
    Track,
    TransferSpan,
)
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.observer import Access, Operation

_COPY_KINDS = frozenset({"h2d", "d2h", "d2d", "h2h"})
_KERNELS = ("launch ", "graph ")


class Submitted(NamedTuple):
    """Work was given to a device."""

    operation: Operation
    time: int
    site: Site | None


class Moved(NamedTuple):
    """A copy was given and is over."""

    event: Event
    nbytes: int
    stream: Stream | None
    carrier: Stream | None
    waits: Sequence[Event]
    site: Site | None

    def submitted(self, began: int) -> Submitted:
        """The same as for a copy that was given first and ran later."""
        writes = (Access(0, self.nbytes),)
        operation = Operation(
            self.event.name, self.stream, self.event, tuple(self.waits), (), writes, self.carrier
        )
        return Submitted(operation, self.event.started_ns or began, self.site)


class StreamWaits(NamedTuple):
    """A stream was told to wait for an event."""

    stream: Stream
    event: Event


class Recorded(NamedTuple):
    """An event marks what a stream was given so far."""

    stream: Stream
    event: Event


class Joined(NamedTuple):
    """An event that others complete; without sources: it was promised now."""

    event: Event
    sources: tuple[Event, ...]
    time: int
    site: Site | None


class HostRecord(NamedTuple):
    """A span of a thread; of waiting, where there is an event."""

    name: str
    thread: str
    began: int
    ended: int
    event: Event | None
    site: Site | None


class MemoryChange(NamedTuple):
    """Memory was taken or given back."""

    time: int
    name: str
    change: int


Entry = Submitted | Moved | StreamWaits | Recorded | Joined | HostRecord | MemoryChange
Log = list[Entry]


def build(log: Sequence[Entry], began: int, ended: int, dropped: int) -> Trace:
    """The trace of a log; ``began`` and ``ended`` are on the clock of its times."""
    return _Builder(log, began, ended, dropped).build()


class _Builder:
    def __init__(self, log: Sequence[Entry], began: int, ended: int, dropped: int) -> None:
        self._log = log
        self._began = began
        self._trace = Trace(ended - began, dropped=dropped)
        #: By the ``id`` of events, which the log keeps alive.
        self._steps: dict[int, int] = {}
        self._marks: dict[int, list[int]] = {}
        self._joined: dict[int, list[Event]] = {}
        self._events: list[Event] = []
        self._waits: list[list[Event]] = []
        self._tails: dict[int, int] = {}
        self._pending: dict[int, list[Event]] = {}

    def build(self) -> Trace:
        promised: list[Joined] = []
        waits: list[HostRecord] = []
        live: dict[str, int] = {}
        for entry in self._log:
            match entry:
                case Submitted():
                    self._submitted(entry)
                case Moved():
                    self._submitted(entry.submitted(self._began))
                case StreamWaits(stream, event):
                    self._pending.setdefault(id(stream), []).append(event)
                case Recorded(stream, event):
                    tail = self._tails.get(id(stream))
                    self._marks[id(event)] = [] if tail is None else [tail]
                case Joined(event, sources, _, _):
                    if not sources:
                        promised.append(entry)
                    self._joined.setdefault(id(event), []).extend(sources)
                case HostRecord():
                    waits.append(entry)
                case MemoryChange(time, name, change):
                    live[name] = live.get(name, 0) + change
                    sample = MemorySample(time - self._began, name, live[name])
                    self._trace.memory.append(sample)
        self._schedule()
        self._trace.host = [self._host(entry) for entry in waits]
        self._trace.transfers = [
            TransferSpan(e.event.name, e.time - self._began, self._ended(e.event)[0], e.site)
            for e in promised
        ]
        return self._trace

    def _submitted(self, entry: Submitted) -> None:
        operation = entry.operation
        known = self._steps.get(id(operation.completion))
        if known is not None:  # told again, with more
            step = self._trace.steps[known]
            step.nbytes = max(step.nbytes, _size(operation))
            self._waits[known] += operation.waits
            return
        index = len(self._trace.steps)
        stream = operation.stream or operation.carrier
        track = Track("unordered", "work") if stream is None else _track(stream)
        words = operation.name.split()
        kind = words[1] if len(words) > 1 and words[1] in _COPY_KINDS else ""
        category = "copy" if kind or words[0] in ("read", "fill") else "host"
        if operation.name.startswith(_KERNELS):
            category = "kernel"
        time = entry.time - self._began
        ordered = operation.stream is not None
        size = _size(operation)
        step = Step(
            operation.name, category, kind, size, track, ordered, time, 0, 0, site=entry.site
        )
        self._trace.steps.append(step)
        self._steps[id(operation.completion)] = index
        self._events.append(operation.completion)
        needed = list(operation.waits)
        if operation.stream is not None:
            key = id(operation.stream)
            needed += self._pending.pop(key, [])
            if key in self._tails:
                step.after = (self._tails[key],)
            self._tails[key] = index
        self._waits.append(needed)

    def _schedule(self) -> None:
        """Dependencies and times of all steps, now that all events are known."""
        steps = self._trace.steps
        for index, step in enumerate(steps):
            found = set(step.after)
            for event in self._waits[index]:
                found |= self._sources(event)
            step.after = tuple(sorted(found - {index}))
            event = self._events[index]
            step.ended, step.unfinished = self._ended(event)
            step.failed = event.error is not None
            started = event.started_ns
            step.started = step.submitted if started is None else started - self._began
            # The operation is told of after it was given, and may even be over by then.
            step.submitted = min(step.submitted, step.ended)
            step.started = max(min(step.started, step.ended), 0)
        for indices in self._trace.tracks().values():
            free = 0
            for index in sorted(indices, key=lambda i: steps[i].ended):
                # One piece of a stream runs at a time; drivers tell only when they were given it.
                step = steps[index]
                ready = max((steps[other].ended for other in step.after), default=0)
                step.started = min(max(step.started, free, ready), step.ended)
                step.submitted = min(step.submitted, step.started)
                free = step.ended

    def _sources(self, event: Event) -> set[int]:
        """The steps that an event stands for."""
        found: set[int] = set()
        todo, seen = [event], {id(event)}
        while todo:
            key = id(todo.pop())
            if key in self._steps:
                found.add(self._steps[key])
            found.update(self._marks.get(key, ()))
            for source in self._joined.get(key, ()):
                if id(source) not in seen:
                    seen.add(id(source))
                    todo.append(source)
        return found

    def _ended(self, event: Event) -> tuple[int, bool]:
        """When an event was done, and whether it was not within the trace."""
        done = event.completed_ns
        if done is None or done - self._began > self._trace.duration:
            return self._trace.duration, True
        return max(done - self._began, 0), False

    def _host(self, entry: HostRecord) -> HostSpan:
        began, ended = entry.began - self._began, entry.ended - self._began
        if entry.event is None:
            return HostSpan(entry.thread, entry.name, began, ended, False, (), entry.site)
        sources = self._sources(entry.event)
        # Of all that the event stands for, what was done last made the thread wait.
        last = max(sources, key=lambda i: self._trace.steps[i].ended, default=None)
        after = () if last is None else (last,)
        return HostSpan(entry.thread, entry.name, began, ended, True, after, entry.site)


def _track(stream: Stream) -> Track:
    return Track(str(stream.device), stream.name)


def _size(operation: Operation) -> int:
    return sum(access.nbytes for access in operation.writes)
