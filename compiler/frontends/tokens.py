# SPDX-License-Identifier: Apache-2.0
"""Source modules without tokens at their border, and without asynchronous operations.

A token orders effects. Inside a program it becomes a value that later operations depend on (see
:mod:`gristmill.compiler.frontends.importer`); a caller has no use for it, so the entry neither takes nor returns one.
"""

from __future__ import annotations

from collections.abc import Sequence

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

_TOKEN = "!stablehlo.token"


def is_token(value: Value) -> bool:
    """Whether the value orders effects and holds no data."""
    return str(value.type) == _TOKEN


def drop_entry_tokens(module: ir.Operation) -> None:
    """Take tokens out of the signature of every function that nothing calls, in place.

    A token argument becomes a new token; the donation of an argument to a result is renumbered.
    """
    called = {
        ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        for op in walk(module)
        if op.name == "func.call"
    }
    for op in operations(first_block(module)):
        if op.name != "func.func" or ir.StringAttr(op.attributes["sym_name"]).value in called:
            continue
        if _TOKEN in str(op.attributes["function_type"]) and blocks(regions(op)[0]):
            _drop(op)


def _drop(function: ir.Operation) -> None:
    block = first_block(function)
    if not block.operations or block.operations[-1].operation.name != "func.return":
        return
    inputs = [not is_token(value) for value in arguments(block)]
    for index in reversed([i for i, kept in enumerate(inputs) if not kept]):
        token = arguments(block)[index]
        with ir.InsertionPoint.at_block_begin(block), token.location:
            made = ir.Operation.create("stablehlo.after_all", results=[token.type])
        token.replace_all_uses_with(results(made)[0])
        block.erase_argument(index)
    terminator = block.operations[-1].operation
    returned = operands(terminator)
    outputs = [not is_token(value) for value in returned]
    values = [value for value, kept in zip(returned, outputs, strict=True) if kept]
    with ir.InsertionPoint(terminator), terminator.location:
        ir.Operation.create("func.return", operands=values)
    terminator.erase()
    kinds = [value.type for value in arguments(block)], [value.type for value in values]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
    _keep(function, "res_attrs", outputs)
    _keep(function, "arg_attrs", inputs)
    _renumber(function, outputs)
    if function.parent is not None and "mhlo.input_output_alias" in function.parent.attributes:
        del function.parent.attributes["mhlo.input_output_alias"]  # it counts the tokens


def _keep(function: ir.Operation, name: str, kept: Sequence[bool]) -> None:
    if name in function.attributes:
        entries = zip(ir.ArrayAttr(function.attributes[name]), kept, strict=True)
        function.attributes[name] = ir.ArrayAttr.get([entry for entry, keep in entries if keep])


def _renumber(function: ir.Operation, outputs: Sequence[bool]) -> None:
    """Let ``tf.aliasing_output`` count the results that are left."""
    if "arg_attrs" not in function.attributes:
        return
    dictionaries: list[ir.Attribute] = []
    for dictionary in ir.ArrayAttr(function.attributes["arg_attrs"]):
        entries = {named.name: named.attr for named in ir.DictAttr(dictionary)}
        alias = entries.get("tf.aliasing_output")
        if alias is not None:
            number = sum(outputs[: ir.IntegerAttr(alias).value])
            entries["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerAttr(alias).type, number)
        dictionaries.append(ir.DictAttr.get(entries))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(dictionaries)


def inline_asynchronous(module: ir.Operation) -> None:
    """Put the body of every ``async_start`` in its place and its results in that of ``async_done``."""
    for op in walk(module):
        if op.name == "stablehlo.async_done":
            start = defining_op(operands(op)[0])
            if start is None or start.name != "stablehlo.async_start":
                continue  # reported by the translation
            _inline(start, op)


def _inline(start: ir.Operation, done: ir.Operation) -> None:
    block = first_block(start)
    for argument, operand in zip(arguments(block), operands(start), strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = operations(block)
    for op in body:
        op.move_before(start)
    for old, new in zip(results(done), operands(terminator), strict=True):
        old.replace_all_uses_with(new)
    done.erase()
    start.erase()
