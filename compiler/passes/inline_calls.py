# SPDX-License-Identifier: Apache-2.0
"""The ``inline-calls`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, call_graph, erase_unreferenced
from gristmill.dialects import hlo
from gristmill.dialects.locations import location_text
from gristmill.errors import PassError


@dataclass(frozen=True)
class InlineCallsPass(Pass):
    """Inline every ``func.call``, and conditionals whose outcome is known.

    Requires: single-block functions; ``hlo`` control flow with outlined computations.
    Guarantees: no ``func.call`` is left; an ``if`` or ``case`` on a constant is replaced by the
    branch it takes and a ``while`` whose condition is constantly false by its operands; private
    functions that nothing refers to any more are gone. Recursion raises ``PassError``.
    Does not handle: computations of ``reduce``, ``sort``…, which stay outlined.
    """

    name: ClassVar[str] = "inline-calls"

    def run(self, module: HloModule) -> None:
        """Inline the calls of ``module``, callees first."""
        functions = module.functions()
        for name in _callees_first(module):
            function = functions[name]
            if len(function.regions[0].blocks) != 1:
                continue
            rewriter = Rewriter(module, function)
            inlined = [_inline(rewriter, op, functions) for op in rewriter.ops]
            while any(inlined):  # inlined bodies may hold conditionals that are now decided
                rewriter.refresh()
                inlined = [_inline(rewriter, op, functions) for op in rewriter.ops]
        erase_unreferenced(module)


def _callees_first(module: HloModule) -> list[str]:
    """Function names in an order where everything a function refers to precedes it."""
    graph = call_graph(module)
    order: list[str] = []
    state: dict[str, bool] = {}  # absent: new, False: being visited, True: done

    def visit(name: str, path: tuple[str, ...]) -> None:
        if state.get(name):
            return
        if name in state:
            cycle = " -> ".join([*path[path.index(name) :], name])
            raise PassError(f"function @{name} calls itself: {cycle}; recursion cannot be compiled")
        state[name] = False
        for callee in sorted(graph[name]):
            visit(callee, (*path, name))
        state[name] = True
        order.append(name)

    for name in graph:
        visit(name, ())
    return order


def _inline(rewriter: Rewriter, op: ir.Operation, functions: dict[str, ir.Operation]) -> bool:
    """Replace ``op`` if it is a call or a decided conditional; whether it was."""
    values: Sequence[ir.Value]
    name = hlo.short_name(op)
    if name == "func.call":
        values = clone_body(_callee(op, hlo.symbol(op, "callee"), functions), op, op.operands)
    elif name in ("if", "case"):
        selector = rewriter.splat(op.operands[0])
        if selector is None:
            return False
        branches = hlo.symbols(op, "branches")
        index = int(not selector) if name == "if" else int(selector)
        if not 0 <= index < len(branches):
            index = len(branches) - 1
        values = clone_body(_callee(op, branches[index], functions), op, list(op.operands)[1:])
    elif name == "while" and _never_runs(rewriter, _callee(op, hlo.symbol(op, "cond"), functions)):
        values = list(op.operands)
    else:
        return False
    rewriter.replace(op, values)
    return True


def _callee(op: ir.Operation, name: str, functions: dict[str, ir.Operation]) -> ir.Operation:
    function = functions.get(name)
    if function is None or len(function.regions[0].blocks) != 1:
        where = location_text(op.location)
        raise PassError(f"function @{name} is not defined", location=where, op=op.name)
    return function


def _never_runs(rewriter: Rewriter, condition: ir.Operation) -> bool:
    body = Rewriter(rewriter.module, condition)
    result = body.splat(body.ops[-1].operands[0])
    return result is not None and not result


def clone_body(
    function: ir.Operation, before: ir.Operation, arguments: Sequence[ir.Value]
) -> list[ir.Value]:
    """Copy the body of ``function`` in front of ``before``; the values it returns."""
    block = function.regions[0].blocks[0]
    mapping: dict[ir.Value, ir.Value] = dict(zip(block.arguments, arguments, strict=True))
    point = ir.InsertionPoint(before)
    for view in list(block.operations):
        op = view.operation
        if op.name == "func.return":
            return [mapping[value] for value in op.operands]
        clone = op.clone(ip=point)
        for index, operand in enumerate(op.operands):
            clone.operands[index] = mapping[operand]
        mapping.update(zip(op.results, clone.results, strict=True))
    raise PassError(f"function {function.attributes['sym_name']} does not return")
