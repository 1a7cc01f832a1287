# SPDX-License-Identifier: Apache-2.0
"""Host allocator and pool on every kind of device."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from device_support import LIMIT, make_device

from gristmill.errors import DeviceError, GristmillError, ResourceExhaustedError
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import Device, MemorySpace
from gristmill.runtime.layout import Shape
from gristmill.runtime.memory.allocator import HostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import UploadOptions


def test_memory_is_registered_with_the_device(device: Device) -> None:
    with HostMemoryAllocator.for_device(device) as allocator:
        memory = allocator.allocate(10_000)
        assert memory.registered
        start = memory.address
        with pytest.raises(GristmillError):
            device.register_host(start - start % 4096, 4096)
        memory.close()
        with allocator.allocate(12_000) as again:
            assert again.address == start
        assert allocator.statistics().cache_hits == 1
    # It was unregistered at the end.
    with HostMemoryAllocator.for_device(device) as allocator, allocator.allocate(100) as memory:
        assert memory.registered


def test_errors_name_the_device(device: Device) -> None:
    with (
        HostMemoryAllocator.for_device(device, limit=8192) as allocator,
        pytest.raises(ResourceExhaustedError, match=f"'host memory of {device}' cannot allocate"),
    ):
        allocator.allocate(10_000)


def test_copies_use_the_memory(device: Device) -> None:
    with (
        HostMemoryAllocator.for_device(device) as allocator,
        allocator.allocate(40_000) as source,
        allocator.allocate(40_000) as target,
        RawBuffer.allocate(device, 40_000) as buffer,
    ):
        source.view(np.int32)[...] = np.arange(10_000)
        target.view()[...] = 0
        up = buffer.copy_from_host(source.view())
        buffer.copy_to_host(target.view(), waits=[up]).wait(LIMIT)
        np.testing.assert_array_equal(target.view(np.int32), np.arange(10_000))


def test_a_device_writes_predicates_into_slots(device: Device) -> None:
    with (
        HostMemoryAllocator.for_device(device) as allocator,
        HostMemoryPool(allocator, track=True) as pool,
        RawBuffer.allocate(device, 1) as buffer,
    ):
        for turn in range(20):
            up = buffer.copy_from_host(np.array([turn < 19]))
            with pool.acquire("pred") as slot:
                assert not slot.value
                buffer.copy_to_host(slot.array, waits=[up]).wait(LIMIT)
                assert slot.value == (turn < 19)
        assert pool.leaks() == []
        assert pool.statistics().acquired == 20
        found = allocator.statistics().registrations
        assert found is not None
        assert found.maps == 1


def test_many_threads_share_the_pool_of_a_device(device: Device) -> None:
    faults: list[object] = []

    def work(number: int) -> None:
        try:
            with RawBuffer.allocate(device, 4) as buffer:
                for turn in range(25):
                    value = np.array(100 * number + turn, np.int32)
                    up = buffer.copy_from_host(value)
                    with pool.acquire("s32", timeout=LIMIT) as slot:
                        buffer.copy_to_host(slot.array, waits=[up]).wait(LIMIT)
                        if slot.value != value:
                            faults.append((slot.value, value))
        except GristmillError as error:
            faults.append(error)

    with (
        HostMemoryAllocator.for_device(device) as allocator,
        HostMemoryPool(allocator, cap=3) as pool,  # fewer slots than threads
    ):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert pool.statistics().in_use == 0
        assert pool.statistics().peak_in_use <= 3


def test_staging_memory_is_registered_once(device: Device) -> None:
    for _ in range(3):
        memory = device.allocate_staging(100_000)
        assert device.statistics().live_bytes == 100_000
        assert memory.host_address is not None
        assert memory.space is MemorySpace.PINNED
        memory.drop()
    found = device.host_allocator.statistics()
    assert (found.allocations, found.cache_hits, found.live_bytes) == (3, 2, 0)
    assert found.registrations is not None
    assert (found.registrations.ranges, found.registrations.maps) == (1, 1)


def test_managers_share_the_devices_staging_memory(device: Device) -> None:
    options = UploadOptions(chunk_bytes=4096, staging_bytes=16384, staged=True)
    data = np.arange(10_000, dtype=np.int32)
    for _ in range(3):
        with create_transfer_manager(
            device, [Shape.parse("s32[10000]")], upload=options
        ) as manager:
            manager.transfer_raw(0, data).wait(LIMIT)
    found = device.host_allocator.statistics()
    assert (found.allocations, found.cache_hits) == (3, 2)


def test_copies_between_devices_share_it_too(device: Device) -> None:
    data = np.arange(10_000, dtype=np.int32)
    with make_device("island") as other, RawBuffer.from_host(other, data) as source:
        for _ in range(2):
            with RawBuffer.allocate(device, data.nbytes) as target:
                out = np.zeros_like(data)
                target.copy_to_host(out, waits=[source.copy_to(target)]).wait(LIMIT)
            np.testing.assert_array_equal(out, data)
        if device.kind == "host" and type(device).__name__ == "HostDevice":
            return  # whose memory is copied to directly
        found = other.host_allocator.statistics()
        assert (found.allocations, found.cache_hits) == (2, 1)


def test_no_staging_memory_is_an_error(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_HOST_MEMORY_LIMIT", "50000")
    with pytest.raises(ResourceExhaustedError, match="GRISTMILL_HOST_MEMORY_LIMIT"):
        device.allocate_staging(100_000)
    monkeypatch.undo()
    monkeypatch.setattr(device, "find_host", lambda address, nbytes: None)
    with pytest.raises(DeviceError, match="does not reach"):
        device.allocate_staging(100_000)
    assert device.statistics().live_bytes == 0
    assert device.host_allocator.statistics().live_bytes == 0


def test_every_device_has_staging_memory_of_its_own(device: Device) -> None:
    with make_device("island") as other:
        mine, theirs = device.allocate_staging(4096), other.allocate_staging(4096)
        assert device.host_allocator is not other.host_allocator
        assert device.host_pool is not other.host_pool
        assert (mine.device, theirs.device) == (device, other)
        mine.drop()
        theirs.drop()
        assert other.host_allocator.statistics().allocations == 1
