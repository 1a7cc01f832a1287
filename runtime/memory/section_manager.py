# SPDX-License-Identifier: Apache-2.0
"""Memory of one linked program: contiguous sections that are never writable and executable at once.

The manager moves through the states

    new → reserved → filled → sealed → released

``reserve`` takes pages for code < read-only < writable data from process-wide slabs, all writable.
``allocate_code`` and ``allocate_data`` place sections in them (filled). ``seal`` applies the final
protections: code becomes readable and executable, read-only data readable. ``release`` gives the
pages back from any state. A call that raises has changed nothing, and a call in the wrong state
raises ``ToolchainError``.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass

from gristmill.errors import GristmillError, ResourceExhaustedError, ToolchainError
from gristmill.runtime.llvm.library import invalidate_instruction_cache
from gristmill.runtime.memory import pages
from gristmill.runtime.memory.slabs import PROCESS_POOL, Reservation, SlabPool, Span

#: The largest alignment a section may ask for; beyond a page it costs address space.
MAX_ALIGNMENT = 1 << 21


class State(enum.Enum):
    """Where a manager is in its life."""

    NEW = "new"
    RESERVED = "reserved"
    FILLED = "filled"
    SEALED = "sealed"
    RELEASED = "released"


@dataclass(frozen=True)
class SectionRequest:
    """Memory of one kind: bytes and the largest alignment of a section in it."""

    size: int = 0
    alignment: int = 1


@dataclass
class _Segment:
    """A bump allocator over one span."""

    kind: str
    span: Span
    cursor: int

    def place(self, size: int, alignment: int) -> int:
        start = -(-self.cursor // alignment) * alignment
        available = self.span.address + self.span.size - start
        if size > available:
            raise ResourceExhaustedError(
                f"a section of {size} bytes does not fit the {self.kind} memory reserved for this "
                f"object ({max(available, 0)} bytes left)"
            )
        self.cursor = start + size
        return start


class ContiguousSectionMemoryManager:
    """Owns the sections of one linked program; see the module's text for the states.

    Satisfies :class:`gristmill.runtime.llvm.orc.SectionMemory`. Not thread-safe, except that
    ``release`` of different managers may run at once. A context manager that releases.
    """

    def __init__(self, pool: SlabPool = PROCESS_POOL) -> None:
        self._pool = pool
        self._reservation: Reservation | None = None
        self._segments: dict[str, _Segment] = {}
        self.state = State.NEW

    def reserve(
        self, code: SectionRequest, read_only: SectionRequest, read_write: SectionRequest
    ) -> None:
        """Take memory for all sections. Raises ``ResourceExhaustedError`` naming the limit hit."""
        self._expect("reserve", State.NEW)
        requests = {"code": code, "read-only": read_only, "writable": read_write}
        sizes: list[int] = []
        for kind, request in requests.items():
            alignment = _checked_alignment(request.alignment, kind)
            if request.size < 0:
                raise ToolchainError(f"{kind} memory of {request.size} bytes was asked for")
            # Spans start on a page; a larger alignment may have to skip some.
            slack = alignment - pages.PAGE if request.size and alignment > pages.PAGE else 0
            sizes.append(request.size + slack)
        self._reservation = self._pool.reserve((sizes[0], sizes[1], sizes[2]))
        self._segments = {
            kind: _Segment(kind, span, span.address)
            for kind, span in zip(requests, self._reservation.spans, strict=True)
        }
        self.state = State.RESERVED

    def allocate_code(self, size: int, alignment: int, name: str = ".text") -> int:
        """The address for an executable section of ``size`` bytes."""
        return self._allocate("code", size, alignment, name)

    def allocate_data(
        self, size: int, alignment: int, name: str = ".data", read_only: bool = False
    ) -> int:
        """The address for a section of ``size`` bytes, sealed read-only or left writable."""
        return self._allocate("read-only" if read_only else "writable", size, alignment, name)

    def seal(self) -> None:
        """Apply the final protections and make the code visible to the instruction fetcher.

        On failure everything is writable again and the state is what it was.
        """
        self._expect("seal", State.RESERVED, State.FILLED)
        self._trim()
        code, read_only, _ = self.spans
        try:
            pages.protect(code.address, code.size, pages.PROT_READ_EXEC)
            pages.protect(read_only.address, read_only.size, pages.PROT_READ)
        except GristmillError:
            with contextlib.suppress(GristmillError):
                pages.protect(code.address, code.size, pages.PROT_READ_WRITE)
                pages.protect(read_only.address, read_only.size, pages.PROT_READ_WRITE)
            raise
        invalidate_instruction_cache(code.address, code.size)
        self.state = State.SEALED

    def release(self) -> None:
        """Give all memory back; idempotent, from any state. Nothing may run in it any more."""
        reservation, self._reservation = self._reservation, None
        self._segments.clear()
        self.state = State.RELEASED
        if reservation is not None:
            self._pool.release(reservation)

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        """The pages of code, read-only and writable memory; an error when there are none."""
        if self._reservation is None:
            raise ToolchainError(f"section memory is {self.state.value}: it has no pages")
        return self._reservation.spans

    def __enter__(self) -> ContiguousSectionMemoryManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _trim(self) -> None:
        """Give back the pages no section uses: reservations are upper bounds."""
        assert self._reservation is not None
        code, read_only, read_write = (s.cursor - s.span.address for s in self._segments.values())
        self._pool.trim(self._reservation, (code, read_only, read_write))
        for segment, span in zip(self._segments.values(), self.spans, strict=True):
            segment.span = span

    def _allocate(self, kind: str, size: int, alignment: int, name: str) -> int:
        self._expect(f"place section {name}", State.RESERVED, State.FILLED)
        if size < 0:
            raise ToolchainError(f"section {name} has a size of {size} bytes")
        address = self._segments[kind].place(size, _checked_alignment(alignment, name))
        self.state = State.FILLED
        return address

    def _expect(self, action: str, *states: State) -> None:
        if self.state not in states:
            expected = " or ".join(state.value for state in states)
            raise ToolchainError(
                f"cannot {action}: the section memory is {self.state.value}, not {expected}"
            )


def _checked_alignment(alignment: int, what: str) -> int:
    """``alignment`` with 0 read as 1; raises unless it is a power of two within the limit."""
    alignment = alignment or 1
    if alignment < 0 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
        raise ToolchainError(
            f"{what}: alignment {alignment} is not a power of two up to {MAX_ALIGNMENT}"
        )
    return alignment
