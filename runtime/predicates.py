# SPDX-License-Identifier: Apache-2.0
"""Scalars that a device computes and the host decides by: the predicate of a loop, the index of a branch.

    reader = PredicateReader(device)
    while reader.read(predicate, after=(launched,)):
        launched = body.launch(stream, ...)

The device copies the scalar into a page-locked slot of its pool, in the order of a stream or after the events
given, and the host waits for that copy alone. A slot is returned when the copy has ended, also when nobody
waited so long. Many threads may read at once, each with a slot of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.errors import InputError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import Device
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.memory.pool import HostMemoryPool, SlotHandle
from gristmill.runtime.types import PrimitiveType


class PendingScalar:
    """A scalar on its way to the host; a context manager, or taken once by :meth:`wait`.

    Attributes:
        event: done when it is there.
    """

    __slots__ = ("_slot", "event")

    def __init__(self, slot: SlotHandle, event: Event) -> None:
        self._slot = slot
        self.event = event

    def wait(self, timeout: float | None = None) -> Any:
        """The scalar, of numpy's type for it; ends the use of its slot.

        Raises the error of the copy or of what it waited for, and ``DeadlineError`` after ``timeout``
        seconds; ``ClosedError`` when it was taken already.
        """
        try:
            self.event.wait(timeout)
            return self._slot.value
        finally:
            self.close()

    def close(self) -> None:
        """Do without it; idempotent. The slot goes back when the device has finished with it."""
        slot = self._slot

        def give_back(event: Event) -> None:
            for tool in observer.active:
                tool.waited(event)
            slot.close()

        self.event.add_callback(give_back)

    def __enter__(self) -> PendingScalar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PredicateReader:
    """Reads predicates and branch indices of one device. Holds nothing between reads; thread-safe.

    Args:
        device: where the scalars are.
        pool: where slots come from; default: the device's own, ``Device.host_pool``.
    """

    def __init__(self, device: Device, pool: HostMemoryPool | None = None) -> None:
        self.device = device
        self.pool = device.host_pool if pool is None else pool

    def read(
        self,
        buffer: RawBuffer,
        offset: int = 0,
        *,
        after: Sequence[Event] = (),
        stream: Stream | None = None,
        timeout: float | None = None,
    ) -> bool:
        """The predicate (one byte, ``pred``) at ``offset``; blocks until it is known.

        It is copied after ``after``, the buffer's definition, and what ``stream`` was given before.
        Raises what made it fail, as a ``DependencyError`` with the cause where the producer failed;
        ``DeadlineError`` after ``timeout`` seconds; ``ResourceExhaustedError`` when the pool has no slot
        (within ``timeout`` seconds, without one at once); ``InputError`` for bytes outside the buffer.
        """
        return bool(self.start(buffer, offset, "pred", after, stream, timeout).wait(timeout))

    def read_index(
        self,
        buffer: RawBuffer,
        offset: int = 0,
        *,
        primitive: PrimitiveType | str = "s32",
        after: Sequence[Event] = (),
        stream: Stream | None = None,
        timeout: float | None = None,
    ) -> int:
        """The integer at ``offset``: the index of a branch, a trip count. As :meth:`read`."""
        return int(self.start(buffer, offset, primitive, after, stream, timeout).wait(timeout))

    def start(
        self,
        buffer: RawBuffer,
        offset: int = 0,
        primitive: PrimitiveType | str = "pred",
        after: Sequence[Event] = (),
        stream: Stream | None = None,
        timeout: float | None = None,
    ) -> PendingScalar:
        """Begin to read a scalar of any type and return at once; waits for a slot at most ``timeout`` s."""
        if buffer.device is not self.device:
            raise InputError(f"{buffer!r} is not on {self.device}, whose scalars this reads")
        slot = self.pool.acquire(primitive, timeout)
        try:
            event = buffer.copy_to_host(slot.array, offset, waits=after, stream=stream)
        except BaseException:
            slot.close()
            raise

        def keep(_: Event, slot: SlotHandle = slot) -> None:
            """The copy has the slot until it has ended, also when nobody has what this returns."""

        event.add_callback(keep)
        return PendingScalar(slot, event)
