# SPDX-License-Identifier: Apache-2.0
"""Buffer assignment: which values share memory, what must be copied, and where everything lives.

Values that a copy would connect (a loop's operand, variable and next value; a branch's result; an output) and
arguments that a kernel may update in place are merged into one buffer whenever their lifetimes allow, the
costliest copies first. What could not be merged becomes a :class:`Transfer`. Buffers holding an output are that
output's memory; the rest is packed into the arena.

An input that was donated to output ``j`` may be the same memory as that output at run time. It therefore
counts as a member of the output's buffer, though it is read through its own pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gristmill.compiler.program.liveness import analyse, span
from gristmill.compiler.program.pack import pack
from gristmill.compiler.program.plan import (
    Block,
    LaunchStep,
    Place,
    Plan,
    Transfer,
    Value,
    WhileStep,
)
from gristmill.compiler.program.schedule import UPDATE_KINDS

#: What one more level of loop nesting is assumed to multiply a copy's cost by.
_LOOP_FACTOR = 8


@dataclass(eq=False)
class _Buffer:
    """Values that share memory."""

    members: list[Value]
    mask: int
    nbytes: int
    output: Value | None = None


@dataclass(frozen=True)
class _Wish:
    """Two values that would better share a buffer; both may be live at ``time``."""

    weight: int
    first: Value
    second: Value
    time: int


class _Assignment:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.buffers: dict[Value, _Buffer] = {}
        self.allowed: dict[int, set[tuple[int, int]]] = {}
        for target in plan.targets:
            buffer = _Buffer([target], target.mask, target.nbytes, target)
            self.buffers[target] = buffer
        for argument, signature in zip(plan.arguments, plan.inputs, strict=True):
            if signature.alias is not None:
                buffer = self.buffers[plan.targets[signature.alias]]
                buffer.members.append(argument)
                buffer.mask |= argument.mask
                self.buffers[argument] = buffer
                self.allow(argument, plan.targets[signature.alias], plan.end)

    def buffer(self, value: Value) -> _Buffer:
        known = self.buffers.get(value)
        if known is None:
            known = self.buffers[value] = _Buffer([value], value.mask, value.nbytes)
        return known

    def allow(self, first: Value, second: Value, time: int) -> None:
        pairs = self.allowed.setdefault(time, set())
        pairs.add((first.number, second.number))
        pairs.add((second.number, first.number))

    def may_move(self, value: Value) -> bool:
        """Whether the value may share a buffer: not an input of its own, not a constant."""
        return value.root == "arena" or value in self.buffers

    def fulfil(self, wishes: Iterable[_Wish]) -> None:
        wishes = [w for w in wishes if self.may_move(w.first) and self.may_move(w.second)]
        for wish in wishes:
            self.allow(wish.first, wish.second, wish.time)
        for wish in sorted(wishes, key=lambda w: -w.weight):
            self.merge(self.buffer(wish.first), self.buffer(wish.second))

    def merge(self, first: _Buffer, second: _Buffer) -> None:
        if first is second or first.nbytes != second.nbytes:
            return
        if first.output is not None and second.output is not None:
            return
        if not self.compatible(first, second):
            return
        if second.output is not None:
            first, second = second, first
        first.members += second.members
        first.mask |= second.mask
        for member in second.members:
            self.buffers[member] = first

    def compatible(self, first: _Buffer, second: _Buffer) -> bool:
        """Whether the two are live together only where that is allowed for each pair of values."""
        common = first.mask & second.mask
        while common:
            bit = common & -common
            pairs = self.allowed.get(bit.bit_length() - 1)
            if pairs is None:
                return False
            for one in first.members:
                if one.mask & bit:
                    for other in second.members:
                        if other.mask & bit and (one.number, other.number) not in pairs:
                            return False
            common ^= bit
        return True

    def transfers(self, pairs: Sequence[tuple[Value, Value]], time: int) -> list[Transfer]:
        """The copies, in order, that move every source to its destination as if all at once."""
        waiting: dict[_Buffer, Transfer] = {}
        for source, destination in pairs:
            target = self.buffer(destination)
            same = source.root == "arena" and self.buffer(source) is target
            if not same and source is not destination:
                waiting[target] = Transfer(source, destination)
        order: list[Transfer] = []
        while waiting:
            read = {
                self.buffers[t.source]: target
                for target, t in waiting.items()
                if t.source in self.buffers and self.buffers[t.source] is not target
            }
            free = next((target for target in waiting if target not in read), None)
            if free is not None:
                order.append(waiting.pop(free))
                continue
            # Every destination is still to be read: a cycle. Save one source to break it.
            blocked = next(iter(waiting))
            reader = read[blocked]
            source = waiting[reader].source
            saved = self.plan.temporary(source.type, span(time, time))
            order.append(Transfer(source, saved))
            for target, transfer in list(waiting.items()):
                if transfer.source in self.buffers and self.buffers[transfer.source] is blocked:
                    waiting[target] = Transfer(saved, transfer.destination)
            self.buffer(saved)
        return order


def assign(plan: Plan) -> None:
    """Give every value of a scheduled plan its place, and the plan its transfers and arena size."""
    analyse(plan)
    assignment = _Assignment(plan)
    assignment.fulfil([*_wishes(plan.main, 1), *_output_wishes(plan)])
    _add_transfers(assignment, plan.main)
    pairs = [(r.resolve(), t) for r, t in zip(plan.results, plan.targets, strict=True)]
    plan.finish = assignment.transfers(pairs, plan.end)
    for value in defined(plan.main):
        assignment.buffer(value)
    _place(plan, assignment)


def _wishes(block: Block, factor: int) -> Iterator[_Wish]:
    for step in block.steps:
        if isinstance(step, LaunchStep):
            yield from _launch_wishes(step, factor)
        elif isinstance(step, WhileStep):
            inner = factor * _LOOP_FACTOR
            for operand, carried, result in step.variables():
                yield _Wish(2 * factor * carried.nbytes, operand, carried, step.start)
                yield _Wish(2 * inner * carried.nbytes, result, carried, step.end_body)
            yield from _wishes(step.cond, inner)
            yield from _wishes(step.body, inner)
        else:
            for branch, yields, end in zip(step.branches, step.yields, step.ends, strict=True):
                for result, value in zip(step.results, yields, strict=True):
                    yield _Wish(2 * factor * result.nbytes, value.resolve(), result, end)
                yield from _wishes(branch, factor)


def _launch_wishes(step: LaunchStep, factor: int) -> Iterator[_Wish]:
    operands = [operand.resolve() for operand in step.operands]
    saves_copy = step.kernel.kind in UPDATE_KINDS
    for argument, result in step.kernel.inplace:
        operand, target = operands[argument], step.results[result]
        # A result that nobody reads is live for the launch only: the operand must really die here. An
        # operand passed twice is also read where in-place access is not promised to be safe.
        dies = not operand.mask >> (step.time + 1) & 1
        if dies and operands.count(operand) == 1:
            weight = (2 if saves_copy else 1) * factor * target.nbytes
            yield _Wish(weight, operand, target, step.time)


def _output_wishes(plan: Plan) -> Iterator[_Wish]:
    for result, target in zip(plan.results, plan.targets, strict=True):
        yield _Wish(2 * target.nbytes, result.resolve(), target, plan.end)


def _add_transfers(assignment: _Assignment, block: Block) -> None:
    for step in block.steps:
        if isinstance(step, LaunchStep):
            continue
        if isinstance(step, WhileStep):
            variables = list(step.variables())
            step.enter = assignment.transfers([(x, w) for x, w, _ in variables], step.start)
            step.repeat = assignment.transfers([(y, w) for _, w, y in variables], step.end_body)
            _add_transfers(assignment, step.cond)
            _add_transfers(assignment, step.body)
            continue
        step.leave = []
        for branch, yields, end in zip(step.branches, step.yields, step.ends, strict=True):
            pairs = [(y.resolve(), r) for y, r in zip(yields, step.results, strict=True)]
            step.leave.append(assignment.transfers(pairs, end))
            _add_transfers(assignment, branch)


def defined(block: Block) -> Iterator[Value]:
    """Every arena value of the block and the blocks in it that must get memory."""
    for step in block.steps:
        if isinstance(step, LaunchStep):
            yield from step.results
            if step.workspace is not None:
                yield step.workspace
        elif isinstance(step, WhileStep):
            yield from (carried for _, carried, _ in step.variables())
            yield from defined(step.cond)
            yield from defined(step.body)
        else:
            yield from step.results
            for branch in step.branches:
                yield from defined(branch)


def _place(plan: Plan, assignment: _Assignment) -> None:
    for values in (plan.arguments, plan.constants, plan.targets):
        for value in values:
            value.place = Place(value.root, value.index, 0, value.nbytes)
    buffers = list(dict.fromkeys(assignment.buffers.values()))
    temporary = [buffer for buffer in buffers if buffer.output is None]
    offsets, plan.arena_bytes = pack([(b.nbytes, b.mask) for b in temporary])
    for buffer, offset in zip(temporary, offsets, strict=True):
        for member in buffer.members:
            member.place = Place("arena", 0, offset, buffer.nbytes)
    for buffer in buffers:
        if buffer.output is not None:
            for member in buffer.members:
                if member.place is None:
                    member.place = buffer.output.place
