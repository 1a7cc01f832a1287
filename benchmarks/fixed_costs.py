# SPDX-License-Identifier: Apache-2.0
"""What does not depend on the size of a program: calling one, starting its threads, their meeting."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import gristmill

#: What we hold ourselves to, in microseconds, with both cores free.
FORK_JOIN_BAR = 3.0
CALL_BAR = 3.0

_CALLS = 2000

_ADD = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<8xf32>
  %0 = stablehlo.add %x, %one : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""

#: Run in a process of its own: whether a small program starts any thread.
_INLINE = """
import os, sys, numpy, gristmill
executable = gristmill.compile(sys.stdin.read())
before = len(os.listdir("/proc/self/task"))
executable(numpy.ones(8, numpy.float32), threads=int(sys.argv[1]))
maps = open("/proc/self/maps").read()
print(len(os.listdir("/proc/self/task")) - before, int("libomp" in maps))
"""


def fixed_costs(threads: int) -> dict[str, float]:
    """The costs in seconds, and how many threads a small program starts."""
    from gristmill.compiler.driver.machine import Machine

    machine = Machine(threads)
    x = np.ones(8, np.float32)
    one = np.float32(1)
    with gristmill.compile(_ADD) as add:
        call = _median(lambda: add(x, threads=threads))
    out = subprocess.run(
        [sys.executable, "-c", _INLINE, str(threads)],
        input=_ADD,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    ).stdout.split()
    return {
        "fork/join": machine.fork_join_seconds(),
        "barrier": machine.barrier_seconds(),
        "call of an 8-element add": call,
        "the same in numpy": _median(lambda: x + one),
        "threads that a small program starts": int(out[0]) + int(out[1]),
    }


def _median(call: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
