# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms on the simulator against numpy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_support import compile_for_gpu


def _program(kind: str, source: str, lengths: tuple[int, ...], result: str) -> str:
    numbers = ", ".join(map(str, lengths))
    return (
        f"func.func @main(%x: tensor<{source}>) -> tensor<{result}> {{\n"
        f"%0 = stablehlo.fft %x, type = {kind}, length = [{numbers}] : (tensor<{source}>) -> tensor<{result}>\n"
        f"return %0 : tensor<{result}> }}"
    )


def _complex(shape: tuple[int, ...], kind: type) -> np.ndarray:
    rng = np.random.default_rng(7)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference over the root of the mean square."""
    return float(np.abs(got - wanted).max() / np.sqrt((np.abs(wanted) ** 2).mean()))


# Powers of two, odd factors, a prime, primes that need Bluestein's algorithm, lines that share a block unevenly.
@pytest.mark.parametrize(
    ("lines", "length"),
    [(3, 1), (7, 8), (1, 1024), (3, 60), (2, 343), (3, 37)],
)
def test_forward_and_inverse(lines: int, length: int) -> None:
    x = _complex((lines, length), np.complex64)
    shape = f"{lines}x{length}xcomplex<f32>"
    for kind, wanted in (("FFT", np.fft.fft), ("IFFT", np.fft.ifft)):
        (got,) = compile_for_gpu(_program(kind, shape, (length,), shape)).run(x)
        assert _error(got, wanted(x.astype(np.complex128))) < 3e-6


def test_in_every_order_and_without_local_memory() -> None:
    x = _complex((5, 64), np.complex64)
    program = compile_for_gpu(_program("FFT", "5x64xcomplex<f32>", (64,), "5x64xcomplex<f32>"))
    for order in (0, 5, 31):
        (got,) = program.run(x, order=order)
        assert _error(got, np.fft.fft(x.astype(np.complex128))) < 3e-6
    ptx = program.ptx()
    assert "bar.sync" in ptx
    assert "__local_depot" not in ptx


def test_a_line_longer_than_shared_memory() -> None:
    x = _complex((1, 8192), np.complex64)
    (got,) = compile_for_gpu(
        _program("FFT", "1x8192xcomplex<f32>", (8192,), "1x8192xcomplex<f32>")
    ).run(x)
    assert _error(got, np.fft.fft(x.astype(np.complex128))) < 3e-6


def test_three_dimensions_in_double_precision() -> None:
    x = _complex((2, 6, 5, 8), np.complex128)
    shape = "2x6x5x8xcomplex<f64>"
    program = compile_for_gpu(_program("FFT", shape, (6, 5, 8), shape))
    (got,) = program.run(x)
    assert _error(got, np.fft.fftn(x, axes=(1, 2, 3))) < 1e-14
    assert [len(spec.phases) for spec in program.specs.values()] == [3]


@pytest.mark.parametrize(("rows", "length"), [(4, 16), (3, 15), (2, 37)])
def test_real_transforms(rows: int, length: int) -> None:
    x = np.random.default_rng(3).standard_normal((2, rows, length)).astype(np.float32)
    half = length // 2 + 1
    (got,) = compile_for_gpu(
        _program("RFFT", f"2x{rows}x{length}xf32", (rows, length), f"2x{rows}x{half}xcomplex<f32>")
    ).run(x)
    wanted = np.fft.rfft2(x.astype(np.float64))
    assert _error(got, wanted) < 3e-6
    (back,) = compile_for_gpu(
        _program("IRFFT", f"2x{rows}x{half}xcomplex<f32>", (rows, length), f"2x{rows}x{length}xf32")
    ).run(wanted.astype(np.complex64))
    assert _error(back, x) < 3e-6
