# SPDX-License-Identifier: Apache-2.0
"""Moves bytes from host sources to device memory in pieces, with bounded staging.

    queued ─▶ (staged in a slot of the pinned ring) ─▶ copied ─▶ (read back) ─▶ done

The queue is ordered by priority, then by age. A piece needs a slot before it starts, and there are only
so many, so bytes in flight are bounded. Nothing here blocks except :meth:`Uploader.admit`, the
back-pressure on callers. Filling slots and checksums run on the uploader's own threads, copies on the
device's transfer stream; every completion starts what can be started next.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    DeviceError,
    InputError,
    TransferError,
)
from gristmill.runtime import observer
from gristmill.runtime.checksum import crc32_at, crc32_joined
from gristmill.runtime.devices.base import Device, DeviceAllocation
from gristmill.runtime.events import Event
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.workers import WorkerPool


class Source(ABC):
    """Bytes on the host. ``address`` is where they are in memory, or None when they must be read."""

    nbytes: int
    address: int | None = None

    @abstractmethod
    def fill(self, address: int, start: int, nbytes: int) -> None:
        """Put bytes ``start`` to ``start + nbytes`` at ``address``; called from any thread."""


class MemorySource(Source):
    """Host memory, kept alive as long as this."""

    def __init__(self, memory: ForeignMemory) -> None:
        self.nbytes = memory.nbytes
        self.address = memory.address
        self._memory = memory

    def fill(self, address: int, start: int, nbytes: int) -> None:
        """See ``Source.fill``."""
        ctypes.memmove(address, self._memory.address + start, nbytes)


class FileSource(Source):
    """``nbytes`` of an open file from ``offset`` on; the descriptor is borrowed."""

    def __init__(self, descriptor: int, offset: int, nbytes: int, name: str) -> None:
        self.nbytes = nbytes
        self.name = name
        self._descriptor = descriptor
        self._offset = offset

    def fill(self, address: int, start: int, nbytes: int) -> None:
        """See ``Source.fill``; raises ``TransferError`` when the file ends early."""
        view = memoryview((ctypes.c_ubyte * nbytes).from_address(address))
        done = 0
        while done < nbytes:
            at = self._offset + start + done
            try:
                count = os.preadv(self._descriptor, [view[done:]], at)
            except OSError as error:
                raise TransferError(f"reading {self.name} at byte {at} failed: {error}") from error
            if count == 0:
                raise TransferError(f"{self.name} ends at byte {at}, before all was read")
            done += count


@dataclass(eq=False)
class Transfer:
    """A contiguous part of a source on its way to one place in device memory.

    Attributes:
        source, target, offset: what goes where; ``target`` is held by whoever made the transfer.
        priority: higher goes first.
        checksum: the CRC-32 the source's bytes must have, or None.
        abandoned: returns the error for which pieces not yet begun are dropped, or None.
        arrived: told the size of each piece that is there.
        finished: called once, with the first error or None, when nothing uses the source any more.
        event: what ``finished`` completes.
    """

    source: Source
    target: DeviceAllocation
    offset: int
    priority: int
    checksum: int | None
    abandoned: Callable[[], BaseException | None]
    arrived: Callable[[int], None]
    finished: Callable[[BaseException | None], None]
    event: Event
    error: BaseException | None = None
    left: int = 0
    sums: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    lock: threading.RLock = field(default_factory=threading.RLock)

    def sum_matches(self) -> bool:
        """Whether the pieces that were sent add up to :attr:`checksum`."""
        total = 0
        for _, (crc, nbytes) in sorted(self.sums.items()):
            total = crc32_joined(total, crc, nbytes)
        return total == self.checksum


@dataclass(order=True)
class _Piece:
    rank: tuple[int, int]  # (-priority, age)
    transfer: Transfer = field(compare=False)
    start: int = field(compare=False)
    nbytes: int = field(compare=False)
    attempts: int = field(default=0, compare=False)
    crc: int | None = field(default=None, compare=False)
    #: The copy after which its next step runs.
    last: Event | None = field(default=None, compare=False)


@dataclass(frozen=True)
class UploadOptions:
    """How an :class:`Uploader` works.

    Attributes:
        chunk_bytes: the largest piece, and the size of a staging slot.
        staging_bytes: bytes in flight at most, and the size of the pinned ring.
        pending_bytes: host bytes that callers may have queued; more of them wait (back-pressure).
            Files do not count: their bytes are read when they are sent.
        staged: copy by way of the ring; None: unless the host sees the device's memory.
        retries: how often a piece is sent again after a ``DeviceError`` or a failed verification.
        verify: read every piece back and compare checksums.
        threads: threads that fill slots and compute checksums.
    """

    chunk_bytes: int = 4 << 20
    staging_bytes: int = 32 << 20
    pending_bytes: int = 1 << 30
    staged: bool | None = None
    retries: int = 0
    verify: bool = False
    threads: int = 2

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 or self.staging_bytes < self.chunk_bytes:
            raise InputError(
                f"staging_bytes ({self.staging_bytes}) must hold at least one chunk, and chunk_bytes "
                f"({self.chunk_bytes}) must be positive"
            )
        if self.retries < 0 or self.threads < 1 or self.pending_bytes < 1:
            raise InputError("retries must not be negative; threads and pending_bytes at least 1")


@dataclass(frozen=True)
class UploadStatistics:
    """Counts of an uploader: pieces and bytes done, pieces sent again, and bytes in flight at most."""

    pieces: int = 0
    nbytes: int = 0
    retries: int = 0
    peak_in_flight_bytes: int = 0


class Uploader:
    """The queue, the staging ring and the threads of uploads to one device; managers may share it.

    A context manager. ``close`` must come after its managers are closed.
    """

    def __init__(self, device: Device, options: UploadOptions | None = None) -> None:
        self.device = device
        self.options = options or UploadOptions()
        self._slots = list(range(self.options.staging_bytes // self.options.chunk_bytes))
        self._ring: DeviceAllocation | None = None
        self._queue: list[_Piece] = []
        self._ages = itertools.count()
        self._workers = WorkerPool(self.options.threads, "gristmill-upload")
        self._pumping = False
        self._closed = False
        self._pending = 0
        self._in_flight = 0
        self._statistics = UploadStatistics()
        # Re-entrant: the garbage collector may abandon a manager while this thread is in here. Nothing that takes a
        # lock of the device is called under it: whoever holds that may be waiting, in a finaliser, for this one.
        self._lock = threading.RLock()
        self._making_ring = threading.RLock()
        self._drained = threading.Condition(self._lock)
        for tool in observer.active:
            tool.opened(self)

    # Callers

    def admit(self, source: Source, timeout: float | None) -> None:
        """Wait until ``source`` may be queued and reserve its place; every place ends in its transfer.

        Raises ``DeadlineError`` after ``timeout`` seconds. Never waits inside a completion callback,
        whose thread is needed to make room.
        """
        if source.address is None:
            return
        limit = self.options.pending_bytes

        def fits() -> bool:
            return self._pending == 0 or self._pending + source.nbytes <= limit

        with self._drained:
            if not self.completing and not self._drained.wait_for(fits, timeout):
                raise DeadlineError(
                    f"{self._pending} bytes are queued for {self.device} and pending_bytes is {limit}: "
                    f"no room for {source.nbytes} more within {timeout} s"
                )
            self._pending += source.nbytes

    def withdraw(self, source: Source) -> None:
        """Give back the place of an admitted source that is not submitted."""
        if source.address is not None:
            with self._drained:
                self._pending -= source.nbytes
                self._drained.notify_all()

    def submit(self, transfer: Transfer) -> None:
        """Queue an admitted transfer; its ``finished`` is called in any case, perhaps at once."""
        chunk = self.options.chunk_bytes
        starts = range(0, transfer.source.nbytes, chunk)
        transfer.left = len(starts)
        with self._lock:
            closed = self._closed
            for start in () if closed else starts:
                rank = (-transfer.priority, next(self._ages))
                nbytes = min(chunk, transfer.source.nbytes - start)
                heapq.heappush(self._queue, _Piece(rank, transfer, start, nbytes))
        if closed or not starts:
            if closed:
                transfer.error = ClosedError(f"the uploader of {self.device} was closed")
            self._finish(transfer)
            return
        self._pump()

    def sweep(self) -> None:
        """Drop queued pieces of abandoned transfers, without waiting for slots."""
        with self._lock:
            dropped = [p for p in self._queue if p.transfer.abandoned() is not None]
            if dropped:
                gone = set(map(id, dropped))
                self._queue = [piece for piece in self._queue if id(piece) not in gone]
                heapq.heapify(self._queue)
        for piece in dropped:
            self._end(piece, piece.transfer.abandoned())

    @property
    def completing(self) -> bool:
        """Whether the calling thread is inside a completion callback of an uploader of this device.

        It may be the thread that this one's pieces need, whosever callback it is in.
        """
        return self.device in _here.devices

    def statistics(self) -> UploadStatistics:
        """The counts so far."""
        with self._lock:
            return self._statistics

    def close(self, *, wait: bool = True) -> None:
        """End the threads and give the ring back; idempotent. ``wait``: until the threads have ended.

        What is queued is sent all the same; the ring goes after the last of it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for tool in observer.active:
            tool.closed(self)
        self._workers.close(wait=wait)
        ring = self._unused_ring()
        if ring is not None:
            ring.drop()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The way of a piece

    def _pump(self) -> None:
        """Start pieces while there are slots. One thread at a time, so completions do not recurse."""
        with self._lock:
            if self._pumping:
                return
            self._pumping = True
        try:
            while self._start_next():
                pass
        except BaseException:  # an interrupt: others must be able to go on
            self._pumping = False
            raise

    def _start_next(self) -> bool:
        """Start the first piece; False when there is none, or no slot, and nobody pumps any more."""
        with self._lock:
            if not self._queue or not self._slots:
                self._pumping = False
                return False
            piece = heapq.heappop(self._queue)
            slot = self._slots.pop()
            self._in_flight += piece.nbytes
            peak = max(self._statistics.peak_in_flight_bytes, self._in_flight)
            self._statistics = replace(self._statistics, peak_in_flight_bytes=peak)
        self._attempt(piece, slot, self._begin)
        return True

    def _attempt(self, piece: _Piece, slot: int, step: Callable[[_Piece, int], None]) -> None:
        """Take one step; what it raises ends the piece."""
        try:
            if observer.active:
                asked = piece.transfer.event
                causes = (asked,) if piece.last is None else (asked, piece.last)
                observer.call_after(causes, step, piece, slot)
            else:
                step(piece, slot)
        except BaseException as error:
            self._landed(piece, slot, error)

    def _begin(self, piece: _Piece, slot: int) -> None:
        transfer = piece.transfer
        abandoned = transfer.error or transfer.abandoned()
        if abandoned is not None:
            self._release(piece, slot, abandoned)
        elif self._is_staged(transfer.target):
            self._workers.submit(partial(self._attempt, piece, slot, self._stage))
        elif transfer.source.address is None:
            self._read_in_place(piece, slot)
        elif self._sums(transfer):
            self._workers.submit(partial(self._attempt, piece, slot, self._sum_and_send))
        else:
            self._send(piece, slot)

    def _is_staged(self, target: DeviceAllocation) -> bool:
        if self.options.staged is None:
            return target.host_address is None
        return self.options.staged

    def _sums(self, transfer: Transfer) -> bool:
        return self.options.verify or transfer.checksum is not None

    def _stage(self, piece: _Piece, slot: int) -> None:
        transfer, (ring, at) = piece.transfer, self._slot(slot)
        assert ring.host_address is not None
        transfer.source.fill(ring.host_address + at, piece.start, piece.nbytes)
        if self._sums(transfer):
            piece.crc = crc32_at(ring.host_address + at, piece.nbytes)
        offset = transfer.offset + piece.start
        self._follow(
            self.device.copy(transfer.target, offset, ring, at, piece.nbytes),
            piece,
            slot,
            self._sent,
        )

    def _slot(self, slot: int) -> tuple[DeviceAllocation, int]:
        """The ring and the slot's offset in it."""
        # The piece that asks is in flight, so that nobody takes the ring away.
        with self._making_ring:
            if self._ring is None:
                slots = self.options.staging_bytes // self.options.chunk_bytes
                ring = self.device.allocate_staging(slots * self.options.chunk_bytes)
                for tool in observer.active:
                    tool.self_ordered(ring)
                    tool.owned(ring)
                self._ring = ring
            return self._ring, slot * self.options.chunk_bytes

    def _sum_and_send(self, piece: _Piece, slot: int) -> None:
        assert piece.transfer.source.address is not None
        piece.crc = crc32_at(piece.transfer.source.address + piece.start, piece.nbytes)
        self._send(piece, slot)

    def _send(self, piece: _Piece, slot: int) -> None:
        transfer = piece.transfer
        assert transfer.source.address is not None
        memory = self.device.host_memory(
            transfer.source.address, transfer.source.nbytes, readonly=True, owner=transfer.source
        )
        try:
            event = self.device.copy(
                transfer.target, transfer.offset + piece.start, memory, piece.start, piece.nbytes
            )
        finally:
            memory.drop()
        self._follow(event, piece, slot, self._sent)

    def _read_in_place(self, piece: _Piece, slot: int) -> None:
        """Read a file straight into memory that the host sees."""
        transfer = piece.transfer
        target, offset = transfer.target, transfer.offset + piece.start
        pointer = self.device.host_pointer(target)
        if pointer is None:
            raise InputError(f"{target!r} is not visible to the host: files need staged=True")

        def read() -> None:
            transfer.source.fill(pointer + offset, piece.start, piece.nbytes)
            if self._sums(transfer):
                piece.crc = crc32_at(pointer + offset, piece.nbytes)

        stream = self.device.transfer_stream("h2d")
        name = f"read {piece.nbytes} B"
        target.hold()
        try:
            event = stream.enqueue(read, name=name)
        except BaseException:
            target.drop()
            raise
        target.drop_after(event)
        if observer.active:
            write = observer.Access(target.address + offset, piece.nbytes)
            self.device.observe(name, None, event, writes=(write,), carrier=stream)
        self._follow(event, piece, slot, self._sent)

    def _follow(
        self, event: Event, piece: _Piece, slot: int, step: Callable[[_Piece, int], None]
    ) -> None:
        """Take ``step`` when ``event`` is ready; its error ends the piece."""
        piece.last = event
        for tool in observer.active:
            tool.joined(piece.transfer.event, (event,))

        def next_step(done: Event) -> None:
            if done.error is not None:
                self._landed(piece, slot, done.error)
            else:
                self._attempt(piece, slot, step)

        event.add_callback(next_step)

    def _sent(self, piece: _Piece, slot: int) -> None:
        if not self.options.verify:
            self._landed(piece, slot, None)
            return
        staged = self._is_staged(piece.transfer.target)
        scratch = np.empty(0 if staged else piece.nbytes, np.uint8)
        if staged:
            memory, at = self._slot(slot)
        else:
            memory, at = (
                self.device.host_memory(scratch.ctypes.data, piece.nbytes, owner=scratch),
                0,
            )
        assert memory.host_address is not None
        where = memory.host_address + at
        target, offset = piece.transfer.target, piece.transfer.offset + piece.start
        try:
            event = self.device.copy(memory, at, target, offset, piece.nbytes)
        finally:
            if not staged:
                memory.drop()

        def check(piece: _Piece, slot: int) -> None:
            crc = crc32_at(where if staged else scratch.ctypes.data, piece.nbytes)
            if crc != piece.crc:
                raise _CorruptedError(
                    f"{piece.nbytes} bytes at offset {offset} arrived with CRC-32 {crc:#010x} instead "
                    f"of {piece.crc:#010x}"
                )
            self._landed(piece, slot, None)

        def hand_over(piece: _Piece, slot: int) -> None:
            self._workers.submit(partial(self._attempt, piece, slot, check))

        self._follow(event, piece, slot, hand_over)

    def _landed(self, piece: _Piece, slot: int, error: BaseException | None) -> None:
        """The piece is on the device, or failed: try again, or end it."""
        again = (
            isinstance(error, DeviceError | _CorruptedError)
            and not isinstance(error, DependencyError)
            and piece.attempts < self.options.retries
        )
        if not again:
            self._release(piece, slot, error)
            return
        piece.attempts += 1
        with self._lock:
            self._statistics = replace(self._statistics, retries=self._statistics.retries + 1)
            heapq.heappush(self._queue, piece)
            self._free(piece, slot)
        self._pump()

    def _release(self, piece: _Piece, slot: int, error: BaseException | None) -> None:
        with self._lock:
            self._free(piece, slot)
            if error is None:
                now = self._statistics
                self._statistics = replace(
                    now, pieces=now.pieces + 1, nbytes=now.nbytes + piece.nbytes
                )
        ring = self._unused_ring()
        if ring is not None:
            ring.let_go()
        self._end(piece, error)
        self._pump()

    def _unused_ring(self) -> DeviceAllocation | None:
        """The ring, for the caller to drop, when this was closed and no piece needs it any more."""
        with self._lock:
            if not self._closed or self._queue or self._in_flight:
                return None
            ring, self._ring = self._ring, None
            return ring

    def _free(self, piece: _Piece, slot: int) -> None:
        self._slots.append(slot)
        self._in_flight -= piece.nbytes

    def _end(self, piece: _Piece, error: BaseException | None) -> None:
        """Count the piece; the last one of its transfer ends that."""
        transfer = piece.transfer
        with transfer.lock:
            if error is None and piece.crc is not None:
                transfer.sums[piece.start] = (piece.crc, piece.nbytes)
            if error is not None and transfer.error is None:
                transfer.error = error
            transfer.left -= 1
            last = transfer.left == 0
        _here.devices.append(self.device)
        try:
            if error is None:
                _guarded(partial(transfer.arrived, piece.nbytes))
            if last:
                _guarded(partial(self._finish, transfer))
        finally:
            _here.devices.pop()

    def _finish(self, transfer: Transfer) -> None:
        self.withdraw(transfer.source)
        if transfer.error is None and transfer.checksum is not None and not transfer.sum_matches():
            transfer.error = TransferError(
                f"the data does not have the CRC-32 {transfer.checksum:#010x} it should have: it was "
                "changed while it was sent, or was read from a damaged file"
            )
        transfer.finished(transfer.error)

    def wait_idle(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``done()``; it is asked whenever a transfer has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._drained:
            while not done():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._drained.wait(left)
        return True

    def notify(self) -> None:
        """Let :meth:`wait_idle` ask again."""
        with self._drained:
            self._drained.notify_all()


class _Here(threading.local):
    """The devices of the uploaders in whose completion callbacks the current thread is."""

    def __init__(self) -> None:
        self.devices: list[Device] = []


_here = _Here()


def _guarded(report: Callable[[], None]) -> None:
    """Report to whoever gave a transfer; a fault there must not stop this thread, which has more to do."""
    try:
        report()
    except Exception as fault:
        sys.excepthook(type(fault), fault, fault.__traceback__)


class _CorruptedError(TransferError):
    """What was read back is not what was sent."""
