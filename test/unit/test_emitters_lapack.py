# SPDX-License-Identifier: Apache-2.0
"""LAPACK calls: factorisations of JAX functions, against JAX's CPU client and against what defines them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gristmill
from gristmill.compiler.emitters.cpu.lapack_arguments import ROUTINES
from gristmill.compiler.frontends import lapack_calls, load_text
from gristmill.errors import ToolchainError, UnsupportedError
from gristmill.runtime import lapack

Array = np.ndarray[Any, Any]


def matrix(*shape: int, dtype: Any, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    array = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        array = array + 1j * generator.standard_normal(shape)
    return array.astype(dtype)


def run(function: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Results by gristmill; they must be JAX's to within a few roundings."""
    with jax.enable_x64(True):
        jitted = jax.jit(function)
        executable: Any = gristmill.compile(jitted.lower(*arrays))
        wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(*arrays))]
    got = executable(*arrays)
    got = list(got) if isinstance(got, tuple) else [got]
    for one, other in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        bound = 50 * np.finfo(other.dtype).eps if other.dtype.kind in "fc" else 0
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound)
    return got


def assert_close(one: Array, other: Array) -> None:
    bound = 200 * np.finfo(one.dtype).eps
    np.testing.assert_allclose(one, other, rtol=bound, atol=bound)


def adjoint(array: Array) -> Array:
    return array.conj().swapaxes(-1, -2)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_orthogonal_factors_and_singular_values(dtype: Any) -> None:
    def function(tall: Any, wide: Any) -> Any:
        return (
            jnp.linalg.qr(tall),
            jnp.linalg.qr(wide, mode="complete"),
            lax.linalg.qr(tall, pivoting=True),
            jnp.linalg.svd(tall, full_matrices=False),
            jnp.linalg.svd(wide, full_matrices=True),
            jnp.linalg.svd(wide, compute_uv=False),
            lax.linalg.svd(tall, algorithm=lax.linalg.SvdAlgorithm.QR),
        )

    tall, wide = matrix(2, 3, 5, 4, dtype=dtype), matrix(3, 6, dtype=dtype)
    got = iter(run(function, tall, wide))
    q, r = next(got), next(got)
    assert_close(q @ r, tall)
    assert_close(adjoint(q) @ q, np.broadcast_to(np.eye(4, dtype=dtype), (2, 3, 4, 4)))
    q, r = next(got), next(got)
    assert_close(q @ r, wide)
    q, r, pivots = next(got), next(got), next(got)
    assert_close(q @ r, np.take_along_axis(tall, pivots[..., None, :], -1))
    u, s, v = next(got), next(got), next(got)
    assert_close((u * s[..., None, :]) @ v, tall)
    u, s, v = next(got), next(got), next(got)
    assert_close((u * s) @ v[:3], wide)
    assert_close(next(got), np.linalg.svd(wide, compute_uv=False))
    u, s, v = next(got), next(got), next(got)
    assert_close((u[..., :4] * s[..., None, :]) @ v, tall)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_eigenvalues(dtype: Any) -> None:
    def function(a: Any, h: Any) -> Any:
        return (
            jnp.linalg.eigh(h),
            jnp.linalg.eigvalsh(h, UPLO="U"),
            lax.linalg.eig(a, compute_left_eigenvectors=True),
            jnp.linalg.eigvals(a),
            lax.linalg.schur(a),
        )

    a = matrix(3, 5, 5, dtype=dtype, seed=4)
    h = a + adjoint(a)
    got = iter(run(function, a, h))
    vectors, values = next(got), next(got)
    if vectors.ndim < values.ndim:
        vectors, values = values, vectors
    assert_close(h @ vectors, vectors * values[:, None, :].astype(dtype))
    assert_close(next(got), np.linalg.eigvalsh(h))
    values, left, right = next(got), next(got), next(got)
    if np.dtype(dtype).kind == "f":
        assert (values.imag != 0).any()
        assert (values.imag == 0).any()
    assert_close(a @ right, right * values[:, None, :])
    assert_close(adjoint(left) @ a, values[:, :, None] * adjoint(left))
    assert_close(np.sort_complex(next(got)), np.sort_complex(values))
    triangular, basis = next(got), next(got)
    assert_close(basis @ triangular @ adjoint(basis), a)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_reductions_and_solves(dtype: Any) -> None:
    def function(a: Any, h: Any, low: Any, high: Any, b: Any, tall: Any) -> Any:
        low, high = low.at[..., 0].set(0), high.at[..., -1].set(0)
        reflectors, scales = jnp.linalg.qr(tall, mode="raw")
        reflectors = reflectors.swapaxes(-1, -2)
        products = [
            lax.linalg.ormqr(
                reflectors,
                scales,
                b if left else b.swapaxes(-1, -2),
                left=left,
                transpose=transpose,
            )
            for left in (True, False)
            for transpose in (True, False)
        ]
        return (
            lax.linalg.tridiagonal_solve(low, low + 4, high, b),
            lax.linalg.hessenberg(a),
            lax.linalg.tridiagonal(h),
            lax.linalg.lu(a),
            products,
        )  # fmt: skip

    a, b = matrix(2, 4, 4, dtype=dtype), matrix(2, 4, 3, dtype=dtype, seed=2)
    low, high = matrix(2, 4, dtype=dtype, seed=3), matrix(2, 4, dtype=dtype, seed=5)
    tall = matrix(2, 4, 3, dtype=dtype, seed=6)
    x, *rest = run(function, a, a + adjoint(a), low, high, b, tall)
    low[..., 0] = 0
    for k in range(2):
        banded = np.diag(low[k] + 4) + np.diag(low[k, 1:], -1) + np.diag(high[k, :-1], 1)
        assert_close(x[k], np.linalg.solve(banded, b[k]))
    q = np.stack([np.linalg.qr(t, mode="complete")[0] for t in tall])
    assert_close(rest[-4], adjoint(q) @ b)
    assert_close(rest[-1], b.swapaxes(-1, -2) @ q)


def test_many_matrices_on_several_threads() -> None:
    a = matrix(300, 20, 20, dtype=np.float32)
    executable: Any = gristmill.compile(jax.jit(jnp.linalg.qr).lower(a))
    alone = executable(a, threads=1)
    together = executable(a, threads=3)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert_close(alone[0] @ alone[1], a)


def test_matrices_without_elements_and_of_one() -> None:
    def function(empty: Any, none: Any, single: Any) -> Any:
        return (
            jnp.linalg.qr(none),
            jnp.linalg.svd(empty, full_matrices=False),
            lax.linalg.eig(single),
            lax.linalg.tridiagonal_solve(single[..., 0] * 0, single[..., 0], single[..., 0] * 0, single),
        )  # fmt: skip

    empty, none = np.zeros((3, 0), np.float32), np.zeros((0, 4, 3), np.float32)
    run(function, empty, none, np.full((2, 1, 1), 3, np.float32))


def test_operands_stay_as_they_are() -> None:
    a = matrix(4, 4, dtype=np.float64)
    before = a.copy()
    run(lambda x: (jnp.linalg.svd(x), x + 1), a)
    np.testing.assert_array_equal(a, before)


def test_every_routine_of_jaxlib_is_known() -> None:
    import jaxlib.lapack

    registered = [
        name for name, *_ in jaxlib.lapack.registrations()["cpu"] if name.startswith("lapack_")
    ]
    others = [name for name in registered if not lapack_calls.is_routine(name)]
    assert len(registered) >= 56
    assert {name[len("lapack_x") : -len("_ffi")] for name in others} == {"potrf", "trsm"}
    assert {name[len("lapack_x") : -len("_ffi")] for name in registered} - {"potrf", "trsm"} == set(
        ROUTINES
    )


CALL = """
func.func @main(%a: tensor<3x3xf32>) -> tensor<3x3xf32> {
  %0:6 = stablehlo.custom_call @lapack_sgees_ffi(%a) {CONFIG} : (tensor<3x3xf32>) -> (tensor<3x3xf32>,
    tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<i32>, tensor<i32>)
  return %0#0 : tensor<3x3xf32>
}
"""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("mhlo.backend_config = {mode = 86 : ui8, sort = 83 : ui8}, api_version = 4 : i32", "sorted Schur"),
        ("mhlo.backend_config = {sort = 78 : ui8}, api_version = 4 : i32", "has no 'mode'"),
    ],
)  # fmt: skip
def test_forms_that_are_refused(config: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        load_text(CALL.replace("CONFIG", config))


def test_missing_routines_and_a_missing_library(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="has no routine dnothing"):
        lapack.address("dnothing")
    path = tmp_path / "qr.gmill"
    a = matrix(4, 3, dtype=np.float32)
    executable: Any = gristmill.compile(jax.jit(jnp.linalg.qr).lower(a))
    executable.save(path)
    code = f"""
        import sys, numpy, gristmill
        a = numpy.arange(12, dtype="f4").reshape(4, 3)
        q, r = gristmill.load({str(path)!r})(a)
        assert numpy.allclose(q @ r, a, atol=1e-4)
        assert not [name for name in sys.modules if name.partition(".")[0] in ("mlir", "jaxlib", "jax")]
        sys.modules["scipy.linalg.cython_lapack"] = None
        from gristmill.runtime import lapack
        lapack._capsules.cache_clear(), lapack.address.cache_clear()
        try:
            gristmill.load({str(path)!r})
        except gristmill.GristmillError as error:
            assert "pip install 'scipy" in str(error), error
        else:
            raise AssertionError("loaded")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


class Library:
    """Stands for OpenBLAS: remembers what its number of threads was set to."""

    def __init__(self) -> None:
        self.counts = [4]

    def limit(self, count: int = 1) -> lapack.ThreadLimit:
        return lapack.ThreadLimit(lambda: self.counts[-1], self.counts.append, count)


def test_the_first_sets_the_limit_and_the_last_lifts_it() -> None:
    library = Library()
    limit = library.limit()
    with limit:
        assert library.counts == [4, 1]
        with limit:
            assert library.counts == [4, 1]
        assert library.counts == [4, 1]
    assert library.counts == [4, 1, 4]
    with library.limit(8):
        assert library.counts == [4, 1, 4]  # fewer than the limit as it is
    with pytest.raises(ZeroDivisionError), limit:
        raise ZeroDivisionError
    assert library.counts == [4, 1, 4, 1, 4]


def test_threads_share_the_limit() -> None:
    library = Library()
    limit = library.limit()
    wrong: list[int] = []

    def work() -> None:
        for _ in range(2000):
            with limit:
                if library.counts[-1] != 1:
                    wrong.append(library.counts[-1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert library.counts[-1] == 4


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_starts_without_a_limit() -> None:
    library = Library()
    limit = library.limit()
    with limit:
        child = os.fork()
        if not child:
            with limit:
                inside = library.counts[-1]
            os._exit(0 if (inside, library.counts[-1]) == (1, 4) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_programs_that_call_lapack_limit_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    limit = library.limit()
    monkeypatch.setattr(lapack, "thread_limit", lambda: limit)
    a = matrix(5, 4, dtype=np.float32)
    plain: Any = gristmill.compile(jax.jit(jnp.tanh).lower(a))
    plain(a)
    assert library.counts == [4]
    factors: Any = gristmill.compile(jax.jit(jnp.linalg.qr).lower(a))
    q, r = factors(a)
    assert_close(q @ r, a)
    assert library.counts == [4, 1, 4]


def test_the_limit_is_that_of_scipys_library() -> None:
    limit = lapack.thread_limit()
    assert limit is not None
    before = limit._get()
    limit._put(3)
    try:
        with limit:
            assert limit._get() == 1
        assert limit._get() == 3
    finally:
        limit._put(before)
