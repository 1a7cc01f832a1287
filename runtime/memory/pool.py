# SPDX-License-Identifier: Apache-2.0
"""A pool of pinned scalars, for what devices tell the host while a program runs: predicates, indices, sizes.

A slot holds one element. Slots of one primitive type are a *class* of their own and fill a cache line each,
so that a device writing one and the host reading the next do not disturb each other. The slot returned last
is handed out next, as it is the likeliest to be in a cache.

A class grows by chunks up to the pool's cap. When all its slots are in use, :meth:`HostMemoryPool.acquire`
raises at once, or waits for as long as it is told; who waits longest is served first, and nobody overtakes.

Guarantees:

- A slot is held by one handle at a time and is zero when acquired.
- Using a handle that was closed raises ``ClosedError``, also when its slot has a new holder.
- Handles outlive their pool: their memory lives until the last of them is closed.
- A handle that is dropped without ``close`` returns its slot, counted and reported as ``ResourceWarning``.
  Close handles only when the device has finished with them.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

import numpy as np

from gristmill.errors import ClosedError, InputError, ResourceExhaustedError, UnsupportedError
from gristmill.runtime import knobs, observer
from gristmill.runtime.memory.allocator import HostAllocation, HostAllocatorBase
from gristmill.runtime.types import PrimitiveType, primitive_type

#: Bytes from one slot to the next.
SLOT_BYTES = 64
#: Slots of a class's first chunk: one page. Each further chunk doubles the class.
FIRST_CHUNK = 64

_THIS_FILE = __file__


@dataclass(frozen=True)
class Holder:
    """Who holds a slot: where it was acquired, its type, its generation, and for how many seconds."""

    site: str
    primitive: str
    generation: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.primitive} held for {self.seconds:.1f} s by {self.site}"


@dataclass(frozen=True)
class HostMemoryPoolStatistics:
    """Figures of a pool, over all its classes.

    Attributes:
        cap: the most slots of one class.
        slots: allocated by now.
        in_use, peak_in_use: held now, and at most.
        waiting: threads that wait for a slot now.
        acquired: handles ever given out.
        exhausted: requests refused or timed out.
        dropped: handles that were not closed.
        nbytes: memory of the slots.
    """

    cap: int
    slots: int = 0
    in_use: int = 0
    peak_in_use: int = 0
    waiting: int = 0
    acquired: int = 0
    exhausted: int = 0
    dropped: int = 0
    nbytes: int = 0


class _Slot:
    """One element in a cache line. ``words`` is its memory as 64-bit integers, to clear it quickly."""

    __slots__ = ("address", "cell", "generation", "pool", "slots", "words")

    def __init__(
        self,
        pool: HostMemoryPool,
        slots: _SlotClass,
        address: int,
        cell: np.ndarray[Any, Any],
        words: memoryview,
    ) -> None:
        self.pool = pool
        self.slots = slots
        self.address = address
        self.cell = cell
        self.words = words
        self.generation = 1  # of the handle that holds it, or of the next one


class _Waiter:
    """A thread in the queue. ``slot`` is set before ``ready`` is released."""

    __slots__ = ("ready", "slot")

    def __init__(self) -> None:
        self.ready = threading.Lock()
        self.ready.acquire()
        self.slot: _Slot | None = None


@dataclass
class _SlotClass:
    """All slots of one primitive type."""

    primitive: PrimitiveType
    free: list[_Slot] = field(default_factory=list[_Slot])
    waiters: deque[_Waiter] = field(default_factory=deque[_Waiter])
    total: int = 0
    in_use: int = 0
    peak: int = 0
    acquired: int = 0
    exhausted: int = 0
    dropped: int = 0
    #: By slot address, where tracked: site, generation and time of acquisition.
    holders: dict[int, tuple[str, int, float]] = field(
        default_factory=dict[int, tuple[str, int, float]]
    )


class SlotHandle:
    """The right to use one slot until it is closed; a context manager. Made by :meth:`HostMemoryPool.acquire`.

    A handle belongs to one user at a time; closing it twice, from any thread, does no harm.
    """

    __slots__ = ("__weakref__", "_generation", "_site", "_slot")

    def __init__(self, slot: _Slot, site: str) -> None:
        self._slot = slot
        self._generation = slot.generation
        self._site = site

    @property
    def primitive(self) -> PrimitiveType:
        """The slot's element type."""
        return self._slot.slots.primitive

    @property
    def generation(self) -> int:
        """How often the slot has been handed out, this time included."""
        return self._generation

    @property
    def closed(self) -> bool:
        """Whether the slot was returned."""
        return self._slot.generation != self._generation

    @property
    def address(self) -> int:
        """Where the element is. Raises ``ClosedError`` when closed."""
        return self._live().address

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The element as a rank-0 array. It must not be used after the handle is closed."""
        return self._live().cell

    @property
    def value(self) -> Any:
        """The element, a numpy scalar; assignable. Raises ``ClosedError`` when closed."""
        return self._live().cell[()]

    @value.setter
    def value(self, value: Any) -> None:
        self._live().cell[...] = value

    def close(self) -> None:
        """Return the slot; idempotent."""
        if self._slot.pool.release(self._slot, self._generation):
            for tool in observer.active:
                tool.closed(self)

    def _live(self) -> _Slot:
        slot = self._slot
        if slot.generation != self._generation:
            raise ClosedError(
                f"a {self._slot.slots.primitive} slot handle was used after it was closed; acquired by "
                f"{self._site or 'an unknown site (track=True tells)'}"
            )
        return slot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        slot = self._slot
        if slot.generation == self._generation and slot.pool.release(
            slot, self._generation, dropped=True
        ):
            for tool in observer.active:
                tool.closed(self)
            where = f", acquired by {self._site}" if self._site else ""
            warnings.warn(
                f"a {self._slot.slots.primitive} slot handle was dropped without close{where}",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._slot.address:#x}"
        return f"<{self._slot.slots.primitive} slot {state}, generation {self._generation}>"


class HostMemoryPool:
    """Slots for scalars of every primitive type, in memory of one allocator. Thread-safe.

    Args:
        allocator: where slots come from; give the pool of a device an allocator that registers memory with it.
        cap: the most slots of one primitive type; default: the ``GRISTMILL_HOST_POOL_SLOTS`` knob.
        device, numa_node: passed to the allocator.
        track: whether to note who holds a slot, for :meth:`leaks` and errors; costs about a microsecond.
        name: for messages.
    """

    def __init__(
        self,
        allocator: HostAllocatorBase,
        *,
        cap: int | None = None,
        device: int | None = None,
        numa_node: int | None = None,
        track: bool = False,
        name: str = "host memory pool",
    ) -> None:
        if cap is not None and cap < 1:
            raise InputError(f"{name}: a cap of {cap} slots allows nothing")
        self.name = name
        self.cap = cap or knobs.HOST_POOL_SLOTS.get()
        self.track = track
        self._allocator = allocator
        self._device, self._numa_node = device, numa_node
        self._classes: dict[str, _SlotClass] = {}
        self._chunks: list[HostAllocation] = []
        self._nbytes = 0
        self._closed = False
        # Re-entrant: the garbage collector may drop a handle while this thread holds the lock. Nothing that takes
        # another lock is called under it: whoever holds that one may be waiting, in a finaliser, for this one.
        self._lock = threading.RLock()
        #: Held, outside of the other, while a class grows.
        self._growth = threading.RLock()

    def acquire(self, primitive: PrimitiveType | str, timeout: float | None = None) -> SlotHandle:
        """A slot for one element, zero at first.

        Args:
            primitive: the element type, or XLA's name of it.
            timeout: seconds to wait when all slots are in use; ``math.inf``: for ever; None or 0: not at all.

        Raises ``ResourceExhaustedError`` naming the cap and its setting, ``ClosedError`` on a closed pool,
        ``UnsupportedError`` for tokens, tuples and opaque values.
        """
        name = primitive if isinstance(primitive, str) else primitive.name
        slots = self._classes.get(name) or self._add_class(name)
        slot = self._take(slots)
        if slot is None:
            with self._growth:
                slot = self._take(slots) or self._grow(slots, bool(timeout))
        if slot is None:
            slot = self._queue(slots, timeout)
        slot.words[0] = slot.words[1] = 0
        site = ""
        if self.track:
            site = _call_site()
            with self._lock:
                slots.holders[slot.address] = (site, slot.generation, time.monotonic())
        handle = SlotHandle(slot, site)
        for tool in observer.active:
            tool.opened(handle)
        return handle

    def release(self, slot: _Slot, generation: int, *, dropped: bool = False) -> bool:
        """Return a slot: what ``SlotHandle.close`` does. False if it was returned already."""
        slots = slot.slots
        with self._lock:
            if slot.generation != generation:
                return False
            slot.generation += 1
            if dropped:
                slots.dropped += 1
            if self.track:
                slots.holders.pop(slot.address, None)
            if slots.waiters:
                # Straight to the one who waits longest: it stays in use.
                waiter = slots.waiters.popleft()
                waiter.slot = slot
                slots.acquired += 1
                waiter.ready.release()
            else:
                slots.in_use -= 1
                slots.free.append(slot)
            return True

    def leaks(self) -> list[Holder]:
        """Who holds slots now, longest first; empty unless the pool tracks its holders."""
        now = time.monotonic()
        with self._lock:
            held = [
                (since, Holder(site, slots.primitive.name, generation, now - since))
                for slots in self._classes.values()
                for site, generation, since in slots.holders.values()
            ]
        return [holder for _, holder in sorted(held, key=lambda pair: pair[0])]

    def statistics(self) -> HostMemoryPoolStatistics:
        """Current figures."""
        with self._lock:
            classes = list(self._classes.values())
            return HostMemoryPoolStatistics(
                self.cap,
                sum(c.total for c in classes),
                sum(c.in_use for c in classes),
                sum(c.peak for c in classes),
                sum(len(c.waiters) for c in classes),
                sum(c.acquired for c in classes),
                sum(c.exhausted for c in classes),
                sum(c.dropped for c in classes),
                self._nbytes,
            )

    def close(self) -> None:
        """Refuse further requests, waiting ones included. Handles stay valid. Idempotent."""
        with self._lock:
            self._closed = True
            for slots in self._classes.values():
                # Held slots keep their memory alive.
                slots.free.clear()
                while slots.waiters:
                    slots.waiters.popleft().ready.release()
            for chunk in self._chunks:
                chunk.close()
            self._chunks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_class(self, name: str) -> _SlotClass:
        primitive = primitive_type(name)
        if not primitive.is_array:
            raise UnsupportedError(
                f"{self.name}: a {name} has no storage, so there are no slots for it"
            )
        # Now, as it must not fail with a slot in hand.
        _ = primitive.dtype
        with self._lock:
            return self._classes.setdefault(primitive.name, _SlotClass(primitive))

    def _take(self, slots: _SlotClass) -> _Slot | None:
        """A free slot; None when there is none."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.name} was closed")
            return self._lend(slots, slots.free.pop()) if slots.free else None

    def _lend(self, slots: _SlotClass, slot: _Slot) -> _Slot:
        """Count a slot that leaves the free ones; with the lock held."""
        slots.acquired += 1
        slots.in_use += 1
        if slots.in_use > slots.peak:
            slots.peak = slots.in_use
        return slot

    def _grow(self, slots: _SlotClass, patient: bool) -> _Slot | None:
        """A slot of a new chunk; None at the cap, or when memory is short and a slot will be returned.

        Also None when others wait: who comes later gets in line. The caller holds ``_growth``, and not ``_lock``.
        """
        count = min(max(slots.total, FIRST_CHUNK), self.cap - slots.total)
        if count < 1 or slots.waiters:
            return None
        try:
            chunk = self._allocator.allocate(
                count * SLOT_BYTES, device=self._device, numa_node=self._numa_node
            )
        except ResourceExhaustedError:
            with self._lock:
                if patient and slots.in_use:
                    return None
                slots.exhausted += 1
            raise
        lines = chunk.view(np.uint8, (count, SLOT_BYTES))
        kind = slots.primitive
        made: list[_Slot] = []
        # The lowest address is handed out first.
        for line in lines[::-1]:
            cell = line[: kind.nbytes].view(kind.dtype).reshape(())
            words = memoryview(line.view(np.uint64))
            made.append(_Slot(self, slots, line.ctypes.data, cell, words))
        for tool in observer.active:
            tool.owned(chunk)
        return self._add_chunk(slots, chunk, made)

    def _add_chunk(self, slots: _SlotClass, chunk: HostAllocation, made: list[_Slot]) -> _Slot:
        """Make a chunk's slots part of the class; returns one of them."""
        with self._lock:
            if not self._closed:
                self._chunks.append(chunk)
                self._nbytes += chunk.nbytes
                slots.total += len(made)
                slots.free.extend(made)
                mine = self._lend(slots, slots.free.pop())
                while slots.waiters and slots.free:  # who was refused memory meanwhile
                    waiter = slots.waiters.popleft()
                    waiter.slot = self._lend(slots, slots.free.pop())
                    waiter.ready.release()
                return mine
        chunk.close()
        raise ClosedError(f"{self.name} was closed")

    def _queue(self, slots: _SlotClass, timeout: float | None) -> _Slot:
        """Wait in line for a slot, as long as allowed."""
        waiter = _Waiter()
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.name} was closed")
            if not timeout:
                if slots.free:  # returned since it was looked for
                    return self._lend(slots, slots.free.pop())
                raise self._exhausted(slots, timeout)
            if not timeout > 0:
                raise InputError(f"{self.name}: a timeout of {timeout} seconds is negative")
            slots.waiters.append(waiter)
            # What was returned before that is free: nobody will hand it over.
            if slots.free:
                slots.waiters.remove(waiter)
                return self._lend(slots, slots.free.pop())
        return self._wait(slots, waiter, timeout)

    def _wait(self, slots: _SlotClass, waiter: _Waiter, timeout: float) -> _Slot:
        try:
            waiter.ready.acquire(timeout=-1 if timeout > threading.TIMEOUT_MAX else timeout)
        except BaseException:
            with self._lock:
                if waiter.slot is not None:
                    self.release(waiter.slot, waiter.slot.generation)
                elif waiter in slots.waiters:
                    slots.waiters.remove(waiter)
            raise
        with self._lock:
            # It may have been handed over after the time was up.
            if waiter.slot is not None:
                return waiter.slot
            if self._closed:
                raise ClosedError(f"{self.name} was closed while waiting for a slot")
            slots.waiters.remove(waiter)
            raise self._exhausted(slots, timeout)

    def _exhausted(self, slots: _SlotClass, timeout: float | None) -> ResourceExhaustedError:
        slots.exhausted += 1
        waited = f" after {timeout:g} s" if timeout else ""
        holders = "; ".join(str(h) for h in self.leaks() if h.primitive == slots.primitive.name)
        return ResourceExhaustedError(
            f"{self.name}: all {slots.total} {slots.primitive} slots are in use{waited}; close handles, "
            f"wait with timeout=, or raise the cap of {self.cap} slots with {knobs.HOST_POOL_SLOTS.name} "
            "(or cap= of this pool)" + (f"; holders: {holders[:2000]}" if holders else "")
        )


def _call_site() -> str:
    """``file:line`` of the innermost frame outside this module."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename == _THIS_FILE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
