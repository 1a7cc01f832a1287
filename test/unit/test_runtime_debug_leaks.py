# SPDX-License-Identifier: Apache-2.0
"""The leak detector: every kind of thing, named by the line that opened it; nothing else."""

from __future__ import annotations

import gc
import inspect
import warnings

import numpy as np
import pytest
from device_support import LIMIT

from gristmill.runtime import observer
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.code import LoadedCode
from gristmill.runtime.debug import leaks
from gristmill.runtime.debug.leaks import LeakError, track
from gristmill.runtime.events import Event
from gristmill.runtime.layout import Shape
from gristmill.runtime.memory.allocator import BasicHostMemoryAllocator, HostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool
from gristmill.runtime.memory.registration import RegisteredRanges
from gristmill.runtime.memory.section_manager import ContiguousSectionMemoryManager, SectionRequest
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import Uploader


def line():
    return f"{__file__}:{inspect.currentframe().f_back.f_lineno}"


def test_what_is_closed_is_no_leak(device):
    with track(raises=True) as tracker:
        with (
            RawBuffer.allocate(device, 100) as made,
            made.slice(3, 5) as part,
            RawBuffer.from_host(device, np.arange(5)),
            device.create_stream() as stream,
        ):
            made.copy_from_host(np.zeros(100, np.uint8), stream=stream)
            part.copy_to_host(bytearray(5))  # not waited for: it ends by itself
            assert {leak.kind for leak in tracker.report.leaks} >= {"buffer", "memory", "stream"}
        with create_transfer_manager(device, [Shape.parse("u8[100]")]) as manager:
            manager.transfer_raw(0, np.zeros(100, np.uint8)).wait(LIMIT)
    assert str(tracker.report) == "no leaks"
    assert observer.active == ()


def test_buffers_by_site(device):
    with track(settle=0) as tracker:
        made = [RawBuffer.allocate(device, 1000) for _ in range(5)]
        site = line().rsplit(":", 1)
        part = made[0].slice(0, 10)
    expected = f"{site[0]}:{int(site[1]) - 1}"
    found = tracker.report.by_site()
    assert len(found[expected, "buffer"]) == 5
    assert tracker.report.nbytes == 5000
    assert {kind for _, kind in found} == {"buffer", "memory"}
    text = str(tracker.report)
    assert f"5 × buffer, 5000 B, opened at {expected}" in text
    assert "and 2 more" in text
    with pytest.raises(LeakError, match="11 things were not closed"):
        tracker.report.check()
    for buffer in (part, *made):
        buffer.close()


def test_deleted_without_close(device):
    with track(settle=0) as tracker:
        made = RawBuffer.allocate(device, 64)
        allocation, _ = made.storage
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del made
            gc.collect()
    lost = [leak for leak in tracker.report.leaks if leak.lost]
    assert [(leak.kind, leak.nbytes) for leak in lost] == [("buffer", 64)]
    assert "deleted without close" in str(tracker.report)
    allocation.drop()


def test_streams_managers_and_uploaders(device):
    with track(settle=0) as tracker:
        stream = device.create_stream("mine")
        uploader = Uploader(device)
        manager = create_transfer_manager(device, [Shape.parse("f32[10]")], uploader=uploader)
    kinds = [leak.kind for leak in tracker.report.leaks]
    assert {"stream", "uploader", "transfer manager"} <= set(kinds)
    assert "mine" in str(tracker.report)
    stream.close()
    manager.close()
    uploader.close()


def test_work_in_flight_gets_time_to_end(device):
    gate = Event("gate")
    with track(settle=0) as impatient:
        made = RawBuffer.allocate(device, 8)
        copy = made.copy_to_host(bytearray(8), waits=[gate])
        made.close()
    assert [leak.kind for leak in impatient.report.leaks] == ["memory"]
    gate.complete()
    copy.wait(LIMIT)
    with track() as tracker, RawBuffer.allocate(device, 8) as other:
        other.copy_to_host(bytearray(8))
    assert not tracker.report


def test_host_allocations_mappings_and_handles():
    ranges = RegisteredRanges(lambda *_: None, lambda *_: None)
    outside = HostMemoryPool(BasicHostMemoryAllocator(), track=True)
    with track(settle=0) as tracker, HostMemoryAllocator() as allocator:
        allocation = allocator.allocate(5000)
        registration = ranges.register(None, 4096, 4096)
        handle = outside.acquire("f32")
        site = line().rsplit(":", 1)
    report = tracker.report
    first = int(site[1]) - 3
    assert [(leak.kind, leak.site) for leak in report.leaks] == [
        ("host allocation", f"{site[0]}:{first}"),
        ("mapping", f"{site[0]}:{first + 1}"),
        ("pool handle", f"{site[0]}:{first + 2}"),
    ]
    (of_pool,) = leaks.of_pool(outside).leaks
    assert of_pool.site == f"{site[0]}:{first + 2}"
    for opened in (allocation, registration, handle):
        opened.close()
    assert not leaks.of_pool(outside)
    outside.close()


def test_what_a_pool_and_an_allocator_keep_is_theirs():
    maps: list[int] = []
    allocator = HostMemoryAllocator(
        map_range=lambda device, address, nbytes: maps.append(address),
        unmap_range=lambda device, address: maps.remove(address),
    )
    with HostMemoryPool(allocator) as pool, track(raises=True, settle=0):
        pool.acquire("f32").close()
        with pool.acquire("pred"):
            pass
        with allocator.allocate(9000):
            pass
    allocator.close()
    assert maps == []


def test_aliases_hold_their_memory(device):
    array = np.arange(4096, dtype=np.uint8)
    with track(settle=0) as tracker:
        made = RawBuffer.from_host(device, array, alias=Alias.WRITABLE)
    assert {leak.kind for leak in tracker.report.leaks} == {"buffer", "memory"}
    made.close()


def test_code():
    def load():
        memory = ContiguousSectionMemoryManager()
        memory.reserve(SectionRequest(10), SectionRequest(), SectionRequest())
        return LoadedCode(memory, {}, lambda: None)

    with track(settle=0) as tracker:
        load().close()
        code = load()
    (leak,) = tracker.report.leaks
    assert leak.kind == "code"
    assert leak.site.startswith(__file__)
    code.close()


def test_what_was_there_before_does_not_count(device):
    with RawBuffer.allocate(device, 10) as before, track(raises=True):
        with before.slice(0, 1):
            pass
        before.copy_to_host(bytearray(10)).wait(LIMIT)


def test_an_exception_is_not_hidden_by_leaks(device):
    made: list[RawBuffer] = []

    def program():
        with track(raises=True, settle=0):
            made.append(RawBuffer.allocate(device, 10))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        program()
    made[0].close()
