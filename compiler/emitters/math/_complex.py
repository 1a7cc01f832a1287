# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of complex numbers, from real ones.

A complex number is a pair of :class:`Value`, its real and imaginary part. Numbers of ``f32`` parts are computed in
``f64``, which removes overflow and most cancellation from intermediate results; for ``f64`` itself the formulas
scale by powers of two and compensate sums where that matters. Infinities, signed zeros and NaN follow C99's annex G
where it has a rule; branch cuts lie along the negative real axis, continuous from the side that the sign of the
imaginary zero names.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gristmill.compiler.emitters.math import _exponential, _logarithm, _power, _trigonometry
from gristmill.compiler.emitters.math._values import Value, fma, select, two_product, two_sum

Complex = tuple[Value, Value]

_INFINITY = math.inf
#: ``exp`` of more overflows: above, it is squared from half the exponent.
_LARGE_EXPONENT = 709.0
#: Above, ``exp(-x)`` is below half a unit in the last place of ``exp(x)``, and ``tanh x`` rounds to 1.
_SATURATED = 22.0


def _is_infinite(z: Complex) -> Value:
    return z[0].abs().equal(_INFINITY) | z[1].abs().equal(_INFINITY)


def _is_zero(z: Complex) -> Value:
    return z[0].equal(0.0) & z[1].equal(0.0)


def _choose(condition: Value, on_true: Complex, on_false: Complex) -> Complex:
    return select(condition, on_true[0], on_false[0]), select(condition, on_true[1], on_false[1])


def _sorted_magnitudes(z: Complex) -> tuple[Value, Value]:
    """``(larger, smaller)`` of the parts' magnitudes."""
    a, b = z[0].abs(), z[1].abs()
    swap = a < b
    return select(swap, b, a), select(swap, a, b)


def _power_of_two(exponent: Value, like: Value) -> Value:
    """``2 ** exponent``, a normal number of the type of ``like``."""
    form = like.format
    return ((exponent + form.bias) << form.mantissa).as_float()


def _normalize(z: Complex) -> tuple[Complex, Value]:
    """``(z * 2**-k, k)`` with k even, such that the larger part lies near 1 unless it is infinite or 0."""
    larger, _ = _sorted_magnitudes(z)
    form = larger.format
    exponent = larger.bits().logical_shift_right(form.mantissa) - form.bias
    limit = form.bias - 1
    k = exponent.at_least(-limit).at_most(limit) & -2
    scale = _power_of_two(0 - k, larger)
    return (z[0] * scale, z[1] * scale), k


def _norm(z: Complex) -> Value:
    """``|z|**2`` of a normalized number."""
    return fma(z[0], z[0], z[1] * z[1])


def magnitude(z: Complex) -> Value:
    """``|z|``; infinite if either part is."""
    scaled, k = _normalize(z)
    length = _norm(scaled).sqrt() * _power_of_two(k, z[0])
    return select(_is_infinite(z), _INFINITY, length)


def multiply(a: Complex, b: Complex) -> Complex:
    """``a * b``, four products."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _product_sum(a: Value, b: Value, c: Value, d: Value) -> Value:
    """``a b + c d`` within 1.5 ulp (Kahan), barring overflow and underflow."""
    low = c * d
    return fma(a, b, low) + fma(c, d, -low)


def divide(a: Complex, b: Complex) -> Complex:
    """``a / b`` with the divisor scaled to about 1; zero and infinite operands as in C99's annex G."""
    (c, d), k = _normalize(b)
    norm = _norm((c, d))
    inverse = _power_of_two(0 - k, c)
    larger, _ = _sorted_magnitudes(a)
    huge = larger > 2.0 ** (c.format.bias - 4)  # its product with c, below 4, might overflow
    shrink, grow = select(huge, c.constant(0.0625), 1.0), select(huge, c.constant(16.0), 1.0)
    x, y = a[0] * shrink, a[1] * shrink
    real = (_product_sum(x, c, y, d) / norm) * inverse * grow
    imaginary = (_product_sum(y, c, -x, d) / norm) * inverse * grow
    result = (real, imaginary)
    by_zero = norm.equal(0.0)
    infinity = c.constant(_INFINITY).copysign(b[0])
    result = _choose(by_zero, (infinity * a[0], infinity * a[1]), result)
    finite_a = (a[0].abs() < _INFINITY) & (a[1].abs() < _INFINITY)
    finite_b = (b[0].abs() < _INFINITY) & (b[1].abs() < _INFINITY)
    unit_a, unit_b = _infinite_parts_as_units(a), _infinite_parts_as_units(b)
    product = (
        _product_sum(unit_a[0], b[0], unit_a[1], b[1]) * _INFINITY,
        _product_sum(unit_a[1], b[0], -unit_a[0], b[1]) * _INFINITY,
    )
    result = _choose(_is_infinite(a) & finite_b & ~by_zero, product, result)
    vanishing = (
        _product_sum(a[0], unit_b[0], a[1], unit_b[1]) * 0.0,
        _product_sum(a[1], unit_b[0], -(a[0]), unit_b[1]) * 0.0,
    )
    return _choose(_is_infinite(b) & finite_a, vanishing, result)


def _infinite_parts_as_units(z: Complex) -> Complex:
    """Infinite parts become ±1, the others ±0."""
    return _infinite_as_unit(z[0]), _infinite_as_unit(z[1])


def _infinite_as_unit(x: Value) -> Value:
    return select(x.abs().equal(_INFINITY), x.constant(1.0), 0.0).copysign(x)


def exponential(z: Complex) -> Complex:
    """e^x (cos y + i sin y); NaN for infinite y, as StableHLO's references have it."""
    x, y = z
    power, factor = _scaled_exponential(x)
    real = power * _trigonometry.cosine(y) * factor
    imaginary = power * _trigonometry.sine(y) * factor
    imaginary = select(y.equal(0.0), y, imaginary)
    return real, imaginary


def _scaled_exponential(x: Value) -> tuple[Value, Value]:
    """``(p, f)`` with e^x = p f, where the product of p and a sine is finite whenever the result is."""
    large = x > _LARGE_EXPONENT
    power = _exponential.exponential(select(large, x * 0.5, x))
    return power, select(large, power, 1.0)


def exponential_minus_one(z: Complex) -> Complex:
    """(e^x - 1) cos y - 2 sin²(y/2) + i e^x sin y."""
    x, y = z
    real, imaginary = exponential(z)
    half = _trigonometry.sine(y * 0.5)
    small = _exponential.exponential_minus_one(x.at_most(1.0)) * _trigonometry.cosine(y)
    small = small - 2.0 * half * half
    finite = y.abs() < _INFINITY
    return select((x < 1.0) & finite, small, real - 1.0), imaginary


def _log_length(z: Complex, a: Value, b: Value, square_minus_one: Value) -> Value:
    """log |z|, given the sorted magnitudes of z's parts and |z|² - 1, accurate for a from 1/2 to 2."""
    near = (a > 0.5) & (a < 2.0)
    degenerate = a.equal(0.0) | a.equal(_INFINITY)
    ratio = select(degenerate, 0.0, b / a)
    rest = _logarithm.log_plus_one(select(near, square_minus_one, ratio * ratio))
    logarithm = rest * 0.5 + select(near, 0.0, _logarithm.log(a))
    return select(_is_infinite(z), _INFINITY, logarithm)


def log(z: Complex) -> Complex:
    """log |z| + i arg z."""
    x, y = z
    return _real_log(z), _trigonometry.atan2(y, x)


def _real_log(z: Complex) -> Value:
    a, b = _sorted_magnitudes(z)
    high_a, low_a = two_product(a, a)
    high_b, low_b = two_product(b, b)
    total, error = two_sum(high_a - 1.0, high_b)
    return _log_length(z, a, b, total + (error + (low_a + low_b)))


def log_plus_one(z: Complex) -> Complex:
    """log |1 + z| + i arg (1 + z), with |1 + z|² - 1 = 2x + x² + y² summed in twice the precision."""
    x, y = z
    shifted = (x + 1.0, y)
    a, b = _sorted_magnitudes(shifted)
    high_x, low_x = two_product(x, x)
    high_y, low_y = two_product(y, y)
    partial, first = two_sum(x + x, high_x)
    total, second = two_sum(partial, high_y)
    square_minus_one = total + ((first + second) + (low_x + low_y))
    return _log_length(shifted, a, b, square_minus_one), _trigonometry.atan2(y, shifted[0])


def sqrt(z: Complex) -> Complex:
    """With t = sqrt((|x| + |z|) / 2): t + i y / 2t, or |y| / 2t ± i t for negative x."""
    scaled, k = _normalize(z)
    larger = _larger_root(scaled) * _power_of_two(k >> 1, z[0])
    real, imaginary = _with_smaller_root(z, larger)
    infinite = z[1].abs().equal(_INFINITY)
    return select(infinite, _INFINITY, real), select(infinite, z[1], imaginary)


def _larger_root(z: Complex) -> Value:
    """The larger part of the root of a normalized number."""
    return ((z[0].abs() + _norm(z).sqrt()) * 0.5).sqrt()


def _with_smaller_root(z: Complex, larger: Value) -> Complex:
    """The root of which ``larger`` is the larger part."""
    x, y = z
    smaller = select(larger.equal(0.0), 0.0, y.abs() / (larger + larger))
    negative = x < 0.0
    return select(negative, smaller, larger), select(negative, larger, smaller).copysign(y)


def rsqrt(z: Complex) -> Complex:
    """The conjugate of the root over |z|."""
    scaled, k = _normalize(z)
    real, imaginary = _with_smaller_root(scaled, _larger_root(scaled))
    inverse = _power_of_two(0 - (k >> 1), z[0])
    length = _norm(scaled).sqrt()
    result = (real / length * inverse, -imaginary / length * inverse)
    zero = z[0].constant(0.0)
    result = _choose(_is_infinite(z), (zero, zero.copysign(-z[1])), result)
    pole = (z[0].constant(_INFINITY), z[0].constant(math.nan))
    return _choose(_is_zero(z), pole, result)


def cbrt(z: Complex) -> Complex:
    """The principal root: the third of the argument."""
    angle = _trigonometry.atan2(z[1], z[0]) / 3.0
    length = _power.cbrt(magnitude(z))
    real = length * _trigonometry.cosine(angle)
    return real, select(z[1].equal(0.0) & (z[0] >= 0.0), z[1], length * _trigonometry.sine(angle))


def power(z: Complex, w: Complex) -> Complex:
    """|z|^c e^(-d θ) (cos φ + i sin φ), φ = d log |z| + c θ, for w = c + i d and θ = arg z."""
    c, d = w
    angle = _trigonometry.atan2(z[1], z[0])
    length = _power.power(magnitude(z), c) * _exponential.exponential(-d * angle)
    turn = select(d.equal(0.0), 0.0, d * _real_log(z)) + c * angle
    result = (length * _trigonometry.cosine(turn), length * _trigonometry.sine(turn))
    zero, one = c.constant(0.0), c.constant(1.0)
    result = _choose(_is_zero(z) & (c > 0.0), (zero, zero), result)
    return _choose(_is_zero(w), (one, zero), result)


def _hyperbolic(y: Value) -> tuple[Value, Value, Value]:
    """``(s, c, f)``: sinh |y| = s f, cosh y = c f; f keeps the products of s, c and a sine from overflowing."""
    magnitude = y.abs()
    large = magnitude > _LARGE_EXPONENT
    power = _exponential.exponential(select(large, magnitude * 0.5, magnitude))
    less = _exponential.exponential_minus_one(magnitude.at_most(_SATURATED))
    apart = magnitude < _SATURATED
    half = power * 0.5
    sinh = select(apart, (less + less / (less + 1.0)) * 0.5, half)
    cosh = select(apart, half + 0.5 / power, half)
    return sinh, cosh, select(large, power, 1.0)


def sine(z: Complex) -> Complex:
    """sin x cosh y + i cos x sinh y."""
    x, y = z
    sinh, cosh, factor = _hyperbolic(y)
    real = _trigonometry.sine(x) * cosh * factor
    imaginary = _trigonometry.cosine(x) * sinh.copysign(y) * factor
    return select(x.equal(0.0), x, real), imaginary


def cosine(z: Complex) -> Complex:
    """cos x cosh y - i sin x sinh y."""
    x, y = z
    sinh, cosh, factor = _hyperbolic(y)
    signed = sinh.copysign(y)
    imaginary = -(_trigonometry.sine(x) * signed * factor)
    along_axis = -(x * y.constant(1.0).copysign(y))
    real = _trigonometry.cosine(x) * cosh * factor
    return real, select(x.equal(0.0), along_axis, imaginary)


def tanh(z: Complex) -> Complex:
    """(β ρ s + i t) / (1 + β s²), s = sinh x, t = tan y, β = 1 + t², ρ² = 1 + s² (Kahan)."""
    x, y = z
    apart = x.abs() < _SATURATED
    sinh, cosh, _ = _hyperbolic(select(apart, x, 0.0))
    sinh = sinh.copysign(x)
    tangent = _trigonometry.tan(y)
    beta = fma(tangent, tangent, 1.0)
    divisor = fma(beta * sinh, sinh, 1.0)
    near = (beta * cosh * sinh / divisor, tangent / divisor)
    one = x.constant(1.0).copysign(x)
    decay = _exponential.exponential(x.abs() * -2.0)
    turning = _trigonometry.sine(y) * _trigonometry.cosine(y) * 4.0 * decay
    turning = select(y.abs() < _INFINITY, turning, x.constant(0.0).copysign(y))
    result = _choose(x.abs() >= _SATURATED, (one, turning), near)
    return select(x.equal(0.0) & (y.abs() < _INFINITY), x, result[0]), result[1]


def tan(z: Complex) -> Complex:
    """-i tanh(i z)."""
    real, imaginary = tanh((-z[1], z[0]))
    return imaginary, -real


def logistic(z: Complex) -> Complex:
    """1 / (1 + e^-z), from e^-|x| so that nothing overflows."""
    x, y = z
    decay = _exponential.exponential(-x.abs())
    positive = x >= 0.0
    real = decay * _trigonometry.cosine(y)
    imaginary = decay * _trigonometry.sine(y)
    shifted = real + 1.0
    norm = fma(shifted, shifted, imaginary * imaginary)
    numerator = select(positive, shifted, fma(decay, decay, real))
    return numerator / norm, imaginary / norm


def sign(z: Complex) -> Complex:
    """z / |z|; zero for zero, NaN if either part is."""
    scaled, _ = _normalize(z)
    length = _norm(scaled).sqrt()
    return _choose(_is_zero(z), z, (scaled[0] / length, scaled[1] / length))


def atan2(y: Complex, x: Complex) -> Complex:
    """-i log((x + i y) / sqrt(x² + y²))."""
    numerator = (x[0] - y[1], x[1] + y[0])
    squares = multiply(x, x), multiply(y, y)
    root = sqrt((squares[0][0] + squares[1][0], squares[0][1] + squares[1][1]))
    real, imaginary = log(divide(numerator, root))
    return imaginary, -real


UNARY: dict[str, Callable[[Complex], Complex]] = {
    "cbrt": cbrt,
    "cosine": cosine,
    "exponential": exponential,
    "exponential_minus_one": exponential_minus_one,
    "log": log,
    "log_plus_one": log_plus_one,
    "logistic": logistic,
    "rsqrt": rsqrt,
    "sign": sign,
    "sine": sine,
    "sqrt": sqrt,
    "tan": tan,
    "tanh": tanh,
}
BINARY: dict[str, Callable[[Complex, Complex], Complex]] = {
    "atan2": atan2,
    "divide": divide,
    "power": power,
}
