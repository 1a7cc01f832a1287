# SPDX-License-Identifier: Apache-2.0
"""erf and erfc."""

from __future__ import annotations

from gristmill.compiler.emitters.math._exponential import (
    exponential_of_negative,
    exponential_short,
)
from gristmill.compiler.emitters.math._values import (
    Value,
    fast_two_sum,
    fma,
    polynomial,
    select,
    split_polynomial,
    two_product,
)

# erf x = x + x p(x²) on [0, 1.25], weight x / erf x: Remez, relative error 2^-29.5.
_ERF_SMALL_F32 = (
    0.128379166,
    -0.376126289,
    0.112836584,
    -0.0268594995,
    0.00520750321,
    -0.000832425896,
    0.000103181119,
    -7.42695693e-06,
)
# erfc x = p(x - 2.5)⁴ on [1.25, 3.93], weight 4 erfc(x)^¾: Remez, absolute error 2^-28.4.
_ERF_LARGE_F32 = (
    0.142032117,
    -0.190062091,
    0.0936460793,
    -0.0122829005,
    -0.00648974814,
    0.00269505475,
    4.15323229e-05,
    -0.000195306668,
)

# erf x = x + x p(x²) on [0, 1], weight x / erf x: Remez, relative error 2^-56.0.
_ERF_SMALL_F64 = (
    0.12837916709551256,
    -0.37612638903183343,
    0.1128379167093695,
    -0.026866170641959047,
    0.005223977596732857,
    -0.0008548325484623401,
    0.00012055280473137849,
    -1.4924464822428042e-05,
    1.6444134057214096e-06,
    -1.618380015553704e-07,
    1.3615529503486727e-08,
    -7.604878648834519e-10,
)

# e^(x²) erfc x = p(x) / q(x) on [0, 10.2], relative weight: Remez, weighted by the divisor of the step before; relative
# error 2^-33.5.
_ERFCX_SHORT = (
    (
        0.9999999999191777,
        1.4342916464711912,
        1.0007289506464268,
        0.4024487561017211,
        0.09284824958514218,
        0.010019970244426656,
    ),
    (
        1.0,
        2.5626708025760165,
        2.8923935365041116,
        1.8557452920555337,
        0.7222245649122307,
        0.16456815762915872,
        0.017759957689741535,
    ),
)

# (1 + 2 x) e^(x²) erfc x = p((x - 4) / (x + 4)) on [½, 27.5], relative weight: Remez, relative error 2^-58.0, the first
# coefficient in two parts.
_ERFCX_LOW = -4.3777077271957226e-17
_ERFCX = (
    1.2329951186255526,
    -0.1396211168405625,
    0.015379652102618989,
    0.06809705425469026,
    -0.10103906603625111,
    0.09373283499845293,
    -0.06633036581367593,
    0.03716751553542303,
    -0.016197734037384552,
    0.005031970001028338,
    -0.0007577734549969572,
    -0.00019925685378982134,
    0.00015062252217972795,
    -2.4398498218543863e-05,
    -1.122480281192403e-05,
    5.707582239054587e-06,
    2.996676746182366e-07,
    -8.211399807710385e-07,
    6.693104595528037e-08,
    1.0461733469655078e-07,
    -1.2190544823452917e-08,
    -1.0135840381600902e-08,
)


def _erf_small(x: Value) -> Value:
    table = _ERF_SMALL_F32 if x.single else _ERF_SMALL_F64
    return fma(polynomial(x * x, table), x, x)


def _erfc_large(magnitude: Value, bound: float) -> Value:
    """erfc of a binary64 in [½, bound]; above it, erfc(bound)."""
    a = magnitude.at_most(bound)
    t = (a - 4.0) / (a + 4.0)
    rest = fma(split_polynomial(t, _ERFCX[1:]), t, _ERFCX_LOW)
    scaled, scaled_low = fast_two_sum(_ERFCX[0], rest)
    divisor, divisor_low = fast_two_sum(a + a, a.constant(1.0))
    reciprocal = 1.0 / divisor
    factor = scaled * reciprocal
    residual = fma(-factor, divisor_low, fma(-factor, divisor, scaled)) + scaled_low
    square, error = two_product(a, a)
    return exponential_of_negative(-square, -error, (factor, residual * reciprocal))


def erf(x: Value) -> Value:
    """The error function. f32: two polynomials; f64: a polynomial below 1, 1 - erfc above."""
    magnitude = x.abs()
    if x.single:
        root = polynomial(magnitude.at_most(3.93) - 2.5, _ERF_LARGE_F32)
        square = root * root
        large = fma(-square, square, 1.0)
        small = magnitude < 1.25
    else:
        large = 1.0 - _erfc_large(magnitude, 7.0)
        small = magnitude < 1.0
    return select(small, _erf_small(x), large.copysign(x))


def _erfc_f32(x: Value) -> Value:
    """erfc of a binary32 in binary64, where x² is exact and e^(-x²) keeps 2^-33 relative to itself."""
    wide = x.widen()
    a = wide.abs().at_most(10.2)
    # e^(-x²) with the sign of x, for the one multiply-add that ends both in erfc |x| and in 2 - erfc |x|
    one = wide.constant(1.0).copysign(wide)
    power = exponential_short(-(a * a)) * one
    dividend, divisor = (split_polynomial(a, table) for table in _ERFCX_SHORT)
    # the quotient does not wait for the power
    return fma(dividend / divisor, power, 1.0 - one).narrow()


def erfc(x: Value) -> Value:
    """1 - erf x, accurate relative to its value."""
    if x.single:
        return _erfc_f32(x)
    magnitude = x.abs()
    tail = _erfc_large(magnitude, 27.3)
    large = select(x < 0.0, 2.0 - tail, tail)
    return select(magnitude < 0.5, 1.0 - _erf_small(x), large)
