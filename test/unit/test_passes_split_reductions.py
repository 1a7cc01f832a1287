# SPDX-License-Identifier: Apache-2.0
"""Reductions over dimensions that do not lie side by side, split and not, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.options import DEFAULT_PIPELINE, CompileOptions

_PROGRAM = """
func.func @main(%x: tensor<{source}>) -> tensor<{result}> {{
  %i = stablehlo.constant dense<{initial}> : tensor<{element}>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.{body} across dimensions = {dimensions}
    : (tensor<{source}>, tensor<{element}>) -> tensor<{result}>
  return %0 : tensor<{result}>
}}"""

_BODIES = {
    "add": (np.add, {"f32": "0.0", "i32": "0"}),
    "maximum": (np.maximum, {"f32": "0xFF800000", "i32": "-2147483648"}),
}


@pytest.mark.parametrize("body", _BODIES)
@pytest.mark.parametrize("element", ["f32", "i32"])
@pytest.mark.parametrize(
    ("shape", "dimensions"),
    [
        ((6, 5, 16, 11), (0, 2, 3)),
        ((3, 4, 130, 2), (0, 2)),
        ((3, 2, 128, 3, 129), (0, 2, 4)),
        ((2, 16, 9, 8, 4), (1, 2, 4)),
        ((16, 3, 9, 5, 4), (0, 2, 4)),
    ],
)
def test_split(
    body: str, element: str, shape: tuple[int, ...], dimensions: tuple[int, ...]
) -> None:
    function, initial = _BODIES[body]
    kept = [size for d, size in enumerate(shape) if d not in dimensions]
    text = _PROGRAM.format(
        source="x".join([*map(str, shape), element]),
        result="x".join([*map(str, kept), element]),
        element=element,
        initial=initial[element],
        body=body,
        dimensions=list(dimensions),
    )
    # Integers, so that a sum is exact in any order.
    x = np.random.default_rng(1).integers(-99, 99, shape)
    x = x.astype(np.float32 if element == "f32" else np.int32)
    if body == "maximum" and element == "f32":
        x[0, 1] = np.nan
    want = function.reduce(x, axis=dimensions)
    whole = DEFAULT_PIPELINE.replace("split-reductions,", "")
    for pipeline in (DEFAULT_PIPELINE, whole):
        options = CompileOptions(pipeline=pipeline, cache=False)
        np.testing.assert_array_equal(gristmill.compile(text, options=options)(x), want)
