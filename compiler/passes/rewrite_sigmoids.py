# SPDX-License-Identifier: Apache-2.0
"""The ``rewrite-sigmoids`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, Rule, filled, simplify
from gristmill.dialects import builders

#: Types whose arithmetic is not rounded to something narrower after each operation.
_WIDE = ("f32", "f64")


@dataclass(frozen=True)
class RewriteSigmoidsPass(Pass):
    """Compute ``1 + tanh u`` as ``2 logistic(2 u)``, which is the same number.

    The tanh form of GELU (D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units", 2016) is ``x/2 (1 + tanh u)``:
    here it becomes ``x logistic(2 u)``, in about half the operations.

    Requires: nothing. Guarantees: a rewritten sum is as close to the exact one as before, or closer: where tanh is near
    -1 the sum cancels and loses its digits, the logistic function keeps them (it is tiny where the sum was 0). Only
    for f32 and f64, and only where nothing else reads the tanh.
    """

    name: ClassVar[str] = "rewrite-sigmoids"

    def run(self, module: HloModule) -> None:
        """Rewrite every function."""
        simplify(module, _RULES)


def _operands(r: Rewriter, op: ir.Operation) -> list[tuple[Any, ir.Value]]:
    """(splat of one operand, the other), both ways round."""
    lhs, rhs = op.operands[0], op.operands[1]
    return [(r.splat(lhs), rhs), (r.splat(rhs), lhs)]


def _sum(r: Rewriter, op: ir.Operation) -> Sequence[ir.Value] | None:
    """``1 + tanh u`` → ``2 logistic(2 u)``."""
    if r.type(op.results[0]).element not in _WIDE:
        return None
    for constant, value in _operands(r, op):
        tanh = r.producer(value, "tanh")
        if constant == 1 and tanh is not None and r.only_use(value):
            sigmoid = builders.unary("logistic", _twice(r, tanh.operands[0]))
            return [builders.multiply(filled(r, 2.0, sigmoid), sigmoid)]
    return None


def _twice(r: Rewriter, value: ir.Value) -> ir.Value:
    """``2 value``; a factor of ``value`` takes the two in."""
    product = r.producer(value, "multiply")
    if product is not None:
        for constant, other in _operands(r, product):
            if constant is not None:
                return builders.multiply(filled(r, 2.0 * float(constant), other), other)
    return builders.multiply(filled(r, 2.0, value), value)


def _product(r: Rewriter, op: ir.Operation) -> Sequence[ir.Value] | None:
    """``1/2 (2 logistic v)`` → ``logistic v``, exactly."""
    for constant, value in _operands(r, op):
        inner = r.producer(value, "multiply")
        if constant != 0.5 or inner is None:
            continue
        for factor, sigmoid in _operands(r, inner):
            if factor == 2 and r.producer(sigmoid, "logistic") is not None:
                return [sigmoid]
    return None


_RULES: dict[str, tuple[Rule, ...]] = {"add": (_sum,), "multiply": (_product,)}
