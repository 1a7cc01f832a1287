# SPDX-License-Identifier: Apache-2.0
"""Where a traced program's time went, and what to try.

    with timeline.record() as recording:
        ...
    print(bottlenecks.analyse(recording.trace()))

Times of kinds of work are sums over all streams, so they may add up to more than the wall time. The *critical
chain* is the sequence of steps, each waiting for the one before, that runs longest: no number of streams
makes the program faster than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gristmill.runtime.debug.trace import Step, Trace, Track

#: Copies below this size cost more to give than to run.
SMALL_COPY_BYTES = 64 << 10
_MANY_SMALL = 16
_LONG_CHAIN = 8


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Copies of one kind: how many, bytes, nanoseconds that they ran."""

    kind: str
    count: int
    nbytes: int
    time: int

    @property
    def rate(self) -> float:
        """Bytes per second while copies ran."""
        return self.nbytes / self.time * 1e9 if self.time else 0.0


@dataclass(frozen=True, slots=True)
class TrackTime:
    """A stream's time in nanoseconds: it ran, stood still for dependencies, or had nothing to do."""

    track: Track
    steps: int
    busy: int
    waits: int
    idle: int


@dataclass(frozen=True, slots=True)
class Report:
    """Where time went. All times in nanoseconds.

    Attributes:
        wall: from the first step given to the last one's end.
        copies: by kind.
        kernels, host_work: time in kernels, and in functions on streams.
        waits: streams stood still for dependencies.
        idle: no stream of any device ran or waited.
        overlap: at least two streams ran at once.
        host_blocked: threads of the host waited for events.
        tracks: by stream.
        chain: the steps of the critical chain; ``chain_time`` is how long they ran.
        suggestions: what to try, the most promising first.
    """

    wall: int
    copies: tuple[CopyTime, ...]
    kernels: int
    host_work: int
    waits: int
    idle: int
    overlap: int
    host_blocked: int
    tracks: tuple[TrackTime, ...]
    chain: tuple[Step, ...]
    chain_time: int
    suggestions: tuple[str, ...]

    @property
    def copy_time(self) -> int:
        """Time in copies of all kinds."""
        return sum(copy.time for copy in self.copies)

    def __str__(self) -> str:
        def show(time: int) -> str:
            return f"{time / 1e6:.3f} ms ({100 * time / max(self.wall, 1):.0f} %)"

        lines = [f"wall time {self.wall / 1e6:.3f} ms"]
        lines += [
            f"  {copy.kind:9} {show(copy.time)}: {copy.count} of {copy.nbytes} B together, "
            f"{copy.rate / 1e9:.2f} GB/s"
            for copy in self.copies
        ]
        lines += [
            f"  kernels   {show(self.kernels)}",
            f"  host work {show(self.host_work)}",
            f"  waits     {show(self.waits)} of streams for dependencies",
            f"  idle      {show(self.idle)} without any work",
            f"  overlap   {show(self.overlap)} of two streams or more",
            f"  blocked   {show(self.host_blocked)} of host threads",
            f"critical chain: {len(self.chain)} steps, {show(self.chain_time)}",
        ]
        lines += [f"  {step.name} on {step.track.name}" for step in self.chain[:5]]
        if len(self.chain) > 5:
            lines.append(f"  and {len(self.chain) - 5} more")
        lines += [f"- {suggestion}" for suggestion in self.suggestions]
        return "\n".join(lines)


def analyse(trace: Trace) -> Report:
    """Where the time of ``trace`` went."""
    steps = trace.steps
    begin = min((step.submitted for step in steps), default=0)
    end = max((step.ended for step in steps), default=0)
    waits = trace.waits()
    waited = {track: 0 for track in trace.tracks()}
    for track, start, stop, _ in waits:
        waited[track] += stop - start
    tracks: list[TrackTime] = []
    for track, indices in trace.tracks().items():
        busy = _covered([(steps[i].started, steps[i].ended) for i in indices], 1)
        idle = max(end - begin - busy - waited[track], 0)
        tracks.append(TrackTime(track, len(indices), busy, waited[track], idle))
    ran = [(step.started, step.ended) for step in steps]
    occupied = ran + [(start, stop) for _, start, stop, _ in waits]
    chain = critical_chain(steps)
    draft = Report(
        wall=end - begin,
        copies=_copies(steps),
        kernels=sum(step.duration for step in steps if step.category == "kernel"),
        host_work=sum(step.duration for step in steps if step.category == "host"),
        waits=sum(waited.values()),
        idle=max(end - begin - _covered(occupied, 1), 0),
        overlap=_covered(ran, 2),
        host_blocked=sum(span.ended - span.started for span in trace.host if span.waits),
        tracks=tuple(tracks),
        chain=chain,
        chain_time=sum(step.duration for step in chain),
        suggestions=(),
    )
    return _with_suggestions(draft, trace)


def critical_chain(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, each waiting for the one before, whose times add up to the most."""
    best: dict[int, tuple[int, int | None]] = {}
    todo = list(range(len(steps)))
    while todo:
        index = todo[-1]
        if index in best:
            todo.pop()
            continue
        missing = [other for other in steps[index].after if other not in best]
        if missing:
            todo += missing
            continue
        before = max(steps[index].after, key=lambda other: best[other][0], default=None)
        time = 0 if before is None else best[before][0]
        best[index] = (time + steps[index].duration, before)
        todo.pop()
    at = max(best, key=lambda index: best[index][0], default=None)
    chain: list[Step] = []
    while at is not None:
        chain.append(steps[at])
        at = best[at][1]
    return tuple(reversed(chain))


def _copies(steps: Sequence[Step]) -> tuple[CopyTime, ...]:
    kinds = sorted({_kind(step) for step in steps if step.category == "copy"})
    found: list[CopyTime] = []
    for kind in kinds:
        some = [step for step in steps if step.category == "copy" and _kind(step) == kind]
        time = sum(step.duration for step in some)
        found.append(CopyTime(kind, len(some), sum(step.nbytes for step in some), time))
    return tuple(sorted(found, key=lambda copy: -copy.time))


def _kind(step: Step) -> str:
    return step.kind or step.name.partition(" ")[0]


def _covered(intervals: Sequence[tuple[int, int]], depth: int) -> int:
    """How long at least ``depth`` of the intervals overlap."""
    edges = sorted([(start, 1) for start, _ in intervals] + [(stop, -1) for _, stop in intervals])
    total = level = last = 0
    for time, change in edges:
        if level >= depth:
            total += time - last
        level += change
        last = time
    return total


def _with_suggestions(report: Report, trace: Trace) -> Report:
    wall = max(report.wall, 1)
    found: list[tuple[float, str]] = []
    small = [s for s in trace.steps if s.category == "copy" and s.nbytes < SMALL_COPY_BYTES]
    if len(small) >= _MANY_SMALL:
        nbytes = sum(step.nbytes for step in small)
        text = (
            f"{len(small)} copies of {nbytes // len(small)} B on average: copy larger pieces, or put small "
            "arrays into one buffer and slice it"
        )
        found.append((len(small) / len(trace.steps) / 2, text))
    work = report.kernels + report.host_work
    if report.copy_time > wall // 4 and work and report.overlap < min(report.copy_time, work) // 2:
        text = (
            "copies and computation hardly overlap: upload with a transfer manager ahead of the work that needs "
            "the data, and download on another stream, ordered by events"
        )
        found.append((report.copy_time / wall, text))
    blocked = [span for span in trace.host if span.waits]
    if report.host_blocked > wall // 2 and len(blocked) >= _LONG_CHAIN:
        text = (
            f"the host waited {len(blocked)} times for events: give events as waits= to later work, and wait "
            "once at the end"
        )
        found.append((report.host_blocked / wall, text))
    if report.idle > wall // 3:
        text = (
            "devices had nothing to do for long: give work before earlier work has ended, or record repeated "
            "work as a graph"
        )
        found.append((report.idle / wall, text))
    if len(report.chain) >= _LONG_CHAIN and report.chain_time > wall // 2:
        share = 100 * report.chain_time // wall
        text = (
            f"a chain of {len(report.chain)} steps that wait for each other takes {share} % of the time: split "
            "it into independent parts on several streams, or drop waits that only order what shares no memory"
        )
        found.append((report.chain_time / wall, text))
    if report.waits > wall // 2:
        longest = max(trace.waits(), key=lambda wait: wait[2] - wait[1])
        text = (
            f"streams stood still for dependencies, longest {longest[0].name} before "
            f"{trace.steps[longest[3]].name}: give them other work meanwhile"
        )
        found.append((report.waits / wall / 2, text))
    found.sort(key=lambda pair: -pair[0])
    return replace(report, suggestions=tuple(text for _, text in found))
