# SPDX-License-Identifier: Apache-2.0
"""A program for a device that launches kernels, as plain data: what the compiler hands to the runtime.

**The device ABI, version 1.** A kernel takes 64-bit pointers only. A launch passes the addresses of its ``reads``,
then of its ``writes``, in order; each is aligned to 16 bytes at least and holds dense row-major data. A range of
0 bytes stands for memory that the kernel does not touch; its address is valid all the same. Launches have the grid,
block and workgroup memory that :class:`DeviceKernel` states. Steps run as if one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime.program import Signature

#: Raised when the convention above changes; stored in every artifact.
DEVICE_ABI_VERSION = 1

#: Alignment in bytes that kernels rely on.
BUFFER_ALIGNMENT = 16

#: Computations nested in one another at most; a program that needs more is taken for damaged.
MOST_NESTED = 64

Root = Literal["input", "output", "constant", "arena"]
Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Bytes ``offset`` to ``offset + nbytes`` of an input, an output, a constant or the arena.

    Attributes:
        root: which kind of memory.
        index: its number among its kind; 0 for the arena.
    """

    root: Root
    index: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class DeviceKernel:
    """A launch function of the program.

    Attributes:
        name: symbol in the images.
        grid, block: extents, x first.
        shared_bytes: workgroup memory of one block, which the kernel declares itself.
        parameters: number of pointers it takes.
    """

    name: str
    grid: Extents
    block: Extents
    shared_bytes: int
    parameters: int


@dataclass(frozen=True)
class LaunchStep:
    """A launch of kernel number ``kernel``. What it writes it may read back."""

    kernel: int
    reads: tuple[BufferRange, ...]
    writes: tuple[BufferRange, ...]


@dataclass(frozen=True)
class CopyStep:
    """A copy; nothing is done when both are the same memory, as a donated input and its output may be."""

    source: BufferRange
    destination: BufferRange


@dataclass(frozen=True)
class WhileStep:
    """A loop: ``cond`` writes ``predicate`` (one byte), ``body`` runs while it is not zero."""

    predicate: BufferRange
    cond: tuple[Step, ...]
    body: tuple[Step, ...]


@dataclass(frozen=True)
class ConditionalStep:
    """A branch: the first for a true ``boolean`` selector (one byte), else by 32-bit index.

    An index outside the branches stands for the last one.
    """

    selector: BufferRange
    branches: tuple[tuple[Step, ...], ...]
    boolean: bool


Step = LaunchStep | CopyStep | WhileStep | ConditionalStep


@dataclass(frozen=True)
class SimulatorImage:
    """The kernels as code for a CPU that simulates them.

    Attributes:
        objects: relocatable objects with a native function for each kernel.
        triple, cpu, features: what they were compiled for.
    """

    objects: tuple[bytes, ...]
    triple: str
    cpu: str
    features: str


@dataclass(frozen=True)
class Images:
    """The kernels in every form that the program carries; at least one.

    Attributes:
        ptx: text, which a driver compiles for ``chip`` and anything later.
        cubin: machine code of ``chip``.
        simulator: see :class:`SimulatorImage`.
    """

    ptx: str | None = None
    cubin: bytes | None = None
    simulator: SimulatorImage | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the forms that are there."""
        return tuple(k for k in ("ptx", "cubin", "simulator") if getattr(self, k) is not None)


@dataclass(frozen=True)
class DeviceProgram:
    """Everything a :class:`~gristmill.runtime.device_executable.DeviceExecutable` needs.

    Attributes:
        name: the program's name, shown in errors and profiles.
        chip: what the kernels were compiled for, for example ``sm_80``.
        inputs, outputs: the signature, in calling order.
        constants: constant arrays; C-contiguous.
        arena_bytes: temporary memory of one execution.
        kernels: the launch functions.
        steps: what runs.
        images: the kernels' code.
    """

    name: str
    chip: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    constants: Sequence[np.ndarray[Any, Any]]
    arena_bytes: int
    kernels: tuple[DeviceKernel, ...]
    steps: tuple[Step, ...]
    images: Images = field(default_factory=Images)

    def root_bytes(self, root: str, index: int) -> int:
        """The size of a root; raises ``InputError`` for one that does not exist."""
        if root == "arena" and index == 0:
            return self.arena_bytes
        sizes: dict[str, list[int]] = {
            "input": [s.type.nbytes for s in self.inputs],
            "output": [s.type.nbytes for s in self.outputs],
            "constant": [c.nbytes for c in self.constants],
        }
        if not 0 <= index < len(sizes.get(root, ())):
            raise InputError(f"there is no {root} {index}")
        return sizes[root][index]


def walk(steps: Sequence[Step]) -> Iterator[LaunchStep | CopyStep]:
    """Every launch and copy, nested ones included, in program order."""
    for step in steps:
        if isinstance(step, LaunchStep | CopyStep):
            yield step
        elif isinstance(step, WhileStep):
            yield from walk(step.cond)
            yield from walk(step.body)
        else:
            for branch in step.branches:
                yield from walk(branch)


def check_program(program: DeviceProgram) -> None:
    """Raise ``InputError`` saying what is wrong unless every step stays within the program's memory.

    Aligned ranges, existing kernels with fitting parameters, nothing written that may only be read.
    """
    for number, kernel in enumerate(program.kernels):
        extents = (*kernel.grid, *kernel.block)
        if any(not 0 < e < 1 << 31 for e in extents) or kernel.shared_bytes < 0:
            raise InputError(f"kernel {number} ({kernel.name}) has launch extents {extents}")
    _Checker(program).steps(program.steps, 0)


class _Checker:
    def __init__(self, program: DeviceProgram) -> None:
        self._program = program
        self._sizes: dict[tuple[str, int], int] = {}

    def steps(self, steps: Sequence[Step], depth: int) -> None:
        if depth > MOST_NESTED:
            raise InputError(f"steps are nested more than {MOST_NESTED} deep")
        for step in steps:
            if isinstance(step, LaunchStep):
                self._launch(step)
            elif isinstance(step, CopyStep):
                self._range(step.source)
                self._written(step.destination)
                if step.source.nbytes != step.destination.nbytes:
                    raise InputError("a copy's two ranges differ in size")
            elif isinstance(step, WhileStep):
                self._range(step.predicate, 1)
                self.steps(step.cond, depth + 1)
                self.steps(step.body, depth + 1)
            else:
                self._range(step.selector, 1 if step.boolean else 4)
                if not step.branches or (step.boolean and len(step.branches) != 2):
                    raise InputError(f"a conditional has {len(step.branches)} branches")
                for branch in step.branches:
                    self.steps(branch, depth + 1)

    def _launch(self, step: LaunchStep) -> None:
        if not 0 <= step.kernel < len(self._program.kernels):
            raise InputError(f"there is no kernel {step.kernel}")
        kernel = self._program.kernels[step.kernel]
        given = len(step.reads) + len(step.writes)
        if given != kernel.parameters:
            raise InputError(f"{kernel.name} takes {kernel.parameters} arguments, not {given}")
        for place in step.reads:
            self._range(place)
        for place in step.writes:
            self._written(place)
        for place in (*step.reads, *step.writes):
            if place.offset % BUFFER_ALIGNMENT:
                raise InputError(f"{kernel.name}: {place} is not aligned to {BUFFER_ALIGNMENT}")

    def _written(self, place: BufferRange) -> None:
        self._range(place)
        if place.root in ("input", "constant"):
            raise InputError(f"{place} is written, but may only be read")

    def _range(self, place: BufferRange, nbytes: int | None = None) -> None:
        key = (place.root, place.index)
        if key not in self._sizes:
            self._sizes[key] = self._program.root_bytes(*key)
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > self._sizes[key]:
            raise InputError(f"{place} lies outside its {self._sizes[key]} bytes")
        if nbytes is not None and place.nbytes != nbytes:
            raise InputError(f"{place} decides what runs, so it must have {nbytes} bytes")
