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

from gristmill.compiler.emitters.math import _complex, _complex_short
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
    "emit_square_of_magnitude",
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
    values = [(Value(real), Value(imaginary)) for real, imaginary in operands]
    single = values[0][0].single
    result: _complex.Complex
    if single and name in _complex_short.UNARY:
        result = _complex_short.UNARY[name](*values)
    elif single and name in _complex_short.BINARY:
        result = _complex_short.BINARY[name](*values)
    else:
        function: Callable[..., _complex.Complex] = {**_complex.UNARY, **_complex.BINARY}[name]
        result = function(*map(_widened, values)) if single else function(*values)
        result = (result[0].narrow(), result[1].narrow()) if single else result
    return result[0].value, result[1].value


def emit_magnitude(parts: Parts) -> ir.Value[ir.Type]:
    """Emit the absolute value of a complex number, exact to a rounding for ``f32`` parts."""
    z = Value(parts[0]), Value(parts[1])
    return (_complex_short if z[0].single else _complex).magnitude(z).value


def emit_square_of_magnitude(parts: Parts) -> ir.Value[ir.Type]:
    """Emit the square of the absolute value of a complex number of ``f32`` parts, in ``f64``, exact to a rounding."""
    return _complex_short.square((Value(parts[0]), Value(parts[1]))).value


def _widened(z: _complex.Complex) -> _complex.Complex:
    return z[0].widen(), z[1].widen()


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
