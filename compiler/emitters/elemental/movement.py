# SPDX-License-Identifier: Apache-2.0
"""Elemental rules of the operations that move data: each maps an index of the result to indices of operands."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.elemental.core import RULES, Elemental, from_index, to_index
from gristmill.compiler.graph import Node
from gristmill.runtime.types import element_type


def broadcast_index(node: Node, index: Sequence[Index]) -> list[Index]:
    """Operand index of ``broadcast_in_dim``: unit operand dimensions are read at 0."""
    shape = node.operands[0].shape
    return [
        0 if shape[d] == 1 else index[target] for d, target in enumerate(node.dims("dimensions"))
    ]


def reshape_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[range, range]]:
    """Split two shapes of equal size into the finest consecutive groups of equal product.

    Unit dimensions at a boundary join the group before them.
    """
    groups: list[tuple[range, range]] = []
    s = t = 0
    while s < len(source) or t < len(target):
        s0, t0 = s, t
        size_s = source[s] if s < len(source) else 1
        size_t = target[t] if t < len(target) else 1
        s, t = min(s + 1, len(source)), min(t + 1, len(target))
        while size_s != size_t:
            if size_s < size_t:
                size_s *= source[s]
                s += 1
            else:
                size_t *= target[t]
                t += 1
        while s < len(source) and source[s] == 1:
            s += 1
        while t < len(target) and target[t] == 1:
            t += 1
        groups.append((range(s0, s), range(t0, t)))
    return groups


def reshape_index(
    source: Sequence[int], target: Sequence[int], index: Sequence[Index]
) -> list[Index]:
    """The index into shape ``source`` of the element at ``index`` of its reshape to ``target``."""
    result: list[Index] = [0] * len(source)
    if 0 in source:
        return result
    for from_dims, to_dims in reshape_groups(source, target):
        sizes = [target[d] for d in to_dims]
        position = build.linearize([index[d] if target[d] != 1 else 0 for d in to_dims], sizes)
        parts = build.delinearize(position, [source[d] for d in from_dims])
        for d, part in zip(from_dims, parts, strict=True):
            result[d] = part
    return result


def transpose_index(node: Node, index: Sequence[Index]) -> list[Index]:
    """Operand index of ``transpose``."""
    result: list[Index] = [0] * len(index)
    for position, dimension in enumerate(node.dims("permutation")):
        result[dimension] = index[position]
    return result


def slice_index(node: Node, index: Sequence[Index]) -> list[Index]:
    """Operand index of ``slice``."""
    starts, strides = node.dims("start_indices"), node.dims("strides")
    return [
        build.add(start, build.mul(i, stride))
        for i, start, stride in zip(index, starts, strides, strict=True)
    ]


def _broadcast(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return e.value(node.operands[0], broadcast_index(node, index))


def _reshape(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    return e.value(operand, reshape_index(operand.shape, node.shape, index))


def _transpose(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return e.value(node.operands[0], transpose_index(node, index))


def _slice(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return e.value(node.operands[0], slice_index(node, index))


def _reverse(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    reversed_dims = set(node.dims("dimensions"))
    flipped = [
        build.sub(size - 1, i) if d in reversed_dims else i
        for d, (i, size) in enumerate(zip(index, node.shape, strict=True))
    ]
    return e.value(node.operands[0], flipped)


def _iota(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return from_index(node.type.element, index[node.integer("dimension")])


def _all(conditions: Sequence[ir.Value]) -> ir.Value | None:
    result: ir.Value | None = None
    for condition in conditions:
        result = condition if result is None else arith.AndIOp(result, condition).result
    return result


def _pad(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand, padding = node.operands
    fill = e.value(padding, ())
    if operand.type.size == 0:
        return fill
    conditions: list[ir.Value] = []
    inner: list[Index] = []
    lows, highs, interiors = node.dims("low"), node.dims("high"), node.dims("interior")
    for i, size, low, high, interior in zip(
        index, operand.shape, lows, highs, interiors, strict=True
    ):
        position = build.sub(i, low)
        if interior:
            # Only taken for position >= 0: the range test below masks the rest.
            conditions.append(build.equal(build.mod(build.maximum(position, 0), interior + 1), 0))
            if low > 0:
                conditions.append(build.at_least(position, 0))
            position = build.div(build.maximum(position, 0), interior + 1)
        elif low > 0:
            conditions.append(build.at_least(position, 0))
        if high > 0 or interior:
            conditions.append(build.less(position, size))
        # Out-of-range elements are selected away, but what is loaded for them must be in range.
        inner.append(build.clamp(position, 0, size - 1) if low > 0 or high > 0 else position)
    inside = _all(conditions)
    value = e.value(operand, inner)
    return value if inside is None else arithmetic.select(inside, value, fill)


def _concatenate(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    dimension = node.integer("dimension")
    parts = [x for x in node.operands if x.shape[dimension]]
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + part.shape[dimension])

    def shifted(number: int) -> ir.Value:
        position = build.sub(index[dimension], offsets[number])
        inner = [position if d == dimension else i for d, i in enumerate(index)]
        return e.value(parts[number], inner)

    def choose(first: int, last: int) -> ir.Value:
        """The element, known to lie in parts ``first`` to ``last``: binary search over branches."""
        if first == last:
            return shifted(first)
        middle = (first + last + 1) // 2
        condition = build.less(index[dimension], offsets[middle])

        def branch(low: int, high: int) -> list[ir.Value]:
            with e.scope():
                return [choose(low, high)]

        kind = build.register_type(node.type.element)
        return build.if_else(
            condition, [kind], lambda: branch(first, middle - 1), lambda: branch(middle, last)
        )[0]

    return choose(0, len(parts) - 1)


def clamped_starts(
    e: Elemental, starts: Sequence[Node], shape: Sequence[int], sizes: Sequence[int]
) -> list[Index]:
    """Start indices of a dynamic slice, limited so that the slice stays inside ``shape``."""
    result: list[Index] = []
    for start, size, extent in zip(starts, shape, sizes, strict=True):
        if size == extent:
            result.append(0)
            continue
        result.append(build.clamp(e.index_of(start), 0, size - extent))
    return result


def _dynamic_slice(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand, *starts = node.operands
    begin = clamped_starts(e, starts, operand.shape, node.shape)
    return e.value(operand, [build.add(b, i) for b, i in zip(begin, index, strict=True)])


def _dynamic_update_slice(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand, update, *starts = node.operands
    if update.type.size == 0:
        return e.value(operand, index)
    begin = clamped_starts(e, starts, operand.shape, update.shape)
    conditions: list[ir.Value] = []
    inner: list[Index] = []
    for i, b, size, extent in zip(index, begin, operand.shape, update.shape, strict=True):
        position = build.sub(i, b)
        if size != extent:
            conditions += [build.at_least(position, 0), build.less(position, extent)]
            position = build.clamp(position, 0, extent - 1)
        inner.append(position)
    inside = _all(conditions)
    value = e.value(update, inner)
    return value if inside is None else arithmetic.select(inside, value, e.value(operand, index))


def gather_operand_index(e: Elemental, node: Node, index: Sequence[Index]) -> list[Index]:
    """Operand index of ``gather`` (StableHLO specification, "gather")."""
    operand, starts = node.operands
    offset_dims = node.dims("offset_dims")
    collapsed, batching = node.dims("collapsed_slice_dims"), node.dims("operand_batching_dims")
    start_batching = node.dims("start_indices_batching_dims")
    vector_dim, sizes = node.integer("index_vector_dim"), node.dims("slice_sizes")
    batch = [i for d, i in enumerate(index) if d not in offset_dims]
    offsets = [index[d] for d in offset_dims]
    result: list[Index] = [0] * len(operand.shape)
    kept = [d for d in range(len(operand.shape)) if d not in collapsed and d not in batching]
    for d, offset in zip(kept, offsets, strict=True):
        result[d] = offset
    for d, start_dim in zip(batching, start_batching, strict=True):
        result[d] = batch[start_dim - (1 if start_dim > vector_dim else 0)]
    for position, d in enumerate(node.dims("start_index_map")):
        at: list[Index] = list(batch)
        if vector_dim < len(starts.shape):
            at.insert(vector_dim, position)
        start = to_index(starts.type.element, e.value(starts, at))
        limited = build.clamp(start, 0, operand.shape[d] - sizes[d])
        result[d] = build.add(result[d], limited)
    return result


def _gather(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return e.value(node.operands[0], gather_operand_index(e, node, index))


def _bitcast_convert(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    source, target = operand.type.element, node.type.element
    kind = build.register_type(target)
    if source.bits == target.bits:
        value = e.value(operand, index)
        return value if value.type == kind else arith.BitcastOp(kind, value).result
    narrow, wide = sorted((source, target), key=lambda x: x.bits)
    ratio = wide.bits // narrow.bits
    wide_int = element_type(f"i{wide.bits}")
    narrow_int = build.register_type(element_type(f"i{narrow.bits}"))
    if source.bits > target.bits:  # one wide element becomes a minor dimension of narrow ones
        *outer, part = index
        bits = _as_int(wide_int.bits, e.value(operand, outer))
        offset = from_index(wide_int, build.mul(part, narrow.bits))
        piece = arith.TruncIOp(narrow_int, arith.ShRUIOp(bits, offset).result).result
        return piece if narrow_int == kind else arith.BitcastOp(kind, piece).result
    total = build.constant(wide_int, 0)
    for part in range(ratio):
        piece = _as_int(narrow.bits, e.value(operand, [*index, part]))
        widened = arith.ExtUIOp(build.register_type(wide_int), piece).result
        shift = build.constant(wide_int, part * narrow.bits)
        total = arith.OrIOp(total, arith.ShLIOp(widened, shift).result).result
    return total if total.type == kind else arith.BitcastOp(kind, total).result


def _as_int(bits: int, value: ir.Value) -> ir.Value:
    kind = ir.IntegerType.get_signless(bits)
    return value if value.type == kind else arith.BitcastOp(kind, value).result


RULES.update(
    {
        "broadcast_in_dim": _broadcast,
        "reshape": _reshape,
        "transpose": _transpose,
        "slice": _slice,
        "reverse": _reverse,
        "iota": _iota,
        "pad": _pad,
        "concatenate": _concatenate,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice,
        "gather": _gather,
        "bitcast_convert": _bitcast_convert,
    }
)
