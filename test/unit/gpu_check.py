# SPDX-License-Identifier: Apache-2.0
"""What the tests of the GPU emitters share: run on the simulator in several orders of threads, read the PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from gpu_support import GpuProgram, compile_for_gpu
from interpreter import evaluate

from gristmill.compiler.codegen.ptxas import assemble, find_ptxas

Array = np.ndarray[Any, Any]

#: Permutations of warps and lanes.
ORDERS = (0, 1, 6, 31)


def run_in_orders(
    text: str,
    inputs: Sequence[Array],
    expected: Sequence[Array] | None = None,
    *,
    tolerance: float = 0.0,
    chip: str = "sm_80",
) -> GpuProgram:
    """Compare the program's results with ``expected`` in every order of threads.

    ``expected`` defaults to what the StableHLO interpreter computes. ``tolerance`` is relative to the largest value.
    """
    program = compile_for_gpu(text, chip)
    wanted = evaluate(text, *inputs) if expected is None else expected
    for order in ORDERS:
        for result, value in zip(program.run(*inputs, order=order), wanted, strict=True):
            if tolerance:
                wide = np.complex128 if np.iscomplexobj(value) else np.float64
                got, want = np.asarray(result).astype(wide), np.asarray(value).astype(wide)
                scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
                np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)
            else:
                np.testing.assert_array_equal(result, value)
    return program


def kinds(program: GpuProgram) -> list[str]:
    """Emitter kinds of the program's kernels, in order."""
    return [spec.kind for spec in program.specs.values()]


def assert_ptx(program: GpuProgram, *patterns: str) -> None:
    """Each pattern occurs in the PTX, and nothing lies in local memory; nor is spilled, where ``ptxas`` is found."""
    ptx = program.ptx()
    for pattern in patterns:
        assert re.search(pattern, ptx), f"no {pattern} in\n{ptx}"
    assert "__local_depot" not in ptx
    if find_ptxas() is not None:
        _, kernels = assemble(ptx, program.target.cpu)
        assert kernels, "ptxas -v names no kernel"
        assert not [k for k in kernels if k.stack_bytes or k.spill_bytes], kernels
