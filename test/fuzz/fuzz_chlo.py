# SPDX-License-Identifier: Apache-2.0
"""CHLO's operations in random programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_elementwise import Smooth
from fuzz_scope import Scope
from fuzz_values import (
    FLOATS,
    INTEGERS,
    Value,
    epsilon,
    is_complex,
    width,
)

WIDE = ("f32", "f64")


#: CHLO's functions of one argument, as in :data:`fuzz_elementwise.SMOOTH`.
FUNCTIONS = {
    "acos": Smooth(-0.875, 0.875, 2.1, 3.2),
    "acosh": Smooth(1.25, 64, 1.4, 5),
    "asin": Smooth(-0.875, 0.875, 2.1, 1.6),
    "asinh": Smooth(-64, 64, 1, 5),
    "atan": Smooth(-64, 64, 1, 1.6),
    "atanh": Smooth(-0.875, 0.875, 4.5, 1.5),
    "bessel_i1e": Smooth(-8, 8, 0.6, 0.25),
    "cosh": Smooth(-4, 4, 28, 28),
    "digamma": Smooth(0.5, 16, 5, 3),
    "erf": Smooth(-4, 4, 1.2, 1),
    "erf_inv": Smooth(-0.875, 0.875, 4, 1.2),
    "erfc": Smooth(-4, 4, 1.2, 2),
    "lgamma": Smooth(0.5, 16, 3, 30),
    "sinh": Smooth(-4, 4, 28, 28),
    "square": Smooth(-8, 8, 16, 64),
    "tan": Smooth(-1, 1, 4, 2),
}


def chlo_function(scope: Scope) -> list[Value]:
    """One of :data:`FUNCTIONS`."""
    value = scope.find(lambda v: v.element in FLOATS)
    if value is None:
        return []
    name = scope.choose.of(tuple(FUNCTIONS))
    rule = FUNCTIONS[name]
    value = scope.clamped(value, rule.low, rule.high)
    error = rule.slope * value.error + 8 * epsilon(value.element) * rule.bound
    return [
        scope.arithmetic(
            f"chlo.{name}", [value], value.element, value.shape, bound=rule.bound, error=error
        )
    ]


def chlo_special(scope: Scope) -> list[Value]:
    """``zeta`` and ``polygamma``, where they are smooth."""
    value = scope.find(lambda v: v.element in WIDE and not v.wild)
    if value is None:
        return []
    element, shape = value.element, value.shape
    value = scope.clamped(value, 1.5, 8)
    name = scope.choose.of(("zeta", "polygamma"))
    error = 32 * value.error + 64 * epsilon(element)
    if name == "polygamma":
        order = scope.fit(scope.constant(element, scope.choose.integer(0, 3)), shape)
        operands, bound = [order, value], 8.0
    else:
        other = scope.clamped(scope.pair(value), 1, 8)
        operands, bound = [value, other], 4.0
        error += 32 * other.error
    return [scope.arithmetic(f"chlo.{name}", operands, element, shape, bound=bound, error=error)]


def chlo_exact(scope: Scope) -> list[Value]:
    """CHLO's operations without rounding."""
    name = scope.choose.of(
        ("next_after", "mulhi", "is_inf", "is_pos_inf", "is_neg_inf", "conj", "constant_like")
    )
    if name == "next_after":
        value = scope.find(lambda v: v.element in WIDE and v.exact)
        if value is None:
            return []
        other = scope.pair(value, exact=True)
        if not other.exact:
            other = value
        result = replace(value, grid=None, bound=value.bound * 1.01 + 0.1)
        return [scope.one("chlo.next_after", [value, other], result)]
    if name == "mulhi":
        value = scope.find(lambda v: v.element in INTEGERS and width(v.element) >= 8)
        return [] if value is None else [scope.one("chlo.mulhi", [value, scope.pair(value)], value)]
    if name == "conj":
        value = scope.find(lambda v: is_complex(v.element))
        return [] if value is None else [scope.one("chlo.conj", [value], value)]
    value = scope.find(lambda v: v.element in WIDE)
    if value is None:
        return []
    if name == "constant_like":
        result = Value("", value.element, value.shape, bound=2.5, grid=-1)
        text = f"value = 2.5 : {value.element}"
        return [scope.one("chlo.constant_like", [value], result, text)]
    return [scope.one(f"chlo.{name}", [value], Value("", "i1", value.shape))]


def chlo_broadcast(scope: Scope) -> list[Value]:
    """Integer arithmetic of values of different ranks."""
    left = scope.find(lambda v: v.element in ("i32", "i64", "ui8", "i16") and v.size > 0)
    if left is None:
        return []
    drop = scope.choose.integer(0, len(left.shape))
    shape = tuple(1 if scope.choose.coin() else size for size in left.shape[drop:])
    right = scope.fit(scope.of_type(left.element), shape)
    names = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor")
    return [scope.one(f"chlo.broadcast_{scope.choose.of(names)}", [left, right], left)]


def top_k(scope: Scope) -> list[Value]:
    """The largest elements of the last dimension and where they are; ties keep their order."""
    value = scope.find(
        lambda v: v.element in (*WIDE, "i32", "i64", "ui8", "i8") and v.exact and v.shape != ()
    )
    if value is None:
        return []
    number = scope.choose.integer(0, min(value.shape[-1], 5))
    shape = (*value.shape[:-1], number)
    results = [replace(value, shape=shape), Value("", "i32", shape)]
    return scope.op("chlo.top_k", [value], results, f"k = {number} : i64")


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    chlo_function,
    chlo_special,
    chlo_exact,
    chlo_broadcast,
    top_k,
)
