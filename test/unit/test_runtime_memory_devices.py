# SPDX-License-Identifier: Apache-2.0
"""Host allocator and pool on every kind of device."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from device_support import LIMIT

from gristmill.errors import GristmillError, ResourceExhaustedError
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import Device
from gristmill.runtime.memory.allocator import HostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool


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
