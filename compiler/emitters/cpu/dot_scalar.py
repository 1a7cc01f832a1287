# SPDX-License-Identifier: Apache-2.0
"""Products too small or too odd to block: one scalar loop per output element."""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.emitters.build import div, for_loop, mod
from gristmill.compiler.emitters.cpu.dot_build import (
    DotKernel,
    Sink,
    multiply_add,
    phase_function,
    sources,
    zero,
)
from gristmill.compiler.emitters.kernel import Phase


def emit_scalar(module: ir.Module, kernel: DotKernel) -> tuple[list[Phase], int, int]:
    """Emit one phase with a task for each row of the output; empty sums are zero.

    Returns phases, workspace and scratch bytes.
    """
    problem = kernel.problem
    rows = problem.batch * problem.m
    name = f"{kernel.name}_compute"
    with phase_function(module, kernel, name, 0, 0) as frame:
        if rows and problem.n:
            lhs, rhs = sources(kernel, frame)
            sink = Sink.of(kernel, frame)

            def row(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                batch, m = div(t, problem.m), mod(t, problem.m)

                def column(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                    def step(k: ir.Value, total: list[ir.Value]) -> list[ir.Value]:
                        a, b = lhs.scalar(batch, m, k), rhs.scalar(batch, n, k)
                        return [multiply_add(a, b, total[0], problem.accumulate)]

                    start = zero(problem.accumulate)
                    total = for_loop(0, problem.k, step, [start])[0] if problem.k else start
                    sink.put(total, batch, m, n)
                    return []

                for_loop(0, problem.n, column)
                return []

            for_loop(frame.begin, frame.end, row)
    return [Phase(name, max(1, rows))], 0, 0
