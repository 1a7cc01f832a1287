# SPDX-License-Identifier: Apache-2.0
"""Finds what was opened and never closed, by the line of the program that opened it.

    with leaks.track() as tracker:
        ...
    tracker.report.check()

It sees device and pinned memory, buffers, streams, transfer managers and uploaders, allocations and registered
ranges of host memory, handles of pools, modules, graphs, and linked code. What was opened before the block does
not count, nor what the runtime keeps for further use. Work in flight may still hold memory when the block ends:
the tracker lets it end first. :func:`of_pool` makes a report of what one pool knows of its holders.

    opened ──closed──▶ forgotten
       └──deleted without close──▶ lost (reported all the same)
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from gristmill.errors import GristmillError
from gristmill.runtime import observer
from gristmill.runtime.debug.sites import Site, caller, describe
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace
from gristmill.runtime.memory.pool import HostMemoryPool

#: Seconds that work in flight gets to end before what it holds counts as leaked.
SETTLE_SECONDS = 2.0
_KINDS = {
    "RawBuffer": "buffer",
    "DeviceAllocation": "memory",
    "AsyncHostToDeviceTransferManager": "transfer manager",
    "HostStream": "stream",
    "CudaStream": "stream",
    "HostAllocation": "host allocation",
    "SlotHandle": "pool handle",
    "Registration": "mapping",
    "LoadedCode": "code",
    "DeviceExecutable": "executable",
    "CudaModule": "module",
    "SimulatorModule": "module",
    "CudaGraph": "graph",
    "Uploader": "uploader",
}


class LeakError(GristmillError):
    """A program has leaks; the message lists them."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that was opened and not closed.

    Attributes:
        kind: ``buffer``, ``memory``, ``pool handle``, ``mapping``, ``code``, ...
        what: the object in words, as far as it is still there.
        nbytes: its size; 0 where it has none.
        site: the line that opened it.
        lost: whether it was deleted without close, so that nobody can close it any more.
    """

    kind: str
    what: str
    nbytes: int
    site: str
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.what}{' (deleted without close)' if self.lost else ''}"


@dataclass(frozen=True, slots=True)
class LeakReport:
    """All leaks, in the order of opening."""

    leaks: tuple[Leak, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of leaked memory; buffers are views of it and count once."""
        return sum(leak.nbytes for leak in self.leaks if leak.kind != "buffer")

    def by_site(self) -> dict[tuple[str, str], list[Leak]]:
        """The leaks by site and kind."""
        found: dict[tuple[str, str], list[Leak]] = {}
        for leak in self.leaks:
            found.setdefault((leak.site, leak.kind), []).append(leak)
        return found

    def check(self) -> None:
        """Raise ``LeakError`` when there are leaks."""
        if self.leaks:
            raise LeakError(f"{len(self.leaks)} things were not closed:\n{self}")

    def __bool__(self) -> bool:
        return bool(self.leaks)

    def __str__(self) -> str:
        lines: list[str] = []
        for (site, kind), leaks in self.by_site().items():
            nbytes = sum(leak.nbytes for leak in leaks)
            size = f", {nbytes} B" if nbytes else ""
            lines.append(f"{len(leaks)} × {kind}{size}, opened at {site}")
            lines += [f"  {leak}" for leak in leaks[:3]]
            if len(leaks) > 3:
                lines.append(f"  and {len(leaks) - 3} more")
        return "\n".join(lines) or "no leaks"


class _Record:
    """Something open; ``watch`` tells when it is deleted."""

    __slots__ = ("kind", "lost", "nbytes", "number", "site", "watch")

    def __init__(self, resource: object, number: int, site: Site | None) -> None:
        name = type(resource).__name__
        self.kind = _KINDS.get(name, name)
        self.nbytes = int(getattr(resource, "nbytes", 0))
        self.number = number
        self.site = site
        self.lost = False
        self.watch: weakref.ref[object] | None = None

    def leak(self) -> Leak:
        alive = self.watch() if self.watch is not None else None
        what = repr(alive) if alive is not None else f"{self.kind} of {self.nbytes} B"
        return Leak(self.kind, what, self.nbytes, describe(self.site), self.lost)


class LeakTracker(observer.Observer):
    """See the module's text. :func:`track` installs one.

    Attributes:
        report: the leaks; while the block runs, what is open at the moment.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Record] = {}
        self._lost: list[_Record] = []
        self._count = 0
        self._final: LeakReport | None = None

    @property
    def report(self) -> LeakReport:
        """See the class."""
        return self._final or self._now()

    def _now(self) -> LeakReport:
        records = [*tuple(self._open.values()), *self._lost]
        records.sort(key=lambda record: record.number)
        return LeakReport(tuple(record.leak() for record in records))

    def finish(self, settle: float) -> None:
        """Take the report, once what is in flight has ended; at most ``settle`` seconds later."""
        deadline = time.monotonic() + settle
        collected = False
        while self._open or self._lost:
            if not collected:
                gc.collect()  # what only cycles hold closes itself, if it does
                collected = True
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.002)
        self._final = self._now()

    # Hooks

    def allocated(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.allocated``; host memory lent to copies is not the runtime's."""
        if allocation.space is not MemorySpace.HOST and allocation.nbytes:
            self._add(allocation)

    def released(self, allocation: DeviceAllocation) -> None:
        """See ``Observer.released``."""
        self._open.pop(id(allocation), None)

    def opened(self, resource: object) -> None:
        """See ``Observer.opened``."""
        self._add(resource)

    def closed(self, resource: object) -> None:
        """See ``Observer.closed``."""
        self._open.pop(id(resource), None)

    def owned(self, resource: object) -> None:
        """See ``Observer.owned``."""
        self._open.pop(id(resource), None)

    def _add(self, resource: object) -> None:
        self._count += 1
        key = id(resource)
        record = _Record(resource, self._count, caller())
        record.watch = weakref.ref(resource, lambda _: self._dropped(key))
        self._open[key] = record

    def _dropped(self, key: int) -> None:
        record = self._open.pop(key, None)
        if record is not None:
            record.lost = True
            self._lost.append(record)


def of_pool(pool: HostMemoryPool) -> LeakReport:
    """Who holds slots of a pool that tracks its holders, as a report."""
    return LeakReport(
        tuple(Leak("pool handle", f"{h} of {pool.name}", 0, h.site) for h in pool.leaks())
    )


@contextmanager
def track(*, settle: float = SETTLE_SECONDS, raises: bool = False) -> Generator[LeakTracker]:
    """Track what is opened while the block runs.

    Args:
        settle: seconds that work in flight gets to end.
        raises: end the block with ``LeakReport.check``, unless an exception ends it.
    """
    tracker = LeakTracker()
    observer.install(tracker)
    try:
        yield tracker
    finally:
        tracker.finish(settle)
        observer.uninstall(tracker)
    if raises:
        tracker.report.check()
