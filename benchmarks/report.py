# SPDX-License-Identifier: Apache-2.0
"""What ``run.py`` measured, as lines, Markdown and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fixed_costs import CALL_BAR, FORK_JOIN_BAR

OURS = "gristmill"

#: Bounds below this, in seconds, say nothing: a call costs more.
LEAST_BOUND = 1e-7

#: Rounds without which a difference between revisions is not called one.
ENOUGH_ROUNDS = 5

#: Ratios nearer to 1 than this are ties even without noise.
TIE = 0.02


@dataclass
class Row:
    """One program at one size; times in seconds.

    Attributes:
        program: name and size.
        compile: by peer; None for what has no compiler.
        blocks: of each peer, one a round: median and min of a call, cores busy, page faults.
        bound: seconds of the traffic and of the flops.
        errors: by peer.
    """

    program: str
    compile: dict[str, float | None] = field(default_factory=dict)
    blocks: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def median(self, peer: str) -> float:
        """The median of the blocks' medians."""
        return statistics.median(block["median"] for block in self.blocks[peer])

    def least(self, peer: str) -> float:
        """The fastest call."""
        return min(block["min"] for block in self.blocks[peer])

    @property
    def bound_seconds(self) -> float:
        """The least time for the program's work; 0 when unknown."""
        return max(self.bound.values(), default=0.0)

    def over_bound(self, peer: str) -> float | None:
        """Time over bound; None where either says nothing."""
        if peer not in self.blocks or self.bound_seconds < LEAST_BOUND:
            return None
        return self.median(peer) / self.bound_seconds

    def ratios(self, peer: str) -> list[float]:
        """The peer's time over ours, round by round; empty where one is missing."""
        if peer not in self.blocks or OURS not in self.blocks:
            return []
        pairs = zip(self.blocks[peer], self.blocks[OURS], strict=True)
        return [theirs["median"] / ours["median"] for theirs, ours in pairs]

    def ratio(self, peer: str) -> float | None:
        """The median of :meth:`ratios`."""
        return statistics.median(self.ratios(peer)) if self.ratios(peer) else None

    def noise(self, peer: str) -> float:
        """The slowest block's median over the fastest's."""
        medians = [block["median"] for block in self.blocks[peer]]
        return max(medians) / min(medians)


def better(old: dict[str, float], new: dict[str, Any]) -> dict[str, float]:
    """The lesser of two measurements of the bound; other load can only make it larger."""
    if "error" in new:
        return old
    return {key: min(value, old.get(key, math.inf)) for key, value in new.items()}


@dataclass
class Columns:
    """The peers in the order of their columns, and the names of revisions."""

    peers: list[str]
    revisions: dict[str, str] = field(default_factory=dict)

    def title(self, peer: str) -> str:
        """A peer's name in a heading."""
        return self.revisions.get(peer) or peer

    @property
    def others(self) -> list[str]:
        """All but ours."""
        return [peer for peer in self.peers if peer != OURS]

    def header(self) -> list[str]:
        """The headings."""
        compilers = [f"{self.title(p)} compile" for p in self.peers if p != "numpy"]
        ratios = [f"{self.title(p)}/gm" for p in self.others]
        return ["program", *compilers, *map(self.title, self.peers), "bound", *ratios, "gm/bound"]

    def cells(self, row: Row) -> list[str]:
        """A row of the table; times in microseconds, compilation in milliseconds."""
        compiles: list[str] = []
        for peer in self.peers:
            if peer != "numpy":
                seconds = row.compile.get(peer)
                compiles.append("-" if seconds is None else f"{seconds * 1e3:.0f} ms")
        times = [self._time(row, peer) for peer in self.peers]
        bound = micro(row.bound_seconds) if row.bound_seconds >= LEAST_BOUND else "-"
        ratios = [_number(row.ratio(peer)) for peer in self.others]
        return [row.program, *compiles, *times, bound, *ratios, _number(row.over_bound(OURS))]

    def _time(self, row: Row, peer: str) -> str:
        if peer in row.errors:
            return "FAIL"
        if peer not in row.blocks:
            return "-"
        return f"{micro(row.median(peer))} ({micro(row.least(peer))})"


@dataclass
class Run:
    """All of a run.

    Attributes:
        fixed: costs that do not depend on a program's size, in seconds.
        other_load: the share of the machine that other programs used meanwhile; None where the system does not tell.
    """

    rows: list[Row]
    columns: Columns
    fixed: dict[str, float]
    threads: int
    other_load: float | None


def micro(seconds: float) -> str:
    """Microseconds with three digits."""
    value = seconds * 1e6
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def line(cells: Sequence[str]) -> str:
    """One line of the table on a terminal."""
    first, *rest = cells
    return first.ljust(20) + "".join("  " + cell.rjust(15) for cell in rest)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def summary(run: Run) -> str:
    """Means, wins and losses, noise, fixed costs."""
    lines: list[str] = []
    for peer in run.columns.others:
        lines += _against(run, peer)
    distances = {
        peer: [d for row in run.rows if (d := row.over_bound(peer)) is not None]
        for peer in run.columns.peers
    }
    means = ", ".join(
        f"{run.columns.title(peer)} {geometric_mean(values):.2f} ({len(values)})"
        for peer, values in distances.items()
        if values
    )
    lines.append(f"Geometric mean of time over bound (programs): {means}.")
    noises = [row.noise(peer) for row in run.rows for peer in row.blocks]
    if noises:
        lines.append(
            f"Noise: a cell's slowest block took {statistics.median(noises):.2f} times its fastest's "
            f"median time (median of the cells; worst {max(noises):.1f})."
        )
    if run.other_load is not None:
        lines.append(f"Other programs used {run.other_load:.0%} of the machine meanwhile.")
    return "\n".join([*lines, "", *_fixed(run)])


def _against(run: Run, peer: str) -> list[str]:
    title = run.columns.title(peer)
    found = {row.program: row.ratio(peer) for row in run.rows}
    ratios = {program: ratio for program, ratio in found.items() if ratio is not None}
    if not ratios:
        return [f"{title}: nothing to compare."]
    slower = [program for program, ratio in ratios.items() if ratio < 1 - TIE]
    worst = sorted(slower, key=lambda program: ratios[program])[:8]
    lines = [
        f"{title} takes {geometric_mean(ratios.values()):.2f} times our time (geometric mean of "
        f"{len(ratios)}); we are faster {sum(r > 1 + TIE for r in ratios.values())} times, "
        f"slower {len(slower)} times"
        + (": " + ", ".join(f"{p} {ratios[p]:.2f}" for p in worst) if worst else "")
        + "."
    ]
    if peer in run.columns.revisions:
        lines += _verdicts(run, peer)
    return lines


def _verdicts(run: Run, peer: str) -> list[str]:
    """Changes between revisions that are beyond the noise of their own rounds."""
    lines: list[str] = []
    for row in run.rows:
        ratios = row.ratios(peer)
        if len(ratios) < ENOUGH_ROUNDS:
            continue
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        if low > 1 + TIE or high < 1 - TIE:
            word = "faster" if middle > 1 else "slower"
            factor = middle if middle > 1 else 1 / middle
            lines.append(
                f"  {row.program}: {factor:.2f} times {word} (quartiles {low:.2f} to {high:.2f})"
            )
    few = any(len(row.ratios(peer)) < ENOUGH_ROUNDS for row in run.rows)
    none = "No change is beyond the noise of its rounds."
    return lines or [
        f"  At least {ENOUGH_ROUNDS} rounds tell a change from noise." if few else f"  {none}"
    ]


def _fixed(run: Run) -> list[str]:
    fixed = run.fixed
    bars = {"fork/join": FORK_JOIN_BAR, "call of an 8-element add": CALL_BAR}
    lines = [f"Fixed costs, {run.threads} threads, microseconds (bar, with all cores free):"]
    for name, value in fixed.items():
        if name.startswith("threads"):
            lines.append(f"  {name}: {value:.0f}")
        else:
            bar = f" (bar {bars[name]:g})" if name in bars else ""
            lines.append(f"  {name}: {micro(value)}{bar}")
    return lines


def markdown(run: Run) -> str:
    """The tables as Markdown."""
    rows = [run.columns.header(), *(run.columns.cells(row) for row in run.rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    body = summary(run).replace("\n  ", "\n- ")
    return (
        f"Microseconds: median of the blocks' medians (fastest run); {run.threads} threads.\n\n"
        + "\n".join(lines)
        + f"\n\n{body}\n"
    )


def as_json(run: Run) -> dict[str, Any]:
    """All figures, in seconds."""
    return {
        "threads": run.threads,
        "peers": run.columns.peers,
        "revisions": run.columns.revisions,
        "fixed": run.fixed,
        "other_load": run.other_load,
        "rows": [
            {
                "program": row.program,
                "compile": row.compile,
                "bound": row.bound,
                "blocks": row.blocks,
                "errors": row.errors,
                "ratios": {peer: row.ratio(peer) for peer in run.columns.others},
                "over_bound": {peer: row.over_bound(peer) for peer in run.columns.peers},
            }
            for row in run.rows
        ],
    }
