# SPDX-License-Identifier: Apache-2.0
"""Verification of elementwise operations: one shape, and element types that the operation has a meaning for."""

from __future__ import annotations

from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor
from gristmill.dialects.verify_rules import (
    OpView,
    Rule,
    Violation,
    check,
    check_choice,
    check_element,
    check_shape,
    check_type,
)

_INEXACT = "cbrt cosine exponential exponential_minus_one log log_plus_one logistic rsqrt sine sqrt tan tanh atan2"
_FLOAT = "ceil floor round_nearest_afz round_nearest_even erf erfc reduce_precision"
_INTEGER = "count_leading_zeros popcnt shift_left shift_right_logical shift_right_arithmetic"
_BITWISE = "and or xor not"
_NUMERIC = "subtract divide remainder power negate sign"
_ANY = "add multiply maximum minimum"

# Kind letters: p boolean, i integer, f float, c complex.
_ALLOWED: dict[str, str] = {
    **dict.fromkeys(_INEXACT.split(), "fc"),
    **dict.fromkeys(_FLOAT.split(), "f"),
    **dict.fromkeys(_INTEGER.split(), "i"),
    **dict.fromkeys(_BITWISE.split(), "pi"),
    **dict.fromkeys(_NUMERIC.split(), "ifc"),
    **dict.fromkeys(_ANY.split(), "pifc"),
}
_KIND_NAMES = {"p": "boolean", "i": "integer", "f": "float", "c": "complex"}
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")


def kind_letter(kind: Tensor) -> str:
    """``p``, ``i``, ``f`` or ``c``: the class of the element type."""
    if kind.is_pred:
        return "p"
    if kind.is_float:
        return "f"
    return "c" if kind.is_complex else "i"


def _check_kind(what: str, kind: Tensor, allowed: str) -> None:
    if kind_letter(kind) not in allowed:
        names = " or ".join(_KIND_NAMES[letter] for letter in allowed)
        raise Violation(f"{what} must be {names}, got {kind}")


def _same_type(view: OpView) -> None:
    result = view.results[0]
    for index, operand in enumerate(view.operands):
        if operand != result:
            raise Violation(f"operand {index} must have the result's type {result}, got {operand}")
    _check_kind("operand 0", result, _ALLOWED[view.name])


def _abs(view: OpView) -> None:
    operand, result = view.operands[0], view.result
    _check_kind("operand 0", operand, "ifc")
    expected = operand.element[len("complex<") : -1] if operand.is_complex else operand.element
    check_type("result", result, operand.with_element(expected))


def _convert(view: OpView) -> None:
    check_shape("result", view.result, view.operands[0].shape)


def _is_finite(view: OpView) -> None:
    _check_kind("operand 0", view.operands[0], "f")
    check_type("result", view.result, view.operands[0].with_element("i1"))


def _part(view: OpView) -> None:
    operand = view.operands[0]
    _check_kind("operand 0", operand, "fc")
    element = operand.element[len("complex<") : -1] if operand.is_complex else operand.element
    check_type("result", view.result, operand.with_element(element))


def _complex(view: OpView) -> None:
    lhs, rhs = view.operands
    _check_kind("operand 0", lhs, "f")
    check_type("operand 1", rhs, lhs)
    check_type("result", view.result, lhs.with_element(f"complex<{lhs.element}>"))


def _compare(view: OpView) -> None:
    lhs, rhs = view.operands
    check_type("operand 1", rhs, lhs)
    check_type("result", view.result, lhs.with_element("i1"))
    check_choice("direction", view.string("direction"), _DIRECTIONS)
    fitting = {"f": ("FLOAT", "TOTALORDER"), "c": ("FLOAT",), "p": ("UNSIGNED",)}.get(
        kind_letter(lhs), ("UNSIGNED",) if lhs.is_unsigned else ("SIGNED",)
    )
    check_choice("type", view.string("type"), fitting)


def _select(view: OpView) -> None:
    pred, on_true, on_false = view.operands
    check_element("operand 0", pred, "i1")
    check_type("operand 1", on_true, view.result)
    check_type("operand 2", on_false, view.result)
    check(
        pred.rank == 0 or pred.shape == on_true.shape,
        f"operand 0 must be a scalar or have shape {list(on_true.shape)}, got {pred}",
    )


def _clamp(view: OpView) -> None:
    low, operand, high = view.operands
    check_type("result", view.result, operand)
    for index, bound in ((0, low), (2, high)):
        check_element(f"operand {index}", bound, operand.element)
        check(
            bound.rank == 0 or bound.shape == operand.shape,
            f"operand {index} must be a scalar or have shape {list(operand.shape)}, got {bound}",
        )


def _reduce_precision(view: OpView) -> None:
    _same_type(view)
    check(view.integer("exponent_bits") >= 1, "'exponent_bits' must be at least 1")
    check(view.integer("mantissa_bits") >= 0, "'mantissa_bits' must not be negative")


_SPECIAL: dict[str, Rule] = {
    "abs": _abs,
    "clamp": _clamp,
    "compare": _compare,
    "complex": _complex,
    "convert": _convert,
    "imag": _part,
    "is_finite": _is_finite,
    "real": _part,
    "reduce_precision": _reduce_precision,
    "select": _select,
}

#: Rules of the elementwise operations.
RULES: dict[str, Rule] = {
    name: _SPECIAL.get(name, _same_type)
    for name, definition in hlo.OPS.items()
    if "elementwise" in definition.traits
}
