# SPDX-License-Identifier: Apache-2.0
"""Rules of ``canonicalize-hlo`` for elementwise operations.

A floating-point rule is here only if it gives the same bits for every input, NaN payloads excepted:
``x + (-0)``, ``x - 0``, ``x * 1`` and ``x / 1`` are ``x``; ``x + 0`` (for x = -0) and ``x * 0`` are not simple.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.module import elements_from_numpy
from gristmill.compiler.passes.rewriting import Rewriter, Rule, filled
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor, converts_exactly
from gristmill.runtime.types import ELEMENT_TYPES

Result = Sequence[ir.Value] | None

_FLIPPED = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_MAX_INTEGER_POWER = 8


def _is(value: Any, number: float, kind: Tensor) -> bool:
    """Whether a splat is ``number`` (and, for a float zero, has its sign)."""
    if value is None or value != number:
        return False
    if number == 0 and kind.is_float:
        return math.copysign(1.0, float(value)) == math.copysign(1.0, number)
    return True


def _all_ones(value: Any, kind: Tensor) -> bool:
    if value is None or kind.is_float or kind.is_complex:
        return False
    return bool(value) if kind.is_pred else int(value) in (-1, (1 << kind.bits) - 1)


def _sides(r: Rewriter, op: ir.Operation) -> list[tuple[ir.Value, Any]]:
    """(one operand, splat of the other), both ways round."""
    lhs, rhs = op.operands[0], op.operands[1]
    return [(lhs, r.splat(rhs)), (rhs, r.splat(lhs))]


def add(r: Rewriter, op: ir.Operation) -> Result:
    """``x + 0`` → ``x`` for integers, ``x + (-0.0)`` → ``x`` for floats."""
    kind = r.type(op.results[0])
    for value, other in _sides(r, op):
        if kind.is_integer and _is(other, 0, kind):
            return [value]
        if kind.is_float and _is(other, -0.0, kind):
            return [value]
    return None


def subtract(r: Rewriter, op: ir.Operation) -> Result:
    """``x - 0`` → ``x``; ``x - x`` → 0 for integers."""
    kind = r.type(op.results[0])
    lhs, rhs = op.operands[0], op.operands[1]
    if (kind.is_integer or kind.is_float) and _is(r.splat(rhs), 0.0, kind):
        return [lhs]
    if kind.is_integer and lhs == rhs:
        return [filled(r, 0, lhs)]
    return None


def multiply(r: Rewriter, op: ir.Operation) -> Result:
    """``x * 1`` → ``x``; ``x * 0`` → 0 for integers."""
    kind = r.type(op.results[0])
    if not (kind.is_integer or kind.is_float):
        return None
    for value, other in _sides(r, op):
        if _is(other, 1, kind):
            return [value]
        if kind.is_integer and _is(other, 0, kind):
            return [filled(r, 0, value)]
    return None


def divide(r: Rewriter, op: ir.Operation) -> Result:
    """``x / 1`` → ``x``; division by a power of two whose reciprocal is normal → multiplication."""
    lhs, rhs = op.operands[0], op.operands[1]
    kind = r.type(lhs)
    by = r.splat(rhs)
    if by is None or not (kind.is_integer or kind.is_float):
        return None
    if _is(by, 1, kind):
        return [lhs]
    if kind.is_float and _exact_reciprocal(float(by), kind):
        return [builders.multiply(lhs, filled(r, 1.0 / float(by), lhs))]
    return None


def _exact_reciprocal(value: float, kind: Tensor) -> bool:
    if value == 0 or not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5:
        return False
    exponent = math.frexp(value)[1] - 1
    limit = {"f16": 14, "bf16": 126, "f32": 126, "f64": 1022}.get(kind.element, 0)
    return abs(exponent) <= limit


def power(r: Rewriter, op: ir.Operation) -> Result:
    """``x ** n`` → multiplications: small n ≥ 0 for integers; 0, 1, 2 and -1 for floats, which are exact."""
    base = op.operands[0]
    kind = r.type(base)
    exponent = r.splat(op.operands[1])
    if exponent is None or kind.is_complex:
        return None
    number = float(exponent)
    if kind.is_integer and 0 <= number <= _MAX_INTEGER_POWER:
        return [_integer_power(r, base, int(number))]
    if kind.is_float and number in (0.0, 1.0, 2.0):
        return [_integer_power(r, base, int(number))]
    if kind.is_float and number == -1.0:
        return [builders.divide(filled(r, 1.0, base), base)]
    return None


def _integer_power(r: Rewriter, base: ir.Value, exponent: int) -> ir.Value:
    if exponent == 0:
        return filled(r, 1, base)
    result: ir.Value | None = None
    square = base
    while True:
        if exponent & 1:
            result = square if result is None else builders.multiply(result, square)
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        square = builders.multiply(square, square)


def idempotent(r: Rewriter, op: ir.Operation) -> Result:
    """``max(x, x)``, ``min(x, x)``, ``x & x``, ``x | x`` → ``x``."""
    return [op.operands[0]] if op.operands[0] == op.operands[1] else None


def extreme(r: Rewriter, op: ir.Operation) -> Result:
    """``max(x, -inf)`` and ``min(x, inf)`` → ``x``."""
    kind = r.type(op.results[0])
    neutral = -math.inf if hlo.short_name(op) == "maximum" else math.inf
    for value, other in _sides(r, op):
        if kind.is_float and _is(other, neutral, kind):
            return [value]
    return None


def bitwise(r: Rewriter, op: ir.Operation) -> Result:
    """Neutral and absorbing operands of ``and``, ``or``, ``xor``; ``x ^ x`` → 0."""
    name = hlo.short_name(op)
    kind = r.type(op.results[0])
    if name == "xor" and op.operands[0] == op.operands[1]:
        return [filled(r, 0, op.operands[0])]
    for value, other in _sides(r, op):
        zero, ones = _is(other, 0, kind), _all_ones(other, kind)
        if (zero and name != "and") or (ones and name == "and"):
            return [value]
        if (zero and name == "and") or (ones and name == "or"):
            return [filled(r, other, value)]
        if ones and name == "xor":
            return [builders.unary("not", value)]
    return None


def shift(r: Rewriter, op: ir.Operation) -> Result:
    """Shift by zero → the operand."""
    kind = r.type(op.results[0])
    return [op.operands[0]] if _is(r.splat(op.operands[1]), 0, kind) else None


def involution(r: Rewriter, op: ir.Operation) -> Result:
    """``-(-x)`` and ``not(not(x))`` → ``x``."""
    inner = r.operand(op, 0, hlo.short_name(op))
    return None if inner is None else [inner.operands[0]]


def negated_product(r: Rewriter, op: ir.Operation) -> Result:
    """``-(x * c)`` → ``x * -c`` for a float constant c."""
    inner = r.operand(op, 0, "multiply")
    if inner is None or not r.type(op.results[0]).is_float:
        return None
    for value, other in _sides(r, inner):
        if other is not None and not np.isnan(other):
            return [builders.multiply(value, filled(r, -float(other), value))]
    return None


def not_compare(r: Rewriter, op: ir.Operation) -> Result:
    """``not(a < b)`` → ``a >= b`` where no NaN can make both false."""
    inner = r.operand(op, 0, "compare")
    if inner is None:
        return None
    direction, kind = hlo.string(inner, "direction"), hlo.string(inner, "type")
    if kind == "FLOAT" and direction not in ("EQ", "NE"):
        return None
    lhs, rhs = inner.operands[0], inner.operands[1]
    return [builders.compare(lhs, rhs, _FLIPPED[direction], compare_type=kind)]


def absolute(r: Rewriter, op: ir.Operation) -> Result:
    """``|-x|`` → ``|x|``, ``||x||`` → ``|x|``; unsigned ``|x|`` → ``x``."""
    operand = op.operands[0]
    if r.type(operand).is_unsigned:
        return [operand]
    if r.producer(operand, "abs") is not None:
        return [operand]
    inner = r.producer(operand, "negate")
    if inner is not None and not r.type(operand).is_complex:
        return [builders.unary("abs", inner.operands[0])]
    return None


def convert(r: Rewriter, op: ir.Operation) -> Result:
    """Conversion to the same type → the operand; an exact conversion in between is skipped."""
    operand = op.operands[0]
    source, target = r.type(operand), r.type(op.results[0])
    if source.element == target.element:
        return [operand]
    inner = r.producer(operand, "convert")
    if inner is None:
        return None
    origin = r.type(inner.operands[0])
    if not converts_exactly(origin.element, source.element):
        return None
    through_float = source.is_float and target.is_integer and not origin.is_float
    if through_float and not converts_exactly(origin.element, target.element):
        return None  # out of range, integers wrap and floats do not
    if origin.element == target.element:
        return [inner.operands[0]]
    return [builders.convert(inner.operands[0], target.element)]


def same_type(r: Rewriter, op: ir.Operation) -> Result:
    """A ``bitcast_convert`` to the same type → the operand."""
    return [op.operands[0]] if op.operands[0].type == op.results[0].type else None


def compare(r: Rewriter, op: ir.Operation) -> Result:
    """``x == x`` … of non-floats → a constant; ``pred != false`` and ``pred == true`` → ``pred``."""
    lhs, rhs = op.operands[0], op.operands[1]
    kind = r.type(lhs)
    direction = hlo.string(op, "direction")
    if lhs == rhs and not (kind.is_float or kind.is_complex):
        return [filled(r, direction in ("EQ", "LE", "GE"), op.results[0])]
    if kind.is_pred and direction in ("EQ", "NE"):
        for value, other in _sides(r, op):
            if other is not None:
                same = bool(other) == (direction == "EQ")
                return [value] if same else [builders.unary("not", value)]
    return None


def select(r: Rewriter, op: ir.Operation) -> Result:
    """Constant predicates, equal branches, and negated predicates."""
    pred, on_true, on_false = list(op.operands)
    if on_true == on_false:
        return [on_true]
    chosen = r.splat(pred)
    if chosen is not None:
        return [on_true if chosen else on_false]
    inner = r.producer(pred, "not")
    if inner is not None:
        return [builders.select(inner.operands[0], on_false, on_true)]
    return None


def part_of_complex(r: Rewriter, op: ir.Operation) -> Result:
    """``real(complex(a, b))`` → ``a``; ``imag(complex(a, b))`` → ``b``."""
    inner = r.operand(op, 0, "complex")
    if inner is None:
        return None
    return [inner.operands[0 if hlo.short_name(op) == "real" else 1]]


def splat_constant(r: Rewriter, op: ir.Operation) -> Result:
    """A constant with one value in every element → a broadcast scalar."""
    kind = r.type(op.results[0])
    if not kind.rank or not kind.size or kind.is_complex:
        return None
    value = r.splat(op.results[0])
    if value is None:
        return None
    scalar = elements_from_numpy(np.asarray(value), ELEMENT_TYPES[kind.element])
    value = builders.constant(scalar, kind.with_shape(()))
    return [builders.broadcast_in_dim(value, kind.shape, [])]


#: Op name to the rules that are tried on it, in order.
RULES: dict[str, tuple[Rule, ...]] = {
    "abs": (absolute,),
    "add": (add,),
    "and": (idempotent, bitwise),
    "bitcast_convert": (same_type,),
    "compare": (compare,),
    "constant": (splat_constant,),
    "convert": (convert,),
    "divide": (divide,),
    "imag": (part_of_complex,),
    "maximum": (idempotent, extreme),
    "minimum": (idempotent, extreme),
    "multiply": (multiply,),
    "negate": (involution, negated_product),
    "not": (involution, not_compare),
    "or": (idempotent, bitwise),
    "power": (power,),
    "real": (part_of_complex,),
    "select": (select,),
    "shift_left": (shift,),
    "shift_right_arithmetic": (shift,),
    "shift_right_logical": (shift,),
    "subtract": (subtract,),
    "xor": (bitwise,),
}
