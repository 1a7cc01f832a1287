# SPDX-License-Identifier: Apache-2.0
"""Asynchronous uploads: buffers that can be used before they are filled.

    open ──all bytes there──▶ ready
      └──an error, cancel, or the manager's end──▶ in error

A manager makes one buffer for each shape. Chunks are given in any order, of any size, from any thread;
their places must not overlap and must leave no gap. A buffer's ``definition`` event becomes ready when
all its bytes are there, and fails when any transfer to it does: whatever waits for it is then poisoned.

For every call that accepts a transfer, ``on_done(error)`` runs once, on the completing thread, when the
source is no longer used: with None, or the error that ended it. It runs before the transfer's event and
the buffer's ``definition`` complete, and may close the manager. A call that raises has accepted nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    TransferCancelledError,
    TransferError,
)
from gristmill.runtime import foreign, observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import Device, MemorySpace, check_range
from gristmill.runtime.events import Event
from gristmill.runtime.layout import Layout, Shape
from gristmill.runtime.literals import device_bytes
from gristmill.runtime.progress import Progress
from gristmill.runtime.transfer_state import BufferState, ManagerState, OnDone, TransferOptions
from gristmill.runtime.types import ArrayType
from gristmill.runtime.uploads import (
    FileSource,
    MemorySource,
    Source,
    Transfer,
    Uploader,
    UploadOptions,
)


class AsyncHostToDeviceTransferManager:
    """Fills buffers of one device from the host. See the module's text; thread-safe.

    A context manager: leaving it waits for running transfers, or cancels them when an exception
    passes. Buffers that are unfinished then fail. Made by :func:`create_transfer_manager`.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        buffers: Sequence[RawBuffer],
        uploader: Uploader,
        owns_uploader: bool,
        options: TransferOptions,
    ) -> None:
        """Takes over ``buffers``, whose ``definition`` events are pending."""
        self.device = uploader.device
        total = sum(buffer.nbytes for buffer in buffers)
        self._state = ManagerState(uploader, owns_uploader, options, total)
        for index, (shape, buffer) in enumerate(zip(shapes, buffers, strict=True)):
            allocation, base = buffer.storage
            target = BufferState(
                index, shape, buffer, allocation, base, finished=buffer.nbytes == 0
            )
            self._state.buffers.append(target)
            if target.finished:
                buffer.definition.complete()
        for tool in observer.active:
            tool.opened(self)

    # What there is

    @property
    def buffer_count(self) -> int:
        """How many buffers it fills."""
        return len(self._state.buffers)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._state.closed

    @property
    def progress(self) -> Progress:
        """How much has arrived."""
        return self._state.meter.now()

    @property
    def uploader(self) -> Uploader:
        """Its queue and staging ring."""
        return self._state.uploader

    def buffer_size(self, index: int) -> int:
        """Bytes of a buffer on the device."""
        return self._buffer(index).nbytes

    def shape(self, index: int) -> Shape:
        """A buffer's shape."""
        return self._buffer(index).shape

    def retrieve_buffer(self, index: int) -> RawBuffer:
        """A view of a buffer, filled or not; each call makes one, which the caller closes."""
        target = self._buffer(index)
        if self._state.closed:
            raise ClosedError(
                f"buffer {index}: the transfer manager was closed; retrieve it before"
            )
        return target.buffer.slice(0, target.nbytes)

    def missing(self, index: int) -> list[tuple[int, int]]:
        """The byte ranges of a buffer that no transfer was given for."""
        target = self._buffer(index)
        with self._state.lock:
            return target.claimed.gaps(0, target.nbytes)

    def _buffer(self, index: int) -> BufferState:
        buffers = self._state.buffers
        if type(index) is not int or not 0 <= index < len(buffers):
            raise InputError(f"there is no buffer {index!r}; the manager has {len(buffers)}")
        return buffers[index]

    # Transfers

    def transfer_chunk(
        self,
        index: int,
        data: object,
        offset: int = 0,
        *,
        last: bool = False,
        on_done: OnDone | None = None,
        priority: int = 0,
        checksum: int | None = None,
        timeout: float | None = None,
    ) -> Event:
        """Send the bytes of an array or buffer-protocol object, in device layout, to ``offset``.

        Args:
            index: which buffer.
            data: the bytes; must not change before ``on_done``.
            offset: where they go, in bytes.
            last: nothing follows for this buffer.
            on_done: called once at the end (see the module's text).
            priority: transfers of a higher one go first, also among managers that share an uploader.
            checksum: the CRC-32 (``zlib.crc32``) the data must have when it is sent.
            timeout: seconds to wait while too many bytes are queued (``pending_bytes``).

        Returns the event of this transfer. Raises ``TransferError`` for bytes given already, buffers
        that are finished or failed, and a last transfer that leaves gaps; ``DeadlineError``.
        """
        source = MemorySource(foreign.host_memory(data))
        return self._send(index, source, offset, last, on_done, priority, checksum, timeout)

    def transfer_raw(
        self,
        index: int,
        data: object,
        *,
        on_done: OnDone | None = None,
        priority: int = 0,
        checksum: int | None = None,
        timeout: float | None = None,
    ) -> Event:
        """Send a whole buffer, in device layout; raises ``InputError`` when the size differs."""
        source = MemorySource(foreign.host_memory(data))
        size = self._buffer(index).nbytes
        if source.nbytes != size:
            raise InputError(f"buffer {index} has {size} bytes, but {source.nbytes} were given")
        return self._send(index, source, 0, True, on_done, priority, checksum, timeout)

    def transfer_literal(
        self,
        index: int,
        literal: np.ndarray[Any, Any],
        *,
        on_done: OnDone | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Event:
        """Send an array of the buffer's shape, brought to its layout and packing.

        An array that has the layout already is sent in place and must not change before ``on_done``.
        Arrays of a dynamic shape may be smaller than the bounds; their sizes are stored with them.
        """
        data = device_bytes(literal, self._buffer(index).shape)
        return self.transfer_raw(index, data, on_done=on_done, priority=priority, timeout=timeout)

    def transfer_file(
        self,
        index: int,
        file: Path | str | int,
        *,
        file_offset: int = 0,
        offset: int = 0,
        nbytes: int | None = None,
        last: bool = False,
        on_done: OnDone | None = None,
        priority: int = 0,
        checksum: int | None = None,
    ) -> Event:
        """Send bytes of a file without holding more of it than the staging ring.

        Args:
            index: which buffer.
            file: its path, or an open descriptor, which must stay open until ``on_done``.
            file_offset: where the bytes begin in the file.
            offset: where they go in the buffer.
            nbytes: how many; default: what the buffer takes from ``offset`` on.
            last, on_done, priority, checksum: as for :meth:`transfer_chunk`.
        """
        size = self._buffer(index).nbytes
        count = max(size - offset, 0) if nbytes is None else nbytes
        check_range(f"buffer {index}", offset, count, size)
        owned = not isinstance(file, int)
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC) if owned else file
            available = os.fstat(descriptor).st_size
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error
        try:
            check_range(f"{file}", file_offset, count, available)
            source = FileSource(descriptor, file_offset, count, str(file))

            def close_file(error: BaseException | None) -> None:
                if owned:
                    os.close(descriptor)
                if on_done is not None:
                    on_done(error)

            return self._send(index, source, offset, last, close_file, priority, checksum, None)
        except BaseException:
            if owned:
                os.close(descriptor)
            raise

    def _send(
        self,
        index: int,
        source: Source,
        offset: int,
        last: bool,
        on_done: OnDone | None,
        priority: int,
        checksum: int | None,
        timeout: float | None,
    ) -> Event:
        state, target = self._state, self._buffer(index)
        state.uploader.admit(source, timeout)
        try:
            state.claim(target, offset, source.nbytes, last)
        except BaseException:
            state.uploader.withdraw(source)
            raise
        event = Event(f"transfer of {source.nbytes} B to buffer {index} of {state.options.label}")
        for tool in observer.active:
            tool.joined(event, ())

        def finished(error: BaseException | None) -> None:
            target.allocation.let_go()
            state.transferred(target, event, on_done, error)

        transfer = Transfer(
            source,
            target.allocation,
            target.base + offset,
            priority,
            checksum,
            lambda: target.error,
            state.meter.add,
            finished,
            event,
        )
        state.meter.begin()
        state.uploader.submit(transfer)
        return event

    # Errors and the end

    def set_buffer_error(self, index: int, error: BaseException | str) -> bool:
        """Fail an unfinished buffer: what waits for it is poisoned, its queued chunks are dropped.

        Returns False, and changes nothing, when the buffer is ready or failed already.
        """
        error = TransferError(error) if isinstance(error, str) else error
        return self._state.poison(self._buffer(index), error)

    def cancel(self, index: int | None = None) -> None:
        """Fail one buffer, or all that are unfinished, with ``TransferCancelledError``."""
        label = self._state.options.label
        targets = self._state.buffers if index is None else [self._buffer(index)]
        for target in targets:
            error = TransferCancelledError(f"{label}: buffer {target.index} was cancelled")
            self._state.poison(target, error)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no transfer runs; raises ``DeadlineError`` after ``timeout`` seconds.

        Errors of buffers and transfers are in their events.
        """
        state = self._state
        if not state.uploader.wait_idle(lambda: state.running == 0, timeout):
            raise DeadlineError(
                f"{state.options.label}: {state.running} transfers still run after {timeout:g} s"
            )
        for tool in observer.active:
            tool.waited(state.transfers)

    def close(self, timeout: float | None = None) -> None:
        """Wait for running transfers, then fail the buffers that are unfinished; idempotent.

        Within a completion callback it does not wait, and fails unfinished buffers at once. Raises
        ``DeadlineError`` after ``timeout`` seconds and then stays open.
        """
        if self._state.closed:
            return
        if not self._state.uploader.completing:
            self.wait(timeout)
        self._end("closed")

    def _end(self, how: str) -> list[int]:
        label = self._state.options.label
        text = f"{label}: the transfer manager was {how} before the buffer was complete"
        try:
            return self._state.end(TransferError(text))
        finally:
            for tool in observer.active:
                tool.closed(self)

    def __enter__(self) -> AsyncHostToDeviceTransferManager:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.cancel()
        self.close()

    def __del__(self) -> None:
        state = getattr(self, "_state", None)  # a constructor that raised has none
        if state is None or state.closed:
            return
        label = state.options.label
        poisoned = self._end("deleted")
        text = f"{label}: a transfer manager was not closed; unfinished buffers: {poisoned}"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


def create_transfer_manager(
    device: Device,
    shapes: Sequence[Shape | ArrayType],
    *,
    layouts: Sequence[Layout | None] | None = None,
    space: MemorySpace | None = None,
    buffers: Sequence[RawBuffer] | None = None,
    options: TransferOptions | None = None,
    upload: UploadOptions | None = None,
    uploader: Uploader | None = None,
) -> AsyncHostToDeviceTransferManager:
    """A manager that fills one buffer for each shape.

    Args:
        device: where the buffers lie.
        shapes: their shapes; sizes include dynamic-shape metadata.
        layouts: layouts that replace those of the shapes, one each; None keeps one.
        space: the memory space; default: the device's first.
        buffers: memory to use instead of new memory, of the right sizes; the manager makes views of it.
        options: policies, progress and label.
        upload: how to stage; not with ``uploader``.
        uploader: a queue to share with other managers; it stays open.

    Raises ``InputError`` for numbers or sizes that do not match, ``ResourceExhaustedError``.
    """
    wanted = [Shape.of(shape) if isinstance(shape, ArrayType) else shape for shape in shapes]
    if layouts is not None:
        if len(layouts) != len(wanted):
            raise InputError(f"{len(layouts)} layouts were given for {len(wanted)} shapes")
        wanted = [
            shape if layout is None else replace(shape, layout=layout)
            for shape, layout in zip(wanted, layouts, strict=True)
        ]
    if uploader is not None and (upload is not None or uploader.device is not device):
        raise InputError("a shared uploader has its own options, and must be of the same device")
    options = options or TransferOptions()
    with _made_buffers(device, wanted, space, buffers, options.label) as made:
        owns = uploader is None
        uploader = uploader or Uploader(device, upload)
        return AsyncHostToDeviceTransferManager(wanted, made, uploader, owns, options)


@contextmanager
def _made_buffers(
    device: Device,
    shapes: Sequence[Shape],
    space: MemorySpace | None,
    donated: Sequence[RawBuffer] | None,
    label: str,
) -> Generator[list[RawBuffer]]:
    """Buffers with pending definitions; closed again when the block raises."""
    if donated is not None:
        if len(donated) != len(shapes):
            raise InputError(f"{len(donated)} buffers were given for {len(shapes)} shapes")
        for index, (shape, buffer) in enumerate(zip(shapes, donated, strict=True)):
            if buffer.device is not device or buffer.readonly:
                raise InputError(f"buffer {index} is read-only or not on {device}")
            if buffer.nbytes != shape.buffer_bytes:
                raise InputError(
                    f"buffer {index} has {buffer.nbytes} bytes, but {shape} needs {shape.buffer_bytes}"
                )
    made: list[RawBuffer] = []
    try:
        for index, shape in enumerate(shapes):
            definition = Event(f"buffer {index} of {label}")
            if donated is None:
                buffer = RawBuffer.allocate(
                    device, shape.buffer_bytes, space, definition=definition
                )
            else:
                buffer = donated[index].slice(0, shape.buffer_bytes)
                buffer.definition = definition
            made.append(buffer)
        yield made
    except BaseException:
        for buffer in made:
            buffer.close()
        raise
