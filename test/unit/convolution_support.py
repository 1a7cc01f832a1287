# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every form, for the tests of the emitters."""

from __future__ import annotations

import itertools
import json
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
    # Planes of features, whose blocks are transposed: rows of several chunks, of one block, of blocks that overlap.
    "planes": Case((2, 5, 3, 150), (32, 5, 3, 3), (2, 32, 3, 150), NCHW, SAME),
    "planes_short_chunk": Case((1, 5, 3, 130), (16, 5, 3, 3), (1, 16, 3, 130), NCHW, SAME),
    "planes_groups": Case((2, 12, 7, 11), (72, 4, 3, 3), (2, 72, 7, 11), NCHW, SAME, groups=3),
    "planes_narrow": Case((1, 6, 5, 5), (80, 6, 1, 1), (1, 80, 5, 5), NCHW),
    "planes_one_dimension": Case(
        (2, 6, 40), (16, 6, 5), (2, 16, 36), "[b, f, 0]x[o, i, 0]->[b, f, 0]"
    ),
    "planes_three_dimensions": Case(
        (1, 4, 4, 5, 17),
        (32, 4, 2, 3, 3),
        (1, 32, 3, 3, 15),
        "[b, f, 0, 1, 2]x[o, i, 0, 1, 2]->[b, f, 0, 1, 2]",
    ),
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
    # Of the residues of a row one has a pixel more than the other, of several tiles and in several chunks.
    "transposed_wide": Case(
        (1, 3, 75, 4),
        (2, 2, 4, 16),
        (1, 6, 149, 16),
        window={"pad": "[[1, 1], [1, 0]]", "lhs_dilate": "[2, 2]"},
    ),
    # Kernel smaller than the dilation: residues whose windows read nothing.
    "transposed_holes": Case(
        (2, 5, 6, 4),
        (1, 2, 4, 16),
        (2, 12, 14, 16),
        window={"pad": "[[1, 2], [0, -1]]", "lhs_dilate": "[2, 3]"},
    ),
    "transposed_all_dilated": Case(
        (1, 7, 9, 4),
        (3, 4, 4, 16),
        (1, 5, 16, 16),
        window={
            "stride": "[3, 2]",
            "pad": "[[2, 2], [5, 8]]",
            "lhs_dilate": "[2, 3]",
            "rhs_dilate": "[2, 2]",
        },
    ),
    "transposed_in_place": Case(
        (1, 6, 7, 8),
        (2, 2, 8, 16),
        (1, 12, 14, 16),
        window={"pad": "[[1, 1], [1, 1]]", "lhs_dilate": "[2, 2]"},
    ),
    "transposed_few_outputs": Case(
        (1, 9, 3, 16),
        (3, 3, 16, 16),
        (1, 9, 2, 16),
        window={"pad": "[[1, 1], [0, 0]]", "lhs_dilate": "[1, 4]", "stride": "[1, 5]"},
    ),
    # As an exporter of a channels-first framework writes it.
    "transposed_reversed": Case(
        (2, 6, 5, 7),
        (6, 18, 4, 4),
        (2, 18, 10, 14),
        "[b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1]",
        {
            "pad": "[[2, 2], [2, 2]]",
            "lhs_dilate": "[2, 2]",
            "reverse": "[true, true]",
        },
    ),
    "transposed_groups": Case(
        (1, 5, 6, 12),
        (3, 3, 4, 24),
        (1, 11, 13, 24),
        window={"pad": "[[2, 2], [2, 2]]", "lhs_dilate": "[2, 2]"},
        groups=3,
    ),
    "transposed_batch_groups": Case(
        (4, 5, 6, 5),
        (3, 3, 5, 16),
        (2, 9, 12, 16),
        window={"pad": "[[1, 1], [2, 1]]", "lhs_dilate": "[2, 2]"},
        batch_groups=2,
    ),
    # Rows of the window written out where all residues have as many taps, else a loop.
    "depthwise_transposed": Case(
        (2, 5, 7, 32),
        (4, 4, 1, 32),
        (2, 10, 14, 32),
        window={"pad": "[[2, 2], [2, 2]]", "lhs_dilate": "[2, 2]"},
        groups=32,
    ),
    "depthwise_transposed_uneven": Case(
        (2, 5, 7, 21),
        (3, 3, 1, 21),
        (2, 10, 15, 21),
        window={"pad": "[[1, 2], [2, 2]]", "lhs_dilate": "[2, 2]"},
        groups=21,
    ),
    "transposed_one_dimension": Case(
        (2, 20, 6),
        (16, 6, 16),
        (2, 160, 16),
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        {"pad": "[[11, 11]]", "lhs_dilate": "[8]"},
    ),
    "transposed_three_dimensions": Case(
        (1, 3, 4, 5, 4),
        (3, 3, 3, 4, 16),
        (1, 6, 7, 10, 16),
        "[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",
        {"pad": "[[1, 2], [1, 1], [1, 2]]", "lhs_dilate": "[2, 2, 2]"},
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
    # Too few features for a vector, and channels enough: vectors of channels, added up at the end.
    "channels_in_vectors": Case((1, 9, 14, 64), (3, 3, 64, 3), (1, 9, 14, 3), window=SAME),
    "channels_in_vectors_in_place": Case((2, 9, 14, 64), (1, 1, 64, 1), (2, 9, 14, 1)),
    "channels_in_vectors_groups": Case((1, 7, 9, 128), (3, 2, 64, 4), (1, 5, 8, 4), groups=2),
    "channels_in_vectors_transposed": Case(
        (2, 64, 5, 7),
        (64, 3, 4, 4),
        (2, 3, 10, 14),
        "[b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1]",
        {
            "pad": "[[2, 2], [2, 2]]",
            "lhs_dilate": "[2, 2]",
            "reverse": "[true, true]",
        },
    ),
    "little_work": Case((1, 6, 6, 4), (3, 3, 4, 4), (1, 4, 4, 4), direct=False),
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
    ),
    "few_outputs": Case((64, 4, 4, 9), (2, 2, 9, 2), (64, 3, 3, 2)),
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


@dataclass(frozen=True)
class Window:
    """The window of a case, along one dimension."""

    stride: int
    low: int
    high: int
    base: int
    dilation: int
    reverse: bool

    @staticmethod
    def of(case: Case, dimension: int) -> Window:
        def read(name: str, default: Any) -> Any:
            return json.loads(case.window[name])[dimension] if name in case.window else default

        return Window(
            read("stride", 1),
            *read("pad", (0, 0)),
            read("lhs_dilate", 1),
            read("rhs_dilate", 1),
            read("reverse", False),
        )

    def outputs(self, extent: int, size: int) -> int:
        """Windows of ``size`` taps over ``extent`` elements, as the specification counts them."""
        padded = self.low + (extent - 1) * self.base + 1 + self.high
        span = (size - 1) * self.dilation + 1
        return (padded - span) // self.stride + 1 if padded >= span else 0


def expected(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution by its definition, tap by tap, in the operands' own arithmetic.

    A tap reads the elements whose position in the dilated, padded input it falls on, each found by its index: nothing
    is dilated or padded.
    """
    left, rest = case.numbers.split("x")
    lhs, rhs, out = (part.strip("[]").split(", ") for part in (left, *rest.split("->")))
    space = [str(d) for d in range(len(lhs) - 2)]
    x = x.transpose([lhs.index(d) for d in ("b", *space, "f")])
    w = w.transpose([rhs.index(d) for d in (*space, "i", "o")])
    result = np.zeros([case.out[out.index(d)] for d in ("b", *space, "f")], x.dtype)
    windows = [Window.of(case, d) for d in range(len(space))]
    groups, (channels, features) = case.groups * case.batch_groups, w.shape[-2:]
    features //= groups
    for tap in itertools.product(*map(range, w.shape[:-2])):
        reads, writes = [], []
        for d, (at, window) in enumerate(zip(tap, windows, strict=True)):
            position = np.arange(result.shape[d + 1]) * window.stride - window.low
            position += at * window.dilation
            inside = (position % window.base == 0) & (position >= 0)
            inside &= position < x.shape[d + 1] * window.base
            writes.append(np.flatnonzero(inside))
            reads.append(position[inside] // window.base)
        kernel = w[
            tuple(
                s - 1 - t if v.reverse else t
                for s, t, v in zip(w.shape, tap, windows, strict=False)
            )
        ]
        for group in range(groups):
            batch = np.arange(result.shape[0])
            inputs = np.arange(channels)
            if case.batch_groups > 1:
                batch = batch + group * result.shape[0]
            else:
                inputs = inputs + group * channels
            outputs = np.arange(features) + group * features
            part = x[np.ix_(batch, *reads, inputs)] @ kernel[:, outputs]
            result[np.ix_(np.arange(result.shape[0]), *writes, outputs)] += part
    return result.transpose([("b", *space, "f").index(d) for d in out])
