# SPDX-License-Identifier: Apache-2.0
"""Convolutions on a GPU: every form of :mod:`convolution_support` on the simulator, and in PTX."""

from __future__ import annotations

import numpy as np
import pytest
from convolution_support import CASES, DTYPES, NCHW, SAME, Case, module
from gpu_check import assert_ptx
from gpu_support import GpuProgram, compile_for_gpu
from interpreter import evaluate

RNG = np.random.default_rng(8)


def check(case: Case, element: str, result: str | None = None, order: int = 0) -> GpuProgram:
    """Small whole numbers: every sum is exact, in whatever order."""
    text = module(case, element, result or element)
    x, w = (RNG.integers(-2, 3, s).astype(DTYPES[element]) for s in (case.lhs, case.rhs))
    program = compile_for_gpu(text)
    (got,) = program.run(x, w, order=order)
    np.testing.assert_array_equal(got, evaluate(text, x, w)[0])
    return program


@pytest.mark.parametrize("name", CASES)
def test_forms(name: str) -> None:
    check(CASES[name], "f32", order=6)


@pytest.mark.parametrize("name", ["same", "nchw", "groups", "transposed", "batch_groups"])
def test_tensor_cores(name: str) -> None:
    program = check(CASES[name], "f16", order=31)
    assert "nvgpu.mma.sync" in str(program.module)


@pytest.mark.parametrize("element", ["f64", "i32", "i8"])
def test_types(element: str) -> None:
    check(CASES["groups"], element, order=1)


def test_wider_result() -> None:
    program = check(CASES["same"], "i8", "i32")
    assert "nvgpu.mma.sync" in str(program.module)
    check(CASES["valid"], "f16", "f32")


WIDE = Case((2, 12, 12, 32), (3, 3, 32, 64), (2, 12, 12, 64), window=SAME)


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_accuracy(element: str) -> None:
    x, w = (RNG.standard_normal(s).astype(DTYPES[element]) for s in (WIDE.lhs, WIDE.rhs))
    (got,) = compile_for_gpu(module(WIDE, element, "f32")).run(x, w)
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    wanted = sum(
        padded[:, i : i + 12, j : j + 12] @ w[i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    np.testing.assert_allclose(got, wanted, atol=2e-4)


def test_pointwise_in_both_layouts() -> None:
    check(Case((2, 12, 4, 4), (24, 12, 1, 1), (2, 24, 4, 4), NCHW), "f16")
    check(Case((2, 4, 4, 16), (1, 1, 16, 24), (2, 4, 4, 24)), "f16")


def test_ptx() -> None:
    large = Case((8, 28, 28, 64), (3, 3, 64, 128), (8, 28, 28, 128), window=SAME)
    program = compile_for_gpu(module(large, "f16", "f16"))
    assert_ptx(program, r"cp\.async\.cg\.shared\.global", r"mma\.sync\.aligned\.m16n8k16")
    assert_ptx(compile_for_gpu(module(large, "f32", "f32")), r"ld\.global\.nc\.v4", r"fma\.rn\.f32")
    outer = Case((8, 64, 28, 28), (128, 64, 1, 1), (8, 128, 28, 28), NCHW)
    assert_ptx(compile_for_gpu(module(outer, "f16", "f16")), r"ldmatrix\S*\.trans", r"cp\.async")
