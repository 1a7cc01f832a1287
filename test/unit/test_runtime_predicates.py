# SPDX-License-Identifier: Apache-2.0
"""Predicates and indices read through the device's pinned pool."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from device_support import LIMIT, make_device

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    InputError,
    ResourceExhaustedError,
)
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import leaks, races
from gristmill.runtime.events import Event
from gristmill.runtime.memory.pool import HostMemoryPool
from gristmill.runtime.predicates import PredicateReader


def settled(pool, slots=0):
    """Whether the pool comes to hold ``slots`` soon: a copy's end gives its slot back just after it."""
    deadline = time.monotonic() + LIMIT
    while pool.statistics().in_use != slots and time.monotonic() < deadline:
        time.sleep(0.001)
    return pool.statistics().in_use == slots


def test_predicates_and_indices(device):
    reader = PredicateReader(device)
    values = np.array([7, -3], np.int32)
    with (
        RawBuffer.from_host(device, np.array([False, True])) as flags,
        RawBuffer.from_host(device, values) as indices,
    ):
        assert [reader.read(flags, i, timeout=LIMIT) for i in (0, 1, 0)] == [False, True, False]
        assert [reader.read_index(indices, i, timeout=LIMIT) for i in (0, 4)] == [7, -3]
        assert reader.read_index(indices, 4, primitive="u8") == 0xFD
        with reader.start(indices, 0, "f32") as pending:
            assert pending.wait(LIMIT) == values[:1].view(np.float32)[0]
    assert settled(reader.pool)


def test_a_loop_reads_what_its_body_wrote(device):
    reader = PredicateReader(device)
    turns = 0
    with (
        RawBuffer.from_host(device, np.ones(1, np.bool_)) as predicate,
        device.create_stream() as stream,
    ):
        while reader.read(predicate, stream=stream, timeout=LIMIT):
            turns += 1
            predicate.copy_from_host(np.array([turns < 20]), stream=stream)
        assert turns == 20
    assert settled(reader.pool)
    assert reader.pool.statistics().acquired == 21
    found = device.host_allocator.statistics().registrations
    assert found is not None
    assert found.maps == 1


def test_it_waits_for_the_events_given(device):
    reader = PredicateReader(device)
    gate = Event("gate")
    with RawBuffer.from_host(device, np.zeros(1, np.bool_)) as predicate:
        written = predicate.copy_from_host(np.ones(1, np.bool_), waits=(gate,))
        pending = reader.start(predicate, after=(written,))
        assert not pending.event.done
        gate.complete()
        assert pending.wait(LIMIT)
        with pytest.raises(ClosedError):
            pending.wait(LIMIT)


def test_the_error_of_a_producer_is_the_cause(device):
    reader = PredicateReader(device)
    launch = Event("launch")
    launch.fail(ZeroDivisionError("by nothing"))
    with RawBuffer.from_host(device, np.ones(1, np.bool_)) as predicate:
        with pytest.raises(DependencyError, match="by nothing") as caught:
            reader.read(predicate, after=(launch,), timeout=LIMIT)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert reader.read(predicate, timeout=LIMIT)
    assert settled(reader.pool)


def test_a_slot_stays_taken_until_its_copy_has_ended(device):
    reader = PredicateReader(device)
    gate = Event("gate")
    with RawBuffer.from_host(device, np.ones(1, np.bool_)) as predicate:
        with pytest.raises(DeadlineError):
            reader.read(predicate, after=(gate,), timeout=0.01)
        reader.start(predicate, after=(gate,)).close()
        assert reader.pool.statistics().in_use == 2
        gate.complete()
        assert settled(reader.pool)


def test_a_slot_that_nobody_waits_for_is_not_given_to_another(device):
    reader = PredicateReader(device)
    gate = Event("gate")
    with RawBuffer.from_host(device, np.int32([7])) as seven:
        reader.start(seven, 0, "s32", after=(gate,))  # and dropped
        gc.collect()
        with reader.pool.acquire("s32") as other:
            other.value = 42

            def end():
                gate.complete()
                assert settled(reader.pool, slots=1)
                device.synchronize(LIMIT)

            with pytest.warns(ResourceWarning, match="s32 slot handle was dropped"):
                end()
            assert other.value == 42
    assert settled(reader.pool)


def test_misuse_takes_no_slot(device):
    reader = PredicateReader(device)
    with RawBuffer.from_host(device, np.ones(3, np.uint8)) as buffer:
        for offset in (3, -1, 1 << 64):
            with pytest.raises(InputError):
                reader.read(buffer, offset)
        with pytest.raises(InputError, match="outside the 3 bytes"):
            reader.read_index(buffer, 0)
        with (
            make_device("host") as other,
            RawBuffer.allocate(other, 1) as elsewhere,
            pytest.raises(InputError, match="is not on"),
        ):
            reader.read(elsewhere)
    with pytest.raises(ClosedError):
        reader.read(buffer)
    assert reader.pool.statistics().in_use == 0


def test_a_full_pool_is_an_error_or_waited_for(device):
    with HostMemoryPool(device.host_allocator, cap=1) as pool:
        reader = PredicateReader(device, pool)
        with RawBuffer.from_host(device, np.ones(1, np.bool_)) as predicate:
            held = pool.acquire("pred")
            with pytest.raises(ResourceExhaustedError, match="all 1 pred slots"):
                reader.read(predicate)
            threading.Timer(0.02, held.close).start()
            assert reader.read(predicate, timeout=LIMIT)


def test_many_threads_read_at_once(device):
    reader = PredicateReader(device)
    faults = []
    with RawBuffer.from_host(device, np.arange(8, dtype=np.int32)) as indices:

        def work(number):
            for _ in range(50):
                if reader.read_index(indices, 4 * number, timeout=LIMIT) != number:
                    faults.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert faults == []
    assert settled(reader.pool)


def test_the_debug_tools_find_nothing_to_complain_of(device):
    with leaks.track() as tracker, races.detect() as detector:
        reader = PredicateReader(device)
        gate = Event("gate")
        with RawBuffer.from_host(device, np.ones(1, np.bool_)) as predicate:
            late = reader.start(predicate, after=(gate,))
            late.close()
            gate.complete()
            late.event.block(LIMIT)
            for _ in range(5):
                assert reader.read(predicate, timeout=LIMIT)
    assert str(tracker.report) == "no leaks"
    assert detector.report() == ""


def test_the_pool_ends_with_its_device():
    with make_device("island") as device:
        pool = PredicateReader(device).pool
        with pool.acquire("pred"):
            pass
        assert device._registered
    assert not device._registered
    with pytest.raises(ClosedError):
        pool.acquire("pred")
    with pytest.raises(ClosedError):
        PredicateReader(device)
