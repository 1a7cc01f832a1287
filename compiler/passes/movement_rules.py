# SPDX-License-Identifier: Apache-2.0
"""Rules of ``canonicalize-hlo`` for data movement: broadcasts, reshapes, transposes, slices, concatenations."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.passes.rewriting import Rewriter, Rule
from gristmill.dialects import builders, hlo

Result = Sequence[ir.Value] | None


def _scalar_source(r: Rewriter, value: ir.Value) -> ir.Value | None:
    """The rank-0 value that ``value`` is a broadcast of."""
    op = r.producer(value, "broadcast_in_dim")
    if op is None or r.type(op.operands[0]).rank != 0:
        return None
    return op.operands[0]


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def same_type(r: Rewriter, op: ir.Operation) -> Result:
    """Movement that moves nothing: a reshape, full slice… to the operand's own type."""
    if op.operands[0].type != op.results[0].type:
        return None
    name = hlo.short_name(op)
    rank = r.type(op.operands[0]).rank
    if name == "broadcast_in_dim" and hlo.dims(op, "dimensions") != list(range(rank)):
        return None
    if name == "transpose" and hlo.dims(op, "permutation") != list(range(rank)):
        return None
    if name == "slice" and any(step != 1 for step in hlo.dims(op, "strides")):
        return [op.operands[0]] if set(r.type(op.operands[0]).shape) <= {0, 1} else None
    return [op.operands[0]]


def broadcast_of_broadcast(r: Rewriter, op: ir.Operation) -> Result:
    """Two broadcasts → one."""
    inner = r.operand(op, 0, "broadcast_in_dim")
    if inner is None:
        return None
    outer = hlo.dims(op, "dimensions")
    dimensions = [outer[d] for d in hlo.dims(inner, "dimensions")]
    shape = r.type(op.results[0]).shape
    return [builders.broadcast_in_dim(inner.operands[0], shape, dimensions)]


def broadcast_of_reshape(r: Rewriter, op: ir.Operation) -> Result:
    """A broadcast after unit dimensions were added → one broadcast of the original."""
    inner = r.operand(op, 0, "reshape")
    if inner is None:
        return None
    source, middle = r.type(inner.operands[0]), r.type(op.operands[0])
    if 1 in source.shape or list(source.shape) != _squeezed(middle.shape):
        return None
    outer = hlo.dims(op, "dimensions")
    dimensions = [outer[d] for d, size in enumerate(middle.shape) if size != 1]
    return [builders.broadcast_in_dim(inner.operands[0], r.type(op.results[0]).shape, dimensions)]


def broadcast_that_reshapes(r: Rewriter, op: ir.Operation) -> Result:
    """A broadcast that only adds unit dimensions → a reshape."""
    source, result = r.type(op.operands[0]), r.type(op.results[0])
    dimensions = hlo.dims(op, "dimensions")
    if source.size != result.size or source.size == 0 or dimensions != sorted(dimensions):
        return None
    if source.rank == 0 and r.producer(op.operands[0], "constant") is not None:
        return None  # the form of every splat constant
    return [builders.reshape(op.operands[0], result.shape)]


def reshape_of_reshape(r: Rewriter, op: ir.Operation) -> Result:
    """Two reshapes → one."""
    inner = r.operand(op, 0, "reshape")
    if inner is None:
        return None
    return [builders.reshape(inner.operands[0], r.type(op.results[0]).shape)]


def reshape_of_constant(r: Rewriter, op: ir.Operation) -> Result:
    """A reshaped rank-0 constant → a broadcast one, the form of every splat constant."""
    if r.type(op.operands[0]).rank or r.operand(op, 0, "constant") is None:
        return None
    return [builders.broadcast_in_dim(op.operands[0], r.type(op.results[0]).shape, [])]


def moved_scalar(r: Rewriter, op: ir.Operation) -> Result:
    """Movement of a broadcast scalar → the scalar, broadcast to the new shape."""
    scalar = _scalar_source(r, op.operands[0])
    result = r.type(op.results[0])
    if scalar is None:
        return None
    if result.rank == 0:
        return [scalar]
    return [builders.broadcast_in_dim(scalar, result.shape, [])]


def moved_iota(r: Rewriter, op: ir.Operation) -> Result:
    """A transposed or broadcast iota, or one with other unit dimensions → an iota of the new shape."""
    inner = r.operand(op, 0, "iota")
    if inner is None:
        return None
    source, result = r.type(op.operands[0]), r.type(op.results[0])
    dimension = hlo.integer(inner, "dimension")
    name = hlo.short_name(op)
    if name == "transpose":
        return [builders.iota(result, hlo.dims(op, "permutation").index(dimension))]
    if name == "broadcast_in_dim":
        target = hlo.dims(op, "dimensions")[dimension]
        same = source.shape[dimension] == result.shape[target]
        return [builders.iota(result, target)] if same else None
    if source.shape[dimension] == 1 or _squeezed(source.shape) != _squeezed(result.shape):
        return None
    place = len(_squeezed(source.shape[:dimension]))
    return [builders.iota(result, [d for d, n in enumerate(result.shape) if n != 1][place])]


def transpose_of_transpose(r: Rewriter, op: ir.Operation) -> Result:
    """Two transposes → one."""
    inner = r.operand(op, 0, "transpose")
    if inner is None:
        return None
    first = hlo.dims(inner, "permutation")
    permutation = [first[d] for d in hlo.dims(op, "permutation")]
    return [builders.transpose(inner.operands[0], permutation)]


def transpose_of_broadcast(r: Rewriter, op: ir.Operation) -> Result:
    """A transposed broadcast → a broadcast to other dimensions."""
    inner = r.operand(op, 0, "broadcast_in_dim")
    if inner is None:
        return None
    permutation = hlo.dims(op, "permutation")
    dimensions = [permutation.index(d) for d in hlo.dims(inner, "dimensions")]
    return [builders.broadcast_in_dim(inner.operands[0], r.type(op.results[0]).shape, dimensions)]


def transpose_that_reshapes(r: Rewriter, op: ir.Operation) -> Result:
    """A transpose that only moves unit dimensions → a reshape."""
    shape = r.type(op.operands[0]).shape
    moved = [d for d in hlo.dims(op, "permutation") if shape[d] != 1]
    if moved != sorted(moved):
        return None
    return [builders.reshape(op.operands[0], r.type(op.results[0]).shape)]


def slice_of_slice(r: Rewriter, op: ir.Operation) -> Result:
    """Two slices → one."""
    inner = r.operand(op, 0, "slice")
    if inner is None:
        return None
    starts, steps = hlo.dims(inner, "start_indices"), hlo.dims(inner, "strides")
    outer_steps = hlo.dims(op, "strides")
    sizes = r.type(op.results[0]).shape
    new_starts = [
        start + step * outer
        for start, step, outer in zip(starts, steps, hlo.dims(op, "start_indices"), strict=True)
    ]
    new_steps = [a * b for a, b in zip(steps, outer_steps, strict=True)]
    limits = [
        start + (size - 1) * step + 1 if size else start
        for start, size, step in zip(new_starts, sizes, new_steps, strict=True)
    ]
    return [builders.slice_(inner.operands[0], new_starts, limits, new_steps)]


def slice_of_concatenate(r: Rewriter, op: ir.Operation) -> Result:
    """A slice that lies within one input of a concatenation → a slice of that input."""
    inner = r.operand(op, 0, "concatenate")
    if inner is None:
        return None
    dimension = hlo.integer(inner, "dimension")
    starts, limits = hlo.dims(op, "start_indices"), hlo.dims(op, "limit_indices")
    begin = 0
    for value in inner.operands:
        end = begin + r.type(value).shape[dimension]
        if begin <= starts[dimension] < limits[dimension] <= end:
            starts[dimension] -= begin
            limits[dimension] -= begin
            return [builders.slice_(value, starts, limits, hlo.dims(op, "strides"))]
        begin = end
    return None


def reverse_of_units(r: Rewriter, op: ir.Operation) -> Result:
    """Reversal along unit dimensions, or twice along the same ones → the operand."""
    dimensions = hlo.dims(op, "dimensions")
    shape = r.type(op.operands[0]).shape
    if all(shape[d] <= 1 for d in dimensions):
        return [op.operands[0]]
    inner = r.operand(op, 0, "reverse")
    if inner is not None and set(hlo.dims(inner, "dimensions")) == set(dimensions):
        return [inner.operands[0]]
    return None


def pad(r: Rewriter, op: ir.Operation) -> Result:
    """No padding → the operand; a splat padded with itself → a bigger splat."""
    edges = [*hlo.dims(op, "low"), *hlo.dims(op, "high")]
    kind, result = r.type(op.operands[0]), r.type(op.results[0])
    gaps = hlo.dims(op, "interior")
    inert = all(gap == 0 or size <= 1 for gap, size in zip(gaps, kind.shape, strict=True))
    if inert and not any(edges):
        return [op.operands[0]]
    scalar = _scalar_source(r, op.operands[0])
    if scalar is not None and scalar == op.operands[1] and result.rank:
        return [builders.broadcast_in_dim(op.operands[1], result.shape, [])]
    return None


def concatenate(r: Rewriter, op: ir.Operation) -> Result:
    """One input → itself; empty inputs go; nested concatenations read once are flattened."""
    inputs = list(op.operands)
    dimension = hlo.integer(op, "dimension")
    flat: list[ir.Value] = []
    for value in inputs:
        inner = r.producer(value, "concatenate")
        if r.type(value).shape[dimension] == 0:
            continue
        if inner is not None and hlo.integer(inner, "dimension") == dimension and r.only_use(value):
            flat.extend(inner.operands)
        else:
            flat.append(value)
    if not flat:
        return [inputs[0]]
    if len(flat) == 1:
        return [flat[0]]
    scalars = [_scalar_source(r, value) for value in flat]
    known = {scalar for scalar in scalars if scalar is not None}
    if len(known) == 1 and all(scalar is not None for scalar in scalars):
        return [builders.broadcast_in_dim(known.pop(), r.type(op.results[0]).shape, [])]
    return None if len(flat) == len(inputs) else [builders.concatenate(flat, dimension)]


def dynamic_slice(r: Rewriter, op: ir.Operation) -> Result:
    """Known start indices → a ``slice`` at the clamped position; a slice of everything → the operand."""
    operand, *starts = list(op.operands)
    shape, sizes = r.type(operand).shape, hlo.dims(op, "slice_sizes")
    if list(shape) == sizes:
        return [operand]
    known = [r.splat(start) for start in starts]
    if any(start is None for start in known):
        return None
    begin = [
        min(max(int(start), 0), extent - size)
        for start, extent, size in zip(known, shape, sizes, strict=True)
    ]
    limits = [start + size for start, size in zip(begin, sizes, strict=True)]
    return [builders.slice_(operand, begin, limits)]


def dynamic_update_slice(r: Rewriter, op: ir.Operation) -> Result:
    """An update of everything → the update; an empty update → the operand."""
    operand, update = op.operands[0], op.operands[1]
    if operand.type == update.type:
        return [update]
    return [operand] if r.type(update).size == 0 else None


#: Op name to the rules that are tried on it, in order.
RULES: dict[str, tuple[Rule, ...]] = {
    "broadcast_in_dim": (
        same_type,
        moved_iota,
        broadcast_of_broadcast,
        broadcast_of_reshape,
        broadcast_that_reshapes,
    ),
    "concatenate": (concatenate,),
    "dynamic_slice": (dynamic_slice,),
    "dynamic_update_slice": (dynamic_update_slice,),
    "pad": (pad,),
    "reshape": (same_type, moved_iota, reshape_of_reshape, reshape_of_constant, moved_scalar),
    "reverse": (reverse_of_units, moved_scalar),
    "slice": (same_type, moved_scalar, slice_of_slice, slice_of_concatenate),
    "transpose": (
        same_type,
        moved_scalar,
        moved_iota,
        transpose_of_transpose,
        transpose_of_broadcast,
        transpose_that_reshapes,
    ),
}
