# SPDX-License-Identifier: Apache-2.0
"""The book-keeping of a transfer manager: which bytes of which buffer were given, and how each ends.

It is separate from the manager so that running transfers do not keep that alive.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from gristmill.errors import ClosedError, TransferError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import DeviceAllocation, check_range
from gristmill.runtime.events import Event
from gristmill.runtime.intervals import IntervalSet
from gristmill.runtime.layout import Shape
from gristmill.runtime.progress import ProgressBar, ProgressCallback, ProgressMeter, wants_bar
from gristmill.runtime.uploads import Uploader

OnDone = Callable[[BaseException | None], None]
Policy = Literal["reject", "allow"]


@dataclass(frozen=True)
class TransferOptions:
    """What a manager allows and shows.

    Attributes:
        gaps: whether a buffer may be finished with bytes that were never written.
        overlaps: whether bytes may be written twice; which transfer wins is then undefined, unless the
            second is given after the first one's event is done. With either set to ``allow`` a buffer
            is finished by a transfer with ``last=True`` only.
        progress: called with a ``Progress`` whenever bytes have arrived.
        bar: draw a bar on standard error; None: for large uploads on a terminal.
        label: names the upload in the bar and in messages.
    """

    gaps: Policy = "reject"
    overlaps: Policy = "reject"
    progress: ProgressCallback | None = None
    bar: bool | None = None
    label: str = "upload"


@dataclass(eq=False)
class BufferState:
    """A buffer of a manager, and what is known of its filling; guarded by the state's lock."""

    index: int
    shape: Shape
    buffer: RawBuffer
    allocation: DeviceAllocation
    base: int
    claimed: IntervalSet = field(default_factory=IntervalSet)
    in_flight: int = 0
    last_given: bool = False
    finished: bool = False
    error: BaseException | None = None

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.buffer.nbytes


class ManagerState:
    """All of a manager that its running transfers need; outlives it until they end."""

    def __init__(
        self, uploader: Uploader, owns_uploader: bool, options: TransferOptions, total: int
    ) -> None:
        self.uploader = uploader
        self.owns_uploader = owns_uploader
        self.options = options
        self.buffers: list[BufferState] = []
        #: Accepted transfers whose end was not reported completely yet.
        self.running = 0
        #: For observers: what is true once all transfers so far have ended. Never completed.
        self.transfers = Event(f"transfers of {options.label}")
        self.closed = False
        bar = wants_bar(total) if options.bar is None else options.bar
        self.bar = ProgressBar(options.label) if bar else None
        callbacks = (options.progress, self.bar)
        self.meter = ProgressMeter(total, tuple(c for c in callbacks if c is not None))
        # Re-entrant: the garbage collector may end the manager while this thread is in here.
        self.lock = threading.RLock()

    @property
    def explicit_end(self) -> bool:
        """Whether only ``last=True`` finishes a buffer."""
        return self.options.gaps == "allow" or self.options.overlaps == "allow"

    def claim(self, target: BufferState, offset: int, nbytes: int, last: bool) -> None:
        """Take the place of a transfer; raises, and takes nothing, when it breaks a rule.

        It holds the buffer's memory from then on, as the manager may be closed before it ends.
        """
        label = f"{self.options.label}: buffer {target.index}"
        with self.lock:
            if self.closed:
                raise ClosedError(f"{label}: the transfer manager was closed")
            check_range(label, offset, nbytes, target.nbytes)
            if target.error is not None:
                raise TransferError(f"{label} has failed before: {target.error}") from target.error
            if target.nbytes:
                self._check_bytes(label, target, offset, offset + nbytes, last)
            target.allocation.hold()
            if target.nbytes:
                target.claimed.add(offset, offset + nbytes)
                target.last_given = last
                target.in_flight += 1
                self.running += 1

    def _check_bytes(
        self, label: str, target: BufferState, offset: int, stop: int, last: bool
    ) -> None:
        if self._is_full(target):
            raise TransferError(f"{label} was given completely already")
        taken = target.claimed.overlaps(offset, stop)
        if taken and self.options.overlaps == "reject":
            raise TransferError(
                f"{label}: bytes {taken[0]}..{taken[1]} were given already; give each byte once, or "
                "set overlaps='allow'"
            )
        if last and self.options.gaps == "reject":
            missing = target.claimed.gaps(0, offset) + target.claimed.gaps(stop, target.nbytes)
            if missing:
                text = ", ".join(f"{low}..{high}" for low, high in missing[:5])
                raise TransferError(
                    f"{label}: the last transfer leaves bytes {text} unwritten; give them first, or "
                    "set gaps='allow'"
                )

    def transferred(
        self, target: BufferState, event: Event, on_done: OnDone | None, error: BaseException | None
    ) -> None:
        """A transfer ended: book-keeping, then ``on_done``, then those who wait."""
        with self.lock:
            if target.nbytes:
                target.in_flight -= 1
            poisons = error is not None and target.error is None and not target.finished
            if poisons:
                target.error = error
            complete = target.error is None and target.in_flight == 0 and self._is_full(target)
            publishes = complete and not target.finished
            target.finished = target.finished or complete
        if poisons:
            self.uploader.sweep()
        definition = target.buffer.definition
        for tool in observer.active:
            tool.joined(definition, (event,))
            tool.joined(self.transfers, (event,))
            if on_done is not None:
                tool.waited(event)
        if on_done is not None:
            try:
                observer.call_after((), on_done, error)
            except Exception as fault:
                sys.excepthook(type(fault), fault, fault.__traceback__)
        if error is not None:
            event.fail(error)
            if poisons:
                definition.fail(error)
        else:
            event.complete()
            if publishes:
                definition.complete()
        with self.lock:
            if target.nbytes:
                self.running -= 1
        self.uploader.notify()
        self.end_if_idle()

    def _is_full(self, target: BufferState) -> bool:
        """Whether all transfers of a buffer were given, though perhaps none has ended."""
        return target.last_given or (
            not self.explicit_end and target.claimed.covers(0, target.nbytes)
        )

    def poison(self, target: BufferState, error: BaseException) -> bool:
        """Put an unfinished buffer in error; False when it was finished or in error already."""
        with self.lock:
            if target.finished or target.error is not None:
                return False
            target.error = error
        target.buffer.definition.fail(error)
        self.uploader.sweep()
        return True

    def end(self, error: BaseException) -> list[int]:
        """Refuse new transfers and poison what is unfinished; returns the indices of that.

        All of it is done, also when memory cannot be given back, which is raised at the end.
        """
        with self.lock:
            if self.closed:
                return []
            self.closed = True
        poisoned = [target.index for target in self.buffers if self.poison(target, error)]
        with ExitStack() as ends:
            ends.callback(self.end_if_idle)
            if self.bar is not None:
                ends.callback(self.bar.close)
            for target in reversed(self.buffers):
                ends.callback(target.buffer.close)
        return poisoned

    def end_if_idle(self) -> None:
        """Close the uploader of a closed manager once nothing runs any more."""
        with self.lock:
            over = self.closed and self.running == 0 and self.owns_uploader
        if over:
            # This may be a thread of the uploader, or the garbage collector: do not wait for others.
            self.uploader.close(wait=False)
