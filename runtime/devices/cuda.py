# SPDX-License-Identifier: Apache-2.0
"""The CUDA device: memory, streams, copies, kernels and graphs over the CUDA driver.

Importing this imports neither cuda-python nor the driver; :meth:`CudaDevice.available` says whether both
are there. One ``CudaDevice`` holds the device's primary context, which it shares with other CUDA libraries
of the process.

Device memory comes from the driver's pool, without a wait for the device on release. Page-locked memory
serves as ``PINNED``; registered host memory is used where it lies. Copies of other host memory go through the
driver's own staging on the stream's thread, so that the caller does not wait for them.

When the driver reports that the context is broken, or cannot say any more whether work has ended, the
device is *lost*: all its work fails with the reason, its memory is not released piece by piece (something
might still write to it), and :meth:`close` resets the context, which releases everything.
"""

from __future__ import annotations

import bisect
import ctypes
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from gristmill.errors import DeviceError, GristmillError, InputError, ResourceExhaustedError
from gristmill.runtime import observer
from gristmill.runtime.device_program import DeviceKernel, Images
from gristmill.runtime.devices import cuda_driver
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace, check_range, copy_kind
from gristmill.runtime.devices.cuda_context import CudaContext
from gristmill.runtime.devices.cuda_driver import CudaError
from gristmill.runtime.devices.cuda_module import CudaGraphRecorder, CudaModule
from gristmill.runtime.devices.cuda_stream import CudaEvent, CudaStream
from gristmill.runtime.devices.launching import LaunchDevice
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event

#: Up to this size the driver takes pageable memory into its command buffer, without a wait.
_STAGED_BYTES = 64 << 10


class CudaDevice(CudaContext, LaunchDevice):
    """One CUDA device.

    Args:
        ordinal: its number, as the driver counts them.

    Raises ``DeviceError`` where there is no such device, driver or cuda-python.

    Attributes:
        name: the device's name.
        capability: its compute capability, as (major, minor).
    """

    kind = "cuda"
    alignment = 256

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        try:
            self._open()
        except BaseException:
            self._release_context()
            raise
        self._closed = False

    def _open(self) -> None:
        self.name = self.driver.device_name(self._device)
        attribute = partial(self.driver.device_attribute, device=self._device)
        self.capability = (
            attribute(cuda_driver.ATTRIBUTE_CAPABILITY_MAJOR),
            attribute(cuda_driver.ATTRIBUTE_CAPABILITY_MINOR),
        )
        self._has_pools = bool(attribute(cuda_driver.ATTRIBUTE_MEMORY_POOLS))
        self.numa_node = self.driver.host_numa_node(self._device)
        self._pinned = 0  # live page-locked allocations
        self._registered: list[tuple[int, int]] = []  # start and end, in order
        self._allocating = self._freeing = 0  # streams of our own
        self._pool = 0
        with self.activate():
            try:
                if self._has_pools:
                    self._pool = self.driver.default_pool(self._device)
                    self.driver.keep_pool_memory(self._pool)
                    self._allocating = self.driver.stream_create()
                    self._freeing = self.driver.stream_create()
            except BaseException:
                self._destroy_own_streams()
                raise

    # What there is

    @staticmethod
    def available() -> bool:
        """Whether there is a CUDA device that works."""
        return CudaDevice.unavailable_reason() is None

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why there is no CUDA device, or None when there is one."""
        try:
            return None if CudaDevice.count() else "the CUDA driver finds no device"
        except (DeviceError, ResourceExhaustedError) as error:
            return error.message

    @staticmethod
    def count() -> int:
        """The number of CUDA devices; raises ``DeviceError`` without driver or cuda-python."""
        return cuda_driver.load().device_count()

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory, as the driver sees them."""
        self.check_open()
        with self.activate():
            return self.driver.memory_info()

    # Memory

    def _allocate(self, nbytes: int, space: MemorySpace, stream: Stream | None) -> DeviceAllocation:
        assert stream is None or isinstance(stream, CudaStream)
        with self.activate():
            try:
                if space is MemorySpace.PINNED:
                    address, release = self._allocate_pinned(nbytes)
                else:
                    address, release = self._allocate_device(nbytes, stream)
            except ResourceExhaustedError as error:
                raise self._exhausted(nbytes, space, error) from error
        self.count_allocation(nbytes)
        pinned = space is MemorySpace.PINNED
        with self._lock:
            self._pinned += pinned
        host = address if pinned else None
        give_back = partial(self._give_back, release, nbytes, pinned)
        return DeviceAllocation(self, space, address, nbytes, give_back, host_address=host)

    def _allocate_device(
        self, nbytes: int, stream: CudaStream | None
    ) -> tuple[int, Callable[[], None]]:
        driver = self.driver
        if not self._has_pools:
            address = driver.mem_alloc(nbytes)
            return address, partial(driver.mem_free, address)
        where = stream.handle if stream is not None else self._allocating
        try:
            address = driver.mem_alloc_async(nbytes, where)
        except ResourceExhaustedError:
            driver.stream_synchronize(
                self._freeing
            )  # what was released may not have been freed yet
            driver.trim_pool(self._pool)
            address = driver.mem_alloc_async(nbytes, where)
        release = partial(driver.mem_free_async, address, self._freeing)
        try:
            if stream is None:
                driver.stream_synchronize(where)  # so that every stream may use it
            else:
                self._free_after(where)
        except BaseException:
            release()
            raise
        return address, release

    def _free_after(self, stream: int) -> None:
        """Let memory that was allocated on ``stream`` not be freed before that has happened."""
        event = self.take_event()
        try:
            self.driver.event_record(event, stream)
            self.driver.stream_wait_event(self._freeing, event)
        finally:
            self.give_event(event)

    def _allocate_pinned(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        flags = cuda_driver.HOST_PORTABLE | cuda_driver.HOST_DEVICEMAP
        address = self.driver.host_alloc(nbytes, flags)
        release = partial(self.driver.host_free, address)
        try:
            if self.driver.host_device_address(address) != address:
                raise DeviceError(
                    f"{self} has no unified addresses, which page-locked memory needs; use another device"
                )
        except BaseException:
            release()
            raise
        return address, release

    def _give_back(self, release: Callable[[], None], nbytes: int, pinned: bool) -> None:
        self.count_allocation(-nbytes)
        with self._lock:
            self._pinned -= pinned
        if self._lost is not None or not self._context:
            return  # the context's reset releases it
        with self.releasing():
            release()

    def _exhausted(
        self, nbytes: int, space: MemorySpace, error: ResourceExhaustedError
    ) -> ResourceExhaustedError:
        live = self.statistics().live_bytes
        if space is MemorySpace.PINNED:
            return ResourceExhaustedError(
                f"{self} cannot get {nbytes} bytes of page-locked host memory: {error.message}; this device has "
                f"{live} bytes of memory in use; see ulimit -l and the memory limit of the container"
            )
        try:
            free, total = self.driver.memory_info()
            known = f"{free} of its {total} bytes are free"
        except GristmillError:
            known = "how much is free is not known"
        return ResourceExhaustedError(
            f"{self} cannot get {nbytes} bytes of device memory: {known}, {live} bytes are in use by this "
            f"program; {error.message}"
        )

    def register_host(self, address: int, nbytes: int) -> int:
        """See ``Device.register_host``: the device then reaches the memory where it lies."""
        self.check_open()
        check_range("host memory to register", 0, nbytes, 1 << 62)
        if nbytes < 1 or address < 1:
            raise InputError(f"host memory of {nbytes} bytes at {address:#x} cannot be registered")
        flags = cuda_driver.HOST_PORTABLE | cuda_driver.HOST_DEVICEMAP
        with self.activate():
            try:
                self.driver.host_register(address, nbytes, flags)
            except ResourceExhaustedError as error:
                raise self._exhausted(nbytes, MemorySpace.PINNED, error) from error
            except CudaError as error:
                if error.code in (cuda_driver.INVALID_VALUE, cuda_driver.ALREADY_REGISTERED):
                    raise InputError(
                        f"host memory of {nbytes} bytes at {address:#x} cannot be registered: {error.message}"
                    ) from error
                raise
            try:
                device_address = self.driver.host_device_address(address)
            except BaseException:
                self.driver.host_unregister(address)
                raise
        with self._lock:
            bisect.insort(self._registered, (address, address + nbytes))
        return device_address

    def unregister_host(self, address: int) -> None:
        """See ``Device.unregister_host``; waits for the device. Does nothing once that is closed."""
        if not self._context:
            return
        with self._lock:
            index = bisect.bisect_left(self._registered, (address, 0))
            found = index < len(self._registered) and self._registered[index][0] == address
            if not found:
                raise InputError(f"no host memory is registered at {address:#x}")
            del self._registered[index]
        if self._lost is not None:
            return
        with self.releasing():
            self.driver.host_unregister(address)

    def find_host(self, address: int, nbytes: int) -> int | None:
        """See ``Device.find_host``: memory that other libraries page-locked is found too."""
        known = self._is_registered(address, nbytes)
        with self.activate():
            return self.driver.host_pointer(address, 0 if known else nbytes)

    def _is_registered(self, address: int, nbytes: int) -> bool:
        with self._lock:
            index = bisect.bisect_right(self._registered, (address, 1 << 64))
            return index > 0 and address + nbytes <= self._registered[index - 1][1]

    # Streams and events

    def _create_stream(self, name: str, chain_errors: bool) -> Stream:
        with self.activate():
            handle = self.driver.stream_create()
        stream = CudaStream(self, name, chain_errors, handle)
        with self._lock:
            self._streams.add(stream)
        return stream

    # Copies

    def _copy(
        self,
        destination: DeviceAllocation,
        destination_offset: int,
        source: DeviceAllocation,
        source_offset: int,
        nbytes: int,
        stream: Stream,
        waits: Sequence[Event],
        name: str,
    ) -> Event:
        assert isinstance(stream, CudaStream)
        kind = copy_kind(destination, source)
        target = destination.address + destination_offset
        origin = source.address + source_offset
        if kind == "h2h":

            def move() -> None:
                ctypes.memmove(target, origin, nbytes)

            return stream.enqueue(move, waits=waits, name=name)
        driver = self.driver
        calls = {"h2d": driver.copy_h2d, "d2h": driver.copy_d2h, "d2d": driver.copy_d2d}

        def submit(handle: int) -> None:
            calls[kind](target, origin, nbytes, handle)

        blocking = kind == "d2h" and self._is_pageable(destination, target, nbytes)
        if kind == "h2d" and nbytes > _STAGED_BYTES:
            blocking = self._is_pageable(source, origin, nbytes)
        return stream.submit(submit, waits=waits, name=name, blocking=blocking)

    def _is_pageable(self, allocation: DeviceAllocation, address: int, nbytes: int) -> bool:
        return allocation.space is MemorySpace.HOST and not self._is_registered(address, nbytes)

    def fill(
        self,
        destination: DeviceAllocation,
        offset: int,
        nbytes: int,
        value: int,
        stream: Stream | None = None,
        waits: Sequence[Event] = (),
    ) -> Event:
        """Set ``nbytes`` bytes to ``value`` (0 to 255), ordered as :meth:`copy` is."""
        self.check_open()
        check_range("fill", offset, nbytes, destination.nbytes)
        if not 0 <= value <= 255:
            raise InputError(f"fill: {value} is not a byte")
        if destination.space is MemorySpace.HOST or destination.device is not self:
            raise InputError(f"fill: {destination!r} is not memory of {self}")
        if destination.readonly:
            raise InputError(f"fill: {destination!r} is read-only")
        stream = stream or self.transfer_stream("d2d")
        if not isinstance(stream, CudaStream) or stream.device is not self:
            raise InputError(f"{stream} is not a stream of {self}")
        address = destination.address + offset
        name = f"fill {nbytes} B"
        destination.hold()
        try:
            event = stream.submit(
                lambda handle: self.driver.fill(address, value, 1, nbytes, handle),
                waits=waits,
                name=name,
            )
        except BaseException:
            destination.drop()
            raise
        destination.drop_after(event)
        if observer.active:
            self.observe(name, stream, event, waits, writes=(observer.Access(address, nbytes),))
        return event

    # Kernels and graphs

    def load_module(self, image: bytes | str) -> CudaModule:
        """Load PTX text or a cubin.

        Raises ``CudaError`` with the compiler's log when the driver does not accept it.
        """
        self.check_open()
        return CudaModule(self, image)

    def load_kernels(
        self, images: Images, chip: str, kernels: Sequence[DeviceKernel]
    ) -> CudaModule:
        """See ``LaunchDevice.load_kernels``: machine code for this device, else PTX for it or an earlier one."""
        wanted, own = _capability(chip), self.capability
        if images.cubin is not None and wanted[0] == own[0] and wanted <= own:
            return self.load_module(images.cubin)
        if images.ptx is not None and wanted <= own:
            return self.load_module(images.ptx)
        raise DeviceError(
            f"{self} ({self.name}) has compute capability {own[0]}.{own[1]}; the program has "
            f"{', '.join(images.kinds) or 'no code'} for {chip}: compile it for "
            f"cuda:sm_{own[0]}{own[1]} or an earlier chip"
        )

    def record_graph(self) -> CudaGraphRecorder:
        """Record copies, fills and launches once, to run them many times with one call each.

        To be used as a context manager; see :class:`CudaGraphRecorder`.
        """
        self.check_open()
        return CudaGraphRecorder(self)

    # Others' work

    def orders(self, event: Event) -> bool:
        """See ``Device.orders``: the driver has the work of events with a handle."""
        return isinstance(event, CudaEvent) and event.handle is not None

    def adopt(
        self,
        address: int,
        nbytes: int,
        *,
        readonly: bool,
        owner: object,
        release: Callable[[], None] | None = None,
        stream: int | None = None,
    ) -> DeviceAllocation:
        """See ``Device.adopt``; raises ``InputError`` for an address that is not this device's memory."""
        self.check_open()
        if nbytes:
            with self.activate():
                where = self.driver.pointer_device(address)
            if where != self.ordinal:
                place = "no device memory" if where is None else f"memory of cuda:{where}"
                raise InputError(f"{address:#x} is {place}, so {self} cannot use it in place")
        return super().adopt(
            address, nbytes, readonly=readonly, owner=owner, release=release, stream=stream
        )

    def synchronize_foreign(self, stream: int) -> None:
        """See ``Device.synchronize_foreign``; 1 and 2 stand for the driver's default streams."""
        self.check_open()
        with self.activate():
            self.driver.stream_synchronize(stream)

    # Life

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until all work given to any stream of the device so far has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            streams = [stream for stream in self._streams if not stream.closed]
        for event in [stream.record_event(f"synchronize {stream.name}") for stream in streams]:
            event.wait(None if deadline is None else max(deadline - time.monotonic(), 0))

    def _close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        held = self._pinned if self._lost is not None else self.statistics().live_allocations
        if self._lost is None:
            self._close_host_memory()
        if held:
            # The context's end would free them: a leak is better than pointers to nothing.
            warnings.warn(
                f"closing {self}: {held} allocations are still held; its context stays until the process "
                "ends",
                ResourceWarning,
                stacklevel=3,
            )
            return
        if self._lost is None:
            try:
                with self.releasing():
                    # Others may hold the context, which would keep the ranges registered.
                    for start, _ in self._registered:
                        self.attempt(self.driver.host_unregister, start)
                    self._destroy_own_streams()
                    for event in self._idle_events:
                        self.attempt(self.driver.event_destroy, event)
            except GristmillError as error:
                self.warn(error)
        self._idle_events.clear()
        self._release_context()
        self._close_host_memory()  # of a lost device only now: the reset has ended what might use it

    def _destroy_own_streams(self) -> None:
        for stream in (self._allocating, self._freeing):
            if stream:
                self.attempt(self.driver.stream_destroy, stream)
        self._allocating = self._freeing = 0

    def _release_context(self) -> None:
        if self._lost is not None:
            self.attempt(self.driver.reset_primary_context, self._device)
        self.attempt(self.driver.release_primary_context, self._device)
        self._context = 0

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"{self} was not closed; its context stays until the process ends",
                ResourceWarning,
                stacklevel=2,
            )


def _capability(chip: str) -> tuple[int, int]:
    """The compute capability that a chip's name states: ``sm_90`` is (9, 0)."""
    digits = chip.removeprefix("sm_")
    if not (digits.isdecimal() and len(digits) > 1):
        raise DeviceError(f"{chip!r} is no CUDA chip, like sm_90; compile the program again")
    return int(digits[:-1]), int(digits[-1])
