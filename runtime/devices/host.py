# SPDX-License-Identifier: Apache-2.0
"""The CPU as a device: ordinary memory, streams on a few worker threads.

A stream is a queue that at most one worker drains at a time. A worker never blocks on an event: work
that must wait parks its stream, and the event's completion brings the stream back. So any number of
streams, waiting for each other in any way that has an end, runs on any number of workers.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    ResourceExhaustedError,
)
from gristmill.runtime import observer
from gristmill.runtime.devices.base import Device, DeviceAllocation, MemorySpace
from gristmill.runtime.devices.stream import Stream, Task, Work
from gristmill.runtime.events import Event, EventState, when_done
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.memory.host import PROCESS_POOL, aligned_empty, data_address
from gristmill.runtime.workers import WorkerPool

#: Copies up to this size run on the calling thread when nothing is before them: a hand-over to a
#: worker costs more than they do.
INLINE_BYTES = 1 << 20
#: Copies from this size on are split over threads, in pieces of ``PIECE_BYTES``.
PARALLEL_BYTES = 16 << 20
PIECE_BYTES = 8 << 20
#: Smaller memory comes from the heap: a mapping each would exhaust ``vm.max_map_count``.
_MAPPED_BYTES = 64 << 10
#: A worker goes to the next stream after this many pieces of work.
_TURN = 32


class _Idle(enum.Enum):
    """How it is with a stream's queue while no thread works on it."""

    EMPTY = "nothing is in it"
    #: Asking a second time does no harm: the first who comes does it.
    DUE = "a worker was asked, or an event will ask one"


class HostStream(Stream):
    """A stream on the workers of a :class:`HostDevice`.

    On the main thread an interrupt may come before or after every call. Whatever it ends, the stream goes on: an
    assignment says whose turn it is, and who finds that a step was interrupted asks for a worker once more.
    """

    def __init__(self, device: HostDevice, name: str, chain_errors: bool, pool: WorkerPool) -> None:
        super().__init__(device, name, chain_errors)
        self._host = device
        self._pool = pool
        self._tasks: deque[Task[Event]] = deque()
        #: Whose turn it is: an object that only the thread that works on the stream has, or that none does.
        self._holder: object = _Idle.EMPTY
        self._closed = False
        self._lock = threading.RLock()

    @property
    def closed(self) -> bool:
        """Whether the stream was closed."""
        return self._closed

    def enqueue(
        self,
        work: Work,
        *,
        waits: Sequence[Event] = (),
        name: str = "work",
    ) -> Event:
        """See ``Stream.enqueue``."""
        task = Task(Event(name), tuple(waits), work)
        if observer.active:
            self.device.observe(name, self, task.event, task.waits)
        self._push(task)
        return task.event

    def push_copy(self, work: Work, waits: Sequence[Event], name: str, inline: bool) -> Event:
        """Enqueue a copy. ``inline``: run on this thread when nothing is to be waited for."""
        task = Task(Event(name), tuple(waits), work)
        inline = inline and all(event.state is not EventState.PENDING for event in task.waits)
        self._push(task, inline)
        return task.event

    def wait_event(self, event: Event) -> None:
        """See ``Stream.wait_event``."""
        marker = Event(f"{self.name} waiting for {event.name}")
        self._push(Task(marker, (event,), marker=True))
        for tool in observer.active:
            tool.stream_waits(self, event)

    def record_event(self, name: str = "record") -> Event:
        """See ``Stream.record_event``."""
        task = Task(Event(name), marker=True)
        self._push(task, inline=True)
        for tool in observer.active:
            tool.recorded(self, task.event)
        return task.event

    def recover(self) -> None:
        """See ``Stream.recover``."""
        self._push(Task(Event("recover"), recovers=True, marker=True), inline=True)

    def claim(self, holder: object) -> bool:
        """Take the stream for work on this thread, if nothing is before it and nothing failed.

        It must be over soon, and :meth:`unclaim` be called after it, also when this is interrupted.
        """
        with self._lock:
            if self._holder is not _Idle.EMPTY or self._closed or self._error is not None:
                return False
            self._holder = holder
            return True

    def unclaim(self, holder: object) -> None:
        """Let the stream go on with what it was given meanwhile; again does no harm."""
        with self._lock:
            if self._holder is holder:
                self._holder = _Idle.DUE if self._tasks else _Idle.EMPTY
        if self._holder is _Idle.DUE:
            self._resume()

    def close(self, timeout: float | None = None) -> None:
        """See ``Stream.close``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            last = Event(f"close {self.name}")
            try:
                self._push(Task(last, marker=True), inline=True)
            except ClosedError:
                return  # by another thread meanwhile
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not last.done and not last.block(left):
                raise DeadlineError(
                    f"{self} still has work after {timeout:g} s and stays open; look for an event that "
                    "nothing completes"
                )
            with self._lock:
                if self._closed or self._holder is not _Idle.EMPTY:
                    continue
                self._closed = True
        self._host.stream_closed(self)

    def _push(self, task: Task[Event], inline: bool = False) -> None:
        mine = due = False
        try:
            with self._lock:
                if self._closed:
                    raise ClosedError(f"{self} was closed; create another stream")
                if self._holder is _Idle.EMPTY:
                    mine, due = inline, not inline
                    self._holder = task if inline else _Idle.DUE
                if not mine:
                    self._tasks.append(task)
            if mine:
                self._finish(task)
                self.unclaim(task)
            elif due:
                self._resume()
        except BaseException:  # an interrupt
            self.unclaim(task)
            raise

    def _drain(self) -> None:
        holder = object()
        try:
            with self._lock:
                if self._holder is not _Idle.DUE:  # another worker came first
                    return
                self._holder = holder
            for _ in range(_TURN):
                if not self._tasks:
                    break
                task = self._tasks[0]
                if not all(event.done for event in task.waits):
                    self._holder = _Idle.DUE
                    when_done(task.waits, self._resume)
                    return
                del self._tasks[0]
                try:
                    self._finish(task)
                except BaseException as error:  # an interrupt; others wait for the event
                    task.event.fail(error)
                    raise
                del task
            self.unclaim(holder)
        except BaseException:  # an interrupt, where there are no threads
            self.unclaim(holder)
            raise

    def _resume(self) -> None:
        self._pool.submit(self._drain)


class HostDevice(Device):
    """The CPU. Its memory is host memory, so every allocation has a host pointer.

    Args:
        ordinal: its number.
        workers: threads that run streams and help with large copies; default: the usable cores, at
            least 2.
        memory_limit: bytes of live allocations allowed; None: what the system has.
    """

    kind = "host"

    def __init__(
        self, ordinal: int = 0, *, workers: int | None = None, memory_limit: int | None = None
    ) -> None:
        super().__init__(ordinal)
        cores = len(os.sched_getaffinity(0))
        if workers is not None and workers < 1:
            raise InputError(f"a host device needs at least 1 worker, not {workers}")
        self.workers = workers or max(cores, 2)
        self.memory_limit = memory_limit
        self._pool = WorkerPool(self.workers)
        self._copiers = min(self.workers, cores)
        self._streams: weakref.WeakSet[HostStream] = weakref.WeakSet()
        self._registered: dict[int, int] = {}

    # Memory

    def _allocate(self, nbytes: int, space: MemorySpace, stream: Stream | None) -> DeviceAllocation:
        self._reserve(nbytes)
        try:
            address, owner, give_back = _host_block(nbytes)
        except (ResourceExhaustedError, MemoryError) as error:
            self.count_allocation(-nbytes)
            live = self.statistics().live_bytes
            raise ResourceExhaustedError(
                f"{self} cannot get {nbytes} bytes beside the {live} it has in use: "
                f"{str(error) or 'the system is out of memory'}"
            ) from error

        def release() -> None:
            give_back()
            self.count_allocation(-nbytes)

        return DeviceAllocation(
            self, space, address, nbytes, release, host_address=address, owner=owner
        )

    def _reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` as live, unless the limit forbids it."""
        with self._lock:
            live = self._statistics.live_bytes
            if self.memory_limit is not None and live + nbytes > self.memory_limit:
                raise ResourceExhaustedError(
                    f"{self} cannot get {nbytes} bytes: {live} of its memory_limit of "
                    f"{self.memory_limit} bytes are in use; close buffers or raise memory_limit"
                )
            self.count_allocation(nbytes)

    def reaches_host(self, address: int, nbytes: int) -> bool:
        """Always: this device is the host."""
        return True

    def find_host(self, address: int, nbytes: int) -> int | None:
        """Where it is."""
        return address

    def alias_host(
        self,
        address: int,
        nbytes: int,
        *,
        readonly: bool,
        owner: object,
        release: Callable[[], None] | None = None,
    ) -> DeviceAllocation:
        """Host memory as memory of this device: it is that already."""
        self.check_open()
        return DeviceAllocation(
            self, self.memory_spaces[0], address, nbytes, release,
            host_address=address, readonly=readonly, owner=owner,
        )  # fmt: skip

    def register_host(self, address: int, nbytes: int) -> int:
        """Record the range; host memory needs no page locking for a device that is the host."""
        if nbytes < 1 or address < 1:
            raise InputError(f"host memory of {nbytes} bytes at {address:#x} cannot be registered")
        with self._lock:
            for start, size in self._registered.items():
                if address < start + size and start < address + nbytes:
                    raise InputError(
                        f"host memory at {address:#x} ({nbytes} bytes) overlaps the {size} bytes at "
                        f"{start:#x} that are registered already"
                    )
            self._registered[address] = nbytes
        return address

    def unregister_host(self, address: int) -> None:
        """Undo :meth:`register_host`."""
        with self._lock:
            if self._registered.pop(address, None) is None:
                raise InputError(f"no host memory is registered at {address:#x}")

    # Streams and copies

    def _create_stream(self, name: str, chain_errors: bool) -> Stream:
        stream = HostStream(self, name, chain_errors, self._pool)
        with self._lock:
            self._streams.add(stream)
        return stream

    def stream_closed(self, stream: HostStream) -> None:
        """Called by a stream that was closed."""
        with self._lock:
            known = stream in self._streams
            self._streams.discard(stream)
        if known:
            self.count_stream_closed()
            for tool in observer.active:
                tool.closed(stream)

    def _copy(
        self,
        destination: DeviceAllocation,
        destination_offset: int,
        source: DeviceAllocation,
        source_offset: int,
        nbytes: int,
        stream: Stream,
        waits: Sequence[Event],
        name: str,
    ) -> Event:
        assert isinstance(stream, HostStream)
        target = self._reach(destination) + destination_offset
        origin = self._reach(source) + source_offset
        if nbytes < PARALLEL_BYTES or self._copiers == 1:
            work = partial(ctypes.memmove, target, origin, nbytes)
        else:
            work = partial(self._copy_parallel, target, origin, nbytes)
        return stream.push_copy(work, waits, name, nbytes <= INLINE_BYTES)

    def move_now(
        self,
        held: tuple[DeviceAllocation, ...],
        target: int,
        source: int,
        nbytes: int,
        kind: str,
        stream: Stream | None,
        waits: Sequence[Event],
        lent: ForeignMemory | None = None,
    ) -> Event | None:
        """See ``Device.move_now``: small copies for which nothing is to be waited for."""
        if nbytes > INLINE_BYTES or self._closed:
            return None
        for wait in waits:
            if not wait.known_ready:
                return None
        if target < source + nbytes and source < target + nbytes:
            return None
        event = Event.past(f"copy {kind} {nbytes} B")
        if stream is None:
            moved = self._move(event, held, target, source, nbytes, kind, stream, waits, lent)
        elif isinstance(stream, HostStream) and stream.device is self:
            try:
                if not stream.claim(event):
                    return None
                moved = self._move(event, held, target, source, nbytes, kind, stream, waits, lent)
                stream.unclaim(event)
            except BaseException:  # an interrupt
                stream.unclaim(event)
                raise
        else:
            return None
        return event if moved else None

    def _move(
        self,
        event: Event,
        held: tuple[DeviceAllocation, ...],
        target: int,
        source: int,
        nbytes: int,
        kind: str,
        stream: Stream | None,
        waits: Sequence[Event],
        lent: ForeignMemory | None,
    ) -> bool:
        """Copy at once; False when memory was closed."""
        kept: list[DeviceAllocation] = []
        try:
            for allocation in held:
                allocation.hold()
                kept.append(allocation)
            if observer.watching_copies and nbytes:
                event.started_ns = time.perf_counter_ns()
                ctypes.memmove(target, source, nbytes)
                event.completed_ns = time.perf_counter_ns()
                carrier = None if stream is not None else self._carrier(kind)
                for tool in observer.watching_copies:
                    tool.moved(event, target, source, nbytes, stream, carrier, waits, lent)
            else:
                ctypes.memmove(target, source, nbytes)
        except ClosedError:
            return False
        finally:
            for allocation in kept:
                allocation.let_go()
        self.count_copy(kind, nbytes)
        return True

    def _reach(self, allocation: DeviceAllocation) -> int:
        if allocation.host_address is None:
            raise InputError(
                f"{allocation!r} cannot be reached by the host; copy with its own device"
            )
        return allocation.host_address

    def _copy_parallel(self, target: int, origin: int, nbytes: int) -> None:
        """Copy in pieces on this thread and on workers that happen to be free."""
        copy = _ParallelCopy(target, origin, nbytes)
        for _ in range(self._copiers - 1):
            self._pool.submit(copy.help)
        copy.help()
        copy.finished.acquire()

    # Life

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until all work given to any stream of the device so far has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            streams = [stream for stream in self._streams if not stream.closed]
        for event in [stream.record_event(f"synchronize {stream.name}") for stream in streams]:
            event.wait(None if deadline is None else max(deadline - time.monotonic(), 0))

    def _close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        self._close_host_memory()
        self._pool.close()


class _ParallelCopy:
    """One large copy. Whoever helps takes the next piece, so late or missing helpers delay nobody."""

    def __init__(self, target: int, origin: int, nbytes: int) -> None:
        self._target, self._origin, self._nbytes = target, origin, nbytes
        self._pieces = -(-nbytes // PIECE_BYTES)
        self._next = itertools.count()
        self._left = self._pieces
        self._lock = threading.Lock()
        #: Held until every piece is copied.
        self.finished = threading.Lock()
        self.finished.acquire()

    def help(self) -> None:
        """Copy pieces until none is left to take."""
        while (index := next(self._next)) < self._pieces:
            start = index * PIECE_BYTES
            size = min(PIECE_BYTES, self._nbytes - start)
            ctypes.memmove(self._target + start, self._origin + start, size)
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.finished.release()


def _host_block(nbytes: int) -> tuple[int, object, Callable[[], None]]:
    """Address, owner and release function of new host memory."""
    if nbytes < _MAPPED_BYTES:
        array = aligned_empty((nbytes,), np.dtype(np.uint8))
        return data_address(array), array, _nothing
    block = PROCESS_POOL.acquire(nbytes)
    return block.address, block, partial(PROCESS_POOL.release, block)


def _nothing() -> None:
    """The heap takes memory back when its owner dies."""
