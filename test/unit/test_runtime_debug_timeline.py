# SPDX-License-Identifier: Apache-2.0
"""Recordings: times, dependencies, Chrome's JSON, and the report of where time went."""

from __future__ import annotations

import itertools
import json
import threading
import time

import numpy as np
import pytest
from device_support import LIMIT

from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import bottlenecks, chrome
from gristmill.runtime.debug.timeline import record
from gristmill.runtime.debug.trace import HostSpan, Step, Trace, Track
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.events import Event
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import UploadOptions

SIZE = 1 << 16
MS = 1_000_000


def data():
    return np.zeros(SIZE, np.uint8)


@pytest.fixture
def recording(device):
    """Upload, host work and download on two streams, joined by events."""
    go = threading.Event()
    with (
        record() as made,
        RawBuffer.allocate(device, SIZE) as buffer,
        device.create_stream("one") as one,
        device.create_stream("two") as two,
    ):
        up = buffer.copy_from_host(data(), stream=one)
        work = one.enqueue(lambda: go.wait(LIMIT) and time.sleep(0.01), name="compute")
        two.wait_event(one.record_event())
        down = buffer.copy_to_host(data(), stream=two)
        with made.span("prepare"):
            time.sleep(0.01)
        go.set()
        down.wait(LIMIT)
        assert up.done
        assert work.done
    return made


def test_steps_and_their_order(device, recording):
    trace = recording.trace()
    up, work, down = trace.steps
    assert [step.track for step in trace.steps] == [
        Track(str(device), "one"),
        Track(str(device), "one"),
        Track(str(device), "two"),
    ]
    assert (up.category, up.kind, up.nbytes) == ("copy", "h2d", SIZE)
    assert (work.category, work.name) == ("host", "compute")
    assert [step.after for step in trace.steps] == [(), (0,), (1,)]
    assert work.duration >= 10 * MS
    assert up.ended <= work.started
    assert work.ended <= down.ended
    assert down.started >= work.ended
    assert all(0 <= s.submitted <= s.started <= s.ended <= trace.duration for s in trace.steps)
    assert all(step.site.file == __file__ for step in trace.steps)
    assert observer.active == ()


def test_waits_of_streams_and_of_the_host(device, recording):
    trace = recording.trace()
    longest = max(trace.waits(), key=lambda wait: wait[2] - wait[1])
    assert (longest[0].name, longest[3]) == ("two", 2)
    assert longest[2] - longest[1] >= 10 * MS
    waits = [span for span in trace.host if span.waits and span.ended - span.started > 5 * MS]
    assert [span.after for span in waits] == [(2,)]
    assert [span.name for span in trace.host if not span.waits] == ["prepare"]


def test_memory_is_counted(device, recording):
    memory = [sample.nbytes for sample in recording.trace().memory]
    assert max(memory) >= SIZE
    assert memory[-1] == 0


def test_chrome_json(device, recording, tmp_path):
    path = tmp_path / "trace.json"
    recording.save(path)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "s", "f", "M", "C"}
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert {"one", "two", "MainThread"} <= set(names.values())
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in slices)
    by_name = {event["name"]: event for event in slices}
    assert "waits for compute" in by_name
    # Arrows: both ends of each, each within a slice of its track.
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) >= 2
    for event in [*starts.values(), *ends.values()]:
        assert any(
            s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
            for s in slices
        )
    compute = by_name["compute"]
    arrows = {
        (names[s["pid"], s["tid"]], names[ends[i]["pid"], ends[i]["tid"]])
        for i, s in starts.items()
    }
    assert ("one", "two") in arrows
    assert ("two", "MainThread") in arrows
    assert compute["dur"] >= 10_000


def test_slices_of_a_track_do_not_overlap(device, recording):
    found: dict[int, list[tuple[float, float]]] = {}
    for event in chrome.document(recording.trace())["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in ("copy", "host", "wait"):
            found.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in found.values():
        spans.sort()
        for (_, stop), (start, _) in itertools.pairwise(spans):
            assert start >= stop - 1e-6


def test_transfers(device):
    upload = UploadOptions(chunk_bytes=SIZE // 4, staging_bytes=SIZE, staged=True)
    with (
        record() as made,
        create_transfer_manager(device, [Shape.parse(f"u8[{SIZE}]")], upload=upload) as manager,
    ):
        out = manager.retrieve_buffer(0)
        reader = out.copy_to_host(data())
        manager.transfer_raw(0, data())
        reader.wait(LIMIT)
        out.close()
    trace = made.trace()
    (transfer,) = trace.transfers
    assert transfer.site.file == __file__
    pieces = [i for i, step in enumerate(trace.steps) if step.kind in ("h2d", "h2h")]
    assert len(pieces) >= 4
    (last,) = [step for step in trace.steps if step.name == f"copy d2h {SIZE} B"]
    assert set(last.after) == set(pieces)
    assert transfer.started <= trace.steps[pieces[0]].started
    phases = [event["ph"] for event in chrome.document(trace)["traceEvents"]]
    assert phases.count("b") == phases.count("e") == 1


def test_failed_and_unfinished_work():
    gate = Event("gate")
    with HostDevice(workers=2) as device, record(most_entries=3) as made:
        stream = device.create_stream(chain_errors=False)
        stream.enqueue(lambda: 1 // 0, name="broken").block(LIMIT)
        pending = stream.enqueue(lambda: None, waits=[gate], name="pending")
        stream.enqueue(lambda: None, name="third")
        stream.enqueue(lambda: None, name="dropped")
        trace = made.trace()
        gate.complete()
        pending.wait(LIMIT)
        stream.close()
    broken, waiting, _ = trace.steps
    assert broken.failed
    assert waiting.unfinished
    assert waiting.ended == trace.duration
    assert trace.dropped == 1


# The report


def step(name, start, stop, track="one", after=(), category="kernel", nbytes=0, kind=""):
    return Step(
        name, category, kind, nbytes, Track("cuda:0", track), True, 0, start * MS, stop * MS, after
    )


def test_report_of_times():
    trace = Trace(
        20 * MS,
        [
            step("copy h2d", 0, 4, "up", category="copy", nbytes=8_000_000, kind="h2d"),
            step("launch a", 4, 10, after=(0,)),
            step("launch b", 6, 8, "two"),
            step("work", 12, 13, "two", (1, 2), category="host"),
        ],
        [HostSpan("main", "b", 0, 5 * MS, True)],
    )
    report = bottlenecks.analyse(trace)
    assert report.wall == 13 * MS
    (copies,) = report.copies
    assert (copies.kind, copies.count, copies.nbytes, copies.time) == ("h2d", 1, 8_000_000, 4 * MS)
    assert copies.rate == pytest.approx(2e9)
    assert (report.kernels, report.host_work, report.host_blocked) == (8 * MS, MS, 5 * MS)
    assert report.overlap == 2 * MS
    assert report.waits == 4 * MS + 2 * MS  # one for the copy; two, free at 8, for a until 10
    assert report.idle == 2 * MS
    assert [s.name for s in report.chain] == ["copy h2d", "launch a", "work"]
    assert report.chain_time == 11 * MS
    one = next(t for t in report.tracks if t.track.name == "one")
    assert (one.steps, one.busy, one.waits, one.idle) == (1, 6 * MS, 4 * MS, 3 * MS)
    text = str(report)
    assert "wall time 13.000 ms" in text
    assert "critical chain: 3 steps, 11.000 ms (85 %)" in text


def test_suggestions():
    chain = [step(f"launch {i}", i, i + 1, after=(i - 1,) if i else ()) for i in range(10)]
    assert "chain of 10 steps" in str(bottlenecks.analyse(Trace(10 * MS, chain)))
    small = [step("copy h2d", i, i + 1, category="copy", nbytes=10, kind="h2d") for i in range(20)]
    assert "20 copies of 10 B on average" in str(bottlenecks.analyse(Trace(20 * MS, small)))
    serial = [
        step("copy h2d", 0, 5, "up", category="copy", nbytes=1 << 24, kind="h2d"),
        step("launch", 5, 10, after=(0,)),
    ]
    assert "hardly overlap" in str(bottlenecks.analyse(Trace(10 * MS, serial)))
    parallel = [
        step("copy h2d", 0, 5, "up", category="copy", nbytes=1 << 24, kind="h2d"),
        step("launch", 0, 5),
    ]
    assert bottlenecks.analyse(Trace(5 * MS, parallel)).suggestions == ()
    gaps = [step("launch", 0, 1), step("launch", 9, 10)]
    assert "nothing to do" in str(bottlenecks.analyse(Trace(10 * MS, gaps)))
    waits = [HostSpan("main", "x", i * MS, (i + 1) * MS, True) for i in range(10)]
    assert "host waited 10 times" in str(
        bottlenecks.analyse(Trace(10 * MS, [step("launch", 0, 10)], waits))
    )


def test_an_empty_trace_has_a_report():
    report = bottlenecks.analyse(Trace(0))
    assert (report.wall, report.chain, report.suggestions) == (0, (), ())
    assert "wall time" in str(report)


def test_report_of_a_recording(device, recording):
    report = bottlenecks.analyse(recording.trace())
    assert report.host_work >= 10 * MS
    assert {copy.kind for copy in report.copies} == {"h2d", "d2h"}
    assert [step.name for step in report.chain] == [s.name for s in recording.trace().steps]
