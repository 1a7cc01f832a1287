# SPDX-License-Identifier: Apache-2.0
"""Scalar and vector SSA values with Python operators, so that formulas read as formulas.

Every operation is emitted at the current insertion point, without fast-math flags: what is written is what is
computed. A :class:`Value` is a scalar or a vector of ``f32``, ``f64``, ``i32``, ``i64`` or ``i1``; Python
numbers beside one become constants of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from mlir import ir
from mlir.dialects import arith, llvm, math

Number = float | int

_INTEGER_OF = {"f32": "i32", "f64": "i64"}
_FLOAT_OF = {"i32": "f32", "i64": "f64"}


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: the MLIR spelling.
        mantissa: stored significand bits.
        bias: exponent bias.
    """

    name: str
    mantissa: int
    bias: int

    @property
    def rounder(self) -> float:
        """1.5 · 2^mantissa: adding it rounds to an integer, found in the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    @property
    def rounder_bits(self) -> int:
        """The representation of :attr:`rounder`."""
        return ((self.bias + self.mantissa) << self.mantissa) | (1 << (self.mantissa - 1))

    @property
    def min_normal(self) -> float:
        """The smallest positive normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def exponent_mask(self) -> int:
        """The exponent field shifted down: 255 or 2047."""
        return 2 * self.bias + 1


F32 = Format("f32", 23, 127)
F64 = Format("f64", 52, 1023)


def _typed(function: object, name: str) -> Callable[..., ir.Value[ir.Type]]:
    """Builder ``name`` of a generated dialect module, which carries no annotations."""
    return cast("Callable[..., ir.Value[ir.Type]]", getattr(function, name))


_addf, _subf, _mulf, _divf = (_typed(arith, n) for n in ("addf", "subf", "mulf", "divf"))
_addi, _subi, _muli = (_typed(arith, n) for n in ("addi", "subi", "muli"))
_andi, _ori, _xori = (_typed(arith, n) for n in ("andi", "ori", "xori"))
_shli, _shrsi, _shrui = (_typed(arith, n) for n in ("shli", "shrsi", "shrui"))
_negf, _cmpf, _cmpi = (_typed(arith, n) for n in ("negf", "cmpf", "cmpi"))
_bitcast, _select, _constant = (_typed(arith, n) for n in ("bitcast", "select", "constant"))
_extf, _truncf, _extui, _trunci = (_typed(arith, n) for n in ("extf", "truncf", "extui", "trunci"))
_fma, _sqrt, _absf, _copysign = (_typed(math, n) for n in ("fma", "sqrt", "absf", "copysign"))
_floor, _ceil, _trunc, _roundeven = (
    _typed(math, n) for n in ("floor", "ceil", "trunc", "roundeven")
)


def element_name(type_: ir.Type) -> str:
    """The element type of a scalar or vector type as MLIR spells it."""
    if isinstance(type_, ir.VectorType):
        return str(type_.element_type)
    return str(type_)


class Value:
    """One SSA value; see the module's documentation.

    Attributes:
        value: the MLIR value.
        element: ``f32``, ``f64``, ``i32``, ``i64`` or ``i1``.
        shape: the vector shape, or None for a scalar.
    """

    __slots__ = ("element", "shape", "value")

    def __init__(self, value: ir.Value[ir.Type]):
        self.value = value
        self.element = element_name(value.type)
        vector = ir.VectorType(value.type) if isinstance(value.type, ir.VectorType) else None
        self.shape = None if vector is None else tuple(vector.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.element in _INTEGER_OF

    @property
    def single(self) -> bool:
        """Whether elements are 32 bits wide."""
        return self.element in ("f32", "i32")

    @property
    def format(self) -> Format:
        """The float format of this width."""
        return F32 if self.single else F64

    def type_as(self, element: str) -> ir.Type:
        """This value's type with another element type."""
        scalar = ir.Type.parse(element)
        return scalar if self.shape is None else ir.VectorType.get(list(self.shape), scalar)

    def constant(self, number: Number) -> Value:
        """``number`` (integers modulo 2^bits) as a constant of this value's type."""
        scalar = ir.Type.parse(self.element)
        attribute: ir.Attribute
        if self.is_float:
            attribute = ir.FloatAttr.get(scalar, float(number))
        else:
            bits = ir.IntegerType(scalar).width
            wrapped = int(number) & ((1 << bits) - 1)
            signed = wrapped - (1 << bits) if bits > 1 and wrapped >> (bits - 1) else wrapped
            attribute = ir.IntegerAttr.get(scalar, signed)
        if self.shape is not None:
            attribute = ir.DenseElementsAttr.get_splat(self.value.type, attribute)
        return Value(_constant(self.value.type, attribute))

    def _coerce(self, other: Value | Number) -> ir.Value[ir.Type]:
        return other.value if isinstance(other, Value) else self.constant(other).value

    def _binary(
        self,
        other: Value | Number,
        float_op: Callable[..., ir.Value[ir.Type]],
        integer_op: Callable[..., ir.Value[ir.Type]],
    ) -> Value:
        op = float_op if self.is_float else integer_op
        return Value(op(self.value, self._coerce(other)))

    def __add__(self, other: Value | Number) -> Value:
        return self._binary(other, _addf, _addi)

    __radd__ = __add__

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary(other, _subf, _subi)

    def __rsub__(self, other: Number) -> Value:
        return self.constant(other) - self

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary(other, _mulf, _muli)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Value:
        return Value(_divf(self.value, self._coerce(other)))

    def __rtruediv__(self, other: Number) -> Value:
        return self.constant(other) / self

    def __neg__(self) -> Value:
        return Value(_negf(self.value))

    def __and__(self, other: Value | Number) -> Value:
        return Value(_andi(self.value, self._coerce(other)))

    def __or__(self, other: Value | Number) -> Value:
        return Value(_ori(self.value, self._coerce(other)))

    def __xor__(self, other: Value | Number) -> Value:
        return Value(_xori(self.value, self._coerce(other)))

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, other: Value | Number) -> Value:
        return Value(_shli(self.value, self._coerce(other)))

    def __rshift__(self, other: Value | Number) -> Value:
        """Arithmetic shift: the sign bit is copied in."""
        return Value(_shrsi(self.value, self._coerce(other)))

    def logical_shift_right(self, other: Value | Number) -> Value:
        """Shift that brings in zeros."""
        return Value(_shrui(self.value, self._coerce(other)))

    def _compare(
        self,
        other: Value | Number,
        float_predicate: arith.CmpFPredicate,
        integer_predicate: arith.CmpIPredicate,
    ) -> Value:
        if self.is_float:
            return Value(_cmpf(float_predicate, self.value, self._coerce(other)))
        return Value(_cmpi(integer_predicate, self.value, self._coerce(other)))

    def __lt__(self, other: Value | Number) -> Value:
        return self._compare(other, arith.CmpFPredicate.OLT, arith.CmpIPredicate.slt)

    def __le__(self, other: Value | Number) -> Value:
        return self._compare(other, arith.CmpFPredicate.OLE, arith.CmpIPredicate.sle)

    def __gt__(self, other: Value | Number) -> Value:
        return self._compare(other, arith.CmpFPredicate.OGT, arith.CmpIPredicate.sgt)

    def __ge__(self, other: Value | Number) -> Value:
        return self._compare(other, arith.CmpFPredicate.OGE, arith.CmpIPredicate.sge)

    def equal(self, other: Value | Number) -> Value:
        """Ordered equality: false beside NaN."""
        return self._compare(other, arith.CmpFPredicate.OEQ, arith.CmpIPredicate.eq)

    def differs(self, other: Value | Number) -> Value:
        """The negation of :meth:`equal`: true beside NaN."""
        return self._compare(other, arith.CmpFPredicate.UNE, arith.CmpIPredicate.ne)

    def is_nan(self) -> Value:
        """Whether elements are NaN."""
        return self.differs(self)

    def at_most(self, bound: Number) -> Value:
        """The smaller of this and ``bound``; NaN stays NaN."""
        return select(self > bound, bound, self)

    def at_least(self, bound: Number) -> Value:
        """The larger of this and ``bound``; NaN stays NaN."""
        return select(self < bound, bound, self)

    def bits(self) -> Value:
        """The representation as an integer of the same width."""
        return Value(_bitcast(self.type_as(_INTEGER_OF[self.element]), self.value))

    def as_float(self) -> Value:
        """The float that these bits represent."""
        return Value(_bitcast(self.type_as(_FLOAT_OF[self.element]), self.value))

    def small_integer_as_float(self) -> Value:
        """An integer of magnitude below 2^22 (i32) or 2^51 (i64) as a float of the same width.

        The same value as ``sitofp``, which has no vector form for i64 before AVX-512.
        """
        form = self.format
        return (self + form.rounder_bits).as_float() - form.rounder

    def widen(self) -> Value:
        """f32 to f64 exactly, or i32 to i64 with zeros."""
        if self.element == "f32":
            return Value(_extf(self.type_as("f64"), self.value))
        return Value(_extui(self.type_as("i64"), self.value))

    def narrow(self) -> Value:
        """f64 to f32 with one rounding, or the low half of an i64."""
        if self.element == "f64":
            return Value(_truncf(self.type_as("f32"), self.value))
        return Value(_trunci(self.type_as("i32"), self.value))

    def abs(self) -> Value:
        """The magnitude."""
        return Value(_absf(self.value))

    def copysign(self, sign: Value) -> Value:
        """This magnitude with the sign of ``sign``."""
        return Value(_copysign(self.value, sign.value))

    def intrinsic(self, name: str, *others: Value) -> Value:
        """LLVM's intrinsic ``name`` of this and others, of this type."""
        operands, none = [self.value, *(x.value for x in others)], ir.DenseI32ArrayAttr.get([])
        name_attribute = ir.StringAttr.get(name)
        return Value(llvm.call_intrinsic(self.value.type, name_attribute, operands, [], none))

    def sqrt(self) -> Value:
        """The correctly rounded square root."""
        return Value(_sqrt(self.value))

    def floor(self) -> Value:
        """The largest integer not above."""
        return Value(_floor(self.value))

    def ceil(self) -> Value:
        """The smallest integer not below."""
        return Value(_ceil(self.value))

    def trunc(self) -> Value:
        """The integer part."""
        return Value(_trunc(self.value))

    def round_even(self) -> Value:
        """The nearest integer, ties to even."""
        return Value(_roundeven(self.value))


def select(condition: Value, on_true: Value | Number, on_false: Value | Number) -> Value:
    """``on_true`` where ``condition``, else ``on_false``; at least one of them is a value."""
    like = on_true if isinstance(on_true, Value) else on_false
    assert isinstance(like, Value)
    true = on_true if isinstance(on_true, Value) else like.constant(on_true)
    false = on_false if isinstance(on_false, Value) else like.constant(on_false)
    return Value(_select(condition.value, true.value, false.value))


def fma(a: Value, b: Value | Number, c: Value | Number) -> Value:
    """``a * b + c`` with one rounding."""
    right = b if isinstance(b, Value) else a.constant(b)
    addend = c if isinstance(c, Value) else a.constant(c)
    return Value(_fma(a.value, right.value, addend.value))


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """``coefficients[0] + coefficients[1] x + …`` by Horner's rule with fused steps."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def split_polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """:func:`polynomial` with even and odd powers apart: one operation more in a chain half as long."""
    square = x * x
    return fma(polynomial(square, coefficients[1::2]), x, polynomial(square, coefficients[::2]))


def fast_two_sum(big: Value | Number, small: Value) -> tuple[Value, Value]:
    """``(s, e)`` with s = fl(big + small) and s + e exact, where |big| ≥ |small| or big = 0."""
    high = small + big
    return high, small - (high - big)


def two_sum(a: Value, b: Value | Number) -> tuple[Value, Value]:
    """``(s, e)`` with s = fl(a + b) and s + e exact (Knuth), for any order of magnitudes."""
    high = a + b
    b_part = high - a
    a_part = high - b_part
    return high, (a - a_part) + (b - b_part if isinstance(b, Value) else -(b_part - b))


def two_product(a: Value, b: Value | Number) -> tuple[Value, Value]:
    """``(p, e)`` with p = fl(a b) and p + e exact, barring underflow."""
    high = a * b
    return high, fma(a, b, -high)
