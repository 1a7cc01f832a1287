# SPDX-License-Identifier: Apache-2.0
"""How a discrete Fourier transform of one length is computed: factors, twiddle tables, Bluestein's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

Table = np.ndarray[Any, Any]

#: The largest prime that a butterfly is emitted for; lengths with larger ones go through Bluestein's algorithm.
MAX_PRIME = 31


def factorize(length: int) -> list[int] | None:
    """Butterfly sizes whose product is ``length``, or ``None`` if it has a prime factor above :data:`MAX_PRIME`."""
    exponent = 0
    while length % 2 == 0:
        length, exponent = length // 2, exponent + 1
    factors: list[int] = []
    if exponent == 1:
        factors.append(2)
    elif exponent % 3 == 1:  # two fours rather than an eight and a two
        factors += [8] * (exponent // 3 - 1) + [4, 4]
    else:
        factors += [8] * (exponent // 3) + [4] * (exponent % 3 // 2)
    for prime in range(3, MAX_PRIME + 1, 2):
        while length % prime == 0:
            length //= prime
            factors.append(prime)
    return factors if length == 1 else None


def roots(count: int, size: int) -> Table:
    """``exp(-2 pi i k / size)`` for ``k < count`` in double precision."""
    return np.exp(-2j * np.pi * np.arange(count) / size)


@dataclass(frozen=True)
class Stage:
    """One step of Stockham's algorithm.

    For ``p < blocks``, ``q < stride`` and ``j < radix`` it computes
    ``y[q + stride (radix p + j)] = w^(j p) sum_k x[q + stride (p + blocks k)] exp(-2 pi i j k / radix)``
    with ``w = exp(-2 pi i / (radix blocks))``.
    """

    radix: int
    blocks: int
    stride: int

    def twiddles(self) -> Table:
        """``w^(j p)`` as ``[blocks, radix - 1, 2]`` for ``j`` from 1: real and imaginary parts."""
        size = self.radix * self.blocks
        powers = np.outer(np.arange(self.blocks), np.arange(1, self.radix)) % size
        values = roots(size, size)[powers]
        return np.stack([values.real, values.imag], axis=-1)


def stages(length: int, factors: list[int]) -> list[Stage]:
    """The steps for ``length``."""
    result: list[Stage] = []
    stride = 1
    for radix in factors:
        result.append(Stage(radix, length // (stride * radix), stride))
        stride *= radix
    return result


@dataclass(frozen=True)
class Plan:
    """A transform of ``length``, computed as one of ``inner`` elements: the same, or Bluestein's power of two."""

    length: int
    inner: int

    @staticmethod
    def of(length: int) -> Plan:
        """The plan for ``length``."""
        if factorize(length) is not None:
            return Plan(length, length)
        return Plan(length, 1 << (2 * length - 2).bit_length())

    @property
    def is_bluestein(self) -> bool:
        """Whether the transform is a convolution with a chirp."""
        return self.inner != self.length

    def stages(self) -> list[Stage]:
        """The steps of the inner transform."""
        factors = factorize(self.inner)
        assert factors is not None, "the inner length has small factors"
        return stages(self.inner, factors)

    def chirp(self) -> Table:
        """``exp(-pi i k^2 / length)`` as ``[length, 2]``."""
        squares = np.arange(self.length, dtype=np.int64) ** 2 % (2 * self.length)
        values = cast("Any", np.exp(-1j * np.pi * squares / self.length))
        return np.stack([values.real, values.imag], axis=-1)

    def filter(self) -> Table:
        """The inner transform of the conjugate chirp, over ``inner``, as ``[inner, 2]``."""
        chirp = self.chirp()
        conjugate = chirp[:, 0] - 1j * chirp[:, 1]
        padded = np.zeros(self.inner, np.complex128)
        padded[: self.length] = conjugate
        padded[self.inner - self.length + 1 :] = conjugate[:0:-1]
        values = cast("Any", np.fft.fft(padded)) / self.inner
        return np.stack([values.real, values.imag], axis=-1)
