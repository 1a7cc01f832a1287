# SPDX-License-Identifier: Apache-2.0
"""Raw buffers: untyped device memory with asynchronous, checked byte copies.

    pending ──definition──▶ defined            open ──close()──▶ closed
       └──────────────────▶ in error

A buffer has a *definition* event: ready at once for memory allocated here, later for memory that a
transfer manager or an import fills. Every copy from or to a buffer waits for it, so a buffer may be used
before it is filled, and one that fails poisons what uses it. Copies are otherwise ordered by the events
given as ``waits`` alone: two copies that touch the same bytes, without one waiting for the other, race.

Copies keep the memory of both ends, and host objects, alive until their event is done; ``close`` may be
called before. Arguments are checked before anything moves, in the same way on every device.
"""

from __future__ import annotations

import enum
import threading
import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from gristmill.errors import ClosedError, InputError
from gristmill.runtime import foreign, observer
from gristmill.runtime.devices.base import (
    Device,
    DeviceAllocation,
    MemorySpace,
    check_range,
    copy_kind,
)
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event, ready
from gristmill.runtime.layout import Shape, check_sizes
from gristmill.runtime.peer_copies import copy_between

_DEFINED = ready("defined")


class Alias(enum.Enum):
    """Whether an import may use foreign memory in place.

    ``NEVER`` copies. ``READONLY`` aliases memory its owner forbids to write, as a read-only buffer;
    writable memory is refused, because its owner could change it under a reader. ``WRITABLE`` aliases
    any memory: both sides then see each other's writes. An alias that is not possible is an error,
    never a silent copy.
    """

    NEVER = "never"
    READONLY = "readonly"
    WRITABLE = "writable"


class RawBuffer:
    """A range of bytes of one allocation. A context manager; make one with the class methods.

    Attributes:
        device: the device whose memory it is.
        nbytes: its size.
        readonly: whether copies into it are refused.
        definition: done when its first contents are there (see the module's text).
    """

    def __init__(
        self,
        allocation: DeviceAllocation,
        offset: int,
        nbytes: int,
        *,
        readonly: bool = False,
        definition: Event = _DEFINED,
    ) -> None:
        """A view of ``allocation``; takes over one hold on it, which :meth:`close` drops."""
        self.device = allocation.device
        self.nbytes = nbytes
        self.readonly = readonly or allocation.readonly
        self.definition = definition
        self._allocation = allocation
        self._offset = offset
        self._closed = False
        #: Of copies from the host, and to it.
        self._kinds = ("h2d", "d2h") if self.space is MemorySpace.DEVICE else ("h2h", "h2h")
        self._lock = threading.Lock()
        for tool in observer.active:
            tool.opened(self)

    # Making buffers

    @classmethod
    def allocate(
        cls,
        device: Device,
        nbytes: int,
        space: MemorySpace | None = None,
        *,
        stream: Stream | None = None,
        definition: Event = _DEFINED,
    ) -> RawBuffer:
        """Uninitialised memory of ``device``; raises ``ResourceExhaustedError`` when there is none."""
        allocation = device.allocate(nbytes, space, stream)
        return cls(allocation, 0, nbytes, definition=definition)

    @classmethod
    def from_host(
        cls,
        device: Device,
        data: object,
        *,
        alias: Alias = Alias.NEVER,
        alignment: int | None = None,
        block: bool = True,
    ) -> RawBuffer:
        """The bytes of a C-contiguous numpy array or buffer-protocol object.

        Args:
            device: where the buffer lies.
            data: the source; kept alive while it is needed.
            alias: whether to use the memory in place instead of copying it.
            alignment: for an alias, bytes to which the data must be aligned; default: its elements'.
            block: for a copy, return when ``data`` may be changed again; otherwise it must not change
                before ``definition`` is done.

        Raises ``InputError`` for data that cannot be used in the way asked for.
        """
        memory = foreign.host_memory(data)
        if alias is Alias.NEVER:
            return cls._copied_from_host(device, memory, block)
        return cls._alias_host(device, memory, alias, alignment)

    @classmethod
    def from_dlpack(
        cls,
        device: Device,
        exporter: object,
        *,
        alias: Alias = Alias.NEVER,
        alignment: int | None = None,
    ) -> RawBuffer:
        """The bytes of a DLPack exporter or capsule, which is consumed; rules as :meth:`from_host`."""
        memory = foreign.dlpack_memory(exporter)
        try:
            where, number = memory.dlpack_device
            if where in foreign.DLPACK_HOST:
                if alias is Alias.NEVER:
                    buffer = cls._copied_from_host(device, memory, True)
                    _release(memory)
                    return buffer
                return cls._alias_host(device, memory, alias, alignment)
            if where not in foreign.DLPACK_CUDA or (device.kind, device.ordinal) != (
                "cuda",
                number,
            ):
                raise InputError(
                    f"the DLPack tensor lies on device type {where} number {number}, which {device} "
                    "cannot use; move it to the host first"
                )
            return cls._from_device(device, memory, alias, alignment)
        except BaseException:
            _release(memory)
            raise

    @classmethod
    def from_cuda_array(
        cls,
        device: Device,
        exporter: object,
        *,
        alias: Alias = Alias.NEVER,
        alignment: int | None = None,
    ) -> RawBuffer:
        """The bytes of an object with ``__cuda_array_interface__``; rules as :meth:`from_host`."""
        memory = foreign.cuda_array_memory(exporter)
        if device.kind != "cuda":
            raise InputError(
                f"CUDA memory cannot be reached by {device}; move it to the host first"
            )
        return cls._from_device(device, memory, alias, alignment)

    @classmethod
    def _copied_from_host(
        cls, device: Device, memory: foreign.ForeignMemory, block: bool
    ) -> RawBuffer:
        buffer = cls.allocate(device, memory.nbytes)
        try:
            event = buffer._copy_in(memory, 0, 0, memory.nbytes, (), None)
            if block:
                event.wait()
        except BaseException:
            buffer.close()
            raise
        buffer.definition = event
        return buffer

    @classmethod
    def _alias_host(
        cls, device: Device, memory: foreign.ForeignMemory, alias: Alias, alignment: int | None
    ) -> RawBuffer:
        _check_alias(memory, alias, alignment)
        if memory.nbytes == 0:
            _release(memory)
            return cls(device.allocate(0), 0, 0, readonly=memory.readonly)
        allocation = device.alias_host(
            memory.address,
            memory.nbytes,
            readonly=memory.readonly,
            owner=memory.owner,
            release=memory.release,
        )
        return cls(allocation, 0, memory.nbytes)

    @classmethod
    def _from_device(
        cls, device: Device, memory: foreign.ForeignMemory, alias: Alias, alignment: int | None
    ) -> RawBuffer:
        if alias is not Alias.NEVER:
            _check_alias(memory, alias, alignment)
        allocation = device.adopt(
            memory.address,
            memory.nbytes,
            readonly=memory.readonly,
            owner=memory.owner,
            release=memory.release,
            stream=memory.stream,
        )
        if alias is not Alias.NEVER:
            return cls(allocation, 0, memory.nbytes)
        with cls(allocation, 0, memory.nbytes) as source:
            buffer = cls.allocate(device, memory.nbytes)
            try:
                buffer.definition = source.copy_to(buffer)
            except BaseException:
                buffer.close()
                raise
        return buffer

    # Where it is

    @property
    def space(self) -> MemorySpace:
        """The memory space it lies in."""
        return self._allocation.space

    @property
    def address(self) -> int:
        """Its first byte as the device addresses it; raises ``ClosedError`` after :meth:`close`."""
        self._check_open("address")
        return self._allocation.address + self._offset

    @property
    def storage(self) -> tuple[DeviceAllocation, int]:
        """The allocation it lies in, and its offset there, for work that addresses memory itself."""
        self._check_open("storage")
        return self._allocation, self._offset

    def host_pointer(self) -> int | None:
        """Its first byte as the host addresses it, or None where the host does not see the memory.

        Who reads or writes there must wait for the events of copies, and keep the buffer open.
        """
        self._check_open("host_pointer")
        pointer = self.device.host_pointer(self._allocation)
        return None if pointer is None else pointer + self._offset

    # Copies

    def copy_from_host(
        self,
        source: object,
        offset: int = 0,
        nbytes: int | None = None,
        *,
        source_offset: int = 0,
        waits: Sequence[Event] = (),
        stream: Stream | None = None,
    ) -> Event:
        """Copy bytes of an array or buffer-protocol object into the buffer at ``offset``.

        ``nbytes`` defaults to all of ``source`` from ``source_offset`` on. ``source`` must not change
        before the returned event is done.
        """
        memory = foreign.host_memory(source)
        nbytes = _rest(memory.nbytes, source_offset) if nbytes is None else nbytes
        return self._copy_in(memory, source_offset, offset, nbytes, waits, stream)

    def copy_to_host(
        self,
        destination: object,
        offset: int = 0,
        nbytes: int | None = None,
        *,
        destination_offset: int = 0,
        waits: Sequence[Event] = (),
        stream: Stream | None = None,
    ) -> Event:
        """Copy bytes from ``offset`` on into a writable array or buffer-protocol object.

        ``nbytes`` defaults to all of ``destination`` from ``destination_offset`` on.
        """
        self._check_open("copy_to_host")
        memory = foreign.host_memory(destination)
        nbytes = _rest(memory.nbytes, destination_offset) if nbytes is None else nbytes
        check_range("copy_to_host: buffer", offset, nbytes, self.nbytes)
        check_range("copy_to_host: destination", destination_offset, nbytes, memory.nbytes)
        if memory.readonly:
            raise InputError("copy_to_host: the destination is read-only")
        there = self._allocation.host_address
        ordered = self._with_definition(waits)
        if there is not None:
            at_once = self.device.move_now(
                (self._allocation,), memory.address + destination_offset,
                there + self._offset + offset, nbytes, self._kinds[1], stream, ordered, memory,
            )  # fmt: skip
            if at_once is not None:
                return at_once
        end = self.device.host_memory(memory.address, memory.nbytes, owner=memory.owner)
        try:
            return self.device.copy(
                end,
                destination_offset,
                self._allocation,
                self._offset + offset,
                nbytes,
                stream,
                ordered,
            )
        finally:
            end.drop()

    def copy_to(
        self,
        destination: RawBuffer,
        offset: int = 0,
        nbytes: int | None = None,
        *,
        destination_offset: int = 0,
        waits: Sequence[Event] = (),
        stream: Stream | None = None,
    ) -> Event:
        """Copy bytes from ``offset`` on into another buffer, on this or any other device.

        ``nbytes`` defaults to all of this buffer from ``offset`` on. Between devices the copy is direct
        where one side is visible to the host, else it is staged piece by piece through pinned memory;
        ``stream`` must then belong to the device that copies, or be None.
        """
        self._check_open("copy_to")
        destination._check_writable("copy_to")
        nbytes = _rest(self.nbytes, offset) if nbytes is None else nbytes
        check_range("copy_to: source", offset, nbytes, self.nbytes)
        check_range("copy_to: destination", destination_offset, nbytes, destination.nbytes)
        waits = self._with_definition(destination._with_definition(waits))
        source, target = self._allocation, destination._allocation
        source_at, target_at = self._offset + offset, destination._offset + destination_offset
        if self.device is destination.device:
            here, there = source.host_address, target.host_address
            if here is not None and there is not None:
                kind = copy_kind(target, source)
                at_once = self.device.move_now(
                    (target, source),
                    there + target_at,
                    here + source_at,
                    nbytes,
                    kind,
                    stream,
                    waits,
                )
                if at_once is not None:
                    return at_once
            return self.device.copy(target, target_at, source, source_at, nbytes, stream, waits)
        return copy_between(target, target_at, source, source_at, nbytes, stream, waits)

    def _copy_in(
        self,
        memory: foreign.ForeignMemory,
        source_offset: int,
        offset: int,
        nbytes: int,
        waits: Sequence[Event],
        stream: Stream | None,
    ) -> Event:
        if self._closed or self.readonly:
            self._check_writable("copy_from_host")
        check_range("copy_from_host: buffer", offset, nbytes, self.nbytes)
        check_range("copy_from_host: source", source_offset, nbytes, memory.nbytes)
        there = self._allocation.host_address
        ordered = self._with_definition(waits)
        if there is not None:
            at_once = self.device.move_now(
                (self._allocation,), there + self._offset + offset,
                memory.address + source_offset, nbytes, self._kinds[0], stream, ordered, memory,
            )  # fmt: skip
            if at_once is not None:
                return at_once
        end = self.device.host_memory(
            memory.address, memory.nbytes, readonly=True, owner=memory.owner
        )
        try:
            return self.device.copy(
                self._allocation,
                self._offset + offset,
                end,
                source_offset,
                nbytes,
                stream,
                ordered,
            )
        finally:
            end.drop()

    def _with_definition(self, waits: Sequence[Event]) -> Sequence[Event]:
        definition = self.definition
        if definition is _DEFINED or (definition.known_ready and not observer.watching_copies):
            return waits
        return (self.definition, *waits)

    # Views

    def slice(self, offset: int, nbytes: int) -> RawBuffer:
        """A view of part of the buffer, which shares memory and definition; closed by itself."""
        return self.slices([(offset, nbytes)])[0]

    def slices(self, ranges: Iterable[tuple[int, int]]) -> list[RawBuffer]:
        """Views of several ``(offset, nbytes)`` parts, all or none."""
        parts = list(ranges)
        self._check_open("slice")
        for offset, nbytes in parts:
            check_range("slice", offset, nbytes, self.nbytes)
        return [self._view(offset, nbytes, self.readonly) for offset, nbytes in parts]

    def readonly_view(self) -> RawBuffer:
        """A view of the whole buffer into which nothing can be copied."""
        self._check_open("readonly_view")
        return self._view(0, self.nbytes, True)

    def _view(self, offset: int, nbytes: int, readonly: bool) -> RawBuffer:
        self._allocation.hold()
        return RawBuffer(
            self._allocation,
            self._offset + offset,
            nbytes,
            readonly=readonly,
            definition=self.definition,
        )

    # Dynamic shapes

    def read_dynamic_shape(
        self, shape: Shape, *, waits: Sequence[Event] = (), timeout: float | None = None
    ) -> tuple[int, ...]:
        """The actual sizes stored behind the payload; waits for them, copies nothing else.

        A static ``shape`` has its own sizes. Raises ``InputError`` for a buffer that is too small or
        sizes that ``shape``, the bounds, does not allow, ``DeadlineError`` after ``timeout`` seconds.
        """
        self._check_shape(shape)
        if not shape.is_dynamic:
            return shape.dims
        sizes = np.empty(shape.rank, "<i4")  # aligned, whatever the buffer's address
        self.copy_to_host(sizes, shape.metadata_offset, waits=waits).wait(timeout)
        result = tuple(int(size) for size in sizes)
        check_sizes(result, shape)
        return result

    def remove_dynamic_shape_metadata(self, shape: Shape) -> RawBuffer:
        """A view of the payload of ``shape`` alone; of a static shape too."""
        self._check_shape(shape)
        return self.slice(0, shape.nbytes)

    def _check_shape(self, shape: Shape) -> None:
        self._check_open("dynamic shape")
        if self.nbytes < shape.buffer_bytes:
            raise InputError(
                f"a buffer of {self.nbytes} bytes is too small for {shape}, which needs "
                f"{shape.buffer_bytes}"
            )

    # Life

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Let go of the memory; idempotent. It is given back when views and running copies end too."""
        if self._end():
            self._allocation.drop()

    def let_go(self) -> None:
        """As :meth:`close`, where nobody is to be stopped by a failing release: that is a ``ResourceWarning``."""
        if self._end():
            self._allocation.let_go()

    def _end(self) -> bool:
        """Note that it is closed; False when it was already."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        for tool in observer.active:
            tool.closed(self)
        return True

    def _check_open(self, action: str) -> None:
        if self._closed:
            raise ClosedError(f"{action}: {self!r} was closed")

    def _check_writable(self, action: str) -> None:
        self._check_open(action)
        if self.readonly:
            raise InputError(f"{action}: {self!r} is read-only")

    def __enter__(self) -> RawBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A constructor that raised has left no field behind.
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"{self!r} was not closed: its memory may never be given back",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        access = " read-only" if self.readonly else ""
        return f"<{self.nbytes} B{access} buffer in {self.space.value} memory of {self.device}>"


def _check_alias(memory: foreign.ForeignMemory, alias: Alias, alignment: int | None) -> None:
    wanted = memory.alignment if alignment is None else alignment
    if memory.nbytes and memory.address % wanted:
        raise InputError(
            f"data at {memory.address:#x} is not aligned to {wanted} bytes and cannot be used in place; "
            "align it, or pass alias=Alias.NEVER to copy it"
        )
    if alias is Alias.READONLY and not memory.readonly:
        raise InputError(
            "data is writable, so its owner could change it under a reader; make it read-only "
            "(array.setflags(write=False)), or pass alias=Alias.WRITABLE to share writes, or "
            "alias=Alias.NEVER to copy it"
        )


def _release(memory: foreign.ForeignMemory) -> None:
    if memory.release is not None:
        memory.release()


def _rest(size: int, offset: int) -> int:
    """What is left from ``offset`` on; a bad offset is reported by the range checks that follow."""
    return max(size - offset, 0) if type(offset) is int and offset >= 0 else 0
