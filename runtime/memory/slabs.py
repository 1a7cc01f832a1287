# SPDX-License-Identifier: Apache-2.0
"""Process-wide pools of pages for linked code, so that any number of objects costs few mappings.

A slab is one reservation of address space:

    guard | code of all objects | guard | read-only data | guard | writable data | guard

Each object gets whole pages of each region of *one* slab: its code lies below its read-only data,
which lies below its writable data, all within 2 GiB as relocations need. Pages of equal protection
are neighbours, so the kernel joins them: thousands of objects take a handful of mappings. Writable
ranges, which few objects have, are each followed by a guard page of their own.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from gristmill.errors import GristmillError, ResourceExhaustedError
from gristmill.runtime.memory import pages
from gristmill.runtime.memory.pages import PAGE

#: Bytes of code, read-only and writable address space of an ordinary slab.
_REGION_BYTES = (64 << 20, 32 << 20, 32 << 20)

#: The largest object: one that leaves a slab of its own addressable with 32-bit relocations.
MAX_OBJECT_BYTES = 1 << 30

# A freed range becomes inaccessible, which splits the mapping it lay in. A region with this many
# holes leaves further ones as they are (discarded, reading zero), to bound the number of mappings.
_MAX_HOLES = 64


class PageRanges:
    """Free pages ``0 … count`` of one region: lowest-address first fit, neighbours joined."""

    def __init__(self, count: int) -> None:
        self._starts: list[int] = [0] if count else []
        self._counts: list[int] = [count] if count else []
        self.total = count
        self.free = count

    def __len__(self) -> int:
        """Number of separate free ranges."""
        return len(self._starts)

    def take(self, count: int) -> int | None:
        """The first page of ``count`` consecutive ones, now taken; None when there are none."""
        for index, available in enumerate(self._counts):
            if available >= count:
                start = self._starts[index]
                if available == count:
                    del self._starts[index], self._counts[index]
                else:
                    self._starts[index] += count
                    self._counts[index] -= count
                self.free -= count
                return start
        return None

    def give(self, start: int, count: int) -> tuple[int, int]:
        """Return pages that were taken; the result is the free range they now belong to."""
        index = bisect.bisect_left(self._starts, start)
        self.free += count
        if index < len(self._starts) and start + count == self._starts[index]:
            count += self._counts[index]
            del self._starts[index], self._counts[index]
        if index and self._starts[index - 1] + self._counts[index - 1] == start:
            index -= 1
            self._counts[index] += count
        else:
            self._starts.insert(index, start)
            self._counts.insert(index, count)
        return self._starts[index], self._counts[index]


@dataclass(frozen=True)
class Span:
    """Usable pages of one region: ``address`` and ``size`` in bytes; ``size`` 0 means none."""

    address: int
    size: int


class _Region:
    def __init__(self, base: int, size: int, guard_pages: int) -> None:
        self.base = base
        self.ranges = PageRanges(size // PAGE)
        self.guard_pages = guard_pages

    def take(self, size: int) -> Span | None:
        if not size:
            return Span(self.base, 0)
        start = self.ranges.take(size // PAGE + self.guard_pages)
        return None if start is None else Span(self.base + start * PAGE, size)

    def give(self, span: Span) -> None:
        if span.size:
            start = (span.address - self.base) // PAGE
            start, count = self.ranges.give(start, span.size // PAGE + self.guard_pages)
            if len(self.ranges) <= _MAX_HOLES:
                # At the limit on mappings this may fail; the range is reusable all the same.
                with contextlib.suppress(GristmillError):
                    pages.protect(self.base + start * PAGE, count * PAGE, pages.PROT_NONE)

    def trim(self, span: Span, size: int) -> Span:
        """Return all but the first ``size`` bytes of a span, keeping the guard behind them."""
        kept = span.size if size >= span.size else -(-size // PAGE) * PAGE
        tail = span.size - kept
        if tail:
            pages.protect(span.address + kept, tail, pages.PROT_NONE)
            guard = self.guard_pages if kept else 0
            start = (span.address + kept - self.base) // PAGE + guard
            self.ranges.give(start, tail // PAGE + self.guard_pages - guard)
        return Span(span.address, kept)


class Slab:
    """One reservation, divided into the three regions."""

    def __init__(self, region_sizes: Sequence[int]) -> None:
        self.size = sum(region_sizes) + 4 * PAGE
        self.base = pages.reserve(self.size)
        self.regions: list[_Region] = []
        cursor = self.base + PAGE
        for size, guard_pages in zip(region_sizes, (0, 0, 1), strict=True):
            self.regions.append(_Region(cursor, size, guard_pages))
            cursor += size + PAGE

    @property
    def empty(self) -> bool:
        """Whether no object has pages here."""
        return all(r.ranges.free == r.ranges.total for r in self.regions)

    def take(self, sizes: Sequence[int]) -> tuple[Span, Span, Span] | None:
        """Pages of each region (byte sizes, multiples of the page size), or None if one is full."""
        spans: list[Span] = []
        for region, size in zip(self.regions, sizes, strict=True):
            span = region.take(size)
            if span is None:
                self.give(spans)
                return None
            spans.append(span)
        code, read_only, read_write = spans
        return code, read_only, read_write

    def give(self, spans: Sequence[Span]) -> None:
        """Return spans of the first regions, in order."""
        for region, span in zip(self.regions, spans, strict=False):
            region.give(span)


@dataclass
class Reservation:
    """Pages of one linked object. ``spans`` are code, read-only and writable memory."""

    slab: Slab
    spans: tuple[Span, Span, Span]


@dataclass(frozen=True)
class CodeMemoryStatistics:
    """What linked code occupies in this process.

    Attributes:
        objects: live reservations.
        code_bytes, read_only_bytes, read_write_bytes: their pages.
        slabs, slab_bytes: reservations of address space behind them.
        mappings, mapping_limit: of the whole process, and ``vm.max_map_count`` (0: unknown).
    """

    objects: int
    code_bytes: int
    read_only_bytes: int
    read_write_bytes: int
    slabs: int
    slab_bytes: int
    mappings: int
    mapping_limit: int


@dataclass
class SlabPool:
    """All slabs of the process; every method is thread-safe."""

    region_sizes: tuple[int, int, int] = _REGION_BYTES
    _slabs: list[Slab] = field(default_factory=list[Slab])
    _bytes: list[int] = field(default_factory=lambda: [0, 0, 0])
    _objects: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, sizes: tuple[int, int, int]) -> Reservation:
        """Writable pages for one object: bytes of code, read-only and writable memory.

        Sizes are rounded up to pages. Raises ``ResourceExhaustedError``; then nothing is taken.
        """
        total = sum(sizes)
        if total > MAX_OBJECT_BYTES:
            raise ResourceExhaustedError(
                f"a linked object of {total} bytes exceeds the limit of {MAX_OBJECT_BYTES} bytes; "
                "keep large constants out of the code"
            )
        code, read_only, read_write = (-(-size // PAGE) * PAGE for size in sizes)
        rounded = (code, read_only, read_write)
        with self._lock:
            reservation = self._take(rounded)
            try:
                for span in reservation.spans:
                    pages.protect(span.address, span.size, pages.PROT_READ_WRITE)
            except GristmillError:
                self._give(reservation)
                raise
            self._objects += 1
            self._bytes = [b + s for b, s in zip(self._bytes, rounded, strict=True)]
            return reservation

    def release(self, reservation: Reservation) -> None:
        """Return an object's pages; their content is gone and their memory given back."""
        with self._lock:
            self._objects -= 1
            self._bytes = [b - s.size for b, s in zip(self._bytes, reservation.spans, strict=True)]
            self._give(reservation)

    def trim(self, reservation: Reservation, sizes: tuple[int, int, int]) -> None:
        """Return the pages beyond the first ``sizes`` bytes of each span, unused so far."""
        with self._lock:
            spans = list(reservation.spans)
            for index, (region, size) in enumerate(
                zip(reservation.slab.regions, sizes, strict=True)
            ):
                trimmed = region.trim(spans[index], size)
                self._bytes[index] -= spans[index].size - trimmed.size
                spans[index] = trimmed
                reservation.spans = (spans[0], spans[1], spans[2])

    def statistics(self) -> CodeMemoryStatistics:
        """Current figures; counting the mappings reads ``/proc/self/maps``."""
        with self._lock:
            code, read_only, read_write = self._bytes
            slabs, slab_bytes = len(self._slabs), sum(slab.size for slab in self._slabs)
            objects = self._objects
        return CodeMemoryStatistics(
            objects,
            code,
            read_only,
            read_write,
            slabs,
            slab_bytes,
            pages.mapping_count(),
            pages.mapping_limit(),
        )

    def _take(self, sizes: tuple[int, int, int]) -> Reservation:
        for slab in self._slabs:
            spans = slab.take(sizes)
            if spans is not None:
                return Reservation(slab, spans)
        slab = self._grow(sizes)
        spans = slab.take(sizes)
        assert spans is not None, "a fresh slab fits the object it was made for"
        return Reservation(slab, spans)

    def _grow(self, sizes: tuple[int, int, int]) -> Slab:
        """A new slab that fits ``sizes``; a small one when the address space is too tight."""
        needed = [size + PAGE for size in sizes]
        usual = [max(*pair) for pair in zip(self.region_sizes, needed, strict=True)]
        try:
            slab = Slab(usual)
        except ResourceExhaustedError:
            slab = Slab(needed)
        self._slabs.append(slab)
        return slab

    def _give(self, reservation: Reservation) -> None:
        slab = reservation.slab
        for span in reservation.spans:
            pages.discard(span.address, span.size)
        slab.give(reservation.spans)
        # Keep one slab, so that compiling and closing in a loop does not map and unmap each time.
        if slab.empty and len(self._slabs) > 1:
            self._slabs.remove(slab)
            pages.unmap(slab.base, slab.size)


#: The pool that all executables of this process share.
PROCESS_POOL = SlabPool()
