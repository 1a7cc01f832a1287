# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that combine elements: reductions, windows and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzz_movement import any_value
from fuzz_scope import MOST_ELEMENTS, Scope, dims, region, scalar_arguments
from fuzz_values import (
    Value,
    count,
    epsilon,
    is_complex,
    is_float,
    is_integer,
    overflows,
)


def combining(scope: Scope, value: Value, times: int) -> tuple[str, Value] | None:
    """A binary operation to combine ``times`` elements with, and what is known of the result."""
    if value.element == "i1":
        return scope.choose.of(("or", "and", "xor")), value
    if is_integer(value.element):
        names = ("add", "maximum", "minimum", "multiply", "and", "or", "xor")
        return scope.choose.of(names), value
    names = ["add"] if is_complex(value.element) else ["add", "maximum", "minimum"]
    name = scope.choose.of(names)
    if name == "add":
        info = summed(value, times)
        return None if overflows(value.element, info.bound) else (name, info)
    return name, replace(value, bound=max(value.bound, 4.0))


def summed(value: Value, times: int) -> Value:
    """What is known of a sum of ``times`` elements of ``value``, in any order."""
    bound = max(value.bound, 2.0) * max(times, 1) + 4.0
    grid = value.grid
    if is_integer(value.element) or value.element == "i1":
        return value
    bits = 1 / epsilon(value.element)
    if value.error == 0 and grid is not None and bound <= bits * 2.0**grid:
        return replace(value, bound=bound)
    error = max(times, 1) * (value.error + 2 * epsilon(value.element) * bound)
    return replace(value, bound=bound, error=error, grid=None)


def neutral(scope: Scope, name: str, element: str) -> Value:
    """An initial value; not always the neutral element."""
    if name in ("add", "xor", "or"):
        return scope.constant(element, scope.choose.integer(0, 1))
    if name == "multiply":
        return scope.constant(element, 1)
    return scope.constant(element, 1 if element == "i1" else scope.choose.integer(0, 3))


def binary_region(scope: Scope, name: str, element: str) -> str:
    """A region of one binary operation."""
    arguments = scalar_arguments(scope, [element] * 2)
    body = scope.inner()
    result = body.one(name, arguments, Value("", element, ()))
    return region(body, arguments, [result], body.lines)


def reduce(scope: Scope) -> list[Value]:
    """A reduction of one value over any dimensions."""
    value = any_value(scope, 1)
    axes = scope.choose.subset(len(value.shape), 1)
    if scope.choose.coin():
        axes = axes[::-1]
    kept = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    chosen = combining(scope, value, count(tuple(value.shape[axis] for axis in axes)))
    if chosen is None:
        return []
    name, info = chosen
    operands = [value, neutral(scope, name, value.element)]
    inside = binary_region(scope, name, value.element)
    text = dims("dimensions", axes)
    results = scope.op("reduce", operands, [replace(info, shape=kept)], text, inside)
    return [scope.tame(result) for result in results]


def reduce_pair(scope: Scope) -> list[Value]:
    """The largest or smallest element and another value's element at its place."""
    value = scope.find(lambda v: v.exact and len(v.shape) >= 1 and not is_complex(v.element))
    if value is None or value.element == "i1":
        return []
    axes = scope.choose.subset(len(value.shape), 1)
    kept = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    places = scope.one(
        "iota", [], Value("", "i32", value.shape), f"iota_dimension = {axes[0]} : i64"
    )
    inits = [scope.constant(value.element, 0), scope.constant("i32", 0)]
    arguments = scalar_arguments(scope, [value.element, "i32", value.element, "i32"])
    left, left_at, right, right_at = arguments
    body = scope.inner()
    flag = Value("", "i1", ())
    kind = "FLOAT" if is_float(value.element) else "SIGNED"
    if value.element.startswith("u"):
        kind = "UNSIGNED"

    def comparison(direction: str, operands: Sequence[Value], of: str) -> Value:
        text = f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        return body.one(
            "compare", operands, flag, f"{text}compare_type = #stablehlo<comparison_type {of}>"
        )

    better = comparison(scope.choose.of(("GT", "LT")), [left, right], kind)
    equal = comparison("EQ", [left, right], kind)
    earlier = comparison("LT", [left_at, right_at], "SIGNED")
    wins = body.one("or", [better, body.one("and", [equal, earlier], flag)], flag)
    best = body.one("select", [wins, left, right], left)
    best_at = body.one("select", [wins, left_at, right_at], left_at)
    inside = region(body, arguments, [best, best_at], body.lines)
    results = [replace(value, shape=kept), Value("", "i32", kept)]
    return scope.op("reduce", [value, places, *inits], results, dims("dimensions", axes), inside)


#: Associative and commutative combinations of one or two integers ``a``, ``b`` (``c``, ``d``), as steps.
MONOIDS: dict[str, tuple[int, tuple[tuple[str, str, str], ...], tuple[str, ...]]] = {
    "a + b + a b": (1, (("multiply", "a", "b"), ("add", "a", "b"), ("add", "0", "1")), ("2",)),
    "a b of Gaussian integers": (
        2,
        (
            ("multiply", "a", "c"),
            ("multiply", "b", "d"),
            ("subtract", "0", "1"),
            ("multiply", "a", "d"),
            ("multiply", "b", "c"),
            ("add", "3", "4"),
        ),
        ("2", "5"),
    ),
    "the sum and the product": (2, (("add", "a", "c"), ("multiply", "b", "d")), ("0", "1")),
    "the smaller and the larger": (
        2,
        (("minimum", "a", "c"), ("maximum", "b", "d")),
        ("0", "1"),
    ),
}


def reduce_any(scope: Scope) -> list[Value]:
    """A reduction by a body of several operations, of one or two values."""
    value = scope.find(lambda v: is_integer(v.element) and len(v.shape) >= 1)
    if value is None:
        return []
    operands, steps, returned = MONOIDS[scope.choose.of(tuple(MONOIDS))]
    values = [value, *(scope.pair(value) for _ in range(operands - 1))]
    axes = scope.choose.subset(len(value.shape), 1)
    kept = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    inits = [scope.constant(value.element, scope.choose.integer(0, 1)) for _ in values]
    arguments = scalar_arguments(scope, [value.element] * 2 * operands)
    body = scope.inner()
    made = dict(zip("abcd", arguments, strict=False))
    for index, (name, left, right) in enumerate(steps):
        result = Value("", value.element, ())
        made[str(index)] = body.one(name, [made[left], made[right]], result)
    inside = region(body, arguments, [made[name] for name in returned], body.lines)
    results = [Value("", value.element, kept) for _ in values]
    return scope.op("reduce", [*values, *inits], results, dims("dimensions", axes), inside)


def precision(scope: Scope) -> str:
    """The text of a precision attribute, or nothing."""
    if not scope.choose.coin():
        return ""
    names = [scope.choose.of(("DEFAULT", "HIGH", "HIGHEST")) for _ in range(2)]
    return f", precision_config = [{', '.join(f'#stablehlo<precision {n}>' for n in names)}]"


def dot_general(scope: Scope) -> list[Value]:
    """A product with any batching and contracting dimensions."""
    left = scope.find(lambda v: v.element != "i1" and len(v.shape) >= 1 and not v.wild)
    if left is None:
        return []
    rank = len(left.shape)
    order = scope.choose.permutation(rank)
    batch = order[: scope.choose.integer(0, min(rank - 1, 2))]
    contracted = order[len(batch) : len(batch) + scope.choose.integer(0, min(2, rank - len(batch)))]
    free = scope.choose.shape((0, 2), 20)
    sizes = [left.shape[axis] for axis in (*batch, *contracted)] + list(free)
    place = scope.choose.permutation(len(sizes))  # of each dimension in the right operand
    shape = [0] * len(sizes)
    for index, size in enumerate(sizes):
        shape[place[index]] = size
    kept = [left.shape[axis] for axis in range(rank) if axis not in (*batch, *contracted)]
    right_free = [
        shape[axis] for axis in range(len(shape)) if axis in place[len(batch) + len(contracted) :]
    ]
    result = tuple([left.shape[axis] for axis in batch] + kept + right_free)
    times = count(tuple(left.shape[axis] for axis in contracted))
    if times == 0 or count(result) > MOST_ELEMENTS or count(result) * times > 20000:
        return []
    right = scope.of_type(left.element)
    if right.wild or count(tuple(shape)) > MOST_ELEMENTS:
        return []
    right = scope.fit(right, tuple(shape))
    numbers = (
        f"lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {place[: len(batch)]}, "
    )
    numbers += f"lhs_contracting_dimensions = {contracted}, "
    numbers += f"rhs_contracting_dimensions = {place[len(batch) : len(batch) + len(contracted)]}"
    factor = 2 if is_complex(left.element) else 1
    info = replace(left, bound=left.bound * right.bound * factor, grid=None)
    if left.grid is not None and right.grid is not None:
        info = replace(info, grid=left.grid + right.grid)
    error = factor * (
        left.bound * right.error + right.bound * left.error + left.error * right.error
    )
    info = summed(replace(info, error=error), times)
    if overflows(left.element, info.bound):
        return []
    wider = {"f16": "f32", "bf16": "f32", "i8": "i32"}
    element = left.element
    if element in wider and scope.choose.coin():
        element = wider[element]
    text = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>{precision(scope)}"
    return [
        scope.arithmetic(
            "dot_general",
            [left, right],
            element,
            result,
            bound=info.bound,
            error=info.error,
            grid=info.grid,
            attributes=text,
        )
    ]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    reduce,
    reduce_pair,
    reduce_any,
    dot_general,
)
