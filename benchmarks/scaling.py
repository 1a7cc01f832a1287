# SPDX-License-Identifier: Apache-2.0
"""How cost grows: the same kernels on data as large as each cache and as memory, on one thread and on all.

    python benchmarks/scaling.py [--only softmax,matmul] [--rounds 5] [--seconds 0.05] [--threads N]
                                 [--most MIB] [--json FILE] [--markdown FILE]

Sizes come from the machine's caches: half of L1, half of L2, between L2 and L3, and twice L3 but at most
--most (default: 512 MiB); products stop where a call would take seconds. A cell shows microseconds (the median
over blocks that alternate between the numbers of threads), GB/s or, for products, GFLOP/s, and how near that is to
the bound measured in the same turns at the same number of threads. `ns/element` says how the cost of one element
of the largest array grows; a product's is that of one of its multiply-adds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import gristmill
from gristmill.compiler.driver.bench_report import size as size_text
from gristmill.compiler.driver.machine import Machine, OtherLoad
from gristmill.runtime.caches import cache_sizes

Array = np.ndarray[Any, Any]

#: Where the system does not tell its caches.
_USUAL_CACHES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 16 << 20}

#: Products of more than this many multiply-adds take too long.
_MOST_PRODUCTS = 2**33

_ROWS = 512


@dataclass(frozen=True)
class Kernel:
    """A kernel at any size.

    Attributes:
        name: shown in the table.
        make: inputs of about that many bytes, results included.
        function: the program in JAX.
        product: whether flops, not bytes, are its measure.
    """

    name: str
    make: Callable[[int], list[Array]]
    function: Callable[..., Any]
    product: bool = False


@dataclass
class Row:
    """A kernel at one size; seconds by number of threads."""

    kernel: str
    level: str
    footprint: int
    elements: int
    work: int
    product: bool
    seconds: dict[int, float] = field(default_factory=dict)
    bound: dict[int, float] = field(default_factory=dict)


def values(*shape: int) -> Array:
    """Normal numbers; large arrays repeat a million of them."""
    some = np.random.default_rng(0).standard_normal(min(math.prod(shape), 1 << 20), np.float32)
    return np.resize(some, shape)


def _rows(arrays: int) -> Callable[[int], list[Array]]:
    """One array of rows of 512 elements; ``arrays`` of that size make the footprint."""
    return lambda nbytes: [values(max(1, nbytes // (4 * arrays * _ROWS)), _ROWS)]


def _squares(count: int, arrays: int) -> Callable[[int], list[Array]]:
    def make(nbytes: int) -> list[Array]:
        n = max(16, int(math.sqrt(nbytes / (4 * arrays))) // 16 * 16)
        if count > 1:
            n = min(n, round(_MOST_PRODUCTS ** (1 / 3)))
        return [values(n, n) for _ in range(count)]

    return make


def _lookups(nbytes: int) -> list[Array]:
    rows = max(1, nbytes // (3 * 4 * 64))
    indices = np.random.default_rng(1).integers(0, rows, rows).astype(np.int32)
    return [values(rows, 64), indices]


def kernels() -> list[Kernel]:
    """What is timed."""
    import jax
    import jax.numpy as jnp

    return [
        Kernel("chain", _rows(2), lambda x: jnp.maximum(x * 2 + 1, x) * x - 3),
        Kernel("gelu", _rows(2), jax.nn.gelu),
        Kernel("softmax", _rows(2), lambda x: jax.nn.softmax(x, axis=-1)),
        Kernel("sum", _rows(1), jnp.sum),
        Kernel("column sum", _rows(1), lambda x: x.sum(0)),
        Kernel("cumulative sum", _rows(2), lambda x: jnp.cumsum(x, axis=-1)),
        Kernel("transpose", _squares(1, 2), lambda x: x.T),
        Kernel("gather", _lookups, lambda t, i: t[i]),
        Kernel("sort", _rows(2), lambda x: jnp.sort(x, axis=-1)),
        Kernel("matmul", _squares(2, 3), lambda a, b: a @ b, True),
    ]


def footprints(most: int) -> dict[str, int]:
    """Bytes by the name of the level they fit, ``most`` at most."""
    caches = _USUAL_CACHES | cache_sizes()
    between = int(math.sqrt(caches["L2"] * caches["L3"]))
    wanted = {"L1": caches["L1"] // 2, "L2": caches["L2"] // 2, "L3": between}
    wanted["memory"] = 2 * caches["L3"]
    return {level: min(nbytes, most) for level, nbytes in wanted.items()}


def measure(
    kernel: Kernel, level: str, nbytes: int, machines: dict[int, Machine], args: argparse.Namespace
) -> Row:
    """Time one kernel at one size with every number of threads."""
    import jax
    from work import least_work

    inputs = kernel.make(nbytes)
    work = least_work(kernel.function, inputs)
    elements = work.flops // 2 if kernel.product else max(array.size for array in inputs)
    amount = work.flops if kernel.product else work.read + work.written
    row = Row(*(kernel.name, level, work.read + work.written, elements, amount, kernel.product))
    options = gristmill.CompileOptions(cache=False)
    lowered = jax.jit(kernel.function).lower(*inputs)
    with gristmill.compile(lowered, options=options) as executable:
        medians: dict[int, list[float]] = {threads: [] for threads in machines}
        for _ in range(args.rounds):
            for threads, machine in machines.items():
                call = lambda t=threads: executable(*inputs, threads=t)  # noqa: E731
                medians[threads].append(_block(call, args.seconds))
                moving = machine.stream_seconds(work.read, work.written)
                bound = max(moving, work.flops / machine.flops())
                row.bound[threads] = min(bound, row.bound.get(threads, math.inf))
        row.seconds = {threads: statistics.median(found) for threads, found in medians.items()}
    return row


def _block(call: Callable[[], object], seconds: float) -> float:
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or (time.perf_counter() < end and len(times) < 5000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def header(machines: dict[int, Machine]) -> list[str]:
    """The headings."""
    cells = ["kernel", "size", "bytes"]
    for threads in machines:
        noun = f"{threads} thread{'s' * (threads > 1)}"
        cells += [f"{noun}, us", "rate", "of bound", "ns/element"]
    return [*cells, "speedup"] if len(machines) > 1 else cells


def cells(row: Row) -> list[str]:
    """A row of the table."""
    found = [row.kernel, row.level, size_text(row.footprint)]
    unit = "GFLOP/s" if row.product else "GB/s"
    for threads, seconds in row.seconds.items():
        found += [
            f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}",
            f"{row.work / seconds * 1e-9:.1f} {unit}",
            f"{row.bound[threads] / seconds:.0%}",
            f"{seconds / row.elements * 1e9:.3g}",
        ]
    if len(row.seconds) > 1:
        times = list(row.seconds.values())
        found.append(f"{times[0] / times[-1]:.2f}")
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="blocks (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.05, help="length of a block")
    parser.add_argument("--threads", type=int, help="the larger number of threads (default: cores)")
    parser.add_argument("--most", type=int, default=512, metavar="MIB", help="largest footprint")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here")
    args = parser.parse_args()
    if min(args.rounds, args.most, args.threads or 1) < 1 or args.seconds <= 0:
        parser.error("--rounds, --most and --threads must be at least 1, --seconds above 0")
    return args


def main() -> int:
    """Measure and print; returns the exit code."""
    args = arguments()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    load = OtherLoad()
    counts = sorted({1, args.threads or len(os.sched_getaffinity(0))})
    machines = {threads: Machine(threads) for threads in counts}
    wanted = [part for part in args.only.split(",") if part]
    head = header(machines)
    rows: list[Row] = []
    print("".join(cell.rjust(15) for cell in head), flush=True)
    for kernel in kernels():
        if wanted and not any(part in kernel.name for part in wanted):
            continue
        for level, nbytes in footprints(args.most << 20).items():
            row = measure(kernel, level, nbytes, machines, args)
            rows.append(row)
            print("".join(cell.rjust(15) for cell in cells(row)), flush=True)
    share = load.share()
    note = "" if share is None else f"Other programs used {share:.0%} of the machine meanwhile."
    print(note)
    if args.json is not None:
        content = {"other_load": share, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    if args.markdown is not None:
        lines = ["| " + " | ".join(line) + " |" for line in (head, *map(cells, rows))]
        lines.insert(1, "|" + " --- |" * len(head))
        args.markdown.write_text("\n".join(lines) + f"\n\n{note}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
