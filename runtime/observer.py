# SPDX-License-Identifier: Apache-2.0
"""The points at which debug tools watch the memory runtime.

Tools subclass :class:`Observer` and :func:`install` themselves. With none installed each point costs
one loop over an empty tuple. Hooks run on whichever thread acts and must not call back into the
runtime, except to read properties and add callbacks to events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

if TYPE_CHECKING:
    from gristmill.runtime.devices.base import DeviceAllocation
    from gristmill.runtime.devices.stream import Stream
    from gristmill.runtime.events import Event
    from gristmill.runtime.foreign import ForeignMemory

Arguments = ParamSpec("Arguments")


class Access(NamedTuple):
    """Bytes that an operation touches: ``nbytes`` from ``address`` on."""

    address: int
    nbytes: int


class Operation(NamedTuple):
    """Work given to a device.

    Attributes:
        name: what it does, for reports (``copy h2d 4096 B``).
        stream: the stream whose order it takes part in, or None: only events order it.
        completion: its completion event; ``started_ns`` and ``completed_ns`` of it are set while an
            observer is installed.
        waits: events it waits for, beside earlier work of the stream.
        reads, writes: the memory it touches.
        carrier: the stream that carries it where ``stream`` is None; its order is not to be relied on.
    """

    name: str
    stream: Stream | None
    completion: Event
    waits: tuple[Event, ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    carrier: Stream | None = None


class Observer:
    """Base of debug tools; every hook does nothing by default."""

    def allocated(self, allocation: DeviceAllocation) -> None:
        """``allocation`` was made."""

    def released(self, allocation: DeviceAllocation) -> None:
        """The memory of ``allocation`` is about to go back to its device."""

    def opened(self, resource: object) -> None:
        """A buffer, transfer manager, stream, pool handle, mapping or code began to live."""

    def closed(self, resource: object) -> None:
        """What :meth:`opened` named was closed."""

    def owned(self, resource: object) -> None:
        """``resource``, made just now, is kept by the runtime for further use, and closed by it."""

    def submitted(self, operation: Operation) -> None:
        """``operation`` was given to its device by the calling thread.

        A later call with the same ``completion`` replaces an earlier one, and says more.
        """

    def moved(
        self,
        event: Event,
        target: int,
        source: int,
        nbytes: int,
        stream: Stream | None,
        carrier: Stream | None,
        waits: Sequence[Event],
        lent: ForeignMemory | None,
    ) -> None:
        """A small copy was over when the call returned; no other hook is called for it.

        ``event`` has its times, all ``waits`` were ready, and ``lent`` is the host's memory that one end
        lies in, where it is only lent. By default it is taken for what any other copy is.
        """
        reads, writes = (Access(source, nbytes),), (Access(target, nbytes),)
        self.submitted(Operation(event.name, stream, event, tuple(waits), reads, writes, carrier))

    def stream_waits(self, stream: Stream, event: Event) -> None:
        """Everything given to ``stream`` from now on waits for ``event``."""

    def recorded(self, stream: Stream, event: Event) -> None:
        """``event`` completes after everything given to ``stream`` so far."""

    def touched(self, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        """The calling thread itself reads and writes memory now."""

    def joined(self, event: Event, sources: Sequence[Event]) -> None:
        """``event`` will complete after ``sources``, and perhaps others named before or later."""

    def completed(self, event: Event, error: BaseException | None) -> None:
        """``event`` is about to become ready, or fail, on the calling thread, which holds its lock."""

    def called(self, event: Event, callback: Callable[[Event], None]) -> None:
        """``callback`` is about to be called with ``event``, which is done."""

    def waiting(self, event: Event) -> None:
        """The calling thread begins to block for ``event``."""

    def waited(self, event: Event) -> None:
        """The calling thread has seen ``event`` complete."""

    def polled(self, event: Event) -> None:
        """The calling thread, perhaps the runtime on it, asked for ``done`` or ``ok``, and it is."""

    def self_ordered(self, allocation: DeviceAllocation) -> None:
        """The runtime orders all uses of ``allocation`` by means that observers do not see."""


#: The installed tools.
active: tuple[Observer, ...] = ()
#: Those of them that want to know of copies.
watching_copies: tuple[Observer, ...] = ()

_lock = threading.Lock()


def install(observer: Observer) -> None:
    """Let ``observer`` watch from now on."""
    with _lock:
        _set((*active, observer))


def uninstall(observer: Observer) -> None:
    """Stop ``observer``; does nothing when it is not installed."""
    with _lock:
        _set(tuple(other for other in active if other is not observer))


def _set(tools: tuple[Observer, ...]) -> None:
    global active, watching_copies
    base = (Observer.submitted, Observer.moved)
    watching_copies = tuple(t for t in tools if (type(t).submitted, type(t).moved) != base)
    active = tools


class _Thread(threading.local):
    """What the current thread runs as a consequence of."""

    causes: tuple[Event, ...] = ()


_thread = _Thread()


def causes() -> tuple[Event, ...]:
    """The events after which the current thread's code runs: those whose callbacks or work it is."""
    return _thread.causes


def call_back(event: Event, callback: Callable[[Event], None]) -> None:
    """Call ``callback`` with ``event``, after which it runs."""
    for tool in active:
        tool.called(event, callback)
    before, _thread.causes = _thread.causes, (event,)
    try:
        callback(event)
    finally:
        _thread.causes = before


def call_after(
    events: tuple[Event, ...],
    function: Callable[Arguments, object],
    *arguments: Arguments.args,
    **options: Arguments.kwargs,
) -> None:
    """Call ``function``, whose actions count as a consequence of ``events`` and of nothing else.

    An event that others are still to complete (see :meth:`Observer.joined`) stands for who asked for it.
    """
    before, _thread.causes = _thread.causes, events
    try:
        function(*arguments, **options)
    finally:
        _thread.causes = before
