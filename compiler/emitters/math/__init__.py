# SPDX-License-Identifier: Apache-2.0
"""Elementary functions as straight-line ``arith`` and ``math`` operations.

In: SSA values of ``f32``, ``f64`` or vectors of them. Out: the function's value, accurate over the whole
range (within 1.6 ulp, most functions within 1.1), subnormal numbers, infinities, NaN and signed zeros
included. The code has no branches, calls or memory accesses, so that LLVM's loop vectoriser handles loops over
it; the one exception is ``remainder`` of ``f64``, which loops. No fast-math flags are set and none may be added later.

``math.fma`` must be a fused operation. It is one instruction where the target has it (AVX2-class x86-64 and later,
every AArch64); elsewhere LLVM calls ``fma`` of the C library: right, and slow. The same holds for the rounding
operations without SSE4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from gristmill.compiler.emitters.math import _complex
from gristmill.compiler.emitters.math._error_function import erf, erfc
from gristmill.compiler.emitters.math._exponential import (
    exponential,
    exponential_minus_one,
    exponential_of_nonpositive,
    logistic,
    logistic_of_cubic,
    tanh,
)
from gristmill.compiler.emitters.math._logarithm import log, log_plus_one
from gristmill.compiler.emitters.math._power import cbrt, power, rsqrt
from gristmill.compiler.emitters.math._rounding import remainder, round_nearest_afz, sign
from gristmill.compiler.emitters.math._trigonometry import atan2, cosine, sine, tan
from gristmill.compiler.emitters.math._values import Value, element_name

__all__ = [
    "BOUNDED_EXPONENTIAL",
    "COMPLEX_FUNCTIONS",
    "FUNCTIONS",
    "NONPOSITIVE_EXPONENTIAL",
    "Parts",
    "emit",
    "emit_complex",
    "emit_logistic_of_cubic",
    "emit_magnitude",
    "expand_exponentials",
    "supported",
]

#: Real and imaginary part of a complex number.
Parts = tuple[ir.Value[ir.Type], ir.Value[ir.Type]]

#: ``exponential`` of what is never positive, not an hlo operation of its own.
NONPOSITIVE_EXPONENTIAL = "exponential_of_nonpositive"

#: The same of what is not far below zero either.
BOUNDED_EXPONENTIAL = "exponential_of_bounded"

#: What ``exponential`` is until the target is known.
_EXPONENTIAL = "llvm.exp"

_UNARY: dict[str, Callable[[Value], Value]] = {
    "cbrt": cbrt,
    "ceil": Value.ceil,
    "cosine": cosine,
    "erf": erf,
    "erfc": erfc,
    "exponential": lambda x: x.intrinsic(_EXPONENTIAL),
    "exponential_minus_one": exponential_minus_one,
    NONPOSITIVE_EXPONENTIAL: exponential_of_nonpositive,
    BOUNDED_EXPONENTIAL: lambda x: exponential_of_nonpositive(x, bounded=True),
    "floor": Value.floor,
    "log": log,
    "log_plus_one": log_plus_one,
    "logistic": logistic,
    "round_nearest_afz": round_nearest_afz,
    "round_nearest_even": Value.round_even,
    "rsqrt": rsqrt,
    "sign": sign,
    "sine": sine,
    "sqrt": Value.sqrt,
    "tan": tan,
    "tanh": tanh,
}
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "atan2": atan2,
    "power": power,
    "remainder": remainder,
}

#: The number of operands of each function, by hlo operation name.
FUNCTIONS: dict[str, int] = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2)}


def supported(name: str, type: ir.Type) -> bool:
    """Whether :func:`emit` takes function ``name`` on operands of ``type``."""
    return name in FUNCTIONS and element_name(type) in ("f32", "f64")


def emit(name: str, operands: Sequence[ir.Value[ir.Type]]) -> ir.Value[ir.Type]:
    """Emit hlo function ``name`` at the current insertion point.

    Operands have one type, for which :func:`supported` holds; the result has it too.
    """
    assert all(supported(name, operand.type) for operand in operands), name
    if name in _UNARY:
        (operand,) = operands
        return _UNARY[name](Value(operand)).value
    lhs, rhs = operands
    return _BINARY[name](Value(lhs), Value(rhs)).value


def emit_logistic_of_cubic(
    operand: ir.Value[ir.Type], linear: float, cubic: float
) -> ir.Value[ir.Type]:
    """Emit the logistic function of ``linear x + cubic x³``, x in ``f32``, at the current insertion point.

    The coefficients are of one sign, and of a size from 2^-30 to 2^30.
    """
    return logistic_of_cubic(Value(operand), linear, cubic).value


#: The functions of complex numbers, by hlo operation name.
COMPLEX_FUNCTIONS = frozenset({*_complex.UNARY, *_complex.BINARY})


def emit_complex(name: str, operands: Sequence[Parts]) -> Parts:
    """Emit the complex function ``name`` of :data:`COMPLEX_FUNCTIONS` at the current insertion point.

    All parts have one type, ``f32`` or ``f64``; ``f32`` is computed in ``f64`` and rounded once.
    """
    wide = [_widened(operand) for operand in operands]
    if name in _complex.UNARY:
        (operand,) = wide
        result = _complex.UNARY[name](operand)
    else:
        lhs, rhs = wide
        result = _complex.BINARY[name](lhs, rhs)
    single = element_name(operands[0][0].type) == "f32"
    real, imaginary = (part.narrow() if single else part for part in result)
    return real.value, imaginary.value


def emit_magnitude(parts: Parts) -> ir.Value[ir.Type]:
    """Emit the absolute value of a complex number, exact to a rounding for ``f32`` parts."""
    if element_name(parts[0].type) == "f32":
        return _complex.short_magnitude(_widened(parts)).narrow().value
    return _complex.magnitude(_widened(parts)).value


def _widened(parts: Parts) -> _complex.Complex:
    real, imaginary = Value(parts[0]), Value(parts[1])
    return (real.widen(), imaginary.widen()) if real.element == "f32" else (real, imaginary)


def expand_exponentials(module: ir.Module, *, scaled: bool = False, split: bool = False) -> None:
    """Make arithmetic of every ``exponential`` that :func:`emit` has left as an intrinsic.

    LLVM would call the C library. The flags are those of the function that does so, and up to the target.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "llvm.call_intrinsic" and str(op.attributes["intrin"]) == f'"{_EXPONENTIAL}"':
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            power = exponential(Value(op.operands[0]), scaled=scaled, split=split)
        op.results[0].replace_all_uses_with(power.value)
        op.erase()
