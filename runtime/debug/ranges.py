# SPDX-License-Identifier: Apache-2.0
"""Which memory addresses belong to, and when that ends."""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from gristmill.runtime.debug.sites import Site, caller, describe
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace


class Ranges:
    """The live memory that a tool has seen.

    The memory of a device ends with its allocation. Host memory that is only lent to a copy ends with the
    object behind it: the array, or the one it is a view of. Ends may come from the garbage collector at
    any time, so they are put aside until :meth:`take_ended`.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._live: dict[int, tuple[int, str, Site | None, int]] = {}
        self._ignored: dict[int, tuple[int, int]] = {}
        #: Start, stop, and the serial number of the allocation: another may have the place by now.
        self._ended: deque[tuple[int, int, int]] = deque()
        self._serials: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._lent: dict[int, tuple[int, int]] = {}

    def begin(self, allocation: DeviceAllocation) -> None:
        """An allocation was made."""
        if allocation.nbytes == 0:
            return
        if allocation.space is MemorySpace.HOST:
            self._lend(allocation)
            return
        start = allocation.address
        if start not in self._live:
            insort(self._starts, start)
        what = f"{allocation.nbytes} B {allocation.space.value} memory of {allocation.device}"
        serial = self._serials[id(allocation)] = next(self._numbers)
        self._live[start] = (start + allocation.nbytes, what, caller(), serial)

    def end(self, allocation: DeviceAllocation) -> None:
        """An allocation was given back."""
        if allocation.space is not MemorySpace.HOST:
            serial = self._serials.pop(id(allocation), 0)
            stop = allocation.address + allocation.nbytes
            self._ended.append((allocation.address, stop, serial))
        elif self._lent:
            ended = self._lent.pop(id(allocation), None)
            if ended is not None:
                self._ended.append((*ended, 0))

    def ignore(self, allocation: DeviceAllocation) -> None:
        """Say nothing about this memory."""
        serial = self._serials.get(id(allocation), 0)
        self._ignored[serial] = (allocation.address, allocation.address + allocation.nbytes)

    def is_ignored(self, address: int) -> bool:
        """Whether the address is in memory to say nothing about."""
        return any(start <= address < stop for start, stop in self._ignored.values())

    @property
    def has_ended(self) -> bool:
        """Whether :meth:`take_ended` has something."""
        return bool(self._ended)

    def take_ended(self) -> Iterator[tuple[int, int]]:
        """The ranges that ended since the last call."""
        while self._ended:
            start, stop, serial = self._ended.popleft()
            found = self._live.get(start)
            if found is not None and found[3] == serial:
                del self._live[start]
                del self._starts[bisect_right(self._starts, start) - 1]
            self._ignored.pop(serial, None)
            yield start, stop

    def describe(self, start: int, stop: int) -> str:
        """The bytes in words, relative to the allocation they are in."""
        place = bisect_right(self._starts, start)
        if place:
            base = self._starts[place - 1]
            end, what, site, _ = self._live[base]
            if stop <= end:
                return f"bytes {start - base}..{stop - base} of {what} from {describe(site)}"
        return f"{stop - start} bytes at {start:#x}"

    def _lend(self, allocation: DeviceAllocation) -> None:
        owner = cast(object, _root(allocation.owner))
        if owner is None or id(owner) in self._owners:
            return
        start, stop = _extent(owner, allocation)
        key, ended, owners = id(owner), self._ended, self._owners

        def end(_: object) -> None:
            owners.pop(key, None)
            ended.append((start, stop, 0))

        try:
            owners[key] = weakref.ref(owner, end)
        except TypeError:  # bytes, for one, cannot be watched: lent for this use only
            self._lent[id(allocation)] = (start, stop)


def _extent(owner: object, allocation: DeviceAllocation) -> tuple[int, int]:
    """The memory that ends with its owner."""
    if isinstance(owner, np.ndarray):
        array = cast("np.ndarray[Any, Any]", owner)
        start = int(array.__array_interface__["data"][0])
        return start, start + array.nbytes
    return allocation.address, allocation.address + allocation.nbytes


def _root(owner: Any) -> Any:
    """The object that owns the memory of ``owner``, as far as numpy and memory views tell."""
    while True:
        if isinstance(owner, np.ndarray):
            if owner.base is None:
                return cast(Any, owner)
            owner = owner.base
        elif isinstance(owner, memoryview):
            owner = owner.obj
        else:
            return owner
