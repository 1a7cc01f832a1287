# SPDX-License-Identifier: Apache-2.0
"""Functions of complex numbers of ``f32`` parts that need less than those of ``f64`` do.

What every element goes through is computed in ``f64``, where products of two parts are exact and neither overflow nor
underflow; the cases of infinities and zeros are told apart in ``f32``, where a vector holds twice as many. Special
values are those of :mod:`gristmill.compiler.emitters.math._complex`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gristmill.compiler.emitters.math import _exponential, _trigonometry
from gristmill.compiler.emitters.math._values import F32, Value, fma, select

Complex = tuple[Value, Value]

_INFINITY = math.inf


def _is_infinite(x: Value) -> Value:
    return x.abs().equal(_INFINITY)


def _is_finite(z: Complex) -> Value:
    return (z[0].abs() < _INFINITY) & (z[1].abs() < _INFINITY)


def _choose(condition: Value, on_true: Complex, on_false: Complex) -> Complex:
    return select(condition, on_true[0], on_false[0]), select(condition, on_true[1], on_false[1])


def magnitude(z: Complex) -> Value:
    """``|z|`` by a root of ``f32``, corrected: rounded to nearest but for a few in a million.

    With the larger part scaled to [2, 4), a² + b² is h + e for h = fl(fl(a²) + fl(b²)), and its root y + (h - y² + e)
    y / 2h for y = fl(√h).
    """
    one, other = z[0].abs(), z[1].abs()
    swap = one < other
    a, b = select(swap, other, one), select(swap, one, other)
    exponent = a.bits() & (F32.exponent_mask << F32.mantissa)
    least = exponent.constant(2 << F32.mantissa)  # half of it is normal
    exponent = select(exponent < least, least, exponent)
    scale = (exponent.constant(F32.exponent_mask << F32.mantissa) - exponent).as_float()
    a, b = a * scale, b * scale
    square, other_square = a * a, b * b
    total = square + other_square
    error = (square - total) + other_square + fma(a, a, -square) + fma(b, b, -other_square)
    root = total.sqrt()
    half_inverse = (
        0.5 / total.at_least(2.0**-60) * root
    )  # 0 for 0: the least other square is far away
    root = fma(fma(-root, root, total) + error, half_inverse, root)
    length = root * (exponent - (1 << F32.mantissa)).as_float()
    return select(_is_infinite(z[0]) | _is_infinite(z[1]), _INFINITY, length)


def square(z: Complex) -> Value:
    """``|z|²`` in binary64."""
    real, imaginary = z[0].widen(), z[1].widen()
    return fma(real, real, imaginary * imaginary)


def divide(a: Complex, b: Complex) -> Complex:
    """``a / b``: a conj(b) / |b|², each part within a rounding of exact.

    An infinite operand is replaced by one of ±1 and ±0 in its direction, and the quotient multiplied by 0 or infinity
    (C99's annex G), on which 1 / |b|² takes part.
    """
    from_infinity, to_infinity = _has_infinity(a) & _is_finite(b), _has_infinity(b) & _is_finite(a)
    x, y = (part.widen() for part in _choose(from_infinity, _direction(a), a))
    c, d = (part.widen() for part in _choose(to_infinity, _direction(b), b))
    factor = select(from_infinity, b[0].constant(_INFINITY), 1.0)
    inverse = select(to_infinity, 0.0, factor).widen() / fma(c, c, d * d)
    real, imaginary = fma(x, c, y * d) * inverse, fma(y, c, -(x * d)) * inverse
    infinity = b[0].constant(_INFINITY).copysign(b[0])
    by_zero = b[0].equal(0.0) & b[1].equal(0.0)
    quotient = real.narrow(), imaginary.narrow()
    return _choose(by_zero, (infinity * a[0], infinity * a[1]), quotient)


def _has_infinity(z: Complex) -> Value:
    return _is_infinite(z[0]) | _is_infinite(z[1])


def _direction(z: Complex) -> Complex:
    """Infinite parts become ±1, the others ±0."""
    real, imaginary = (
        select(_is_infinite(x), x.constant(1.0), 0.0).copysign(x) for x in (z[0], z[1])
    )
    return real, imaginary


def exponential(z: Complex) -> Complex:
    """e^x (cos y + i sin y); NaN for infinite y, as StableHLO's references have it."""
    x, y = z
    # beyond, the product is 0 or infinite whatever the sine
    power = _exponential.exponential_short(x.at_least(-200.0).at_most(200.0).widen())
    sine, cosine = _trigonometry.sine_and_cosine_of_f32(y)
    imaginary = (power * sine).narrow()
    return (power * cosine).narrow(), select(y.equal(0.0), y, imaginary)


UNARY: dict[str, Callable[[Complex], Complex]] = {"exponential": exponential}
BINARY: dict[str, Callable[[Complex, Complex], Complex]] = {"divide": divide}
