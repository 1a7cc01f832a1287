# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every form, for the tests of the emitters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "i32": np.int32,
    "i8": np.int8,
}


@dataclass(frozen=True)
class Case:
    """A convolution; shapes as the operands are laid out."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]
    numbers: str = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    window: dict[str, str] = field(default_factory=dict[str, str])
    groups: int = 1
    batch_groups: int = 1
    direct: bool = True


NCHW = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
SAME = {"pad": "[[1, 1], [1, 1]]"}
CASES = {
    "valid": Case((2, 9, 10, 5), (3, 3, 5, 16), (2, 7, 8, 16)),
    "same": Case((1, 7, 13, 8), (3, 3, 8, 32), (1, 7, 13, 32), window=SAME),
    "channels_left_over": Case((1, 4, 9, 13), (3, 3, 13, 16), (1, 4, 9, 16), window=SAME),
    "features_left_over": Case((1, 6, 11, 4), (3, 3, 4, 21), (1, 6, 11, 21), window=SAME),
    "many_features": Case((1, 5, 5, 6), (1, 1, 6, 80), (1, 5, 5, 80)),
    "wide": Case((1, 3, 150, 4), (1, 3, 4, 16), (1, 3, 148, 16)),
    "nchw": Case((2, 5, 9, 8), (12, 5, 3, 2), (2, 12, 7, 7), NCHW),
    "strides": Case((1, 11, 13, 4), (3, 3, 4, 16), (1, 5, 6, 16), window={"stride": "[2, 2]"}),
    "window_dilation": Case(
        (1, 11, 13, 4), (3, 2, 4, 16), (1, 7, 10, 16), window={"rhs_dilate": "[2, 3]"}
    ),
    "transposed": Case(
        (1, 5, 6, 4),
        (3, 3, 4, 16),
        (1, 9, 12, 16),
        window={"pad": "[[1, 1], [2, 1]]", "lhs_dilate": "[2, 2]"},
    ),
    "negative_padding": Case(
        (1, 9, 9, 4), (3, 3, 4, 16), (1, 6, 5, 16), window={"pad": "[[-1, 0], [0, -2]]"}
    ),
    "reversed": Case(
        (1, 7, 8, 4), (3, 2, 4, 16), (1, 5, 7, 16), window={"reverse": "[true, true]"}
    ),
    "groups": Case((1, 7, 9, 12), (3, 3, 4, 24), (1, 5, 7, 24), groups=3),
    "depthwise": Case((2, 8, 9, 32), (3, 3, 1, 32), (2, 8, 9, 32), window=SAME, groups=32),
    "depthwise_clipped": Case(
        (1, 9, 12, 16),
        (3, 4, 1, 16),
        (1, 5, 7, 16),
        window={"pad": "[[2, 2], [3, 1]]", "stride": "[2, 2]", "rhs_dilate": "[2, 1]"},
        groups=16,
    ),
    "depthwise_narrow": Case(
        (1, 12, 2, 16), (3, 5, 1, 16), (1, 12, 2, 16), window={"pad": "[[1, 1], [2, 2]]"}, groups=16
    ),
    "depthwise_cropped": Case(
        (1, 9, 9, 16), (3, 3, 1, 16), (1, 6, 5, 16), window={"pad": "[[-1, 0], [0, -2]]"}, groups=16
    ),
    # Several blocks of features: all in one task, in parts of which the last is smaller, one at a time.
    "depthwise_blocks": Case(
        (2, 16, 9, 256), (3, 3, 1, 256), (2, 16, 9, 256), window=SAME, groups=256
    ),
    "depthwise_parts": Case(
        (1, 3, 5, 704), (3, 3, 1, 704), (1, 3, 5, 704), window=SAME, groups=704
    ),
    "depthwise_heavy": Case(
        (1, 9, 7, 512),
        (7, 7, 1, 512),
        (1, 9, 7, 512),
        window={"pad": "[[3, 3], [3, 3]]"},
        groups=512,
    ),
    "depthwise_blocks_copied": Case((2, 8, 9, 141), (3, 3, 1, 141), (2, 6, 7, 141), groups=141),
    "depthwise_left_over": Case((1, 9, 9, 21), (3, 3, 1, 21), (1, 7, 7, 21), groups=21),
    "multiplier": Case((1, 9, 9, 6), (3, 3, 1, 24), (1, 7, 7, 24), groups=6),
    "batch_groups": Case((4, 7, 8, 5), (3, 3, 5, 16), (2, 5, 6, 16), batch_groups=2),
    "one_dimension": Case((3, 20, 6), (4, 6, 16), (3, 17, 16), "[b, 0, f]x[0, i, o]->[b, 0, f]"),
    "three_dimensions": Case(
        (1, 5, 6, 7, 4),
        (2, 3, 2, 4, 16),
        (1, 4, 4, 6, 16),
        "[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",
    ),
    "no_dimension": Case((40, 30), (30, 16), (40, 16), "[b, f]x[i, o]->[b, f]"),
    # Vectors along a row: of few features, or where rows lie side by side.
    "few_features": Case((1, 30, 30, 4), (3, 3, 4, 2), (1, 28, 28, 2)),
    "one_feature": Case((2, 3, 9, 150), (1, 3, 3, 3), (2, 1, 9, 150), NCHW, SAME),
    "one_channel": Case(
        (1, 12, 37, 1), (5, 5, 1, 1), (1, 12, 37, 1), window={"pad": "[[2, 2], [1, 3]]"}
    ),
    "short_rows": Case((2, 4, 6, 5), (2, 4, 3, 3), (2, 2, 6, 5), NCHW, SAME),
    "long_rows": Case(
        (1, 1, 9100),
        (3, 1, 20),
        (1, 3, 9100),
        "[b, f, 0]x[o, i, 0]->[b, f, 0]",
        {"pad": "[[7, 12]]"},
    ),
    "long_window": Case(
        (1, 1, 90), (1, 1, 81), (1, 1, 170), "[b, f, 0]x[o, i, 0]->[b, f, 0]", {"pad": "[[80, 80]]"}
    ),
    "rows_dilated": Case(
        (1, 2, 20, 60),
        (2, 2, 3, 3),
        (1, 2, 18, 54),
        NCHW,
        {"pad": "[[1, 1], [-1, 1]]", "rhs_dilate": "[2, 3]", "reverse": "[false, true]"},
    ),
    "rows_cropped": Case(
        (1, 2, 9, 40), (2, 2, 3, 3), (1, 2, 6, 35), NCHW, {"pad": "[[-1, 0], [-3, 0]]"}
    ),
    "rows_strided": Case(
        (2, 3, 15, 70),
        (1, 3, 3, 5),
        (2, 1, 8, 23),
        NCHW,
        {"pad": "[[1, 1], [2, 1]]", "stride": "[2, 3]"},
    ),
    "rows_strided_and_dilated": Case(
        (1, 2, 15, 70),
        (3, 2, 3, 4),
        (1, 3, 13, 34),
        NCHW,
        {"pad": "[[0, 0], [3, 4]]", "stride": "[1, 2]", "rhs_dilate": "[1, 3]"},
    ),
    "rows_depthwise": Case((2, 6, 10, 21), (6, 1, 3, 3), (2, 6, 10, 21), NCHW, SAME, groups=6),
    "rows_grouped": Case((1, 6, 10, 21), (9, 2, 3, 3), (1, 9, 10, 21), NCHW, SAME, groups=3),
    "rows_batch_groups": Case((6, 3, 8, 20), (4, 3, 3, 3), (3, 4, 6, 18), NCHW, batch_groups=2),
    "rows_many_features": Case((1, 1, 12, 40), (13, 1, 4, 3), (1, 13, 11, 40), NCHW, SAME),
    "rows_first": Case(
        (1, 2, 90, 1), (2, 2, 5, 3), (1, 2, 90, 1), NCHW, {"pad": "[[2, 2], [1, 1]]"}
    ),
    "rows_of_volume": Case(
        (1, 7, 8, 20, 1),
        (3, 2, 3, 1, 1),
        (1, 5, 9, 20, 1),
        "[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",
        {"pad": "[[0, 0], [1, 1], [1, 1]]"},
    ),
    "few_features_transposed": Case(
        (1, 12, 12, 4),
        (3, 3, 4, 2),
        (1, 25, 25, 2),
        window={"pad": "[[2, 2], [2, 2]]", "lhs_dilate": "[2, 2]"},
        direct=False,
    ),
    "few_outputs": Case((64, 4, 4, 9), (2, 2, 9, 2), (64, 3, 3, 2), direct=False),
}


def kind(shape: tuple[int, ...], element: str) -> str:
    return "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"


def module(case: Case, element: str, result: str) -> str:
    lhs, rhs, out = kind(case.lhs, element), kind(case.rhs, element), kind(case.out, result)
    window = ", ".join(f"{k} = {v}" for k, v in case.window.items())
    counts = (
        f"batch_group_count = {case.batch_groups} : i64, feature_group_count = {case.groups} : i64"
    )
    return f"""func.func @main(%x: {lhs}, %w: {rhs}) -> {out} {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = {case.numbers}, window = {{{window}}}
    {{{counts}}} : ({lhs}, {rhs}) -> {out}
  return %0 : {out}
}}"""
