# SPDX-License-Identifier: Apache-2.0
"""Custom calls that select the first elements by some order, as StableHLO: sorts and slices, or ``chlo.top_k``.

``ApproxTopK`` and ``PartialReduce`` may return any elements that are likely among the first; here they return exactly
the first ones, as XLA does where it has no approximate algorithm. ``mhlo.topk`` is how ``chlo.top_k`` used to be
exported, ``TopK`` what XLA's optimiser makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from gristmill.compiler.frontends.views import (
    Value,
    arguments,
    operands,
    regions,
    results,
    walk,
)
from gristmill.runtime import custom_calls

_APPROXIMATE = ("ApproxTopK", "PartialReduce")
_EXACT = ("mhlo.topk", "TopK")


def expand(module: ir.Operation) -> None:
    """Replace, in place, every call of a known target whose form is understood."""
    for op in walk(module):
        if op.name != "stablehlo.custom_call":
            continue
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if target not in (*_APPROXIMATE, *_EXACT) or custom_calls.is_registered(target):
            continue
        with ir.InsertionPoint(op), op.location:
            made = _approximate(op) if target in _APPROXIMATE else _exact(op)
        if made is not None:
            for old, new in zip(results(op), made, strict=True):
                old.replace_all_uses_with(new)
            op.erase()


def _shape(value: Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _approximate(op: ir.Operation) -> list[Value] | None:
    """The first elements of N operands by the called comparator; N initial values follow the operands."""
    made = results(op)
    if "called_computations" not in op.attributes or len(operands(op)) != 2 * len(made):
        return None
    comparators = ir.ArrayAttr(op.attributes["called_computations"])
    axis = _configuration(op).get("reduction_dim")
    if (
        len(comparators) != 1
        or not isinstance(axis, int)
        or axis not in range(len(_shape(made[0])))
    ):
        return None

    def precedes(parameters: Sequence[Value]) -> Value:
        attributes: dict[str, ir.Attribute] = {"callee": comparators[0]}
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        call = ir.Operation.create("func.call", [kind], parameters, attributes)
        return results(call)[0]

    return _first(operands(op)[: len(made)], axis, _shape(made[0])[axis], precedes)


def _configuration(op: ir.Operation) -> dict[str, Any]:
    """The integers of the call's configuration: a dictionary, or JSON text."""
    if "mhlo.backend_config" in op.attributes:
        items = ir.DictAttr(op.attributes["mhlo.backend_config"])
        return {i.name: i.attr.value for i in items if isinstance(i.attr, ir.IntegerAttr)}
    config = op.attributes.get("backend_config", None)
    try:
        parsed: Any = json.loads(config.value) if isinstance(config, ir.StringAttr) else {}
    except ValueError:
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


def _exact(op: ir.Operation) -> list[Value] | None:
    """The largest (or smallest) elements of the minor dimension, and where they were."""
    given, made = operands(op), results(op)
    if len(given) != 1 or len(made) != 2 or not _shape(given[0]) or not _shape(made[0]):
        return None
    operand, count = given[0], _shape(made[0])[-1]
    if count > _shape(operand)[-1]:
        return None
    largest = True
    if "mhlo.attributes" in op.attributes:
        attributes = ir.DictAttr(op.attributes["mhlo.attributes"])
        largest = "largest" not in attributes or ir.BoolAttr(attributes["largest"]).value
    if largest:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)
        call = ir.Operation.create(
            chlo.TopKOp.OPERATION_NAME, [r.type for r in made], [operand], {"k": number}
        )
        return results(call)
    kind = ir.RankedTensorType(operand.type)
    axis = kind.rank - 1
    places = stablehlo.iota(
        ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(32)), axis
    )
    is_float = isinstance(kind.element_type, ir.FloatType)
    unsigned = isinstance(kind.element_type, ir.IntegerType) and kind.element_type.is_unsigned
    order = "TOTALORDER" if is_float else "UNSIGNED" if unsigned else "SIGNED"

    def precedes(parameters: Sequence[Value]) -> Value:
        compared = stablehlo.compare(
            cast("Any", parameters[0]),
            cast("Any", parameters[1]),
            stablehlo.ComparisonDirectionAttr.get("LT"),
            compare_type=stablehlo.ComparisonTypeAttr.get(order),
        )
        return cast("Value", compared)

    return _first([operand, cast("Value", places)], axis, count, precedes)


def _first(
    values: Sequence[Value], axis: int, count: int, precedes: Callable[[Sequence[Value]], Value]
) -> list[Value]:
    """The first ``count`` elements along ``axis`` by the order ``precedes``, equal ones as they come."""
    attributes: dict[str, ir.Attribute] = {
        "dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis),
        "is_stable": ir.BoolAttr.get(True),
    }
    kinds = [value.type for value in values]
    sort = ir.Operation.create("stablehlo.sort", kinds, list(values), attributes, regions=1)
    scalars = [
        ir.RankedTensorType.get([], ir.RankedTensorType(kind).element_type)
        for kind in kinds
        for _ in range(2)
    ]
    block = ir.Block.create_at_start(regions(sort)[0], scalars)
    with ir.InsertionPoint(block):
        ir.Operation.create("stablehlo.return", operands=[precedes(arguments(block))])
    found: list[Value] = []
    for value in results(sort):
        limits = _shape(value)
        limits[axis] = count
        ones = [1] * len(limits)
        part = stablehlo.slice(cast("Any", value), [0] * len(limits), limits, ones)
        found.append(cast("Value", part))
    return found
