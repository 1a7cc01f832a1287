# SPDX-License-Identifier: Apache-2.0
"""When each value is needed, as a bit mask over time.

Every step and every entry and exit of a loop or branch is one point of a linear time. The steps of a nested
computation lie between the points of the step that refers to it; the branches of a conditional lie one after
another, and a value is live in those where it is needed. A step reads and writes at its own time, so the masks of
its operands and results overlap there.
"""

from __future__ import annotations

from gristmill.compiler.program.plan import (
    Block,
    BranchStep,
    LaunchStep,
    Plan,
    Value,
    WhileStep,
    block_writes,
)

#: Live values and the last time each is needed.
_Live = dict[Value, int]


def span(first: int, last: int) -> int:
    """The mask of the times ``first`` to ``last``, both included."""
    return (1 << (last + 1)) - (1 << first)


def analyse(plan: Plan) -> None:
    """Number every step and set the mask of every value."""
    plan.end = _number(plan.main, 0)
    live: _Live = {}
    for target, result in zip(plan.targets, plan.results, strict=True):
        target.mask = span(plan.end, plan.end)
        _need(live, result, plan.end)
    _block(plan.main, live)
    for value, last in live.items():  # the inputs
        value.mask |= span(0, last)


def _number(block: Block, time: int) -> int:
    """Number the block from ``time`` on; returns the next free time.

    The time after the last step stays empty: what is live then outlives that step.
    """
    block.start = time
    time += 1
    for step in block.steps:
        if isinstance(step, LaunchStep):
            step.time = time
        elif isinstance(step, WhileStep):
            step.start = time
            step.decide = _number(step.cond, time + 1)
            step.end_body = _number(step.body, step.decide + 1)
            step.end = time = step.end_body + 1
        else:
            step.start = time
            step.ends = []
            for branch in step.branches:
                time = _number(branch, time + 1)
                step.ends.append(time)
            step.end = time = time + 1
        time += 1
    return time + 1


def _need(live: _Live, value: Value, time: int) -> None:
    """The value is read at ``time``; constants are always there."""
    value = value.resolve()
    if value.root != "constant":
        live.setdefault(value, time)


def _define(live: _Live, value: Value, time: int) -> None:
    """The value comes into being at ``time``, whether anything reads it or not."""
    value.mask |= span(time, live.pop(value, time))


def _block(block: Block, live: _Live) -> None:
    for step in reversed(block.steps):
        if isinstance(step, LaunchStep):
            _launch(step, live)
        elif isinstance(step, WhileStep):
            _loop(step, live)
        else:
            _branch(step, live)


def _launch(step: LaunchStep, live: _Live) -> None:
    for result in step.results:
        _define(live, result, step.time)
    if step.workspace is not None:
        step.workspace.mask = span(step.time, step.time)
    for operand in step.operands:
        _need(live, operand, step.time)


def _loop(step: WhileStep, live: _Live) -> None:
    """A loop variable is dead between the body's last read of it and the end of the body."""
    variables = list(step.variables())
    for _, carried, _ in variables:
        _define(live, carried, step.end)
    # What the loop reads from outside is needed in every iteration, so until it ends.
    for value in step.inner_reads():
        _need(live, value, step.end)
    for _, carried, _ in variables:
        _define(live, carried, step.end_body)
    for _, _, result in variables:
        _need(live, result, step.end_body)
    predicate = step.predicate.resolve()
    if predicate in block_writes(step.cond):
        # Every thread reads it; not reusing it in the body saves a barrier.
        _need(live, predicate, step.end_body)
    _block(step.body, live)
    for _, carried, _ in variables:
        if carried in live:
            carried.mask |= span(step.decide, live.pop(carried))
        live[carried] = step.decide
    _block(step.cond, live)
    for _, carried, _ in variables:
        _define(live, carried, step.start)
    for operand, _, _ in variables:
        _need(live, operand, step.start)


def _branch(step: BranchStep, live: _Live) -> None:
    for result in step.results:
        _define(live, result, step.end)
    _need(live, step.selector, step.end)
    entering: list[Value] = []
    for branch, yields, end in reversed(
        list(zip(step.branches, step.yields, step.ends, strict=True))
    ):
        inner = dict(live)
        for result, value in zip(step.results, yields, strict=True):
            result.mask |= span(end, end)
            _need(inner, value, end)
        _block(branch, inner)
        for value, last in inner.items():
            if value not in live:
                value.mask |= span(branch.start, last)
                entering.append(value)
    for value in entering:
        _need(live, value, step.start)
