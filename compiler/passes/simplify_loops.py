# SPDX-License-Identifier: Apache-2.0
"""The ``simplify-loops`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import (
    Rewriter,
    effectful_functions,
    erase_unreferenced,
    fresh_name,
    has_uses,
    is_private,
    is_pure,
    snapshot,
)
from gristmill.dialects import hlo


@dataclass(frozen=True)
class SimplifyLoopsPass(Pass):
    """Carry through ``while`` loops only what changes and is used.

    Requires: single-block functions without ``func.call`` (``inline-calls``).
    Guarantees: a carried value that the body returns unchanged is replaced after the loop by its initial
    value; if that is a constant, a broadcast constant or an iota, the condition and body hold it
    themselves. A carried value that neither the condition, a used result nor another carried value
    depends on is dropped. Loops inside loops are treated alike.
    Does not handle: hoisting out of loops, unrolling, values carried twice.
    """

    name: ClassVar[str] = "simplify-loops"

    def run(self, module: HloModule) -> None:
        """Simplify loops, outer before inner."""
        functions = module.functions()
        effectful = effectful_functions(module)
        pending = [name for name, function in functions.items() if not is_private(function)]
        done: set[str] = set()
        while pending:
            name = pending.pop()
            if name in done:
                continue
            done.add(name)
            rewriter = Rewriter(module, functions[name], effectful)
            for op in reversed(rewriter.ops):  # a use that goes makes earlier loops' results unused
                if hlo.short_name(op) == "while":
                    _Loop(rewriter, op, functions).simplify()
            for op in snapshot(functions[name]):
                pending.extend(hlo.computations(op))
        erase_unreferenced(module)


class _Loop:
    """One ``while`` and its two functions."""

    def __init__(self, rewriter: Rewriter, op: ir.Operation, functions: dict[str, ir.Operation]):
        self._rewriter = rewriter
        self._op = op
        self._functions = functions
        self._effectful = rewriter.effectful
        self._condition = functions[hlo.symbol(op, "cond")]
        self._body = functions[hlo.symbol(op, "body")]
        self._returned = list(snapshot(self._body)[-1].operands)

    def simplify(self) -> None:
        """Rebuild the loop if some carried value can go."""
        operands, results = list(self._op.operands), list(self._op.results)
        arguments = list(self._body.regions[0].blocks[0].arguments)
        invariant = [a == b for a, b in zip(arguments, self._returned, strict=True)]
        for same, result, operand in zip(invariant, results, operands, strict=True):
            if same:
                result.replace_all_uses_with(operand)
        if not has_uses(self._op) and is_pure(self._op, self._effectful):
            self._rewriter.erase(self._op)
            return
        sunk = {
            index: chain
            for index, operand in enumerate(operands)
            if invariant[index] and (chain := self._constant_chain(operand))
        }
        live = self._live()
        kept = [index for index in range(len(operands)) if index in live and index not in sunk]
        if len(kept) == len(operands):
            return
        condition = self._specialise(self._condition, kept, sunk, None)
        body = self._specialise(self._body, kept, sunk, kept)
        loop = hlo.build(
            "while",
            [results[index].type for index in kept],
            [operands[index] for index in kept],
            cond=condition,
            body=body,
            loc=self._op.location,
            ip=ir.InsertionPoint(self._op),
        )
        for index, result in zip(kept, loop.results, strict=True):
            results[index].replace_all_uses_with(result)
        self._rewriter.erase(self._op)

    def _constant_chain(self, value: ir.Value) -> list[ir.Operation]:
        """The ops that make a constant, a broadcast constant or an iota; empty for anything else."""
        op = self._rewriter.producer(value)
        kind = hlo.short_name(op) if op is not None else ""
        if op is not None and kind in ("constant", "iota"):
            return [op]
        if op is not None and kind == "broadcast_in_dim":
            source = self._rewriter.producer(op.operands[0], "constant")
            return [source, op] if source is not None else []
        return []

    def _live(self) -> set[int]:
        """Carried values that the condition, used results or side effects depend on."""
        live = self._arguments_behind(self._condition, snapshot(self._condition)[-1].operands)
        live |= {
            index
            for index, result in enumerate(self._op.results)
            if next(result.uses, None) is not None
        }
        live |= self._arguments_behind(self._body, [])
        pending = list(live)
        while pending:
            for index in self._arguments_behind(self._body, [self._returned[pending.pop()]]) - live:
                live.add(index)
                pending.append(index)
        return live

    def _specialise(
        self,
        function: ir.Operation,
        kept: Sequence[int],
        sunk: dict[int, list[ir.Operation]],
        results: Sequence[int] | None,
    ) -> str:
        """A copy with only the kept parameters (and results), sunk constants inside; its name."""
        old = function.regions[0].blocks[0]
        arguments = list(old.arguments)
        ops = snapshot(function)
        returned = list(ops[-1].operands)
        if results is not None:
            returned = [returned[index] for index in results]
        base = ir.StringAttr(function.attributes["sym_name"]).value
        name = fresh_name(self._functions, base)
        copy = declare(
            function, name, [arguments[i].type for i in kept], [v.type for v in returned]
        )
        self._functions[name] = copy
        block = copy.regions[0].blocks[0]
        mapping: dict[ir.Value, ir.Value] = {}
        mapping.update(zip([arguments[i] for i in kept], block.arguments, strict=True))
        point = ir.InsertionPoint(block)
        for index, chain in sunk.items():
            for op in chain:
                copy_op(op, mapping, point)
            mapping[arguments[index]] = mapping[chain[-1].results[0]]
        needed = self._needed(ops, returned)
        for op in ops[:-1]:
            if op in needed:
                copy_op(op, mapping, point)
        ir.Operation.create(
            "func.return",
            operands=[mapping[value] for value in returned],
            loc=ops[-1].location,
            ip=point,
        )
        return name

    def _needed(self, ops: list[ir.Operation], values: Sequence[ir.Value]) -> set[ir.Operation]:
        """The ops that the values or a side effect depend on."""
        wanted = set(values)
        needed: set[ir.Operation] = set()
        for op in reversed(ops[:-1]):
            if not is_pure(op, self._effectful) or any(result in wanted for result in op.results):
                needed.add(op)
                wanted.update(op.operands)
        return needed

    def _arguments_behind(self, function: ir.Operation, values: Sequence[ir.Value]) -> set[int]:
        """Numbers of the parameters that the values or a side effect depend on."""
        ops = snapshot(function)
        wanted = set(values)
        for op in self._needed(ops, values):
            wanted.update(op.operands)
        return {
            index
            for index, argument in enumerate(function.regions[0].blocks[0].arguments)
            if argument in wanted
        }


def declare(
    like: ir.Operation, name: str, parameters: list[ir.Type], results: list[ir.Type]
) -> ir.Operation:
    """A private function with an empty entry block in front of ``like``."""
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(parameters, results)),
        },
        regions=1,
        loc=like.location,
        ip=ir.InsertionPoint(like),
    )
    function.regions[0].blocks.append(*parameters, arg_locs=[like.location] * len(parameters))
    return function


def copy_op(op: ir.Operation, mapping: dict[ir.Value, ir.Value], point: ir.InsertionPoint) -> None:
    """Clone with mapped operands; the clone's results join the mapping."""
    clone = op.clone(ip=point).operation
    for index, operand in enumerate(op.operands):
        clone.operands[index] = mapping.get(operand, operand)
    mapping.update(zip(op.results, clone.results, strict=True))
