# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations of random programs. Each function appends to a scope and returns the new values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fuzz_scope import Scope
from fuzz_values import (
    FLOATS,
    MANTISSA,
    NARROW,
    SMALLEST,
    UNROUNDED,
    Value,
    epsilon,
    is_complex,
    is_float,
    is_integer,
    limit,
    overflows,
    part,
    range_of,
    width,
)


@dataclass(frozen=True)
class Smooth:
    """A function without jumps on a part of the reals.

    Attributes:
        low, high: the argument is clamped to this range first.
        slope: the largest derivative in it.
        bound: the largest magnitude of the result.
    """

    low: float
    high: float
    slope: float
    bound: float


SMOOTH = {
    "tanh": Smooth(-8, 8, 1, 1),
    "exponential": Smooth(-6, 4, 55, 55),
    "logistic": Smooth(-8, 8, 1, 1),
    "sine": Smooth(-64, 64, 1, 1),
    "cosine": Smooth(-64, 64, 1, 1),
    "exponential_minus_one": Smooth(-6, 4, 55, 55),
    "log_plus_one": Smooth(0, 64, 1, 5),
    "log": Smooth(0.5, 64, 2, 5),
    "sqrt": Smooth(0.25, 64, 1, 8),
    "rsqrt": Smooth(0.25, 64, 4, 2),
    "cbrt": Smooth(0.25, 64, 1, 4),
    "tan": Smooth(-1, 1, 4, 2),
}


def smooth(scope: Scope) -> list[Value]:
    """One of :data:`SMOOTH`."""
    value = scope.find(lambda v: v.element in FLOATS)
    if value is None:
        return []
    name = scope.choose.of(tuple(SMOOTH))
    rule = SMOOTH[name]
    if not (value.wild and name in ("tanh", "logistic")):
        value = scope.clamped(value, rule.low, rule.high)
    error = rule.slope * value.error + epsilon(value.element) * rule.bound
    return [
        scope.arithmetic(name, [value], value.element, value.shape, bound=rule.bound, error=error)
    ]


def unary(scope: Scope) -> list[Value]:
    """Operations that move no number off its grid."""
    value = scope.find(lambda v: not is_complex(v.element))
    if value is None:
        return []
    if value.element == "i1":
        return [scope.one("not", [value], value)]
    if is_integer(value.element):
        names = ["negate", "not", "popcnt", "count_leading_zeros"]
        names += [] if value.element.startswith("u") else ["abs", "sign"]
        return [scope.one(scope.choose.of(names), [value], value)]
    names = ["negate", "abs"]
    if value.exact and value.element not in UNROUNDED:
        names += ["sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz"]
    name = scope.choose.of(names)
    result = value
    if name not in ("negate", "abs"):
        result = replace(value, bound=1.0 if name == "sign" else math.ceil(value.bound), grid=0)
    return [scope.one(name, [value], result)]


def binary(scope: Scope) -> list[Value]:
    """Arithmetic of two values of one type."""
    left = scope.find(lambda v: True)
    assert left is not None, "a program has arguments"
    right = scope.pair(left)
    if left.element == "i1":
        return [scope.one(scope.choose.of(("and", "or", "xor")), [left, right], left)]
    if is_integer(left.element):
        return [_integer_binary(scope, left, right)]
    return [_float_binary(scope, left, right)]


def _integer_binary(scope: Scope, left: Value, right: Value) -> Value:
    names = "add subtract multiply maximum minimum and or xor divide remainder".split()
    name = scope.choose.of([*names, "shift_left", "shift_right_logical", "shift_right_arithmetic"])
    if name in ("divide", "remainder"):  # by a positive number: neither zero nor minus one
        right = scope.one(
            "maximum", [right, scope.fit(scope.constant(left.element, 1), left.shape)], right
        )
    if name.startswith("shift"):
        mask = scope.constant(left.element, 2 * width(left.element) - 1)  # too far as well
        right = scope.one("and", [right, scope.fit(mask, left.shape)], right)
    return scope.one(name, [left, right], left)


def _float_binary(scope: Scope, left: Value, right: Value) -> Value:
    a, b = left.bound, right.bound
    names = ["add", "subtract", "multiply"]
    if not is_complex(left.element):
        names += ["maximum", "minimum"]
        if left.element not in NARROW:
            names += ["divide", "atan2", "power"]
            names += ["remainder"] if left.exact and right.exact else []
    name = scope.choose.of(names)
    if name in ("divide", "atan2", "power", "remainder"):
        return _guarded(scope, name, left, right)
    grid: int | None = None
    if left.grid is not None and right.grid is not None:
        grid = left.grid + right.grid if name == "multiply" else min(left.grid, right.grid)
    if name == "multiply":
        factor = 2 if is_complex(left.element) else 1
        bound = a * b * factor
        error = (a * right.error + b * left.error + left.error * right.error) * factor
    elif name in ("maximum", "minimum"):
        bound, error = max(a, b), max(left.error, right.error)
        if grid is None and error == 0:  # no rounding, whatever the numbers
            wild = left.wild or right.wild
            return scope.one(name, [left, right], replace(left, bound=bound, grid=None, wild=wild))
    else:
        bound, error = a + b, left.error + right.error
    if overflows(left.element, bound):
        return left
    return scope.arithmetic(
        name, [left, right], left.element, left.shape, bound=bound, error=error, grid=grid
    )


def _guarded(scope: Scope, name: str, left: Value, right: Value) -> Value:
    """Functions of two arguments away from where they jump or grow without bound."""
    a = left.bound
    if name == "power":
        if left.wild or right.wild:
            return left
        left, right = scope.clamped(left, 0.5, 8), scope.clamped(right, -2, 2)
        bound, error = 64.0, 48 * left.error + 140 * right.error
        error += 16 * epsilon(left.element) * bound
    else:
        right = scope.one("abs", [right], right)
        half = scope.fit(scope.constant(right.element, 0.5), right.shape)
        right = scope.one("maximum", [right, half], replace(right, bound=max(right.bound, 0.5)))
        if right.grid is not None:
            right = replace(right, grid=min(right.grid, -1))
        if name == "remainder":
            grid = None if left.grid is None or right.grid is None else min(left.grid, right.grid)
            if grid is None:
                return left
            return scope.one(name, [left, right], replace(left, grid=grid))
        if name == "divide":
            bound, error = 2 * a, 2 * left.error + 4 * a * right.error
        else:
            bound, error = 3.2, 4 * (left.error + right.error) + 4 * epsilon(left.element)
    return scope.arithmetic(name, [left, right], left.element, left.shape, bound=bound, error=error)


def compare(scope: Scope) -> list[Value]:
    """A comparison, of values that are the same number everywhere."""
    left = scope.find(lambda v: v.error == 0)
    if left is None:
        return []
    right = scope.pair(left)
    if right.error:
        right = left
    kinds = {"i1": "UNSIGNED"}.get(left.element, "FLOAT")
    if is_integer(left.element):
        kinds = "UNSIGNED" if left.element.startswith("u") else "SIGNED"
    directions = ["EQ", "NE"] if is_complex(left.element) else ["LT", "GT", "EQ", "NE", "LE", "GE"]
    text = (
        f"comparison_direction = #stablehlo<comparison_direction {scope.choose.of(directions)}>, "
    )
    text += f"compare_type = #stablehlo<comparison_type {kinds}>"
    return [scope.one("compare", [left, right], Value("", "i1", left.shape), text)]


def select(scope: Scope) -> list[Value]:
    """A select, by a predicate of the values' shape or of rank 0."""
    left = scope.find(lambda v: True)
    assert left is not None, "a program has arguments"
    right = scope.pair(left)
    chosen = scope.of_type("i1")
    chosen = scope.fit(chosen, left.shape if chosen.shape != () or scope.choose.coin() else ())
    return [scope.one("select", [chosen, left, right], merged(left, right))]


def merged(left: Value, right: Value) -> Value:
    """What is known of a value that is one of two."""
    grid = None if left.grid is None or right.grid is None else min(left.grid, right.grid)
    return replace(
        left,
        bound=max(left.bound, right.bound),
        error=max(left.error, right.error),
        grid=grid,
        wild=left.wild or right.wild,
    )


def clamp(scope: Scope) -> list[Value]:
    """Limits that are constants."""
    value = scope.find(lambda v: v.element in FLOATS or is_integer(v.element))
    if value is None or value.wild:
        return []
    low, high = (0, 5) if value.element.startswith("u") else (-2, 3)
    return [scope.clamped(value, low, high)]


def is_finite(scope: Scope) -> list[Value]:
    """Which elements are finite."""
    value = scope.find(lambda v: v.element in FLOATS)
    if value is None:
        return []
    return [scope.one("is_finite", [value], Value("", "i1", value.shape))]


def convert(scope: Scope) -> list[Value]:
    """A conversion between any two types whose result is defined."""
    value = scope.find(lambda v: not is_complex(v.element))
    if value is None:
        return []
    element = scope.choose.element()
    plain = Value("", element, value.shape)
    if is_float(value.element):
        if element == "i1":
            return [scope.one("convert", [value], plain)] if value.error == 0 else []
        if is_integer(element):
            if not value.exact:
                return []
            low, high = max(range_of(element)[0], -4), min(range_of(element)[1], 4)
            return [scope.one("convert", [scope.clamped(value, low, high)], plain)]
        if (element in NARROW or value.element in NARROW) and value.wild:
            return []
        if value.bound > limit(element):
            return []
        return [_to_float(scope, value, element)]
    if not is_float(part(element)):
        return [scope.one("convert", [value], plain)]
    if is_integer(value.element):
        high = min(7, int(limit(element)))
        value = scope.clamped(value, 0 if value.element.startswith("u") else -high, high)
    result = replace(plain, bound=7.0 if value.element != "i1" else 1.0)
    return [scope.one("convert", [value], result)]


def _to_float(scope: Scope, value: Value, element: str) -> Value:
    """To another real or complex type: the one rounding is the same everywhere."""
    mantissa = MANTISSA[part(element)]
    fits = value.grid is not None and value.bound <= 2.0 ** (mantissa + value.grid)
    fits = fits and value.grid is not None and value.grid >= SMALLEST.get(element, value.grid)
    error = value.error + (0 if value.error == 0 else epsilon(element) * value.bound)
    grid = value.grid if fits and value.error == 0 else None
    result = replace(value, element=element, error=error, grid=grid, bound=value.bound * 1.1)
    return scope.tame(scope.one("convert", [value], result))


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    binary,
    unary,
    smooth,
    compare,
    select,
    convert,
    clamp,
    is_finite,
)
