# SPDX-License-Identifier: Apache-2.0
"""The program while it is being scheduled and given memory: plain Python objects, no MLIR.

A :class:`Plan` is a tree of steps. Nested computations are instantiated where they are referred to, so every
:class:`Value` has one definition and one place in memory, and liveness is exact through loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType

#: Where a buffer lives: an input, an output or a constant (by index), or the arena.
Root = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True)
class Place:
    """A byte range: ``offset`` is nonzero only in the arena."""

    root: Root
    index: int
    offset: int
    nbytes: int


@dataclass(eq=False)
class Value:
    """One array of the program.

    Attributes:
        type: its array type where it is defined; users may view it with another shape.
        number: creation order, for deterministic output.
        root, index: where it must live; ``arena`` values may still move into an output.
        alias: the value this one is another name for (reshapes, branch parameters, loop invariants).
        mask: bit ``t`` is set when the value is needed at time ``t``.
        place: its memory, once assigned.
    """

    type: ArrayType
    number: int
    root: Root = "arena"
    index: int = 0
    alias: Value | None = None
    mask: int = 0
    place: Place | None = None

    def resolve(self) -> Value:
        """The value itself, or what it is another name for."""
        value = self
        while value.alias is not None:
            value = value.alias
        return value

    @property
    def nbytes(self) -> int:
        """Storage bytes."""
        return self.type.nbytes

    def at(self) -> Place:
        """Its memory; only after assignment."""
        place = self.resolve().place
        assert place is not None
        return place


@dataclass(frozen=True)
class Transfer:
    """A copy of ``source`` into the memory of ``destination``."""

    source: Value
    destination: Value


@dataclass(eq=False)
class LaunchStep:
    """One kernel launch. ``workspace`` is a value of bytes when the kernel needs one."""

    kernel: KernelSpec
    operands: list[Value]
    results: list[Value]
    workspace: Value | None = None
    time: int = 0


@dataclass(eq=False)
class WhileStep:
    """A loop over ``carried`` values.

    Attributes:
        operands: the values before the loop, one per carried value.
        carried: the value of each loop variable: at once the computations' parameter and the result.
            A variable that the body returns unchanged has become an alias of its operand.
        cond, body: the computations; ``predicate`` is what ``cond`` returns.
        yields: what the body returns, one per carried value.
        enter, repeat: copies made before the loop and after each run of the body.
        start, decide, end_body, end: times: entry, after ``cond``, after ``body``, exit.
    """

    operands: list[Value]
    carried: list[Value]
    cond: Block
    body: Block
    predicate: Value
    yields: list[Value]
    enter: list[Transfer] = field(default_factory=list[Transfer])
    repeat: list[Transfer] = field(default_factory=list[Transfer])
    start: int = 0
    decide: int = 0
    end_body: int = 0
    end: int = 0

    def variables(self) -> Iterator[tuple[Value, Value, Value]]:
        """(operand, carried, yield) of each variable that really changes, resolved."""
        for operand, carried, result in zip(self.operands, self.carried, self.yields, strict=True):
            if carried.alias is None:
                yield operand.resolve(), carried, result.resolve()

    def inner_reads(self) -> set[Value]:
        """Values from outside that the cond or the body needs, loop variables excepted."""
        inner = block_reads(self.cond) | block_reads(self.body)
        inner.add(self.predicate.resolve())
        inner.update(value.resolve() for value in self.yields)
        inner -= block_writes(self.cond) | block_writes(self.body)
        return inner.difference(c for c in self.carried if c.alias is None)


@dataclass(eq=False)
class BranchStep:
    """An ``if`` or ``case``.

    Attributes:
        selector: what chooses the branch.
        branches: the computations; ``yields[k]`` is what branch ``k`` returns.
        results: the op's results.
        leave: for each branch, the copies made at its end.
        start, ends, end: times: entry, after each branch, exit.
    """

    selector: Value
    branches: list[Block]
    yields: list[list[Value]]
    results: list[Value]
    leave: list[list[Transfer]] = field(default_factory=list[list[Transfer]])
    start: int = 0
    ends: list[int] = field(default_factory=list[int])
    end: int = 0


Step = LaunchStep | WhileStep | BranchStep


@dataclass(eq=False)
class Block:
    """A sequence of steps; ``start`` is a time before the first step and after whatever precedes it."""

    name: str
    steps: list[Step] = field(default_factory=list[Step])
    start: int = 0


@dataclass
class Plan:
    """A whole program.

    Attributes:
        name: the module's name.
        main: the entry computation.
        inputs, outputs: its signature.
        arguments: the input values; ``results`` what it returns; ``targets`` the output buffers.
        constants: constant values; their data is numbered by ``Value.index``.
        finish: copies made at the end, at time ``end``.
        count: how many values exist (numbers the next one).
        arena_bytes: size of the arena, once packed.
    """

    name: str
    main: Block
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    arguments: list[Value]
    results: list[Value]
    targets: list[Value]
    constants: list[Value]
    count: int
    finish: list[Transfer] = field(default_factory=list[Transfer])
    end: int = 0
    arena_bytes: int = 0

    def temporary(self, kind: ArrayType, mask: int) -> Value:
        """A new arena value that is needed at the times of ``mask``."""
        self.count += 1
        return Value(kind, self.count - 1, mask=mask)


def reads(step: Step) -> set[Value]:
    """Values from outside that a step (nested computations included) needs, resolved."""
    if isinstance(step, LaunchStep):
        return {operand.resolve() for operand in step.operands}
    if isinstance(step, WhileStep):
        return step.inner_reads() | {operand.resolve() for operand in step.operands}
    needed = {step.selector.resolve()}
    for block, yields in zip(step.branches, step.yields, strict=True):
        inner = block_reads(block) | {value.resolve() for value in yields}
        needed |= inner - block_writes(block)
    return needed


def writes(step: Step) -> list[Value]:
    """Values that a step defines for the steps after it."""
    if isinstance(step, WhileStep):
        return [carried for carried in step.carried if carried.alias is None]
    return list(step.results)


def block_reads(block: Block) -> set[Value]:
    """Values a block needs from outside."""
    needed: set[Value] = set()
    for step in reversed(block.steps):
        needed.difference_update(writes(step))
        needed |= reads(step)
    return needed


def block_writes(block: Block) -> set[Value]:
    """Values that the steps of a block define (not those of blocks nested in it)."""
    return {value for step in block.steps for value in writes(step)}


def nested(step: Step) -> list[Block]:
    """The computations a step refers to."""
    if isinstance(step, WhileStep):
        return [step.cond, step.body]
    return step.branches if isinstance(step, BranchStep) else []
