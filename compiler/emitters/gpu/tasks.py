# SPDX-License-Identifier: Apache-2.0
"""The task emitter: a kernel written as independent tasks, one GPU thread a task.

Every CPU kernel is phases of independent tasks with private scratch memory. That maps to a GPU as it stands: a phase
becomes a launch, a task goes to a thread, scratch becomes the thread's own part of the workspace. So whatever has a
CPU emitter compiles for the GPU; the kinds that matter for speed have emitters of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from mlir import ir
from mlir.dialects import func, memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.gpu.frame import GpuFrame, LaunchFrame
from gristmill.compiler.emitters.kernel import (
    KernelDefinition,
    KernelEmitter,
    KernelSpec,
    Phase,
)
from gristmill.compiler.module import symbol_name
from gristmill.runtime.program import align_up

#: Threads of one block.
BLOCK = 64

#: Threads of one launch at most: further tasks are taken in turn.
MOST_THREADS = 256 * 1024

#: Shares into which an emitter divides work that it divides by the number of threads.
MOST_SHARES = 256

#: Scratch memory of all threads together at most; fewer threads run where each needs much.
MOST_SCRATCH = 64 << 20


class TaskEmitter:
    """Compiles what ``emitter`` compiles for a CPU; see the module docstring."""

    def __init__(self, emitter: Callable[[FusionSource], KernelEmitter], source: FusionSource):
        # The CPU emitters divide some work by the number of threads, with memory for each.
        target = replace(source.target, max_threads=MOST_SHARES)
        self._emitter, self._source = emitter, source
        self._shared = replace(source, target=target)

    def emit(self) -> KernelDefinition:
        """Emit the kernel: one launch for each phase."""
        definition = self._emitter(self._shared).emit()
        spec = definition.spec
        plan = _plan(spec)
        ops = [view.operation for view in definition.source.body.operations]
        noalias = all(
            "arg_attrs" in op.attributes and "llvm.noalias" in str(op.attributes["arg_attrs"])
            for op in ops
        )
        frame = GpuFrame(self._source, plan.workspace_bytes, noalias=noalias)
        for op in ops:
            op.detach_from_parent()
            _rename(op)
            frame.body.append(op)
        for phase, threads in zip(spec.phases, plan.threads, strict=True):
            block = min(threads, BLOCK)
            emit = partial(_run, phase=phase, plan=plan)
            frame.launch(emit, (threads // block,), (block,), phase.copies)
        return frame.finish(spec.kind, spec.flops, spec.inplace)


@dataclass(frozen=True)
class _TaskPlan:
    """Where a task kernel's temporaries lie in the GPU kernel's workspace.

    Attributes:
        threads: of each phase.
        workspace_bytes: of the GPU kernel: the task kernel's own workspace, then every thread's scratch.
        shared_bytes: the task kernel's workspace.
        scratch_bytes: of one thread; 0 when it needs none.
    """

    threads: list[int]
    workspace_bytes: int
    shared_bytes: int
    scratch_bytes: int


def _plan(spec: KernelSpec) -> _TaskPlan:
    stride = align_up(spec.scratch_bytes)
    most = min(MOST_THREADS, max(1, MOST_SCRATCH // stride)) if stride else MOST_THREADS
    threads = [_threads(phase.tasks, most) for phase in spec.phases]
    nbytes = align_up(spec.workspace_bytes) + stride * max(threads)
    return _TaskPlan(threads, nbytes, spec.workspace_bytes, spec.scratch_bytes)


def _threads(tasks: int, most: int) -> int:
    """Threads for ``tasks``: full blocks, unless one block is enough."""
    count = max(1, min(tasks, most))
    return count if count <= BLOCK else -(-count // BLOCK) * BLOCK


def _rename(op: ir.Operation) -> None:
    """Phase functions give their names to the launches."""
    if op.name == "func.func":
        op.attributes["sym_name"] = ir.StringAttr.get(_task_function(symbol_name(op)))
        op.attributes["sym_visibility"] = ir.StringAttr.get("private")


def _task_function(name: str) -> str:
    return f"{name}_task"


def _run(launch: LaunchFrame, phase: Phase, plan: _TaskPlan) -> None:
    """Each thread runs one task in every ``threads``."""
    thread = launch.global_thread()
    stride = align_up(plan.scratch_bytes)
    offset = build.add(build.mul(thread, stride), align_up(plan.shared_bytes))
    workspace = _bytes(launch.workspace, 0, plan.shared_bytes)
    scratch = _bytes(launch.workspace, offset if stride else 0, plan.scratch_bytes)
    buffers = [*launch.arguments, *launch.results, workspace, scratch]

    def call(task: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        bounds = [build.index_value(i) for i in (task, build.add(task, 1))]
        func.CallOp([], _task_function(phase.function), [*buffers, *bounds])
        return []

    threads = math.prod(launch.grid) * math.prod(launch.block)
    build.for_loop(thread, phase.tasks, call, step=threads)


def _bytes(workspace: ir.Value, offset: build.Index, nbytes: int) -> ir.Value:
    kind = build.bytes_type(nbytes)
    return memref.ViewOp(kind, workspace, build.index_value(offset), []).result
