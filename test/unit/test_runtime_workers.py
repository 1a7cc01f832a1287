# SPDX-License-Identifier: Apache-2.0
"""Worker pools: nothing waits behind a blocked worker while another could be started."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

from gristmill.runtime.workers import WorkerPool

LIMIT = 20.0


def test_work_does_not_wait_behind_a_blocked_worker():
    """Given just when the waiting worker has taken the piece before, and before it can say so."""
    pool = WorkerPool(2)
    gate, ran, started = threading.Event(), threading.Event(), threading.Event()
    pool.submit(started.set)
    assert started.wait(LIMIT)
    time.sleep(0.05)  # the worker waits for work again
    with pool._lock:
        pool.submit(lambda: gate.wait(LIMIT) and None)
        while not pool._queue.empty():
            time.sleep(0.001)
        pool.submit(ran.set)
    assert ran.wait(2), "it waits for the gate, though a second worker is allowed"
    gate.set()
    pool.close()


def test_threads_are_started_when_needed_only():
    others = set(threading.enumerate())
    pool = WorkerPool(8)
    for _ in range(50):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(LIMIT)
    # A thread that has set the event is busy for a moment longer, so that there may be some more.
    assert threading.active_count() < len(others) + 49
    counts = threading.Barrier(9)
    for _ in range(8):
        pool.submit(lambda: counts.wait(LIMIT) and None)
    counts.wait(LIMIT)
    pool.close()
    left = set(threading.enumerate()) - others
    assert not any(t.name.startswith("gristmill-worker") for t in left)


def test_a_closed_pool_runs_work_at_once():
    pool = WorkerPool(1)
    pool.close()
    threads: list[threading.Thread] = []
    pool.submit(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_forked_child_has_threads_of_its_own():
    pool = WorkerPool(2)
    started = threading.Event()
    pool.submit(started.set)
    assert started.wait(LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        done = threading.Event()
        pool.submit(done.set)
        os._exit(0 if done.wait(5) else 1)
    assert os.waitpid(child, 0)[1] == 0
    pool.close()


def test_without_more_threads_those_there_are_do_the_work(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    pool = WorkerPool(2)
    gate, ran = threading.Event(), threading.Event()
    pool.submit(lambda: gate.wait(LIMIT) and None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.submit(ran.set)
    assert not ran.is_set(), "it is queued behind the only thread"
    gate.set()
    assert ran.wait(LIMIT)
    pool.close()
