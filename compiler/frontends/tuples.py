# SPDX-License-Identifier: Apache-2.0
"""Source modules without tuples: their parts are passed one by one.

StableHLO has tuples at three places: what ``tuple`` makes, the operands and results of custom calls, and the
arguments and results of functions. The last two are spread out, in order and recursively; what is then left are parts
taken out of tuples that were made in the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from jaxlib.mlir import ir

from gristmill.compiler.frontends.views import (
    Value,
    arguments,
    blocks,
    defining_op,
    first_block,
    operands,
    operations,
    regions,
    results,
    walk,
)

#: Attributes of custom calls that count tuples, or say what only XLA uses.
_COUNTED = ("operand_layouts", "result_layouts", "output_operand_aliases")


def remove(module: ir.Operation) -> None:
    """Spread out every tuple of ``module``, in place."""
    for op in walk(module):
        if op.name == "func.func" and blocks(regions(op)[0]):
            if "tuple<" in str(op.attributes["function_type"]):
                _spread_function(op)
        elif op.name in ("func.call", "stablehlo.custom_call") and _has_tuple(op):
            _spread_call(op)
    _fold(module)


def _has_tuple(op: ir.Operation) -> bool:
    return any(isinstance(value.type, ir.TupleType) for value in (*operands(op), *results(op)))


def _leaves(kind: ir.Type) -> Iterator[ir.Type]:
    """The types in a tuple of tuples, or the type itself."""
    if isinstance(kind, ir.TupleType):
        for index in range(kind.num_types):
            yield from _leaves(kind.get_type(index))
    else:
        yield kind


def _unpack(value: Value) -> Iterator[Value]:
    """Operations at the insertion point that take all parts out of ``value``."""
    kind = value.type
    if not isinstance(kind, ir.TupleType):
        yield value
        return
    for index in range(kind.num_types):
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), index)
        part = ir.Operation.create(
            "stablehlo.get_tuple_element",
            results=[kind.get_type(index)],
            operands=[value],
            attributes={"index": number},
        )
        yield from _unpack(results(part)[0])


def _pack(kind: ir.Type, parts: Iterator[Value]) -> Value:
    """The next parts as a value of type ``kind``."""
    if not isinstance(kind, ir.TupleType):
        return next(parts)
    members = [_pack(kind.get_type(index), parts) for index in range(kind.num_types)]
    made = ir.Operation.create("stablehlo.tuple", results=[kind], operands=members)
    return results(made)[0]


def _spread_function(function: ir.Operation) -> None:
    block = first_block(function)
    old = arguments(block)
    kinds = [(kind, argument.location) for argument in old for kind in _leaves(argument.type)]
    new = iter([cast("Value", block.add_argument(*kind)) for kind in kinds])
    with ir.InsertionPoint.at_block_begin(block), function.location:
        for argument in old:
            argument.replace_all_uses_with(_pack(argument.type, new))
    terminator = operations(block)[-1]
    with ir.InsertionPoint(terminator), terminator.location:
        returned = [part for value in operands(terminator) for part in _unpack(value)]
        ir.Operation.create("func.return", operands=returned)
    _spread_attributes(function, "arg_attrs", [value.type for value in old])
    _spread_attributes(function, "res_attrs", [value.type for value in operands(terminator)])
    terminator.erase()
    for index in reversed(range(len(old))):
        block.erase_argument(index)
    signature = [value.type for value in arguments(block)], [value.type for value in returned]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*signature))


def _spread_attributes(function: ir.Operation, name: str, kinds: Sequence[ir.Type]) -> None:
    """One dictionary for each part; those of a tuple's parts are empty."""
    if name not in function.attributes:
        return
    entries: list[ir.Attribute] = []
    for kind, entry in zip(kinds, ir.ArrayAttr(function.attributes[name]), strict=True):
        if isinstance(kind, ir.TupleType):
            entries += [ir.DictAttr.get({}) for _ in _leaves(kind)]
        else:
            entries.append(entry)
    function.attributes[name] = ir.ArrayAttr.get(entries)


def _spread_call(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        call = ir.Operation.create(
            op.name,
            results=[kind for result in results(op) for kind in _leaves(result.type)],
            operands=[part for value in operands(op) for part in _unpack(value)],
            attributes={
                name: value for name, value in op.attributes.items() if name not in _COUNTED
            },
        )
        parts = iter(results(call))
        for result in results(op):
            result.replace_all_uses_with(_pack(result.type, parts))
    op.erase()


def _fold(module: ir.Operation) -> None:
    """Replace parts taken out of tuples by what the tuples were made of."""
    made: list[ir.Operation] = []
    for op in walk(module):
        if op.name == "stablehlo.tuple":
            made.append(op)
        elif op.name == "stablehlo.get_tuple_element":
            maker = defining_op(operands(op)[0])
            if maker is not None and maker.name == "stablehlo.tuple":
                index = ir.IntegerAttr(op.attributes["index"]).value
                results(op)[0].replace_all_uses_with(operands(maker)[index])
                op.erase()
    for op in reversed(made):
        if not list(results(op)[0].uses):
            op.erase()
