# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every form against the StableHLO reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_support import CASES, DTYPES, SAME, Case, module
from interpreter import evaluate

import gristmill
from gristmill.compiler.compile import compile_stages, import_source

RNG = np.random.default_rng(8)


def check(case: Case, element: str, result: str | None = None) -> None:
    # Small whole numbers: every sum is exact, in whatever order.
    text = module(case, element, result or element)
    x, w = (RNG.integers(-2, 3, s).astype(DTYPES[element]) for s in (case.lhs, case.rhs))
    np.testing.assert_array_equal(gristmill.compile(text)(x, w), evaluate(text, x, w)[0])


@pytest.mark.parametrize("name", CASES)
def test_forms(name: str) -> None:
    case = CASES[name]
    check(case, "f32")
    stages = compile_stages(
        import_source(module(case, "f32", "f32")), stop_after="fused", keep_stages=True
    )
    assert ('kind = "convolution"' in str(stages.emit("fused"))) == case.direct


@pytest.mark.parametrize("element", ["f64", "f16", "i32", "i8"])
@pytest.mark.parametrize("name", ["same", "nchw", "depthwise_left_over", "groups"])
def test_types(name: str, element: str) -> None:
    check(CASES[name], element)


def test_wider_result() -> None:
    check(CASES["same"], "i8", "i32")
    check(CASES["valid"], "f16", "f32")


def test_accuracy() -> None:
    case = Case((1, 12, 12, 64), (3, 3, 64, 64), (1, 12, 12, 64), window=SAME)
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in (case.lhs, case.rhs))
    got = gristmill.compile(module(case, "f32", "f32"))(x, w)
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    wanted = sum(
        padded[:, i : i + 12, j : j + 12] @ w[i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    np.testing.assert_allclose(got, wanted, atol=2e-4)
