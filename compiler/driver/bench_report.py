# SPDX-License-Identifier: Apache-2.0
"""The report of ``gristmill bench``: as text for people and as JSON for programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.compiler.driver.console import seconds, table
from gristmill.compiler.driver.machine import MEMORY_BYTES, Machine
from gristmill.compiler.driver.profiling import OUTSIDE, KernelTime

Array = np.ndarray[Any, Any]

_OPERATIONS_WIDTH = 44

#: Slowdowns from here on are reported.
_SLOWER = 0.001

#: Other load from which times are not to be trusted, as a share of the machine.
_BUSY = 0.1

#: Shares of the bound up to here are within the error of measuring it.
_TRUSTED_SHARE = 1.1


@dataclass
class Comparison:
    """Another program, timed in turns.

    Attributes:
        name: the other's file.
        turns: (ours, theirs) in seconds, one pair a turn.
        difference: largest difference of the results, relative to the largest element.
    """

    name: str
    turns: list[tuple[float, float]]
    difference: float

    @property
    def ratio(self) -> float:
        """The median of theirs over ours: above 1 ours is faster."""
        return statistics.median(self._ratios)

    @property
    def noise(self) -> tuple[float, float]:
        """The quartiles of the ratio over the turns."""
        low, _, high = statistics.quantiles(self._ratios, n=4)
        return low, high

    @property
    def _ratios(self) -> list[float]:
        return [theirs / ours for ours, theirs in self.turns]


@dataclass
class Report:
    """What was measured; times in seconds, sizes in bytes.

    Attributes:
        name: the model's file.
        machine: the limits, with the number of threads.
        ready_seconds: from the file to the executable.
        times: of each call.
        parallel: whether the program uses more than one thread.
        kernels: the slowest first, what is outside them last; empty for an artifact.
        slowdown: what reading the clock added, as a fraction.
        other_load: share of the machine that other programs used meanwhile; None where the system does not tell.
    """

    name: str
    machine: Machine
    ready_seconds: float
    times: list[float]
    arena_bytes: int
    scratch_bytes: int
    constant_bytes: int
    input_bytes: int
    output_bytes: int
    code_bytes: int
    parallel: bool
    kernels: list[KernelTime] = field(default_factory=list[KernelTime])
    slowdown: float = 0.0
    other_load: float | None = None
    comparison: Comparison | None = None

    @property
    def bound_seconds(self) -> float:
        """The sum of the kernels' bounds."""
        return sum(kernel.bound_seconds for kernel in self.kernels)


def text(report: Report, top: int) -> str:
    """The report for people; ``top`` kernels, all for 0."""
    parts = [_summary(report)]
    if report.kernels:
        parts.append(_kernel_table(report, top))
    else:
        parts.append("An artifact holds no kernel table: give the model itself to see its kernels.")
    if report.comparison is not None:
        parts.append(_comparison(report.comparison))
    return "\n\n".join(parts)


def _summary(report: Report) -> str:
    times, machine = sorted(report.times), report.machine
    median = statistics.median(times)
    threads = machine.threads
    rows = [
        ("ready in", f"{seconds(report.ready_seconds)}"),
        (
            "run",
            f"{seconds(median)} median of {len(times)} runs (min {seconds(times[0])}, "
            f"90 % below {seconds(times[len(times) * 9 // 10])}), {_count(threads, 'thread')}"
            + ("" if report.parallel else " offered, one used: too small to split"),
        ),
    ]
    if report.kernels:
        kernels = sum(k.seconds for k in report.kernels)
        rows += [
            (
                "bound",
                f"{seconds(report.bound_seconds)}, the sum of the kernels' bounds: "
                f"{report.bound_seconds / median:.0%} of the run",
            ),
            (
                "kernels",
                f"{seconds(kernels)} inside the program; timing them "
                + (
                    f"made it {report.slowdown:.1%} slower"
                    if report.slowdown >= _SLOWER
                    else "cost nothing measurable"
                ),
            ),
        ]
    rows += [
        (
            "memory",
            f"arena {size(report.arena_bytes)}, scratch {threads} x {size(report.scratch_bytes)}, "
            f"constants {size(report.constant_bytes)}, inputs {size(report.input_bytes)}, "
            f"outputs {size(report.output_bytes)}, code {size(report.code_bytes)}",
        ),
        (
            "machine",
            f"{machine.flops() * 1e-9:.0f} GFLOP/s of f32 multiply-adds, "
            f"{machine.bandwidth(MEMORY_BYTES) * 1e-9:.1f} GB/s copying {size(MEMORY_BYTES)} "
            f"({_count(threads, 'thread')}, measured now)",
        ),
    ]
    if report.other_load is not None:
        rows.append(("others", _others(report)))
    width = max(len(name) for name, _ in rows)
    return "\n".join([report.name, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def _others(report: Report) -> str:
    """How far other programs disturbed the measurement."""
    content = f"other programs used {report.other_load:.0%} of the machine meanwhile"
    if any(kernel.share_of_bound > _TRUSTED_SHARE for kernel in report.kernels):
        content += "; bounds that were beaten were measured while it was busy"
    elif report.other_load is not None and report.other_load > _BUSY:
        content += "; times on an idle machine are shorter"
    return content


def _kernel_table(report: Report, top: int) -> str:
    total = sum(k.seconds for k in report.kernels) or 1.0
    kernels = [k for k in report.kernels if k.name != OUTSIDE]
    shown = kernels[: top or None]
    rows = [_kernel_row(k, total) for k in shown]
    rest = kernels[len(shown) :]
    if rest:
        spent = sum(k.seconds for k in rest)
        rows.append(
            (f"{len(rest)} more", "", seconds(spent), f"{spent / total:.1%}", *[""] * 5, "--top 0")
        )
    outside = report.kernels[-1]
    rows.append(
        (OUTSIDE, "", seconds(outside.seconds), f"{outside.seconds / total:.1%}", *[""] * 6)
    )
    header = (
        *("kernel", "launches", "time", "share", "cores", "GB/s", "GFLOP/s", "bound", "of bound"),
        "operations",
    )
    return table(header, rows)


def _kernel_row(kernel: KernelTime, total: float) -> tuple[str, ...]:
    operations = ", ".join(kernel.work.operations)
    if len(operations) > _OPERATIONS_WIDTH:
        operations = operations[: _OPERATIONS_WIDTH - 3].rpartition(",")[0] + ", ..."
    flops = kernel.flops_per_second
    return (
        kernel.name,
        str(kernel.launches),
        seconds(kernel.seconds),
        f"{kernel.seconds / total:.1%}",
        f"{kernel.cores:.1f}",
        f"{kernel.bytes_per_second * 1e-9:.1f}",
        f"{flops * 1e-9:.1f}" if flops else "-",
        seconds(kernel.bound_seconds),
        f"{kernel.share_of_bound:.0%}",
        operations,
    )


def _comparison(comparison: Comparison) -> str:
    ours, theirs = (statistics.median(side) for side in zip(*comparison.turns, strict=True))
    low, high = comparison.noise
    ratio = comparison.ratio
    word = "faster" if ratio >= 1 else "slower"
    factor = ratio if ratio >= 1 else 1 / ratio
    sure = low > 1 or high < 1
    return (
        f"beside {comparison.name}: {seconds(ours)} against {seconds(theirs)}, {factor:.2f} x {word}"
        f" (median of {len(comparison.turns)} turns; half of them between {low:.2f} and {high:.2f}"
        f"{'' if sure else ': no difference beyond the noise'}); results differ by at most "
        f"{comparison.difference:.1e} of the largest element"
    )


def as_json(report: Report) -> dict[str, Any]:
    """Everything, with times in seconds and sizes in bytes."""
    machine = report.machine
    result: dict[str, Any] = {
        "model": report.name,
        "threads": machine.threads,
        "parallel": report.parallel,
        "ready_seconds": report.ready_seconds,
        "run_seconds": {
            "median": statistics.median(report.times),
            "min": min(report.times),
            "runs": len(report.times),
        },
        "memory_bytes": {
            "arena": report.arena_bytes,
            "scratch_per_thread": report.scratch_bytes,
            "constants": report.constant_bytes,
            "inputs": report.input_bytes,
            "outputs": report.output_bytes,
            "code": report.code_bytes,
        },
        "machine": {
            "flops_per_second": machine.flops(),
            "copy_bytes_per_second": machine.bandwidth(MEMORY_BYTES),
            "other_load": report.other_load,
        },
    }
    if report.kernels:
        result |= {
            "bound_seconds": report.bound_seconds,
            "slowdown_of_timing": report.slowdown,
            "kernels": [_kernel_json(kernel) for kernel in report.kernels],
        }
    if report.comparison is not None:
        low, high = report.comparison.noise
        result["comparison"] = {
            "model": report.comparison.name,
            "turns": report.comparison.turns,
            "ratio": report.comparison.ratio,
            "quartiles": [low, high],
            "largest_difference": report.comparison.difference,
        }
    return result


def _kernel_json(kernel: KernelTime) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "operations": list(kernel.work.operations),
        "launches": kernel.launches,
        "seconds": kernel.seconds,
        "cores": kernel.cores,
        "bytes": kernel.launches * kernel.work.bytes,
        "flops": kernel.launches * kernel.work.flops,
        "bytes_per_second": kernel.bytes_per_second,
        "flops_per_second": kernel.flops_per_second,
        "bound_seconds": kernel.bound_seconds,
        "share_of_bound": kernel.share_of_bound,
    }


def size(nbytes: int) -> str:
    """A number of bytes for people: three digits and a binary unit."""
    units = ("B", "KiB", "MiB", "GiB")
    power = max(p for p in range(len(units)) if p == 0 or nbytes >= 1024**p)
    value = nbytes / 1024**power
    return f"{value:.3g} {units[power]}" if value < 1000 else f"{value:.0f} {units[power]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def largest_difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest difference of two sets of results, relative to the largest element of each array.

    Infinite where one has a number and the other has none.
    """
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        wide = np.complex128 if mine.dtype.kind == "c" else np.float64
        a, b = mine.astype(wide), other.astype(wide)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if np.all(same):
            continue
        scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)) or 1.0
        gap = np.abs(a[~same] - b[~same]) / scale
        worst = max(worst, float(np.max(gap)) if np.all(np.isfinite(gap)) else math.inf)
    return worst
