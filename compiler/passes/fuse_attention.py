# SPDX-License-Identifier: Apache-2.0
"""The ``fuse-attention`` pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir
from mlir.dialects import func

from gristmill.compiler.graph import load_graph
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.dce_hlo import DceHloPass
from gristmill.compiler.passes.rewriting import fresh_name, snapshot
from gristmill.dialects import hlo


@dataclass(frozen=True)
class FuseAttentionPass(Pass):
    """Merge a dot fusion, the row fusion of its result and the dot fusion of that into one ``attention`` fusion.

    Requires: what ``fuse`` guarantees. Guarantees: as ``fuse``; the scores and weights between the products were read
    by nothing else. Does not handle: products other than f32's, few rows (``attention_of`` decides), data movement
    between the three. Only CPUs have the emitter.
    """

    name: ClassVar[str] = "fuse-attention"

    def run(self, module: HloModule) -> None:
        """Merge in place."""
        functions = module.functions()
        merged = False
        for function in list(functions.values()):
            for op in snapshot(function):
                chain = _chain(op)
                if chain is not None:
                    merged |= _merge(module, functions, chain)
        if merged:
            DceHloPass().run(module)


def _chain(last: ir.Operation) -> list[ir.Operation] | None:
    """The three fusions that end in ``last``, first product first."""
    if not _is_fusion(last, "dot"):
        return None
    rows = _producer(last, "row")
    first = None if rows is None else _producer(rows, "dot")
    return None if rows is None or first is None else [first, rows, last]


def _is_fusion(op: ir.Operation, kind: str) -> bool:
    return op.name == "hlov.fusion" and hlo.string(op, "kind") == kind


def _producer(op: ir.Operation, kind: str) -> ir.Operation | None:
    """The fusion of ``kind`` that computes an operand of ``op`` and nothing else."""
    for operand in op.operands:
        if not isinstance(operand.owner, ir.Block):
            owner = operand.owner.operation
            alone = _is_fusion(owner, kind) and len(owner.results) == 1
            if alone and len(list(owner.results[0].uses)) == 1:
                return owner
    return None


def _merge(
    module: HloModule, functions: dict[str, ir.Operation], chain: Sequence[ir.Operation]
) -> bool:
    """Replace the fusions of ``chain`` by one, if that is attention."""
    from gristmill.compiler.emitters.cpu.attention_problem import attention_of  # loads emitters

    last = chain[-1]
    between = {op.results[0] for op in chain[:-1]}
    inputs = [x for op in chain for x in op.operands if x not in between]
    inputs = list(dict.fromkeys(inputs))
    name = fresh_name(functions, hlo.symbol(last, "calls"))
    with last.location:
        function = _outline(module, functions, name, inputs, chain)
    graph = load_graph(function)
    bodies = {node.symbol("to_apply") for node in graph.nodes if node.kind == "reduce"}
    if attention_of(graph, {body: load_graph(functions[body]) for body in bodies}) is None:
        function.erase()
        return False
    functions[name] = function
    with ir.InsertionPoint(last), last.location:
        kinds = [result.type for result in last.results]
        fusion = hlo.build("fusion", kinds, inputs, calls=name, kind="attention")
    for old, new in zip(last.results, fusion.results, strict=True):
        old.replace_all_uses_with(new)
    for op in reversed(chain):
        op.erase()
    return True


def _outline(
    module: HloModule,
    functions: dict[str, ir.Operation],
    name: str,
    inputs: Sequence[ir.Value],
    chain: Sequence[ir.Operation],
) -> ir.Operation:
    """A function of ``inputs`` that computes what ``chain`` does, one computation after the other."""
    kinds = [x.type for x in inputs], [result.type for result in chain[-1].results]
    with ir.InsertionPoint(module.module.body):
        function = func.FuncOp(name, kinds, visibility="private")
    block = function.add_entry_block()
    outer = dict(zip(inputs, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in chain:
            body = functions[hlo.symbol(op, "calls")].regions[0].blocks[0]
            inner: dict[ir.Value, ir.Value] = {
                argument: outer[operand]
                for argument, operand in zip(body.arguments, op.operands, strict=True)
            }
            outer.update(zip(op.results, _inline(body, inner), strict=True))
        func.ReturnOp([outer[result] for result in chain[-1].results])
    return function.operation


def _inline(body: ir.Block, values: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Copy the operations of ``body``, whose arguments are ``values``; returns what it returns."""
    *operations, terminator = [view.operation for view in body.operations]
    for op in operations:
        copy = op.clone()
        for number, operand in enumerate(op.operands):
            copy.operands[number] = values[operand]
        values.update(zip(op.results, copy.results, strict=True))
    return [values[x] for x in terminator.operands]
