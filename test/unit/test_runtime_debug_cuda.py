# SPDX-License-Identifier: Apache-2.0
"""Debug tools on what only CUDA devices have: kernels and graphs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from device_support import LIMIT, make_device, software_driver

from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug.leaks import track
from gristmill.runtime.debug.races import detect
from gristmill.runtime.debug.timeline import record

COUNT = 500
GRID, BLOCK = (2,), (256,)


@pytest.fixture
def cuda():
    software_driver()
    with make_device("cuda") as device:
        yield device


@pytest.fixture
def kernel(cuda):
    from software_driver import PTX

    with cuda.load_module(PTX) as module:
        yield module.kernel("saxpy")


def filled(device):
    return RawBuffer.from_host(device, np.ones(COUNT, np.float32), block=False)


@pytest.mark.parametrize("correct", [True, False])
def test_kernels_race_with_copies(cuda, kernel, correct):
    out = np.zeros(COUNT, np.float32)
    with (
        detect() as detector,
        cuda.create_stream("k") as stream,
        filled(cuda) as x,
        filled(cuda) as y,
    ):
        launched = kernel.launch(stream, GRID, BLOCK, (y, x, 2.0, COUNT))
        y.copy_to_host(out, waits=[launched] if correct else []).wait(LIMIT)
        launched.wait(LIMIT)
    if correct:
        assert detector.report() == ""
        assert (out == 3).all()
    else:
        (conflict,) = detector.conflicts
        assert conflict.first.operation == "launch saxpy"
        assert (conflict.first.access, conflict.second.access) == ("write", "read")


@pytest.mark.parametrize("correct", [True, False])
def test_kernels_share_what_they_only_read(cuda, kernel, correct):
    with contextlib.ExitStack() as stack, detect() as detector:
        first, second = (stack.enter_context(cuda.create_stream(name)) for name in "ab")
        x, y, z = (stack.enter_context(filled(cuda)) for _ in range(3))
        given = stack.enter_context(x.readonly_view()) if correct else x
        kernel.launch(first, GRID, BLOCK, (y, given, 2.0, COUNT))
        kernel.launch(second, GRID, BLOCK, (z, given, 2.0, COUNT))
        cuda.synchronize(LIMIT)
    assert len(detector.conflicts) == (0 if correct else 2)


@pytest.mark.parametrize("correct", [True, False])
def test_graphs_touch_what_was_recorded(cuda, kernel, correct):
    with (
        filled(cuda) as x,
        filled(cuda) as y,
        cuda.create_stream("g") as stream,
        detect() as detector,
        record() as recording,
    ):
        cuda.synchronize(LIMIT)
        with cuda.record_graph() as recorder:
            recorder.fill(y.storage[0], 0, 4 * COUNT, 0)
            recorder.launch(kernel, GRID, BLOCK, (y, x, 1.0, COUNT))
        with recorder.graph as graph:
            first = graph.launch(stream)
            second = graph.launch(stream)
            y.copy_to_host(
                np.zeros(COUNT, np.float32), waits=[second] if correct else [first]
            ).wait(LIMIT)
            second.wait(LIMIT)
    assert len(detector.conflicts) == (0 if correct else 1)
    assert [step.category for step in recording.trace().steps] == ["kernel", "kernel", "copy"]


def test_modules_and_graphs_leak(cuda, kernel):
    from software_driver import PTX

    with track(settle=0) as tracker:
        module = cuda.load_module(PTX)
        with cuda.record_graph() as recorder:
            pass
    assert sorted(leak.kind for leak in tracker.report.leaks) == ["graph", "module"]
    module.close()
    recorder.graph.close()
