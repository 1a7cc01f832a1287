# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms against numpy in double precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gristmill
from gristmill.compiler.emitters.cpu.fft_pass import split_length
from gristmill.compiler.emitters.cpu.fft_plan import Plan, factorize

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)
#: Powers of two, products of small primes, primes with a butterfly, primes and products without one.
LENGTHS = [1, 2, 4, 8, 16, 32, 64, 1024, 2048, 3, 6, 60, 105, 11, 29, 31 * 2, 37, 97, 1009, 2 * 41]


def sample(shape: tuple[int, ...], dtype: Any = np.complex64) -> Array:
    values = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    return (values if np.dtype(dtype).kind == "c" else values.real).astype(dtype)


def check(function: Any, reference: Any, x: Array, eps: float = 1.2e-7) -> None:
    with jax.enable_x64(True):
        got = gristmill.compile(jax.jit(function).lower(x))(x)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    wanted = reference(wide)
    assert got.shape == wanted.shape
    assert got.dtype.itemsize == wanted.dtype.itemsize // (2 if eps > 1e-10 else 1)
    # The rms error of an FFT grows with the logarithm of its length.
    scale = np.sqrt((np.abs(wanted) ** 2).mean()) or 1.0
    assert np.abs(got - wanted).max() <= 8 * eps * scale * (1 + np.log2(x.shape[-1] + 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int) -> None:
    check(jnp.fft.fft, np.fft.fft, sample((5, length)))
    check(jnp.fft.ifft, np.fft.ifft, sample((length,)))


@pytest.mark.parametrize("length", [1, 2, 7, 16, 37, 100])
def test_real(length: int) -> None:
    check(jnp.fft.rfft, np.fft.rfft, sample((3, length), np.float32))
    if length > 1:
        half = length // 2 + 1
        check(
            lambda a: jnp.fft.irfft(a, length),
            lambda a: np.fft.irfft(a, length),
            sample((20, half)),
        )


@pytest.mark.parametrize("length", [8, 30, 41])
def test_double(length: int) -> None:
    check(jnp.fft.fft, np.fft.fft, sample((9, length), np.complex128), 2.3e-16)
    check(jnp.fft.rfft, np.fft.rfft, sample((9, length), np.float64), 2.3e-16)


@pytest.mark.parametrize("shape", [(4, 6), (2, 8, 5), (3, 4, 6, 10), (2, 37, 128), (32, 64)])
def test_several_dimensions(shape: tuple[int, ...]) -> None:
    check(jnp.fft.fft2, np.fft.fft2, sample(shape))
    check(jnp.fft.ifft2, np.fft.ifft2, sample(shape))
    check(jnp.fft.rfft2, np.fft.rfft2, sample(shape, np.float32))
    size = shape[-2], shape[-1] * 2 - 2
    check(lambda a: jnp.fft.irfft2(a, size), lambda a: np.fft.irfft2(a, size), sample(shape))


def test_three_dimensions() -> None:
    axes = (1, 2, 3)
    x = sample((2, 4, 5, 6))
    check(lambda a: jnp.fft.fftn(a, axes=axes), lambda a: np.fft.fftn(a, axes=axes), x)


@pytest.mark.parametrize("shape", [(4096,), (2, 6000), (1 << 15,)])
def test_long_lines(shape: tuple[int, ...]) -> None:
    check(jnp.fft.fft, np.fft.fft, sample(shape))
    check(jnp.fft.ifft, np.fft.ifft, sample(shape))
    check(jnp.fft.rfft, np.fft.rfft, sample(shape, np.float32))


def test_other_axis() -> None:
    check(lambda a: jnp.fft.fft(a, axis=0), lambda a: np.fft.fft(a, axis=0), sample((16, 33)))


def test_signs_and_zeros() -> None:
    """An impulse has a constant transform, exactly."""
    x = np.zeros(64, np.complex64)
    x[0] = 3
    got = gristmill.compile(jax.jit(jnp.fft.fft).lower(x))(x)
    np.testing.assert_array_equal(got, np.full(64, 3, np.complex64))


def test_empty() -> None:
    x = np.zeros((0, 8), np.complex64)
    assert gristmill.compile(jax.jit(jnp.fft.fft).lower(x))(x).shape == (0, 8)


def test_plans() -> None:
    assert factorize(1024) == [8, 8, 4, 4]
    assert factorize(128) == [8, 4, 4]
    assert factorize(2) == [2]
    assert factorize(45) == [3, 3, 5]
    assert factorize(37) is None
    assert Plan.of(37).inner == 128
    assert Plan.of(62).inner == 62
    assert split_length(1024) is None
    assert split_length(1 << 16) == (256, 256)
    assert split_length(37 << 10) is None
