# SPDX-License-Identifier: Apache-2.0
"""Verification of operations that refer to outlined computations."""

from __future__ import annotations

from gristmill.dialects.types import Tensor, converts_exactly
from gristmill.dialects.verify_linear import check_window, window_shape
from gristmill.dialects.verify_rules import (
    PRED,
    OpView,
    Rule,
    check,
    check_dimensions,
    check_element,
    check_shape,
    check_signature,
    check_type,
    scalar,
)


def _inputs_and_initials(view: OpView) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """N inputs of one shape, N scalars, captures; N is the number of results."""
    count = len(view.results)
    check(
        count > 0 and len(view.operands) >= 2 * count,
        f"{count} results need {count} inputs and {count} initial values, "
        f"got {len(view.operands)} operands",
    )
    inputs, initials = view.operands[:count], view.operands[count : 2 * count]
    for index, (operand, initial, result) in enumerate(
        zip(inputs, initials, view.results, strict=True)
    ):
        check_shape(f"input {index}", operand, inputs[0].shape)
        check_type(f"initial value {index}", initial, scalar(result))
        check(
            converts_exactly(operand.element, result.element) or operand.is_complex,
            f"input {index} ({operand}) does not convert to the result's {result.element}",
        )
    return inputs, initials, view.operands[2 * count :]


def _reduce(view: OpView) -> None:
    inputs, initials, captures = _inputs_and_initials(view)
    dimensions = view.dims("dimensions")
    check_dimensions("dimensions", dimensions, inputs[0].rank)
    shape = [size for d, size in enumerate(inputs[0].shape) if d not in dimensions]
    for index, result in enumerate(view.results):
        check_shape(f"result {index}", result, shape)
    check_signature(view.function("to_apply"), [*initials, *initials, *captures], initials)


def _reduce_window(view: OpView) -> None:
    inputs, initials, captures = _inputs_and_initials(view)
    names = {
        "window_dimensions": 1,
        "window_strides": 1,
        "padding_low": -(1 << 62),
        "padding_high": -(1 << 62),
        "base_dilations": 1,
        "window_dilations": 1,
    }
    window, strides, low, high, base, dilation = check_window(view, inputs[0].rank, names)
    shape = window_shape(list(inputs[0].shape), window, strides, low, high, base, dilation)
    for index, result in enumerate(view.results):
        check_shape(f"result {index}", result, shape)
    check_signature(view.function("to_apply"), [*initials, *initials, *captures], initials)


def _select_and_scatter(view: OpView) -> None:
    operand, source, initial = view.operands
    names = {"window_dimensions": 1, "window_strides": 1, "padding_low": 0, "padding_high": 0}
    window, strides, low, high = check_window(view, operand.rank, names)
    ones = [1] * operand.rank
    shape = window_shape(list(operand.shape), window, strides, low, high, ones, ones)
    check_type("operand 1", source, operand.with_shape(shape))
    check_type("operand 2", initial, scalar(operand))
    check_type("result", view.result, operand)
    check_signature(view.function("select"), [initial, initial], [PRED])
    check_signature(view.function("scatter"), [initial, initial], [initial])


def _map(view: OpView) -> None:
    count = view.integer("num_inputs")
    check(
        1 <= count <= len(view.operands),
        f"'num_inputs' must lie in [1, {len(view.operands)}], got {count}",
    )
    inputs, captures = view.operands[:count], view.operands[count:]
    for index, operand in enumerate(inputs):
        check_shape(f"input {index}", operand, view.result.shape)
    parameters = [*(scalar(kind) for kind in inputs), *captures]
    check_signature(view.function("to_apply"), parameters, [scalar(view.result)])


def _sort(view: OpView) -> None:
    count = len(view.results)
    check(
        0 < count <= len(view.operands),
        f"{count} results need {count} inputs, got {len(view.operands)} operands",
    )
    inputs, captures = view.operands[:count], view.operands[count:]
    for index, (operand, result) in enumerate(zip(inputs, view.results, strict=True)):
        check_shape(f"input {index}", operand, inputs[0].shape)
        check_type(f"result {index}", result, operand)
    if inputs[0].rank:
        check_dimensions("dimension", [view.integer("dimension")], inputs[0].rank)
    pairs = [scalar(kind) for kind in inputs for _ in range(2)]
    check_signature(view.function("comparator"), [*pairs, *captures], [PRED])


def _while(view: OpView) -> None:
    check(view.operands == view.results, "results must have the operands' types")
    check_signature(view.function("cond"), view.operands, [PRED])
    check_signature(view.function("body"), view.operands, view.results)


def _if(view: OpView) -> None:
    check_type("operand 0", view.operands[0], PRED)
    branches = view.functions("branches")
    check(len(branches) == 2, f"'branches' must name 2 functions, got {len(branches)}")
    for branch in branches:
        check_signature(branch, view.operands[1:], view.results)


def _case(view: OpView) -> None:
    check_element("operand 0", view.operands[0], "i32")
    check(view.operands[0].rank == 0, f"operand 0 must be a scalar, got {view.operands[0]}")
    branches = view.functions("branches")
    check(len(branches) > 0, "'branches' must name at least one function")
    for branch in branches:
        check_signature(branch, view.operands[1:], view.results)


def _fusion(view: OpView) -> None:
    check_signature(view.function("calls"), view.operands, view.results)
    check(view.string("kind") != "", "'kind' must name an emitter kind")


#: Rules of these operations.
RULES: dict[str, Rule] = {
    "case": _case,
    "fusion": _fusion,
    "if": _if,
    "map": _map,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
    "sort": _sort,
    "while": _while,
}
