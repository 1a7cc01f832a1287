# SPDX-License-Identifier: Apache-2.0
"""Loops with a computed end, for emitters that search, merge or walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import arith, scf


def while_loop(
    initial: Sequence[ir.Value],
    condition: Callable[[list[ir.Value]], ir.Value],
    body: Callable[[list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """``scf.while``: run ``body`` on the carried values as long as ``condition`` of them holds."""
    kinds = [value.type for value in initial]
    loop = scf.WhileOp(kinds, list(initial))
    locations = [ir.Location.unknown()] * len(kinds)
    before = loop.before.blocks.append(*kinds, arg_locs=locations)
    after = loop.after.blocks.append(*kinds, arg_locs=locations)
    with ir.InsertionPoint(before):
        values = list(before.arguments)
        scf.ConditionOp(condition(values), values)
    with ir.InsertionPoint(after):
        scf.YieldOp(list(body(list(after.arguments))))
    return list(loop.results)


def both(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs and rhs`` of two predicates."""
    return arith.AndIOp(lhs, rhs).result


def either(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``lhs or rhs`` of two predicates."""
    return arith.OrIOp(lhs, rhs).result


def choose(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """``condition ? then : otherwise``."""
    return arith.SelectOp(condition, then, otherwise).result
