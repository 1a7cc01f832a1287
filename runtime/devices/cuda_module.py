# SPDX-License-Identifier: Apache-2.0
"""Modules, kernels and graphs of the CUDA device.

A module or graph may be closed while its work is in flight: it goes when that has ended. Memory that a
launch or a graph is given stays alive until the launch, or the graph, has ended.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from gristmill.errors import ClosedError, GristmillError, InputError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices import cuda_driver
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace, check_range, copy_kind
from gristmill.runtime.devices.cuda_context import CudaContext
from gristmill.runtime.devices.cuda_stream import CudaStream
from gristmill.runtime.events import Event

#: What a kernel takes: memory (its address), integers, floats, numpy scalars, raw bytes.
Argument = RawBuffer | DeviceAllocation | int | float | np.generic | bytes
_MOST_THREADS = 1024


class _Shared:
    """Something of the driver's that lives until it was closed and its last use has ended."""

    def __init__(
        self,
        device: CudaContext,
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
            if self.device.lost is None:  # otherwise the context's reset releases it
                with self.device.releasing():
                    self._release()
        finally:
            for drop in self._keep:
                drop()

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

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self.device.closed:
            warnings.warn(
                f"{self._what} was not closed; it stays until its device's context goes",
                ResourceWarning,
                stacklevel=2,
            )


class CudaModule(_Shared):
    """Loaded code. ``CudaDevice.load_module`` makes it."""

    def __init__(self, device: CudaContext, image: bytes | str) -> None:
        data = image.encode() if isinstance(image, str) else bytes(image)
        if not data.startswith(b"\x7fELF") and not data.endswith(b"\0"):
            data += b"\0"  # the driver expects text to end so
        self._closed = True  # until there is something to close
        with device.activate():
            handle = device.driver.module_load(data)
        self._handle = handle
        self._kernels: dict[str, CudaKernel] = {}
        driver = device.driver
        super().__init__(device, f"CUDA module of {device}", lambda: driver.module_unload(handle))

    def kernel(self, name: str) -> CudaKernel:
        """The kernel called ``name``; raises ``CudaError`` when there is none."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self._what} was closed; load it anew")
            if name not in self._kernels:
                with self.device.activate():
                    handle = self.device.driver.module_function(self._handle, name)
                    layout = self.device.driver.function_parameters(handle)
                self._kernels[name] = CudaKernel(self, name, handle, layout)
            return self._kernels[name]


class CudaKernel:
    """A kernel of a module.

    Attributes:
        parameters: offset and bytes of each parameter, as the module declares them.
    """

    def __init__(
        self, module: CudaModule, name: str, handle: int, parameters: Sequence[tuple[int, int]]
    ) -> None:
        self.module = module
        self.name = name
        self.handle = handle
        self.parameters = tuple(parameters)

    def set_dynamic_shared(self, nbytes: int) -> None:
        """Allow launches with up to ``nbytes`` of dynamic shared memory (above 48 KiB they need it)."""
        device = self.module.device
        with device.activate():
            device.driver.function_set_attribute(
                self.handle, cuda_driver.FUNCTION_MAX_DYNAMIC_SHARED, nbytes
            )

    def launch(
        self,
        stream: CudaStream,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared_bytes: int = 0,
        waits: Sequence[Event] = (),
        uses: Sequence[DeviceAllocation] = (),
    ) -> Event:
        """Run the kernel in stream order, after ``waits``.

        ``grid`` and ``block`` are up to three extents, x first. Argument values are copied now. The memories
        among ``arguments``, and ``uses``, stay alive until the returned event is done; buffers among them are
        waited for until they are defined. To debug tools a kernel may write what is not read-only: give what it
        only reads as ``buffer.readonly_view()``. Raises ``InputError`` for arguments that do not fit the parameters.
        """
        device = self.module.device
        device.check_open()
        if stream.device is not device:
            raise InputError(f"{stream} is not a stream of {device}")
        submit = self.submission(grid, block, arguments, shared_bytes)
        memories = [*uses, *_memories(arguments)]
        waits = (*waits, *_definitions(arguments, ready=bool(observer.active)))
        name = f"launch {self.name}"
        with _Holding(self.module, memories) as holding:
            event = stream.submit(submit, waits=waits, name=name)
            holding.until(event)
        if observer.active:
            device.observe(name, stream, event, waits, *_accesses([*uses, *arguments]))
        return event

    def submission(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        shared_bytes: int,
    ) -> Callable[[int], None]:
        """Check a launch; returns the function that gives it to the driver on a stream's handle."""
        grid3, block3 = _extents("grid", grid), _extents("block", block)
        if math.prod(block3) > _MOST_THREADS:
            raise InputError(
                f"{self.name}: a block of {block3} has more than {_MOST_THREADS} threads"
            )
        check_range(f"{self.name}: shared memory", 0, shared_bytes, 1 << 31)
        values, pointers = self._pack(arguments)
        driver = self.module.device.driver

        def submit(stream: int) -> None:
            driver.launch(
                self.handle, grid3, block3, shared_bytes, stream, ctypes.addressof(pointers)
            )
            del values[:0]  # the driver copies the values during the call: they live until here

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


def _extents(what: str, extents: Sequence[int]) -> tuple[int, int, int]:
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


def _memories(arguments: Sequence[Argument]) -> list[DeviceAllocation]:
    """The memories among the arguments."""
    found = [a for a in arguments if isinstance(a, DeviceAllocation)]
    return found + [a.storage[0] for a in arguments if isinstance(a, RawBuffer)]


def _definitions(arguments: Sequence[Argument], ready: bool = False) -> list[Event]:
    """The events that define the buffers among the arguments; those that are ready too, or not."""
    events = [a.definition for a in arguments if isinstance(a, RawBuffer)]
    return [event for event in events if ready or not event.ok]


_Accesses = tuple[tuple[observer.Access, ...], tuple[observer.Access, ...]]


def _accesses(arguments: Sequence[Argument]) -> _Accesses:
    """What a kernel may read and write of its arguments."""
    ends = [a for a in arguments if isinstance(a, DeviceAllocation | RawBuffer)]
    reads = tuple(observer.Access(end.address, end.nbytes) for end in ends)
    return reads, tuple(r for r, end in zip(reads, ends, strict=True) if not end.readonly)


class _Holding:
    """Holds a module or graph and memories: until an event, or not at all if no event came of it."""

    def __init__(self, shared: _Shared, memories: Sequence[DeviceAllocation]) -> None:
        self._shared = shared
        self._memories = tuple(memories)
        self._held: list[DeviceAllocation] = []

    def __enter__(self) -> _Holding:
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


class CudaGraph(_Shared):
    """Work recorded once, that runs with one call. ``CudaDevice.record_graph`` makes it.

    The addresses are those recorded: the memories stay alive until the graph is closed.
    """

    def __init__(
        self,
        device: CudaContext,
        executable: int,
        nodes: int,
        keep: Sequence[Callable[[], None]],
        accesses: _Accesses,
    ) -> None:
        self.nodes = nodes
        self._accesses = accesses
        self._executable = executable
        driver = device.driver
        super().__init__(
            device, f"CUDA graph of {device}", lambda: driver.graph_exec_destroy(executable), keep
        )

    def launch(self, stream: CudaStream, waits: Sequence[Event] = ()) -> Event:
        """Run the graph in stream order, after ``waits``."""
        self.device.check_open()
        if stream.device is not self.device:
            raise InputError(f"{stream} is not a stream of {self.device}")
        driver, executable = self.device.driver, self._executable
        name = f"graph of {self.nodes} operations"
        with _Holding(self, ()) as holding:
            event = stream.submit(
                lambda handle: driver.graph_launch(executable, handle), waits=waits, name=name
            )
            holding.until(event)
        if observer.active:
            self.device.observe(name, stream, event, waits, *self._accesses)
        return event


class CudaGraphRecorder:
    """Records operations, in order, while it is entered; :attr:`graph` is the result.

    Host memory must be page-locked or registered: the graph uses it when it runs, not now.
    """

    def __init__(self, device: CudaContext) -> None:
        self._device = device
        self._stream = 0
        self._nodes = 0
        self._keep: list[Callable[[], None]] = []
        self._reads: list[observer.Access] = []
        self._writes: list[observer.Access] = []
        self._graph: CudaGraph | None = None

    @property
    def graph(self) -> CudaGraph:
        """The graph, after the recorder was left."""
        if self._graph is None:
            raise InputError("a graph is there when its recording has ended without an error")
        return self._graph

    def __enter__(self) -> CudaGraphRecorder:
        driver = self._device.driver
        with self._device.activate():
            self._stream = driver.stream_create()
            try:
                driver.begin_capture(self._stream)
            except BaseException:
                driver.stream_destroy(self._stream)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        driver = self._device.driver
        try:
            with self._device.releasing():
                try:
                    captured = driver.end_capture(self._stream)
                finally:
                    self._device.attempt(driver.stream_destroy, self._stream)
                try:
                    executable = driver.graph_instantiate(captured) if kind is None else 0
                finally:
                    self._device.attempt(driver.graph_destroy, captured)
        except GristmillError:
            self._drop()
            if kind is None:
                raise
            return  # the error that ended the recording is the one to be seen
        if kind is None:
            accesses = (tuple(self._reads), tuple(self._writes))
            self._graph = CudaGraph(self._device, executable, self._nodes, self._keep, accesses)
        else:
            self._drop()

    def _drop(self) -> None:
        for drop in self._keep:
            drop()
        self._keep.clear()

    def copy(
        self,
        destination: DeviceAllocation,
        destination_offset: int,
        source: DeviceAllocation,
        source_offset: int,
        nbytes: int,
    ) -> None:
        """Record a copy; errors as ``Device.copy``."""
        check_range("copy destination", destination_offset, nbytes, destination.nbytes)
        check_range("copy source", source_offset, nbytes, source.nbytes)
        for end in (destination, source):
            if end.space is MemorySpace.HOST:
                raise InputError(f"a graph cannot copy {end!r}: it is not page-locked")
        if destination.readonly:
            raise InputError(f"copy: {destination!r} is read-only")
        driver = self._device.driver
        target = destination.address + destination_offset
        origin = source.address + source_offset
        if target < origin + nbytes and origin < target + nbytes:
            raise InputError(
                "copy: source and destination overlap; copy through a temporary buffer"
            )
        kind = copy_kind(destination, source)
        calls = {"h2d": driver.copy_h2d, "d2h": driver.copy_d2h, "d2d": driver.copy_d2d}
        if kind not in calls:
            raise InputError("a graph copies to, from or within device memory only")
        self._record(lambda: calls[kind](target, origin, nbytes, self._stream), destination, source)
        self._reads.append(observer.Access(origin, nbytes))
        self._writes.append(observer.Access(target, nbytes))

    def fill(self, destination: DeviceAllocation, offset: int, nbytes: int, value: int) -> None:
        """Record setting ``nbytes`` bytes to ``value``."""
        check_range("fill", offset, nbytes, destination.nbytes)
        if not 0 <= value <= 255:
            raise InputError(f"fill: {value} is not a byte")
        if destination.readonly or destination.space is MemorySpace.HOST:
            raise InputError(f"fill: {destination!r} is read-only or not the device's")
        address = destination.address + offset
        self._record(
            lambda: self._device.driver.fill(address, value, 1, nbytes, self._stream), destination
        )
        self._writes.append(observer.Access(address, nbytes))

    def launch(
        self,
        kernel: CudaKernel,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared_bytes: int = 0,
        uses: Sequence[DeviceAllocation] = (),
    ) -> None:
        """Record a launch; arguments as ``CudaKernel.launch``."""
        submit = kernel.submission(grid, block, arguments, shared_bytes)
        pending = [event.name for event in _definitions(arguments)]
        if pending:
            raise InputError(f"a graph needs buffers that are defined; wait for {pending[0]} first")
        memories = [*uses, *_memories(arguments)]
        kernel.module.hold()
        self._keep.append(kernel.module.drop)
        self._record(lambda: submit(self._stream), *memories)
        reads, writes = _accesses([*uses, *arguments])
        self._reads += reads
        self._writes += writes

    def _record(self, action: Callable[[], None], *memories: DeviceAllocation) -> None:
        for memory in memories:
            memory.hold()
            self._keep.append(memory.drop)
        with self._device.activate():
            action()
        self._nodes += 1
