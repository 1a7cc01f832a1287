# SPDX-License-Identifier: Apache-2.0
"""Events: the one-shot completions that join asynchronous work of all devices.

    pending ──complete()──▶ ready
       └─────fail(error)──▶ error

The first of the two calls decides; later ones change nothing and return False. Nothing leaves ``ready``
or ``error``. An event in error *poisons* what waits for it: the consumer is not run, and its own event
fails with a :class:`~gristmill.errors.DependencyError` whose ``__cause__`` is the producer's error, so
the chain of causes leads to the failure that began it.

All methods may be called from any thread. Events may be awaited in any asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any

from gristmill.errors import DeadlineError, DependencyError
from gristmill.runtime import observer

Callback = Callable[["Event"], None]


class EventState(enum.Enum):
    """What is known of an event."""

    PENDING = "pending"
    READY = "ready"
    ERROR = "error"


_READY = EventState.READY
#: The lock of events that were ready from the first: nothing can change in them.
_DONE = threading.RLock()


class Event:
    """A completion that is pending, then ready or in error, for good.

    Devices may derive from it: :meth:`poll` is called before the state is read, so that a subclass can
    ask its driver; :meth:`block` waits, so that a subclass can wait in the driver. Both end in
    :meth:`complete` or :meth:`fail`.

    Attributes:
        name: what completes it, for messages.
        started_ns, completed_ns: ``time.perf_counter_ns`` of the work's start and end, or None; set
            only while an observer is installed.
        notes: what debug tools note about it, by tool.
    """

    __slots__ = (
        "__weakref__", "_callbacks", "_error", "_lock", "_state", "_traceback",
        "completed_ns", "name", "notes", "started_ns",
    )  # fmt: skip

    def __init__(self, name: str = "event") -> None:
        self.name = name
        self.notes: dict[object, Any] | None = None
        self.started_ns: int | None = None
        self.completed_ns: int | None = None
        self._state = EventState.PENDING
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._callbacks: list[Callback] | None = None
        # Re-entrant: the garbage collector may complete an event while this thread is in here.
        self._lock = threading.RLock()

    @classmethod
    def past(cls, name: str) -> Event:
        """An event of something that is over and went well, of which no debug tool is told."""
        event = cls.__new__(cls)
        event.name = name
        event.started_ns = event.completed_ns = event.notes = None
        event._state = _READY
        event._error = event._traceback = event._callbacks = None
        event._lock = _DONE
        return event

    # State

    @property
    def known_ready(self) -> bool:
        """Whether the event is ready, as far as is known without asking its device."""
        return self._state is _READY

    @property
    def state(self) -> EventState:
        """The state now; never blocks."""
        if self._state is EventState.PENDING:
            self.poll()
        return self._state

    @property
    def done(self) -> bool:
        """Whether the event is ready or in error."""
        if self.state is EventState.PENDING:
            return False
        for tool in observer.active:
            tool.polled(self)
        return True

    @property
    def ok(self) -> bool:
        """Whether the event is ready."""
        if self._state is _READY and not observer.active:
            return True
        return self.done and self._state is EventState.READY

    @property
    def error(self) -> BaseException | None:
        """The error of an event in error; None while pending and when ready."""
        return self._error if self.state is not EventState.PENDING else None

    def poll(self) -> None:
        """Hook: complete the event if the device says so; must not block. Does nothing here."""

    # Completion

    def complete(self) -> bool:
        """Make the event ready and run its callbacks on this thread. False: it was done already."""
        return self._finish(EventState.READY, None)

    def fail(self, error: BaseException) -> bool:
        """Put the event in error and run its callbacks. False: it was done already."""
        return self._finish(EventState.ERROR, error)

    def _finish(self, state: EventState, error: BaseException | None) -> bool:
        todo: Iterator[Callback] | None = None
        try:
            with self._lock:
                if self._state is not EventState.PENDING:
                    return False
                if observer.active:
                    self.completed_ns = time.perf_counter_ns()
                    for tool in observer.active:
                        tool.completed(self, error)
                waiting = iter(self._callbacks) if self._callbacks else None
                self._error = error
                self._traceback = error.__traceback__ if error is not None else None
                # An interrupt comes before or after a call: with the state all of this changes, or nothing.
                self._state, self._callbacks, todo = state, None, waiting
            if todo is not None:
                _dispatch(self, todo)
        except BaseException:  # an interrupt, perhaps before all were called
            if todo is not None:
                _dispatch(self, todo)
            raise
        return True

    # Waiting

    def add_callback(self, callback: Callback) -> None:
        """Call ``callback(event)`` once the event is done: at once, on this thread, if it is already.

        Otherwise it runs on the completing thread, after the callbacks that thread is in, and must
        not block. An exception in a callback is reported through ``sys.excepthook`` and stops nothing; an
        interrupt, or ``SystemExit`` on the main thread, is raised there when the other callbacks have run.
        """
        if self.state is EventState.PENDING:
            with self._lock:
                if self._state is EventState.PENDING:
                    if self._callbacks is None:
                        self._callbacks = []
                    self._callbacks.append(callback)
                    return
        _call(self, callback)

    def remove_callback(self, callback: Callback) -> None:
        """Forget a callback that has not run; does nothing when there is none."""
        with self._lock:
            if self._callbacks and callback in self._callbacks:
                self._callbacks.remove(callback)

    def wait(self, timeout: float | None = None) -> None:
        """Block until done; raise the error of an event in error.

        Raises ``DeadlineError`` when ``timeout`` seconds pass first. Must not be called from work or
        callbacks that run on a stream, which would block the thread that is to complete the event.
        """
        if self._state is _READY:
            for tool in observer.active:
                tool.waited(self)
            return
        if self.state is EventState.PENDING:
            for tool in observer.active:
                tool.waiting(self)
            if not self.block(timeout):
                raise DeadlineError(
                    f"{self.name} is still pending after {timeout:g} s; wait longer, or look for an event "
                    "that nothing completes"
                )
        for tool in observer.active:
            tool.waited(self)
        self.raise_error()

    def block(self, timeout: float | None) -> bool:
        """Hook: block until done or for ``timeout`` seconds; returns whether it is done."""
        gate = threading.Lock()
        gate.acquire()

        def open_gate(_: Event) -> None:
            gate.release()

        self.add_callback(open_gate)
        if timeout is not None and timeout > threading.TIMEOUT_MAX:  # math.inf, for one
            timeout = None
        if gate.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return True
        self.remove_callback(open_gate)
        return self._state is not EventState.PENDING

    def raise_error(self) -> None:
        """Raise the error of an event in error; nothing otherwise."""
        if self._error is not None:
            # Every raise lengthens an exception's traceback; start from the producer's each time.
            raise self._error.with_traceback(self._traceback)

    def __await__(self) -> Generator[Any, None, None]:
        """``await event``: like :meth:`wait`, without blocking the loop. Cancelling it only stops waiting."""
        if self.state is EventState.PENDING:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def resolve() -> None:
                if not future.done():
                    future.set_result(None)

            def wake(_: Event) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
                    loop.call_soon_threadsafe(resolve)

            self.add_callback(wake)
            try:
                yield from future
            finally:
                self.remove_callback(wake)
        for tool in observer.active:
            tool.waited(self)
        self.raise_error()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self._state.value}>"


class _Due(threading.local):
    """Events whose callbacks the current thread is about to run, or None when it runs none."""

    queue: deque[tuple[Event, Iterator[Callback]]] | None = None


_due = _Due()


def _dispatch(event: Event, callbacks: Iterator[Callback]) -> None:
    """Run callbacks; those of events that they complete run after them, not inside them.

    So a chain of events of any length needs no stack. An interrupt ends the callback that it comes in, and does not
    keep the others from running: each is taken from its iterator as it is called, with nothing between.
    """
    if _due.queue is not None:
        _due.queue.append((event, callbacks))
        return
    queue = deque(((event, callbacks),))
    interrupt: BaseException | None = None
    while True:
        try:
            _due.queue = queue
            while queue:
                event, callbacks = queue[0]
                for callback in callbacks:
                    try:
                        if observer.active:
                            observer.call_back(event, callback)
                        else:
                            callback(event)
                    except (
                        Exception
                    ) as error:  # one consumer's fault must not keep the others from running
                        _report(error)
                queue.popleft()
            _due.queue = None
            break
        except BaseException as error:  # of a callback, or between two
            interrupt = error
    if interrupt is None:
        return
    if threading.current_thread() is threading.main_thread():
        raise interrupt
    # It would end a thread that has more to do: only the main thread's exit is the program's.
    _report(interrupt)


def _call(event: Event, callback: Callback) -> None:
    try:
        if observer.active:
            observer.call_back(event, callback)
        else:
            callback(event)
    except Exception as error:  # as those that :func:`_dispatch` runs
        _report(error)


def _report(error: BaseException) -> None:
    """Show what nobody can catch as Python shows what nobody caught."""
    sys.excepthook(type(error), error, error.__traceback__)


def ready(name: str = "ready") -> Event:
    """An event that is ready."""
    if not observer.active:
        return Event.past(name)
    event = Event(name)
    event.complete()
    return event


def failed(error: BaseException, name: str = "failed") -> Event:
    """An event in error."""
    event = Event(name)
    event.fail(error)
    return event


def dependency_error(name: str, event: Event) -> DependencyError:
    """The error of work called ``name`` that was not run because ``event`` failed."""
    cause = root = event.error
    while isinstance(root, DependencyError) and root.__cause__ is not None:
        root = root.__cause__
    error = DependencyError(f"{name} was not run, because {event.name} failed; first: {root}")
    error.__cause__ = cause
    return error


def first_failed(events: Iterable[Event]) -> Event | None:
    """The first event of ``events`` that is in error now, or None."""
    return next((event for event in events if event.error is not None), None)


def when_done(events: Iterable[Event], action: Callable[[], None]) -> None:
    """Call ``action`` once every event is done, in error or not; at once when all are already."""
    pending = [event for event in events if event.state is EventState.PENDING]
    if not pending:
        action()
        return
    remaining = len(pending)
    lock = threading.Lock()

    def count_down(_: Event) -> None:
        nonlocal remaining
        last = False
        try:
            with lock:
                remaining -= 1
                last = remaining == 0
        finally:  # an interrupt may come after the count
            if last:
                action()

    for event in pending:
        event.add_callback(count_down)


def all_of(events: Iterable[Event], name: str = "all_of") -> Event:
    """An event that is done when all ``events`` are; ready at once when there are none.

    It fails if any of them failed, with the first (in the order given) as cause and the others as
    notes. It waits for all of them even then, so that what they use may be freed after it.
    """
    sources = tuple(events)
    joined = Event(name)
    for tool in observer.active:
        tool.joined(joined, sources)

    def join() -> None:
        failures = [event for event in sources if event.error is not None]
        if not failures:
            joined.complete()
            return
        error = dependency_error(name, failures[0])
        for other in failures[1:]:
            error.add_note(f"{other.name} failed too: {other.error}")
        joined.fail(error)

    when_done(sources, join)
    return joined
