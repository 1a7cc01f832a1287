# SPDX-License-Identifier: Apache-2.0
"""Times Gristmill beside XLA:CPU and numpy on the programs of cases.py, interleaved.

    python benchmarks/run.py [--only softmax,matmul] [--rounds 5] [--threads N] [--json FILE]

Every program is compiled by each peer, its result compared with XLA's, and then timed in short
blocks that alternate between the peers, so that other load on the machine hits all of them. A cell
shows microseconds: the median over the blocks' medians and, in brackets, the fastest single run.
`xla/gm` above 1 means that Gristmill is faster. Run it on an idle machine; --threads pins the whole
process, so that all peers have the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from cases import Case

    Array = np.ndarray[Any, Any]

Call = Callable[[], object]
REST_SECONDS = 0.05  # lets spinning pool threads go to sleep before the next peer's block


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each peer (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a block")
    parser.add_argument("--threads", type=int, help="cores to use (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    return parser.parse_args()


def main() -> int:
    """Run the benchmarks; 1 when a result was wrong."""
    args = arguments()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    from cases import CASES

    warm_up()
    wanted = [part for part in args.only.split(",") if part]
    rows: list[dict[str, Any]] = []
    print(line(HEADER), flush=True)
    for case in CASES:
        if wanted and not any(part in case.name for part in wanted):
            continue
        for size in case.sizes:
            row = measure(case, size, args.rounds, args.seconds)
            rows.append(row)
            print(line(cells(row)), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [row["program"] for row in rows if row["error"]]
    for row in rows:
        if row["error"]:
            print(f"{row['program']}: {row['error']}", file=sys.stderr)
    return 1 if wrong else 0


def warm_up() -> None:
    """Load both compilers, so that the first program's compile time is like that of the others."""
    import jax

    import gristmill

    lowered = jax.jit(lambda x: x * 2).lower(1.0)
    lowered.compile()
    gristmill.compile(lowered)


def measure(case: Case, size: int, rounds: int, block: float) -> dict[str, Any]:
    """Compile, check and time one program at one size."""
    import jax
    import numpy as np

    inputs = case.make(np.random.default_rng(0), size)
    row: dict[str, Any] = {"program": f"{case.name} {size}", "compile": {}, "error": ""}
    jitted = jax.jit(case.function)
    lowered = jitted.lower(*inputs)
    start = time.perf_counter()
    lowered.compile()
    row["compile"]["xla"] = time.perf_counter() - start
    on_device = [jax.device_put(array) for array in inputs]
    # Called through jit, whose dispatch is faster than that of the compiled object.
    calls: dict[str, Call] = {"xla": lambda: jitted(*on_device).block_until_ready()}
    try:
        calls["gristmill"] = compile_gristmill(lowered, inputs, row)
        row["error"] = difference(calls["gristmill"](), np.asarray(calls["xla"]()), case.tolerance)
    except Exception as error:  # a peer that fails must not end the comparison of the others
        row["error"] = f"{type(error).__name__}: {error}"
        calls.pop("gristmill", None)
    if (reference := case.reference) is not None:
        calls["numpy"] = lambda: reference(*inputs)
    row["run"] = interleave(calls, rounds, block)
    return row


def compile_gristmill(lowered: Any, inputs: list[Array], row: dict[str, Any]) -> Call:
    """Compile with Gristmill, noting the time."""
    import gristmill

    start = time.perf_counter()
    executable = gristmill.compile(lowered)
    row["compile"]["gristmill"] = time.perf_counter() - start
    return lambda: executable(*inputs)


def difference(got: Any, want: Array, tolerance: float) -> str:
    """What is wrong with a result; empty when nothing is."""
    import numpy as np

    result = np.asarray(got)
    if result.shape != want.shape or result.dtype != want.dtype:
        return f"got {result.dtype}{list(result.shape)}, want {want.dtype}{list(want.shape)}"
    scale = max(float(np.abs(want).max(initial=0)), 1e-30)
    error = float(np.abs(result.astype(np.float64) - want).max(initial=0)) / scale
    limit = tolerance if want.dtype.kind == "f" else 0.0
    return "" if error <= limit else f"wrong result: off by {error:.1e} of the largest element"


def interleave(calls: dict[str, Call], rounds: int, block: float) -> dict[str, dict[str, float]]:
    """Median of the block medians, and the fastest run, of each call in seconds."""
    medians: dict[str, list[float]] = {name: [] for name in calls}
    fastest = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            times = time_block(call, block)
            medians[name].append(statistics.median(times))
            fastest[name] = min(fastest[name], *times)
            time.sleep(REST_SECONDS)
    return {
        name: {"median": statistics.median(medians[name]), "min": fastest[name]} for name in calls
    }


def time_block(call: Call, seconds: float) -> list[float]:
    """Times of repeated calls for about ``seconds``, at least two."""
    times: list[float] = []
    call()
    clock = time.perf_counter
    end = clock() + seconds
    while True:
        start = clock()
        call()
        stop = clock()
        times.append(stop - start)
        if stop > end and len(times) >= 2:
            return times


HEADER = ("program", "gm compile", "xla compile", "gristmill", "xla", "numpy", "xla/gm", "np/gm")
WIDTHS = (18, 10, 11, 21, 21, 21, 7, 7)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    run, compile_seconds = row["run"], row["compile"]

    def ratio(peer: str) -> str:
        if peer not in run or "gristmill" not in run:
            return "-"
        return f"{run[peer]['median'] / run['gristmill']['median']:.2f}"

    times = [
        f"{micro(run[p]['median'])} ({micro(run[p]['min'])})" if p in run else "-"
        for p in ("gristmill", "xla", "numpy")
    ]
    if row["error"]:
        times[0] = "FAIL"
    compiles = [
        f"{compile_seconds[p] * 1e3:.0f} ms" if p in compile_seconds else "-"
        for p in ("gristmill", "xla")
    ]
    return [row["program"], *compiles, *times, ratio("xla"), ratio("numpy")]


def micro(seconds: float) -> str:
    """Microseconds with three digits."""
    value = seconds * 1e6
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def line(texts: Iterable[str]) -> str:
    """One line of the table; times are microseconds."""
    first, *rest = zip(texts, WIDTHS, strict=True)
    return first[0].ljust(first[1]) + "".join("  " + text.rjust(width) for text, width in rest)


if __name__ == "__main__":
    sys.exit(main())
