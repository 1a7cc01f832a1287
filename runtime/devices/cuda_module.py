# SPDX-License-Identifier: Apache-2.0
"""Modules, kernels and graphs of the CUDA device.

A graph may be closed while its work is in flight: it goes when that has ended, as modules do. Memory that it is
given stays alive until it has gone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from gristmill.errors import ClosedError, GristmillError, InputError
from gristmill.runtime import observer
from gristmill.runtime.device_program import Extents
from gristmill.runtime.devices import cuda_driver
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace, check_range, copy_kind
from gristmill.runtime.devices.cuda_context import CudaContext
from gristmill.runtime.devices.cuda_stream import CudaStream
from gristmill.runtime.devices.launching import (
    Accesses,
    Argument,
    Holding,
    Kernel,
    Kernels,
    SharedResource,
    accesses,
    definitions,
    memories,
)
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event


class _CudaResource(SharedResource):
    """Something of the driver's."""

    device: CudaContext

    def _give_back(self, release: Callable[[], None]) -> None:
        if self.device.lost is None:  # otherwise the context's reset releases it
            with self.device.releasing():
                release()


class CudaModule(_CudaResource, Kernels):
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


class CudaKernel(Kernel):
    """A kernel of a module; its parameters are those that the module declares."""

    module: CudaModule

    def __init__(
        self, module: CudaModule, name: str, handle: int, parameters: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(module, name, parameters)
        self.handle = handle

    def set_dynamic_shared(self, nbytes: int) -> None:
        """Allow launches with up to ``nbytes`` of dynamic shared memory (above 48 KiB they need it)."""
        device = self.module.device
        with device.activate():
            device.driver.function_set_attribute(
                self.handle, cuda_driver.FUNCTION_MAX_DYNAMIC_SHARED, nbytes
            )

    def _enqueue(
        self, stream: Stream, submit: Callable[[int], None], waits: Sequence[Event], name: str
    ) -> Event:
        assert isinstance(stream, CudaStream)
        return stream.submit(submit, waits=waits, name=name)

    def _submission(
        self,
        grid: Extents,
        block: Extents,
        pointers: ctypes.Array[ctypes.c_void_p],
        shared_bytes: int,
    ) -> Callable[[int], None]:
        launch = self.module.device.driver.launch

        def submit(stream: int) -> None:
            launch(self.handle, grid, block, shared_bytes, stream, ctypes.addressof(pointers))

        return submit


class CudaGraph(_CudaResource):
    """Work recorded once, that runs with one call. ``CudaDevice.record_graph`` makes it.

    The addresses are those recorded: the memories stay alive until the graph is closed.
    """

    def __init__(
        self,
        device: CudaContext,
        executable: int,
        nodes: int,
        keep: Sequence[Callable[[], None]],
        accesses: Accesses,
    ) -> None:
        self.nodes = nodes
        self._accesses = accesses
        self._executable = executable
        driver = device.driver
        super().__init__(
            device, f"CUDA graph of {device}", lambda: driver.graph_exec_destroy(executable), keep
        )

    def launch(self, stream: Stream, waits: Sequence[Event] = ()) -> Event:
        """Run the graph in stream order, after ``waits``."""
        self.device.check_open()
        if not isinstance(stream, CudaStream) or stream.device is not self.device:
            raise InputError(f"{stream} is not a stream of {self.device}")
        driver, executable = self.device.driver, self._executable
        name = f"graph of {self.nodes} operations"
        with Holding(self, ()) as holding:
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
            touched = (tuple(self._reads), tuple(self._writes))
            self._graph = CudaGraph(self._device, executable, self._nodes, self._keep, touched)
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
        pending = [event.name for event in definitions(arguments)]
        if pending:
            raise InputError(f"a graph needs buffers that are defined; wait for {pending[0]} first")
        kernel.module.hold()
        self._keep.append(kernel.module.drop)
        self._record(lambda: submit(self._stream), *uses, *memories(arguments))
        reads, writes = accesses([*uses, *arguments])
        self._reads += reads
        self._writes += writes

    def _record(self, action: Callable[[], None], *memories: DeviceAllocation) -> None:
        for memory in memories:
            memory.hold()
            self._keep.append(memory.drop)
        with self._device.activate():
            action()
        self._nodes += 1
