# SPDX-License-Identifier: Apache-2.0
"""Rounding to integers, sign, and the exact remainder."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mlir import ir
from mlir.dialects import scf, vector

from gristmill.compiler.emitters.math._values import Value, fma, select


def round_nearest_afz(x: Value) -> Value:
    """The nearest integer, ties away from zero; x - trunc x is exact."""
    whole = x.trunc()
    up = (x - whole).abs() >= 0.5
    return (whole.abs() + select(up, x.constant(1.0), 0.0)).copysign(x)


def sign(x: Value) -> Value:
    """±1 by sign; zeros and NaN give themselves."""
    return select(x.abs() > 0.0, x.constant(1.0).copysign(x), x)


def _exponent(x: Value) -> Value:
    """floor(log2 x) of a finite positive x as an integer value."""
    form = x.format
    shift = form.mantissa + 1
    tiny = x < form.min_normal
    bits = select(tiny, x * 2.0**shift, x).bits()
    field = bits.logical_shift_right(form.mantissa)
    return field - select(tiny, field.constant(form.bias + shift), form.bias)


def _scale(x: Value, exponent: Value) -> Value:
    """x · 2^exponent for 0 ≤ exponent ≤ 3 (bias - 1), as three exact products."""
    form = x.format
    for _ in range(3):
        step = select(exponent < form.bias, exponent, form.bias)
        x = x * ((step + form.bias) << form.mantissa).as_float()
        exponent = exponent - step
    return x


def _all(condition: Value) -> ir.Value[ir.Type]:
    """Whether every lane of ``condition`` is true."""
    return Value(_any(~condition)).differs(1).value


def _any(condition: Value) -> ir.Value[ir.Type]:
    """Whether any lane of ``condition`` is true."""
    if condition.shape is None:
        return condition.value
    reduction = cast("Callable[..., ir.Value[ir.Type]]", vector.reduction)
    return reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, condition.value)


def remainder(x: Value, y: Value) -> Value:
    """x - y · trunc(x / y), exact, with the sign of x (C's fmod)."""
    return _remainder_f32(x, y) if x.single else _remainder_f64(x, y)


#: Bits of the quotient that a step takes away; six steps do for those of binary32, of which there are at most 277.
_STEP, _STEPS = 47, 6


def _remainder_f32(x: Value, y: Value) -> Value:
    """The remainder in binary64, without a branch.

    A step subtracts q d, d = 2^(47 i) y and q the integer nearest to rest / d, |q| < 2^48. What is left is 0.54 d at
    most and a multiple of d / 2^26 or of x's last place (the lower one, if q is not 0), so that the fused multiply-add
    is exact. A zero y, an infinite x and NaN give NaN on their own: 0 · infinity or infinity - infinity.
    """
    divisor = y.abs().widen().at_most(2.0**129)  # infinity: more than twice every finite x
    inverse, rest = 1.0 / divisor, x.abs().widen()
    rounder = rest.format.rounder
    for step in reversed(range(_STEPS)):
        scale = 2.0 ** (_STEP * step)
        quotient = fma(rest, inverse * (1 / scale), rounder) - rounder
        rest = fma(-quotient, divisor * scale, rest)
    rest = select(rest < 0.0, rest + divisor, rest)
    return rest.narrow().copysign(x)


def _remainder_f64(x: Value, y: Value) -> Value:
    """The remainder by one division where the quotient is below 2^53, else by a loop.

    The nearest quotient, rounded down to an integer, is the true one or one more; x - q y is representable then, and
    the fused multiply-add exact.
    """
    magnitude, divisor = x.abs(), y.abs()
    quotient = magnitude / divisor
    # infinity / infinity is NaN, and 0 · infinity would be
    near = (quotient < 2.0**53) & (divisor < float("inf"))
    branch = scf.IfOp(_all(near), [x.value.type], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        rest = fma(-quotient.trunc(), divisor, magnitude)
        scf.YieldOp([select(rest < 0.0, rest + divisor, rest).value])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([_remainder_by_rounds(magnitude, divisor).value])
    return Value(branch.results[0]).copysign(x)


def _remainder_by_rounds(x: Value, divisor: Value) -> Value:
    """The remainder of two numbers that are not negative.

    One round of the loop removes ``mantissa - 1`` bits of the quotient. The partial quotient q is below 2^mantissa and
    is the true floor or one more, because division rounds to nearest; x - q · divisor is then representable, and the
    fused multiply-add exact.
    """
    form = x.format
    invalid = (divisor.equal(0.0) | divisor.is_nan()) | ~(x < float("inf"))
    # lanes that need no work leave the loop at once
    start = select(invalid, 0.0, x)
    divisor = select(invalid, 1.0, divisor)
    loop = scf.WhileOp([start.value.type], [start.value])
    before = ir.Block.create_at_start(loop.regions[0], [start.value.type])
    after = ir.Block.create_at_start(loop.regions[1], [start.value.type])
    with ir.InsertionPoint(before):
        rest = cast("ir.Value[ir.Type]", before.arguments[0])
        scf.ConditionOp(_any(Value(rest) >= divisor), [rest])
    with ir.InsertionPoint(after):
        rest = Value(cast("ir.Value[ir.Type]", after.arguments[0]))
        finite = select(divisor < float("inf"), divisor, 1.0)
        excess = _exponent(rest) - _exponent(finite) - (form.mantissa - 2)
        scaled = _scale(finite, select(excess > 0, excess, 0))
        reduced = fma((rest / scaled).trunc(), -scaled, rest)
        reduced = select(reduced < 0.0, reduced + scaled, reduced)
        scf.YieldOp([select(rest >= divisor, reduced, rest).value])
    return select(invalid, float("nan"), Value(loop.results[0]))
