# SPDX-License-Identifier: Apache-2.0
"""Which stream of a device each step of a program goes to, and what it waits for there.

A program is cut at its loops and branches, where the host decides what comes next, into straight-line *segments*.
Within one, a step depends on the earlier ones that touched the same bytes, one of the two writing; steps that do not
depend on one another go to different streams:

    stream 0   a ──── c ──── e        b waits for nothing, e for d's event: what a stream has in its order
    stream 1   b ──── d ────╯         already, directly or through others, it is not told again

Segments, and the predicates between them, run one after the other: the first step of each stream waits for what was
last on all streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gristmill.runtime.device_program import (
    BufferRange,
    ConditionalStep,
    CopyStep,
    LaunchStep,
    Step,
    WhileStep,
)
from gristmill.runtime.program import Signature

#: Streams that one program uses at most.
MOST_STREAMS = 4


@dataclass(frozen=True)
class PlacedStep:
    """A launch or copy on a stream.

    Attributes:
        stream: its number.
        waits: the steps of the segment, by number, on other streams whose events it waits for.
        first: whether it is its stream's first in the segment.
    """

    step: LaunchStep | CopyStep
    stream: int
    waits: tuple[int, ...]
    first: bool


@dataclass(frozen=True, eq=False)
class Segment:
    """Steps without control flow between them.

    Attributes:
        steps: in program order.
        tails: the last step of each stream in use, by number.
    """

    steps: tuple[PlacedStep, ...]
    tails: tuple[int, ...]


@dataclass(frozen=True)
class LoopNode:
    """See :class:`WhileStep`."""

    predicate: BufferRange
    cond: tuple[Node, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class BranchNode:
    """See :class:`ConditionalStep`."""

    selector: BufferRange
    branches: tuple[tuple[Node, ...], ...]
    boolean: bool


Node = Segment | LoopNode | BranchNode


def plan_steps(
    steps: Sequence[Step], inputs: Sequence[Signature] = (), streams: int = MOST_STREAMS
) -> tuple[Node, ...]:
    """Cut ``steps`` into segments and place each step.

    ``inputs`` say which inputs may be in the memory of an output; ``streams`` is how many to use at most.
    """
    return _Planner(inputs, streams).nodes(steps)


def streams_of(nodes: Iterable[Node]) -> int:
    """How many streams the nodes use: 1 at least."""
    most = 1
    for node in nodes:
        if isinstance(node, Segment):
            most = max(most, *(placed.stream + 1 for placed in node.steps))
        elif isinstance(node, LoopNode):
            most = max(most, streams_of((*node.cond, *node.body)))
        else:
            most = max(most, *(streams_of(branch) for branch in node.branches))
    return most


class _Planner:
    def __init__(self, inputs: Sequence[Signature], streams: int) -> None:
        self._memory = {
            ("input", number): ("output", signature.alias)
            for number, signature in enumerate(inputs)
            if signature.alias is not None
        }
        self._streams = streams

    def nodes(self, steps: Sequence[Step]) -> tuple[Node, ...]:
        found: list[Node] = []
        straight: list[LaunchStep | CopyStep] = []

        def end_segment() -> None:
            if straight:
                found.append(self._segment(tuple(straight)))
                straight.clear()

        for step in steps:
            if isinstance(step, LaunchStep):
                straight.append(step)
            elif isinstance(step, CopyStep):
                if step.source.nbytes and step.source != step.destination:
                    straight.append(step)
            else:
                end_segment()
                found.append(self._control(step))
        end_segment()
        return tuple(found)

    def _control(self, step: WhileStep | ConditionalStep) -> Node:
        if isinstance(step, WhileStep):
            return LoopNode(step.predicate, self.nodes(step.cond), self.nodes(step.body))
        branches = tuple(self.nodes(branch) for branch in step.branches)
        return BranchNode(step.selector, branches, step.boolean)

    def _segment(self, steps: tuple[LaunchStep | CopyStep, ...]) -> Segment:
        lanes = _Lanes(self._streams)
        accesses = _Accesses(self._memory)
        placed = tuple(lanes.place(step, accesses.dependencies(step)) for step in steps)
        return Segment(placed, tuple(number for number in lanes.tails if number >= 0))


class _Accesses:
    """Who touched which bytes last."""

    def __init__(self, memory: dict[tuple[str, int], tuple[str, int]]) -> None:
        self._memory = memory
        #: By memory: begin, end, step, whether it wrote; those that a later write covers are gone.
        self._known: dict[tuple[str, int], list[tuple[int, int, int, bool]]] = {}
        self._count = 0

    def dependencies(self, step: LaunchStep | CopyStep) -> set[int]:
        """The steps that must have ended before ``step``, which is then known."""
        if isinstance(step, LaunchStep):
            reads, writes = step.reads, step.writes
        else:
            reads, writes = (step.source,), (step.destination,)
        found: set[int] = set()
        ranges = [(place, False) for place in reads if place.nbytes]
        ranges += [(place, True) for place in writes if place.nbytes]
        for place, write in ranges:
            begin, end = place.offset, place.offset + place.nbytes
            for other_begin, other_end, number, wrote in self._of(place):
                if (write or wrote) and begin < other_end and other_begin < end:
                    found.add(number)
        for place, write in ranges:
            self._note(place, write)
        self._count += 1
        return found

    def _of(self, place: BufferRange) -> list[tuple[int, int, int, bool]]:
        key = (place.root, place.index)
        return self._known.setdefault(self._memory.get(key, key), [])

    def _note(self, place: BufferRange, write: bool) -> None:
        if place.root == "constant":
            return
        known = self._of(place)
        begin, end = place.offset, place.offset + place.nbytes
        if write:  # whoever comes later waits for this step, which waits for those
            known[:] = [
                other
                for other in known
                if not (begin <= other[0] and other[1] <= end and other[2] != self._count)
            ]
        known.append((begin, end, self._count, write))


class _Lanes:
    """Streams being filled, and what each has waited for."""

    def __init__(self, streams: int) -> None:
        self.tails = [-1] * streams
        self._stream_of: list[int] = []
        #: For each step, the latest step of each stream that has ended when it has.
        self._after: list[tuple[int, ...]] = []

    def place(self, step: LaunchStep | CopyStep, dependencies: set[int]) -> PlacedStep:
        number = len(self._stream_of)
        stream = self._choose(dependencies)
        first = self.tails[stream] < 0
        done = list(self._after[self.tails[stream]]) if not first else [-1] * len(self.tails)
        waits: list[int] = []
        for other in sorted(dependencies, reverse=True):  # the latest imply the most
            if done[self._stream_of[other]] < other:
                waits.append(other)
                done = [max(a, b) for a, b in zip(done, self._after[other], strict=True)]
        done[stream] = number
        self.tails[stream] = number
        self._stream_of.append(stream)
        self._after.append(tuple(done))
        return PlacedStep(step, stream, tuple(sorted(waits)), first)

    def _choose(self, dependencies: set[int]) -> int:
        """Behind a dependency that is a stream's last; else a free stream; else behind the oldest work."""
        behind = [s for s, tail in enumerate(self.tails) if tail in dependencies]
        if behind:
            return max(behind, key=lambda s: self.tails[s])
        return min(range(len(self.tails)), key=lambda s: self.tails[s])
