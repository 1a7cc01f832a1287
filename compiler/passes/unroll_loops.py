# SPDX-License-Identifier: Apache-2.0
"""The ``unroll-loops`` pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.evaluate import evaluate
from gristmill.compiler.passes.inline_calls import clone_body
from gristmill.compiler.passes.rewriting import Rewriter, erase_unreferenced, snapshot
from gristmill.dialects import hlo

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class UnrollLoopsPass(Pass):
    """Replace ``while`` loops of a few known iterations by as many copies of their body.

    So that what the iterations compute can be fused: the rounds of a random number generator become one kernel.
    Requires: single-block functions without ``func.call`` (``inline-calls``). Guarantees: a loop whose condition
    depends only on carried values with constant initial values, updated by foldable operations, that runs at most
    ``max_trips`` times and whose copies hold at most ``max_operations`` operations, is gone. Does not handle: longer
    loops, and loops that count by other means.
    """

    name: ClassVar[str] = "unroll-loops"
    max_trips: int = 8
    max_operations: int = 512

    def run(self, module: HloModule) -> None:
        """Unroll, in every function."""
        functions = module.functions()
        for function in functions.values():
            rewriter = Rewriter(module, function)
            for op in rewriter.ops:
                if hlo.short_name(op) == "while":
                    self._unroll(rewriter, op, functions)
        erase_unreferenced(module)

    def _unroll(
        self, rewriter: Rewriter, op: ir.Operation, functions: Mapping[str, ir.Operation]
    ) -> None:
        body = functions[hlo.symbol(op, "body")]
        trips = self._trips(rewriter, op, functions[hlo.symbol(op, "cond")], body)
        if trips is None or trips * len(snapshot(body)) > self.max_operations:
            return
        values = list(op.operands)
        for _ in range(trips):
            values = clone_body(body, op, values)
        rewriter.replace(op, values)

    def _trips(
        self, rewriter: Rewriter, op: ir.Operation, condition: ir.Operation, body: ir.Operation
    ) -> int | None:
        """How often the body runs, when that is known and at most ``max_trips``."""
        test = _Slice(rewriter.module, condition, [0])
        counters = test.arguments
        while True:  # what the counters' next values depend on must be known too
            step = _Slice(rewriter.module, body, sorted(counters))
            if step.arguments <= counters:
                break
            counters = counters | step.arguments
        state: dict[int, Array] = {}
        for number in counters:
            initial = rewriter.constant(op.operands[number], 64)
            if initial is None:
                return None
            state[number] = initial
        for trips in range(self.max_trips + 1):
            decided = test.evaluate(state)
            if decided is None:
                return None
            if not decided[0]:
                return trips
            following = step.evaluate(state)
            if following is None:
                return None
            state = dict(zip(sorted(counters), following, strict=True))
        return None


class _Slice:
    """The operations behind some results of a function.

    Attributes:
        arguments: numbers of the function's arguments that the results depend on.
    """

    def __init__(self, module: HloModule, function: ir.Operation, results: Sequence[int]):
        self._rewriter = Rewriter(module, function)
        returned = list(self._rewriter.ops[-1].operands)
        self._results = [returned[number] for number in results]
        numbers: dict[ir.Value, int] = {
            a: n for n, a in enumerate(function.regions[0].blocks[0].arguments)
        }
        needed: set[ir.Value] = set()
        stack = list(self._results)
        self.arguments: set[int] = set()
        self._numbers = numbers
        while stack:
            value = stack.pop()
            if value in needed:
                continue
            needed.add(value)
            if value in numbers:
                self.arguments.add(numbers[value])
                continue
            producer = self._rewriter.producer(value)
            if producer is not None:
                stack += producer.operands
        self._ops = [op for op in self._rewriter.ops if any(r in needed for r in op.results)]

    def evaluate(self, state: Mapping[int, Array]) -> list[Array] | None:
        """The results for these argument values, or ``None`` when some operation cannot be folded."""
        values: dict[ir.Value, Array] = {
            argument: state[number] for argument, number in self._numbers.items() if number in state
        }
        for op in self._ops:
            constant = self._rewriter.constant(op.results[0], 64)
            if constant is None:
                operands = [values[operand] for operand in op.operands if operand in values]
                if len(operands) != len(op.operands) or len(op.results) != 1:
                    return None
                constant = evaluate(op, self._rewriter.type(op.results[0]), operands)
            if constant is None:
                return None
            values[op.results[0]] = constant
        return [values[result] for result in self._results]
