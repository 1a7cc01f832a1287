# SPDX-License-Identifier: Apache-2.0
"""The ``canonicalize-hlo`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes import arithmetic_rules, dot_rules, movement_rules, reduce_rules
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, Rule, simplify


@dataclass(frozen=True)
class CanonicalizeHloPass(Pass):
    """Simplify algebraically and bring equal programs to one form.

    Requires: single-block functions.
    Guarantees: results keep their bits, NaN payloads excepted (``power`` by a small integer becomes
    multiplications), and but for what the order of a reduction changes: reductions of one element go,
    those of reductions are merged; splat constants are broadcast scalars; chains of reshapes, transposes, slices,
    broadcasts and exact conversions are one op or none; ``dot_general`` has absorbed the transposes it
    can. With ``remove-barriers``, ``optimization_barrier`` is replaced by its operands: do so only
    after the last folding and merging that it is meant to stop.
    Does not handle: loops and conditionals (``simplify-loops``, ``inline-calls``), constants
    (``fold-constants``).
    """

    name: ClassVar[str] = "canonicalize-hlo"
    remove_barriers: bool = False
    max_sweeps: int = 16

    def run(self, module: HloModule) -> None:
        """Apply the rules to every function until none fits."""
        simplify(module, _rules(self.remove_barriers), max_sweeps=self.max_sweeps)


def _rules(remove_barriers: bool) -> dict[str, tuple[Rule, ...]]:
    tables = [
        arithmetic_rules.RULES,
        movement_rules.RULES,
        dot_rules.RULES,
        reduce_rules.RULES,
    ]
    if remove_barriers:
        tables.append({"optimization_barrier": (_barrier,)})
    merged: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for name, rules in table.items():
            merged[name] = (*merged.get(name, ()), *rules)
    return merged


def _barrier(rewriter: Rewriter, op: ir.Operation) -> Sequence[ir.Value]:
    return list(op.operands)
