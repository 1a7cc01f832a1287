# SPDX-License-Identifier: Apache-2.0
"""Interrupts at every place of the runtime's hand-overs: nothing is lost, and what is left works on."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interrupts import interrupted, places

from gristmill.runtime.devices.host import HostDevice, HostStream
from gristmill.runtime.events import Event, when_done
from gristmill.runtime.workers import WorkerPool

LIMIT = 20.0

#: An interrupt in a weak reference's callback goes no further.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_pool_works_on_after_an_interrupted_submit() -> None:
    pool = WorkerPool(1)

    def begin() -> Callable[[], object]:
        nonlocal pool
        pool = WorkerPool(1)
        return lambda: pool.submit(lambda: None)

    for place in places(begin):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(LIMIT), place
        pool.close()
        assert pool._free == len(pool._threads) <= 1, place
    pool.close()


def test_a_thread_that_an_interrupt_kept_from_the_list_ends() -> None:
    """Else it would take the sign to end that is another's."""
    before = alive()
    pool = WorkerPool(2)

    def begin() -> Callable[[], object]:
        nonlocal pool
        pool = WorkerPool(2)
        return lambda: pool.submit(lambda: None)

    for _ in places(begin):
        pool.close()
    pool.close()
    for thread in alive() - before:
        thread.join(LIMIT)
        assert not thread.is_alive()


def alive() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def test_events_lose_no_callback() -> None:
    """Of C functions, which cannot be interrupted when they start."""
    ran: list[Event] = []
    event = Event()

    def begin() -> Callable[[], object]:
        nonlocal event
        event = Event()
        ran.clear()
        for _ in range(3):
            event.add_callback(ran.append)
        return event.complete

    for place in places(begin):
        assert len(ran) == (3 if event.done else 0), place
        event.complete()
        assert ran == [event] * 3, place


def test_nor_do_events_that_callbacks_complete() -> None:
    ran: list[Event] = []
    inner = outer = Event()

    def begin() -> Callable[[], object]:
        nonlocal inner, outer
        inner, outer = Event(), Event()
        ran.clear()
        outer.add_callback(lambda _: inner.complete())
        inner.add_callback(ran.append)
        outer.add_callback(ran.append)
        return outer.complete

    for place in places(begin):
        assert not outer.done or outer in ran, place
        assert not inner.done or inner in ran, place


def test_the_last_of_several_events_is_counted() -> None:
    """An interrupt before the count ends the callback; after it, what is waited for comes all the same."""
    gate = threading.Lock()

    def begin() -> Callable[[], object]:
        nonlocal gate
        event, gate = Event(), threading.Lock()
        gate.acquire()
        when_done([event], gate.release)
        assert event._callbacks is not None
        count = event._callbacks[0]
        return lambda: count(event)

    assert [gate.locked() for _ in places(begin)][:4] == [True, True, False, False]


@pytest.fixture
def device() -> Any:
    with HostDevice(workers=2) as made:
        yield made


ORDERS: dict[str, Callable[[HostStream], object]] = {
    "enqueue": lambda stream: stream.enqueue(lambda: None),
    "record": lambda stream: stream.record_event(),
    "wait": lambda stream: stream.wait_event(Event.past("over")),
    "claim": lambda stream: (stream.claim(stream), stream.unclaim(stream)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_stream_works_on_after_an_interrupt(device: HostDevice, order: str) -> None:
    stream: Any = None

    def begin() -> Callable[[], object]:
        nonlocal stream
        stream = device.create_stream(order)
        return lambda: ORDERS[order](stream)

    for place in places(begin):
        if order == "claim":
            stream.unclaim(stream)  # what its caller does
        stream.enqueue(lambda: None, name=f"after {place}").wait(LIMIT)
        stream.close(LIMIT)


def test_a_copy_at_once_that_is_interrupted_leaves_the_stream_to_others(
    device: HostDevice,
) -> None:
    values = np.arange(8, dtype=np.uint8)
    allocation = device.allocate(8)
    stream: Any = None

    def begin() -> Callable[[], object]:
        nonlocal stream
        stream = device.create_stream("copies")
        address = allocation.address
        return lambda: device.move_now((), address, values.ctypes.data, 8, "h2d", stream, ())

    for place in places(begin):
        stream.enqueue(lambda: None, name=f"after {place}").wait(LIMIT)
        stream.close(LIMIT)
    assert ctypes.string_at(allocation.address, 8) == values.tobytes()
    allocation.drop()


def test_work_that_the_interrupted_thread_did_for_others_ends(device: HostDevice) -> None:
    """Where there are no threads, who gives a stream back does the work that came meanwhile."""
    device._pool.close()
    stream: Any = None
    events: list[Event] = []

    def begin() -> Callable[[], object]:
        nonlocal stream, events
        stream = device.create_stream("without threads")
        assert stream.claim(stream)
        events = [stream.enqueue(lambda: None) for _ in range(3)]
        return lambda: stream.unclaim(stream)

    for place in places(begin):
        stream.unclaim(stream)  # as all do that are interrupted
        for event in events:
            assert event.block(LIMIT), place
        stream.close(LIMIT)


def test_places_are_found() -> None:
    """Of the helper: a function of two calls is interrupted before it begins and after each."""
    steps: list[str] = []

    def action() -> None:
        steps.append("one")
        steps.append("two")

    seen: list[list[str]] = []
    place = 0
    while interrupted(action, place):
        seen.append(steps.copy())
        steps.clear()
        place += 1
    assert seen == [[], ["one"], ["one", "two"]]
