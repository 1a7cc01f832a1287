# SPDX-License-Identifier: Apache-2.0
"""CUDA streams with the runtime's rules: failures that poison, waits for any event, host work.

A stream has a *backlog* of operations that the driver does not have yet, and a queue of those that it has,
each followed by a recorded driver event. An operation goes straight to the driver, on the caller's thread,
when nothing before it must be seen to succeed on the host first; the driver then orders it natively. It
goes to the backlog when it waits for an event that the driver cannot wait for, is host work, or may block.

One thread per busy stream waits for the driver's events in order, completes ours, and moves the backlog on.
It sees failures with certainty, which driver callbacks do not: they are not called once a context broke.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gristmill.errors import ClosedError, DeadlineError, GristmillError, ResourceExhaustedError
from gristmill.runtime import observer
from gristmill.runtime.devices.cuda_context import CudaContext
from gristmill.runtime.devices.stream import Stream, Task, Work
from gristmill.runtime.events import Event, first_failed, when_done

#: Gives an operation to the driver: called with the stream's handle.
Submit = Callable[[int], None]
#: Seconds after which the thread of an idle stream ends.
_LINGER = 0.5


class CudaEvent(Event):
    """An event of a CUDA stream; streams of CUDA devices wait for it without the host.

    Attributes:
        handle: the recorded driver event, from when the operation was submitted until it has ended.
    """

    __slots__ = ("handle",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.handle: int | None = None

    def order(self, wait: Callable[[int], None]) -> bool:
        """Call ``wait(handle)`` while the handle is this event's; False when there is none."""
        with self._lock:
            if self.handle is None:
                return False
            wait(self.handle)
            return True

    def take_handle(self) -> int | None:
        """End the association with the driver event and return it."""
        with self._lock:
            handle, self.handle = self.handle, None
            return handle


@dataclass(slots=True, eq=False)
class _Op(Task[CudaEvent]):
    """One operation of a stream: ``submit`` for the driver, or ``work`` for the host, or neither."""

    submit: Submit | None = None
    #: The driver's call may block, so the caller's thread must not make it.
    blocking: bool = False


class CudaStream(Stream):
    """A stream of a CUDA device. ``handle`` is the driver's."""

    def __init__(self, device: CudaContext, name: str, chain_errors: bool, handle: int) -> None:
        super().__init__(device, name, chain_errors)
        self.handle = handle
        self._cuda = device
        self._backlog: deque[_Op] = deque()
        self._submitted: deque[_Op] = deque()  # the first is being waited for
        self._busy = False  # the thread runs an operation of the backlog
        self._parked: _Op | None = (
            None  # the head of the backlog, when its waits will wake the thread
        )
        self._thread: threading.Thread | None = None
        self._closed = False
        self._changed = threading.Condition(threading.RLock())

    # The interface

    @property
    def closed(self) -> bool:
        """Whether the stream was closed."""
        return self._closed

    def enqueue(self, work: Work, *, waits: Sequence[Event] = (), name: str = "work") -> Event:
        """See ``Stream.enqueue``; the work runs on a thread of the runtime, not of the driver."""
        op = _Op(CudaEvent(name), tuple(waits), work=work)
        if observer.active:
            self.device.observe(name, self, op.event, op.waits)
        return self._push(op)

    def submit(
        self, submit: Submit, *, waits: Sequence[Event] = (), name: str, blocking: bool = False
    ) -> Event:
        """Enqueue driver work: ``submit(handle)`` gives it to the driver.

        ``submit`` is called with the context current, on this thread before this returns or later on the
        stream's; what it raises on this thread is raised here, nothing then being enqueued.
        ``blocking``: it may block, so that it must not run here.
        """
        return self._push(_Op(CudaEvent(name), tuple(waits), submit=submit, blocking=blocking))

    def wait_event(self, event: Event) -> None:
        """See ``Stream.wait_event``."""
        name = f"{self.name} waiting for {event.name}"
        self._push(_Op(CudaEvent(name), (event,), marker=True))
        for tool in observer.active:
            tool.stream_waits(self, event)

    def record_event(self, name: str = "record") -> Event:
        """See ``Stream.record_event``."""
        event = self._push(_Op(CudaEvent(name), marker=True))
        for tool in observer.active:
            tool.recorded(self, event)
        return event

    def recover(self) -> None:
        """See ``Stream.recover``."""
        self._push(_Op(CudaEvent("recover"), marker=True, recovers=True))

    def close(self, timeout: float | None = None) -> None:
        """See ``Stream.close``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._backlog or self._submitted or self._busy:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineError(
                        f"{self} still has work after {timeout:g} s and stays open; look for an event "
                        "that nothing completes"
                    )
                self._changed.wait(left)
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._cuda.stream_closed(self, self.handle)

    # Giving operations to the driver

    def _push(self, op: _Op) -> Event:
        with self._changed:
            if self._closed:
                raise ClosedError(f"{self} was closed; create another stream")
            empty = not self._backlog and not self._busy
            nothing = op.submit is None and op.work is None
            if nothing and empty and not self._submitted and all(e.done for e in op.waits):
                self._finish(op)
                return op.event
            self._start_thread()  # first of all: without it nothing would ever complete
            if empty and self._can_submit(op):
                with self._cuda.activate():
                    if not self._submit(op):
                        self._backlog.append(op)
            else:
                self._backlog.append(op)
            self._changed.notify_all()
        return op.event

    def _can_submit(self, op: _Op) -> bool:
        """Whether the driver can take ``op`` now, as far as that can be told without trying."""
        if op.work is not None or op.blocking or op.recovers:
            return False
        return all(_orderable(event) for event in op.waits)

    def _submit(self, op: _Op) -> bool:
        """Give ``op`` to the driver; False when one of its waits cannot be waited for after all.

        What fails before the operation itself is with the driver is raised: nothing happened then. What
        fails later fails the operation, once it is known to have ended.
        """
        if self._is_doomed(op):
            self._submitted.append(op)
            return True
        driver = self._cuda.driver
        handle = self._cuda.take_event()
        try:
            for event in op.waits:
                if not event.done and not self._order(event):
                    self._cuda.give_event(handle)
                    return False
            if op.submit is not None:
                op.submit(self.handle)
        except BaseException:
            self._cuda.give_event(handle)
            raise
        try:
            driver.event_record(handle, self.handle)
        except GristmillError as error:
            op.failure = error
            self._cuda.give_event(handle)
            self._settle()
        else:
            op.event.handle = handle
        if observer.active:
            op.event.started_ns = time.perf_counter_ns()
        self._submitted.append(op)
        return True

    def _is_doomed(self, op: _Op) -> bool:
        """Whether ``op`` is known to fail, or must not run, for what came before it."""
        return self._error is not None or first_failed(op.waits) is not None

    def _order(self, event: Event) -> bool:
        if not isinstance(event, CudaEvent):
            return False
        ordered = event.order(
            lambda handle: self._cuda.driver.stream_wait_event(self.handle, handle)
        )
        return ordered or event.done

    def _settle(self) -> None:
        """Wait until nothing of this stream runs; a device that cannot tell counts as lost."""
        try:
            self._cuda.driver.stream_synchronize(self.handle)
        except GristmillError as error:
            self._cuda.lose(error)

    # The thread

    def _start_thread(self) -> None:
        """With the lock held: see that there is a thread."""
        if self._thread is not None:
            return
        name = f"gristmill {self._cuda} {self.name}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise ResourceExhaustedError(
                f"{self} cannot start its thread ({error}): close streams, or raise the limit on threads "
                "(ulimit -u, pids.max of the container)"
            ) from error
        self._thread = thread

    def _resume(self, op: _Op) -> None:
        with self._changed:
            if self._parked is op:
                self._parked = None
            if self._backlog or self._submitted:
                self._start_thread()
            self._changed.notify_all()

    def _serve(self) -> None:
        failure = self._cuda.enter_thread()
        while True:
            with self._changed:
                self._advance()
                if self._submitted:
                    op, submitted = self._submitted[0], True
                elif self._backlog and self._parked is None:
                    op, submitted = self._backlog.popleft(), False
                    self._busy = True
                elif not self._backlog and (
                    self._changed.wait(_LINGER) or self._backlog or self._submitted
                ):
                    continue
                else:  # the head's waits, or the next operation, start another thread
                    self._thread = None
                    break
            if failure is not None:
                op.failure, failure = failure, None
            self._complete(op) if submitted else self._perform(op)
            with self._changed:
                if submitted:
                    self._submitted.popleft()
                self._busy = False
                self._changed.notify_all()
            del op
        if failure is not None:  # nothing came of it
            self._cuda.warn(failure)

    def _advance(self) -> None:
        """Give the driver what it can take of the backlog; park at a head whose waits are pending."""
        while self._backlog:
            op = self._backlog[0]
            if self._can_submit(op):
                try:
                    if not self._submit(op):
                        continue
                except BaseException as error:
                    self._cuda.note(error)
                    op.failure = error
                    self._submitted.append(op)
                self._backlog.popleft()
                continue
            pending = [event for event in op.waits if not event.done]
            if not pending:
                self._parked = None
                return
            if self._parked is op:
                return
            self._parked = op
            when_done(pending, partial(self._resume, op))

    def _complete(self, op: _Op) -> None:
        """Wait until a submitted operation has ended, and complete its event."""
        handle = op.event.handle
        if handle is not None:
            try:
                self._cuda.driver.event_synchronize(handle)
            except GristmillError as error:
                op.failure = error
                self._settle()
            taken = op.event.take_handle()
            if taken is not None:
                self._cuda.give_event(taken)
        self._finish(op)

    def _perform(self, op: _Op) -> None:
        """Run an operation of the backlog, all of whose waits are done and before which all has ended."""
        if op.submit is not None and op.failure is None and not self._is_doomed(op):
            try:
                op.submit(self.handle)
            except BaseException as error:
                self._cuda.note(error)
                op.failure = error
            try:
                self._cuda.driver.stream_synchronize(self.handle)
            except GristmillError as error:
                op.failure = op.failure or error
                self._settle()
        self._finish(op)


def _orderable(event: Event) -> bool:
    return event.done or (isinstance(event, CudaEvent) and event.handle is not None)
