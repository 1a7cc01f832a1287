# SPDX-License-Identifier: Apache-2.0
"""The yardstick: its loops do the work that they are said to do."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.driver import machine
from gristmill.compiler.driver import machine_loops as loops
from gristmill.compiler.driver.machine import Machine, OtherLoad
from gristmill.runtime.memory.host import aligned_empty


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("nontemporal", [False, True])
def test_the_stream_loop_reads_and_writes_all(threads: int, nontemporal: bool) -> None:
    """What is written is the exclusive or of what the thread has read so far."""
    target = host_target()
    words = target.vector_bytes
    source = aligned_empty((40 * 4 * words,), np.dtype(np.uint8))
    source[...] = np.random.default_rng(0).integers(0, 256, source.shape, np.uint8)
    written = aligned_empty((24 * 4 * words + 64,), np.dtype(np.uint8))
    written[...] = 0xAA
    sink = np.zeros(4096, np.uint8)
    program = machine._program(target, loops.stream(target, nontemporal))
    sizes = [source.nbytes, written.nbytes - 64]
    base = sink.ctypes.data + -sink.ctypes.data % 64
    program([source.ctypes.data], [written.ctypes.data, base], [1, *sizes], threads)
    lines = source.reshape(-1, 4 * words)
    for thread in range(threads):
        read = lines[len(lines) * thread // threads : len(lines) * (thread + 1) // threads]
        want = np.bitwise_xor.reduce(read)
        shares = 24 * thread // threads, 24 * (thread + 1) // threads
        got = written[: 24 * 4 * words].reshape(24, -1)[slice(*shares)]
        np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))
    assert np.all(written[-64:] == 0xAA)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_the_multiply_adds_are_done(kind: str, dtype: type) -> None:
    target = host_target()
    lanes = target.lanes(np.dtype(dtype).itemsize)
    program = machine._program(target, loops.multiply_adds(kind, lanes))
    sink = aligned_empty((1024,), np.dtype(np.uint8))
    steps = 50
    program([], [sink.ctypes.data], [steps], 1)
    chains = np.arange(1.0, 13.0)
    for _ in range(steps):
        chains = chains * 0.9999 + 1e-4
    got = sink.view(dtype)[:lanes]
    np.testing.assert_allclose(got, np.full(lanes, chains.sum()), rtol=1e-5)


def test_more_bytes_take_longer_and_figures_only_improve() -> None:
    measured = Machine(1)
    small, large = measured.stream_seconds(1 << 14, 0), measured.stream_seconds(1 << 22, 0)
    assert 0 < small < large
    assert measured.stream_seconds(0, 0) == 0
    assert measured.stream_seconds(1 << 22, 1 << 22) > 0.5 * large
    before = measured.flops()
    measured.remeasure()
    assert measured.flops() >= before
    assert measured.stream_seconds(1 << 14, 0) <= small
    assert measured.flops(double=True) < 2 * measured.flops()


def test_forks_and_barriers_cost_something() -> None:
    team = Machine(2)
    assert 0 <= team.fork_join_seconds() < 1
    assert 0 < team.barrier_seconds() < 1


def test_own_work_is_no_other_load() -> None:
    load = OtherLoad()
    total = 0
    for number in range(3_000_000):
        total += number
    share = load.share()
    assert share is None or 0 <= share <= 1
