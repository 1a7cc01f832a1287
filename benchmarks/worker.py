# SPDX-License-Identifier: Apache-2.0
"""A peer in a process of its own, driven by ``run.py`` through lines of JSON.

    python worker.py PEER THREADS

What libraries print goes to standard error. Every request gets one answer, an error's text included.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import PEERS, Array, Limits, MissingProgram, Peer, read_arrays

#: Lets spinning threads of a peer's pool go to sleep before the next peer's block.
REST_SECONDS = 0.05

#: The fewest and the most calls of a block.
_FEWEST, _MOST = 2, 20_000


def main(name: str, threads: int) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the libraries' own output
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if worker is None:
                worker = Worker(name, threads)
            answer = worker.answer(request)
        except MissingProgram:
            answer = {"missing": True}
        except Exception as error:  # a peer that fails must not end the comparison of the others
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """Answers requests for one peer."""

    def __init__(self, name: str, threads: int):
        self.threads = threads
        self.limits = Limits(threads) if name == "limits" else None
        self.peer: Peer | None = PEERS[name](threads) if self.limits is None else None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for."""
        if request["do"] == "start":
            import gristmill

            return {"package": gristmill.__file__}
        if request["do"] == "fixed":
            from fixed_costs import fixed_costs

            return fixed_costs(self.threads)
        folder = Path(request["folder"])
        if self.limits is not None:
            self.limits.load(folder, request["case"])
            return self.limits.bound()
        assert self.peer is not None
        if request["do"] == "compile":
            self.peer.load(folder, request["case"])
            seconds = self.peer.compile()
            return {"compile": seconds, "error": self.check(folder, request["tolerance"])}
        if request["do"] == "check":
            return {"error": self.check(folder, request["tolerance"])}
        return block(self.peer, request["seconds"])

    def check(self, folder: Path, tolerance: float) -> str:
        """What is wrong with the results of a call; empty when nothing is."""
        assert self.peer is not None
        return difference(self.peer.results(), read_arrays(folder / "out.npz"), tolerance)


def difference(got: list[Array], want: list[Array], tolerance: float) -> str:
    """What is wrong with the results; empty when nothing is."""
    if len(got) != len(want):
        return f"{len(got)} results, want {len(want)}"
    for mine, theirs in zip(got, want, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"got {mine.dtype}{list(mine.shape)}, want {theirs.dtype}{list(theirs.shape)}"
        wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
        scale = max(float(np.abs(theirs.astype(wide)).max(initial=0)), 1e-30)
        error = float(np.abs(mine.astype(wide) - theirs.astype(wide)).max(initial=0)) / scale
        exact = theirs.dtype.kind in "iub"
        if not error <= (0.0 if exact else tolerance):
            return f"wrong result: off by {error:.1e} of the largest element"
    return ""


def block(peer: Peer, seconds: float) -> dict[str, float]:
    """Run for about ``seconds``; the median and least time of a call, cores busy, page faults of a call."""
    call, clock = peer.call, time.perf_counter
    call()
    times: list[float] = []
    before, begin = resource.getrusage(resource.RUSAGE_SELF), clock()
    end = begin + seconds
    while len(times) < _FEWEST or (clock() < end and len(times) < _MOST):
        start = clock()
        call()
        times.append(clock() - start)
    after, finish = resource.getrusage(resource.RUSAGE_SELF), clock()
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    time.sleep(REST_SECONDS)
    return {
        "median": statistics.median(times),
        "min": min(times),
        "cores": busy / (finish - begin),
        "faults": (after.ru_minflt - before.ru_minflt) / len(times),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
