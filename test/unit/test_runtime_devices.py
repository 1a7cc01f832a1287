# SPDX-License-Identifier: Apache-2.0
"""The rules every device keeps: memory, streams, copies, statistics."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from device_support import LIMIT

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    InputError,
    ResourceExhaustedError,
)
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace, check_range
from gristmill.runtime.devices.host import PARALLEL_BYTES, PIECE_BYTES, HostDevice
from gristmill.runtime.events import Event, all_of, failed, ready


def host_end(device, array, readonly=False):
    return device.host_memory(array.ctypes.data, array.nbytes, readonly=readonly, owner=array)


def upload(device, allocation, array, **options):
    end = host_end(device, array)
    try:
        return device.copy(allocation, 0, end, 0, array.nbytes, **options)
    finally:
        end.drop()


def download(device, allocation, nbytes, **options):
    array = np.zeros(nbytes, np.uint8)
    end = host_end(device, array)
    device.copy(end, 0, allocation, 0, nbytes, **options).wait(LIMIT)
    end.drop()
    return array


# Ranges


@pytest.mark.parametrize(
    ("offset", "nbytes", "message"),
    [
        (-1, 4, "offset -1 is negative"),
        (0, -4, "size -4 is negative"),
        (8, -4, "size -4 is negative"),
        (5, 4, r"bytes 5\.\.9 are outside the 8 bytes"),
        (9, 0, "outside"),
        (2**63 - 1, 2**63 - 1, "outside"),
        (2**64 - 4, 8, "outside"),
        (True, 4, "must be an int, not bool"),
        (0, np.int64(4), "must be an int, not int64"),
        (0, 4.0, "must be an int, not float"),
    ],
)
def test_bad_ranges(offset, nbytes, message):
    with pytest.raises(InputError, match=message):
        check_range("part", offset, nbytes, 8)


def test_good_ranges():
    for offset, nbytes in [(0, 8), (8, 0), (0, 0), (3, 5)]:
        check_range("part", offset, nbytes, 8)


# Memory


def test_allocations_are_aligned_and_counted(device):
    before = device.statistics()
    sizes = [1, 63, 4096, 100_000, 1 << 20]
    made = [device.allocate(size, space) for size in sizes for space in device.memory_spaces]
    assert all(allocation.address % device.alignment == 0 for allocation in made)
    now = device.statistics()
    assert now.live_bytes - before.live_bytes >= 2 * sum(sizes)
    assert now.live_allocations == before.live_allocations + len(made)
    for allocation in made:
        allocation.drop()
        assert allocation.closed
    after = device.statistics()
    assert after.live_bytes == before.live_bytes
    assert after.allocations == before.allocations + len(made)
    assert after.peak_bytes >= now.live_bytes


def test_nothing_may_be_allocated(device):
    empty = device.allocate(0)
    assert empty.nbytes == 0
    device.copy(empty, 0, empty, 0, 0).wait(LIMIT)
    empty.drop()


def test_bad_allocations(device):
    for size in (-1, True, 1.5, 1 << 63):
        with pytest.raises(InputError):
            device.allocate(size)
    with pytest.raises(InputError, match="has no host memory to allocate"):
        device.allocate(1, MemorySpace.HOST)
    with HostDevice(7) as other, other.create_stream() as stream, pytest.raises(InputError):
        device.allocate(1, stream=stream)


def test_an_impossible_size_is_a_typed_error(device):
    with pytest.raises(ResourceExhaustedError, match=str(device)):
        device.allocate(1 << 55)
    assert device.statistics().live_bytes == 0


def test_a_memory_limit_names_itself():
    with HostDevice(memory_limit=1000) as device:
        first = device.allocate(800)
        with pytest.raises(ResourceExhaustedError, match="800 of its memory_limit of 1000 bytes"):
            device.allocate(300)
        first.drop()
        device.allocate(900).drop()


def test_pinned_memory_is_visible_to_the_host(device):
    pinned = device.allocate(64, MemorySpace.PINNED)
    assert device.host_pointer(pinned)
    pinned.drop()
    with pytest.raises(ClosedError):
        device.host_pointer(pinned)


def test_holders_keep_memory():
    released = []
    with HostDevice() as device:
        allocation = DeviceAllocation(
            device, MemorySpace.DEVICE, 64, 8, lambda: released.append(1), owner="owner"
        )
        allocation.hold()
        allocation.drop()
        assert released == []
        done = Event()
        allocation.drop_after(done)
        assert released == []
        done.complete()
        assert released == [1]
        assert allocation.owner is None
        with pytest.raises(ClosedError):
            allocation.hold()
        with pytest.raises(ClosedError):
            allocation.drop()
        assert released == [1]


def test_host_memory_is_registered_once(device):
    array = np.zeros(8192, np.uint8)
    address = array.ctypes.data
    assert device.register_host(address, array.nbytes)
    with pytest.raises(InputError):
        device.register_host(address, array.nbytes)
    device.unregister_host(address)
    with pytest.raises(InputError):
        device.unregister_host(address)
    device.register_host(address, array.nbytes)
    device.unregister_host(address)


# Streams


def test_work_runs_in_order(device):
    seen = []
    with device.create_stream() as stream:
        for index in range(100):
            stream.enqueue(lambda index=index: seen.append(index))
        stream.synchronize(LIMIT)
        assert stream.idle
    assert seen == list(range(100))


def test_work_is_asynchronous(device):
    gate = threading.Event()
    with device.create_stream() as stream:
        event = stream.enqueue(lambda: gate.wait(LIMIT))
        assert not event.done
        assert not stream.idle
        with pytest.raises(DeadlineError):
            stream.synchronize(0.02)
        with pytest.raises(DeadlineError):
            device.synchronize(0.02)
        with pytest.raises(DeadlineError):
            stream.close(0.02)
        assert not stream.closed
        gate.set()
        event.wait(LIMIT)


def test_work_waits_for_events_of_anyone(device):
    seen, mine = [], Event()
    with device.create_stream() as one, device.create_stream() as two:
        first = one.enqueue(lambda: seen.append(1), waits=[mine])
        second = two.enqueue(lambda: seen.append(2), waits=[first, ready()])
        time.sleep(0.02)
        assert seen == []
        mine.complete()
        second.wait(LIMIT)
    assert seen == [1, 2]


def test_a_stream_waits_for_an_event(device):
    seen, mine = [], Event()
    with device.create_stream() as stream:
        stream.wait_event(mine)
        event = stream.enqueue(lambda: seen.append(1))
        time.sleep(0.02)
        assert seen == []
        mine.complete()
        event.wait(LIMIT)
        assert seen == [1]


def test_a_recorded_event_follows_what_was_given_before(device):
    gate = threading.Event()
    with device.create_stream() as stream:
        assert stream.record_event().done or stream.record_event().block(LIMIT)
        stream.enqueue(lambda: gate.wait(LIMIT))
        recorded = stream.record_event()
        assert not recorded.done
        gate.set()
        recorded.wait(LIMIT)


def test_many_streams_wait_in_circles_on_few_workers(device):
    """Each round every stream waits for all streams' events of the round before."""
    count, rounds = 6, 5
    seen = [0] * count
    streams = [device.create_stream(f"s{index}") for index in range(count)]
    before = [ready()]

    def step(index, expected):
        assert min(seen) >= expected
        seen[index] += 1

    for turn in range(rounds):
        before = [
            stream.enqueue(lambda i=index, t=turn: step(i, t), waits=before)
            for index, stream in enumerate(streams)
        ]
    all_of(before).wait(LIMIT)
    assert seen == [rounds] * count
    for stream in streams:
        stream.close(LIMIT)


def test_an_error_stays_with_its_work_where_order_is_no_dependency(device):
    seen = []
    with device.create_stream("loose", chain_errors=False) as stream:
        bad = stream.enqueue(lambda: 1 / 0, name="division")
        poisoned = stream.enqueue(lambda: seen.append(1), waits=[bad], name="consumer")
        good = stream.enqueue(lambda: seen.append(2))
        stream.wait_event(failed(ValueError("elsewhere")))
        after = stream.enqueue(lambda: seen.append(3))
        with pytest.raises(ZeroDivisionError):
            bad.wait(LIMIT)
        with pytest.raises(DependencyError, match="consumer was not run, because division failed"):
            poisoned.wait(LIMIT)
        assert poisoned.error.__cause__ is bad.error
        good.wait(LIMIT)
        after.wait(LIMIT)
        stream.synchronize(LIMIT)
        assert stream.error is None
    assert seen == [2, 3]


def test_an_error_stops_a_stream_that_chains_errors(device):
    seen = []
    with device.create_stream("strict") as stream:
        bad = stream.enqueue(lambda: 1 / 0)
        later = stream.enqueue(lambda: seen.append(1))
        recorded = stream.record_event()
        for event in (later, recorded):
            with pytest.raises(DependencyError):
                event.wait(LIMIT)
        assert later.error.__cause__ is bad.error
        assert stream.error is bad.error
        with pytest.raises(DependencyError):
            stream.synchronize(LIMIT)
        stream.recover()
        stream.enqueue(lambda: seen.append(2)).wait(LIMIT)
        assert stream.error is None
    assert seen == [2]


def test_a_failed_wait_stops_a_stream_that_chains_errors(device):
    seen = []
    with device.create_stream("strict") as stream:
        stream.wait_event(failed(ValueError("elsewhere"), "producer"))
        event = stream.enqueue(lambda: seen.append(1))
        with pytest.raises(DependencyError):
            event.wait(LIMIT)
        error = event.error
        while error.__cause__ is not None:
            error = error.__cause__
        assert isinstance(error, ValueError)
        stream.recover()
    assert seen == []


def test_an_error_passes_between_streams(device):
    seen = []
    with device.create_stream() as one, device.create_stream() as two:
        mine = Event("mine")
        first = one.enqueue(lambda: seen.append(1), waits=[mine], name="first")
        second = two.enqueue(lambda: seen.append(2), waits=[first], name="second")
        mine.fail(ValueError("root"))
        with pytest.raises(DependencyError, match="first: root"):
            second.wait(LIMIT)
        one.recover()
        two.recover()
    assert seen == []


def test_closed_streams_refuse_work(device):
    stream = device.create_stream()
    stream.close()
    stream.close()
    assert stream.closed
    with pytest.raises(ClosedError):
        stream.enqueue(lambda: None)


# Copies


@pytest.mark.parametrize("nbytes", [1, 1000, 300_000, PARALLEL_BYTES + PIECE_BYTES // 2 + 13])
def test_copies_up_across_and_down(device, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    one, two = device.allocate(nbytes), device.allocate(nbytes)
    up = upload(device, one, data)
    across = device.copy(two, 0, one, 0, nbytes, waits=[up])
    assert np.array_equal(download(device, two, nbytes, waits=[across]), data)
    one.drop()
    two.drop()


def test_copies_on_one_stream_need_no_events(device):
    data = np.arange(256, dtype=np.uint8)
    one, two = device.allocate(256), device.allocate(256)
    with device.create_stream() as stream:
        upload(device, one, data, stream=stream)
        device.copy(two, 10, one, 20, 100, stream=stream)
        assert np.array_equal(download(device, two, 256, stream=stream)[10:110], data[20:120])
    one.drop()
    two.drop()


def test_copies_are_checked_before_anything_moves(device):
    one, two = device.allocate(100), device.allocate(100)
    upload(device, one, np.ones(100, np.uint8)).wait(LIMIT)
    before = device.statistics().copies
    for arguments in [(one, 1, two, 0, 100), (one, 0, two, 1, 100), (one, -1, two, 0, 1)]:
        with pytest.raises(InputError):
            device.copy(*arguments)
    with pytest.raises(InputError, match="source and destination overlap"):
        device.copy(one, 0, one, 10, 50)
    device.copy(one, 0, one, 50, 50).wait(LIMIT)
    with HostDevice(7) as other:
        theirs = other.allocate(8)
        with pytest.raises(InputError, match="cannot be reached"):
            device.copy(one, 0, theirs, 0, 8)
        with other.create_stream() as stream, pytest.raises(InputError):
            device.copy(one, 0, two, 0, 8, stream)
        theirs.drop()
    fixed = host_end(device, np.zeros(8, np.uint8), readonly=True)
    with pytest.raises(InputError, match="read-only"):
        device.copy(fixed, 0, one, 0, 8)
    two.drop()
    for ends in [(one, 0, two, 0), (two, 0, one, 0)]:
        with pytest.raises(ClosedError):
            device.copy(*ends, 8)
    assert sum(device.statistics().copies.values()) == sum(before.values()) + 1
    assert download(device, one, 100).all()
    one.drop()


def test_memory_closed_during_a_copy_stays_until_its_end(device):
    one, two = device.allocate(1000), device.allocate(1000)
    mine = Event()
    event = device.copy(two, 0, one, 0, 1000, waits=[mine])
    one.drop()
    two.drop()
    assert device.statistics().live_allocations == 2
    assert not one.closed
    mine.complete()
    event.wait(LIMIT)
    deadline = time.monotonic() + LIMIT
    while not (one.closed and two.closed):
        assert time.monotonic() < deadline


def test_a_copy_that_waits_does_not_hold_up_others(device):
    one, two = device.allocate(8), device.allocate(8)
    never = Event()
    waiting = upload(device, one, np.ones(8, np.uint8), waits=[never])
    upload(device, two, np.ones(8, np.uint8)).wait(LIMIT)
    assert not waiting.done
    never.fail(ValueError("root"))
    with pytest.raises(DependencyError, match="first: root"):
        waiting.wait(LIMIT)
    one.drop()
    two.drop()


def test_a_poisoned_copy_moves_nothing(device):
    one = device.allocate(8)
    upload(device, one, np.ones(8, np.uint8)).wait(LIMIT)
    event = upload(device, one, np.zeros(8, np.uint8), waits=[failed(ValueError("root"))])
    with pytest.raises(DependencyError):
        event.wait(LIMIT)
    assert download(device, one, 8).all()
    one.drop()
    assert device.statistics().failures == 1


def test_copies_are_counted_by_kind(device):
    one, two = device.allocate(64), device.allocate(64)
    upload(device, one, np.zeros(64, np.uint8)).wait(LIMIT)
    device.copy(two, 0, one, 0, 32).wait(LIMIT)
    download(device, two, 16)
    statistics = device.statistics()
    assert statistics.copies == {"h2d": 1, "d2d": 1, "d2h": 1}
    assert statistics.copied_bytes == {"h2d": 64, "d2d": 32, "d2h": 16}
    one.drop()
    two.drop()


# Life


def test_a_closed_device_refuses_everything():
    device = HostDevice()
    stream = device.create_stream()
    seen = []
    stream.enqueue(lambda: (time.sleep(0.02), seen.append(1)))
    device.close()
    device.close()
    assert seen == [1], "closing waits for work"
    assert stream.closed
    for action in (lambda: device.allocate(1), device.create_stream):
        with pytest.raises(ClosedError, match="host:0 was closed"):
            action()


def test_an_exit_in_a_callback_leaves_the_stream_running(device, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(kind))
    gate = threading.Event()
    with device.create_stream("callbacks") as stream:
        first = stream.enqueue(lambda: gate.wait(LIMIT))
        first.add_callback(lambda _: sys.exit(3))
        gate.set()
        first.wait(LIMIT)
        stream.enqueue(lambda: None).wait(LIMIT)
    assert reported == [SystemExit]


def test_a_system_without_more_threads_stops_nothing(device, monkeypatch):
    """The host runs the work on the calling thread; CUDA refuses what it could not see the end of."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    ran = []
    with device.create_stream("threads") as stream:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            if device.kind == "cuda":
                with pytest.raises(ResourceExhaustedError, match="can't start new thread"):
                    stream.enqueue(lambda: ran.append(1))
            else:
                stream.enqueue(lambda: ran.append(1)).wait(LIMIT)
                assert ran == [1]
        ran.clear()
        stream.enqueue(lambda: ran.append(2)).wait(LIMIT)
    assert ran == [2]


def test_an_interrupted_stream_works_on(monkeypatch):
    """The work ran on the main thread, where a signal may be handled at any time."""
    with HostDevice(workers=2) as device, device.create_stream("interrupted") as stream:
        with monkeypatch.context() as patch:
            patch.setattr(stream, "_finish", lambda task: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                stream.record_event()
        stream.enqueue(lambda: None).wait(LIMIT)


def test_a_device_is_closed_once_by_many_threads():
    gate = threading.Event()
    closed = []

    class Counting(HostDevice):
        def _close(self):
            closed.append(gate.is_set())
            super()._close()

    device = Counting(workers=2)
    device.transfer_stream("h2d").enqueue(lambda: gate.wait(LIMIT))
    threads = [threading.Thread(target=device.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert all(thread.is_alive() for thread in threads), "closed is what nothing runs on any more"
    gate.set()
    for thread in threads:
        thread.join(LIMIT)
    assert closed == [True]


def test_workers_are_checked():
    with pytest.raises(InputError, match="at least 1 worker"):
        HostDevice(workers=0)


def test_one_worker_is_enough():
    with HostDevice(workers=1) as device:
        one, two = device.create_stream(), device.create_stream()
        event = one.enqueue(lambda: None)
        for _ in range(50):
            event = two.enqueue(lambda: None, waits=[event])
            event = one.enqueue(lambda: None, waits=[event])
        event.wait(LIMIT)


def test_a_long_chain_of_waiting_copies_needs_no_stack(device):
    one, two = device.allocate(8), device.allocate(8)
    upload(device, one, np.full(8, 7, np.uint8)).wait(LIMIT)
    start = event = Event()
    for _ in range(400):
        event = device.copy(two, 0, one, 0, 8, waits=[event])
        event = device.copy(one, 0, two, 0, 8, waits=[event])
    start.complete()
    event.wait(LIMIT)
    assert (download(device, one, 8) == 7).all()
    one.drop()
    two.drop()
