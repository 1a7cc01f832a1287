# SPDX-License-Identifier: Apache-2.0
"""Runs dot kernels on numpy arrays, and the numpy reference of ``dot_general``."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import to_object
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.target import Target
from gristmill.runtime.code import link
from gristmill.runtime.types import ArrayType

Array = np.ndarray[Any, Any]


def aligned(nbytes: int, fill: int = 0xA5) -> Array:
    """``nbytes`` bytes at a 64-byte boundary, filled with a pattern that no kernel may rely on."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def placed(array: Array) -> Array:
    """A 64-byte aligned copy."""
    data = aligned(array.nbytes)
    data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return data


def run_kernel(
    kernel: KernelDefinition,
    inputs: Sequence[Array],
    *,
    target: Target | None = None,
    parts: int = 3,
) -> list[Array]:
    """Compile and run every phase, its tasks split in ``parts`` ranges that run last first, each with new scratch."""
    spec = kernel.spec
    assert kernel.source.operation.verify()
    lower_to_llvm_dialect(kernel.source)
    data = to_object(kernel.source, target or host_target())
    operands = [placed(a) for a in inputs]
    outputs = [aligned(max(1, t.nbytes)) for t in spec.results]
    guard = 64
    workspace = aligned(spec.workspace_bytes + guard)
    with link([data]) as code:
        for phase in spec.phases:
            bounds = [phase.tasks * i // parts for i in range(parts + 1)]
            for begin, end in reversed(list(itertools.pairwise(bounds))):
                scratch = aligned(spec.scratch_bytes + guard)
                buffers = [*operands, *outputs, workspace, scratch]
                pointers = [ctypes.c_void_p(b.ctypes.data) for b in buffers]
                kinds = [*[ctypes.c_void_p] * len(pointers), ctypes.c_int64, ctypes.c_int64]
                function = ctypes.CFUNCTYPE(None, *kinds)(code.address(phase.function))
                function(*pointers, begin, end)
                assert (scratch[spec.scratch_bytes :] == 0xA5).all(), "wrote past its scratch"
    assert (workspace[spec.workspace_bytes :] == 0xA5).all(), "wrote past its workspace"
    return [
        o[: t.nbytes].view(t.element.dtype).reshape(t.shape)
        for o, t in zip(outputs, spec.results, strict=True)
    ]


def random_array(kind: ArrayType, rng: np.random.Generator) -> Array:
    """Values over the type's range: floats in [-0.5, 0.5), all integers."""
    if kind.element.is_float:
        return (rng.random(kind.shape) - 0.5).astype(kind.element.dtype)
    if kind.element.name == "i1":
        return rng.random(kind.shape) < 0.3
    limits = np.iinfo(kind.element.dtype)
    return rng.integers(limits.min, limits.max, kind.shape, kind.element.dtype, endpoint=True)


def reference(problem: DotProblem, lhs: Array, rhs: Array) -> Array:
    """The product by ``einsum`` in f64 (floats), wrapping 64-bit integers, or counts (predicates)."""
    wide = np.float64 if problem.result.is_float or problem.lhs.array.element.is_float else np.int64
    left, right = list(range(lhs.ndim)), [0] * rhs.ndim
    next_label = lhs.ndim
    shared = {
        **dict(zip(problem.rhs.batch_dims, problem.lhs.batch_dims, strict=True)),
        **dict(zip(problem.rhs.contract_dims, problem.lhs.contract_dims, strict=True)),
    }
    for d in range(rhs.ndim):
        if d in shared:
            right[d] = shared[d]
        else:
            right[d], next_label = next_label, next_label + 1
    out = [
        *(left[d] for d in problem.lhs.batch_dims),
        *(left[d] for d in problem.lhs.free_dims),
        *(right[d] for d in problem.rhs.free_dims),
    ]
    with np.errstate(over="ignore"):
        return np.einsum(lhs.astype(wide), left, rhs.astype(wide), right, out)


#: Largest accepted error over the largest absolute value, by result type: one rounding, plus the
#: accumulator's for the sums of a few hundred terms that tests use.
TOLERANCE = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 1e-5, "f64": 1e-13}


def assert_matches(problem: DotProblem, got: Array, wide: Array) -> None:
    """Compare an output with the wide reference: exactly for integers."""
    assert got.shape == wide.shape
    name = problem.result.name
    if not problem.result.is_float:
        expected = wide != 0 if name == "i1" else wide.astype(problem.result.dtype)
        np.testing.assert_array_equal(got, expected)
    elif got.size:
        tolerance = TOLERANCE[name] if problem.accumulate.name != "f32" or name != "f64" else 1e-5
        error = np.abs(got.astype(np.float64) - wide).max()
        assert error <= tolerance * max(1.0, np.abs(wide).max()), error
