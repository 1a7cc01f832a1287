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


def _any(condition: Value) -> ir.Value[ir.Type]:
    """Whether any lane of ``condition`` is true."""
    if condition.shape is None:
        return condition.value
    reduction = cast("Callable[..., ir.Value[ir.Type]]", vector.reduction)
    return reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, condition.value)


def remainder(x: Value, y: Value) -> Value:
    """x - y · trunc(x / y), exact, with the sign of x (C's fmod).

    One round of the loop removes ``mantissa - 1`` bits of the quotient, so that nearly all calls take one. The
    partial quotient q is below 2^mantissa and is the true floor or one more, because division rounds to
    nearest; x - q · divisor is then representable, and the fused multiply-add exact.
    """
    form = x.format
    divisor = y.abs()
    invalid = (divisor.equal(0.0) | divisor.is_nan()) | ~(x.abs() < float("inf"))
    # lanes that need no work leave the loop at once
    start = select(invalid, 0.0, x.abs())
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
    result = Value(loop.results[0]).copysign(x)
    return select(invalid, float("nan"), result)
