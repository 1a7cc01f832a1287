# SPDX-License-Identifier: Apache-2.0
"""Which memory addresses belong to, and when that ends."""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gristmill.runtime.debug.sites import Site, caller, describe
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace
from gristmill.runtime.memory.host import data_address


class Ranges:
    """The live memory that a tool has seen.

    The memory of a device ends with its allocation. Host memory that is only lent to a copy ends with the
    object behind it: the array, or the one it is a view of.

    Args:
        ended: called when memory ends, with start, stop, and the serial number that :meth:`forget` takes:
            another allocation may have the place by now. The garbage collector may call it at any time.
    """

    def __init__(self, ended: Callable[[int, int, int], None]) -> None:
        self._starts: list[int] = []
        self._live: dict[int, tuple[int, str, Site | None, int]] = {}
        self._ignored: dict[int, tuple[int, int]] = {}
        self._ended = ended
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
            self._ended(allocation.address, stop, serial)
        elif self._lent:
            ended = self._lent.pop(id(allocation), None)
            if ended is not None:
                self._ended(*ended, 0)

    def ignore(self, allocation: DeviceAllocation) -> None:
        """Say nothing about this memory."""
        serial = self._serials.get(id(allocation), 0)
        self._ignored[serial] = (allocation.address, allocation.address + allocation.nbytes)

    def is_ignored(self, address: int) -> bool:
        """Whether the address is in memory to say nothing about."""
        return any(low <= address < high for low, high in self._ignored.values())

    def forget(self, start: int, serial: int) -> None:
        """The memory of the allocation with this number has ended."""
        found = self._live.get(start)
        if found is not None and found[3] == serial:
            del self._live[start]
            del self._starts[bisect_right(self._starts, start) - 1]
        self._ignored.pop(serial, None)

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
        if not self.watch(allocation.owner, allocation.address, allocation.nbytes):
            start = allocation.address
            self._lent[id(allocation)] = (start, start + allocation.nbytes)

    def is_watched(self, lent: object) -> bool:
        """Whether :meth:`watch` was called for an owner; a quick look."""
        return id(lent) in self._owners

    def watch(self, lent: object, address: int, nbytes: int) -> bool:
        """Find out when host memory that is lent ends, with the object that owns it; False: it cannot be."""
        owner = cast(object, _root(lent))
        key, owners = id(owner), self._owners
        if owner is None or key in owners:
            return True
        start, stop = _extent(owner, address, nbytes)
        ended = self._ended

        def end(_: object) -> None:
            owners.pop(key, None)
            ended(start, stop, 0)

        try:
            owners[key] = weakref.ref(owner, end)
        except TypeError:  # bytes, for one, cannot be watched: lent for one use only
            return False
        return True


def _extent(owner: object, address: int, nbytes: int) -> tuple[int, int]:
    """The memory that ends with its owner: all of an array, though only part of it was lent."""
    if isinstance(owner, np.ndarray):
        array = cast("np.ndarray[Any, Any]", owner)
        start = data_address(array)
        return start, start + array.nbytes
    return address, address + nbytes


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
