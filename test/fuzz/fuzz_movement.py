# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that move elements: views, slices, gathers, scatters, sorts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_elementwise import merged
from fuzz_scope import MOST_ELEMENTS, Scope, dims, region, scalar_arguments
from fuzz_values import INTEGERS, Value, count, is_complex, is_float, is_integer, rounded


def any_value(scope: Scope, rank: int = 0) -> Value:
    """A value of at least ``rank`` dimensions."""
    found = scope.find(lambda v: len(v.shape) >= rank)
    if found is not None:
        return found
    value = scope.values[-1]
    return scope.reshape(value, (1,) * (rank - len(value.shape)) + value.shape)


def broadcast(scope: Scope) -> list[Value]:
    """New dimensions, and dimensions of one element made longer."""
    value = any_value(scope)
    rank = len(value.shape) + scope.choose.integer(0, 2)
    at = sorted(scope.choose.permutation(rank)[: len(value.shape)])
    shape = [0] * rank
    for axis in range(rank):
        shape[axis] = scope.choose.of((2, 1, 3, 5))
    for axis, size in zip(at, value.shape, strict=True):
        shape[axis] = size if size != 1 else shape[axis]
    order = scope.choose.permutation(len(at)) if scope.choose.coin() else list(range(len(at)))
    if order != list(range(len(at))):  # dimensions may also change their order
        for index, axis in enumerate(at):
            size = value.shape[order.index(index)]
            shape[axis] = size if size != 1 else shape[axis]
        at = [at[order[index]] for index in range(len(at))]
    if count(tuple(shape)) > 2 * MOST_ELEMENTS:
        return []
    result = replace(value, shape=tuple(shape))
    return [scope.one("broadcast_in_dim", [value], result, dims("broadcast_dimensions", at))]


def reshape(scope: Scope) -> list[Value]:
    """Neighbouring dimensions joined, or ones added."""
    value = any_value(scope)
    shape = list(value.shape)
    if len(shape) >= 2 and scope.choose.coin():
        axis = scope.choose.integer(0, len(shape) - 2)
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    else:
        shape.insert(scope.choose.integer(0, len(shape)), 1)
    return [scope.reshape(value, tuple(shape))]


def transpose(scope: Scope) -> list[Value]:
    """Dimensions in another order."""
    value = any_value(scope, 2)
    order = scope.choose.permutation(len(value.shape))
    result = replace(value, shape=tuple(value.shape[axis] for axis in order))
    return [scope.one("transpose", [value], result, dims("permutation", order))]


def slices(scope: Scope) -> list[Value]:
    """A strided slice."""
    value = any_value(scope, 1)
    starts: list[int] = []
    ends: list[int] = []
    strides: list[int] = []
    for size in value.shape:
        starts.append(scope.choose.integer(0, min(size, 3)))
        ends.append(max(starts[-1], size - scope.choose.integer(0, 2)))
        strides.append(scope.choose.integer(1, 3))
    shape = tuple(
        -(-(end - start) // step) for start, end, step in zip(starts, ends, strides, strict=True)
    )
    text = ", ".join(
        [dims("start_indices", starts), dims("limit_indices", ends), dims("strides", strides)]
    )
    return [scope.one("slice", [value], replace(value, shape=shape), text)]


def reverse(scope: Scope) -> list[Value]:
    """Some dimensions backwards."""
    value = any_value(scope, 1)
    text = dims("dimensions", scope.choose.subset(len(value.shape)))
    return [scope.one("reverse", [value], value, text)]


def pad(scope: Scope) -> list[Value]:
    """Padding at the edges (negative too) and between elements."""
    value = any_value(scope, 1)
    low = [scope.choose.integer(-1, 2) for _ in value.shape]
    high = [scope.choose.integer(-1, 2) for _ in value.shape]
    inner = [scope.choose.integer(0, 2) for _ in value.shape]
    shape = tuple(
        before + after + size + max(size - 1, 0) * gap
        for size, before, after, gap in zip(value.shape, low, high, inner, strict=True)
    )
    if min(shape) < 0 or count(shape) > 2 * MOST_ELEMENTS:
        return []
    filler = scope.constant(value.element, 1)
    text = ", ".join(
        [
            dims("edge_padding_low", low),
            dims("edge_padding_high", high),
            dims("interior_padding", inner),
        ]
    )
    result = replace(merged(value, filler), shape=shape)
    return [scope.one("pad", [value, filler], result, text)]


def concatenate(scope: Scope) -> list[Value]:
    """Two or three values in a row."""
    first = any_value(scope, 1)
    axis = scope.choose.integer(0, len(first.shape) - 1)
    parts = [first]
    for _ in range(scope.choose.integer(1, 2)):
        parts.append(scope.pair(first))
    shape = list(first.shape)
    shape[axis] *= len(parts)
    if count(tuple(shape)) > 2 * MOST_ELEMENTS:
        return []
    result = first
    for other in parts[1:]:
        result = merged(result, other)
    result = replace(result, shape=tuple(shape))
    return [scope.one("concatenate", parts, result, f"dimension = {axis} : i64")]


def iota(scope: Scope) -> list[Value]:
    """Counting along a dimension."""
    element = scope.choose.of((*INTEGERS, "f32", "f64", "f16"))
    shape = scope.choose.shape((1, 3), 120)
    axis = scope.choose.integer(0, len(shape) - 1)
    if element in ("i4", "ui4") and shape[axis] > 7:
        return []
    result = Value("", element, shape, bound=float(shape[axis]))
    return [scope.one("iota", [], result, f"iota_dimension = {axis} : i64")]


def dynamic_slice(scope: Scope) -> list[Value]:
    """A slice whose place is computed."""
    value = any_value(scope, 1)
    sizes = tuple(scope.choose.integer(min(size, 1), size) for size in value.shape)
    element = scope.choose.of(("i32", "i64", "ui8"))
    starts = [scope.indices((), element) for _ in sizes]
    result = replace(value, shape=sizes)
    return [scope.one("dynamic_slice", [value, *starts], result, dims("slice_sizes", sizes))]


def dynamic_update_slice(scope: Scope) -> list[Value]:
    """A value written into another at a computed place."""
    value = any_value(scope, 1)
    sizes = tuple(scope.choose.integer(min(size, 1), size) for size in value.shape)
    update = scope.fit(scope.of_type(value.element), sizes)
    starts = [scope.indices(()) for _ in sizes]
    return [scope.one("dynamic_update_slice", [value, update, *starts], merged(value, update))]


def _index_shape(scope: Scope, batch: tuple[int, ...], vector: int) -> tuple[tuple[int, ...], int]:
    """Shape of an index operand and its ``index_vector_dim``."""
    if vector == 1 and scope.choose.coin():
        return batch, len(batch)
    at = scope.choose.integer(0, len(batch))
    return (*batch[:at], vector, *batch[at:]), at


def gather(scope: Scope) -> list[Value]:
    """A gather of any dimension numbers without batching dimensions."""
    value = any_value(scope, 1)
    rank = len(value.shape)
    if 0 in value.shape:
        return []
    mapped = scope.choose.permutation(rank)[: scope.choose.integer(1, rank)]
    sizes = [
        1 if axis in mapped and scope.choose.coin() else scope.choose.integer(1, size)
        for axis, size in enumerate(value.shape)
    ]
    collapsed = [a for a in range(rank) if sizes[a] == 1 and scope.choose.coin()]
    batch = scope.choose.shape((0, 2), 20)
    shape, at = _index_shape(scope, batch, len(mapped))
    starts = scope.indices(shape, scope.choose.of(("i32", "i64", "ui8", "i8")))
    offsets = [size for axis, size in enumerate(sizes) if axis not in collapsed]
    places = sorted(scope.choose.permutation(len(offsets) + len(batch))[: len(offsets)])
    result, left, right = list[int](), list(offsets), list(batch)
    for axis in range(len(offsets) + len(batch)):
        result.append(left.pop(0) if axis in places else right.pop(0))
    if count(tuple(result)) > 2 * MOST_ELEMENTS:
        return []
    numbers = f"offset_dims = {places}, collapsed_slice_dims = {collapsed}, "
    numbers += f"start_index_map = {mapped}, index_vector_dim = {at}"
    text = f"dimension_numbers = #stablehlo.gather<{numbers}>, {dims('slice_sizes', sizes)}, "
    text += "indices_are_sorted = false"
    return [scope.one("gather", [value, starts], replace(value, shape=tuple(result)), text)]


def scatter(scope: Scope) -> list[Value]:
    """A scatter of any dimension numbers without batching dimensions, by an operation that commutes."""
    value = any_value(scope, 1)
    rank = len(value.shape)
    if 0 in value.shape:
        return []
    mapped = scope.choose.permutation(rank)[: scope.choose.integer(1, rank)]
    sizes = [scope.choose.integer(1, size) for size in value.shape]
    inserted = [a for a in range(rank) if sizes[a] == 1 and scope.choose.coin()]
    batch = scope.choose.shape((0, 2), 20)
    shape, at = _index_shape(scope, batch, len(mapped))
    window = [size for axis, size in enumerate(sizes) if axis not in inserted]
    places = sorted(scope.choose.permutation(len(window) + len(batch))[: len(window)])
    result, left, right = list[int](), list(window), list(batch)
    for axis in range(len(window) + len(batch)):
        result.append(left.pop(0) if axis in places else right.pop(0))
    if count(tuple(result)) > 2 * MOST_ELEMENTS:
        return []
    updates = scope.fit(scope.of_type(value.element), tuple(result))
    starts = scope.indices(shape)
    name, info = _combination(scope, value, updates, count(batch))
    numbers = f"update_window_dims = {places}, inserted_window_dims = {inserted}, "
    numbers += f"scatter_dims_to_operand_dims = {mapped}, index_vector_dim = {at}"
    text = (
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, indices_are_sorted = false, "
    )
    text += "unique_indices = false"
    arguments = scalar_arguments(scope, [value.element] * 2)
    body = scope.inner()
    # The interpreter writes into its operand, which other operations read: give it a copy.
    value = scope.one("reverse", [value], value, dims("dimensions", []))
    combined = arguments[1]
    if name:
        combined = body.one(name, arguments, Value("", value.element, ()))
    inside = region(body, arguments, [combined], body.lines)
    return [
        scope.tame(v) for v in scope.op("scatter", [value, starts, updates], [info], text, inside)
    ]


def _combination(scope: Scope, value: Value, updates: Value, times: int) -> tuple[str, Value]:
    """How a scatter combines: the operation (none: the update wins), and what is known of the result."""
    names = ["add"]
    if value.element == "i1":
        names = ["or", "and"]
    elif not is_complex(value.element):
        names += ["maximum", "minimum"]
    if times <= 1:
        names.append("")
    name = scope.choose.of(names)
    info = merged(value, updates)
    if name == "add" and not is_integer(value.element):
        bound = value.bound + times * updates.bound
        grid = info.grid
        error, grid = rounded(value.element, bound, value.error + times * updates.error, grid)
        info = replace(info, bound=bound, error=error * (1 if error == 0 else times + 1), grid=grid)
    return name, info


def sort(scope: Scope) -> list[Value]:
    """A stable sort by the first of one to three operands."""
    key = scope.find(lambda v: v.exact and not is_complex(v.element) and len(v.shape) >= 1)
    if key is None:
        return []
    axis = scope.choose.integer(0, len(key.shape) - 1)
    operands = [key]
    for _ in range(scope.choose.integer(0, 2)):
        other = scope.find(lambda v: True)
        assert other is not None, "a program has arguments"
        operands.append(scope.fit(other, key.shape))
    arguments = scalar_arguments(scope, [o.element for o in operands for _ in range(2)])
    body = scope.inner()
    kind = "FLOAT" if is_float(key.element) else "SIGNED"
    if key.element.startswith("u") or key.element == "i1":
        kind = "UNSIGNED"
    direction = scope.choose.of(("LT", "GT"))
    text = f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
    text += f"compare_type = #stablehlo<comparison_type {kind}>"
    smaller = body.one("compare", arguments[:2], Value("", "i1", ()), text)
    inside = region(body, arguments, [smaller], body.lines)
    attributes = f"dimension = {axis} : i64, is_stable = true"
    return scope.op("sort", operands, operands, attributes, inside)


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    broadcast,
    reshape,
    transpose,
    slices,
    reverse,
    pad,
    concatenate,
    iota,
    dynamic_slice,
    dynamic_update_slice,
    gather,
    scatter,
    sort,
)
