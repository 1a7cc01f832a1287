# SPDX-License-Identifier: Apache-2.0
"""What one elementwise operation computes on scalars: ``emit(kind, node attributes, operands)``.

Values are in register form: signless integers, ``i1`` predicates, floats of their own type. Floats narrower than
``f32`` are computed in ``f32`` and rounded once, which is what StableHLO asks of each operation. Integer division
follows XLA where the specification leaves the result open: ``x / 0 = -1``, ``x % 0 = x``, ``INT_MIN / -1 = INT_MIN``.
Shifts by the width or more give 0 (or the sign).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlir import ir
from mlir.dialects import arith, math

from gristmill.compiler.emitters import math as library
from gristmill.compiler.emitters.build import constant, register_type
from gristmill.compiler.emitters.elemental import complex_arithmetic, narrow_floats
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ElementType, element_type

F32 = element_type("f32")
_P = arith.CmpIPredicate
_F = arith.CmpFPredicate


def widen(value: ir.Value, element: ElementType) -> tuple[ir.Value, ElementType]:
    """The value in its computation type: ``f32`` for narrower floats, itself otherwise."""
    if narrow_floats.is_narrow(element):
        return narrow_floats.decode(element, value), F32
    if element.is_float and element.bits < 32:
        return arith.ExtFOp(ir.F32Type.get(), value).result, F32
    return value, element


def narrow(value: ir.Value, element: ElementType) -> ir.Value:
    """Round an ``f32`` value to a narrower float element; the identity for the rest."""
    if narrow_floats.is_narrow(element):
        return narrow_floats.encode(element, value)
    if element.is_float and element.bits < 32:
        return arith.TruncFOp(register_type(element), value).result
    return value


def _compare_int(predicate: Any, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return arith.CmpIOp(predicate, lhs, rhs).result


def _select(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    return arith.SelectOp(condition, then, otherwise).result


def _int_add(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.OrIOp(a, b).result if e.bits == 1 else arith.AddIOp(a, b).result


def _int_multiply(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.AndIOp(a, b).result if e.bits == 1 else arith.MulIOp(a, b).result


def _safe_divisor(e: ElementType, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """``(divisor that never traps, is zero, overflows)``."""
    zero, one = constant(e, 0), constant(e, 1)
    is_zero = _compare_int(_P.eq, b, zero)
    overflows = constant(element_type("i1"), 0)
    if not e.is_unsigned:
        minimum, minus_one = constant(e, -(1 << (e.bits - 1))), constant(e, -1)
        overflows = arith.AndIOp(
            _compare_int(_P.eq, a, minimum), _compare_int(_P.eq, b, minus_one)
        ).result
    unsafe = arith.OrIOp(is_zero, overflows).result
    return _select(unsafe, one, b), is_zero, overflows


def _int_divide(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    divisor, is_zero, _ = _safe_divisor(e, a, b)
    op = arith.DivUIOp if e.is_unsigned else arith.DivSIOp
    # INT_MIN / 1 == INT_MIN, which is the wanted result of the overflowing case too.
    return _select(is_zero, constant(e, -1), op(a, divisor).result)


def _int_remainder(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    divisor, is_zero, _ = _safe_divisor(e, a, b)
    op = arith.RemUIOp if e.is_unsigned else arith.RemSIOp
    return _select(is_zero, a, op(a, divisor).result)


def _int_power(e: ElementType, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """Square and multiply over the exponent's bits; negative exponents give 0, ±1 as 1/x would."""
    result, square = constant(e, 1), base
    one, zero = constant(e, 1), constant(e, 0)
    for bit in range(e.bits - (0 if e.is_unsigned else 1)):
        mask = constant(e, 1 << bit)
        taken = _compare_int(_P.ne, arith.AndIOp(exponent, mask).result, zero)
        result = _select(taken, arith.MulIOp(result, square).result, result)
        square = arith.MulIOp(square, square).result
    if e.is_unsigned:
        return result
    minus_one = constant(e, -1)
    odd = _compare_int(_P.ne, arith.AndIOp(exponent, one).result, zero)
    inverse = _select(
        _compare_int(_P.eq, base, one),
        one,
        _select(_compare_int(_P.eq, base, minus_one), _select(odd, minus_one, one), zero),
    )
    return _select(_compare_int(_P.slt, exponent, zero), inverse, result)


def _shift(op: Any, fill_sign: bool) -> Callable[[ElementType, ir.Value, ir.Value], ir.Value]:
    def emit_shift(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
        width = constant(e, e.bits)
        in_range = _compare_int(_P.ult, b, width)
        safe = _select(in_range, b, constant(e, 0))
        overflow = constant(e, 0)
        if fill_sign:
            overflow = arith.ShRSIOp(a, constant(e, e.bits - 1)).result
        return _select(in_range, op(a, safe).result, overflow)

    return emit_shift


def _int_maximum(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    return (arith.MaxUIOp if e.is_unsigned else arith.MaxSIOp)(a, b).result


def _int_minimum(e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    return (arith.MinUIOp if e.is_unsigned else arith.MinSIOp)(a, b).result


_INT_BINARY: dict[str, Callable[[ElementType, ir.Value, ir.Value], ir.Value]] = {
    "add": _int_add,
    "subtract": lambda e, a, b: arith.SubIOp(a, b).result,
    "multiply": _int_multiply,
    "divide": _int_divide,
    "remainder": _int_remainder,
    "power": _int_power,
    "maximum": _int_maximum,
    "minimum": _int_minimum,
    "and": lambda e, a, b: arith.AndIOp(a, b).result,
    "or": lambda e, a, b: arith.OrIOp(a, b).result,
    "xor": lambda e, a, b: arith.XOrIOp(a, b).result,
    "shift_left": _shift(arith.ShLIOp, False),
    "shift_right_logical": _shift(arith.ShRUIOp, False),
    "shift_right_arithmetic": _shift(arith.ShRSIOp, True),
}


def _intrinsic(name: str) -> Callable[..., ir.Operation]:
    """An LLVM intrinsic of two floats. ``arith.maximumf`` is expanded to compares on its way to LLVM, which hides
    the reduction from the loop vectoriser; the intrinsic is recognised (NaN propagates, -0 < +0)."""

    def create(a: ir.Value, b: ir.Value, **_: Any) -> ir.Operation:
        return ir.Operation.create(name, results=[a.type], operands=[a, b])

    return create


_FLOAT_BINARY: dict[str, Any] = {
    "add": arith.AddFOp,
    "subtract": arith.SubFOp,
    "multiply": arith.MulFOp,
    "divide": arith.DivFOp,
    "maximum": _intrinsic("llvm.intr.maximum"),
    "minimum": _intrinsic("llvm.intr.minimum"),
}

_FLOAT_UNARY: dict[str, Any] = {
    "negate": arith.NegFOp,
    "abs": math.AbsFOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "round_nearest_even": math.RoundEvenOp,
    "sqrt": math.SqrtOp,
}

#: Elementwise kinds computed by the math library on ``f32`` or ``f64``.
TRANSCENDENTAL = frozenset(
    "exponential exponential_minus_one log log_plus_one logistic tanh erf erfc sine cosine tan atan2 power "
    "rsqrt cbrt round_nearest_afz remainder".split()
) | {library.NONPOSITIVE_EXPONENTIAL}


def binary(kind: str, e: ElementType, a: ir.Value, b: ir.Value, fastmath: Any = None) -> ir.Value:
    """``kind(a, b)`` for operands of element type ``e``."""
    if e.kind == "complex":
        return complex_arithmetic.binary(kind, e, a, b, fastmath)
    if not e.is_float:
        if kind not in _INT_BINARY:
            raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)
        return _INT_BINARY[kind](e, a, b)
    wide_a, wide_b = widen(a, e)[0], widen(b, e)[0]
    if kind in _FLOAT_BINARY:
        extra = {"fastmath": fastmath} if fastmath is not None else {}
        return narrow(_FLOAT_BINARY[kind](wide_a, wide_b, **extra).result, e)
    if kind in TRANSCENDENTAL and library.supported(kind, wide_a.type):
        return narrow(library.emit(kind, [wide_a, wide_b]), e)
    raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)


def unary(kind: str, e: ElementType, a: ir.Value) -> ir.Value:
    """``kind(a)`` for an operand of element type ``e``; of the same type, or of the part's for complex ``abs``."""
    if e.kind == "complex":
        return complex_arithmetic.unary(kind, e, a)
    if e.is_float:
        if kind == "sign":
            return _float_sign(e, a)
        wide_a, _ = widen(a, e)
        if kind in _FLOAT_UNARY:
            return narrow(_FLOAT_UNARY[kind](wide_a).result, e)
        if kind in TRANSCENDENTAL and library.supported(kind, wide_a.type):
            return narrow(library.emit(kind, [wide_a]), e)
        raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)
    return _int_unary(kind, e, a)


def _float_sign(e: ElementType, a: ir.Value) -> ir.Value:
    wide_a, wide = widen(a, e)
    one = math.CopySignOp(constant(wide, 1.0), wide_a).result
    # ±0 and NaN are their own sign.
    keep = arith.CmpFOp(_F.UEQ, wide_a, constant(wide, 0.0)).result
    return narrow(_select(keep, wide_a, one), e)


def _int_unary(kind: str, e: ElementType, a: ir.Value) -> ir.Value:
    zero = constant(e, 0)
    if kind == "negate":
        return arith.SubIOp(zero, a).result
    if kind == "not":
        return arith.XOrIOp(a, constant(e, 1 if e.bits == 1 else -1)).result
    if kind == "abs":
        if e.is_unsigned:
            return a
        return _select(_compare_int(_P.slt, a, zero), arith.SubIOp(zero, a).result, a)
    if kind == "sign":
        one = constant(e, 1)
        positive = _select(_compare_int(_P.ne, a, zero), one, zero)
        if e.is_unsigned:
            return positive
        return _select(_compare_int(_P.slt, a, zero), constant(e, -1), positive)
    if kind in ("popcnt", "count_leading_zeros"):
        return _count_bits(kind, e, a)
    raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)


def _count_bits(kind: str, e: ElementType, a: ir.Value) -> ir.Value:
    """``popcnt`` or ``count_leading_zeros``; what is narrower than a byte is counted as one.

    LLVM's instruction selection asserts on vectors of 2 and 4 bits there (AVX-512).
    """
    count = math.CtPopOp if kind == "popcnt" else math.CountLeadingZerosOp
    if e.bits >= 8:
        return count(a).result
    byte = ir.IntegerType.get_signless(8)
    bits = count(arith.ExtUIOp(byte, a).result).result
    if kind == "count_leading_zeros":
        bits = arith.SubIOp(bits, arith.ConstantOp(byte, 8 - e.bits).result).result
    return arith.TruncIOp(a.type, bits).result


def is_finite(e: ElementType, a: ir.Value) -> ir.Value:
    """``|a| < inf`` as ``i1``."""
    wide_a, wide = widen(a, e)
    magnitude = math.AbsFOp(wide_a).result
    return arith.CmpFOp(_F.OLT, magnitude, constant(wide, float("inf"))).result


_FLOAT_PREDICATES = {
    "EQ": _F.OEQ,
    "NE": _F.UNE,
    "GE": _F.OGE,
    "GT": _F.OGT,
    "LE": _F.OLE,
    "LT": _F.OLT,
}
_SIGNED = {"EQ": _P.eq, "NE": _P.ne, "GE": _P.sge, "GT": _P.sgt, "LE": _P.sle, "LT": _P.slt}
_UNSIGNED = {"EQ": _P.eq, "NE": _P.ne, "GE": _P.uge, "GT": _P.ugt, "LE": _P.ule, "LT": _P.ult}


def compare(direction: str, kind: str, e: ElementType, a: ir.Value, b: ir.Value) -> ir.Value:
    """``a direction b`` as ``i1``; ``kind`` TOTALORDER orders -NaN < -inf < … < -0 < +0 < … < NaN."""
    if e.kind == "complex":
        return complex_arithmetic.compare(direction, a, b)
    if not e.is_float:
        return _compare_int((_UNSIGNED if e.is_unsigned else _SIGNED)[direction], a, b)
    if kind == "TOTALORDER":
        return _compare_int(_SIGNED[direction], _total_order(e, a), _total_order(e, b))
    return arith.CmpFOp(_FLOAT_PREDICATES[direction], widen(a, e)[0], widen(b, e)[0]).result


def _total_order(e: ElementType, a: ir.Value) -> ir.Value:
    """Bits of ``a`` as a signed integer whose order is the total order of floats."""
    if narrow_floats.is_narrow(e):
        a, e = widen(a, e)
    integer = element_type(f"i{e.bits}")
    bits = arith.BitcastOp(register_type(integer), a).result
    flipped = arith.XOrIOp(bits, constant(integer, (1 << (e.bits - 1)) - 1)).result
    return _select(_compare_int(_P.slt, bits, constant(integer, 0)), flipped, bits)


def select(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """``condition ? then : otherwise``."""
    if complex_arithmetic.is_complex_value(then):
        return complex_arithmetic.select(condition, then, otherwise)
    return _select(condition, then, otherwise)


def clamp(e: ElementType, low: ir.Value, value: ir.Value, high: ir.Value) -> ir.Value:
    """``min(max(value, low), high)``."""
    return binary("minimum", e, binary("maximum", e, value, low), high)


def convert(source: ElementType, target: ElementType, value: ir.Value) -> ir.Value:
    """``value`` of type ``source`` as ``target``: floats round to nearest even, out-of-range floats saturate
    and NaN becomes 0 in integers, integers wrap, anything non-zero is true."""
    if source == target:
        return value
    if source.kind == "complex" or target.kind == "complex":
        return _convert_complex(source, target, value)
    if target.kind == "pred":
        return _to_predicate(source, value)
    if source.is_float and target.is_float:
        return _float_to_float(source, target, value)
    if source.is_float:
        return _float_to_int(source, target, value)
    if target.is_float:
        return _int_to_float(source, target, value)
    kind = register_type(target)
    if target.bits == source.bits:
        return value
    if target.bits < source.bits:
        return arith.TruncIOp(kind, value).result
    return (arith.ExtUIOp if source.is_unsigned else arith.ExtSIOp)(kind, value).result


def _convert_complex(source: ElementType, target: ElementType, value: ir.Value) -> ir.Value:
    """Complex numbers convert part by part; a real target takes the real part, a real source has imaginary part 0."""
    if source.kind != "complex":
        part = complex_arithmetic.part_type(target)
        return complex_arithmetic.create(convert(source, part, value), constant(part, 0))
    part = complex_arithmetic.part_type(source)
    real, imaginary = complex_arithmetic.parts(value)
    if target.kind != "complex":
        return convert(part, target, real)
    wanted = complex_arithmetic.part_type(target)
    return complex_arithmetic.create(convert(part, wanted, real), convert(part, wanted, imaginary))


def _to_predicate(source: ElementType, value: ir.Value) -> ir.Value:
    if source.is_float:
        wide_value, wide = widen(value, source)
        return arith.CmpFOp(_F.UNE, wide_value, constant(wide, 0.0)).result
    return _compare_int(_P.ne, value, constant(source, 0))


def _float_to_float(source: ElementType, target: ElementType, value: ir.Value) -> ir.Value:
    wide_value, wide = widen(value, source)
    if target.bits > wide.bits:
        return arith.ExtFOp(register_type(target), wide_value).result
    if wide.bits == 64 and target.bits < 32:
        return narrow(_round_to_odd(wide_value), target)
    if target.bits < 32:
        return narrow(wide_value, target)
    if target.bits < wide.bits:
        return arith.TruncFOp(register_type(target), wide_value).result
    return wide_value


def _round_to_odd(value: ir.Value) -> ir.Value:
    """``f64`` → ``f32`` rounding to odd, so that a further rounding to a narrower type is correct.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    nearest = arith.TruncFOp(f32, value).result
    back = arith.ExtFOp(ir.F64Type.get(), nearest).result
    exact = arith.CmpFOp(_F.UEQ, back, value).result
    bits = arith.BitcastOp(i32, nearest).result
    integer = element_type("i32")
    odd = _compare_int(_P.ne, arith.AndIOp(bits, constant(integer, 1)).result, constant(integer, 0))
    magnitude_up = arith.CmpFOp(_F.OGT, math.AbsFOp(back).result, math.AbsFOp(value).result).result
    # An inexact even result moves one step towards the true value's other neighbour, which is odd.
    step = _select(magnitude_up, constant(integer, -1), constant(integer, 1))
    moved = arith.AddIOp(bits, step).result
    keep = arith.OrIOp(exact, odd).result
    return arith.BitcastOp(f32, _select(keep, bits, moved)).result


def _float_to_int(source: ElementType, target: ElementType, value: ir.Value) -> ir.Value:
    wide_value, wide = widen(value, source)
    low = 0 if target.is_unsigned else -(1 << (target.bits - 1))
    high = (1 << target.bits) - 1 if target.is_unsigned else (1 << (target.bits - 1)) - 1
    # Compare against exact powers of two: high itself may not be representable.
    too_low = arith.CmpFOp(_F.OLT, wide_value, constant(wide, float(low))).result
    too_high = arith.CmpFOp(_F.OGE, wide_value, constant(wide, float(high + 1))).result
    is_nan = arith.CmpFOp(_F.UNO, wide_value, wide_value).result
    outside = arith.OrIOp(arith.OrIOp(too_low, too_high).result, is_nan).result
    safe = _select(outside, constant(wide, 0.0), wide_value)
    converted = (arith.FPToUIOp if target.is_unsigned else arith.FPToSIOp)(
        register_type(target), safe
    ).result
    result = _select(too_low, constant(target, low), converted)
    return _select(too_high, constant(target, high), result)


def _int_to_float(source: ElementType, target: ElementType, value: ir.Value) -> ir.Value:
    op = arith.UIToFPOp if source.is_unsigned else arith.SIToFPOp
    if target.bits >= 32:
        return op(register_type(target), value).result
    if source.bits <= 16:
        return narrow(op(ir.F32Type.get(), value).result, target)
    # f64 holds 32-bit integers exactly; 64-bit ones lose only bits far below a 16-bit float's precision.
    return narrow(_round_to_odd(op(ir.F64Type.get(), value).result), target)


def reduce_precision(
    e: ElementType, value: ir.Value, exponent_bits: int, mantissa_bits: int
) -> ir.Value:
    """Round ``value`` to a float with fewer exponent and mantissa bits, kept in type ``e``.

    Follows the StableHLO specification: round to nearest even in the mantissa; exponents above the range give
    infinity, below it a signed zero; NaN stays NaN.
    """
    if narrow_floats.is_narrow(e):
        wide_value, wide = widen(value, e)
        return narrow(reduce_precision(wide, wide_value, exponent_bits, mantissa_bits), e)
    mantissa = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}[e.name]
    exponent = e.bits - 1 - mantissa
    integer = element_type(f"ui{e.bits}")
    kind = register_type(integer)
    bits = arith.BitcastOp(kind, value).result
    if mantissa_bits < mantissa:
        drop = mantissa - mantissa_bits
        last = arith.AndIOp(
            arith.ShRUIOp(bits, constant(integer, drop)).result, constant(integer, 1)
        ).result
        bias = arith.AddIOp(last, constant(integer, (1 << (drop - 1)) - 1)).result
        rounded = arith.AddIOp(bits, bias).result
        bits = arith.AndIOp(
            rounded, constant(integer, ~((1 << drop) - 1) & ((1 << e.bits) - 1))
        ).result
    if exponent_bits < exponent:
        bits = _reduce_exponent(e, integer, bits, exponent_bits, exponent, mantissa)
    wide_value, _ = widen(value, e)
    is_nan = arith.CmpFOp(_F.UNO, wide_value, wide_value).result
    return _select(is_nan, value, arith.BitcastOp(register_type(e), bits).result)


def _reduce_exponent(
    e: ElementType,
    integer: ElementType,
    bits: ir.Value,
    exponent_bits: int,
    exponent: int,
    mantissa: int,
) -> ir.Value:
    sign_mask = 1 << (e.bits - 1)
    sign = arith.AndIOp(bits, constant(integer, sign_mask)).result
    field_mask = ((1 << exponent) - 1) << mantissa
    field = arith.AndIOp(bits, constant(integer, field_mask)).result
    bias, reduced_bias = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
    largest = constant(integer, (bias + reduced_bias) << mantissa)
    smallest = constant(integer, (bias - reduced_bias) << mantissa)
    infinity = arith.OrIOp(sign, constant(integer, field_mask)).result
    bits = _select(_compare_int(_P.ugt, field, largest), infinity, bits)
    return _select(_compare_int(_P.ule, field, smallest), sign, bits)
