# SPDX-License-Identifier: Apache-2.0
"""Triangular solves and Cholesky factorisations against numpy in double precision."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gristmill

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}
TOLERANCE = {"f32": 1e-5, "f64": 1e-13, "f16": 5e-3, "bf16": 4e-2, "f8E5M2": 0.5}
TOLERANCE |= {"complex<f32>": 1e-5, "complex<f64>": 1e-13}


def sample(element: str, shape: tuple[int, ...]) -> Array:
    values = RNG.standard_normal(shape)
    if "complex" in element:
        values = values + 1j * RNG.standard_normal(shape)
    return values.astype(DTYPES[element])


def wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def kind(shape: tuple[int, ...], element: str) -> str:
    return "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"


def solve_text(
    a: tuple[int, ...],
    b: tuple[int, ...],
    element: str,
    left: bool,
    lower: bool,
    unit: bool,
    op: str,
) -> str:
    flags = f"left_side = {str(left).lower()}, lower = {str(lower).lower()}"
    flags += f", unit_diagonal = {str(unit).lower()}, transpose_a = #stablehlo<transpose {op}>"
    types = f"({kind(a, element)}, {kind(b, element)}) -> {kind(b, element)}"
    return f"""func.func @main(%a: {kind(a, element)}, %b: {kind(b, element)}) -> {kind(b, element)} {{
  %0 = "stablehlo.triangular_solve"(%a, %b) {{{flags}}} : {types}
  return %0 : {kind(b, element)}
}}"""


def check_solve(
    batch: tuple[int, ...],
    size: int,
    columns: int,
    element: str = "f32",
    left: bool = True,
    lower: bool = True,
    unit: bool = False,
    op: str = "NO_TRANSPOSE",
) -> None:
    a_shape = (*batch, size, size)
    b_shape = (*batch, size, columns) if left else (*batch, columns, size)
    a = (sample(element, a_shape) / size).astype(DTYPES[element])
    a = (a + np.eye(size) * 2).astype(DTYPES[element])
    b = sample(element, b_shape)
    text = solve_text(a_shape, b_shape, element, left, lower, unit, op)
    got = gristmill.compile(text)(a, b)
    assert got.dtype == b.dtype
    exact = np.tril(wide(a)) if lower else np.triu(wide(a))
    if unit:
        exact = exact - exact * np.eye(size) + np.eye(size)
    if op != "NO_TRANSPOSE":
        exact = exact.swapaxes(-1, -2)
    if op == "ADJOINT":
        exact = exact.conj()
    product = exact @ wide(got) if left else wide(got) @ exact
    error = np.abs(product - wide(b)).max() / max(1.0, float(np.abs(wide(b)).max()))
    assert error <= TOLERANCE[element] * 4


@pytest.mark.parametrize("op", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("element", ["f32", "complex<f32>"])
def test_solve_forms(element: str, left: bool, lower: bool, op: str) -> None:
    check_solve((2,), 7, 5, element, left, lower, False, op)


@pytest.mark.parametrize("element", list(DTYPES))
def test_solve_types(element: str) -> None:
    check_solve((), 9, 3, element, unit=True)
    check_solve((), 9, 1, element)


@pytest.mark.parametrize(
    ("batch", "size", "columns"), [((), 1, 1), ((), 130, 200), ((3, 2), 20, 33), ((), 64, 64)]
)
def test_solve_shapes(batch: tuple[int, ...], size: int, columns: int) -> None:
    check_solve(batch, size, columns)
    check_solve(batch, size, columns, left=False, lower=False)


def test_solve_reads_one_triangle() -> None:
    a = np.array([[2, np.nan], [1, 4]], np.float32)
    b = np.array([[2], [9]], np.float32)
    text = solve_text((2, 2), (2, 1), "f32", True, True, False, "NO_TRANSPOSE")
    np.testing.assert_array_equal(gristmill.compile(text)(a, b), [[1], [2]])


def test_solve_of_nothing() -> None:
    text = solve_text((0, 0), (0, 4), "f32", True, True, False, "NO_TRANSPOSE")
    empty = np.zeros((0, 4), np.float32)
    assert gristmill.compile(text)(np.zeros((0, 0), np.float32), empty).shape == (0, 4)


def cholesky_text(shape: tuple[int, ...], element: str, lower: bool) -> str:
    array = kind(shape, element)
    return f"""func.func @main(%a: {array}) -> {array} {{
  %0 = stablehlo.cholesky %a, lower = {str(lower).lower()} : {array}
  return %0 : {array}
}}"""


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("shape", "element"),
    [
        *[((2, 6, 6), element) for element in DTYPES],
        ((1, 1), "f32"),
        ((3, 70, 70), "f32"),
        ((150, 150), "f64"),
        ((70, 70), "complex<f64>"),
        ((2, 0, 0), "f32"),
    ],
)
def test_cholesky(shape: tuple[int, ...], element: str, lower: bool) -> None:
    size = shape[-1]
    root = wide(sample(element, shape)) / max(1, size) ** 0.5 + 2 * np.eye(size)
    a = (root @ root.conj().swapaxes(-1, -2)).astype(DTYPES[element])
    given = np.tril(a) if lower else np.triu(a)  # the other triangle is not read
    got = gristmill.compile(cholesky_text(shape, element, lower))(given.astype(a.dtype))
    factor = wide(got)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(factor, np.tril(factor) if lower else np.triu(factor))
    left = factor if lower else factor.conj().swapaxes(-1, -2)
    error = np.abs(left @ left.conj().swapaxes(-1, -2) - wide(a)).max(initial=0)
    assert error <= TOLERANCE[element] * max(1.0, float(np.abs(wide(a)).max(initial=0)))


def test_cholesky_of_an_indefinite_matrix_is_nan() -> None:
    a = np.array([[1, 2], [2, 1]], np.float32)
    assert np.isnan(gristmill.compile(cholesky_text((2, 2), "f32", True))(a)[1, 1])
