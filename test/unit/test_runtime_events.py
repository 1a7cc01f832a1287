# SPDX-License-Identifier: Apache-2.0
"""Events: states, callbacks, waiting, awaiting, poison."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import threading
import time
import traceback

import pytest

from gristmill.errors import DeadlineError, DependencyError
from gristmill.runtime import events, observer
from gristmill.runtime.events import (
    Event,
    EventState,
    all_of,
    dependency_error,
    failed,
    first_failed,
    ready,
    when_done,
)


def later(action, seconds=0.02):
    thread = threading.Timer(seconds, action)
    thread.start()
    return thread


def test_the_first_completion_decides():
    event = Event()
    assert event.state is EventState.PENDING
    assert not event.done
    assert event.error is None
    assert event.complete()
    assert not event.complete()
    assert not event.fail(ValueError("late"))
    assert event.ok
    assert event.error is None
    error = ValueError("first")
    event = failed(error)
    assert not event.complete()
    assert event.state is EventState.ERROR
    assert event.error is error
    assert not event.ok


def test_one_of_many_completions_wins():
    for _ in range(20):
        event = Event()
        start = threading.Barrier(4)
        wins = []

        def race(event=event, start=start, wins=wins):
            start.wait()
            wins.append(event.complete())

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(wins) == [False, False, False, True]


def test_callbacks_run_once_in_order_and_at_once_when_done():
    event, seen = Event(), []
    event.add_callback(lambda e: seen.append((1, e.ok)))
    event.add_callback(lambda e: seen.append((2, e.ok)))
    assert seen == []
    event.complete()
    event.complete()
    event.add_callback(lambda e: seen.append((3, e.ok)))
    assert seen == [(1, True), (2, True), (3, True)]


def test_a_failing_callback_is_reported_and_stops_nothing(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(error))
    event, seen = Event(), []
    event.add_callback(lambda e: 1 / 0)
    event.add_callback(lambda e: seen.append("ran"))
    event.complete()
    assert seen == ["ran"]
    assert [type(error) for error in reported] == [ZeroDivisionError]


def test_an_interrupt_in_a_callback_passes_after_the_others_ran():
    def interrupt(_):
        raise KeyboardInterrupt

    event, seen = Event(), []
    event.add_callback(interrupt)
    event.add_callback(lambda e: seen.append("ran"))
    with pytest.raises(KeyboardInterrupt):
        event.complete()
    assert seen == ["ran"]
    other = Event()
    other.add_callback(lambda e: seen.append("works on"))
    other.complete()
    assert seen == ["ran", "works on"]


def test_an_interrupt_between_callbacks_leaves_the_thread_able_to_run_others():
    """A signal may be handled at any line; here at each of the loop that runs callbacks."""
    lines, start = inspect.getsourcelines(events._dispatch)
    loop = [start + n for n, line in enumerate(lines) if "queue:" in line or "queue = " in line][
        -3:
    ]
    for line in loop:
        event, seen = Event(), []
        event.add_callback(lambda e, seen=seen: seen.append("ran"))
        before = sys.gettrace()
        sys.settrace(interrupting(events._dispatch.__code__, line))
        try:
            with pytest.raises(KeyboardInterrupt):
                event.complete()
        finally:
            sys.settrace(before)
        other = Event()
        other.add_callback(lambda e, seen=seen: seen.append("works on"))
        other.complete()
        assert seen == ["ran", "works on"]


def interrupting(code, line):
    """A trace function that raises ``KeyboardInterrupt`` where ``code`` gets to ``line``, once."""

    def trace(frame, kind, _):
        if frame.f_code is not code:
            return None
        if kind == "line" and frame.f_lineno == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


def test_wait_returns_raises_and_times_out():
    ready().wait(0)
    soon = Event()
    threading.Timer(0.05, soon.complete).start()
    soon.wait(math.inf)
    event = Event("slow thing")
    with pytest.raises(DeadlineError, match=r"slow thing is still pending after 0\.01 s"):
        event.wait(0.01)
    later(event.complete)
    event.wait(10)
    event = Event()
    later(lambda: event.fail(ValueError("broken")))
    with pytest.raises(ValueError, match="broken"):
        event.wait(10)


def test_a_timed_out_wait_leaves_no_callback():
    event = Event()
    for _ in range(3):
        with pytest.raises(DeadlineError):
            event.wait(0)
    assert not event._callbacks


def test_raising_again_does_not_lengthen_the_traceback():
    try:
        raise ValueError("once")
    except ValueError as error:
        event = failed(error)
    lengths = set()
    for _ in range(3):
        with pytest.raises(ValueError, match="once") as caught:
            event.wait()
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


def test_await_from_another_thread():
    async def main():
        good, bad = Event(), Event()
        later(good.complete)
        later(lambda: bad.fail(ValueError("broken")))
        await good
        await good  # again
        with pytest.raises(ValueError, match="broken"):
            await bad
        await asyncio.gather(*(all_of([good]) for _ in range(3)))

    asyncio.run(main())


def test_a_cancelled_await_stops_waiting_only():
    event = Event()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wrap(event), 0.01)

    async def wrap(event):
        await event

    asyncio.run(main())
    assert not event._callbacks
    event.complete()
    assert event.ok


def test_completion_after_the_loop_was_closed_is_harmless():
    event = Event()

    async def wrap():
        await event

    loop = asyncio.new_event_loop()
    task = loop.create_task(wrap())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    event.complete()
    assert event.ok
    task._log_destroy_pending = False


def test_two_loops_wait_for_one_event():
    event, done = Event(), []

    async def wrap():
        await event
        done.append(threading.get_ident())

    threads = [threading.Thread(target=lambda: asyncio.run(wrap())) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    event.complete()
    for thread in threads:
        thread.join(10)
    assert len(set(done)) == 2


def test_all_of():
    assert all_of([]).ok
    assert all_of([ready(), ready()]).ok
    one, two, three = Event("one"), Event("two"), Event("three")
    joined = all_of(iter([one, two, three]), "joined")
    two.fail(ValueError("second"))
    three.fail(KeyError("third"))
    assert not joined.done, "what they use may be freed after it, so it waits for all"
    one.complete()
    assert isinstance(joined.error, DependencyError)
    assert "joined was not run, because two failed; first: second" in str(joined.error)
    assert isinstance(joined.error.__cause__, ValueError)
    assert joined.error.__notes__ == ["three failed too: 'third'"]


def test_the_chain_of_causes_leads_to_the_first_failure():
    root = ValueError("root")
    event = failed(root, "producer")
    for step in range(3):
        event = failed(dependency_error(f"step {step}", event), f"step {step}")
    assert "first: root" in str(event.error)
    causes = []
    error = event.error
    while error is not None:
        causes.append(error)
        error = error.__cause__
    assert causes[-1] is root
    assert len(causes) == 4


def test_first_failed_and_when_done():
    bad = failed(ValueError())
    assert first_failed([ready(), bad]) is bad
    assert first_failed([ready(), Event()]) is None
    seen = []
    pending = Event()
    when_done([ready(), bad, pending], lambda: seen.append(1))
    assert seen == []
    pending.complete()
    assert seen == [1]
    when_done([], lambda: seen.append(2))
    assert seen == [1, 2]


def test_a_chain_of_any_length_needs_no_stack():
    first = event = Event()
    for _ in range(5000):
        event = all_of([event])
    first.fail(ValueError("root"))
    assert "first: root" in str(event.error)


def test_times_are_kept_for_observers_only():
    assert ready().completed_ns is None
    tool = observer.Observer()
    observer.install(tool)
    try:
        assert ready().completed_ns is not None
    finally:
        observer.uninstall(tool)
    assert observer.active == ()
    assert "pending" in repr(Event("x"))
