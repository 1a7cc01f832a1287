# SPDX-License-Identifier: Apache-2.0
"""x^y, cube root and reciprocal square root."""

from __future__ import annotations

from gristmill.compiler.emitters.math._exponential import EXP_F64
from gristmill.compiler.emitters.math._logarithm import normalise, split_mantissa
from gristmill.compiler.emitters.math._values import (
    Value,
    fast_two_sum,
    fma,
    polynomial,
    select,
    two_product,
)

# log2 m = s p(s²), s = (m - 1) / (m + 1), m in [√½, √2): Remez, relative error 2^-45.1.
_LOG2_SHORT = (
    2.8853900817778495,
    0.9617966941143821,
    0.577077942027701,
    0.4122092894016997,
    0.31990407193441517,
    0.28292475245686644,
)

# log2 m = s (C + s² (D + s² p(s²))) with C = 2 / ln 2 and D = 2 / (3 ln 2) in two parts each: Remez, relative
# error 2^-66.3.
_LOG2_C = (2.8853900817779268, 4.0710547481862066e-17)
_LOG2_D = (0.9617966939259756, 5.0577616648125907e-17)
_LOG2_TAIL = (
    0.5770780163556181,
    0.41219858309187657,
    0.3205989022865523,
    0.2623076998567363,
    0.22198406174299667,
    0.19125355278321082,
    0.1904013664030334,
)

_LN2 = (0.6931471805599453, 2.3190468138462996e-17)

# e^r - 1 = r + r² p(r) for |r| ≤ 0.3467, weight r² / e^r: Remez, relative error 2^-32.6.
_EXP_SHORT = (
    0.5000000067846918,
    0.16666663833902134,
    0.04166628597467368,
    0.008333676969163355,
    0.0013946035024605663,
    0.00019812056454692828,
)

# m^(-1/3) on [1, 8), relative error 2^-5.9: where Newton's iteration starts.
_RCBRT = (1.23698223, -0.297176301, 0.0458875112, -0.00254842709)


def _signed_power(x: Value, y: Value, magnitude: Value) -> Value:
    """The special cases of x^y, given |x|^y for the others."""
    infinity = float("inf")
    is_integer = y.trunc().equal(y)
    half = y * 0.5
    is_odd = is_integer & half.trunc().differs(half)
    signed = select(is_odd, magnitude.copysign(x), magnitude)
    undefined = (x < 0.0) & (x > -infinity) & (y.trunc().differs(y))
    nan = x.is_nan() | y.is_nan() | undefined
    result = select(nan, float("nan"), signed)
    # |x| = 1 and infinite y: infinity · log 1 is NaN, the power is 1
    result = select(x.equal(-1.0) & y.abs().equal(infinity), 1.0, result)
    return select(x.equal(1.0) | y.equal(0.0), 1.0, result)


def _log2_ends(magnitude: Value, log2: Value) -> Value:
    """log2 with its values at 0 and infinity."""
    infinity = float("inf")
    log2 = select(magnitude.equal(0.0), -infinity, log2)
    return select(magnitude.equal(infinity), infinity, log2)


def _power_f32(x: Value, y: Value) -> Value:
    """x^y through binary64: y · log2 |x| needs 2^-33 of relative accuracy, no more."""
    base, exponent = x.widen(), y.widen()
    magnitude = base.abs()
    k, mantissa = split_mantissa(magnitude)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    log2 = fma(s, polynomial(s * s, _LOG2_SHORT), k.small_integer_as_float())
    product = exponent * _log2_ends(magnitude, log2)
    product = product.at_most(400.0).at_least(-400.0)
    form = base.format
    shifted = product + form.rounder
    r = (product - (shifted - form.rounder)) * _LN2[0]
    scale = ((shifted.bits() << form.mantissa) + (form.bias << form.mantissa)).as_float()
    power = (fma(polynomial(r, _EXP_SHORT), r * r, r) + 1.0) * scale
    return _signed_power(x, y, power.narrow())


def _log2_double(magnitude: Value) -> tuple[Value, Value]:
    """log2 of a finite positive number as an unevaluated sum, relative error about 2^-66."""
    normal, exponent = normalise(magnitude)
    k, m = split_mantissa(normal)
    f = m - 1.0
    divisor = m + 1.0
    divisor_low = m - (divisor - 1.0)
    reciprocal = 1.0 / divisor
    s = f * reciprocal
    s_low = fma(-s, divisor_low, fma(-s, divisor, f)) * reciprocal
    z, z_error = two_product(s, s)
    z_low = fma(s + s, s_low, z_error)
    tail = z * polynomial(z, _LOG2_TAIL)
    d, d_error = fast_two_sum(_LOG2_D[0], tail)
    d_low = d_error + _LOG2_D[1]
    w, w_error = two_product(z, d)
    w_low = w_error + fma(z, d_low, z_low * d)
    c, c_error = fast_two_sum(_LOG2_C[0], w)
    c_low = c_error + (w_low + _LOG2_C[1])
    high, error = two_product(s, c)
    low = error + fma(s, c_low, s_low * c)
    total, total_error = fast_two_sum(k.small_integer_as_float() + exponent, high)
    return total, total_error + low


def _exp2_double(high: Value, low: Value) -> Value:
    """2^(high + low) for -1085 ≤ high ≤ 1030 and tiny low, with one rounding of subnormal results."""
    form = high.format
    shifted = high + form.rounder
    fraction, low = fast_two_sum(high - (shifted - form.rounder), low)
    u, u_error = two_product(fraction, _LN2[0])
    u_low = u_error + fma(low, _LN2[0], fraction * _LN2[1])
    one, one_error = fast_two_sum(1.0, u)
    power = one + (one_error + fma(polynomial(u, EXP_F64), u * u, u_low))
    negative = high < 0.0
    bits = shifted.bits()
    offset = select(
        negative,
        bits.constant((form.bias + 64) << form.mantissa),
        (form.bias - 64) << form.mantissa,
    )
    scale = ((bits << form.mantissa) + offset).as_float()
    return power * scale * select(negative, high.constant(2.0**-64), 2.0**64)


def _power_f64(x: Value, y: Value) -> Value:
    """x^y with y · log2 |x| in double-double arithmetic."""
    magnitude = x.abs()
    log2, log2_low = _log2_double(magnitude)
    product, error = two_product(y, _log2_ends(magnitude, log2))
    inside = product.abs() < 1085.0
    low = select(inside, fma(y, log2_low, error), 0.0)
    high = product.at_most(1030.0).at_least(-1085.0)
    low = select(high.equal(product), low, 0.0)
    return _signed_power(x, y, _exp2_double(high, low))


def power(x: Value, y: Value) -> Value:
    """x^y with IEEE 754's special cases: x^0 = 1^y = 1, (-1)^±inf = 1, NaN for negative x and fractional y."""
    return _power_f32(x, y) if x.single else _power_f64(x, y)


def cbrt(x: Value) -> Value:
    """The cube root: division-free Newton steps for m^(-1/3), then one corrected step for m^(1/3)."""
    form = x.format
    magnitude = x.abs()
    tiny = magnitude < form.min_normal
    # a multiple of three, so that the root's exponent is an integer
    shift = 24 if x.single else 54
    bits = select(tiny, magnitude * 2.0**shift, magnitude).bits()
    # bias + phase is a multiple of three: exponent field + phase = 3 third + left
    phase = -form.bias % 3
    field = bits.logical_shift_right(form.mantissa) + phase
    third = (field * 43691).logical_shift_right(17)  # field / 3 for field < 2^16
    left = field - third * 3
    mantissa = bits & ((1 << form.mantissa) - 1)
    m = (mantissa | ((left + form.bias) << form.mantissa)).as_float()
    y = polynomial(m, _RCBRT)
    for _ in range(1 if x.single else 2):
        h = fma(-m * y, y * y, 1.0)
        y = fma(y * h, fma(h, 2.0 / 9.0, 1.0 / 3.0), y)
    square = y * y
    c = m * square
    c2, c2_low = two_product(c, c)
    c3, c3_low = two_product(c2, c)
    residual = (m - c3) - fma(c2_low, c, c3_low)
    c = fma(residual, square * (1.0 / 3.0), c)
    unbiased = form.bias - (form.bias + phase) // 3
    exponent = third + unbiased - select(tiny, third.constant(shift // 3), 0)
    root = (c * (exponent << form.mantissa).as_float()).copysign(x)
    ordinary = (magnitude > 0.0) & (magnitude < float("inf"))
    return select(ordinary, root, x)


def rsqrt(x: Value) -> Value:
    """1 / √x; the rounding errors of both operations are corrected by one step.

    At 0 and infinity the correction is NaN and the quotient right.
    """
    form = x.format
    # scale by an even power of two where the residual of the root would be subnormal
    tiny = x < form.min_normal * 2.0 ** (form.mantissa + 1)
    shift = form.mantissa // 2 + 1
    x = x * select(tiny, x.constant(4.0**shift), 1.0)
    root = x.sqrt()
    quotient = 1.0 / root
    root_error = fma(-root, root, x)
    quotient_error = fma(-root, quotient, 1.0)
    correction = fma(root_error * quotient * quotient, -0.5, quotient_error)
    corrected = fma(quotient, correction, quotient)
    result = select(corrected.is_nan(), quotient, corrected)
    return result * select(tiny, x.constant(2.0**shift), 1.0)
