# SPDX-License-Identifier: Apache-2.0
"""``hlo`` operations on constants, computed with numpy exactly as a compiled program would.

:data:`EVALUATORS` maps an op name to a function of the op and its operands' arrays. It returns the
result, or ``None`` when numpy's answer might differ from the program's: division by zero, rounding
in two steps, results the specification leaves open, transcendental functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mlir import ir

from gristmill.compiler.passes.rewriting import Array
from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor
from gristmill.runtime.types import ELEMENT_TYPES

#: (op, result type, operand arrays) to the result, or ``None``.
Evaluator = Callable[[ir.Operation, Tensor, list[Array]], "Array | None"]

# Element types that numpy computes with as a compiled program does.
_EXACT = frozenset(
    ["i1", "bf16", "f16", "f32", "f64"]
    + [f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_EXACT_DTYPES = frozenset(ELEMENT_TYPES[name].dtype for name in _EXACT)
_MOVING = frozenset(
    ["broadcast_in_dim", "concatenate", "pad", "reshape", "reverse", "select", "slice", "transpose"]
)
_SINGLE_INTEGERS = 1 << 24  # integers up to here are exact in every step of a conversion to float


def evaluate(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    """The value of ``op``, or ``None`` when it is not evaluated here."""
    name = hlo.short_name(op)
    evaluator = EVALUATORS.get(name)
    if evaluator is None or result.element not in ELEMENT_TYPES:
        return None
    if name not in _MOVING and not _computes_exactly(result, operands):
        return None
    with np.errstate(all="ignore"):
        value = evaluator(op, result, operands)
    if value is None:
        return None
    return np.asarray(value).astype(ELEMENT_TYPES[result.element].dtype, copy=False)


def _minmax(function: Callable[..., Array]) -> Evaluator:
    def run(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
        lhs, rhs = operands
        if result.is_float:
            zeros = (lhs == 0) & (rhs == 0)
            if np.any(zeros & (np.signbit(lhs) ^ np.signbit(rhs))):
                return None  # numpy may return either zero
        return function(lhs, rhs)

    return run


def _divide(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    lhs, rhs = operands
    if not result.is_integer:
        return None if result.is_pred else lhs / rhs
    if _unsafe_division(result, lhs, rhs):
        return None
    quotient = lhs // rhs
    if result.is_unsigned:
        return quotient
    return quotient + ((lhs % rhs != 0) & ((lhs < 0) != (rhs < 0)))  # truncate towards zero


def _remainder(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    lhs, rhs = operands
    if result.is_pred or (result.is_integer and _unsafe_division(result, lhs, rhs)):
        return None
    return np.fmod(lhs, rhs)


def _unsafe_division(result: Tensor, lhs: Array, rhs: Array) -> bool:
    if np.any(rhs == 0):
        return True
    lowest = np.iinfo(lhs.dtype).min
    return not result.is_unsigned and bool(np.any((lhs == lowest) & (rhs == -1)))


def _power(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    base, exponent = operands
    if not result.is_integer or np.any(exponent < 0):
        return None
    return np.power(base, exponent)


def _shift(function: Callable[[Array, Array], Array], *, arithmetic: bool = False) -> Evaluator:
    def run(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
        if not result.is_integer:
            return None
        value, amount = operands
        unsigned = np.dtype(f"u{value.dtype.itemsize}")
        signed = np.dtype(f"i{value.dtype.itemsize}")
        count = amount.view(unsigned) if amount.ndim else amount.astype(unsigned)
        work = value.astype(signed if arithmetic else unsigned)
        over = count >= result.bits
        count = np.where(over, result.bits - 1, count).astype(work.dtype)
        shifted = function(work, count)
        return shifted if arithmetic else np.where(over, 0, shifted).astype(unsigned)

    return run


def _computes_exactly(result: Tensor, operands: list[Array]) -> bool:
    return result.element in _EXACT and all(operand.dtype in _EXACT_DTYPES for operand in operands)


def _direct(function: Callable[..., Array]) -> Evaluator:
    """An op that one exact numpy function computes."""
    return lambda op, result, operands: function(*operands)


def _compare(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    if hlo.string(op, "type") == "TOTALORDER":
        return None
    lhs, rhs = operands
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "EQ": np.equal,
        "NE": np.not_equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
    }
    return functions[hlo.string(op, "direction")](lhs, rhs)


def _clamp(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    low, value, high = operands
    if result.is_float:
        return None
    return np.minimum(np.maximum(value, low), high)


def _convert(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    value = operands[0]
    source = value.dtype
    target = ELEMENT_TYPES[result.element].dtype
    if result.is_pred:
        return value != 0
    if result.is_integer:
        if source.kind in "biu":
            return value.astype(target)
        wide = value.astype(np.float64)
        bounds = np.iinfo(target)
        if not np.all(np.isfinite(wide) & (wide > bounds.min - 1.0) & (wide < bounds.max)):
            return None
        return np.trunc(wide).astype(target)
    if source.kind in "iu" and result.element in ("bf16", "f16"):  # numpy goes through float32
        if np.any(np.abs(value.astype(np.float64)) > _SINGLE_INTEGERS):
            return None
        return value.astype(np.float32).astype(target)
    if source == np.float64 and result.element in ("bf16", "f16"):
        return None  # numpy may round twice
    return value.astype(target)


def _round_even(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return np.rint(operands[0].astype(np.float64))


def _whole(function: Callable[..., Array]) -> Evaluator:
    return lambda op, result, operands: function(operands[0].astype(np.float64))


def _sign(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    if result.is_float:
        return None
    return np.sign(operands[0])


def _sqrt(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return np.sqrt(operands[0]) if result.element in ("f32", "f64") else None


def _popcnt(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    value = operands[0]
    unsigned = np.dtype(f"u{value.dtype.itemsize}")
    return np.bitwise_count(value.astype(unsigned))


def _broadcast(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    value = operands[0]
    shape = [1] * result.rank
    order = np.argsort(hlo.dims(op, "dimensions"))
    for dimension, size in zip(hlo.dims(op, "dimensions"), value.shape, strict=True):
        shape[dimension] = size
    return np.broadcast_to(np.transpose(value, order).reshape(shape), result.shape)


def _slice(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    bounds = zip(
        hlo.dims(op, "start_indices"),
        hlo.dims(op, "limit_indices"),
        hlo.dims(op, "strides"),
        strict=True,
    )
    return operands[0][tuple(slice(*bound) for bound in bounds)]


def _pad(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    value, filler = operands
    low, interior = hlo.dims(op, "low"), hlo.dims(op, "interior")
    if any(edge < 0 for edge in [*low, *hlo.dims(op, "high")]):
        return None
    padded = np.full(result.shape, filler, value.dtype)
    window = tuple(
        slice(lo, lo + (size - 1) * (gap + 1) + 1 if size else lo, gap + 1)
        for lo, size, gap in zip(low, value.shape, interior, strict=True)
    )
    padded[window] = value
    return padded


def _iota(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    dimension = hlo.integer(op, "dimension")
    shape = [1] * result.rank
    shape[dimension] = result.shape[dimension]
    if result.is_pred or (result.is_float and shape[dimension] > _SINGLE_INTEGERS):
        return None
    steps = np.arange(shape[dimension]).astype(ELEMENT_TYPES[result.element].dtype)
    return np.broadcast_to(steps.reshape(shape), result.shape)


def _concatenate(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return np.concatenate(operands, hlo.integer(op, "dimension"))


def _reshape(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return operands[0].reshape(result.shape)


def _transpose(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return np.transpose(operands[0], hlo.dims(op, "permutation"))


def _reverse(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
    return np.flip(operands[0], tuple(hlo.dims(op, "dimensions")))


def _numeric(function: Callable[..., Array], boolean: Callable[..., Array] | None) -> Evaluator:
    """``function``, or ``boolean`` for predicates."""

    def run(op: ir.Operation, result: Tensor, operands: list[Array]) -> Array | None:
        if result.is_pred:
            return None if boolean is None else boolean(*operands)
        return function(*operands)

    return run


#: Op name to its evaluator.
EVALUATORS: dict[str, Evaluator] = {
    "abs": _numeric(np.abs, None),
    "add": _numeric(np.add, np.logical_or),
    "and": _direct(np.bitwise_and),
    "broadcast_in_dim": _broadcast,
    "ceil": _whole(np.ceil),
    "clamp": _clamp,
    "compare": _compare,
    "concatenate": _concatenate,
    "convert": _convert,
    "divide": _divide,
    "floor": _whole(np.floor),
    "iota": _iota,
    "is_finite": _direct(np.isfinite),
    "maximum": _minmax(np.maximum),
    "minimum": _minmax(np.minimum),
    "multiply": _numeric(np.multiply, np.logical_and),
    "negate": _direct(np.negative),
    "not": _direct(np.invert),
    "or": _direct(np.bitwise_or),
    "pad": _pad,
    "popcnt": _popcnt,
    "power": _power,
    "remainder": _remainder,
    "reshape": _reshape,
    "reverse": _reverse,
    "round_nearest_even": _round_even,
    "select": _direct(np.where),
    "shift_left": _shift(np.left_shift),
    "shift_right_arithmetic": _shift(np.right_shift, arithmetic=True),
    "shift_right_logical": _shift(np.right_shift),
    "sign": _sign,
    "slice": _slice,
    "sqrt": _sqrt,
    "subtract": _numeric(np.subtract, None),
    "transpose": _transpose,
    "xor": _direct(np.bitwise_xor),
}
