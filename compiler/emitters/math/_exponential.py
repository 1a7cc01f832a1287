# SPDX-License-Identifier: Apache-2.0
"""exp, exp - 1, logistic and tanh.

All but :func:`logistic_of_cubic`, which has powers of two instead, reduce x = n ln 2 + r with |r| ≤ ln 2 / 2
and evaluate e^r = 1 + r + r² q(r), q a minimax polynomial.
2^n is applied as a product of two powers of two, so that subnormal results are rounded once and overflow
gives infinity. NaN passes through because every clamp keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.compiler.emitters.math._values import (
    F32,
    F64,
    Format,
    Value,
    fast_two_sum,
    fma,
    polynomial,
    select,
    split_polynomial,
)


@dataclass(frozen=True)
class _Table:
    """Constants of one precision.

    Attributes:
        ln2: ln 2 rounded, and the rest; n · ln2[0] subtracts exactly with a fused multiply-add.
        exp: q for e^r: |r| ≤ 0.3477, weight r² / e^r.
        expm1: q for e^r - 1: |r| ≤ 0.3477, weight r² / |e^r - 1|.
        tanh: tanh x = x + x³ t(x²): x ≤ 0.6, weight x³ / tanh x.
        range: e^x overflows above range[1] and rounds to zero below range[0], where n = -bias - mantissa.
        offset: power of two that keeps 2^(n ± offset) normal.
        one: 1 ± e^-one rounds to 1.
        linear: e^x - 1 rounds to x where |x| is below.
    """

    ln2: tuple[float, float]
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    tanh: tuple[float, ...]
    range: tuple[float, float]
    offset: int
    one: float
    linear: float


_LOG2E = 1.4426950408889634

# Remez exchange in 200-bit arithmetic, coefficients rounded one by one and the rest fitted again.
_TABLES = {
    "f32": _Table(
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
        # relative error 2^-28.2
        exp=(0.49999994, 0.166665152, 0.0416680872, 0.00836938899, 0.00138410018),
        # relative error 2^-28.1
        expm1=(0.5, 0.166666359, 0.0416665114, 0.00834161602, 0.00139305729, 0.000149334504),
        # relative error 2^-28.4
        tanh=(-0.333332986, 0.133319363, -0.0537847169, 0.0207986291, -0.00589797739),
        range=(-104.0, 89.0),
        offset=32,
        one=20.0,
        linear=2.0**-25,
    ),
    "f64": _Table(
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
        # relative error 2^-57.9
        exp=(
            0.5000000000000011,
            0.16666666666666435,
            0.04166666666652574,
            0.008333333333475747,
            0.0013888888944877753,
            0.00019841269555410102,
            2.4801491730319148e-05,
            2.755753569413369e-06,
            2.7630760198054953e-07,
            2.5018250056826223e-08,
        ),
        # relative error 2^-61.6
        expm1=(
            0.5,
            0.16666666666666677,
            0.041666666666666685,
            0.008333333333321806,
            0.0013888888888893614,
            0.00019841269885304173,
            2.4801587279230446e-05,
            2.7557245197248623e-06,
            2.755732925394207e-07,
            2.5108669916558623e-08,
            2.0894020057314076e-09,
        ),
        # relative error 2^-57.8
        tanh=(
            -0.33333333333333126,
            0.1333333333329977,
            -0.05396825394933826,
            0.021869488003434873,
            -0.008863226787886655,
            0.0035920374565490713,
            -0.0014552157264526128,
            0.0005871894894636582,
            -0.00023039878688864922,
            7.931594805041031e-05,
            -1.7179576423351873e-05,
        ),
        range=(-745.2, 710.0),
        offset=64,
        one=44.0,
        linear=2.0**-54,
    ),
}

#: e^r = 1 + r + r² p(r) for |r| ≤ 0.3467 in binary64.
EXP_F64 = _TABLES["f64"].exp


#: (2^f - 1) / f for |f| ≤ 0.50003 in binary32, weight f / 2^f: relative error 2^-26.4.
_EXP2_F32 = (0.69314724, 0.24022694, 0.055502597, 0.009612261, 0.0013423626, 0.00017167325)

# (2^f - 1) / f for |f| ≤ 0.5001 in binary64, weight f / 2^f: relative error 2^-34.3.
_EXP2_SHORT = (
    0.6931471807048071,
    0.2402265106708366,
    0.05550410365250362,
    0.0096180380498345,
    0.0013333935442286355,
    0.00015466784236392692,
    1.5196120102345363e-05,
)


def _table(x: Value) -> _Table:
    return _TABLES[x.element]


def _nearest(x: Value, scale: float) -> tuple[Value, Value]:
    """n = the integer nearest to ``scale · x``, and bits whose low end holds n."""
    form = x.format
    shifted = fma(x, scale, form.rounder)
    return shifted - form.rounder, shifted.bits()


def _power_of_two(n_bits: Value, form: Format, offset: int | Value = 0) -> Value:
    """2^(n + offset), given bits from :func:`_nearest`; ``offset`` is an int or in exponent position."""
    if isinstance(offset, int):
        offset = n_bits.constant((form.bias + offset) << form.mantissa)
    return ((n_bits << form.mantissa) + offset).as_float()


def _reduce(x: Value) -> tuple[Value, Value]:
    """r = x - n ln 2 and the bits that hold n."""
    high, low = _table(x).ln2
    n, n_bits = _nearest(x, _LOG2E)
    return fma(n, -low, fma(n, -high, x)), n_bits


def _exp_reduced(r: Value) -> Value:
    """e^r for |r| ≤ ln 2 / 2."""
    return polynomial(r, (1.0, 1.0, *_table(r).exp))


def times_power_of_two(value: Value, n: Value) -> Value:
    """``value · 2^n`` for a value near 1 and the n of :func:`exponential`, as two exact factors and so rounded once."""
    form, offset = value.format, _table(value).offset
    negative = n < 0
    bias = select(
        negative,
        n.constant((form.bias + offset) << form.mantissa),
        (form.bias - offset) << form.mantissa,
    )
    rest = select(negative, value.constant(2.0**-offset), 2.0**offset)
    return value * ((n << form.mantissa) + bias).as_float() * rest


def exponential(x: Value, *, scaled: bool = False, split: bool = False) -> Value:
    """e^x. f32: 9 multiply-adds and 5 cheaper operations, and what 2^n takes: 3 instructions if ``scaled``, else 7.

    Results that round to zero are selected, not computed: an underflowing product takes a microcode assist of
    over a hundred cycles, and softmax over masked (-inf) logits is full of them.

    Args:
        scaled: an instruction multiplies f32 by 2^n, AVX-512's ``vscalefps``.
        split: the long polynomial of f64 is computed in two parts, for a shorter chain.
    """
    table, form = _table(x), x.format
    vanishes = x < table.range[0]
    x = select(vanishes, x.constant(0.0), x.at_most(table.range[1]))
    r, n_bits = _reduce(x)
    n = n_bits - form.rounder_bits
    evaluate = split_polynomial if split and form is F64 else polynomial
    power = fma(fma(evaluate(r, table.exp), r, 1.0), r, 1.0)
    # binary64 has no shorter way: the instruction takes its exponent from integers of 32 bits.
    short = scaled and form is not F64
    result = power.intrinsic("llvm.ldexp", n) if short else times_power_of_two(power, n)
    return select(vanishes, x.constant(0.0), result)


def exponential_of_nonpositive(x: Value, *, bounded: bool = False) -> Value:
    """e^x for x ≤ 0 (up to 70, in fact) or NaN. f32: 9 multiply-adds and 4 cheaper operations, 3 if ``bounded``.

    The power of two is 2^(n + s), s = the digits of a significand, and e^r is 2^-s times as large: both are normal, so
    that their product is rounded once. The rounding constant brings the exponent's bias along, and a shift makes a
    float of the sum. The least n gives the bits of zero: what lies below half the least subnormal number, e^-inf with
    it, is 0 without an underflow, which would cost what :func:`exponential` says. So is what lies between that and
    0.71 times the least subnormal number.

    Args:
        bounded: no x is below the least whose exponential is not 0, ``range[0]``; what one that is gives is undefined.
    """
    table, form = _table(x), x.format
    digits = form.mantissa
    rounder = form.rounder + form.bias + digits
    x = x if bounded else x.at_least(table.range[0])
    shifted = fma(x, _LOG2E, rounder)
    n = shifted - rounder
    r = fma(n, -table.ln2[1], fma(n, -table.ln2[0], x))
    power = polynomial(r, [c * 2.0**-digits for c in (1.0, 1.0, *table.exp)])
    return power * (shifted.bits() << form.mantissa).as_float()


def exponential_short(x: Value) -> Value:
    """e^x of a binary64 from -700 to 700 or NaN, within 2^-33 of itself, for results that are rounded to binary32."""
    rounder = x.format.rounder
    shifted = fma(x, _LOG2E, rounder)
    f = fma(x, _LOG2E, rounder - shifted)
    power = fma(split_polynomial(f, _EXP2_SHORT), f, 1.0)
    return (power.bits() + (shifted.bits() << x.format.mantissa)).as_float()


def exponential_of_negative(
    x: Value, x_low: Value | None = None, factor: tuple[Value, Value] | None = None
) -> Value:
    """e^(x + x_low) · (factor[0] + factor[1]) for x from ``range[0]`` to 0 or NaN and tiny low parts.

    The error of e^x is below 0.7 ulp, for 3 operations more than :func:`exponential`; the product is rounded once.
    """
    table = _table(x)
    r, n_bits = _reduce(x)
    r_low = None
    if x_low is not None:
        r, r_low = fast_two_sum(r, x_low)
    high, low = fast_two_sum(1.0, r)
    if r_low is not None:
        low = low + r_low
    low = fma(split_polynomial(r, table.exp), r * r, low)
    power = high + low
    if factor is not None:
        power = fma(high, factor[0], fma(high, factor[1], low * factor[0]))
    return power * _power_of_two(n_bits, x.format, table.offset) * 2.0**-table.offset


def exponential_minus_one(x: Value) -> Value:
    """e^x - 1 = 2 (s - 1/2 + s r + s t) with s = 2^(n-1), e^r - 1 = r + t."""
    table, form = _table(x), x.format
    clamped = x.at_most(table.range[1]).at_least(-table.one * 2)
    n, n_bits = _nearest(clamped, _LOG2E)
    exact = fma(n, -table.ln2[0], clamped)
    r = fma(n, -table.ln2[1], exact)
    r_low = fma(n, -table.ln2[1], exact - r)
    tail = fma(polynomial(r, table.expm1), r * r, r_low)
    scale = _power_of_two(n_bits, form, -1)
    high, low = fast_two_sum(scale - 0.5, scale * r)
    result = (high + fma(scale, tail, low)) * 2.0
    return select(x.abs() < table.linear, x, result)


def logistic(x: Value) -> Value:
    """1 / (1 + e^-x) as c / (c + s + s (e^r - 1)), s = c 2^n and c small enough that s does not overflow.

    The error is below 1.7 ulp where c + s is exact, and up to 2.4 where 1 is still a digit of 1 + e^-x but the sum is
    rounded (x near -16.6 in f32). f32: 9 multiply-adds, one division and 8 cheaper operations.
    """
    table, form = _table(x), x.format
    clamped = x.at_least(table.range[0]).at_most(table.one)
    n, n_bits = _nearest(clamped, -_LOG2E)
    r = -fma(n, table.ln2[1], fma(n, table.ln2[0], clamped))
    scale = _power_of_two(n_bits, form, -table.offset)
    one = 2.0**-table.offset
    return one / fma(scale, fma(polynomial(r, table.exp), r * r, r), scale + one)


def logistic_of_cubic(x: Value, linear: float, cubic: float) -> Value:
    """1 / (1 + e^-(linear x + cubic x³)) in binary32 as c / (c + s + s (2^f - 1)) with s = c 2^n and n + f = x p.

    p = -log2 e (linear + cubic x²) is rounded; x p is not, before n is taken off. So the argument is off by two places
    at most, which is less than what its written form is rounded by, and neither it nor n ln 2 is computed. 9
    multiply-adds, 3 products, one division and 5 cheaper operations.

    Args:
        linear, cubic: of one sign, neither 0 nor of a size that overflows.
    """
    assert x.format is F32
    table, form = _table(x), x.format
    ends = sorted(_root(linear, cubic, value) for value in (table.range[0], table.one))
    x = x.at_least(ends[0]).at_most(ends[1])
    p = fma(x * x, -_LOG2E * cubic, -_LOG2E * linear)
    rounder = form.rounder + form.bias - table.offset  # n comes out as the exponent of s
    shifted = fma(x, p, rounder)
    f = fma(x, p, rounder - shifted)
    scale = (shifted.bits() << form.mantissa).as_float()
    one = 2.0**-table.offset
    return one / fma(scale * f, split_polynomial(f, _EXP2_F32), scale + one)


def _root(linear: float, cubic: float, value: float) -> float:
    """The x with linear x + cubic x³ = ``value``, by Newton's method from outside, where it converges."""
    x = value / linear
    for _ in range(100):
        x -= (linear * x + cubic * x**3 - value) / (linear + 3 * cubic * x * x)
    return x


def tanh(x: Value) -> Value:
    """A polynomial below 0.55, 1 - 2 / (e^2|x| + 1) above."""
    table = _table(x)
    magnitude = x.abs()
    r, n_bits = _reduce((magnitude + magnitude).at_most(table.one))
    power = _power_of_two(n_bits, x.format)
    large = 1.0 - 2.0 / fma(_exp_reduced(r), power, 1.0)
    square = x * x
    small = fma(polynomial(square, table.tanh), square * magnitude, magnitude)
    return select(magnitude < 0.55, small, large).copysign(x)
