# SPDX-License-Identifier: Apache-2.0
"""Constant matrices of products with few rows, packed once at compile time.

A blocked product reads its right operand in panels of columns, and copies it into that order at every call. For few
rows that costs as much as the product. Where the matrix is a constant, the constant itself is put in order: it becomes
``[panels, k, columns]``, and the fused computation starts by a transpose and a reshape that give the matrix back. The
dot emitter recognises the two and reads the panels as they lie (:func:`packed_parameter`); to anyone else the
computation means what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mlir import ir

from gristmill.compiler.emitters.cpu.dot_build import DotKernel
from gristmill.compiler.emitters.cpu.dot_fusion import dot_of, problem_of
from gristmill.compiler.emitters.cpu.dot_plan import packed_width
from gristmill.compiler.graph import Graph, Node, load_graph
from gristmill.compiler.module import HloModule, is_resource, resource_name
from gristmill.compiler.passes.dce_hlo import DceHloPass
from gristmill.compiler.passes.rewriting import fresh_name, snapshot
from gristmill.compiler.target import Target
from gristmill.dialects import builders, hlo


@dataclass(frozen=True)
class _Use:
    """A product with a constant right operand.

    Attributes:
        fusion: the ``fusion`` op.
        argument: which of its operands is the matrix.
        dot: the product in the fused computation.
        width: columns of a panel.
        contract: the matrix's dimension that is summed over.
    """

    fusion: ir.Operation
    argument: int
    dot: Node
    width: int
    contract: int


def pack_constants(module: HloModule, target: Target) -> None:
    """Pack the constants of a fused module that only such products use; memory does not grow."""
    functions = module.functions()
    packed = False
    with module.context, ir.Location.unknown():
        for op in snapshot(functions["main"]):
            if op.name != "hlo.constant" or not is_resource(op.attributes["value"]):
                continue
            uses = _uses(op, functions, target)
            if uses and len({(use.width, use.contract) for use in uses}) == 1:
                _pack(module, op, uses, functions)
                packed = True
    if packed:
        DceHloPass().run(module)


def _uses(
    constant: ir.Operation, functions: Mapping[str, ir.Operation], target: Target
) -> list[_Use]:
    """The uses of a constant; none when one of them is not a product that packing serves."""
    uses: list[_Use] = []
    for operand in constant.results[0].uses:
        fusion, argument = operand.owner.operation, operand.operand_number
        if fusion.name != "hlov.fusion" or hlo.string(fusion, "kind") != "dot":
            return []
        graph = load_graph(functions[hlo.symbol(fusion, "calls")])
        use = _use(fusion, argument, graph, target)
        if use is None:
            return []
        uses.append(use)
    return uses


def _use(fusion: ir.Operation, argument: int, graph: Graph, target: Target) -> _Use | None:
    dot, matrix = dot_of(graph), graph.parameters[argument]
    alone = matrix.users == [dot] and dot.operands[0] is not matrix and matrix not in graph.results
    if not alone or matrix.type.rank != 2 or dot.operands[0].kind != "parameter":
        return None
    kernel = DotKernel(
        "",
        problem_of(dot),
        tuple(p.type for p in graph.parameters),
        tuple(r.type for r in graph.results),
        dot.operands[0].result,
        argument,
        None,
        None,
        None,
        target.vector_bytes,
    )
    width = packed_width(kernel, target)
    contract = dot.dims("rhs_contracting_dimensions")
    if width is None or len(contract) != 1:
        return None
    return _Use(fusion, argument, dot, width, contract[0])


def _pack(
    module: HloModule,
    constant: ir.Operation,
    uses: list[_Use],
    functions: Mapping[str, ir.Operation],
) -> None:
    name = resource_name(constant.attributes["value"])
    width, contract = uses[0].width, uses[0].contract
    data = module.constants[name]
    rows = data if contract == 0 else data.T
    k, n = rows.shape
    panels = np.ascontiguousarray(rows.reshape(k, n // width, width).transpose(1, 0, 2))
    panels.flags.writeable = False
    stored = fresh_name(module.constants, f"{name}_packed")
    module.constants[stored] = panels
    element = ir.RankedTensorType(constant.results[0].type).element_type
    kind = ir.RankedTensorType.get(list(panels.shape), element)
    with ir.InsertionPoint(constant), constant.location:
        value = builders.constant(ir.Attribute.parse(f"dense_resource<{stored}> : {kind}"))
    for use in uses:
        use.fusion.operands[use.argument] = value
        _unpack(functions[hlo.symbol(use.fusion, "calls")], use, kind)


def _unpack(function: ir.Operation, use: _Use, kind: ir.Type) -> None:
    """Let the computation take panels, from which it restores the matrix."""
    block = function.regions[0].blocks[0]
    parameter = block.arguments[use.argument]
    shape = ir.RankedTensorType(parameter.type).shape
    parameter.set_type(kind)
    returned = [value.type for value in snapshot(function)[-1].operands]
    signature = ir.FunctionType.get([a.type for a in block.arguments], returned)
    function.attributes["function_type"] = ir.TypeAttr.get(signature)
    dot = use.dot.op
    assert dot is not None
    order = [1, 0, 2] if use.contract == 0 else [0, 2, 1]
    with ir.InsertionPoint(dot), dot.location:
        dot.operands[1] = builders.reshape(builders.transpose(parameter, order), shape)
