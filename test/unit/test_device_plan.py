# SPDX-License-Identifier: Apache-2.0
"""Plans: every pair of steps that touch the same bytes is ordered, by a stream or by events, and no more is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.device_plan import LoopNode, PlacedStep, Segment, plan_steps, streams_of
from gristmill.runtime.device_program import BufferRange, CopyStep, LaunchStep, WhileStep
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType


def at(offset: int, nbytes: int = 16, root: str = "arena", index: int = 0) -> BufferRange:
    return BufferRange(root, index, offset, nbytes)  # type: ignore[arg-type]


def launch(reads: list[BufferRange], writes: list[BufferRange]) -> LaunchStep:
    return LaunchStep(0, tuple(reads), tuple(writes))


def ordered(steps: tuple[PlacedStep, ...]) -> np.ndarray:
    """``ordered[a, b]``: whether step a has certainly ended when step b begins."""
    count = len(steps)
    before = np.zeros((count, count), bool)
    last: dict[int, int] = {}
    for number, placed in enumerate(steps):
        direct = [*placed.waits, *([last[placed.stream]] if placed.stream in last else [])]
        for other in direct:
            before[other, number] = True
            before[:, number] |= before[:, other]
        last[placed.stream] = number
    return before


def conflict(one: LaunchStep | CopyStep, other: LaunchStep | CopyStep) -> bool:
    def ends(step: LaunchStep | CopyStep) -> list[tuple[BufferRange, bool]]:
        reads, writes = (
            (step.reads, step.writes)
            if isinstance(step, LaunchStep)
            else ((step.source,), (step.destination,))
        )
        return [(p, False) for p in reads] + [(p, True) for p in writes]

    return any(
        (w or v)
        and p.nbytes
        and q.nbytes
        and (p.root, p.index) == (q.root, q.index)
        and p.offset < q.offset + q.nbytes
        and q.offset < p.offset + p.nbytes
        for p, w in ends(one)
        for q, v in ends(other)
    )


RANGES = st.builds(
    at,
    st.integers(0, 12).map(lambda n: 16 * n),
    st.integers(0, 3).map(lambda n: 16 * n),
    st.just("arena"),
)
LAUNCHES = st.builds(launch, st.lists(RANGES, max_size=2), st.lists(RANGES, min_size=1, max_size=2))


@settings(max_examples=100, deadline=None)
@given(st.lists(LAUNCHES, min_size=1, max_size=12), st.integers(1, 4))
def test_every_conflict_is_ordered(steps: list[LaunchStep], streams: int) -> None:
    (segment,) = plan_steps(steps, streams=streams)
    assert isinstance(segment, Segment)
    assert [placed.step for placed in segment.steps] == steps
    before = ordered(segment.steps)
    for b, later in enumerate(steps):
        for a in range(b):
            assert before[a, b] or not conflict(steps[a], later), (a, b)
    first = {}
    for number, placed in enumerate(segment.steps):
        assert 0 <= placed.stream < streams
        assert placed.first == (first.setdefault(placed.stream, number) == number)
        assert all(segment.steps[w].stream != placed.stream for w in placed.waits)
    ends = {placed.stream: n for n, placed in enumerate(segment.steps)}
    assert sorted(segment.tails) == sorted(ends.values())


def test_branches_that_meet_again() -> None:
    steps = [
        launch([at(0, 16, "input")], [at(0)]),
        launch([at(0, 16, "input")], [at(64)]),
        launch([at(0)], [at(128)]),
        launch([at(64)], [at(192)]),
        launch([at(128), at(192)], [at(0, 16, "output")]),
    ]
    (segment,) = plan_steps(steps)
    assert isinstance(segment, Segment)
    streams = [placed.stream for placed in segment.steps]
    assert streams[0] == streams[2] != streams[1] == streams[3]
    assert [placed.waits for placed in segment.steps[:4]] == [(), (), (), ()]
    assert segment.steps[4].waits == (2,)  # behind step 3, whose stream it is on
    assert streams_of([segment]) == 2


def test_a_chain_needs_one_stream_and_no_events() -> None:
    steps = [launch([at(64 * n)], [at(64 * n + 64)]) for n in range(5)]
    (segment,) = plan_steps(steps)
    assert isinstance(segment, Segment)
    assert {placed.stream for placed in segment.steps} == {0}
    assert not any(placed.waits for placed in segment.steps)


def test_constants_are_read_by_all_at_once() -> None:
    steps = [launch([at(0, 16, "constant")], [at(64 * n)]) for n in range(3)]
    (segment,) = plan_steps(steps)
    assert isinstance(segment, Segment)
    assert len({placed.stream for placed in segment.steps}) == 3


@pytest.mark.parametrize("alias", [None, 0])
def test_an_input_that_may_be_an_output(alias: int | None) -> None:
    signature = Signature("x", ArrayType.parse("4xf32"), donated=alias is not None, alias=alias)
    steps = [
        launch([at(0, 16, "input")], [at(0)]),
        launch([at(64)], [at(0, 16, "output")]),
    ]
    (segment,) = plan_steps(steps, [signature])
    assert isinstance(segment, Segment)
    apart = segment.steps[0].stream != segment.steps[1].stream
    assert apart == (alias is None)


def test_control_flow_cuts_segments_and_empty_copies_go() -> None:
    nothing = CopyStep(at(0, 0), at(64, 0))
    body = launch([at(0)], [at(64)])
    steps = [body, nothing, WhileStep(at(0, 1), (nothing,), (body, body)), body]
    before, loop, after = plan_steps(steps)
    assert isinstance(before, Segment)
    assert isinstance(after, Segment)
    assert isinstance(loop, LoopNode)
    assert len(before.steps) == 1
    assert loop.cond == ()
    assert isinstance(loop.body[0], Segment)
    assert len(loop.body[0].steps) == 2
