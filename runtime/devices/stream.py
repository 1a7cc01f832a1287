# SPDX-License-Identifier: Apache-2.0
"""Streams: the interface, and the rules of failure that hold on every device.

:mod:`gristmill.runtime.devices.base` states the rules.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gristmill.errors import DependencyError
from gristmill.runtime import observer
from gristmill.runtime.events import Event, dependency_error, first_failed

if TYPE_CHECKING:
    from gristmill.runtime.devices.base import Device

E = TypeVar("E", bound=Event)
#: A host function; what it returns is ignored.
Work = Callable[[], object]


@dataclass(slots=True, eq=False)
class Task(Generic[E]):
    """A piece of a stream's work; ``work`` is None for one that only keeps a place in the order."""

    event: E
    waits: tuple[Event, ...] = ()
    work: Work | None = None
    #: Its completion says only that earlier work ended, on streams that do not chain errors.
    marker: bool = False
    #: Clears the stream's error instead of failing with it.
    recovers: bool = False
    #: What is known to have gone wrong before it ends.
    failure: BaseException | None = None


class Stream(ABC):
    """An ordered, asynchronous queue of work on one device. See the rules of ``base``.

    Devices implement the abstract methods and call :meth:`_finish`; ``Device.create_stream`` makes streams.
    """

    def __init__(self, device: Device, name: str, chain_errors: bool) -> None:
        self.device = device
        self.name = name
        self.chain_errors = chain_errors
        self._error: BaseException | None = None
        for tool in observer.active:
            tool.opened(self)

    @abstractmethod
    def enqueue(self, work: Work, *, waits: Sequence[Event] = (), name: str = "work") -> Event:
        """Run the host function ``work`` in stream order; what it raises fails the returned event.

        ``work`` must not wait for this device's events. Raises ``ClosedError`` on a closed stream.
        """

    @abstractmethod
    def wait_event(self, event: Event) -> None:
        """Let everything enqueued from now on wait for ``event``, an event of any device."""

    @abstractmethod
    def record_event(self, name: str = "record") -> Event:
        """An event that completes when everything enqueued so far has ended.

        It fails only on a ``chain_errors`` stream that is in error by then.
        """

    @property
    def error(self) -> BaseException | None:
        """The first failure on a ``chain_errors`` stream since the last :meth:`recover`."""
        return self._error

    @abstractmethod
    def recover(self) -> None:
        """Forget the failure of a ``chain_errors`` stream: work enqueued from now on runs again."""

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Wait for all work, then release the stream; idempotent.

        Raises ``DeadlineError`` after ``timeout`` seconds; the stream then stays open.
        """

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the stream was closed."""

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until everything enqueued so far has ended.

        Raises the stream's error if it chains errors, ``DeadlineError`` after ``timeout`` seconds.
        """
        self.record_event(f"synchronize {self.name}").wait(timeout)

    @property
    def idle(self) -> bool:
        """Whether everything enqueued so far has ended."""
        query = self.record_event("idle query")
        if not query.done:
            return False
        for tool in observer.active:
            tool.waited(query)
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stream {self.name} of {self.device}>"

    def _finish(self, task: Task[Any]) -> None:
        """Run a task's work, its turn having come and its waits being done, and complete its event."""
        event = task.event
        if task.recovers:
            self._error = None
        poison = first_failed(task.waits)
        if self._error is not None:
            error = DependencyError(
                f"{event.name} was not run: {self} failed before ({self._error})"
            )
            error.__cause__ = self._error
            event.fail(error)
        elif poison is not None:
            self._fail(task, dependency_error(event.name, poison))
        elif task.failure is not None:
            self._fail(task, task.failure)
        elif task.work is None:
            event.complete()
        else:
            try:
                if observer.active:
                    event.started_ns = time.perf_counter_ns()
                    observer.call_after((event,), task.work)
                else:
                    task.work()
            except BaseException as error:
                self._fail(task, error)
            else:
                event.complete()

    def _fail(self, task: Task[Any], error: BaseException) -> None:
        if self.chain_errors:
            self._error = error
        elif task.marker and task.failure is None:
            task.event.complete()
            return
        task.event.fail(error)
