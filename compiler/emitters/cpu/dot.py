# SPDX-License-Identifier: Apache-2.0
"""The dot emitter: any ``dot_general``, with fused producers and consumers, as one CPU kernel.

``emit_dot`` picks a form by the product's sizes and the operands' layouts and leaves the loops to ``dot_gemm`` (blocked
matrix products), ``dot_vector`` (a few rows against a large matrix) and ``dot_scalar`` (tiny or empty products).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.emitters.blocking import DEFAULT, Blocking
from gristmill.compiler.emitters.cpu.dot_build import DotKernel, Epilogue, Prologue
from gristmill.compiler.emitters.cpu.dot_gemm import emit_gemm
from gristmill.compiler.emitters.cpu.dot_plan import Form, choose_form, choose_tiling
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem
from gristmill.compiler.emitters.cpu.dot_scalar import emit_scalar
from gristmill.compiler.emitters.cpu.dot_vector import emit_dotted, emit_streamed
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelSpec, Phase
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType

#: Multiply-adds of vectors below which waking other threads costs more than it saves: some 10 us of one core.
_PARALLEL_WORK = 62_500


def emit_dot(
    name: str,
    problem: DotProblem,
    target: Target,
    *,
    arguments: Sequence[ArrayType],
    results: Sequence[ArrayType],
    lhs: int = 0,
    rhs: int = 1,
    epilogue: Epilogue | None = None,
    lhs_prologue: Prologue | None = None,
    rhs_prologue: Prologue | None = None,
    blocking: Blocking = DEFAULT,
) -> KernelDefinition:
    """Emit ``problem`` as a kernel called ``name``, in the current context.

    Args:
        name: kernel name, a C identifier.
        problem: the product.
        target: what to compile for.
        arguments: array types of the kernel's operands.
        results: array types of its results, each with as many elements as the product's output, in its order.
        lhs: which argument is the left operand; unused with a ``lhs_prologue``.
        rhs: which argument is the right operand; unused with a ``rhs_prologue``.
        epilogue: computes the results' elements from a finished element of the output; without one there is one
            result, the output itself.
        lhs_prologue: computes the left operand's elements while packing; it may run once for every task that reads
            the element.
        rhs_prologue: the same for the right operand.
        blocking: how a blocked product deviates from the model's sizes.
    """
    for array in results:
        assert array.size == problem.output.size
    assert epilogue is not None or [r.element for r in results] == [problem.result]
    kernel = DotKernel(
        name,
        problem,
        tuple(arguments),
        tuple(results),
        lhs,
        rhs,
        lhs_prologue,
        rhs_prologue,
        epilogue,
        target.vector_bytes,
    )
    form, swapped = choose_form(kernel, target)
    if swapped:
        kernel = _swap(kernel)
    module = ir.Module.create()
    match form:
        case Form.SCALAR:
            phases, workspace, scratch = emit_scalar(module, kernel)
        case Form.STREAMED | Form.TILED:
            phases, workspace, scratch = emit_streamed(
                module, kernel, target.max_threads, in_tiles=form is Form.TILED
            )
        case Form.DOTTED:
            phases, workspace, scratch = emit_dotted(module, kernel)
        case Form.BLOCKED:
            tiling = choose_tiling(kernel, target, blocking)
            phases, workspace, scratch = emit_gemm(module, kernel, tiling)
    multiply_adds = problem.batch * problem.m * problem.n * problem.k
    work = multiply_adds // kernel.lanes
    traffic = sum(a.nbytes for a in (*arguments, *results))
    spec = KernelSpec(
        name=name,
        phases=tuple(_with_parallelism(p, work) for p in phases),
        arguments=tuple(arguments),
        results=tuple(results),
        workspace_bytes=workspace,
        scratch_bytes=scratch,
        flops=2 * multiply_adds,
        bytes=traffic,
        kind="dot",
    )
    return KernelDefinition(spec, module)


def _swap(kernel: DotKernel) -> DotKernel:
    return dataclasses.replace(
        kernel,
        problem=kernel.problem.swap(),
        lhs=kernel.rhs,
        rhs=kernel.lhs,
        lhs_prologue=kernel.rhs_prologue,
        rhs_prologue=kernel.lhs_prologue,
    )


def _with_parallelism(phase: Phase, work: int) -> Phase:
    return dataclasses.replace(phase, parallel=phase.tasks > 1 and work >= _PARALLEL_WORK)
