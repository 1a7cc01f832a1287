# SPDX-License-Identifier: Apache-2.0
"""Host memory for staging and transfers: aligned, placed on a NUMA node, registered with a device.

:class:`HostMemoryAllocator` hands out whole pages and keeps those that come back, registered as they are,
since mapping and registering are slow. :class:`BasicHostMemoryAllocator` is a plain ``malloc`` with the same
checks, limit and statistics; it cannot place or register memory and says so.

Guarantees:

- Memory lives until its allocation is closed *and* the last numpy view of it has died, whatever happens to
  the allocator. Closing an allocator refuses new allocations only.
- A hint that cannot be honoured is reported in ``HostAllocation.notes``, never ignored in silence.
- An allocation that fails has taken nothing. What cannot be released (a device refuses to unmap) is leaked,
  counted, and reported as ``ResourceWarning``: a leak is better than a dangling pointer.
- Contents are undefined: memory is reused without being cleared.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import numpy as np

from gristmill.errors import (
    ClosedError,
    DeviceError,
    GristmillError,
    InputError,
    ResourceExhaustedError,
)
from gristmill.runtime import knobs, observer
from gristmill.runtime.memory import numa
from gristmill.runtime.memory.host import size_class
from gristmill.runtime.memory.registration import (
    MapRange,
    RegisteredRanges,
    Registration,
    RegistrationStatistics,
    UnmapRange,
)

Array = np.ndarray[Any, Any]

#: Alignments beyond this make no sense and cost as much memory.
MAX_ALIGNMENT = 1 << 30
MAX_ALLOCATION = 1 << 62
_HUGE_PAGE = 2 << 20


@dataclass
class Block:
    """Memory behind an allocation. ``owner`` frees it when it dies; ``capacity`` is what it costs.

    ``numa_node`` is where it is bound to, ``wanted_node`` where it should have been.
    """

    address: int
    capacity: int
    owner: object
    device: int | None = None
    numa_node: int | None = None
    wanted_node: int | None = None
    huge_pages: bool = False
    notes: tuple[str, ...] = ()
    registration: Registration | None = None


@dataclass(frozen=True)
class HostAllocatorStatistics:
    """What an allocator holds and has done.

    Attributes:
        live_bytes, live_allocations: lent out now; ``peak_bytes`` at most. Sizes as they cost.
        cached_bytes: waiting for reuse; they count towards the limit, but give way.
        limit_bytes: the most that may be live.
        allocations, cache_hits: ever made, and how many of them reused memory.
        failures: refused for want of memory.
        release_failures: leaked, as the device refused to unmap them.
        device_bytes: live bytes by device.
        registrations: ranges known to devices; None for an allocator without callbacks.
    """

    live_bytes: int = 0
    live_allocations: int = 0
    peak_bytes: int = 0
    cached_bytes: int = 0
    limit_bytes: int = 0
    allocations: int = 0
    cache_hits: int = 0
    failures: int = 0
    release_failures: int = 0
    device_bytes: dict[int | None, int] = field(default_factory=dict[int | None, int])
    registrations: RegistrationStatistics | None = None


class _Lease:
    """Keeps a block while an allocation or one of its views needs it. numpy arrays over it refer to it."""

    def __init__(self, block: Block, nbytes: int, release: Callable[[Block], None]) -> None:
        self.block = block
        self._release = release
        self.__array_interface__ = {
            "data": (block.address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._release(self.block)


class HostAllocation:
    """A range of host memory; a context manager. One that is dropped is closed.

    Attributes:
        nbytes: its size as asked for.
        device: whose memory it is meant for, or None.
        numa_node: the node it is bound to, or None.
        huge_pages: whether the system was asked for huge pages.
        registered: whether a device knows it.
        notes: the hints that were not honoured, each with the reason.
    """

    def __init__(self, name: str, nbytes: int, lease: _Lease | None, block: Block) -> None:
        self._name = name
        self._lease = lease
        self._closed = False
        self._address = block.address
        self.nbytes = nbytes
        self.device = block.device
        self.numa_node = block.numa_node
        self.huge_pages = block.huge_pages
        self.registered = block.registration is not None
        self.notes = block.notes
        for tool in observer.active:
            tool.opened(self)

    @property
    def address(self) -> int:
        """The first byte; 0 for an allocation of no bytes. ``ClosedError`` when closed."""
        self._check_open()
        return self._address

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def view(self, dtype: Any = np.uint8, shape: Sequence[int] | None = None) -> Array:
        """The memory as an array, which keeps it alive even if the allocation is closed.

        Args:
            dtype: element type.
            shape: sizes; default: one dimension of as many elements as fit.

        Raises ``InputError`` when more is asked for than there is.
        """
        self._check_open()
        kind = np.dtype(dtype)
        sizes = (self.nbytes // kind.itemsize,) if shape is None else tuple(shape)
        count = int(np.prod(sizes, dtype=object)) * kind.itemsize
        if count < 0 or count > self.nbytes:
            raise InputError(
                f"{sizes} of {kind} take {count} bytes of an allocation of {self.nbytes}"
            )
        if self._lease is None:
            return np.empty(sizes, kind)
        return np.asarray(self._lease)[:count].view(kind).reshape(sizes)

    def close(self) -> None:
        """Give the memory back once no view of it is left; idempotent."""
        if not self._closed:
            self._closed = True
            self._lease = None
            for tool in observer.active:
                tool.closed(self)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"an allocation of {self.nbytes} bytes of {self._name} was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"at {self._address:#x}"
        return f"<{self.nbytes} B of {self._name} {state}>"


class HostAllocatorBase(ABC):
    """What all host allocators share: checks, the limit, accounting, lifetime. Thread-safe.

    Args:
        name: for messages, for example ``staging of cuda:0``.
        alignment: of every address, in bytes; a power of two.
        limit: bytes that may be live; default: the ``GRISTMILL_HOST_MEMORY_LIMIT`` knob, else the RAM.
        zero_size: whether an allocation of no bytes is ``empty`` (no address, costs nothing) or an ``error``.
    """

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 64,
        limit: int | None = None,
        zero_size: Literal["empty", "error"] = "empty",
    ) -> None:
        if alignment < 1 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            raise InputError(
                f"{name}: alignment {alignment} is not a power of two up to {MAX_ALIGNMENT}"
            )
        if limit is not None and limit < 1:
            raise InputError(f"{name}: a limit of {limit} bytes allows nothing")
        self.name = name
        self.alignment = alignment
        self.zero_size = zero_size
        self._limit = limit
        self._closed = False
        self._live: dict[int | None, int] = {}
        self._live_bytes = self._live_count = self._peak = 0
        self._allocations = self._hits = self._failures = self._release_failures = 0
        # Re-entrant: the garbage collector may end a lease while this thread holds the lock.
        self._lock = threading.RLock()

    @property
    def limit(self) -> int:
        """The most bytes that may be live."""
        return self._limit or knobs.HOST_MEMORY_LIMIT.get() or _physical_memory()

    def allocate(
        self, nbytes: int, *, device: int | None = None, numa_node: int | None = None
    ) -> HostAllocation:
        """Memory of ``nbytes``, aligned, its contents undefined.

        Args:
            nbytes: 0 is served according to ``zero_size``.
            device: the device it is for: the callbacks get it, and memory is reused for that device only.
            numa_node: the node to bind it to; hints that cannot be honoured are in the result's ``notes``.

        Raises ``ResourceExhaustedError`` naming this allocator, the size, the limit and its setting;
        ``DeviceError`` when the device refuses to register it; ``InputError`` for impossible requests.
        """
        self._check(nbytes, numa_node)
        if nbytes == 0:
            if self.zero_size == "error":
                raise InputError(f"{self.name}: allocations of 0 bytes are refused")
            return HostAllocation(self.name, 0, None, Block(0, 0, None, device))
        capacity = self._capacity(nbytes)
        self._count(device, nbytes, capacity)
        try:
            block = self._obtain(capacity, device, numa_node)
        except BaseException as error:
            self._discount(device, capacity)
            if isinstance(error, OSError | MemoryError):
                raise self._exhausted(nbytes, f"the system refused: {error}") from None
            raise
        with self._lock:
            self._allocations += 1
        return HostAllocation(self.name, nbytes, _Lease(block, nbytes, self._give_back), block)

    def statistics(self) -> HostAllocatorStatistics:
        """Current figures."""
        with self._lock:
            return HostAllocatorStatistics(
                self._live_bytes,
                self._live_count,
                self._peak,
                self._cached(),
                self.limit,
                self._allocations,
                self._hits,
                self._failures,
                self._release_failures,
                {device: size for device, size in self._live.items() if size},
            )

    def close(self) -> None:
        """Refuse new allocations; live ones stay valid. Idempotent."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What an allocator implements.

    @abstractmethod
    def _capacity(self, nbytes: int) -> int:
        """What an allocation costs."""

    @abstractmethod
    def _obtain(self, capacity: int, device: int | None, numa_node: int | None) -> Block:
        """Memory; raises ``OSError`` or ``MemoryError`` when the system has none."""

    @abstractmethod
    def _dispose(self, block: Block) -> None:
        """Take a block back."""

    def _cached(self) -> int:
        """Bytes that wait for reuse."""
        return 0

    def trim(self) -> int:
        """Give memory that waits for reuse back to the system; returns how many bytes."""
        return 0

    # Accounting.

    def _check(self, nbytes: int, numa_node: int | None) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} was closed")
        if type(nbytes) is not int:
            raise InputError(f"{self.name}: a size must be an int, not {type(nbytes).__name__}")
        if not 0 <= nbytes <= MAX_ALLOCATION:
            raise InputError(f"{self.name}: a size of {nbytes} bytes is out of range")
        if numa_node is not None and numa_node < 0:
            raise InputError(f"{self.name}: there is no NUMA node {numa_node}; None means any")

    def _count(self, device: int | None, nbytes: int, capacity: int) -> None:
        with self._lock:
            limit = self.limit
            if self._live_bytes + capacity > limit:
                raise self._exhausted(nbytes, f"they take {capacity}, which is over the limit")
            tight = self._live_bytes + self._cached() + capacity > limit
            self._live_bytes += capacity
            self._live_count += 1
            self._peak = max(self._peak, self._live_bytes)
            self._live[device] = self._live.get(device, 0) + capacity
        if tight:
            # Not with the lock, which the end of an allocation takes wherever the garbage collector runs: perhaps
            # in a thread that is in the device.
            self.trim()

    def _discount(self, device: int | None, capacity: int) -> None:
        with self._lock:
            self._live_bytes -= capacity
            self._live_count -= 1
            self._live[device] -= capacity

    def _exhausted(self, nbytes: int, why: str) -> ResourceExhaustedError:
        with self._lock:
            self._failures += 1
            live = self._live_bytes
        return ResourceExhaustedError(
            f"host memory allocator {self.name!r} cannot allocate {nbytes} bytes of host memory: {why}; "
            f"{live} of at most {self.limit} bytes are in use; close allocations, or raise the limit with "
            f"{knobs.HOST_MEMORY_LIMIT.name} (or limit= of this allocator)"
        )

    def _give_back(self, block: Block) -> None:
        """The end of a lease, on any thread."""
        self._discount(block.device, block.capacity)
        self._dispose(block)


class BasicHostMemoryAllocator(HostAllocatorBase):
    """``malloc`` with alignment, a limit and typed errors. It neither places nor registers memory."""

    def __init__(
        self,
        name: str = "basic host memory",
        *,
        alignment: int = 64,
        limit: int | None = None,
        zero_size: Literal["empty", "error"] = "empty",
    ) -> None:
        super().__init__(name, alignment=alignment, limit=limit, zero_size=zero_size)

    def _capacity(self, nbytes: int) -> int:
        return nbytes + self.alignment - 1

    def _obtain(self, capacity: int, device: int | None, numa_node: int | None) -> Block:
        memory = np.empty(capacity, np.uint8)
        start = memory.ctypes.data
        notes: list[str] = []
        if numa_node is not None:
            notes.append(f"NUMA node {numa_node}: this allocator does not place memory")
        if device is not None:
            notes.append(f"device {device}: this allocator does not register memory")
        address = start + -start % self.alignment
        return Block(address, capacity, memory, device, notes=tuple(notes))

    def _dispose(self, block: Block) -> None:
        block.owner = None


class RegisteringDevice(Protocol):
    """What an allocator needs of a device: every ``Device`` has it."""

    def register_host(self, address: int, nbytes: int) -> int:
        """Let the device reach host memory."""
        ...

    def unregister_host(self, address: int) -> None:
        """Undo it."""
        ...


class HostMemoryAllocator(HostAllocatorBase):
    """Pages for transfers: placed, registered, reused.

    Args:
        name, alignment, limit, zero_size: as for every allocator.
        map_range, unmap_range: make memory known to a device, and undo it; both or neither.
        huge_pages: whether to ask for huge pages where an allocation is large enough.
        cache_bytes: how much returned memory to keep for reuse, registered as it is.
    """

    def __init__(
        self,
        name: str = "host memory",
        *,
        alignment: int = 64,
        limit: int | None = None,
        zero_size: Literal["empty", "error"] = "empty",
        map_range: MapRange | None = None,
        unmap_range: UnmapRange | None = None,
        huge_pages: bool = True,
        cache_bytes: int = 64 << 20,
    ) -> None:
        super().__init__(name, alignment=alignment, limit=limit, zero_size=zero_size)
        if (map_range is None) != (unmap_range is None):
            raise InputError(f"{name}: map_range and unmap_range come together")
        if cache_bytes < 0:
            raise InputError(f"{name}: cache_bytes must not be negative")
        #: The ranges devices know, for registering other memory too; None without callbacks.
        self.ranges = (
            RegisteredRanges(map_range, unmap_range) if map_range and unmap_range else None
        )
        self.huge_pages = huge_pages
        self.cache_bytes = cache_bytes
        # By capacity, device and node; the most recently used block is handed out next.
        self._free: dict[tuple[int, int | None, int | None], list[Block]] = {}
        self._free_bytes = 0

    @classmethod
    def for_device(cls, device: RegisteringDevice, **options: Any) -> Self:
        """An allocator of one device: its memory is registered there. Close it before the device.

        ``options`` are those of the constructor, but for the callbacks.
        """

        def register(_: int | None, address: int, nbytes: int) -> None:
            device.register_host(address, nbytes)

        def unregister(_: int | None, address: int) -> None:
            device.unregister_host(address)

        options.setdefault("name", f"host memory of {device}")
        return cls(**options, map_range=register, unmap_range=unregister)

    def statistics(self) -> HostAllocatorStatistics:
        """Current figures, registrations included."""
        found = super().statistics()
        if self.ranges is None:
            return found
        return replace(found, registrations=self.ranges.statistics())

    def trim(self) -> int:
        """Unregister the memory that waits for reuse and give it back; returns how many bytes."""
        with self._lock:
            blocks = [block for waiting in self._free.values() for block in waiting]
            self._free.clear()
            self._free_bytes = 0
        for block in blocks:
            self._unregister(block)
        return sum(block.capacity for block in blocks)

    def close(self) -> None:
        """Refuse new allocations and drop the waiting memory; live allocations stay valid."""
        super().close()
        self.trim()

    def _capacity(self, nbytes: int) -> int:
        extra = self.alignment if self.alignment > mmap.PAGESIZE else 0
        return size_class(nbytes + extra)

    def _cached(self) -> int:
        return self._free_bytes

    def _obtain(self, capacity: int, device: int | None, numa_node: int | None) -> Block:
        with self._lock:
            waiting = self._free.get((capacity, device, numa_node))
            if waiting:
                self._free_bytes -= capacity
                self._hits += 1
                return waiting.pop()
        try:
            memory = _map_pages(capacity)
        except OSError:
            self.trim()
            memory = _map_pages(capacity)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address = base + -base % self.alignment
        block = Block(address, capacity, memory, device, numa_node, numa_node)
        self._place(block, memory, base)
        if self.ranges is not None:
            try:
                # All of it, as the block will serve allocations of other sizes.
                block.registration = self.ranges.register(device, base, capacity)
                for tool in observer.active:
                    tool.owned(block.registration)
            except GristmillError:
                raise
            except Exception as error:  # a caller's callback, which may raise anything
                raise DeviceError(
                    f"{self.name}: the device refused to register {capacity} bytes: {error}"
                ) from error
        return block

    def _place(self, block: Block, memory: mmap.mmap, base: int) -> None:
        """Huge pages and the NUMA node; before anything touches the memory."""
        notes: list[str] = []
        if self.huge_pages and block.capacity >= _HUGE_PAGE:
            try:
                memory.madvise(mmap.MADV_HUGEPAGE)
                block.huge_pages = True
            except OSError as error:
                notes.append(f"huge pages: {error.strerror}")
        node = block.numa_node
        if node is not None:
            why = _bind(base, block.capacity, node)
            if why:
                block.numa_node = None
                notes.append(f"NUMA node {node}: {why}")
        block.notes = tuple(notes)

    def _dispose(self, block: Block) -> None:
        key = (block.capacity, block.device, block.wanted_node)
        with self._lock:
            if not self._closed and self._free_bytes + block.capacity <= self.cache_bytes:
                self._free_bytes += block.capacity
                self._free.setdefault(key, []).append(block)
                return
        self._unregister(block)

    def _unregister(self, block: Block) -> None:
        """Unmap a block; if its device refuses, its memory must stay."""
        if block.registration is None:
            return
        try:
            block.registration.close()
        except Exception as error:  # a device's callback, which may raise anything
            with self._lock:
                self._release_failures += 1
            _leaked.append(block.owner)
            warnings.warn(
                f"{self.name}: {block.capacity} bytes are leaked, as unregistering failed: {error}",
                ResourceWarning,
                stacklevel=2,
            )


#: Memory that devices refused to let go.
_leaked: list[object] = []


def _bind(address: int, nbytes: int, node: int) -> str:
    nodes = numa.online_nodes()
    if node not in nodes:
        known = ", ".join(map(str, nodes)) or "none that the system tells of"
        return f"this machine's nodes are {known}"
    return numa.bind(address, nbytes, node)


def _map_pages(capacity: int) -> mmap.mmap:
    return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
