# SPDX-License-Identifier: Apache-2.0
"""Traces as JSON in Chrome's trace event format, which Perfetto reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.runtime.debug.sites import describe
from gristmill.runtime.debug.trace import Step, Trace, Track

Record = dict[str, Any]

_HOST = "host threads"


def save(trace: Trace, path: Path | str) -> None:
    """Write ``trace`` to ``path``."""
    with Path(path).open("w") as file:
        json.dump(document(trace), file, separators=(",", ":"))


def document(trace: Trace) -> Record:
    """The JSON document: complete events, flows, counters and the names of tracks."""
    return {
        "traceEvents": list(_Writer(trace).events()),
        "displayTimeUnit": "ns",
        "otherData": {"producer": "gristmill", "dropped": trace.dropped},
    }


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._processes: dict[str, int] = {}
        self._threads: dict[Track, int] = {}
        self._flows = 0

    def events(self) -> Iterator[Record]:
        for step in self._trace.steps:
            yield self._slice(step.track, step.name, step.category, step.started, step.ended) | {
                "args": _arguments(step)
            }
        for track, start, stop, index in self._trace.waits():
            name = f"waits for {self._blocker(index)}"
            yield self._slice(track, name, "wait", start, stop)
        yield from self._dependencies()
        yield from self._host()
        for number, transfer in enumerate(self._trace.transfers):
            place = self._place(Track(_HOST, "transfers"))
            common = {"name": transfer.name, "cat": "transfer", "id": number, **place}
            args = {"site": describe(transfer.site)}
            yield common | {"ph": "b", "ts": _micros(transfer.started), "args": args}
            yield common | {"ph": "e", "ts": _micros(max(transfer.ended, transfer.started))}
        for sample in self._trace.memory:
            yield {
                "ph": "C",
                "name": sample.name,
                "ts": _micros(sample.time),
                "pid": self._process(sample.name.partition(" ")[0]),
                "args": {"bytes": sample.nbytes},
            }
        yield from self._names()

    def _slice(self, track: Track, name: str, category: str, start: int, stop: int) -> Record:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": _micros(start),
            "dur": _micros(stop - start),
            **self._place(track),
        }

    def _blocker(self, index: int) -> str:
        steps = self._trace.steps
        return steps[max(steps[index].after, key=lambda other: steps[other].ended)].name

    def _dependencies(self) -> Iterator[Record]:
        """An arrow to each step from each step that it waited for on another track."""
        steps = self._trace.steps
        for step in steps:
            for other in step.after:
                if steps[other].track != step.track:
                    yield from self._flow(steps[other], step.track, step.started)

    def _host(self) -> Iterator[Record]:
        for span in self._trace.host:
            track = Track(_HOST, span.thread)
            name = f"wait for {span.name}" if span.waits else span.name
            category = "host wait" if span.waits else "span"
            yield self._slice(track, name, category, span.started, span.ended) | {
                "args": {"site": describe(span.site)}
            }
            for other in span.after:
                yield from self._flow(self._trace.steps[other], track, span.ended - 1)

    def _flow(self, source: Step, track: Track, time: int) -> Iterator[Record]:
        """An arrow; both ends lie within the slices they belong to, which is how viewers find these."""
        self._flows += 1
        common = {"name": "dependency", "cat": "dependency", "id": self._flows}
        at = max(source.ended - 1, source.started)
        yield common | {"ph": "s", "ts": _micros(at), **self._place(source.track)}
        yield common | {"ph": "f", "bp": "e", "ts": _micros(time), **self._place(track)}

    def _place(self, track: Track) -> Record:
        number = self._threads.setdefault(track, len(self._threads) + 1)
        return {"pid": self._process(track.process), "tid": number}

    def _process(self, name: str) -> int:
        return self._processes.setdefault(name, len(self._processes) + 1)

    def _names(self) -> Iterator[Record]:
        for name, number in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        for track, number in self._threads.items():
            place = {"pid": self._processes[track.process], "tid": number}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}}


def _arguments(step: Step) -> Record:
    arguments: Record = {"site": describe(step.site)}
    if step.nbytes:
        arguments["bytes"] = step.nbytes
        if step.duration > 0:
            arguments["GB/s"] = round(step.nbytes / step.duration, 3)
    for flag in ("failed", "unfinished"):
        if getattr(step, flag):
            arguments[flag] = True
    return arguments


def _micros(nanoseconds: int) -> float:
    return nanoseconds / 1000
