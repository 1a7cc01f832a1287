# SPDX-License-Identifier: Apache-2.0
"""Verification of linear algebra: products, convolutions, factorisations."""

from __future__ import annotations

from gristmill.dialects.types import Tensor
from gristmill.dialects.verify_rules import (
    OpView,
    Rule,
    Violation,
    check,
    check_choice,
    check_dimensions,
    check_length,
    check_shape,
    check_type,
)


def _dot_general(view: OpView) -> None:
    lhs, rhs = view.operands
    shape: list[int] = []
    free: list[int] = []
    batching: dict[str, list[int]] = {}
    contracting: dict[str, list[int]] = {}
    for side, operand in (("lhs", lhs), ("rhs", rhs)):
        batch = batching[side] = view.dims(f"{side}_batching_dimensions")
        summed = contracting[side] = view.dims(f"{side}_contracting_dimensions")
        check_dimensions(f"{side} batching and contracting", [*batch, *summed], operand.rank)
        free += [size for d, size in enumerate(operand.shape) if d not in {*batch, *summed}]
    for what, pairs in (("batching", batching), ("contracting", contracting)):
        check_length(f"rhs_{what}_dimensions", pairs["rhs"], len(pairs["lhs"]))
        for a, b in zip(pairs["lhs"], pairs["rhs"], strict=True):
            if lhs.shape[a] != rhs.shape[b]:
                raise Violation(
                    f"{what} dimensions {a} of lhs and {b} of rhs have sizes {lhs.shape[a]} and "
                    f"{rhs.shape[b]}"
                )
    shape = [lhs.shape[d] for d in batching["lhs"]] + free
    check_shape("result", view.result, shape)


def window_shape(
    sizes: list[int],
    window: list[int],
    strides: list[int],
    low: list[int],
    high: list[int],
    base_dilation: list[int],
    window_dilation: list[int],
) -> list[int]:
    """Number of window positions along every dimension."""
    shape: list[int] = []
    for d, size in enumerate(sizes):
        dilated = (size - 1) * base_dilation[d] + 1 if size else 0
        padded = low[d] + dilated + high[d]
        span = (window[d] - 1) * window_dilation[d] + 1 if window[d] else 0
        shape.append((padded - span) // strides[d] + 1 if 0 < span <= padded else 0)
    return shape


def check_window(view: OpView, rank: int, names: dict[str, int]) -> list[list[int]]:
    """Read window attributes of ``rank`` entries, each at least the given minimum."""
    read: list[list[int]] = []
    for name, least in names.items():
        values = view.dims(name)
        check_length(name, values, rank)
        check(min(values, default=least) >= least, f"{name!r} must be at least {least}: {values}")
        read.append(values)
    return read


_UNBOUNDED = -(1 << 62)


def _convolution(view: OpView) -> None:
    lhs, rhs = view.operands
    spatial = lhs.rank - 2
    check(spatial >= 0 and rhs.rank == lhs.rank, f"operands must have one rank >= 2: {lhs}, {rhs}")
    names = {
        "window_strides": 1,
        "padding_low": _UNBOUNDED,
        "padding_high": _UNBOUNDED,
        "lhs_dilation": 1,
        "rhs_dilation": 1,
    }
    strides, low, high, lhs_dilation, rhs_dilation = check_window(view, spatial, names)
    check_window(view, spatial, {"window_reversal": 0})
    batch, feature, inputs = _layout(
        view, "input_batch_dimension", "input_feature_dimension", "input"
    )
    kernel_in, kernel_out, kernel = _layout(
        view, "kernel_input_feature_dimension", "kernel_output_feature_dimension", "kernel"
    )
    out_batch, out_feature, output = _layout(
        view, "output_batch_dimension", "output_feature_dimension", "output"
    )
    groups, batch_groups = view.integer("feature_group_count"), view.integer("batch_group_count")
    check(groups >= 1 and batch_groups >= 1, "group counts must be at least 1")
    check(groups == 1 or batch_groups == 1, "only one of the group counts may exceed 1")
    check(
        lhs.shape[feature] == rhs.shape[kernel_in] * groups,
        f"input features {lhs.shape[feature]} must be kernel input features "
        f"{rhs.shape[kernel_in]} times {groups} groups",
    )
    check(
        rhs.shape[kernel_out] % groups == 0
        and rhs.shape[kernel_out] % batch_groups == 0
        and lhs.shape[batch] % batch_groups == 0,
        "group counts must divide the kernel's output features and the batch",
    )
    expected = [0] * lhs.rank
    expected[out_batch] = lhs.shape[batch] // batch_groups
    expected[out_feature] = rhs.shape[kernel_out]
    positions = window_shape(
        [lhs.shape[d] for d in inputs],
        [rhs.shape[d] for d in kernel],
        strides,
        low,
        high,
        lhs_dilation,
        rhs_dilation,
    )
    for d, size in zip(output, positions, strict=True):
        expected[d] = size
    check_shape("result", view.result, expected)


def _layout(view: OpView, first: str, second: str, side: str) -> tuple[int, int, list[int]]:
    rank = view.operands[0].rank
    spatial = view.dims(f"{side}_spatial_dimensions")
    a, b = view.integer(first), view.integer(second)
    check_length(f"{side}_spatial_dimensions", spatial, rank - 2)
    check_dimensions(f"{side} dimensions", [a, b, *spatial], rank)
    return a, b, spatial


def _check_square(what: str, kind: Tensor) -> None:
    check(
        kind.rank >= 2 and kind.shape[-1] == kind.shape[-2],
        f"{what} must be a batch of square matrices, got {kind}",
    )


def _cholesky(view: OpView) -> None:
    _check_square("operand 0", view.operands[0])
    check_type("result", view.result, view.operands[0])
    view.boolean("lower")


def _triangular_solve(view: OpView) -> None:
    a, b = view.operands
    _check_square("operand 0", a)
    check(
        b.rank == a.rank and b.shape[:-2] == a.shape[:-2],
        f"operand 1 must have the batch dimensions of {a}, got {b}",
    )
    side = -2 if view.boolean("left_side") else -1
    check(b.shape[side] == a.shape[-1], f"operand 1 does not fit the matrices {a}: {b}")
    check_choice(
        "transpose_a", view.string("transpose_a"), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
    )
    check_type("result", view.result, b)


#: Rules of these operations.
RULES: dict[str, Rule] = {
    "cholesky": _cholesky,
    "convolution": _convolution,
    "dot_general": _dot_general,
    "triangular_solve": _triangular_solve,
}
