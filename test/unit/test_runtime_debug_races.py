# SPDX-License-Identifier: Apache-2.0
"""The race detector: silent on correct programs, and a report of both sides of each seeded race."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading

import numpy as np
import pytest
from device_support import LIMIT, FaultyDevice, make_device

from gristmill.errors import DependencyError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import races
from gristmill.runtime.debug.accesses import declare, touch
from gristmill.runtime.debug.races import RaceError, detect
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.events import Event, all_of
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfer_state import TransferOptions
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import UploadOptions

SIZE = 1024


def data(nbytes=SIZE, value=7):
    return np.full(nbytes, value, np.uint8)


@pytest.fixture
def buffer(device):
    with RawBuffer.allocate(device, SIZE) as made:
        yield made


def expect_race(detector, accesses, sites=2):
    """One conflict, of the given accesses, whose sites are lines of this file."""
    (conflict,) = detector.conflicts
    assert (conflict.first.access, conflict.second.access) == accesses, detector.report()
    files = [side.site.file for side in (conflict.first, conflict.second) if side.site]
    assert files == [__file__] * sites, detector.report()
    return conflict


# Ten seeded races. Each is given twice: with its order, silent, and without, reported.


@pytest.mark.parametrize("correct", [True, False])
def test_seed_1_two_uploads_of_the_same_bytes(device, buffer, correct):
    with detect() as detector:
        first = buffer.copy_from_host(data())
        second = buffer.copy_from_host(data(value=9), waits=[first] if correct else [])
        all_of([first, second]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        expect_race(detector, ("write", "write"))


@pytest.mark.parametrize("correct", [True, False])
def test_seed_2_download_before_the_upload_is_there(device, correct):
    out = data()
    with detect() as detector, RawBuffer.allocate(device, SIZE) as buffer:
        event = buffer.copy_from_host(data())
        last = buffer.copy_to_host(out, waits=[event] if correct else [])
        all_of([event, last]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        conflict = expect_race(detector, ("write", "read"))
        here = inspect.currentframe().f_lineno
        assert conflict.first.site.line == here - 7
        assert conflict.second.site.line == here - 6
        assert "copy" in conflict.first.operation
        assert f"bytes 0..{SIZE} of {SIZE} B" in str(conflict)


@pytest.mark.parametrize("correct", [True, False])
def test_seed_3_reuse_of_a_buffer_that_is_still_read(device, buffer, correct):
    out = data()
    with detect() as detector:
        buffer.copy_from_host(data()).wait(LIMIT)
        read = buffer.copy_to_host(out)
        if correct:
            read.wait(LIMIT)
        write = buffer.copy_from_host(data(value=3))
        all_of([read, write]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        expect_race(detector, ("read", "write"))


@pytest.mark.parametrize("correct", [True, False])
def test_seed_4_streams_without_an_event_between_them(device, buffer, correct):
    with (
        detect() as detector,
        device.create_stream("one") as one,
        device.create_stream("two") as two,
    ):
        first = buffer.copy_from_host(data(), stream=one)
        if correct:
            two.wait_event(first)
        buffer.copy_from_host(data(value=5), stream=two)
    if correct:
        assert detector.conflicts == []
    else:
        conflict = expect_race(detector, ("write", "write"))
        assert (conflict.first.place, conflict.second.place) == ("one", "two")


@pytest.mark.parametrize("correct", [True, False])
def test_seed_5_event_recorded_too_early(device, buffer, correct):
    with (
        detect() as detector,
        device.create_stream("one") as one,
        device.create_stream("two") as two,
    ):
        early = one.record_event()
        buffer.copy_from_host(data(), stream=one)
        two.wait_event(one.record_event() if correct else early)
        buffer.copy_to_host(data(), stream=two)
    assert len(detector.conflicts) == (0 if correct else 1)


@pytest.mark.parametrize("correct", [True, False])
def test_seed_6_parts_that_overlap_by_one_byte(device, correct):
    with detect() as detector, RawBuffer.allocate(device, SIZE) as buffer:
        low = buffer.copy_from_host(data(512))
        start = 512 if correct else 511
        high = buffer.copy_from_host(data(512), start)
        all_of([low, high]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        conflict = expect_race(detector, ("write", "write"))
        assert conflict.stop - conflict.start == 1
        assert "bytes 511..512" in str(conflict)


@pytest.mark.parametrize("correct", [True, False])
def test_seed_7_through_two_views(device, buffer, correct):
    other = RawBuffer.allocate(device, SIZE)
    with detect() as detector, buffer.slice(0, 600) as left, buffer.slice(400, 600) as right, other:
        other.copy_from_host(data()).wait(LIMIT)
        event = left.copy_to(other, nbytes=600)
        last = other.copy_to(right, 0, 600, waits=[event] if correct else [])
        all_of([event, last]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        assert len(detector.conflicts) == 2, "the other buffer and the shared part of the views"


@pytest.mark.parametrize("correct", [True, False])
def test_seed_8_host_changes_the_source_of_an_upload(device, buffer, correct):
    source = data()
    with detect() as detector:
        event = buffer.copy_from_host(source)
        if correct:
            event.wait(LIMIT)
        source += 1
        touch(writes=[source])
        event.wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        conflict = expect_race(detector, ("read", "write"))
        assert conflict.second.operation == "host access"


@pytest.mark.parametrize("correct", [True, False])
def test_seed_9_host_work_on_a_stream(device, buffer, correct):
    with detect() as detector, device.create_stream("work") as stream:
        event = buffer.copy_from_host(data())
        waits = [event] if correct else []
        work = stream.enqueue(lambda: None, waits=waits, name="kernel")
        declare(work, stream, writes=[buffer])
        all_of([event, work]).wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        assert expect_race(detector, ("write", "write")).second.operation == "kernel"


@pytest.mark.parametrize("correct", [True, False])
def test_seed_10_a_buffer_that_a_manager_fills(device, correct):
    """Chunks come after the reader was given; it waits for the definition, or sees memory anyway."""
    with detect() as detector:
        given = RawBuffer.allocate(device, SIZE)
        manager = create_transfer_manager(device, [Shape.parse(f"u8[{SIZE}]")], buffers=[given])
        with given, manager, manager.retrieve_buffer(0) as filled:
            reader = (filled if correct else given).copy_to_host(data())
            manager.transfer_chunk(0, data(512), 512)
            manager.transfer_chunk(0, data(512), 0)
            reader.wait(LIMIT)
            filled.definition.wait(LIMIT)
    if correct:
        assert detector.conflicts == []
    else:
        conflict = detector.conflicts[0]
        assert (conflict.first.access, conflict.second.access) == ("read", "write")
        assert {conflict.first.site.file, conflict.second.site.file} == {__file__}


# More that is correct


def test_many_chunks_with_verification_and_retries(device):
    shape = Shape.parse("u8[100000]")
    upload = UploadOptions(chunk_bytes=4096, staging_bytes=3 * 4096, verify=True, staged=True)
    with (
        detect() as detector,
        create_transfer_manager(device, [shape, shape], upload=upload) as manager,
    ):
        for start in range(0, 100000, 10000):
            for index in range(2):
                manager.transfer_chunk(index, data(10000), start)
        with manager.retrieve_buffer(1) as filled:
            filled.copy_to_host(data(100000)).wait(LIMIT)
    assert detector.report() == ""


def test_pieces_that_are_sent_again():
    with FaultyDevice() as device, detect() as detector:
        device.script = {("h2d", 1): "corrupt", ("h2d", 3): "fail", ("d2h", 2): "fail"}
        upload = UploadOptions(
            chunk_bytes=1000, staging_bytes=2000, verify=True, retries=2, staged=True
        )
        shape = Shape.parse("u8[6000]")
        with create_transfer_manager(device, [shape], upload=upload) as manager:
            manager.transfer_raw(0, data(6000)).wait(LIMIT)
            assert manager.uploader.statistics().retries == 3
    assert detector.report() == ""


def test_manager_wait_orders_the_host(device):
    with (
        detect() as detector,
        RawBuffer.allocate(device, SIZE) as given,
        create_transfer_manager(device, [Shape.parse(f"u8[{SIZE}]")], buffers=[given]) as manager,
    ):
        manager.transfer_raw(0, data())
        manager.wait(LIMIT)
        given.copy_to_host(data()).wait(LIMIT)
    assert detector.report() == ""


def test_callback_that_tells_another_thread(device):
    told = threading.Event()
    with detect() as detector, RawBuffer.allocate(device, SIZE) as given:
        shape = Shape.parse(f"u8[{SIZE}]")
        with create_transfer_manager(device, [shape], buffers=[given]) as manager:
            manager.transfer_raw(0, data(), on_done=lambda _: told.set())
            assert told.wait(LIMIT)
            event = given.copy_from_host(data())
            told.clear()
            event.add_callback(lambda _: told.set())
            assert told.wait(LIMIT)
            given.copy_to_host(data()).wait(LIMIT)
    assert detector.report() == ""


def test_polling_orders_the_host(device, buffer):
    with detect() as detector, device.create_stream() as stream:
        event = buffer.copy_from_host(data(), stream=stream)
        while not event.done:
            pass
        event = buffer.copy_from_host(data())
        while not event.ok:
            pass
        buffer.copy_from_host(data(), stream=stream)
        while not stream.idle:
            pass
        buffer.copy_from_host(data())
    assert detector.report() == ""


def test_synchronize_and_close_order_the_host(device, buffer):
    with detect() as detector:
        buffer.copy_from_host(data())
        device.synchronize(LIMIT)
        stream = device.create_stream()
        buffer.copy_from_host(data(), stream=stream)
        stream.synchronize(LIMIT)
        buffer.copy_from_host(data()).wait(LIMIT)
        buffer.copy_from_host(data(), stream=stream)
        stream.close()
        buffer.copy_from_host(data()).wait(LIMIT)
    assert detector.report() == ""


def test_await_orders_the_host(device, buffer):
    async def program():
        await buffer.copy_from_host(data())
        await all_of([buffer.copy_to_host(data()), buffer.copy_to_host(data())])
        await buffer.copy_from_host(data())

    with detect() as detector:
        asyncio.run(program())
    assert detector.report() == ""


def test_events_of_the_program_order_work(device, buffer):
    gate = Event("gate")
    with detect() as detector:
        late = buffer.copy_to_host(data(), waits=[gate])
        buffer.copy_from_host(data()).wait(LIMIT)
        gate.complete()
        late.wait(LIMIT)
    assert detector.report() == ""


def test_an_event_that_is_completed_too_early(device, buffer):
    gate = Event("gate")
    with detect() as detector:
        late = buffer.copy_to_host(data(), waits=[gate])
        gate.complete()
        buffer.copy_from_host(data()).wait(LIMIT)
        late.wait(LIMIT)
    expect_race(detector, ("read", "write"))


def test_work_given_by_work_and_callbacks(device, buffer):
    given: list[Event] = []
    with detect() as detector, device.create_stream() as stream:
        buffer.copy_from_host(data(), stream=stream)
        nested = stream.enqueue(lambda: given.append(buffer.copy_to_host(data())))
        nested.wait(LIMIT)
        given[0].wait(LIMIT)
    assert detector.report() == ""


def test_readers_together_and_staged_copies(device, buffer):
    with make_device("island") as other, RawBuffer.allocate(other, SIZE) as away:
        with detect() as detector:
            buffer.copy_from_host(data()).wait(LIMIT)
            reads = [buffer.copy_to_host(data()) for _ in range(5)]
            there = buffer.copy_to(away)
            all_of([*reads, there]).wait(LIMIT)
            away.copy_to(buffer).wait(LIMIT)
        assert detector.report() == ""


def test_memory_that_is_used_again_is_another(device):
    with detect() as detector:
        for _ in range(20):
            with RawBuffer.allocate(device, SIZE) as made:
                made.copy_from_host(data())
            made = RawBuffer.allocate(device, SIZE, MemorySpace.PINNED)
            out = np.zeros(SIZE, np.uint8)
            made.copy_to_host(out)
            made.close()
            del out
            gc.collect()
    assert detector.report() == ""


def test_host_views_are_the_same_memory(device, buffer):
    array = data(2 * SIZE)
    with detect() as detector:
        first = buffer.copy_to_host(array[10 : 10 + SIZE])
        gc.collect()
        second = buffer.copy_to_host(array[: SIZE - 10])
        all_of([first, second]).wait(LIMIT)
    conflict = expect_race(detector, ("write", "write"))
    assert conflict.stop - conflict.start == SIZE - 20


def test_work_that_is_not_run_touches_nothing(device, buffer):
    gate = Event("gate")
    with detect() as detector:
        pending = buffer.copy_to_host(data(), waits=[gate])
        gate.fail(ValueError("lost"))
        late = buffer.copy_to_host(data(), waits=[gate])
        write = buffer.copy_from_host(data(), waits=[pending])
        after = buffer.copy_from_host(data())
        for event in (pending, late, write):
            with pytest.raises(DependencyError):
                event.wait(LIMIT)
        after.wait(LIMIT)
    assert detector.report() == ""


# Reports and cost


def test_repeated_races_are_one_with_a_count(device, buffer):
    with detect() as detector:
        for _ in range(4):
            buffer.copy_from_host(data())
        device.synchronize(LIMIT)
    (conflict,) = detector.conflicts
    assert conflict.count >= 3
    with pytest.raises(RaceError, match=r"conflicting accesses were found\nrace on 1024 bytes at"):
        detector.check()


def test_a_race_ends_the_block_with_an_error(device, buffer):
    def program():
        with detect(raises=True):
            buffer.copy_from_host(data())
            buffer.copy_from_host(data())
            device.synchronize(LIMIT)

    with pytest.raises(RaceError):
        program()
    assert observer.active == ()


def test_long_runs_need_no_more_memory():
    with HostDevice(workers=2) as device, detect() as detector:
        with RawBuffer.allocate(device, SIZE) as made, device.create_stream() as stream:
            for _ in range(300):
                event = made.copy_from_host(data())
                made.copy_to_host(data(), stream=stream, waits=[event]).wait(LIMIT)
        timelines = detector._timelines
        assert len(timelines) < 10
        assert len(detector._shadow) < 20
    assert detector.report() == ""


def test_every_seed_is_there():
    """Ten seeds, as promised."""
    seeds = [name for name in globals() if name.startswith("test_seed_")]
    assert len(seeds) == 10
    assert races.MOST_CONFLICTS > 0
    assert TransferOptions().overlaps == "reject"
