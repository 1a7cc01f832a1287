# SPDX-License-Identifier: Apache-2.0
"""The order of steps inside each block.

Program order is kept unless

* a kernel that updates an argument in place, or the producer of a loop variable's next value, can move behind the
  other readers of the old value: then nothing has to be copied;
* a greedy order, which always takes the ready step that leaves the least memory in use, needs clearly
  less memory at its peak.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.compiler.program.plan import (
    Block,
    LaunchStep,
    Plan,
    Value,
    WhileStep,
    nested,
    reads,
    writes,
)

#: Kernels of these kinds touch a small part of an operand that they may update in place.
UPDATE_KINDS = ("update", "scatter")

#: The greedy order must need at most this share of program order's peak memory to be taken.
_WORTHWHILE = 0.9

#: Blocks longer than this keep program order: the greedy order costs quadratic time.
_GREEDY_LIMIT = 1500


@dataclass
class _Graph:
    """Dependences between the steps of one block, by index."""

    reads: list[list[Value]]
    writes: list[list[Value]]
    readers: dict[Value, list[int]]
    producer: dict[Value, int]
    successors: list[set[int]]

    def reaches(self, first: int, last: int) -> bool:
        """Whether ``last`` must come after ``first``."""
        pending, seen = [first], {first}
        while pending:
            for follower in self.successors[pending.pop()]:
                if follower == last:
                    return True
                if follower not in seen:
                    seen.add(follower)
                    pending.append(follower)
        return False

    def prefer(self, first: int, last: int) -> None:
        """Order ``first`` before ``last`` if nothing forbids it."""
        if first != last and last not in self.successors[first] and not self.reaches(last, first):
            self.successors[first].add(last)


def schedule(plan: Plan) -> None:
    """Order every block of ``plan`` in place."""
    _schedule_block(plan.main, [], set(value.resolve() for value in plan.results))


def _schedule_block(
    block: Block, variables: list[tuple[Value, Value, Value]], results: set[Value]
) -> None:
    for step in block.steps:
        if isinstance(step, WhileStep):
            _schedule_block(step.cond, [], {step.predicate.resolve()})
            changing = list(step.variables())
            _schedule_block(step.body, changing, {result for _, _, result in changing})
        else:
            for inner in nested(step):
                _schedule_block(inner, [], set())
    if len(block.steps) < 2:
        return
    graph = _build(block)
    _prefer_in_place(graph, block, variables)
    order = _topological(graph, lambda index: index)
    if len(order) <= _GREEDY_LIMIT:
        greedy = _greedy(graph, results)
        if _peak(graph, greedy, results) < _WORTHWHILE * _peak(graph, order, results):
            order = greedy
    block.steps = [block.steps[index] for index in order]


def _build(block: Block) -> _Graph:
    count = len(block.steps)
    # Sets of values have no stable order; creation numbers do.
    needs = [sorted(reads(step), key=lambda value: value.number) for step in block.steps]
    graph = _Graph(needs, [writes(s) for s in block.steps], {}, {}, [set() for _ in range(count)])
    for index in range(count):
        for value in graph.writes[index]:
            graph.producer[value] = index
    for index in range(count):
        for value in graph.reads[index]:
            graph.readers.setdefault(value, []).append(index)
            if value in graph.producer:
                graph.successors[graph.producer[value]].add(index)
    return graph


def _prefer_in_place(
    graph: _Graph, block: Block, variables: list[tuple[Value, Value, Value]]
) -> None:
    for index, step in enumerate(block.steps):
        if not isinstance(step, LaunchStep) or step.kernel.kind not in UPDATE_KINDS:
            continue
        for argument, _ in step.kernel.inplace:
            for reader in graph.readers.get(step.operands[argument].resolve(), []):
                graph.prefer(reader, index)
    for _, carried, result in variables:
        producer = graph.producer.get(result)
        if producer is not None:
            for reader in graph.readers.get(carried, []):
                graph.prefer(reader, producer)


def _topological(graph: _Graph, priority: Callable[[int], int]) -> list[int]:
    waiting = [0] * len(graph.successors)
    for followers in graph.successors:
        for follower in followers:
            waiting[follower] += 1
    ready = [(priority(index), index) for index, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for follower in sorted(graph.successors[index]):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (priority(follower), follower))
    assert len(order) == len(waiting), "cyclic dependences"
    return order


def _greedy(graph: _Graph, results: set[Value]) -> list[int]:
    """Always the ready step that grows the live memory least; program order breaks ties."""
    waiting = [0] * len(graph.successors)
    for followers in graph.successors:
        for follower in followers:
            waiting[follower] += 1
    uses = {v: len(r) + (v in results) for v, r in graph.readers.items() if v in graph.producer}
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []

    def growth(index: int) -> int:
        made = sum(value.nbytes for value in graph.writes[index])
        freed = sum(value.nbytes for value in graph.reads[index] if uses.get(value) == 1)
        return made - freed

    while ready:
        index = min(ready, key=lambda candidate: (growth(candidate), candidate))
        ready.remove(index)
        order.append(index)
        for value in graph.reads[index]:
            if value in uses:
                uses[value] -= 1
        for follower in graph.successors[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return order


def _peak(graph: _Graph, order: list[int], results: set[Value]) -> int:
    """Peak bytes of values made in the block when the steps run in ``order``."""
    uses = {v: len(r) + (v in results) for v, r in graph.readers.items() if v in graph.producer}
    live = peak = 0
    for index in order:
        live += sum(value.nbytes for value in graph.writes[index])
        peak = max(peak, live)
        for value in graph.reads[index]:
            if value in uses:
                uses[value] -= 1
                if uses[value] == 0:
                    live -= value.nbytes
    return peak
