# SPDX-License-Identifier: Apache-2.0
"""log and log(1 + x).

x = 2^k (1 + f) with 1 + f in [√½, √2); log x = k ln 2 + log(1 + f), log(1 + f) = f + t.
"""

from __future__ import annotations

from gristmill.compiler.emitters.math._values import (
    Value,
    fast_two_sum,
    fma,
    polynomial,
    select,
    two_sum,
)

# The representations of √½, rounded down.
_SQRT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCC}

# ln 2 with enough trailing zeros that k · high is exact, and the rest.
_LN2 = {
    "f32": (0.693145751953125, 1.428606765330187e-06),
    "f64": (0.6931471805601177, -1.7239444525614835e-13),
}

# log(1 + f) = f - f²/2 + f³ p(f) on [√½ - 1, √2 - 1], weight |f³ / log(1 + f)|: Remez, relative error 2^-27.3.
_POLYNOMIAL_F32 = (
    0.333333313,
    -0.250008255,
    0.200012788,
    -0.166232243,
    0.142002821,
    -0.131599829,
    0.12773031,
    -0.0765024349,
)

# 2 atanh s = 2 s + s³ p(s²) for s ≤ 0.1717 (s = f / (2 + f)), weight s³ / (2 atanh s): Remez, relative error
# 2^-59.5.
_ATANH_F64 = (
    0.6666666666666735,
    0.3999999999940905,
    0.28571428743816435,
    0.22222198409629637,
    0.18183573649612816,
    0.15313792147080385,
    0.14798724024872964,
)


def split_mantissa(x: Value) -> tuple[Value, Value]:
    """(k, m) with x = 2^k m, k an integer value and m in [√½, √2), for positive normal x."""
    form = x.format
    base = _SQRT_HALF[form.name]
    bits = x.bits()
    k = (bits - base) >> form.mantissa
    return k, (bits - (k << form.mantissa)).as_float()


def normalise(x: Value) -> tuple[Value, Value]:
    """(y, e) with y = x 2^-e normal when x is positive; e is a float, 0 or a negative integer."""
    form = x.format
    tiny = x < form.min_normal
    shift = form.mantissa + 2
    return (
        select(tiny, x * 2.0**shift, x),
        select(tiny, x.constant(-shift), 0.0),
    )


def _tail(f: Value) -> Value:
    """t with log(1 + f) = f + t."""
    if f.single:
        return f * f * fma(polynomial(f, _POLYNOMIAL_F32), f, -0.5)
    half_square = f * f * 0.5
    s = f / (f + 2.0)
    z = s * s
    return fma(s, fma(z, polynomial(z, _ATANH_F64), half_square), -half_square)


def _combine(k: Value, f: Value, f_low: Value | None = None) -> Value:
    """k ln 2 + log(1 + f + f_low)."""
    ln2_high, ln2_low = _LN2[f.element]
    high, low = fast_two_sum(k * ln2_high, f)
    tail = fma(k, ln2_low, _tail(f))
    if f_low is not None:
        tail = tail + fma(-f, f_low, f_low)
    return high + (low + tail)


def _with_poles(x: Value, pole: float, result: Value) -> Value:
    """``result`` above the pole, -inf at it, NaN below; +inf and NaN give themselves."""
    infinity = float("inf")
    outside = select(x.equal(pole), x.constant(-infinity), float("nan"))
    inside = select(x > pole, result, outside)
    return select(x.equal(infinity), x, inside)


def log(x: Value) -> Value:
    """The natural logarithm."""
    normal, exponent = normalise(x)
    k, mantissa = split_mantissa(normal)
    result = _combine(k.small_integer_as_float() + exponent, mantissa - 1.0)
    return _with_poles(x, 0.0, result)


def log_plus_one(x: Value) -> Value:
    """log(1 + x): the rounding error of 1 + x joins f, exactly scaled."""
    form = x.format
    total, error = two_sum(x, 1.0)
    k, mantissa = split_mantissa(total)
    # beyond 2^60 the error is zero and 2^-k would leave the normal range
    bounded = select(k < 60, k, 60)
    scale = ((bounded.constant(form.bias) - bounded) << form.mantissa).as_float()
    f, f_low = fast_two_sum(mantissa - 1.0, error * scale)
    result = _with_poles(x, -1.0, _combine(k.small_integer_as_float(), f, f_low))
    return select(x.abs() < 2.0 ** -(form.mantissa + 2), x, result)
