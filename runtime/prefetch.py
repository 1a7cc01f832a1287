# SPDX-License-Identifier: Apache-2.0
"""Brings a program's inputs to its device ahead of the launches that need them.

    with InputUploader(device, program.inputs) as uploader:
        image, weights = uploader.upload([image_array, weight_array])
        hidden.launch(stream, grid, block, (image, out))  # begins when its own inputs are there
        output.launch(stream, grid, block, (weights, out))
        print(uploader.last)  # ['copied', 'in place']

``upload`` returns at once. Small inputs go first, then the others in signature order, and the inputs of an
earlier call before those of a later one; so the first launch begins while later inputs are still on their
way. An input whose upload fails poisons what waits for it, with the failure as cause.

An array is used *in place* when the device reads its memory as it is: any array on the host device, on
others arrays in memory that is registered or page-locked. Whoever registered it keeps it so until the
buffer is closed and the work that reads it has ended. Donated inputs are copied always, as the program may
overwrite them.

Arrays are kept alive as long as they are needed. They must not change before the definition of their
buffer is done if they are copied, nor before the last work that reads them has ended if they are in place.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gristmill.errors import ClosedError, InputError
from gristmill.runtime.arguments import admit, check_count, describe
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.devices.base import Device, MemorySpace
from gristmill.runtime.program import Signature
from gristmill.runtime.transfers import (
    AsyncHostToDeviceTransferManager,
    TransferOptions,
    create_transfer_manager,
)
from gristmill.runtime.uploads import Uploader, UploadOptions

Array = np.ndarray[Any, Any]
#: How an input got to the device.
Way = Literal["copied", "in place"]


@dataclass(frozen=True)
class PrefetchOptions:
    """How an :class:`InputUploader` works.

    Attributes:
        in_place: whether memory that the device reaches is used where it lies.
        alignment: bytes to which data used in place must be aligned; None: its elements'. Other data
            is copied, to memory aligned as the device aligns it.
        small_bytes: inputs up to this size go before all larger ones of their call.
        space: where copies go; None: the device's own memory.
        upload: how bytes are staged, how many may be queued, and how often a piece is tried again.
    """

    in_place: bool = True
    alignment: int | None = None
    small_bytes: int = 64 << 10
    space: MemorySpace | None = None
    upload: UploadOptions | None = None


class InputUploader:
    """Uploads the inputs of one program to one device. See the module's text; thread-safe.

    A context manager: leaving it waits for running uploads, or cancels them when an exception passes.
    The buffers stay valid; whoever asked for them closes them.

    Args:
        device: where the program runs.
        signatures: the program's inputs.
        options: see :class:`PrefetchOptions`.
    """

    def __init__(
        self,
        device: Device,
        signatures: Sequence[Signature],
        *,
        options: PrefetchOptions | None = None,
    ) -> None:
        self.device = device
        self.signatures = tuple(signatures)
        self.options = options or PrefetchOptions()
        self._uploader = Uploader(device, self.options.upload)
        self._open = _OpenManagers(self._uploader)
        self._calls = 0
        self._last: list[Way] = []
        self._lock = threading.Lock()

    @property
    def last(self) -> list[Way]:
        """How each input of the latest :meth:`upload` got to the device."""
        return list(self._last)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._open.ended

    def upload(
        self, arrays: Sequence[object], memory: Callable[[int], RawBuffer] | None = None
    ) -> list[RawBuffer]:
        """One buffer for each input, in signature order; the caller closes them.

        A buffer may be used at once: its ``definition`` is done when its bytes are there. Takes what
        ``Executable`` takes: C-contiguous numpy arrays, and what exports itself as one without a copy;
        and buffers of the device, which are used as they are. ``memory`` gives the buffer that a copy of
        the input with a number goes to; by default that is new memory.

        Waits only while more than ``UploadOptions.pending_bytes`` are queued. Raises ``InputError``
        naming the input that does not fit, ``ResourceExhaustedError`` and ``ClosedError``; nothing is
        then left on the device.
        """
        self._check_open()
        check_count(len(arrays), self.signatures, "arguments")
        pairs = enumerate(zip(arrays, self.signatures, strict=True))
        arrays_of: dict[int, Array] = {}
        buffers: dict[int, RawBuffer] = {}
        try:
            for index, (value, signature) in pairs:
                if isinstance(value, RawBuffer):
                    buffers[index] = self._admit_buffer(value, signature, index)
                    continue
                arrays_of[index] = admit(value, signature, index)
                found = self._in_place(arrays_of[index], signature)
                if found is not None:
                    buffers[index] = found
            ways: list[Way] = ["in place" if i in buffers else "copied" for i in range(len(arrays))]
            missing = [index for index in range(len(arrays)) if index not in buffers]
            if missing:
                self._copy(missing, arrays_of, buffers, memory)
        except BaseException:
            for buffer in buffers.values():
                buffer.close()
            raise
        self._last = ways
        return [buffers[index] for index in range(len(arrays))]

    def _admit_buffer(self, buffer: RawBuffer, signature: Signature, index: int) -> RawBuffer:
        """A view of a buffer that is an input as it stands."""
        where = describe("argument", index, signature)
        if buffer.device is not self.device:
            raise InputError(f"{where}: {buffer!r} is not on {self.device}; copy it there first")
        if buffer.nbytes != signature.type.nbytes:
            raise InputError(
                f"{where}: a buffer of {buffer.nbytes} bytes does not fit {signature.type}, which has "
                f"{signature.type.nbytes}"
            )
        if buffer.nbytes and buffer.address % (self.options.alignment or 1):
            raise InputError(
                f"{where}: {buffer!r} is not aligned to {self.options.alignment} bytes; copy it"
            )
        return buffer.slice(0, buffer.nbytes)

    def _in_place(self, array: Array, signature: Signature) -> RawBuffer | None:
        """The array's own memory as a buffer that nobody writes; None: it has to be copied."""
        if not self.options.in_place or signature.donated or array.nbytes == 0:
            return None
        address = array.ctypes.data
        if address % (self.options.alignment or 1) or not self.device.reaches_host(
            address, array.nbytes
        ):
            return None
        view = array.view()
        view.setflags(write=False)
        try:
            return RawBuffer.from_host(self.device, view, alias=Alias.READONLY)
        except InputError:  # its registration has ended meanwhile
            return None

    def _copy(
        self,
        indices: list[int],
        arrays: dict[int, Array],
        buffers: dict[int, RawBuffer],
        memory: Callable[[int], RawBuffer] | None,
    ) -> None:
        """Make ``buffers`` for ``indices``, and queue what fills them."""
        label = f"inputs {', '.join(self.signatures[index].name for index in indices)}"
        manager = create_transfer_manager(
            self.device,
            [self.signatures[index].type for index in indices],
            space=self.options.space,
            buffers=None if memory is None else [memory(index) for index in indices],
            options=TransferOptions(bar=False, label=label),
            uploader=self._uploader,
        )
        try:
            self._open.add(manager)
            for place, index in enumerate(indices):
                buffers[index] = manager.retrieve_buffer(place)
            self._queue(manager, [arrays[index] for index in indices])
        except BaseException:
            manager.cancel()
            manager.close()
            self._open.discard(manager)
            raise

    def _queue(self, manager: AsyncHostToDeviceTransferManager, arrays: list[Array]) -> None:
        """Give all arrays to the manager, the most urgent first; priorities keep calls of threads apart."""
        large = [array.nbytes > self.options.small_bytes for array in arrays]
        with self._lock:
            first, self._calls = -self._calls, self._calls + len(self.signatures) + 1
        end = _End(manager, self._open, len(arrays))
        for place in sorted(range(len(arrays)), key=lambda place: (large[place], place)):
            priority = first - (1 + place if large[place] else 0)
            manager.transfer_raw(place, arrays[place], on_done=end, priority=priority)

    # Life

    def close(self, timeout: float | None = None) -> None:
        """Refuse new uploads and wait for those that run; idempotent.

        Raises ``DeadlineError`` after ``timeout`` seconds; then close it again later.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for manager in self._open.end():
            manager.close(None if deadline is None else max(deadline - time.monotonic(), 0))
            self._open.discard(manager)
        self._uploader.close(wait=not self._uploader.completing)

    def cancel(self) -> None:
        """Fail the inputs that are not there yet with ``TransferCancelledError``."""
        for manager in self._open.now():
            manager.cancel()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the input uploader of {self.device} was closed")

    def __enter__(self) -> InputUploader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.cancel()
        self.close()

    def __del__(self) -> None:
        managers = getattr(self, "_open", None)  # a constructor that raised has none
        if managers is None or managers.ended:
            return
        warnings.warn(
            f"the input uploader of {self.device} was not closed", ResourceWarning, stacklevel=2,
            source=self,
        )  # fmt: skip
        managers.abandon()


class _OpenManagers:
    """The managers whose transfers run; each closes itself when those end, whatever became of its maker."""

    def __init__(self, uploader: Uploader) -> None:
        self.ended = False
        self._uploader = uploader
        self._abandoned = False
        self._managers: set[AsyncHostToDeviceTransferManager] = set()
        # Re-entrant: the garbage collector may abandon these while this thread is in here.
        self._lock = threading.RLock()

    def add(self, manager: AsyncHostToDeviceTransferManager) -> None:
        """Raises ``ClosedError`` after :meth:`end`."""
        with self._lock:
            if self.ended:
                raise ClosedError(f"the input uploader of {manager.device} was closed")
            self._managers.add(manager)

    def discard(self, manager: AsyncHostToDeviceTransferManager) -> None:
        """The manager was closed."""
        with self._lock:
            self._managers.discard(manager)
            over = self._abandoned and not self._managers
        if over:
            self._uploader.close(wait=False)

    def abandon(self) -> None:
        """Take no more, and close the uploader when none is left; waits for nothing."""
        with self._lock:
            self.ended = self._abandoned = True
            over = not self._managers
        if over:
            self._uploader.close(wait=False)

    def now(self) -> list[AsyncHostToDeviceTransferManager]:
        """Those there are."""
        with self._lock:
            return list(self._managers)

    def end(self) -> list[AsyncHostToDeviceTransferManager]:
        """Take no more; returns those there are."""
        with self._lock:
            self.ended = True
            return list(self._managers)


class _End:
    """Called when each of ``count`` transfers has ended; closes their manager after the last."""

    def __init__(
        self, manager: AsyncHostToDeviceTransferManager, managers: _OpenManagers, count: int
    ) -> None:
        self._manager, self._managers = manager, managers
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        # Every buffer is finished or in error by now, so that nothing is to be waited for.
        self._manager.close()
        self._managers.discard(self._manager)
