# SPDX-License-Identifier: Apache-2.0
"""sine, cosine, tangent and atan2.

Arguments are reduced modulo π/2 by Payne and Hanek's method for every magnitude, without a branch: the bits of
2/π that matter are picked by selects from a table of constants, and multiplied by the significand in integer
arithmetic modulo 4. binary32 is evaluated in binary64; binary64 carries a low part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gristmill.compiler.emitters.math._values import (
    Value,
    fast_two_sum,
    fma,
    polynomial,
    select,
    two_product,
    two_sum,
)

# 2/π after the binary point, most significant word first (mpmath, 1400 bits).
_TWO_OVER_PI = (
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)
# Bits of weight 1 and above come first, as zeros.
_WORDS_64 = (0, *_TWO_OVER_PI)
_WORDS_32 = (0, *(w >> s & 0xFFFFFFFF for w in _TWO_OVER_PI[:4] for s in (32, 0)))[:8]

_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)
_TAN_EIGHTH_PI = 0.41421356237309503

# sin r = r + r³ p(r²), weight r³ / sin r, and cos r = 1 - r²/2 + r⁴ p(r²), weight r⁴ / cos r, on |r| ≤ π/4:
# Remez, relative errors 2^-37.5 and 2^-33.0, then 2^-57.9 and 2^-63.9.
_SIN_SHORT = (
    -0.16666666640785954,
    0.008333329303180958,
    -0.00019839311683551007,
    2.718115809151542e-06,
)
_COS_SHORT = (0.04166664568157513, -0.0013887316100529667, 2.4433132747922072e-05)
_SIN = (
    -0.1666666666666663,
    0.00833333333332184,
    -0.00019841269829358566,
    2.7557313538622036e-06,
    -2.5050734432131188e-08,
    1.589543782821534e-10,
)
_COS = (
    0.041666666666666595,
    -0.001388888888887334,
    2.4801587288999897e-05,
    -2.755731421624425e-07,
    2.0875705271057295e-09,
    -1.1358742044629692e-11,
)

# atan q = q + q³ p(q²) on |q| ≤ tan π/8, weight q³ / atan q: Remez, relative errors 2^-35.4 and 2^-59.4.
_ATAN_SHORT = (
    -0.33333332498649454,
    0.19999903849311743,
    -0.14282005772037512,
    0.11044664155533829,
    -0.08476102915837531,
    0.047436820872024346,
)
_ATAN = (
    -0.333333333333332,
    0.19999999999953655,
    -0.14285714280196662,
    0.11111110783309804,
    -0.09090897751403494,
    0.0769206008922689,
    -0.06663102604963601,
    0.05847879198484461,
    -0.050392622820247146,
    0.03806358178582835,
    -0.017906257993529046,
)


def _window(table: Sequence[int], index: Value, count: int) -> list[Value]:
    """``table[index : index + count]`` for a variable index, by a barrel shifter of selects."""
    words: list[Value | int] = list(table)
    choices = len(table) - count + 1
    step = 1 << (choices - 1).bit_length() - 1
    while step:
        moved = (index & step).differs(0)
        keep = count + step - 1
        words = [
            select(moved, _word(index, words[i + step]), _word(index, words[i]))
            if i + step < len(words)
            else words[i]
            for i in range(min(keep, len(words)))
        ]
        step >>= 1
    return [_word(index, word) for word in words]


def _word(like: Value, word: Value | int) -> Value:
    return word if isinstance(word, Value) else like.constant(word)


def _aligned(table: Sequence[int], start: Value, count: int, width: int) -> list[Value]:
    """``count`` words holding the table's bits from bit ``start`` on."""
    words = _window(table, start.logical_shift_right(width.bit_length() - 1), count + 1)
    shift = start & (width - 1)
    # two shifts, because a shift by the full width is undefined
    back = shift.constant(width - 1) - shift
    return [
        (words[i] << shift) | words[i + 1].logical_shift_right(1).logical_shift_right(back)
        for i in range(count)
    ]


def _start_of_window(exponent_field: Value, offset: int) -> Value:
    start = exponent_field - offset
    return select(start > 0, start, 0)


def _reduce_f32(x: Value) -> tuple[Value, Value]:
    """(q, r) with x ≡ q π/2 + r, |r| ≤ π/4 in binary64, q an i64 modulo 4; NaN for infinities."""
    magnitude = x.abs()
    bits = magnitude.bits()
    field = bits.logical_shift_right(23)
    # |x| = significand · 2^(field - 150); bit 0 of the window has weight 2 after the product
    a0, a1, a2 = _aligned(_WORDS_32, _start_of_window(field, 120), 3, 32)
    significand = ((bits & 0x7FFFFF) | 0x800000).widen()
    product = (
        ((significand * a0.widen()) << 32)
        + significand * a1.widen()
        + (significand * a2.widen()).logical_shift_right(32)
    )
    quadrant = (product + (1 << 61)).logical_shift_right(62)
    fraction = product << 2
    high = (fraction >> 32).small_integer_as_float()
    low = (fraction & 0xFFFFFFFF).small_integer_as_float()
    reduced = fma(high, 2.0**32, low) * (_HALF_PI[0] * 2.0**-64)
    wide = x.widen()
    reduced = reduced * wide.constant(1.0).copysign(wide)
    small = wide.abs() < 0.75
    reduced = select(small, wide, reduced)
    # the quotient of -x is minus that of x
    quadrant = select(wide < 0.0, quadrant.constant(0) - quadrant, quadrant)
    quadrant = select(small, 0, quadrant)
    return quadrant, select(wide.abs() < float("inf"), reduced, float("nan"))


def _limb_as_float(limb: Value, exponent: int) -> Value:
    """limb · 2^exponent for an i64 limb below 2^32."""
    anchor = 2.0 ** (52 + exponent)
    anchor_bits = (1023 + 52 + exponent) << 52
    return (limb | anchor_bits).as_float() - anchor


def _product_128(significand: Value, words: Sequence[Value]) -> tuple[Value, Value]:
    """The top 128 bits of significand · words modulo 2^192, within a few units of the last."""
    mask = 0xFFFFFFFF
    low, high = significand & mask, significand.logical_shift_right(32)
    limbs = [part for w in reversed(words) for part in (w & mask, w.logical_shift_right(32))]
    digits: list[Value] = []
    low_carry = high_carry = significand.constant(0)
    for previous, limb in pairwise(limbs):
        column = low * limb + low_carry
        low_carry = column.logical_shift_right(32)
        total = (column & mask) + high * previous + high_carry
        high_carry = total.logical_shift_right(32)
        digits.append(total & mask)
    return (digits[4] << 32) | digits[3], (digits[2] << 32) | digits[1]


def _reduce_f64(x: Value) -> tuple[Value, Value, Value]:
    """(q, r, e) with x ≡ q π/2 + r + e, |r| ≤ π/4, e the rest; q an i64 modulo 4."""
    magnitude = x.abs()
    bits = magnitude.bits()
    field = bits.logical_shift_right(52)
    # |x| = significand · 2^(field - 1075); bit 0 of the window has weight 2 after the product
    words = _aligned(_WORDS_64, _start_of_window(field, 1013), 3, 64)
    top, rest = _product_128((bits & ((1 << 52) - 1)) | (1 << 52), words)
    quadrant = (top + (1 << 61)).logical_shift_right(62)
    upper = (top << 2) | rest.logical_shift_right(62)
    lower = rest << 2
    negative = upper >> 63
    upper, lower = upper ^ negative, lower ^ negative
    first = _limb_as_float(upper.logical_shift_right(32), -32)
    second = _limb_as_float(upper & 0xFFFFFFFF, -64)
    third = _limb_as_float(lower.logical_shift_right(32), -96)
    fourth = _limb_as_float(lower & 0xFFFFFFFF, -128)
    high, error = fast_two_sum(first, second)
    turn, turn_low = fast_two_sum(high, error + (third + fourth))
    reduced, product_error = two_product(turn, _HALF_PI[0])
    rest_low = fma(turn, _HALF_PI[1], fma(turn_low, _HALF_PI[0], product_error))
    sign = x.constant(1.0).copysign((negative ^ x.bits()).as_float())
    small = magnitude < 0.75
    quadrant = select(x < 0.0, quadrant.constant(0) - quadrant, quadrant)
    reduced = select(small, x, reduced * sign)
    reduced = select(magnitude < float("inf"), reduced, float("nan"))
    return select(small, 0, quadrant), reduced, select(small, 0.0, rest_low * sign)


def _sin_cos_f32(r: Value) -> tuple[Value, Value]:
    z = r * r
    sine = r * fma(polynomial(z, _SIN_SHORT), z, 1.0)
    cosine = fma(z * z, polynomial(z, _COS_SHORT), fma(z, -0.5, 1.0))
    return sine, cosine


def _sin_cos_f64(r: Value, r_low: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """Sine and cosine of r + r_low as unevaluated sums (large part, small part)."""
    z = r * r
    half = z * 0.5
    sine_low = fma(z * r, polynomial(z, _SIN), fma(-half, r_low, r_low))
    one = 1.0 - half
    cosine_low = ((1.0 - one) - half) + fma(z * z, polynomial(z, _COS), -(r * r_low))
    return (r, sine_low), (one, cosine_low)


def _by_quadrant(quadrant: Value, sine: Value, cosine: Value) -> Value:
    """sin(q π/2 + r)."""
    value = select((quadrant & 1).differs(0), cosine, sine)
    return (value.bits() ^ ((quadrant & 2) << 62)).as_float()


def _sin_of_quadrant_sum(x: Value, turns: int) -> Value:
    """sin(x + turns · π/2)."""
    if x.single:
        quadrant, r = _reduce_f32(x)
        sine, cosine = _sin_cos_f32(r)
        return _by_quadrant(quadrant + turns, sine, cosine).narrow()
    quadrant, r, r_low = _reduce_f64(x)
    (sine, sine_low), (cosine, cosine_low) = _sin_cos_f64(r, r_low)
    return _by_quadrant(quadrant + turns, sine + sine_low, cosine + cosine_low)


def sine(x: Value) -> Value:
    """sin x for every finite x; NaN for infinities."""
    if x.single:
        return _sin_of_quadrant_sum(x, 0)
    return select(x.abs() < 2.0**-27, x, _sin_of_quadrant_sum(x, 0))


def cosine(x: Value) -> Value:
    """cos x for every finite x; NaN for infinities."""
    return _sin_of_quadrant_sum(x, 1)


def sine_and_cosine_of_f32(x: Value) -> tuple[Value, Value]:
    """Both in binary64, with errors below 2^-30; NaN for infinities."""
    quadrant, r = _reduce_f32(x)
    sine, cosine = _sin_cos_f32(r)
    return _by_quadrant(quadrant, sine, cosine), _by_quadrant(quadrant + 1, sine, cosine)


def _divide_double(
    numerator: tuple[Value, Value], divisor: tuple[Value, Value]
) -> tuple[Value, Value]:
    """The quotient of two unevaluated sums as one, by a division and a correction."""
    reciprocal = 1.0 / divisor[0]
    quotient = numerator[0] * reciprocal
    residual = fma(-quotient, divisor[0], numerator[0])
    residual = residual + fma(-quotient, divisor[1], numerator[1])
    return quotient, residual * reciprocal


def tan(x: Value) -> Value:
    """tan x for every finite x; NaN for infinities."""
    if x.single:
        quadrant, r = _reduce_f32(x)
        sine_f32, cosine_f32 = _sin_cos_f32(r)
        odd = (quadrant & 1).differs(0)
        top = select(odd, -cosine_f32, sine_f32)
        return (top / select(odd, sine_f32, cosine_f32)).narrow()
    quadrant, r, r_low = _reduce_f64(x)
    sine_pair, cosine_pair = (fast_two_sum(*pair) for pair in _sin_cos_f64(r, r_low))
    odd = (quadrant & 1).differs(0)
    numerator = (
        select(odd, -cosine_pair[0], sine_pair[0]),
        select(odd, -cosine_pair[1], sine_pair[1]),
    )
    divisor = (
        select(odd, sine_pair[0], cosine_pair[0]),
        select(odd, sine_pair[1], cosine_pair[1]),
    )
    high, low = _divide_double(numerator, divisor)
    return select(x.abs() < 2.0**-27, x, high + low)


def _octant(y: Value, x: Value) -> tuple[Value, Value, Value, Value, Value]:
    """(a, b, swapped, negative, nan): a ≤ b are |x| and |y| sorted, with a / b the same but always defined."""
    infinity = float("inf")
    side_x, side_y = x.abs(), y.abs()
    swapped = side_y > side_x
    small = select(swapped, side_x, side_y)
    large = select(swapped, side_y, side_x)
    unbounded = large.equal(infinity)
    a = select(unbounded, select(small.equal(infinity), small.constant(1.0), 0.0), small)
    b = select(unbounded | large.equal(0.0), 1.0, large)
    return a, b, swapped, x.bits() < 0, x.is_nan() | y.is_nan()


def _multiple_of_quarter_pi(
    like: Value, steep: Value, swapped: Value, negative: Value
) -> tuple[Value, Value, Value]:
    """(high, low, flip): the angle is high + low + atan q, or minus atan q where flip."""
    quarters = select(steep, like.constant(1.0), 0.0)
    quarters = select(swapped, 2.0 - quarters, quarters)
    quarters = select(negative, 4.0 - quarters, quarters)
    high, error = two_product(quarters, _QUARTER_PI[0])
    return high, fma(quarters, _QUARTER_PI[1], error), swapped ^ negative


def _atan2_f32(y: Value, x: Value) -> Value:
    a, b, swapped, negative, nan = _octant(y.widen(), x.widen())
    steep = a > b * _TAN_EIGHTH_PI
    q = select(steep, a - b, a) / select(steep, a + b, b)
    z = q * q
    angle = fma(q * z, polynomial(z, _ATAN_SHORT), q)
    base, _, flip = _multiple_of_quarter_pi(q, steep, swapped, negative)
    result = base + select(flip, -angle, angle)
    return select(nan, float("nan"), result.narrow().copysign(y))


def _atan2_f64(y: Value, x: Value) -> Value:
    a, b, swapped, negative, nan = _octant(y, x)
    # keep a + b finite and the residuals of small quotients normal; where a loses bits a / b is zero anyway
    scale = select(b > 2.0**1000, b.constant(2.0**-54), 1.0)
    scale = select(b < 2.0**-900, 2.0**108, scale)
    a, b = a * scale, b * scale
    steep = a > b * _TAN_EIGHTH_PI
    total, total_low = two_sum(a, b)
    gap, gap_low = two_sum(a, -b)
    q, q_low = _divide_double(
        (select(steep, gap, a), select(steep, gap_low, 0.0)),
        (select(steep, total, b), select(steep, total_low, 0.0)),
    )
    z = q * q
    tail = fma(q * z, polynomial(z, _ATAN), q_low)
    high, low, flip = _multiple_of_quarter_pi(q, steep, swapped, negative)
    large, error = fast_two_sum(high, select(flip, -q, q))
    result = large + (error + (low + select(flip, -tail, tail)))
    return select(nan, float("nan"), result.copysign(y))


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), signs of zeros and infinities as in IEEE 754."""
    return _atan2_f32(y, x) if x.single else _atan2_f64(y, x)
