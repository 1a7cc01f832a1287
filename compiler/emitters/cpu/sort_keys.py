# SPDX-License-Identifier: Apache-2.0
"""Comparators that order by one number: recognised, and that number as a signed integer.

A comparator ``compare(f(a), f(b))`` with ``f`` a computation of one operand's scalar orders by the key ``f(a)``. Keys
become signed integers of the same order (ascending), which vectors compare in one instruction. Where ``f`` leaves the
value as it is, but for zeros and NaNs that it makes equal, the integer alone gives the value back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.cpu.control import both, choose, either
from gristmill.compiler.graph import Graph, Node
from gristmill.runtime.types import ElementType, element_type

I32, I64 = element_type("i32"), element_type("i64")


@dataclass(frozen=True)
class SortKey:
    """What a comparator orders by.

    Attributes:
        operand: the sort operand whose scalar the key is computed from.
        node: the key in the comparator's graph, a function of ``parameter`` alone.
        parameter: the comparator's left-hand scalar of that operand.
        descending: whether larger keys come first.
        is_identity: whether the key is the value itself, up to zeros and NaNs.
        merges_zeros: whether ``-0`` and ``+0`` are equal.
        merges_nans: whether all NaNs are equal (and above everything).
    """

    operand: int
    node: Node
    parameter: Node
    descending: bool
    is_identity: bool
    merges_zeros: bool
    merges_nans: bool

    @property
    def element(self) -> ElementType:
        """Element type of the key."""
        return self.node.type.element

    @property
    def integer(self) -> ElementType:
        """The integer type that holds the key: ``i32`` or ``i64``."""
        return I64 if self.element.bits > 32 else I32


def find_key(comparator: Graph) -> SortKey | None:
    """The key that ``comparator`` orders by, or ``None`` if it orders in some other way."""
    root = comparator.results[0]
    if root.kind != "compare" or root.string("direction") not in ("LT", "GT"):
        return None
    lhs, rhs = root.operands
    descending = root.string("direction") == "GT"
    if lhs.type.element.kind == "complex":
        return None
    left, right = _parameters(lhs), _parameters(rhs)
    if len(left) != 1 or len(right) != 1:
        return None
    a, b = left.pop(), right.pop()
    if a.result // 2 != b.result // 2 or a.result == b.result:
        return None
    if not _same(lhs, rhs, a, b):
        return None
    if a.result > b.result:  # compare(f(b), f(a)) orders the other way
        lhs, a, descending = rhs, b, not descending
    identity, zeros, nans = _identity(lhs, a)
    if lhs.type.element.is_float and root.string("type") != "TOTALORDER":
        zeros = nans = True
    return SortKey(a.result // 2, lhs, a, descending, identity, zeros, nans)


def _parameters(node: Node) -> set[Node]:
    found: set[Node] = set()
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.kind == "parameter":
            found.add(current)
        stack.extend(current.operands)
    return found


def _same(lhs: Node, rhs: Node, a: Node, b: Node) -> bool:
    """Whether ``rhs`` is ``lhs`` with ``b`` in the place of ``a``."""
    if lhs is a or rhs is b:
        return lhs is a and rhs is b
    if lhs is rhs:
        return True
    if lhs.kind != rhs.kind or lhs.result != rhs.result or lhs.type != rhs.type:
        return False
    if lhs.op is None or rhs.op is None or len(lhs.operands) != len(rhs.operands):
        return False
    if not _equal_attributes(lhs.op, rhs.op):
        return False
    return all(_same(x, y, a, b) for x, y in zip(lhs.operands, rhs.operands, strict=True))


def _equal_attributes(lhs: ir.Operation, rhs: ir.Operation) -> bool:
    """Whether the ops have equal attributes (the bindings' stubs have the wrong item type)."""
    mine, other = cast("Any", lhs.attributes), cast("Any", rhs.attributes)
    names: list[str] = list(mine)
    return names == list(other) and all(mine[name] == other[name] for name in names)


def _identity(node: Node, x: Node) -> tuple[bool, bool, bool]:
    """``(is the value up to zeros and NaNs, makes zeros equal, makes NaNs equal and positive)``."""
    zeros = nans = False
    while node is not x:
        if node.kind != "select" or len(node.operands) != 3:
            return False, False, False
        condition, then, otherwise = node.operands
        if condition.kind != "compare":
            return False, False, False
        direction = condition.string("direction")
        lhs, rhs = condition.operands
        if direction == "NE":
            then, otherwise = otherwise, then
        elif direction != "EQ":
            return False, False, False
        # now: x == something ? then : otherwise
        if lhs is x and rhs is x:
            value = _number(otherwise)
            if value is None or not math.isnan(value) or math.copysign(1.0, value) < 0:
                return False, False, False
            nans, node = True, then
        elif x in (lhs, rhs) and _number(rhs if lhs is x else lhs) == 0 and _number(then) == 0:
            zeros, node = True, otherwise
        else:
            return False, False, False
    return True, zeros, nans


def _number(node: Node) -> float | None:
    data = node.constant
    return float(data.flat[0]) if data is not None and data.size == 1 else None


def _constant(element: ElementType, value: int) -> ir.Value:
    return build.constant(element, value)


def _bits(element: ElementType, value: ir.Value) -> ir.Value:
    return arith.BitcastOp(build.register_type(_signed(element)), value).result


def _magnitude(element: ElementType, bits: ir.Value) -> ir.Value:
    mask = (1 << (element.bits - 1)) - 1
    return arith.AndIOp(bits, _constant(_signed(element), mask)).result


def _compare(
    predicate: arith.CmpIPredicate, element: ElementType, value: ir.Value, other: int
) -> ir.Value:
    return arith.CmpIOp(predicate, value, _constant(_signed(element), other)).result


def _is_nan(element: ElementType, bits: ir.Value) -> ir.Value:
    magnitude = _magnitude(element, bits)
    return _compare(arith.CmpIPredicate.sgt, element, magnitude, _infinity_bits(element))


def _is_zero(element: ElementType, bits: ir.Value) -> ir.Value:
    return _compare(arith.CmpIPredicate.eq, element, _magnitude(element, bits), 0)


_MANTISSA = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}


def _infinity_bits(element: ElementType) -> int:
    mantissa = _MANTISSA[element.name]
    return ((1 << (element.bits - 1 - mantissa)) - 1) << mantissa


def _nan_bits(element: ElementType) -> int:
    """Bits of the canonical (quiet, positive) NaN."""
    return _infinity_bits(element) | 1 << (_MANTISSA[element.name] - 1)


def has_integer_order(element: ElementType) -> bool:
    """Whether keys of the type can be mapped to integers."""
    return element.kind in ("pred", "int", "uint") or element.name in _MANTISSA


def _signed(element: ElementType) -> ElementType:
    return element_type(f"i{element.bits}")


def _flip(bits: ir.Value, integer: ElementType) -> ir.Value:
    """Sign-magnitude bits to two's complement and back."""
    sign = arith.ShRSIOp(bits, _constant(integer, integer.bits - 1)).result
    mask = arith.AndIOp(sign, _constant(integer, (1 << (integer.bits - 1)) - 1)).result
    return arith.XOrIOp(bits, mask).result


def to_integer(key: SortKey, value: ir.Value) -> ir.Value:
    """The key value (of ``key.element``) as an integer of ``key.integer`` in ascending order."""
    element, wide = key.element, key.integer
    if element.is_float:
        result = _float_to_integer(key, value)
    elif element.bits < wide.bits:
        extend = arith.ExtUIOp if element.is_unsigned else arith.ExtSIOp
        result = extend(build.register_type(wide), value).result
    elif element.is_unsigned:
        result = arith.XOrIOp(value, _constant(wide, 1 << (wide.bits - 1))).result
    else:
        result = value
    return _inverted(key, result)


def _float_to_integer(key: SortKey, value: ir.Value) -> ir.Value:
    element, wide = key.element, key.integer
    integer = _signed(element)
    original = bits = _bits(element, value)
    if key.merges_zeros:
        bits = choose(_is_zero(element, original), _constant(integer, 0), bits)
    if key.merges_nans:
        bits = choose(_is_nan(element, original), _constant(integer, _nan_bits(element)), bits)
    result = _flip(bits, integer)
    if element.bits < wide.bits:
        result = arith.ExtSIOp(build.register_type(wide), result).result
    return result


def from_integer(key: SortKey, value: ir.Value) -> ir.Value:
    """The inverse of :func:`to_integer` (zeros and NaNs that were merged come out as one)."""
    element, wide = key.element, key.integer
    value = _inverted(key, value)
    if element.is_float:
        bits_type = _signed(element)
        if element.bits < wide.bits:
            value = arith.TruncIOp(build.register_type(bits_type), value).result
        return arith.BitcastOp(build.register_type(element), _flip(value, bits_type)).result
    if element.bits < wide.bits:
        return arith.TruncIOp(build.register_type(element), value).result
    if element.is_unsigned:
        return arith.XOrIOp(value, _constant(wide, 1 << (wide.bits - 1))).result
    return value


def _inverted(key: SortKey, value: ir.Value) -> ir.Value:
    return arith.XOrIOp(value, _constant(key.integer, -1)).result if key.descending else value


def loses_bits(key: SortKey, value: ir.Value) -> ir.Value | None:
    """Whether ``from_integer(to_integer(value))`` differs from ``value``; ``None`` if it never does."""
    element = key.element
    if not element.is_float or not (key.merges_zeros or key.merges_nans):
        return None
    bits = _bits(element, value)
    lost: list[ir.Value] = []
    if key.merges_zeros:
        minus_zero = 1 << (element.bits - 1)
        lost.append(_compare(arith.CmpIPredicate.eq, element, bits, minus_zero))
    if key.merges_nans:
        other = _compare(arith.CmpIPredicate.ne, element, bits, _nan_bits(element))
        lost.append(both(_is_nan(element, bits), other))
    return either(lost[0], lost[-1])


@dataclass(frozen=True)
class Merged:
    """Which of the merged values a value is, and on which side of them it sorts.

    Attributes:
        is_zero, is_nan: the value is one of the merged zeros or NaNs.
        before_zeros: it sorts before the zeros, and is no NaN.
    """

    is_zero: ir.Value
    is_nan: ir.Value
    before_zeros: ir.Value


def classify(key: SortKey, value: ir.Value) -> Merged:
    """Classify a float value, for putting merged values back in their order."""
    element = key.element
    bits = _bits(element, value)
    is_zero, is_nan = _is_zero(element, bits), _is_nan(element, bits)
    predicate = arith.CmpIPredicate.sge if key.descending else arith.CmpIPredicate.slt
    outside = either(is_zero, is_nan)
    side = _compare(predicate, element, bits, 0)
    return Merged(is_zero, is_nan, choose(outside, _false(), side))


def _false() -> ir.Value:
    return arith.ConstantOp(ir.IntegerType.get_signless(1), ir.BoolAttr.get(False)).result
