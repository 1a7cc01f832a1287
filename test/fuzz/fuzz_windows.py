# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that slide a window: reductions and selections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_movement import any_value
from fuzz_reductions import binary_region, combining, neutral
from fuzz_scope import MOST_ELEMENTS, Scope, dims, region, scalar_arguments
from fuzz_values import Value, count, is_complex, is_float, largest


def _identity(scope: Scope, name: str, element: str) -> Value | None:
    """The neutral element, where a literal of every type has it."""
    if name in ("add", "xor", "or"):
        return scope.constant(element, 0)
    if name == "multiply" or element == "i1":
        return scope.constant(element, 1)
    if name == "maximum" and element.startswith("u"):
        return scope.constant(element, 0)
    if is_float(element):  # larger than all finite numbers that a program has
        return scope.constant(element, min(largest(element), 65504.0) * sign(name))
    return None


def sign(name: str) -> int:
    """Of the number that loses against all others."""
    return -1 if name == "maximum" else 1


def reduce_window(scope: Scope) -> list[Value]:
    """A reduction over windows with strides, dilations and padding."""
    value = any_value(scope, 1)
    if value.size > 300:
        return []
    rank = len(value.shape)
    window = [scope.choose.integer(1, 3) for _ in range(rank)]
    strides = [scope.choose.integer(1, 2) for _ in range(rank)]
    base = [scope.choose.integer(1, 2) for _ in range(rank)]
    gaps = [scope.choose.integer(1, 2) for _ in range(rank)]
    padding = [(scope.choose.integer(0, 2), scope.choose.integer(0, 2)) for _ in range(rank)]
    shape: list[int] = []
    for axis in range(rank):
        size = value.shape[axis]
        size = (size - 1) * base[axis] + 1 if size else 0
        size += sum(padding[axis])
        reach = (window[axis] - 1) * gaps[axis] + 1
        shape.append((size - reach) // strides[axis] + 1 if size >= reach else 0)
    if count(tuple(shape)) > MOST_ELEMENTS:
        return []
    chosen = combining(scope, value, count(tuple(window)))
    if chosen is None:
        return []
    name, info = chosen
    # By the specification the initial value is combined an implementation-defined number of times,
    # as it is itself and as padding and as the gaps of dilation: where there are any, only the
    # neutral element gives the same everywhere. (The interpreter combines each of them, XLA and
    # this compiler none.) Without, both combine it once.
    whole = max(base) == 1 and not any(map(sum, padding))
    any_init = whole and scope.choose.coin()
    start = (
        neutral(scope, name, value.element) if any_init else _identity(scope, name, value.element)
    )
    if start is None:
        return []
    inside = binary_region(scope, name, value.element)
    pairs = ", ".join(f"[{low}, {high}]" for low, high in padding)
    text = ", ".join(
        [
            dims("window_dimensions", window),
            dims("window_strides", strides),
            dims("base_dilations", base),
            dims("window_dilations", gaps),
            f"padding = dense<[{pairs}]> : tensor<{rank}x2xi64>",
        ]
    )
    result = replace(info, shape=tuple(shape), bound=max(info.bound, 4.0))
    if name in ("maximum", "minimum") and is_float(value.element):
        result = replace(result, bound=65536.0)  # of windows that hold padding alone
    return [
        scope.tame(v) for v in scope.op("reduce_window", [value, start], [result], text, inside)
    ]


def padding_text(pairs: list[tuple[int, int]]) -> str:
    """The text of a padding attribute."""
    if not pairs:
        return ""
    inside = ", ".join(f"[{low}, {high}]" for low, high in pairs)
    return f"padding = dense<[{inside}]> : tensor<{len(pairs)}x2xi64>, "


def select_and_scatter(scope: Scope) -> list[Value]:
    """The place of the largest or smallest element of each window gets another value's element."""
    value = scope.find(
        lambda v: v.exact and 1 <= len(v.shape) <= 4 and not is_complex(v.element) and v.size < 200
    )
    if value is None or value.element == "i1" or 0 in value.shape:
        return []
    rank = len(value.shape)
    window = [scope.choose.integer(1, 3) for _ in range(rank)]
    strides = [scope.choose.integer(1, 3) for _ in range(rank)]
    # Every window holds an element: what to do with one of padding alone is not specified.
    padding = [tuple(scope.choose.integer(0, size - 1) for _ in range(2)) for size in window]
    shape: list[int] = []
    for axis, size in enumerate(value.shape):
        free = size + sum(padding[axis]) - window[axis]
        shape.append(free // strides[axis] + 1 if free >= 0 else 0)
    if count(tuple(shape)) > MOST_ELEMENTS:
        return []
    source = scope.fit(scope.of_type(value.element), tuple(shape))
    chosen = combining(scope, source, count(tuple(window)))
    if chosen is None or source.wild:
        return []
    name, info = chosen
    start = _identity(scope, name, value.element)  # combined as often as one likes
    if start is None:
        return []
    extreme = name in ("maximum", "minimum") and is_float(value.element)
    bound = (
        65536.0 if extreme else info.bound + 1
    )  # where nothing is scattered the initial value stays
    info = replace(info, shape=value.shape, bound=bound, grid=None if info.error else info.grid)
    kind = "FLOAT" if is_float(value.element) else "SIGNED"
    kind = "UNSIGNED" if value.element.startswith("u") else kind
    body = scope.inner()
    arguments = scalar_arguments(scope, [value.element] * 2)
    direction = scope.choose.of(("GE", "GT", "LE", "LT"))
    text = f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
    text += f"compare_type = #stablehlo<comparison_type {kind}>"
    wins = body.one("compare", arguments, Value("", "i1", ()), text)
    regions = region(body, arguments, [wins], body.lines)
    regions += ", " + binary_region(scope, name, value.element)
    text = f"{dims('window_dimensions', window)}, {dims('window_strides', strides)}, "
    text += padding_text([(low, high) for low, high in padding]).removesuffix(", ")
    results = scope.op("select_and_scatter", [value, source, start], [info], text, regions)
    return [scope.tame(result) for result in results]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    reduce_window,
    select_and_scatter,
)
