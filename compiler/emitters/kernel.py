# SPDX-License-Identifier: Apache-2.0
"""Kernel definitions: what an emitter produces and what the rest of the pipeline knows of it.

**The CPU kernel ABI, version 1.** A kernel is one or more *phases*; a phase is one function

    void phase(T0 *arg0, …, Tn *res0, …, uint8_t *workspace, uint8_t *scratch,
               int64_t begin, int64_t end)

that computes tasks ``begin <= t < end`` of the phase's ``tasks``. Arguments come first, in operand order, then
results in result order, each a bare pointer to dense row-major data aligned to its element. ``i1`` is one byte, 0 or 1.
``workspace`` points to ``KernelSpec.workspace_bytes`` bytes shared by every thread and phase of one launch;
``scratch`` to ``KernelSpec.scratch_bytes`` bytes private to the calling thread; both 64-byte aligned and
undefined on entry of the first phase (null is never passed). Threads run disjoint task ranges of one phase at once;
all tasks of a phase finish before the next phase starts. A kernel never allocates, forks or fails.

In MLIR a phase is a ``func.func`` over memrefs of signless element types (``i1`` buffers are ``memref<…xi8>``),
workspace and scratch are ``memref<Nxi8>``, begin and end are ``index``; functions are lowered with the bare-pointer
convention.

**The GPU kernel ABI, version 1.** A phase is one launch of one ``gpu.func``

    __global__ void phase(T0 *arg0, …, Tn *res0, …, uint8_t *workspace)

over the grid and block that ``Phase.launch`` states; buffers as above, 16-byte aligned. There is no scratch: what a
thread needs for itself is a part of the workspace. All blocks of a phase finish before the next phase starts. The
simulator runs the same functions (see :mod:`gristmill.compiler.lowering.simulator`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlir import ir

from gristmill.runtime.program import CustomCall
from gristmill.runtime.types import ArrayType

#: Raised when the calling convention above changes; part of every cache key and artifact.
KERNEL_ABI_VERSION = 1


@dataclass(frozen=True)
class LaunchDimensions:
    """How a GPU phase is launched: ``grid`` blocks of ``block`` threads (x, y, z each).

    Attributes:
        grid, block: extents, x first.
        shared_bytes: workgroup memory of one block, all of it static.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Phase:
    """One function of a kernel.

    Attributes:
        function: symbol name.
        tasks: number of independent tasks; 1 means serial.
        parallel: whether splitting the tasks over threads is worth a synchronisation.
        copies: (argument, result) index pairs; a phase that has some does nothing when each pair is one buffer,
            so it is left out of a launch where that is known.
        launch: grid and block of a GPU phase; None on the CPU.
    """

    function: str
    tasks: int = 1
    parallel: bool = False
    copies: tuple[tuple[int, int], ...] = ()
    launch: LaunchDimensions | None = None


@dataclass(frozen=True)
class ExternalCall:
    """A call of a function outside the program, in place of a kernel's code.

    Attributes:
        call: the function and the arrays it sees.
        arguments, results: the numbers of the kernel's arguments and results that are these arrays.
    """

    call: CustomCall
    arguments: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class KernelSpec:
    """What a launch needs to know of a kernel.

    Attributes:
        name: unique kernel name, a C identifier.
        phases: the functions to run, in order.
        arguments: array types of the operands.
        results: array types of the results.
        workspace_bytes: shared temporary memory of one launch.
        scratch_bytes: private temporary memory of one thread.
        flops, bytes: estimated work, for scheduling and reports.
        inplace: (argument, result) index pairs that may be the same buffer.
        kind: the emitter kind that made it.
        external: set when the entry function calls something else than the one phase; it may fail.
    """

    name: str
    phases: tuple[Phase, ...]
    arguments: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    workspace_bytes: int = 0
    scratch_bytes: int = 0
    flops: int = 0
    bytes: int = 0
    inplace: tuple[tuple[int, int], ...] = ()
    kind: str = "loop"
    external: ExternalCall | None = None


@dataclass
class KernelDefinition:
    """A kernel: its spec and the MLIR functions of its phases.

    Attributes:
        spec: the kernel's interface.
        source: a module holding the phase functions (and private helpers), in kernel-level MLIR.
    """

    spec: KernelSpec
    source: ir.Module


class KernelEmitter(Protocol):
    """Anything that turns one fused computation into a kernel."""

    def emit(self) -> KernelDefinition:
        """Emit the kernel; deterministic for equal input."""
        ...


def cache_key(parts: Sequence[str]) -> str:
    """A hex digest naming kernel content: ABI version plus whatever text determines the code."""
    digest = hashlib.sha256(str(KERNEL_ABI_VERSION).encode())
    for part in parts:
        digest.update(b"\0")
        digest.update(part.encode())
    return digest.hexdigest()[:16]
