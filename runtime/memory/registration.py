# SPDX-License-Identifier: Apache-2.0
"""Ranges of host memory made known to devices (page-locked, mapped): each once, however often asked for.

Registering is slow and drivers refuse to do it twice, so a range counts its users: it is mapped for the
first and unmapped after the last. A range inside a registered one uses that.
"""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from gristmill.errors import ClosedError, InputError
from gristmill.runtime import observer

#: ``map_range(device, address, nbytes)``; raises when the device refuses.
MapRange = Callable[[int | None, int, int], None]
#: ``unmap_range(device, address)``.
UnmapRange = Callable[[int | None, int], None]


@dataclass(order=True)
class _Range:
    address: int
    end: int = field(compare=False)
    users: int = field(default=1, compare=False)


@dataclass(frozen=True)
class RegistrationStatistics:
    """What is registered now (ranges, bytes), and how often a range was mapped or already there."""

    ranges: int
    nbytes: int
    maps: int
    hits: int


class Registration:
    """One use of a registered range; a context manager. Closing it is idempotent."""

    def __init__(self, ranges: RegisteredRanges, device: int | None, found: _Range) -> None:
        self._ranges = ranges
        self._found: _Range | None = found
        self.device = device
        for tool in observer.active:
            tool.opened(self)

    @property
    def closed(self) -> bool:
        """Whether this use has ended."""
        return self._found is None

    def close(self) -> None:
        """End this use; the last one unmaps the range and raises what the device does."""
        found, self._found = self._found, None
        if found is not None:
            for tool in observer.active:
                tool.closed(self)
            self._ranges.leave(self.device, found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._found is not None:
            warnings.warn("a registration was dropped without close", ResourceWarning, stacklevel=2)
            self.close()


class RegisteredRanges:
    """The registered ranges of each device. Thread-safe.

    Args:
        map_range: makes memory known to a device.
        unmap_range: undoes it.
    """

    def __init__(self, map_range: MapRange, unmap_range: UnmapRange) -> None:
        self._map, self._unmap = map_range, unmap_range
        self._devices: dict[int | None, list[_Range]] = {}
        self._maps = self._hits = 0
        # Held while the device works, as a range must not be used before it is mapped. Re-entrant, since
        # the garbage collector may close a registration meanwhile.
        self._lock = threading.RLock()

    def register(self, device: int | None, address: int, nbytes: int) -> Registration:
        """Use a range; it is mapped unless it lies in one that is.

        Raises ``InputError`` for an empty range or one that overlaps a registered one in part.
        """
        if nbytes < 1 or address < 1:
            raise InputError(f"cannot register {nbytes} bytes at {address:#x}")
        end = address + nbytes
        with self._lock:
            ranges = self._devices.setdefault(device, [])
            place = bisect_right(ranges, _Range(address, end))
            before = ranges[place - 1] if place else None
            if before is not None and end <= before.end:
                before.users += 1
                self._hits += 1
                return Registration(self, device, before)
            after = ranges[place] if place < len(ranges) else None
            clash = before if before is not None and address < before.end else None
            if after is not None and after.address < end:
                clash = clash or after
            if clash is not None:
                raise InputError(
                    f"cannot register {nbytes} bytes at {address:#x} for {_name(device)}: they overlap "
                    f"{clash.end - clash.address} registered ones at {clash.address:#x} in part; register "
                    "the whole range first"
                )
            self._map(device, address, nbytes)
            self._maps += 1
            found = _Range(address, end)
            insort(ranges, found)
            return Registration(self, device, found)

    def is_registered(self, device: int | None, address: int, nbytes: int) -> bool:
        """Whether one registered range holds all of these bytes."""
        with self._lock:
            ranges = self._devices.get(device, [])
            place = bisect_right(ranges, _Range(address, 0))
            return place > 0 and address + nbytes <= ranges[place - 1].end

    def statistics(self) -> RegistrationStatistics:
        """Current figures."""
        with self._lock:
            ranges = [r for found in self._devices.values() for r in found]
            nbytes = sum(r.end - r.address for r in ranges)
            return RegistrationStatistics(len(ranges), nbytes, self._maps, self._hits)

    def leave(self, device: int | None, found: _Range) -> None:
        """End one use of a range: what :meth:`Registration.close` does."""
        with self._lock:
            if not found.users:
                raise ClosedError(f"the range at {found.address:#x} was unregistered already")
            found.users -= 1
            if not found.users:
                # Gone from the books first: a range the device refuses to unmap must not be used again.
                self._devices[device].remove(found)
                self._unmap(device, found.address)


def _name(device: int | None) -> str:
    return "all devices" if device is None else f"device {device}"
