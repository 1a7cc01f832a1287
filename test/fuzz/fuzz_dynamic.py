# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs whose shapes and places are operands, known to the compiler all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzz_elementwise import merged
from fuzz_indexing import GATHER, windows
from fuzz_movement import any_value
from fuzz_reductions import summed
from fuzz_scope import MOST_ELEMENTS, Scope, dims
from fuzz_values import FLOATS, INTEGERS, Value, count, is_complex, is_integer, range_of


def numbers(scope: Scope, items: Sequence[int], element: str = "i64") -> Value:
    """A vector of integers that the compiler can work out: a constant, or a sum of two."""
    kind = Value("", element, (len(items),))

    def constant(values: Sequence[int]) -> Value:
        text = f"dense<{list(values)}>" if values else "dense<>"
        return scope.one("constant", [], kind, f"value = {text} : {kind.type}")

    if not scope.choose.coin():
        return constant(items)
    offset = scope.choose.integer(0, 3)
    parts = [constant([item - offset for item in items]), constant([offset] * len(items))]
    return scope.one("add", parts, kind)


def shape_type(scope: Scope) -> str:
    """An element type for shapes."""
    return scope.choose.of(("i32", "i64"))


def dynamic_reshape(scope: Scope) -> list[Value]:
    """All elements in a row, or that with ones around."""
    value = any_value(scope)
    shape = (value.size,)
    if scope.choose.coin():
        shape = (1, value.size, 1) if scope.choose.coin() else value.shape[::-1]
    extents = numbers(scope, shape, shape_type(scope))
    return [scope.one("dynamic_reshape", [value, extents], replace(value, shape=shape))]


def dynamic_broadcast_in_dim(scope: Scope) -> list[Value]:
    """New dimensions, and dimensions of one element made longer."""
    value = any_value(scope)
    rank = len(value.shape) + scope.choose.integer(0, 2)
    at = sorted(scope.choose.permutation(rank)[: len(value.shape)])
    shape = [scope.choose.of((2, 1, 3)) for _ in range(rank)]
    for axis, size in zip(at, value.shape, strict=True):
        shape[axis] = size if size != 1 else shape[axis]
    if count(tuple(shape)) > 2 * MOST_ELEMENTS:
        return []
    extents = numbers(scope, shape, shape_type(scope))
    result = replace(value, shape=tuple(shape))
    text = dims("broadcast_dimensions", at)
    return [scope.one("dynamic_broadcast_in_dim", [value, extents], result, text)]


def dynamic_iota(scope: Scope) -> list[Value]:
    """Counting along a dimension."""
    element = scope.choose.of((*INTEGERS, *FLOATS))
    shape = scope.choose.shape((1, 3), 120)
    axis = scope.choose.integer(0, len(shape) - 1)
    if is_integer(element) and shape[axis] > range_of(element)[1]:
        return []
    extents = numbers(scope, shape, shape_type(scope))
    result = Value("", element, shape, bound=float(shape[axis]))
    return [scope.one("dynamic_iota", [extents], result, f"iota_dimension = {axis} : i64")]


def dynamic_pad(scope: Scope) -> list[Value]:
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
    element = shape_type(scope)
    operands = [value, filler, *(numbers(scope, items, element) for items in (low, high, inner))]
    return [scope.one("dynamic_pad", operands, replace(merged(value, filler), shape=shape))]


def dynamic_gather(scope: Scope) -> list[Value]:
    """A gather whose slice sizes are an operand."""
    value = any_value(scope, 1)
    if 0 in value.shape:
        return []
    form = windows(scope, value.shape)
    if count(form.shape) > 2 * MOST_ELEMENTS or count(form.index_shape) > MOST_ELEMENTS:
        return []
    starts = scope.indices(form.index_shape)
    sizes = numbers(scope, form.sizes, "i32")
    text = f"dimension_numbers = #stablehlo.gather<{form.numbers(GATHER)}>, "
    text += "indices_are_sorted = false"
    result = replace(value, shape=form.shape)
    return [scope.one("dynamic_gather", [value, starts, sizes], result, text)]


def real_dynamic_slice(scope: Scope) -> list[Value]:
    """A slice between places that are operands."""
    value = any_value(scope, 1)
    starts = [scope.choose.integer(0, min(size, 2)) for size in value.shape]
    ends = [
        max(start, size - scope.choose.integer(0, 2))
        for start, size in zip(starts, value.shape, strict=True)
    ]
    shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
    element = shape_type(scope)
    steps = [1] * len(starts)
    places = [numbers(scope, items, element) for items in (starts, ends, steps)]
    result = scope.one("real_dynamic_slice", [value, *places], replace(value, shape=shape))
    # The interpreter does not know the operation: it gets the slice that it is.
    text = [dims("start_indices", starts), dims("limit_indices", ends), dims("strides", steps)]
    scope.counter.restated[scope.lines[-1]] = (
        f'{result.name} = "stablehlo.slice"({value.name}) <{{{", ".join(text)}}}> : '
        f"({value.type}) -> {result.type}"
    )
    return [result]


def dynamic_conv(scope: Scope) -> list[Value]:
    """A convolution along one dimension whose padding is an operand."""
    left = scope.find(
        lambda v: len(v.shape) == 3 and v.element in (*FLOATS, *INTEGERS) and not v.wild
    )
    if left is None or 0 in left.shape:
        return []
    batch, size, features = left.shape
    window, made = scope.choose.integer(1, 3), scope.choose.integer(1, 3)
    low, high = scope.choose.integer(0, 2), scope.choose.integer(0, 2)
    right = scope.of_type(left.element)
    out = max(size + low + high - window + 1, 0)
    if right.wild or is_complex(right.element) or batch * out * made * window * features > 20000:
        return []
    right = scope.fit(right, (window, features, made))
    error = left.bound * right.error + right.bound * left.error + left.error * right.error
    grid = None if left.grid is None or right.grid is None else left.grid + right.grid
    info = replace(left, bound=left.bound * right.bound, error=error, grid=grid)
    info = summed(info, window * features)
    padding = numbers(scope, [low, high])
    pairs = scope.one("reshape", [padding], replace(padding, shape=(1, 2)))
    text = "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, "
    text += "feature_group_count = 1 : i64, batch_group_count = 1 : i64"
    return [
        scope.arithmetic(
            "dynamic_conv",
            [left, right, pairs],
            left.element,
            (batch, out, made),
            bound=info.bound,
            error=info.error,
            grid=info.grid,
            attributes=text,
        )
    ]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    dynamic_reshape,
    dynamic_broadcast_in_dim,
    dynamic_iota,
    dynamic_pad,
    dynamic_gather,
    real_dynamic_slice,
    dynamic_conv,
)
