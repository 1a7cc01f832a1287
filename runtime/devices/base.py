# SPDX-License-Identifier: Apache-2.0
"""The interface every device implements: memory, streams, copies, statistics.

Rules that hold on every device; the base class enforces those marked (*), a device the others:

- Arguments are checked before anything moves (*): a call that raises ``InputError`` or ``ClosedError``
  has done nothing. A call that raises ``DeviceError`` or ``ResourceExhaustedError`` has enqueued nothing
  and allocated nothing. Whatever fails later fails the operation's event, and only that.
- Work of one stream runs in the order given, one piece at a time. Streams are otherwise unordered.
- Work waits for the ``waits`` given with it. If one of them failed, the work is not run and its event
  fails with ``events.dependency_error``; later work of the stream runs all the same, since order is not
  dependency. For a stream made with ``chain_errors=True`` order *is* dependency: after the first
  failure (or a failed ``wait_event``) all later work fails with it as cause, until ``recover()``.
- ``waits`` may hold events of any device or none. A device orders its own natively and may gate its
  stream for foreign ones, without blocking the caller.
- Memory outlives its last user (*): ``DeviceAllocation.close`` while copies run takes effect when they end.
- Overlapping source and destination of one copy are refused (*).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from gristmill.errors import ClosedError, DeviceError, InputError
from gristmill.runtime import observer
from gristmill.runtime.devices.allocation import DeviceAllocation, MemorySpace, check_range
from gristmill.runtime.devices.in_place import HostRanges
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event, when_done
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.memory.allocator import HostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool

__all__ = [
    "Device",
    "DeviceAllocation",
    "DeviceStatistics",
    "MemorySpace",
    "check_range",
    "copy_kind",
]


@dataclass(frozen=True)
class DeviceStatistics:
    """Counts of one device since it was opened.

    Attributes:
        live_bytes, peak_bytes: device and pinned bytes allocated now and at most.
        live_allocations, allocations: the number of them now and ever.
        copies, copied_bytes: by kind: ``h2h``, ``h2d``, ``d2h``, ``d2d``.
        streams: streams open now.
        failures: operations whose event failed.
    """

    live_bytes: int = 0
    peak_bytes: int = 0
    live_allocations: int = 0
    allocations: int = 0
    copies: dict[str, int] = field(default_factory=dict[str, int])
    copied_bytes: dict[str, int] = field(default_factory=dict[str, int])
    streams: int = 0
    failures: int = 0


class Device(ABC):
    """One device. A device is a context manager; leaving it closes it.

    Devices implement ``_allocate``, ``_create_stream``, ``_copy``, ``_close`` (which calls
    ``_close_host_memory``), and the registration of host memory. ``_allocate`` and ``_copy`` are called
    with checked arguments only.

    Attributes:
        kind: ``host`` or ``cuda``.
        ordinal: its number among its kind.
        memory_spaces: the spaces :meth:`allocate` serves; the first is the default.
        alignment: bytes to which every allocation's address is aligned at least.
        numa_node: the host's NUMA node nearest to it, or None.
    """

    kind: str
    memory_spaces: tuple[MemorySpace, ...] = (MemorySpace.DEVICE, MemorySpace.PINNED)
    alignment: int = 64
    numa_node: int | None = None

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._lock = threading.RLock()
        self._closing = threading.RLock()
        self._statistics = DeviceStatistics()
        self._copied = {kind: [0, 0] for kind in ("h2h", "h2d", "d2h", "d2d")}  # number, bytes
        self._closed = False
        self._transfer_streams: dict[str, Stream] = {}
        self._host_ranges = HostRanges(self)
        self._host_allocator: HostMemoryAllocator | None = None
        self._host_pool: HostMemoryPool | None = None

    # What a device implements

    @abstractmethod
    def _allocate(self, nbytes: int, space: MemorySpace, stream: Stream | None) -> DeviceAllocation:
        """Memory of ``nbytes > 0``; raises ``ResourceExhaustedError`` when there is none."""

    @abstractmethod
    def _create_stream(self, name: str, chain_errors: bool) -> Stream:
        """A new stream."""

    @abstractmethod
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
        """Enqueue one copy of ``nbytes > 0`` bytes; both memories stay alive until its event is done."""

    @abstractmethod
    def _close(self) -> None:
        """Release the device; all streams are closed and all memory was given back."""

    @abstractmethod
    def register_host(self, address: int, nbytes: int) -> int:
        """Page-lock existing host memory and let the device reach it; returns its device address.

        Raises ``InputError`` for a range that is registered already or not mapped.
        """

    @abstractmethod
    def unregister_host(self, address: int) -> None:
        """Undo :meth:`register_host`; raises ``InputError`` for an address that is not registered."""

    def find_host(self, address: int, nbytes: int) -> int | None:
        """The device's address of host memory that is registered or page-locked, however; else None."""
        return None

    # Memory

    def allocate(
        self, nbytes: int, space: MemorySpace | None = None, stream: Stream | None = None
    ) -> DeviceAllocation:
        """Uninitialised memory of this device, aligned to :attr:`alignment` bytes.

        With ``stream`` a device may order allocation and release with that stream's work. Memory of 0
        bytes is allowed and has no address. Raises ``ResourceExhaustedError``.
        """
        self.check_open()
        check_range("allocation", 0, nbytes, 1 << 62)
        space = space or self.memory_spaces[0]
        if space not in self.memory_spaces:
            known = ", ".join(known.value for known in self.memory_spaces)
            raise InputError(f"{self} has no {space.value} memory to allocate; it has {known}")
        if stream is not None and stream.device is not self:
            raise InputError(f"{stream} is not a stream of {self}")
        if nbytes == 0:
            return DeviceAllocation(self, space, 0, 0)
        return self._allocate(nbytes, space, stream)

    @property
    def host_allocator(self) -> HostMemoryAllocator:
        """Host memory that this device reaches, for staging; made when first used, closed with the device."""
        with self._lock:
            self.check_open()
            if self._host_allocator is None:
                self._host_allocator = HostMemoryAllocator.for_device(self)
            return self._host_allocator

    @property
    def host_pool(self) -> HostMemoryPool:
        """Slots of :attr:`host_allocator` for scalars that the device tells the host."""
        with self._lock:
            self.check_open()
            if self._host_pool is None:
                self._host_pool = HostMemoryPool(
                    self.host_allocator,
                    numa_node=self.numa_node,
                    name=f"host memory pool of {self}",
                )
            return self._host_pool

    def allocate_staging(self, nbytes: int) -> DeviceAllocation:
        """Host memory of :attr:`host_allocator` that copies of this device use directly.

        When it is dropped the allocator keeps it, registered, for the next. Raises
        ``ResourceExhaustedError`` and ``DeviceError``.
        """
        with ExitStack() as undo:
            memory = undo.enter_context(
                self.host_allocator.allocate(nbytes, numa_node=self.numa_node)
            )
            for tool in observer.active:
                tool.owned(memory)
            address = self.find_host(memory.address, nbytes)
            if address is None:
                raise DeviceError(f"{self} does not reach the {nbytes} bytes registered with it")
            self._reserve(nbytes)
            undo.pop_all()

        def give_back() -> None:
            self.count_allocation(-nbytes)
            memory.close()

        return DeviceAllocation(
            self, MemorySpace.PINNED, address, nbytes, give_back,
            host_address=memory.address, owner=memory,
        )  # fmt: skip

    def _reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` as live; a device with a limit refuses what goes over it."""
        self.count_allocation(nbytes)

    def _close_host_memory(self) -> None:
        """Devices call this in ``_close``, once nothing uses the memory and while it can be unregistered."""
        for part in (self._host_pool, self._host_allocator):
            if part is not None:
                part.close()

    def host_memory(
        self, address: int, nbytes: int, *, readonly: bool = False, owner: object = None
    ) -> DeviceAllocation:
        """Existing host memory as one end of copies; not counted, not owned, ``owner`` kept alive."""
        return DeviceAllocation(
            self, MemorySpace.HOST, address, nbytes,
            host_address=address, readonly=readonly, owner=owner,
        )  # fmt: skip

    def host_pointer(self, allocation: DeviceAllocation) -> int | None:
        """The address at which the host sees ``allocation``, or None where it does not."""
        if allocation.closed:
            raise ClosedError(f"{allocation!r} was closed; it has no address any more")
        return allocation.host_address

    def reaches_host(self, address: int, nbytes: int) -> bool:
        """Whether :meth:`alias_host` of this host memory needs no registration, which is slow."""
        self.check_open()
        return self._host_ranges.reaches(address, nbytes)

    def alias_host(
        self,
        address: int,
        nbytes: int,
        *,
        readonly: bool,
        owner: object,
        release: Callable[[], None] | None = None,
    ) -> DeviceAllocation:
        """Existing host memory as memory of this device, in place.

        It is registered while it is held, unless the device reaches it already (:meth:`reaches_host`).
        ``owner`` stays alive, and ``release`` is called at the end. Errors as :meth:`register_host`.
        """
        self.check_open()
        device_address, leave = self._host_ranges.acquire(address, nbytes)

        def give_back() -> None:
            leave()
            if release is not None:
                release()

        return DeviceAllocation(
            self, MemorySpace.PINNED, device_address, nbytes, give_back,
            host_address=address, readonly=readonly, owner=owner,
        )  # fmt: skip

    def adopt(
        self,
        address: int,
        nbytes: int,
        *,
        readonly: bool,
        owner: object,
        release: Callable[[], None] | None = None,
        stream: int | None = None,
    ) -> DeviceAllocation:
        """Memory of this device that another library owns, in place.

        ``stream`` is the driver's handle of the stream on which the owner produces it: the device
        lets that work end first (:meth:`synchronize_foreign`).
        """
        self.check_open()
        if stream is not None:
            self.synchronize_foreign(stream)
        return DeviceAllocation(
            self, MemorySpace.DEVICE, address, nbytes, release, readonly=readonly, owner=owner
        )

    def synchronize_foreign(self, stream: int) -> None:
        """Wait for the work of a stream that another library made with the device's driver."""
        raise InputError(f"{self} has no driver, so there is no stream {stream:#x} to wait for")

    # Streams and events

    def create_stream(self, name: str = "stream", *, chain_errors: bool = True) -> Stream:
        """A new stream. See the module's rules for ``chain_errors``."""
        self.check_open()
        stream = self._create_stream(name, chain_errors)
        self._count(streams=1)
        return stream

    def create_event(self, name: str = "event") -> Event:
        """A pending event for the caller to complete or fail."""
        return Event(name)

    def transfer_stream(self, kind: str) -> Stream:
        """The device's own stream for copies of ``kind`` (``h2d``, ``d2h``, ``d2d``), made when first used.

        It does not chain errors, and nobody may rely on its order.
        """
        with self._lock:
            self.check_open()
            stream = self._transfer_streams.get(kind)
            if stream is None:
                stream = self.create_stream(kind, chain_errors=False)
                for tool in observer.active:
                    tool.owned(stream)
                self._transfer_streams[kind] = stream
            return stream

    # Copies

    def copy(
        self,
        destination: DeviceAllocation,
        destination_offset: int,
        source: DeviceAllocation,
        source_offset: int,
        nbytes: int,
        stream: Stream | None = None,
        waits: Sequence[Event] = (),
    ) -> Event:
        """Copy bytes between two memories of this device, or between it and host memory.

        Runs after ``waits``, and in the order of ``stream``; with None, in no order with other copies.
        Both memories are held until the returned event is done. Copying 0 bytes is allowed
        and waits like any other.
        """
        self.check_open()
        check_range("copy destination", destination_offset, nbytes, destination.nbytes)
        check_range("copy source", source_offset, nbytes, source.nbytes)
        self._check_ends(destination, source)
        target = destination.address + destination_offset
        origin = source.address + source_offset
        if nbytes and target < origin + nbytes and origin < target + nbytes:
            raise InputError(
                "copy: source and destination overlap; copy through a temporary buffer"
            )
        if stream is not None and stream.device is not self:
            raise InputError(f"{stream} is not a stream of {self}")
        kind = copy_kind(destination, source)
        there, here = destination.host_address, source.host_address
        if there is not None and here is not None:
            at_once = self.move_now(
                (destination, source), there + destination_offset, here + source_offset, nbytes, kind,
                stream, waits,
            )  # fmt: skip
            if at_once is not None:
                return at_once
        name = f"copy {kind} {nbytes} B"

        def issue(waits: Sequence[Event], on: Stream) -> Event:
            if nbytes == 0:
                return on.enqueue(_nothing, waits=waits, name=name)
            return self._copy(
                destination, destination_offset, source, source_offset, nbytes, on, waits, name
            )

        destination.hold()
        try:
            source.hold()
        except ClosedError:
            destination.drop()
            raise
        try:
            event = (
                issue(waits, stream)
                if stream is not None
                else self._issue_unordered(issue, kind, waits, name)
            )
        except BaseException:
            destination.drop()
            source.drop()
            raise
        destination.drop_after(event)
        source.drop_after(event)
        self.count_copy(kind, nbytes)
        event.add_callback(self._count_failure)
        if observer.active:
            reads, writes = observer.Access(origin, nbytes), observer.Access(target, nbytes)
            carrier = None if stream is not None else self._carrier(kind)
            self.observe(name, stream, event, waits, (reads,), (writes,), carrier)
        return event

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
        """Hook: a copy that can be over before this returns, between addresses of the host; None: it cannot.

        Ranges, spaces and rights are checked; ``held`` is to be kept from being given back meanwhile, and
        ``lent`` is the host's memory that one end lies in, for debug tools. A device that does this pays
        for a small copy about what the copy itself takes. It leaves to :meth:`copy` whatever waits, fails,
        or is wrong.
        """
        return None

    def _issue_unordered(
        self,
        issue: Callable[[Sequence[Event], Stream], Event],
        kind: str,
        waits: Sequence[Event],
        name: str,
    ) -> Event:
        """Issue a copy on the transfer stream, where it must not hold up others by waiting.

        Events that the device cannot order itself may stay pending for ever, or until a later copy on
        the same stream is done: such a copy is issued when they are done.
        """
        stream = self._carrier(kind)
        foreign = [event for event in waits if not event.done and not self.orders(event)]
        if not foreign:
            return issue(waits, stream)
        result = Event(name)

        def forward(inner: Event) -> None:
            result.started_ns = inner.started_ns
            if inner.error is None:
                result.complete()
            else:
                result.fail(inner.error)

        def go() -> None:
            try:
                issue(waits, stream).add_callback(forward)
            except Exception as error:  # nobody else sees it: this runs in an event's callback
                result.fail(error)

        when_done(foreign, go)
        return result

    def _carrier(self, kind: str) -> Stream:
        """The stream for copies that are in no stream's order."""
        kind = "d2d" if kind == "h2h" else kind
        return self._transfer_streams.get(kind) or self.transfer_stream(kind)

    def orders(self, event: Event) -> bool:
        """Whether streams of this device wait for ``event`` by themselves, and it is sure to end.

        True for events of work that the driver has already; False here.
        """
        return False

    def _check_ends(self, destination: DeviceAllocation, source: DeviceAllocation) -> None:
        for end in (destination, source):
            if end.closed:
                raise ClosedError(f"copy: {end!r} was closed")
            if end.device is not self and end.space is MemorySpace.DEVICE:
                raise InputError(
                    f"copy: {end!r} cannot be reached by {self}; copy by way of the host"
                )
        if destination.readonly:
            raise InputError(f"copy: {destination!r} is read-only")

    def observe(
        self,
        name: str,
        stream: Stream | None,
        event: Event,
        waits: Sequence[Event] = (),
        reads: tuple[observer.Access, ...] = (),
        writes: tuple[observer.Access, ...] = (),
        carrier: Stream | None = None,
    ) -> None:
        """Tell the installed debug tools about work; ``stream`` is None when only events order it."""
        operation = observer.Operation(name, stream, event, tuple(waits), reads, writes, carrier)
        for tool in observer.active:
            tool.submitted(operation)

    # Statistics and life

    def statistics(self) -> DeviceStatistics:
        """The counts so far, as one consistent copy."""
        with self._lock:
            copied = {kind: counts for kind, counts in self._copied.items() if counts[0]}
            return replace(
                self._statistics,
                copies={kind: count for kind, (count, _) in copied.items()},
                copied_bytes={kind: nbytes for kind, (_, nbytes) in copied.items()},
            )

    def count_allocation(self, nbytes: int) -> None:
        """Devices call this for each allocation (``nbytes > 0``) and each release (``nbytes < 0``)."""
        with self._lock:
            now = self._statistics
            live = now.live_bytes + nbytes
            self._statistics = replace(
                now,
                live_bytes=live,
                peak_bytes=max(now.peak_bytes, live),
                live_allocations=now.live_allocations + (1 if nbytes > 0 else -1),
                allocations=now.allocations + (1 if nbytes > 0 else 0),
            )

    def count_copy(self, kind: str, nbytes: int) -> None:
        """Count one copy of ``kind``."""
        with self._lock:
            copied = self._copied[kind]
            copied[0] += 1
            copied[1] += nbytes

    def _count(self, *, streams: int = 0, failures: int = 0) -> None:
        with self._lock:
            now = self._statistics
            self._statistics = replace(
                now, streams=now.streams + streams, failures=now.failures + failures
            )

    def count_stream_closed(self) -> None:
        """Streams call this once, when they are closed."""
        self._count(streams=-1)

    def _count_failure(self, event: Event) -> None:
        if event.error is not None:
            self._count(failures=1)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until all work given to the device's transfer streams so far has ended.

        Devices extend it to all their streams.
        """
        for stream in tuple(self._transfer_streams.values()):
            stream.synchronize(timeout)

    def check_open(self) -> None:
        """Raise ``ClosedError`` when the device was closed."""
        if self._closed:
            raise ClosedError(f"{self} was closed")

    @property
    def closed(self) -> bool:
        """Whether the device was closed."""
        return self._closed

    def close(self) -> None:
        """Wait for the device's own streams and release it; idempotent.

        Memory and streams that users still hold must be closed before; a device may refuse otherwise.
        """
        with self._closing:
            with self._lock:
                if self._closed:
                    return
                streams, self._transfer_streams = self._transfer_streams, {}
            for stream in streams.values():
                stream.close()
            self._closed = True
            self._close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"

    def __repr__(self) -> str:
        return f"<device {self}>"


def _nothing() -> None:
    """The work of an empty copy."""


def copy_kind(destination: DeviceAllocation, source: DeviceAllocation) -> str:
    """``h2d``, ``d2h``, ``d2d`` or ``h2h``, by the spaces of both ends; pinned memory is the host's."""
    if source.space is MemorySpace.DEVICE:
        return "d2d" if destination.space is MemorySpace.DEVICE else "d2h"
    return "h2d" if destination.space is MemorySpace.DEVICE else "h2h"
