# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms against numpy in double precision."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gristmill
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages
from gristmill.compiler.emitters.cpu.fft_pass import split_length
from gristmill.compiler.emitters.cpu.fft_plan import (
    Plan,
    RowPlan,
    by_fours,
    factorize,
    groups,
    row_factors,
)

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)
#: Powers of two, products of small primes, primes with a butterfly, primes and products without one.
LENGTHS = [1, 2, 4, 8, 16, 32, 64, 1024, 2048, 3, 6, 60, 105, 11, 29, 31 * 2, 37, 97, 1009, 2 * 41]
#: Those with vectors along a line: whole vectors or not, odd factors last, a power of two that is all fours, a chirp.
LENGTHS += [96, 112, 128, 512, 1000, 1536, 31 * 32, 509, 4096]


def sample(shape: tuple[int, ...], dtype: Any = np.complex64) -> Array:
    values = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    return (values if np.dtype(dtype).kind == "c" else values.real).astype(dtype)


def check(function: Any, reference: Any, x: Array, eps: float = 1.2e-7, target: Any = None) -> None:
    with jax.enable_x64(True):
        got = gristmill.compile(jax.jit(function).lower(x), target=target)(x)
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
    check(jnp.fft.ifft, np.fft.ifft, sample((33, length)))
    check(jnp.fft.ifft, np.fft.ifft, sample((length,)))


@pytest.mark.parametrize("length", [1, 2, 7, 16, 37, 64, 100, 192, 256, 1000, 2 * 509, 2048])
def test_real(length: int) -> None:
    check(jnp.fft.rfft, np.fft.rfft, sample((3, length), np.float32))
    check(jnp.fft.rfft, np.fft.rfft, sample((35, length), np.float32))
    if length > 1:
        half = length // 2 + 1
        check(
            lambda a: jnp.fft.irfft(a, length),
            lambda a: np.fft.irfft(a, length),
            sample((20, half)),
        )


@pytest.mark.parametrize("lines", [2, 3, 18])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 10, 12, 36])
def test_short_lines(length: int, lines: int) -> None:
    """Lines shorter than a vector, and fewer of them."""
    check(jnp.fft.fft, np.fft.fft, sample((lines, length)))
    check(jnp.fft.ifft, np.fft.ifft, sample((lines, length), np.complex128), 2.3e-16)
    check(jnp.fft.rfft, np.fft.rfft, sample((lines, length), np.float32))
    half = sample((lines, length // 2 + 1))
    check(lambda a: jnp.fft.irfft(a, length), lambda a: np.fft.irfft(a, length), half)


@pytest.mark.parametrize("length", [8, 30, 41, 64, 96, 1000, 1024])
def test_double(length: int) -> None:
    check(jnp.fft.fft, np.fft.fft, sample((9, length), np.complex128), 2.3e-16)
    check(jnp.fft.rfft, np.fft.rfft, sample((9, length), np.float64), 2.3e-16)


@pytest.mark.parametrize("vector_bytes", [16, 32])
@pytest.mark.parametrize("length", [32, 40, 64, 256, 331, 1000])
def test_smaller_vectors(length: int, vector_bytes: int) -> None:
    target = dataclasses.replace(host_target(), vector_bytes=vector_bytes)
    check(jnp.fft.fft, np.fft.fft, sample((3, length)), target=target)
    check(jnp.fft.ifft, np.fft.ifft, sample((3, length), np.complex128), 2.3e-16, target)
    check(jnp.fft.rfft, np.fft.rfft, sample((3, length), np.float32), target=target)


@pytest.mark.parametrize("length", [64, 1000])
def test_computed_operand(length: int) -> None:
    x = sample((3, length))
    check(lambda a: jnp.fft.fft(a.conj() * 3), lambda a: np.fft.fft(a.conj() * 3), x)
    check(lambda a: jnp.fft.ifft(a[:, ::-1]), lambda a: np.fft.ifft(a[:, ::-1]), x)
    check(lambda a: jnp.fft.irfft(a + 1), lambda a: np.fft.irfft(a + 1), x)
    check(lambda a: jnp.fft.rfft(a * 2), lambda a: np.fft.rfft(a * 2), x.real.copy())


@pytest.mark.parametrize(
    ("function", "shape", "requests"),
    [
        (jnp.fft.fft, (64, 1000), True),  # shares that are not whole vectors
        (jnp.fft.rfft, (64, 1024), True),
        (jnp.fft.irfft, (64, 513), True),
        (jnp.fft.fft, (8, 256), False),  # all lines fit the second-level cache
        (jnp.fft.fft, (8, 8192), False),  # no line fits the first
        (jnp.fft.fft, (64, 509), False),  # the time goes elsewhere
    ],
)
def test_lines_from_afar(function: Any, shape: tuple[int, ...], requests: bool) -> None:
    """Steps ask for the next line and for where this one will be written."""
    target = dataclasses.replace(host_target(), l2_bytes=64 << 10, l1_bytes=16 << 10)
    x = sample(shape, np.float32 if function is jnp.fft.rfft else np.complex64)
    program = jax.jit(function).lower(x)
    kernels = compile_stages(program, target, keep_stages=True).emit("kernels")
    assert isinstance(kernels, str)
    for way in ("read", "write"):
        assert (f"], {way}, locality" in kernels) == requests
    check(function, getattr(np.fft, function.__name__), x, target=target)


def test_imaginary_ends_of_hermitian_lines_do_not_matter() -> None:
    """A real line's first and middle transforms are real; what else is there is dropped, as numpy does."""
    x = np.zeros((2, 65), np.complex64)
    x[:, 0], x[:, -1] = 3 + 5j, 2 - 7j
    check(jnp.fft.irfft, np.fft.irfft, x)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_lines_are_independent(bad: float) -> None:
    x = sample((40, 128), np.float32)
    clean = gristmill.compile(jax.jit(jnp.fft.rfft).lower(x))(x)
    x[7, 3] = bad
    got = gristmill.compile(jax.jit(jnp.fft.rfft).lower(x))(x)
    assert not np.isfinite(got[7]).any()
    np.testing.assert_array_equal(np.delete(got, 7, 0), np.delete(clean, 7, 0))


@pytest.mark.parametrize(
    "shape", [(4, 6), (2, 8, 5), (3, 4, 6, 10), (2, 37, 128), (32, 64), (5, 64, 100), (9, 512, 21)]
)
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


def test_groups() -> None:
    """Groups multiply to the length and stay below the limit where their steps do."""
    made = groups(3000, [4, 2, 3, 5, 5, 5], 40)
    assert [g.whole.radix for g in made] == [24, 25, 5]
    assert [[s.radix for s in g.steps] for g in made] == [[4, 2, 3], [5, 5], [5]]
    assert [(g.whole.blocks, g.whole.stride) for g in made] == [(125, 1), (5, 24), (1, 600)]
    twiddles = made[0].twiddles()
    assert twiddles.shape == (125, 24, 2)
    root = np.exp(-2j * np.pi * 7 * 11 / 3000)
    np.testing.assert_allclose(twiddles[7, 11], [root.real, root.imag])


def test_row_plans() -> None:
    """Fours and eights before odd factors; strides below a vector are powers of two."""
    assert row_factors(1024, 16) == [4, 4, 8, 8]
    assert row_factors(1024, 8, fours=True) == [4, 4, 4, 4, 4]
    assert by_fours([8, 8, 4, 3, 5]) == [4, 4, 4, 4, 3, 5]
    assert row_factors(96, 16) == [4, 4, 2, 3]
    assert row_factors(64, 16) == [4, 4, 4]
    assert row_factors(1000, 8) == [8, 5, 5, 5]
    assert row_factors(1000, 16) is None
    assert row_factors(32, 16) is None
    assert row_factors(625, 4) is None
    assert RowPlan.of(625, False, 16) is None
    assert RowPlan.of(1001, True, 16) is None
    plan = RowPlan.of(1000, False, 16)
    assert plan is not None
    assert plan.lanes == 8
    packed = RowPlan.of(2048, True, 8)
    assert packed is not None
    assert packed.plan.inner == 1024
