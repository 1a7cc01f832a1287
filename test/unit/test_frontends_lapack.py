# SPDX-License-Identifier: Apache-2.0
"""LAPACK calls in exported JAX functions, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gristmill

Array = np.ndarray[Any, Any]
DTYPES = (np.float32, np.float64, np.complex64)


def matrix(*shape: int, dtype: Any) -> Array:
    generator = np.random.default_rng(7)
    array = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        array = array + 1j * generator.standard_normal(shape)
    return array.astype(dtype)


def check(function: Callable[..., Any], *arrays: Array, tolerance: float = 0.0) -> None:
    """Results as JAX's, to within ``tolerance`` (a hundred roundings when zero)."""
    with jax.enable_x64(True):
        exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*arrays)
        wanted = jax.tree.leaves(jax.jit(function)(*arrays))
    got: Any = gristmill.compile(exported)(*arrays)
    got = got if isinstance(got, list | tuple) else [got]
    bound = tolerance or 100 * np.finfo(arrays[0].dtype).eps
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 5), (1, 5, 3), (2, 3, 5)])
def test_lu(shape: tuple[int, ...], dtype: Any) -> None:
    check(lax.linalg.lu, matrix(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_inverse_determinant(dtype: Any) -> None:
    square, right = matrix(4, 4, dtype=dtype), matrix(4, 3, dtype=dtype)
    check(jnp.linalg.solve, square, right)
    check(jnp.linalg.inv, square)
    check(jnp.linalg.det, square)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype: Any) -> None:
    root = matrix(2, 4, 4, dtype=dtype)
    check(jnp.linalg.cholesky, root @ root.conj().swapaxes(1, 2) + 4 * np.eye(4, dtype=dtype))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_triangular_solve(left: bool, lower: bool, transpose: bool) -> None:
    square, right = matrix(3, 3, dtype=np.complex64), matrix(3, 3, dtype=np.complex64)

    def solve(a: Any, b: Any) -> Any:
        options = {"transpose_a": transpose, "conjugate_a": transpose}
        return lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, **options)

    check(solve, square, right, tolerance=1e-4)


def test_singular_and_indefinite_matrices() -> None:
    check(lax.linalg.lu, np.zeros((3, 3), np.float32))
    check(lax.linalg.lu, np.ones((3, 3), np.float32))
    indefinite = np.diag(np.array([1, -1, 1], np.float32))
    got = np.asarray(gristmill.jit(jnp.linalg.cholesky)(indefinite))
    assert np.isnan(got[np.tril_indices(3)]).all()
