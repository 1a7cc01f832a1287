# SPDX-License-Identifier: Apache-2.0
"""What one elementwise operation computes on complex scalars, in terms of their real and imaginary parts.

The register form is MLIR's ``complex<f32>`` or ``complex<f64>``. Values are taken apart and put together here, and a
value just put together is taken apart without an operation, so that only loads, stores and loop carries see pairs.
"""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import complex as complex_dialect

from gristmill.compiler.emitters import math as library
from gristmill.compiler.emitters.build import constant
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ElementType, element_type

Parts = library.Parts
_F = arith.CmpFPredicate


def part_type(element: ElementType) -> ElementType:
    """The type of the real and imaginary parts."""
    return element_type(element.name[len("complex<") : -1])


def is_complex_value(value: ir.Value) -> bool:
    """Whether an SSA value is a complex number."""
    return isinstance(value.type, ir.ComplexType)


def parts(value: ir.Value) -> Parts:
    """Real and imaginary part of a complex value."""
    owner = value.owner
    if isinstance(owner, ir.Operation) and owner.name == "complex.create":
        return owner.operands[0], owner.operands[1]
    return complex_dialect.ReOp(value).result, complex_dialect.ImOp(value).result


def create(real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """The complex value of two parts of one type."""
    return complex_dialect.CreateOp(ir.ComplexType.get(real.type), real, imaginary).result


def _negate(value: ir.Value) -> ir.Value:
    return arith.NegFOp(value).result


def _multiply(a: Parts, b: Parts, flags: Any) -> ir.Value:
    def product(x: ir.Value, y: ir.Value) -> ir.Value:
        return arith.MulFOp(x, y, fastmath=flags).result

    return create(
        arith.SubFOp(product(a[0], b[0]), product(a[1], b[1]), fastmath=flags).result,
        arith.AddFOp(product(a[0], b[1]), product(a[1], b[0]), fastmath=flags).result,
    )


def _lexicographic(direction: str, a: Parts, b: Parts) -> ir.Value:
    """``a`` before or after ``b`` by real part, then by imaginary part."""
    strict = {"G": _F.OGT, "L": _F.OLT}[direction[0]]
    last = {"GT": _F.OGT, "GE": _F.OGE, "LT": _F.OLT, "LE": _F.OLE}[direction]
    equal = arith.CmpFOp(_F.OEQ, a[0], b[0]).result
    by_imaginary = arith.AndIOp(equal, arith.CmpFOp(last, a[1], b[1]).result).result
    return arith.OrIOp(arith.CmpFOp(strict, a[0], b[0]).result, by_imaginary).result


def _extreme(kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """The later or earlier operand in lexicographic order; an operand with a NaN before one without."""
    direction = "GE" if kind == "maximum" else "LE"
    left, right = parts(a), parts(b)
    unordered = arith.CmpFOp(_F.UNO, *left).result
    first = arith.OrIOp(unordered, _lexicographic(direction, left, right)).result
    right_unordered = arith.CmpFOp(_F.UNO, *right).result
    true = constant(element_type("i1"), 1)
    first = arith.AndIOp(
        first,
        arith.OrIOp(unordered, arith.XOrIOp(right_unordered, true).result).result,
    ).result
    return select(first, a, b)


def binary(kind: str, e: ElementType, a: ir.Value, b: ir.Value, fastmath: Any = None) -> ir.Value:
    """``kind(a, b)`` for complex operands of element type ``e``; ``fastmath`` for sums and products."""
    left, right = parts(a), parts(b)
    flags = arith.FastMathFlags.none if fastmath is None else fastmath
    if kind in ("add", "subtract"):
        op = arith.AddFOp if kind == "add" else arith.SubFOp
        return create(*(op(x, y, fastmath=flags).result for x, y in zip(left, right, strict=True)))
    if kind == "multiply":
        return _multiply(left, right, flags)
    if kind in ("maximum", "minimum"):
        return _extreme(kind, a, b)
    if kind in library.COMPLEX_FUNCTIONS:
        return create(*library.emit_complex(kind, [left, right]))
    raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)


def unary(kind: str, e: ElementType, a: ir.Value) -> ir.Value:
    """``kind(a)`` for a complex operand of element type ``e``; ``abs``, ``real`` and ``imag`` give a real one."""
    real, imaginary = parts(a)
    if kind == "real":
        return real
    if kind == "imag":
        return imaginary
    if kind == "abs":
        return library.emit_magnitude((real, imaginary))
    if kind == "negate":
        return create(_negate(real), _negate(imaginary))
    if kind in library.COMPLEX_FUNCTIONS:
        return create(*library.emit_complex(kind, [(real, imaginary)]))
    raise UnsupportedError(f"{kind} of {e.name} is not supported", op=kind)


def compare(direction: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """``a direction b`` as ``i1``; the order is lexicographic."""
    left, right = parts(a), parts(b)
    if direction not in ("EQ", "NE"):
        return _lexicographic(direction, left, right)
    predicate, join = (_F.OEQ, arith.AndIOp) if direction == "EQ" else (_F.UNE, arith.OrIOp)
    results = [arith.CmpFOp(predicate, x, y).result for x, y in zip(left, right, strict=True)]
    return join(*results).result


def within(number: ir.Value, square: float, *, inclusive: bool) -> ir.Value:
    """Whether the square of the absolute value of ``number``, of ``f32`` parts, is below ``square`` or, if
    ``inclusive``, is that; NaN is not."""
    bound = constant(element_type("f64"), square)
    predicate = _F.OLE if inclusive else _F.OLT
    return arith.CmpFOp(predicate, library.emit_square_of_magnitude(parts(number)), bound).result


def select(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """``condition ? then : otherwise``, part by part so that it vectorises."""
    pairs = zip(parts(then), parts(otherwise), strict=True)
    return create(*(arith.SelectOp(condition, x, y).result for x, y in pairs))
