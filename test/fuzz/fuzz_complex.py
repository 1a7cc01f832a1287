# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs on complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_elementwise import merged
from fuzz_scope import Scope
from fuzz_values import COMPLEX, Value, epsilon, part

#: Functions, and a point in whose neighbourhood (a radius of one) they are smooth.
CENTRES = {
    "exponential": 0.0,
    "exponential_minus_one": 0.0,
    "tanh": 0.0,
    "logistic": 0.0,
    "sine": 0.0,
    "cosine": 0.0,
    "log": 2.5,
    "log_plus_one": 2.0,
    "sqrt": 2.5,
    "rsqrt": 2.5,
    "sign": 2.5,
    "tan": 0.0,
    "cbrt": 2.5,
}


def parts(scope: Scope) -> list[Value]:
    """From real to complex numbers and back."""
    element = scope.choose.of(COMPLEX)
    value = scope.find(lambda v: v.element == element)
    if value is None:
        left = scope.of_type(part(element))
        result = replace(merged(left, right := scope.pair(left)), element=element)
        return [scope.one("complex", [left, right], result)]
    name = scope.choose.of(("real", "imag"))
    return [scope.one(name, [value], replace(value, element=part(element)))]


def _near(scope: Scope, value: Value, centre: float) -> Value:
    """``value`` brought into the neighbourhood of a point."""
    element, shape = value.element, value.shape
    small = scope.fit(scope.constant(element, 2.0**-11), shape)
    bound, error = value.bound / 2048, value.error / 2048
    value = scope.arithmetic("multiply", [value, small], element, shape, bound=bound, error=error)
    middle = scope.fit(scope.constant(element, centre), shape)
    bound = value.bound + centre
    return scope.arithmetic("add", [value, middle], element, shape, bound=bound, error=value.error)


def functions(scope: Scope) -> list[Value]:
    """One of :data:`CENTRES`, or the magnitude."""
    value = scope.find(lambda v: v.element in COMPLEX and not v.wild)
    if value is None:
        return []
    element, shape = value.element, value.shape
    name = scope.choose.of((*CENTRES, "abs", "negate"))
    if name == "negate":
        return [scope.one(name, [value], value)]
    if name == "abs":
        bound, error = 1.5 * value.bound, 2 * value.error
        return [scope.arithmetic(name, [value], part(element), shape, bound=bound, error=error)]
    value = _near(scope, value, CENTRES[name])
    error = 8 * value.error + 8 * epsilon(element)
    return [scope.arithmetic(name, [value], element, shape, bound=4.0, error=error)]


def quotients(scope: Scope) -> list[Value]:
    """Division, power and the angle, of denominators and bases away from zero."""
    value = scope.find(lambda v: v.element in COMPLEX and not v.wild)
    other = None if value is None else scope.pair(value)
    if value is None or other is None or other.wild:
        return []
    name = scope.choose.of(("divide", "power", "atan2"))
    if name == "divide":
        other = _near(scope, other, 2.5)
        bound = 2 * value.bound
        error = 2 * value.error + 4 * value.bound * other.error
    else:
        value, other = (
            _near(scope, value, 2.5),
            _near(scope, other, 2.5 if name == "atan2" else 1.0),
        )
        bound, error = 64.0, 128 * (value.error + other.error)
    error += 16 * epsilon(value.element) * bound
    return [
        scope.arithmetic(name, [value, other], value.element, value.shape, bound=bound, error=error)
    ]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (parts, functions, quotients)
