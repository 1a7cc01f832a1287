# SPDX-License-Identifier: Apache-2.0
"""What devices that launch kernels share: modules and kernels, what they take, how long that lives.

A module may be closed while its work is in flight: it goes when that has ended. Memory that a launch is given stays
alive until the launch has ended.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from gristmill.errors import ClosedError, GristmillError, InputError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.device_program import DeviceKernel, Extents, Images
from gristmill.runtime.devices.base import Device, DeviceAllocation, check_range
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event

#: What a kernel takes: memory (its address), integers, floats, numpy scalars, raw bytes.
Argument = RawBuffer | DeviceAllocation | int | float | np.generic | bytes
#: What a launch reads and writes.
Accesses = tuple[tuple[observer.Access, ...], tuple[observer.Access, ...]]
_MOST_THREADS = 1024


class SharedResource:
    """Something of a device's that lives until it was closed and its last use has ended."""

    def __init__(
        self,
        device: Device,
        what: str,
        release: Callable[[], None],
        keep: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.device = device
        self._keep = tuple(keep)  # called when it has gone
        self._what = what
        self._release = release
        self._holders = 1
        self._closed = False
        self._lock = threading.RLock()
        for tool in observer.active:
            tool.opened(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def hold(self) -> None:
        """Add a use; raises ``ClosedError`` after :meth:`close`."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self._what} was closed; make it anew")
            self._holders += 1

    def drop(self) -> None:
        """End a use."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        try:
            self._give_back(self._release)
        finally:
            for drop in self._keep:
                drop()

    def _give_back(self, release: Callable[[], None]) -> None:
        """Call ``release`` the way the device wants it."""
        release()

    def drop_after(self, event: Event) -> None:
        """End a use when ``event`` is done; a failing release is a warning then."""

        def let_go(_: Event) -> None:
            try:
                self.drop()
            except GristmillError as error:
                warnings.warn(f"releasing {self._what}: {error}", ResourceWarning, stacklevel=2)

        event.add_callback(let_go)

    def close(self) -> None:
        """Release it when the work in flight that uses it has ended; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for tool in observer.active:
            tool.closed(self)
        self.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self.device.closed:
            warnings.warn(
                f"{self._what} was not closed; it stays until its device goes",
                ResourceWarning,
                stacklevel=2,
            )


class Kernels(SharedResource, ABC):
    """Loaded code: a module of a device that launches kernels."""

    @abstractmethod
    def kernel(self, name: str) -> Kernel:
        """The kernel called ``name``; raises ``DeviceError`` when there is none."""


class Kernel(ABC):
    """A kernel of a module.

    Attributes:
        module: where it is from.
        parameters: offset and bytes of each parameter.
    """

    def __init__(self, module: Kernels, name: str, parameters: Sequence[tuple[int, int]]) -> None:
        self.module = module
        self.name = name
        self.parameters = tuple(parameters)

    @abstractmethod
    def _enqueue(
        self, stream: Stream, submit: Callable[[int], None], waits: Sequence[Event], name: str
    ) -> Event:
        """Let ``stream``, of the right device, call ``submit`` in its order."""

    @abstractmethod
    def _submission(
        self,
        grid: Extents,
        block: Extents,
        pointers: ctypes.Array[ctypes.c_void_p],
        shared_bytes: int,
    ) -> Callable[[int], None]:
        """The function that starts a launch on the stream with the handle that it is given.

        ``pointers`` are those to the values of the parameters, which live as long as they do.
        """

    def launch(
        self,
        stream: Stream,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared_bytes: int = 0,
        waits: Sequence[Event] = (),
        uses: Sequence[DeviceAllocation] = (),
        touches: Accesses | None = None,
    ) -> Event:
        """Run the kernel in stream order, after ``waits``.

        ``grid`` and ``block`` are up to three extents, x first. Argument values are copied now. The memories
        among ``arguments``, and ``uses``, stay alive until the returned event is done; buffers among them are
        waited for until they are defined. To debug tools a kernel may write what is not read-only: give what it
        only reads as ``buffer.readonly_view()``, or say in ``touches`` what it reads and writes, which they need
        where arguments are bare addresses. Raises ``InputError`` for arguments that do not fit the parameters.
        """
        device = self.module.device
        device.check_open()
        if stream.device is not device:
            raise InputError(f"{stream} is not a stream of {device}")
        submit = self.submission(grid, block, arguments, shared_bytes)
        waits = (*waits, *definitions(arguments, ready=bool(observer.active)))
        name = f"launch {self.name}"
        with Holding(self.module, [*uses, *memories(arguments)]) as holding:
            event = self._enqueue(stream, submit, waits, name)
            holding.until(event)
        if observer.active:
            touched = accesses([*uses, *arguments]) if touches is None else touches
            device.observe(name, stream, event, waits, *touched)
        return event

    def submission(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        shared_bytes: int,
    ) -> Callable[[int], None]:
        """Check a launch; returns the function that starts it on the stream with a handle."""
        grid3, block3 = extents_of("grid", grid), extents_of("block", block)
        if math.prod(block3) > _MOST_THREADS:
            raise InputError(
                f"{self.name}: a block of {block3} has more than {_MOST_THREADS} threads"
            )
        check_range(f"{self.name}: shared memory", 0, shared_bytes, 1 << 31)
        values, pointers = self._pack(arguments)
        start = self._submission(grid3, block3, pointers, shared_bytes)

        def submit(stream: int) -> None:
            start(stream)
            del values[:0]  # the values are copied or used during the call: they live until here

        return submit

    def _pack(
        self, arguments: Sequence[Argument]
    ) -> tuple[bytearray, ctypes.Array[ctypes.c_void_p]]:
        if len(arguments) != len(self.parameters):
            raise InputError(
                f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}"
            )
        size = max((offset + nbytes for offset, nbytes in self.parameters), default=1)
        values = bytearray(size)
        pointers = (ctypes.c_void_p * max(len(arguments), 1))()
        base = ctypes.addressof(ctypes.c_char.from_buffer(values))
        for index, (argument, (offset, nbytes)) in enumerate(
            zip(arguments, self.parameters, strict=True)
        ):
            values[offset : offset + nbytes] = encode_argument(self.name, index, argument, nbytes)
            pointers[index] = base + offset
        return values, pointers


class LaunchDevice(Device):
    """A device that runs kernels of a :class:`~gristmill.runtime.device_program.DeviceProgram`."""

    @abstractmethod
    def load_kernels(self, images: Images, chip: str, kernels: Sequence[DeviceKernel]) -> Kernels:
        """Load the form of the kernels that this device runs.

        ``chip`` is what ``images`` were compiled for. Raises ``DeviceError`` when there is no form for this
        device, or it does not load.
        """


def extents_of(what: str, extents: Sequence[int]) -> Extents:
    """Three extents from one to three; ``what`` names them in errors."""
    padded = (*extents, 1, 1, 1)[: max(len(extents), 3)]
    if len(padded) != 3 or any(type(e) is not int or not 0 < e < 1 << 31 for e in padded):
        raise InputError(f"launch: {what} {tuple(extents)} must be one to three positive extents")
    return padded


def encode_argument(kernel: str, index: int, argument: Argument, nbytes: int) -> bytes:
    """The bytes of an argument for a parameter of ``nbytes``, little-endian."""
    if isinstance(argument, DeviceAllocation | RawBuffer):
        argument = argument.address
    if isinstance(argument, np.generic):
        data = argument.tobytes()
    elif isinstance(argument, bytes):
        data = argument
    elif isinstance(argument, int):
        if not -(1 << (8 * nbytes - 1)) <= argument < 1 << (8 * nbytes):
            raise InputError(f"{kernel}: argument {index}, {argument}, does not fit {nbytes} bytes")
        return (argument % (1 << (8 * nbytes))).to_bytes(nbytes, "little")
    elif nbytes in (4, 8):
        return struct.pack("<f" if nbytes == 4 else "<d", argument)
    else:
        raise InputError(
            f"{kernel}: argument {index} has {nbytes} bytes; give a numpy scalar of its type"
        )
    if len(data) != nbytes:
        raise InputError(
            f"{kernel}: argument {index} has {len(data)} bytes, its parameter {nbytes}"
        )
    return data


def memories(arguments: Sequence[Argument]) -> list[DeviceAllocation]:
    """The memories among the arguments."""
    found = [a for a in arguments if isinstance(a, DeviceAllocation)]
    return found + [a.storage[0] for a in arguments if isinstance(a, RawBuffer)]


def definitions(arguments: Sequence[Argument], ready: bool = False) -> list[Event]:
    """The events that define the buffers among the arguments; those that are ready too, or not."""
    events = [a.definition for a in arguments if isinstance(a, RawBuffer)]
    return [event for event in events if ready or not event.ok]


def accesses(arguments: Sequence[Argument]) -> Accesses:
    """What a kernel may read and write of its arguments."""
    ends = [a for a in arguments if isinstance(a, DeviceAllocation | RawBuffer)]
    reads = tuple(observer.Access(end.address, end.nbytes) for end in ends)
    return reads, tuple(r for r, end in zip(reads, ends, strict=True) if not end.readonly)


class Holding:
    """Holds a module or graph and memories: until an event, or not at all if no event came of it."""

    def __init__(self, shared: SharedResource, memories: Sequence[DeviceAllocation]) -> None:
        self._shared = shared
        self._memories = tuple(memories)
        self._held: list[DeviceAllocation] = []

    def __enter__(self) -> Holding:
        self._shared.hold()
        try:
            for memory in self._memories:
                memory.hold()
                self._held.append(memory)
        except ClosedError:
            self._drop()
            raise
        return self

    def until(self, event: Event) -> None:
        """Keep holding until ``event`` is done."""
        held, self._held = self._held, []
        for memory in held:
            memory.drop_after(event)
        self._shared.drop_after(event)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._drop()

    def _drop(self) -> None:
        for memory in self._held:
            memory.drop()
        self._shared.drop()
