# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, measured: memory traffic by footprint, multiply-adds, fork/join, barriers.

The loops are written here, not emitted by the compiler's kernels, so that they are a yardstick for those; they run
through the same entry function and the same threads as compiled programs do.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import to_object
from gristmill.compiler.driver import machine_loops as loops
from gristmill.compiler.module import make_context
from gristmill.compiler.program.entry_header import ENTRY, header
from gristmill.compiler.target import Target
from gristmill.runtime.code import link
from gristmill.runtime.memory.host import aligned_empty

#: A measurement repeats until it takes this long, in seconds, and then this often.
_MEASURE_SECONDS = 0.004
_MEASURE_TIMES = 7

#: Below this footprint a second thread costs more than it brings.
_SERIAL_BYTES = 64 * 1024

#: Footprints of the picture's memory lines, beside the caches' own sizes.
MEMORY_BYTES = 256 << 20


_Key = tuple[str, str] | tuple[str, int, int]


class Machine:
    """The limits of this machine for ``threads`` threads; each is measured when first asked for."""

    def __init__(self, threads: int, target: Target | None = None):
        self.threads = threads
        self.target = target or host_target()
        self._buffers: dict[str, np.ndarray[Any, Any]] = {}
        self._known: dict[_Key, float] = {}
        self._measures: dict[_Key, Callable[[], float]] = {}

    def flops(self, double: bool = False) -> float:
        """Peak multiply-add rate in flops a second (two for each multiply-add), f32 or f64."""
        kind = "f64" if double else "f32"
        return 2.0 / self._least(("flop", kind), lambda: self._multiply_add_seconds(kind))

    def stream_seconds(self, read: int, written: int) -> float:
        """Least time to read and write that many bytes, repeated over the same memory.

        So a footprint that fits a cache is measured in that cache. The better of ordinary and non-temporal stores.
        """
        read, written = _rounded(read), _rounded(written)
        if read + written == 0:
            return 0.0
        return self._least(("stream", read, written), lambda: self._measure_stream(read, written))

    def remeasure(self) -> None:
        """Measure again what was asked for so far; the better figures stand, as other load only slows down."""
        for key, measure in self._measures.items():
            self._known[key] = min(self._known[key], measure())

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second when half of ``nbytes`` is read and half written."""
        half = _rounded(nbytes // 2)
        return 2 * half / self.stream_seconds(half, half)

    def fork_join_seconds(self) -> float:
        """What starting and joining the threads adds to an empty program."""
        body = _program(self.target, loops.EMPTY)
        team = _median_seconds(lambda: body([], [], [0], self.threads))
        alone = _median_seconds(lambda: body([], [], [0], 1))
        return max(team - alone, 0.0)

    def barrier_seconds(self) -> float:
        """One barrier between the threads."""
        body = _program(self.target, loops.BARRIERS)
        return max(self._repeated(lambda count: body([], [], [count], self.threads), 100), 0.0)

    def _least(self, key: _Key, measure: Callable[[], float]) -> float:
        if key not in self._known:
            self._measures[key] = measure
            self._known[key] = measure()
        return self._known[key]

    def _multiply_add_seconds(self, kind: str) -> float:
        """Seconds of one multiply-add, all threads together."""
        lanes = self.target.lanes(4 if kind == "f32" else 8)
        body = _program(self.target, loops.multiply_adds(kind, lanes))
        sink = self._buffer("sink", 64 * self.threads * 4)
        seconds = self._repeated(
            lambda count: body([], [sink.ctypes.data], [count], self.threads), 1000
        )
        return seconds / (loops.CHAINS * lanes * self.threads)

    def _measure_stream(self, read: int, written: int) -> float:
        threads = self.threads if read + written >= _SERIAL_BYTES else 1
        source = self._buffer("source", read + 4096)
        target = self._buffer("target", written + 4096)
        sink = self._buffer("sink", 64 * self.threads * 4)
        inputs, outputs = [source.ctypes.data], [target.ctypes.data, sink.ctypes.data]
        best = float("inf")
        for nontemporal in (False, True):
            body = _program(self.target, loops.stream(self.target, nontemporal))

            def run(count: int, body: _Program = body) -> None:
                body(inputs, outputs, [count, read, written], threads)

            best = min(best, self._repeated(run, 1))
        return best

    def _repeated(self, run: Callable[[int], None], count: int) -> float:
        """The least seconds of one of ``count`` repetitions, raised until they can be timed."""
        run(count)
        while (seconds := _seconds(run, count)) < _MEASURE_SECONDS:
            count *= max(2, int(_MEASURE_SECONDS / max(seconds, 1e-9)))
        return min(_seconds(run, count) for _ in range(_MEASURE_TIMES)) / count

    def _buffer(self, name: str, nbytes: int) -> np.ndarray[Any, Any]:
        known = self._buffers.get(name)
        if known is None or known.nbytes < nbytes:
            known = self._buffers[name] = aligned_empty((nbytes,), np.dtype(np.uint8))
            known[...] = 0
        return known


class OtherLoad:
    """How much of the machine other programs use from now on; children count as this one once they have ended."""

    def __init__(self) -> None:
        self._start = _processor_seconds()
        self._own = sum(os.times()[:4])

    def share(self) -> float | None:
        """Their share of all cores' time since the start; None where the system does not tell."""
        end, start = _processor_seconds(), self._start
        if end is None or start is None or end[1] <= start[1]:
            return None
        own = sum(os.times()[:4]) - self._own
        return min(1.0, max(0.0, (end[0] - start[0] - own) / (end[1] - start[1])))


def _processor_seconds() -> tuple[float, float] | None:
    """Busy (or stolen) and total seconds of all cores since they started."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in first[1:9]]
    except (OSError, ValueError):
        return None
    total = sum(ticks)
    return total - ticks[3] - ticks[4], total  # without idle and waiting for a disk


def _seconds(run: Callable[..., None], *arguments: int) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def _median_seconds(run: Callable[[], None], times: int = 301) -> float:
    run()
    return statistics.median(_seconds(run) for _ in range(times))


def _rounded(nbytes: int) -> int:
    """Up to whole pages beyond one page, to whole steps of the loop below."""
    unit = 4096 if nbytes > 4096 else 256
    return -(-nbytes // unit) * unit


class _Program:
    """A compiled body: called with inputs, outputs, integers and the number of threads."""

    def __init__(self, target: Target, body: str):
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(header(target.triple, True, body))
            self._code = link([to_object(module, target)])
        kinds = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
        self._function = ctypes.CFUNCTYPE(None, *kinds)(self._code.address(ENTRY))

    def __call__(
        self, inputs: list[int], outputs: list[int], integers: list[int], threads: int
    ) -> None:
        tables = [(ctypes.c_int64 * max(1, len(t)))(*t) for t in (inputs, outputs, integers)]
        self._function(*tables, None, threads, None)  # no custom calls: no context


@lru_cache(maxsize=32)
def _program(target: Target, body: str) -> _Program:
    return _Program(target, body)
