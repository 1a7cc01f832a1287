# SPDX-License-Identifier: Apache-2.0
"""The ``rewrite-error-functions`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, Rule, simplify
from gristmill.dialects import builders, hlo

#: Types whose arithmetic is not rounded to something narrower after each operation.
_WIDE = ("f32", "f64")


@dataclass(frozen=True)
class RewriteErrorFunctionsPass(Pass):
    """Compute what selects between forms of 1 + erf x as ``erfc(-x)``, which every one of them is.

    The distribution function of the normal distribution has often the form ``|x| < c ? 1 + erf x : x > 0 ? 2 -
    erfc |x| : erfc |x|`` times 1/2 (S. L. Moshier's Cephes library, and what descends from it), so that no form loses
    digits. All of them are computed for every element, and ``erfc`` of any argument loses none either.

    Requires: nothing. Guarantees: the result is as close to the exact one as before, or closer. Only for f32 and f64.
    """

    name: ClassVar[str] = "rewrite-error-functions"

    def run(self, module: HloModule) -> None:
        """Rewrite every function."""
        simplify(module, _RULES)


def _by_sign(r: Rewriter, op: ir.Operation) -> Sequence[ir.Value] | None:
    """``x > 0 ? 2 - erfc |x| : erfc |x|`` → ``erfc(-x)``."""
    pred, difference, tail = op.operands
    compared, subtracted = r.producer(pred, "compare"), r.producer(difference, "subtract")
    if compared is None or subtracted is None or r.type(tail).element not in _WIDE:
        return None
    x, bound = compared.operands
    positive = hlo.string(compared, "direction") in ("GT", "GE") and r.splat(bound) == 0
    if not positive or r.splat(subtracted.operands[0]) != 2:
        return None
    tails = (tail, subtracted.operands[1])
    return [_erfc_of_negated(x)] if all(_is_tail(r, value, x) for value in tails) else None


def _is_tail(r: Rewriter, value: ir.Value, x: ir.Value) -> bool:
    """Whether ``value`` is ``erfc |x|``."""
    erfc = r.producer(value, "erfc")
    magnitude = None if erfc is None else r.operand(erfc, 0, "abs")
    return magnitude is not None and magnitude.operands[0] == x


def _erfc_of_negated(x: ir.Value) -> ir.Value:
    return builders.unary("erfc", builders.negate(x))


def _of_equals(r: Rewriter, op: ir.Operation) -> Sequence[ir.Value] | None:
    """``p ? 1 + erf x : erfc(-x)``, or the other way round, → ``erfc(-x)``."""
    _, on_true, on_false = op.operands
    if r.type(on_true).element not in _WIDE:
        return None
    for total, tail in ((on_true, on_false), (on_false, on_true)):
        erfc = r.producer(tail, "erfc")
        negated = None if erfc is None else r.operand(erfc, 0, "negate")
        if negated is not None and _is_one_plus_erf(r, total, negated.operands[0]):
            return [tail]
    return None


def _is_one_plus_erf(r: Rewriter, value: ir.Value, x: ir.Value) -> bool:
    """Whether ``value`` is ``1 + erf x``."""
    total = r.producer(value, "add")
    if total is None:
        return False
    for one, other in (tuple(total.operands), tuple(total.operands)[::-1]):
        erf = r.producer(other, "erf")
        if r.splat(one) == 1 and erf is not None and erf.operands[0] == x:
            return True
    return False


_RULES: dict[str, tuple[Rule, ...]] = {"select": (_by_sign, _of_equals)}
