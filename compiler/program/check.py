# SPDX-License-Identifier: Apache-2.0
"""Proof by simulation that an assigned plan never reads memory that something else has overwritten.

The plan is run on a shadow memory that records which value each byte range holds. Loops run twice, so that what
one iteration leaves behind meets the next; after a conditional only what every branch left in place counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from gristmill.compiler.program.plan import (
    Block,
    BranchStep,
    LaunchStep,
    Place,
    Plan,
    Transfer,
    Value,
    WhileStep,
)

#: (start, end, value) ranges of one root, not ordered.
_Ranges = list[tuple[int, int, Value]]
_Memory = dict[tuple[str, int], _Ranges]


class _Shadow:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.memory: _Memory = {}
        self.aliases = {
            index: signature.alias
            for index, signature in enumerate(plan.inputs)
            if signature.alias is not None
        }

    def root(self, place: Place) -> tuple[str, int]:
        """An input donated to an output is that output's memory."""
        if place.root == "input" and place.index in self.aliases:
            return ("output", self.aliases[place.index])
        return (place.root, place.index)

    def write(self, value: Value, place: Place) -> None:
        assert place.root in ("arena", "output"), f"value {value.number} is written to {place}"
        assert place.root == "output" or place.offset + place.nbytes <= self.plan.arena_bytes
        assert place.offset % 64 == 0
        self.put(value, place)

    def put(self, value: Value, place: Place) -> None:
        start, end = place.offset, place.offset + place.nbytes
        ranges = self.memory.setdefault(self.root(place), [])
        kept = [r for r in ranges if r[1] <= start or end <= r[0]]
        self.memory[self.root(place)] = [*kept, (start, end, value)]

    def read(self, value: Value) -> None:
        value = value.resolve()
        place = value.at()
        if place.root == "constant":
            return
        wanted = (place.offset, place.offset + place.nbytes, value)
        held = self.memory.get(self.root(place), [])
        assert wanted in held, f"value {value.number} is no longer at {place}"

    def copies(self, transfers: Iterable[Transfer], saved: set[Value]) -> None:
        for transfer in transfers:
            self.read(transfer.source)
            self.write(transfer.destination, transfer.destination.at())
            saved.add(transfer.destination)

    def move(self, transfers: list[Transfer], pairs: Iterable[tuple[Value, Value]]) -> None:
        """Transfers, and renaming where a source already is in its destination's memory."""
        done: set[Value] = set()
        self.copies(transfers, done)
        for source, destination in pairs:
            if destination in done:
                continue
            self.read(source)
            assert source.at() == destination.at(), f"value {destination.number} was not copied"
            self.put(destination, destination.at())

    def launch(self, step: LaunchStep) -> None:
        for operand in step.operands:
            self.read(operand)
        for result in step.results:
            self.write(result, result.at())
        if step.workspace is not None:
            self.write(step.workspace, step.workspace.at())
        for result in step.results:
            self.read(result)
        _check_launch(self, step)

    def loop(self, step: WhileStep) -> None:
        variables = list(step.variables())
        self.move(step.enter, [(operand, carried) for operand, carried, _ in variables])
        for _ in range(2):
            self.block(step.cond)
            self.read(step.predicate)
            self.block(step.body)
            self.move(step.repeat, [(result, carried) for _, carried, result in variables])
        self.block(step.cond)
        self.read(step.predicate)

    def branch(self, step: BranchStep) -> None:
        self.read(step.selector)
        before = self.memory
        after: list[_Memory] = []
        for number, branch in enumerate(step.branches):
            self.memory = {root: list(ranges) for root, ranges in before.items()}
            self.block(branch)
            self.move(step.leave[number], zip(step.yields[number], step.results, strict=True))
            after.append(self.memory)
        first, *others = after
        self.memory = {
            root: [r for r in ranges if all(r in other.get(root, []) for other in others)]
            for root, ranges in first.items()
        }

    def block(self, block: Block) -> None:
        for step in block.steps:
            if isinstance(step, LaunchStep):
                self.launch(step)
            elif isinstance(step, WhileStep):
                self.loop(step)
            else:
                self.branch(step)


def _check_launch(shadow: _Shadow, step: LaunchStep) -> None:
    """Results and workspace are disjoint from arguments, except for the kernel's in-place pairs."""
    for number, result in enumerate(step.results):
        for position, operand in enumerate(step.operands):
            if (position, number) in step.kernel.inplace and (
                shadow.root(result.at()) == shadow.root(operand.at())
                and result.at().offset == operand.at().offset
            ):
                continue
            assert not _overlap(shadow, result, operand), (
                f"{step.kernel.name} overwrites an argument"
            )
    if step.workspace is not None:
        for operand in step.operands:
            assert not _overlap(shadow, step.workspace, operand), "workspace overlaps an argument"


def _overlap(shadow: _Shadow, first: Value, second: Value) -> bool:
    one, two = first.at(), second.at()
    return (
        shadow.root(one) == shadow.root(two)
        and one.offset < two.offset + two.nbytes
        and two.offset < one.offset + one.nbytes
    )


def check_plan(plan: Plan) -> None:
    """Run ``plan`` on shadow memory; an ``AssertionError`` is a bug in the assignment."""
    shadow = _Shadow(plan)
    for argument in plan.arguments:
        shadow.put(argument, argument.at())
    shadow.block(plan.main)
    results = [(r.resolve(), t) for r, t in zip(plan.results, plan.targets, strict=True)]
    shadow.move(plan.finish, results)
    for target in plan.targets:
        shadow.read(target)
