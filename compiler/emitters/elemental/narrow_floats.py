# SPDX-License-Identifier: Apache-2.0
"""Floats of 8, 6 and 4 bits to and from ``f32``, as branch-free integer code that vectorises.

The register form of a narrow float is an integer of its width holding its bits; arithmetic is done in ``f32``. Rounding
is to nearest, ties to even. What a value above the range and NaN become depends on the format's family and agrees with
``ml_dtypes``: infinity (IEEE formats), NaN (``FN``, ``FNUZ``), or the largest number (formats without NaN, where NaN
becomes a zero of the other sign). ``f8E8M0FNU`` has neither sign nor zero: both become NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters.build import constant, register_type
from gristmill.runtime.types import ElementType, element_type

_P = arith.CmpIPredicate
_I32 = element_type("i32")
_F32 = element_type("f32")
_MANTISSA = 23
_BIAS = 127
_NAN = 0x7FC00000
_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


class Family(Enum):
    """How a format spends its highest encodings."""

    IEEE = "infinity and NaN"
    NAN_ONLY = "all ones is NaN"
    UNSIGNED_ZERO = "the encoding of -0 is NaN"
    FINITE = "numbers only"


@dataclass(frozen=True)
class Format:
    """A narrow format with a sign: field widths in bits, exponent bias, family."""

    exponent: int
    mantissa: int
    bias: int
    family: Family

    @property
    def sign_bit(self) -> int:
        """The encoding of -0."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def infinity(self) -> int:
        """The encoding with an exponent of ones and no mantissa."""
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def largest(self) -> int:
        """The encoding of the largest finite number."""
        last = {Family.IEEE: self.infinity - 1, Family.NAN_ONLY: self.sign_bit - 2}
        return last.get(self.family, self.sign_bit - 1)

    @property
    def overflow(self) -> int:
        """What larger numbers become, sign apart."""
        return {
            Family.IEEE: self.infinity,
            Family.NAN_ONLY: self.sign_bit - 1,
            Family.UNSIGNED_ZERO: self.sign_bit,
            Family.FINITE: self.largest,
        }[self.family]

    @property
    def nan(self) -> int:
        """What NaN becomes, sign apart."""
        return {
            Family.IEEE: self.infinity | 1 << (self.mantissa - 1),
            Family.NAN_ONLY: self.sign_bit - 1,
            Family.UNSIGNED_ZERO: self.sign_bit,
            Family.FINITE: self.sign_bit,
        }[self.family]


#: Formats by the MLIR spelling of their type.
FORMATS: dict[str, Format] = {
    "f8E5M2": Format(5, 2, 15, Family.IEEE),
    "f8E4M3": Format(4, 3, 7, Family.IEEE),
    "f8E3M4": Format(3, 4, 3, Family.IEEE),
    "f8E4M3FN": Format(4, 3, 7, Family.NAN_ONLY),
    "f8E4M3FNUZ": Format(4, 3, 8, Family.UNSIGNED_ZERO),
    "f8E5M2FNUZ": Format(5, 2, 16, Family.UNSIGNED_ZERO),
    "f8E4M3B11FNUZ": Format(4, 3, 11, Family.UNSIGNED_ZERO),
    "f6E3M2FN": Format(3, 2, 3, Family.FINITE),
    "f6E2M3FN": Format(2, 3, 1, Family.FINITE),
    "f4E2M1FN": Format(2, 1, 1, Family.FINITE),
}
_SCALE = "f8E8M0FNU"


def is_narrow(element: ElementType) -> bool:
    """Whether this is a float of fewer than 16 bits."""
    return element.is_float and element.bits < 16


def _int(number: int) -> ir.Value:
    return constant(_I32, number)


def _compare(predicate: arith.CmpIPredicate, a: ir.Value, b: int) -> ir.Value:
    return arith.CmpIOp(predicate, a, _int(b)).result


def _select(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    return arith.SelectOp(condition, then, otherwise).result


def _and(a: ir.Value, mask: int) -> ir.Value:
    return arith.AndIOp(a, _int(mask)).result


def _or(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.OrIOp(a, b).result


def _add(a: ir.Value, b: ir.Value | int) -> ir.Value:
    return arith.AddIOp(a, _int(b) if isinstance(b, int) else b).result


def _left(a: ir.Value, bits: int) -> ir.Value:
    return arith.ShLIOp(a, _int(bits)).result


def _right(a: ir.Value, bits: int) -> ir.Value:
    return arith.ShRUIOp(a, _int(bits)).result


def _bits(value: ir.Value) -> ir.Value:
    return arith.BitcastOp(register_type(_I32), value).result


def _float(bits: ir.Value) -> ir.Value:
    return arith.BitcastOp(register_type(_F32), bits).result


def decode(element: ElementType, value: ir.Value) -> ir.Value:
    """The narrow float ``value`` as ``f32``, exactly."""
    wide = arith.ExtUIOp(register_type(_I32), value).result
    if element.name == _SCALE:
        bits = _select(_compare(_P.eq, wide, 0), _int(1 << 22), _left(wide, _MANTISSA))
        return _float(_select(_compare(_P.eq, wide, 255), _int(_NAN), bits))
    form = FORMATS[element.name]
    magnitude = _and(wide, form.sign_bit - 1)
    shifted = _left(magnitude, _MANTISSA - form.mantissa)
    normal = _add(shifted, (_BIAS - form.bias) << _MANTISSA)
    unit = constant(_F32, 2.0 ** (1 - form.bias - form.mantissa))
    count = arith.SIToFPOp(register_type(_F32), magnitude).result
    subnormal = _bits(arith.MulFOp(count, unit).result)
    bits = _select(_compare(_P.ult, magnitude, 1 << form.mantissa), subnormal, normal)
    if form.family is Family.IEEE:
        special = _or(shifted, _int(_INFINITY))
        bits = _select(_compare(_P.uge, magnitude, form.infinity), special, bits)
    elif form.family is Family.NAN_ONLY:
        bits = _select(_compare(_P.eq, magnitude, form.nan), _int(_NAN), bits)
    elif form.family is Family.UNSIGNED_ZERO:
        bits = _select(_compare(_P.eq, wide, form.nan), _int(_NAN), bits)
    sign = _left(_and(wide, form.sign_bit), 31 - form.exponent - form.mantissa)
    return _float(_or(bits, sign))


def encode(element: ElementType, value: ir.Value) -> ir.Value:
    """``value`` of type ``f32`` rounded to the narrow float type ``element``."""
    bits = _bits(value)
    code = _encode_scale(bits) if element.name == _SCALE else _encode(FORMATS[element.name], bits)
    return arith.TruncIOp(register_type(element), code).result


def _encode(form: Format, bits: ir.Value) -> ir.Value:
    magnitude = _and(bits, _MAGNITUDE)
    drop = _MANTISSA - form.mantissa
    last = _and(_right(magnitude, drop), 1)
    rounded = _right(_add(_add(magnitude, (1 << (drop - 1)) - 1), last), drop)
    normal = _add(rounded, -((_BIAS - form.bias) << form.mantissa))
    # The sum's lowest bit is worth one subnormal step, so that the addition rounds to a whole number of them.
    rounder = 2.0 ** (_MANTISSA + 1 - form.bias - form.mantissa)
    total = arith.AddFOp(_float(magnitude), constant(_F32, rounder)).result
    subnormal = arith.SubIOp(_bits(total), _bits(constant(_F32, rounder))).result
    smallest = (_BIAS + 1 - form.bias) << _MANTISSA
    code = _select(_compare(_P.ult, magnitude, smallest), subnormal, normal)
    code = _select(_compare(_P.sgt, code, form.largest), _int(form.overflow), code)
    is_nan = _compare(_P.ugt, magnitude, _INFINITY)
    code = _select(is_nan, _int(form.nan), code)
    sign = _and(_right(bits, 31 - form.exponent - form.mantissa), form.sign_bit)
    if form.family is Family.UNSIGNED_ZERO:
        return _select(_compare(_P.eq, code, 0), code, _or(code, sign))
    return arith.XOrIOp(code, sign).result


def _encode_scale(bits: ir.Value) -> ir.Value:
    """A power of two: ties go up, since a significand of one bit is odd; what is below ``2**-127`` becomes it.

    Of f32's subnormal numbers, ``2**-127`` and ``2**-126`` are half as far apart as the exponents' bits say.
    """
    subnormal = _compare(_P.ult, bits, 1 << _MANTISSA)
    half = _select(subnormal, _int(1 << 21), _int(1 << 22))
    code = _right(_add(bits, half), _MANTISSA)
    # As an unsigned number a negative one is above infinity.
    valid = arith.AndIOp(_compare(_P.ne, bits, 0), _compare(_P.ult, bits, _INFINITY)).result
    return _select(valid, code, _int(255))
