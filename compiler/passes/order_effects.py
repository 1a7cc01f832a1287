# SPDX-License-Identifier: Apache-2.0
"""The ``order-effects`` pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import effectful_functions, is_pure, snapshot
from gristmill.dialects import builders, hlo

_CONTROL = ("hlov.while", "hlov.if", "hlov.case")


@dataclass(frozen=True)
class OrderEffectsPass(Pass):
    """Thread one token through everything that has a side effect, in program order.

    Requires: calls inlined.
    Guarantees: every custom call with a side effect in ``main``, or in a computation of control flow reached from it,
    takes and gives a token (a rank-0 ``i1`` named in ``token_operands`` and ``token_results``) that chains it to the
    one before and the one after; loops and branches carry the token where they hold such calls. So data flow alone
    keeps effects in order, and every call has a result.
    Does not handle: effects in computations that are applied to elements (``reduce``, ``sort``, …).
    """

    name: ClassVar[str] = "order-effects"

    def run(self, module: HloModule) -> None:
        """Thread the token in place."""
        effectful = effectful_functions(module)
        if "main" not in effectful:
            return
        functions = module.functions()
        pending, done = [("main", False)], set[str]()
        while pending:
            name, returns = pending.pop()
            if name not in done:
                done.add(name)
                pending += _thread(functions[name], effectful, returns)


def _thread(function: ir.Operation, effectful: set[str], returns: bool) -> list[tuple[str, bool]]:
    """Thread one function; returns the computations to go on with, and whether each returns the token."""
    block = function.regions[0].blocks[0]
    is_main = ir.StringAttr(function.attributes["sym_name"]).value == "main"
    terminator = block.operations[len(block.operations) - 1].operation
    kind = ir.Type.parse("tensor<i1>")
    with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        token = (
            builders.scalar(True, "i1")
            if is_main
            else block.add_argument(kind, ir.Location.unknown())
        )
    nested: list[tuple[str, bool]] = []
    for op in snapshot(function):
        if is_pure(op, effectful) or not op.name.startswith("hlov."):
            continue
        if op.name in _CONTROL:
            nested += _computations(op, effectful)
            token = _extended(op, token, [])
        elif op.name == "hlov.custom_call":
            token = _extended(op, token, ["token_operands", "token_results"])
    if returns:
        with ir.InsertionPoint(terminator), terminator.location:
            ir.Operation.create("func.return", operands=[*terminator.operands, token])
        terminator.erase()
    if not is_main:
        _retype(function)
    return nested


def _computations(op: ir.Operation, effectful: set[str]) -> Iterable[tuple[str, bool]]:
    names = list(hlo.computations(op))
    return [(name, op.name != "hlov.while" or name == hlo.symbol(op, "body")) for name in names]


def _extended(op: ir.Operation, token: ir.Value, counted: Sequence[str]) -> ir.Value:
    """Replace ``op`` by itself with the token as last operand and result; returns the result.

    ``counted``: the attributes that list the token's place among the operands and the results.
    """
    attributes = dict(cast("Iterable[tuple[str, ir.Attribute]]", op.attributes.items()))
    places = (len(op.operands), len(op.results))
    for name, place in zip(counted, places, strict=False):
        known = hlo.dims(op, name) if name in op.attributes else []
        attributes[name] = ir.DenseI64ArrayAttr.get([*known, place])
    new = ir.Operation.create(
        op.name,
        results=[*(result.type for result in op.results), token.type],
        operands=[*op.operands, token],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, result in zip(op.results, new.results, strict=False):
        old.replace_all_uses_with(result)
    op.erase()
    return new.results[len(new.results) - 1]


def _retype(function: ir.Operation) -> None:
    block = function.regions[0].blocks[0]
    returned = block.operations[len(block.operations) - 1].operation.operands
    kinds = [a.type for a in block.arguments], [value.type for value in returned]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
