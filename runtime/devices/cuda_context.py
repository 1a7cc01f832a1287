# SPDX-License-Identifier: Apache-2.0
"""What the parts of the CUDA device share: driver, context, events, and what is known of their state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gristmill.errors import DeviceError, GristmillError
from gristmill.runtime import observer
from gristmill.runtime.devices import cuda_driver
from gristmill.runtime.devices.base import Device
from gristmill.runtime.devices.cuda_driver import CudaDeviceLostError, CudaDriver
from gristmill.runtime.devices.stream import Stream


class CudaContext(Device):
    """The primary context of a CUDA device, retained; :class:`CudaDevice` builds on it.

    Attributes:
        driver: the driver's functions.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._closed = True  # until it is open
        self.driver: CudaDriver = cuda_driver.load()
        count = self.driver.device_count()
        if not 0 <= ordinal < count:
            raise DeviceError(
                f"there is no CUDA device {ordinal}; there are {count}, counted from 0"
            )
        self._device = self.driver.device(ordinal)
        self._lost: GristmillError | None = None
        self._streams: set[Stream] = set()
        self._idle_events: list[int] = []
        self._context = self.driver.retain_primary_context(self._device)

    @property
    def lost(self) -> GristmillError | None:
        """Why the device can do no more work until it is closed and opened again; None while it can."""
        return self._lost

    def lose(self, error: GristmillError) -> None:
        """Note that the context is broken, or that nobody knows any more what runs in it."""
        with self._lock:
            self._lost = self._lost or error

    def note(self, error: BaseException) -> None:
        """Lose the device if ``error`` says that its context is broken."""
        if isinstance(error, CudaDeviceLostError):
            self.lose(error)

    def check_open(self) -> None:
        """Raise ``ClosedError`` when the device was closed, ``DeviceError`` when it is lost."""
        super().check_open()
        if self._lost is not None:
            raise DeviceError(
                f"{self} is lost; close it and open it again (first: {self._lost.message})"
            ) from self._lost

    @contextmanager
    def activate(self) -> Generator[None]:
        """Inside, the device's context is the thread's current one."""
        try:
            with self.driver.activate(self._context):
                yield
        except CudaDeviceLostError as error:
            self.lose(error)
            raise

    @contextmanager
    def releasing(self) -> Generator[None]:
        """Like :meth:`activate`, to release something: a failure to enter is a warning, then tried again."""
        try:
            self.driver.push_context(self._context)
        except GristmillError as error:
            self.warn(error)
            self.driver.push_context(self._context)
        try:
            yield
        except CudaDeviceLostError as error:
            self.lose(error)
            raise
        finally:
            self.attempt(self.driver.pop_context)

    def attempt(self, release: Callable[..., None], *arguments: int) -> None:
        """Release something at the end; a failure is a warning, since nothing can be done about it."""
        try:
            release(*arguments)
        except GristmillError as error:
            self.note(error)
            self.warn(error)

    def warn(self, error: GristmillError) -> None:
        """Tell of an error that stops nothing."""
        warnings.warn(f"{self}: {error.message}", ResourceWarning, stacklevel=3)

    def enter_thread(self) -> GristmillError | None:
        """Make the context current on a thread of our own; returns the error if it cannot be."""
        try:
            self.driver.push_context(self._context)
            return None
        except GristmillError as error:
            first = error
        try:
            self.driver.push_context(self._context)
        except GristmillError as error:
            self.lose(error)
        return first

    def stream_closed(self, stream: Stream, handle: int) -> None:
        """Called by a stream that was closed."""
        with self._lock:
            self._streams.discard(stream)
        self.count_stream_closed()
        for tool in observer.active:
            tool.closed(stream)
        if self._lost is None:
            with self.releasing():
                self.attempt(self.driver.stream_destroy, handle)

    def take_event(self) -> int:
        """A driver event for a short use; the context must be current."""
        with self._lock:
            if self._idle_events:
                return self._idle_events.pop()
        flags = cuda_driver.EVENT_DISABLE_TIMING | cuda_driver.EVENT_BLOCKING_SYNC
        return self.driver.event_create(flags)

    def give_event(self, event: int) -> None:
        """Return an event of :meth:`take_event`; waits that were enqueued for it stay valid."""
        with self._lock:
            self._idle_events.append(event)
