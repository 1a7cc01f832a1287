# SPDX-License-Identifier: Apache-2.0
"""Records what a program does with its devices, for Perfetto (ui.perfetto.dev) or ``chrome://tracing``.

    with timeline.record() as recording:
        ...
    recording.save("trace.json")

Streams are tracks, with copies, kernels, host work and the waits between them; arrows lead from work to what
waited for it. Host threads are tracks, with their blocking waits and the program's own
:meth:`Recording.span`. Transfers of managers and live memory are shown too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gristmill.runtime import observer
from gristmill.runtime.debug import chrome, trace_builder
from gristmill.runtime.debug.sites import caller
from gristmill.runtime.debug.trace import Trace
from gristmill.runtime.debug.trace_builder import (
    HostRecord,
    Joined,
    Log,
    MemoryChange,
    Moved,
    Recorded,
    StreamWaits,
    Submitted,
)
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.observer import Operation

#: Entries beyond this many are counted only. One takes a few hundred bytes.
MOST_ENTRIES = 1_000_000


class _Thread(threading.local):
    """What the current thread waits for, and since when."""

    event: Event | None = None
    began: int = 0


class Recording(observer.Observer):
    """See the module's text; :func:`record` installs one."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._began = time.perf_counter_ns()
        self._ended: int | None = None
        self._most = most_entries
        self._log: Log = []
        self._dropped = 0
        self._thread = _Thread()
        self._lock = threading.Lock()

    # Results

    def trace(self) -> Trace:
        """What was recorded so far, as data."""
        ended = self._ended or time.perf_counter_ns()
        return trace_builder.build(tuple(self._log), self._began, ended, self._dropped)

    def save(self, path: Path | str) -> None:
        """Write the trace as Chrome's JSON."""
        chrome.save(self.trace(), path)

    def finish(self) -> None:
        """The end of the trace."""
        self._ended = time.perf_counter_ns()

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Show what the block does as ``name`` on the thread's track."""
        site = caller()
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            ended = time.perf_counter_ns()
            thread = threading.current_thread().name
            self._add(HostRecord(name, thread, began, ended, None, site))

    def _add(self, entry: trace_builder.Entry) -> None:
        if len(self._log) < self._most:
            self._log.append(entry)
        else:
            with self._lock:
                self._dropped += 1

    # Hooks

    def submitted(self, operation: Operation) -> None:
        """See ``Observer.submitted``."""
        self._add(Submitted(operation, time.perf_counter_ns(), caller()))

    def moved(
        self,
        event: Event,
        target: int,
        source: int,
        nbytes: int,
        stream: Stream | None,
        carrier: Stream | None,
        waits: Sequence[Event],
        lent: ForeignMemory | None,
    ) -> None:
        """See ``Observer.moved``."""
        self._add(Moved(event, nbytes, stream, carrier, waits, caller(3)))

    def stream_waits(self, stream: Stream, event: Event) -> None:
        """See ``Observer.stream_waits``."""
        self._add(StreamWaits(stream, event))

    def recorded(self, stream: Stream, event: Event) -> None:
        """See ``Observer.recorded``."""
        self._add(Recorded(stream, event))

    def joined(self, event: Event, sources: Sequence[Event]) -> None:
        """See ``Observer.joined``."""
        site = None if sources else caller()
        self._add(Joined(event, tuple(sources), time.perf_counter_ns(), site))

    def waiting(self, event: Event) -> None:
        """See ``Observer.waiting``."""
        self._thread.event, self._thread.began = event, time.perf_counter_ns()

    def waited(self, event: Event) -> None:
        """See ``Observer.waited``."""
        blocked, self._thread.event = self._thread.event is event, None
        if blocked:
            began = self._thread.began
            ended = time.perf_counter_ns()
            thread = threading.current_thread().name
            self._add(HostRecord(event.name, thread, began, ended, event, caller()))

    def allocated(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.allocated``."""
        self._memory(allocation, allocation.nbytes)

    def released(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.released``."""
        self._memory(allocation, -allocation.nbytes)

    def _memory(self, allocation: DeviceAllocation, change: int) -> None:
        if change and allocation.space is not MemorySpace.HOST:
            name = f"{allocation.device} {allocation.space.value} bytes"
            self._add(MemoryChange(time.perf_counter_ns(), name, change))


@contextmanager
def record(*, most_entries: int = MOST_ENTRIES) -> Generator[Recording]:
    """Record while the block runs. Work that is still running at its end is shown as unfinished."""
    recording = Recording(most_entries)
    observer.install(recording)
    try:
        yield recording
    finally:
        recording.finish()
        observer.uninstall(recording)
