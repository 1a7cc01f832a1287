# SPDX-License-Identifier: Apache-2.0
"""Devices the behaviour suites run on, and devices with faults."""

from __future__ import annotations

import ctypes
import sys
import threading
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import DeviceError
from gristmill.runtime.devices.base import Device, DeviceAllocation, MemorySpace
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.layout import Shape

#: No wait of a test lasts longer: a hang is a failure, not a stalled run.
LIMIT = 20.0


def bytes_shape(nbytes: int) -> Shape:
    """The shape of ``nbytes`` bytes."""
    return Shape.parse(f"u8[{nbytes}]")


def random_bytes(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Bytes to transfer."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def contents(manager: Any, index: int = 0) -> bytes:
    """What a transfer manager's buffer holds; the buffer is taken out of it."""
    with manager.retrieve_buffer(index) as buffer:
        out = np.zeros(buffer.nbytes, np.uint8)
        buffer.copy_to_host(out).wait(LIMIT)
    return out.tobytes()


class IslandDevice(HostDevice):
    """A host device whose own memory the host does not see, as that of a GPU."""

    def _allocate(self, nbytes: int, space: MemorySpace, stream: Stream | None) -> DeviceAllocation:
        allocation = super()._allocate(nbytes, space, stream)
        if space is MemorySpace.DEVICE:
            allocation.host_address = None
        return allocation

    alias_host = Device.alias_host
    reaches_host = Device.reaches_host

    def find_host(self, address: int, nbytes: int) -> int | None:
        ranges = tuple(self._registered.items())
        known = any(a <= address and address + nbytes <= a + size for a, size in ranges)
        return address if known else None

    def _reach(self, allocation: DeviceAllocation) -> int:
        return allocation.address


class SinkDevice(IslandDevice):
    """A device that keeps nothing of what is copied to it but its CRC-32, in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.checksums: dict[int, int] = {}

    def _allocate(self, nbytes: int, space: MemorySpace, stream: Stream | None) -> DeviceAllocation:
        if space is MemorySpace.DEVICE:
            return DeviceAllocation(self, space, 1 << 50, nbytes)
        return super()._allocate(nbytes, space, stream)

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
        def take() -> None:
            address = source.address + source_offset
            data = (ctypes.c_char * nbytes).from_address(address)
            self.checksums[destination_offset] = zlib.crc32(data)
            self.received += nbytes

        return stream.enqueue(take, waits=waits, name=name)


class FaultyDevice(IslandDevice):
    """An island whose copies obey a script: ``fail``, ``refuse`` or ``corrupt`` the n-th of a kind.

    ``gate``: copies of ``gated`` kind run only when it is set.
    """

    def __init__(self, *, workers: int = 2) -> None:
        super().__init__(workers=workers)
        self.script: dict[tuple[str, int], str] = {}
        self.seen: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.order: list[int] = []

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
        kind = name.split()[1]
        count = self.seen[kind] = self.seen.get(kind, 0) + 1
        action = self.script.get((kind, count))
        if action == "refuse":
            raise DeviceError(f"copy {count} of kind {kind} refused")
        target, origin = destination.address + destination_offset, source.address + source_offset

        def move() -> None:
            assert self.gate.wait(LIMIT)
            if action == "fail":
                raise DeviceError(f"copy {count} of kind {kind} failed")
            ctypes.memmove(target, origin, nbytes)
            if kind == "h2d":
                self.order.append(destination_offset)
            if action == "corrupt":
                byte = ctypes.c_ubyte.from_address(target)
                byte.value ^= 0x40

        return stream.enqueue(move, waits=waits, name=name)


def device_kinds() -> list[str]:
    """The kinds :func:`make_device` can make."""
    return ["host", "island", "cuda"]


def make_device(kind: str) -> Device:
    """A new device; ``cuda`` is one of the software driver."""
    if kind == "cuda":
        return _cuda()
    return {"host": partial(HostDevice, workers=2), "island": partial(IslandDevice, workers=2)}[
        kind
    ]()


def software_driver() -> Any:
    """The software CUDA driver, loaded into this process in place of the real one."""
    folder = str(Path(__file__).parents[1] / "cuda_driver")
    if folder not in sys.path:
        sys.path.append(folder)
    import software_driver as module

    global _driver
    if _driver is None:
        _driver = module.SoftwareDriver(module.build())
    return _driver


_driver: Any = None


def _cuda() -> Device:
    software_driver()
    from gristmill.runtime.devices.cuda import CudaDevice

    return CudaDevice(0)
