# SPDX-License-Identifier: Apache-2.0
"""Finds accesses to the same bytes that nothing orders: copies, kernels and host work that race.

    with races.detect() as detector:
        ...
    detector.check()

Two accesses *conflict* when they share bytes, at least one writes, and neither happens before the other.
What happens before what follows from the program alone, not from how it happened to run: the order of each
stream, the events that work waits for, ``wait_event`` and ``record_event``, and what the host waited for
before it gave the work. So a race is found even when it went well, as often as not.

What the detector takes as order:

- All threads of the program count as one, in the order of their calls: how they synchronise is not seen.
- A thread that waited for an event, awaited it, found it done, or was called back by it, knows that its
  work has ended.
- What runs on a stream knows what was before it. A host function on a stream that tells other threads
  something by means of its own tells the detector nothing: let them wait for its event.

It sees the copies of the runtime, kernels, files read in place, and what the program declares by
:func:`gristmill.runtime.debug.accesses.touch` and ``declare``. Memory given back is forgotten.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gristmill.errors import GristmillError
from gristmill.runtime import observer
from gristmill.runtime.debug.clocks import Clock
from gristmill.runtime.debug.order import Order
from gristmill.runtime.debug.ranges import Ranges
from gristmill.runtime.debug.shadow import Clash, Shadow, Use
from gristmill.runtime.debug.sites import Site, describe
from gristmill.runtime.devices.base import DeviceAllocation
from gristmill.runtime.foreign import ForeignMemory
from gristmill.runtime.observer import Access

#: Conflicts beyond this many different ones are counted only.
MOST_CONFLICTS = 1000


class RaceError(GristmillError):
    """A program has races; the message lists them."""


@dataclass(frozen=True, slots=True)
class AccessSite:
    """One side of a conflict.

    Attributes:
        operation: what it is (``copy h2d 64 B``).
        place: the stream, or what else orders it.
        access: ``read`` or ``write``.
        site: the line of the program that asked for it; None for work the runtime does by itself.
    """

    operation: str
    place: str
    access: str
    site: Site | None

    def __str__(self) -> str:
        return f"{self.access} by {self.operation!r} on {self.place}, from {describe(self.site)}"


@dataclass(slots=True)
class Conflict:
    """Two accesses to the same bytes without an order between them.

    Attributes:
        start, stop: the addresses of the shared bytes, half-open.
        memory: the same in words.
        count: how often these two lines did this.
    """

    _first: tuple[Use, bool]
    _second: tuple[Use, bool]
    start: int
    stop: int
    memory: str
    count: int = 1

    @property
    def first(self) -> AccessSite:
        """The side that was given to its device first."""
        return _side(*self._first)

    @property
    def second(self) -> AccessSite:
        """The other side."""
        return _side(*self._second)

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"race on {self.memory}{times}:\n  {self.first}\n  {self.second}"


def _side(use: Use, writes: bool) -> AccessSite:
    return AccessSite(use.name, use.place, "write" if writes else "read", use.site)


class RaceDetector(Order):
    """See the module's text. :func:`detect` installs one."""

    def __init__(self) -> None:
        super().__init__()
        self._shadow = Shadow()
        self._ranges = Ranges(self.ended)
        self._found: dict[tuple[object, ...], Conflict] = {}
        self._total = 0

    @property
    def conflicts(self) -> list[Conflict]:
        """The different conflicts found so far, first found first."""
        with self._lock:
            self._catch_up()
            return list(self._found.values())

    def report(self) -> str:
        """All conflicts as text; empty when there are none."""
        return "\n".join(map(str, self.conflicts))

    def check(self) -> None:
        """Raise ``RaceError`` when conflicts were found."""
        found = self.report()
        if found:
            raise RaceError(f"{self._total} conflicting accesses were found\n{found}")

    # Memory

    def allocated(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.allocated``."""
        if self._log:
            self.catch_up()  # what was here before is over
        self._ranges.begin(allocation)

    def released(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.released``."""
        self._ranges.end(allocation)

    def self_ordered(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.self_ordered``."""
        self._ranges.ignore(allocation)

    def touched(self, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        """See ``Observer.touched``."""
        self._host_operation(reads, writes)

    # What Order finds out

    def _check(
        self, use: Use, reads: Sequence[Access], writes: Sequence[Access], clock: Clock
    ) -> None:
        for address, nbytes in reads:
            self._check_read(address, nbytes, use, clock)
        for address, nbytes in writes:
            self._check_write(address, nbytes, use, clock)

    def _check_move(self, use: Use, target: int, source: int, nbytes: int, clock: Clock) -> None:
        self._check_read(source, nbytes, use, clock)
        self._check_write(target, nbytes, use, clock)

    def _watch(self, lent: ForeignMemory) -> bool:
        if self._ranges.is_watched(lent.owner):
            return True
        return self._ranges.watch(lent.owner, lent.address, lent.nbytes)

    def _end(self, start: int, stop: int, serial: int) -> None:
        self._ranges.forget(start, serial)
        self._shadow.forget(start, stop)

    def _check_read(self, address: int, nbytes: int, use: Use, clock: Clock) -> None:
        if nbytes and not self._ranges.is_ignored(address):
            for clash in self._shadow.read(address, address + nbytes, use, clock):
                self._add(clash, use, False)

    def _check_write(self, address: int, nbytes: int, use: Use, clock: Clock) -> None:
        if nbytes and not self._ranges.is_ignored(address):
            for clash in self._shadow.write(address, address + nbytes, use, clock):
                self._add(clash, use, True)

    def _add(self, clash: Clash, use: Use, writes: bool) -> None:
        other, wrote, start, stop = clash
        self._total += 1
        key = (other.name, other.site, other.place, wrote, use.name, use.site, use.place, writes)
        found = self._found.get(key)
        if found is not None:
            found.count += 1
        elif len(self._found) < MOST_CONFLICTS:
            memory = self._ranges.describe(start, stop)
            self._found[key] = Conflict((other, wrote), (use, writes), start, stop, memory)


@contextmanager
def detect(*, raises: bool = False) -> Generator[RaceDetector]:
    """Look for conflicts while the block runs; with ``raises``, end it with :meth:`RaceDetector.check`.

    Work that was given before the block counts as done by then.
    """
    detector = RaceDetector()
    observer.install(detector)
    try:
        yield detector
    finally:
        observer.uninstall(detector)
    if raises:
        detector.check()
