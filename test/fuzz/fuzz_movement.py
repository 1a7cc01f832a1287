# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that move elements: views, slices, concatenations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_elementwise import merged
from fuzz_scope import MOST_ELEMENTS, Scope, dims
from fuzz_values import INTEGERS, Value, count, is_integer, range_of


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
    if is_integer(element) and shape[axis] > range_of(element)[1]:
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


def barrier(scope: Scope) -> list[Value]:
    """Values that no optimisation sees through."""
    values = [any_value(scope) for _ in range(scope.choose.integer(1, 2))]
    return scope.op("optimization_barrier", values, values)


def through_tuple(scope: Scope) -> list[Value]:
    """A value put into a tuple and taken out."""
    values = [any_value(scope) for _ in range(scope.choose.integer(1, 3))]
    index = scope.choose.integer(0, len(values) - 1)
    made = replace(values[index], name=scope.counter.fresh())
    whole = scope.counter.fresh()
    names = ", ".join(value.name for value in values)
    kinds = ", ".join(value.type for value in values)
    scope.counter.used.update(value.name for value in values)
    scope.counter.made[made.name] = made
    scope.lines += [
        f'{whole} = "stablehlo.tuple"({names}) : ({kinds}) -> tuple<{kinds}>',
        f'{made.name} = "stablehlo.get_tuple_element"({whole}) <{{index = {index} : i32}}> : '
        f"(tuple<{kinds}>) -> {made.type}",
    ]
    return [made]


def dimension_size(scope: Scope) -> list[Value]:
    """The extent of a dimension."""
    value = any_value(scope, 1)
    axis = scope.choose.integer(0, len(value.shape) - 1)
    text = f"dimension = {axis} : i64"
    return [scope.one("get_dimension_size", [value], Value("", "i32", ()), text)]


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
    barrier,
    through_tuple,
    dimension_size,
)
