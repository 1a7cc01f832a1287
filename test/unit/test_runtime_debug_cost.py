# SPDX-License-Identifier: Apache-2.0
"""The debug tools' promise: a copy takes less than twice as long while one of them watches.

Measured in processor time of this process, as the median of ratios of neighbouring batches, so that other
load on the machine does not matter. What it does to the caches does: hence the tolerance, and three tries.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest

from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug.leaks import LeakTracker
from gristmill.runtime.debug.races import RaceDetector
from gristmill.runtime.debug.timeline import Recording
from gristmill.runtime.devices.host import HostDevice

PROMISE, TOLERANCE = 2.0, 1.2
TRIES, ROUNDS = 3, 9


def seconds(call, count):
    begun = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - begun


def slowdown(call, make, count):
    """How many times as long ``call`` takes with a tool of ``make`` than without."""
    ratios = []
    for _ in range(ROUNDS):
        before = seconds(call, count)
        tool = make()
        observer.install(tool)
        try:
            watched = seconds(call, count)
        finally:
            observer.uninstall(tool)
        after = seconds(call, count)
        ratios.append(2 * watched / (before + after))
    return statistics.median(ratios)


@pytest.mark.parametrize("nbytes", [4 << 10, 64 << 10, 1 << 20])
@pytest.mark.parametrize("make", [LeakTracker, Recording, RaceDetector])
def test_on_a_copy_takes_less_than_twice_as_long(make, nbytes):
    data = np.ones(nbytes, np.uint8)
    count = 1 + (8 << 20) // (nbytes + (8 << 10))
    with HostDevice() as device, RawBuffer.allocate(device, nbytes) as buffer:

        def copy():
            buffer.copy_from_host(data).wait()

        found = []
        for _ in range(TRIES):
            found.append(slowdown(copy, make, count))
            if found[-1] < PROMISE * TOLERANCE:
                return
    pytest.fail(f"{make.__name__}: {found} times as long")


def test_what_is_only_noted_is_bounded(monkeypatch):
    """A program of any length needs no more memory for the race detector's notes."""
    from gristmill.runtime.debug import order

    monkeypatch.setattr(order, "MOST_NOTED", 50)
    detector = RaceDetector()
    observer.install(detector)
    try:
        with HostDevice() as device, RawBuffer.allocate(device, 64) as buffer:
            most = 0
            for _ in range(200):
                buffer.copy_from_host(bytes(64)).wait()
                most = max(most, len(detector._log))
    finally:
        observer.uninstall(detector)
    assert most <= 53
    assert detector.conflicts == []
    assert len(detector._timelines) < 5
