# SPDX-License-Identifier: Apache-2.0
"""Host memory that a device uses where it lies: registered for that, or reached already.

Drivers refuse to register memory twice, and memory must stay registered while anything uses it. So a range
that was registered for one alias serves the others inside it, and is unregistered after the last of them.
Memory that somebody else registered or page-locked is used as it is; who did that keeps it so meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol


class Reaches(Protocol):
    """What is needed of a device."""

    def register_host(self, address: int, nbytes: int) -> int:
        """See ``Device.register_host``."""
        ...

    def unregister_host(self, address: int) -> None:
        """See ``Device.unregister_host``."""
        ...

    def find_host(self, address: int, nbytes: int) -> int | None:
        """See ``Device.find_host``."""
        ...


@dataclass(eq=False)
class _Range:
    """Memory registered for aliases. ``users``: how many; 0 while it is registered or unregistered."""

    start: int
    end: int
    device_address: int = 0
    users: int = 0


class HostRanges:
    """The memory that one device registered for aliases. Thread-safe; calls the device without a lock.

    A range that is being registered or unregistered is neither there nor gone: who asks for it waits.
    """

    def __init__(self, device: Reaches) -> None:
        self._device = device
        self._ranges: list[_Range] = []
        #: Counts registrations: what is found reachable while one begins may be so because of it.
        self._begun = 0
        # Re-entrant: the garbage collector may release an alias while this thread is in here.
        self._changed = threading.Condition(threading.RLock())

    def reaches(self, address: int, nbytes: int) -> bool:
        """Whether the device reaches this memory now, so that an alias needs no registration."""
        with self._changed:
            if self._holding(address, nbytes) is not None:
                return True
            if self._overlaps(address, nbytes):
                return False
        return self._device.find_host(address, nbytes) is not None

    def acquire(self, address: int, nbytes: int) -> tuple[int, Callable[[], None]]:
        """The device's address of memory that is reachable until the returned function is called.

        Raises what registering raises.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_changing(address, nbytes))
                found = self._holding(address, nbytes)
                if found is not None:
                    found.users += 1
                    there = found.device_address + (address - found.start)
                    return there, partial(self._leave, found)
                free, begun = not self._overlaps(address, nbytes), self._begun
            known = self._device.find_host(address, nbytes) if free else None
            with self._changed:
                if begun != self._begun:
                    continue
                if known is not None:
                    return known, _nothing
                made = _Range(address, address + nbytes)
                self._ranges.append(made)
                self._begun += 1
                break
        try:
            there = self._device.register_host(address, nbytes)
        except BaseException:
            self._forget(made)
            raise
        with self._changed:
            made.device_address, made.users = there, 1
            self._changed.notify_all()
        return there, partial(self._leave, made)

    def _holding(self, address: int, nbytes: int) -> _Range | None:
        for known in tuple(self._ranges):
            if known.users and known.start <= address and address + nbytes <= known.end:
                return known
        return None

    def _overlaps(self, address: int, nbytes: int) -> bool:
        return any(r.start < address + nbytes and address < r.end for r in tuple(self._ranges))

    def _is_changing(self, address: int, nbytes: int) -> bool:
        return any(
            not r.users and r.start < address + nbytes and address < r.end
            for r in tuple(self._ranges)
        )

    def _leave(self, found: _Range) -> None:
        with self._changed:
            found.users -= 1
            if found.users:
                return
        try:
            self._device.unregister_host(found.start)
        finally:
            self._forget(found)

    def _forget(self, gone: _Range) -> None:
        with self._changed:
            self._ranges.remove(gone)
            self._changed.notify_all()


def _nothing() -> None:
    """Who made the memory reachable ends that too."""
