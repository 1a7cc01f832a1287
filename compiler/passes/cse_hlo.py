# SPDX-License-Identifier: Apache-2.0
"""The ``cse-hlo`` pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import (
    call_graph,
    effectful_functions,
    erase_unreferenced,
    is_private,
    is_pure,
    snapshot,
)
from gristmill.compiler.text import body_text
from gristmill.dialects import hlo


@dataclass(frozen=True)
class CseHloPass(Pass):
    """Compute equal things once.

    Requires: single-block functions.
    Guarantees: no two pure ops of one function have the same name, operands (in any order when
    commutative), attributes and result types; no two private functions have the same body, so ops
    that apply equal computations are equal.
    Does not handle: ``rng`` (every draw differs), ops with side effects, other dialects.
    """

    name: ClassVar[str] = "cse-hlo"

    def run(self, module: HloModule) -> None:
        """Merge equal functions, then equal ops."""
        _merge_functions(module)
        effectful = effectful_functions(module)
        for function in module.functions().values():
            _merge_ops(function, effectful)


def _merge_functions(module: HloModule) -> None:
    """Let equal private functions share one definition, callees first."""
    functions = module.functions()
    graph = call_graph(module)
    renamed: dict[str, str] = {}
    by_text: dict[str, str] = {}
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done:
            return
        done.add(name)
        for callee in sorted(graph[name]):
            visit(callee)
        function = functions[name]
        if graph[name] & renamed.keys():
            for op in snapshot(function):
                _rename(op, renamed)
        if is_private(function):
            text = body_text(name, function)
            first = by_text.setdefault(text, name)
            if first != name:
                renamed[name] = first

    for name in functions:
        visit(name)
    if renamed:
        erase_unreferenced(module)


def _rename(op: ir.Operation, renamed: dict[str, str]) -> None:
    """Redirect the op's references to renamed functions."""
    if op.name == "func.call":
        callee = hlo.symbol(op, "callee")
        if callee in renamed:
            op.attributes["callee"] = ir.FlatSymbolRefAttr.get(renamed[callee])
        return
    definition = hlo.OPS.get(hlo.short_name(op))
    if definition is None or "computation" not in definition.traits:
        return
    for attribute, kind in definition.attributes.items():
        if kind == "symbol":
            target = hlo.symbol(op, attribute)
            op.attributes[attribute] = hlo.attribute(kind, renamed.get(target, target))
        elif kind == "symbols":
            targets = [renamed.get(target, target) for target in hlo.symbols(op, attribute)]
            op.attributes[attribute] = hlo.attribute(kind, targets)


def _merge_ops(function: ir.Operation, effectful: set[str]) -> None:
    seen: dict[tuple[object, ...], ir.Operation] = {}
    for op in snapshot(function):
        if not is_pure(op, effectful) or op.name == "hlo.rng":
            continue
        operands = list(op.operands)
        if len(operands) == 2 and hlo.has_trait(op, "commutative"):
            operands.sort(key=hash)
        key: tuple[object, ...] = (
            op.name,
            tuple(operands),
            tuple(cast(Iterable[object], op.attributes.items())),
            tuple(result.type for result in op.results),
        )
        first = seen.setdefault(key, op)
        if first is not op:
            for result, value in zip(op.results, first.results, strict=True):
                result.replace_all_uses_with(value)
            op.erase()
