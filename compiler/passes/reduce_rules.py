# SPDX-License-Identifier: Apache-2.0
"""Rules of ``canonicalize-hlo`` for reductions.

The specification leaves open in which order elements are combined and how often an identity value joins in;
these rules use that freedom, so sums may round differently, and a sum of one -0.0 is -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from mlir import ir

from gristmill.compiler.passes.rewriting import Rewriter, Rule, snapshot
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor, mlir_type, tensor

Result = Sequence[ir.Value] | None


def combiner(r: Rewriter, op: ir.Operation) -> str | None:
    """The op that a one-operand reduction combines two elements with, if it is a single commutative one."""
    if len(op.results) != 1 or len(op.operands) != 2:
        return None
    function = r.module.functions()[hlo.symbol(op, "to_apply")]
    ops = snapshot(function)
    arguments = list(function.regions[0].blocks[0].arguments)
    if len(ops) != 2 or not hlo.has_trait(ops[0], "commutative"):
        return None
    operands = list(ops[0].operands)
    if operands not in (arguments, arguments[::-1]) or ops[1].operands[0] != ops[0].results[0]:
        return None
    return hlo.short_name(ops[0])


def is_identity(value: Any, name: str, kind: Tensor) -> bool:
    """Whether combining any element with ``value`` by the op ``name`` gives that element."""
    if value is None or kind.is_complex:
        return False
    if name in ("add", "or", "xor"):
        return bool(value == 0)
    if name == "multiply":
        return bool(value == 1)
    if name == "and":
        return bool(value) if kind.is_pred else bool(np.invert(value) == 0)
    if name not in ("maximum", "minimum"):
        return False
    if kind.is_float:
        return bool(value == (-math.inf if name == "maximum" else math.inf))
    if kind.is_pred:
        return bool(value) == (name == "minimum")
    highest = (1 << kind.bits) - 1 if kind.is_unsigned else (1 << (kind.bits - 1)) - 1
    lowest = 0 if kind.is_unsigned else -highest - 1
    return int(value) == (lowest if name == "maximum" else highest)


def unit_dimensions(r: Rewriter, op: ir.Operation) -> Result:
    """Reduced dimensions of size one are reshaped away; if no other is reduced, the reduction goes."""
    kind = r.type(op.operands[0])
    dimensions = hlo.dims(op, "dimensions")
    units = {d for d in dimensions if kind.shape[d] == 1}
    if not units:
        return None
    count = len(op.results)
    shape = [size for d, size in enumerate(kind.shape) if d not in units]
    if len(units) == len(dimensions):
        name = combiner(r, op)
        result = r.type(op.results[0])
        if name is None or result.element != kind.element:
            return None
        if not is_identity(r.splat(op.operands[1]), name, result):
            return None
        return [builders.reshape(op.operands[0], shape)]
    operands = list(op.operands)
    inputs = [builders.reshape(value, shape) for value in operands[:count]]
    rest = [d - sum(unit < d for unit in units) for d in dimensions if d not in units]
    reduced = hlo.build(
        "reduce",
        [result.type for result in op.results],
        [*inputs, *operands[count:]],
        dimensions=rest,
        to_apply=hlo.symbol(op, "to_apply"),
    )
    return list(reduced.results)


def reduce_of_reduce(r: Rewriter, op: ir.Operation) -> Result:
    """Two reductions that combine alike → one over the dimensions of both."""
    inner = r.operand(op, 0, "reduce")
    if inner is None or len(op.operands) != 2 or not r.only_use(op.operands[0]):
        return None
    name = combiner(r, op)
    kind = r.type(op.results[0])
    if name is None or combiner(r, inner) != name:
        return None
    if r.type(inner.operands[0]).element != kind.element:
        return None
    for value in (op.operands[1], inner.operands[1]):
        if not is_identity(r.splat(value), name, kind):
            return None
    first = hlo.dims(inner, "dimensions")
    kept = [d for d in range(r.type(inner.operands[0]).rank) if d not in first]
    dimensions = sorted([*first, *(kept[d] for d in hlo.dims(op, "dimensions"))])
    return builders.reduce(
        [inner.operands[0]], [op.operands[1]], dimensions, hlo.symbol(op, "to_apply")
    )


#: Pieces of a concatenation that are combined one after the other, at most.
_MOST_PIECES = 8


def reduce_of_pieces(r: Rewriter, op: ir.Operation) -> Result:
    """A reduction over few arrays side by side → what it computes, array after array.

    ``jnp.select`` looks for the first condition that holds by an argmax over all of them, concatenated; this way
    neither the concatenation nor the indices are stored.
    """
    count, dimensions = len(op.results), hlo.dims(op, "dimensions")
    if len(dimensions) != 1:
        return None
    inputs, accumulators = list(op.operands)[:count], list(op.operands)[count:]
    numbers = [_piece_count(r, value, dimensions[0]) for value in inputs]
    function = r.module.functions()[hlo.symbol(op, "to_apply")]
    if None in numbers or not any(numbers) or not _is_pointwise(function):
        return None
    if any(r.type(x).element != r.type(y).element for x, y in zip(inputs, op.results, strict=True)):
        return None
    shape = r.type(op.results[0]).shape
    accumulators = [builders.broadcast_in_dim(value, shape, []) for value in accumulators]
    for place in range(r.type(inputs[0]).shape[dimensions[0]]):
        pieces = [_piece(r, value, place, shape) for value in inputs]
        accumulators = _applied(function, [*accumulators, *pieces], shape)
    return accumulators


def _piece_count(r: Rewriter, value: ir.Value, dimension: int) -> int | None:
    """How many arrays of size 1 along ``dimension`` are concatenated; 0 for positions, ``None`` for what else it is."""
    joined, counter = r.producer(value, "concatenate"), r.producer(value, "iota")
    if counter is not None and hlo.integer(counter, "dimension") == dimension:
        return 0
    if joined is None or hlo.integer(joined, "dimension") != dimension:
        return None
    pieces = list(joined.operands)
    single = all(r.type(piece).shape[dimension] == 1 for piece in pieces)
    return len(pieces) if single and len(pieces) <= _MOST_PIECES else None


def _piece(r: Rewriter, value: ir.Value, place: int, shape: Sequence[int]) -> ir.Value:
    """Array number ``place`` of what :func:`_piece_count` has accepted, without the dimension."""
    joined = r.producer(value, "concatenate")
    if joined is None:
        return builders.splat(place, r.type(value).with_shape(tuple(shape)))
    return builders.reshape(joined.operands[place], shape)


def _is_pointwise(function: ir.Operation) -> bool:
    """Whether the body of ``function`` is elementwise operations of scalars and nothing else."""
    return all(
        op.name == "func.return" or hlo.short_name(op) == "constant" or _is_elementwise(op)
        for op in snapshot(function)
    )


def _is_elementwise(op: ir.Operation) -> bool:
    return hlo.short_name(op) in hlo.OPS and hlo.has_trait(op, "elementwise")


def _applied(
    function: ir.Operation, arguments: Sequence[ir.Value], shape: Sequence[int]
) -> list[ir.Value]:
    """The body of ``function``, of scalars, applied to each element of arrays of ``shape``."""
    block = function.regions[0].blocks[0]
    values: dict[ir.Value, ir.Value] = dict(zip(block.arguments, arguments, strict=True))
    for op in snapshot(function):
        if op.name == "func.return":
            return [values[value] for value in op.operands]
        if hlo.short_name(op) == "constant":
            made = builders.broadcast_in_dim(op.clone().results[0], shape, [])
        else:
            kinds = [mlir_type(tensor(x).with_shape(tuple(shape))) for x in op.results]
            attributes = dict(cast("list[tuple[str, ir.Attribute]]", op.attributes.items()))
            operands = [values[x] for x in op.operands]
            made = ir.Operation.create(op.name, kinds, operands, attributes).results[0]
        values[op.results[0]] = made
    raise AssertionError("a verified function returns")


def windows_of_one_element(r: Rewriter, op: ir.Operation) -> Result:
    """Windows over elements set as far apart as the windows are wide → each element, repeated.

    That is the gradient of a sum over windows that do not overlap. A window, moved by one at a time, sees one element
    at most, and neutral elements around it.
    """
    padded = r.operand(op, 0, "pad")
    name = combiner(r, op)
    if padded is None or name is None:
        return None
    kind, (operand, neutral) = r.type(op.results[0]), padded.operands
    if not all(is_identity(r.splat(value), name, kind) for value in (neutral, op.operands[1])):
        return None
    sizes, gaps = hlo.dims(op, "window_dimensions"), hlo.dims(padded, "interior")
    steps = ("window_strides", "base_dilations", "window_dilations")
    moves_by_one = all(step == 1 for key in steps for step in hlo.dims(op, key))
    is_bare = not any((*hlo.dims(op, "padding_low"), *hlo.dims(op, "padding_high")))
    if not (moves_by_one and is_bare and any(gaps)) or sizes != [gap + 1 for gap in gaps]:
        return None
    extents = r.type(operand).shape
    repeated = [extent * size for extent, size in zip(extents, sizes, strict=True)]
    spread, places = list[int](), list[int]()
    for extent, size in zip(extents, sizes, strict=True):
        places.append(len(spread))
        spread += [extent, size] if size > 1 else [extent]
    result = builders.reshape(builders.broadcast_in_dim(operand, spread, places), repeated)
    # The window that begins with the first element is that many windows after the one that ends there.
    low = [edge - gap for edge, gap in zip(hlo.dims(padded, "low"), gaps, strict=True)]
    high = [
        end - before - size for end, before, size in zip(kind.shape, low, repeated, strict=True)
    ]
    return [builders.pad(result, neutral, low, high) if any((*low, *high)) else result]


#: Op name to the rules that are tried on it, in order.
RULES: dict[str, tuple[Rule, ...]] = {
    "reduce": (unit_dimensions, reduce_of_reduce, reduce_of_pieces),
    "reduce_window": (windows_of_one_element,),
}
