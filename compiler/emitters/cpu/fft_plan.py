# SPDX-License-Identifier: Apache-2.0
"""How a discrete Fourier transform of one length is computed: factors, twiddle tables, Bluestein's tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.runtime.types import ElementType

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


def half_roots(length: int) -> Table:
    """``exp(-pi i k / length)`` as ``[2, length // 2]`` for ``k`` from 1: what even and odd points meet by."""
    values = roots(length // 2 + 1, 2 * length)[1:]
    return np.stack([values.real, values.imag])


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


@dataclass(frozen=True)
class Group:
    """Consecutive steps as one of a larger radix, ``whole``, whose butterflies are transforms by ``steps``."""

    whole: Stage
    steps: tuple[Stage, ...]

    def twiddles(self) -> Table:
        """As :meth:`Stage.twiddles`, as ``[blocks, radix, 2]`` for ``j`` from 0."""
        ones = np.broadcast_to([1.0, 0.0], (self.whole.blocks, 1, 2))
        return np.concatenate([ones, self.whole.twiddles()], axis=1)


def groups(length: int, factors: list[int], most: int) -> list[Group]:
    """The steps for ``length``, in groups of a radix of ``most`` where their own allow it."""
    parts: list[list[int]] = []
    for factor in factors:
        if parts and math.prod(parts[-1]) * factor <= most:
            parts[-1].append(factor)
        else:
            parts.append([factor])
    wholes = stages(length, [math.prod(part) for part in parts])
    return [Group(w, tuple(stages(w.radix, p))) for w, p in zip(wholes, parts, strict=True)]


def by_fours(factors: list[int]) -> list[int]:
    """The same product without eights: their butterflies need more than 16 vector registers."""
    exponent = sum(f.bit_length() - 1 for f in factors if f % 2 == 0)
    return [4] * (exponent // 2) + [2] * (exponent % 2) + [f for f in factors if f % 2]


def row_factors(length: int, lanes: int, *, fours: bool = False) -> list[int] | None:
    """Butterfly sizes for vectors of ``lanes`` neighbouring points of one line, in order, or ``None``.

    Every step must have a vector of butterflies, and as long as its stride is below a vector, a power of two: then
    its results are whole vectors after a transposition in registers.
    """
    factors = factorize(length)
    if factors is None:
        return None
    ascending = [*sorted(f for f in factors if f % 2 == 0), *(f for f in factors if f % 2)]
    for order in (by_fours(factors),) if fours else (ascending, by_fours(factors)):
        steps = stages(length, order)
        if all(
            s.blocks * s.stride >= lanes and (s.stride >= lanes or s.radix % 2 == 0) for s in steps
        ):
            return order
    return None


@dataclass(frozen=True)
class RowPlan:
    """A transform of single lines whose points are neighbours, by vectors along the line.

    Attributes:
        plan: the complex transform.
        packed: whether a line is real, transformed as half as many complex points.
        lanes: of a vector.
        stages: the steps; here a factor ``exp(-2 pi i k q / (radix stride))`` is applied to what a step reads.
    """

    plan: Plan
    packed: bool
    lanes: int
    stages: tuple[Stage, ...]

    @staticmethod
    def of(length: int, real: bool, most_lanes: int, *, fours: bool = False) -> RowPlan | None:
        """The plan for lines of ``length`` points, unless they are too short or their factors do not allow it.

        ``fours`` says that there are too few registers for eights.
        """
        if length == 0 or (real and length % 2):
            return None
        plan = Plan.of(length // 2 if real else length)
        for lanes in (most_lanes, most_lanes // 2):
            factors = row_factors(plan.inner, lanes, fours=fours) if lanes > 1 else None
            if factors is not None and plan.length // (2 if real else 1) >= lanes:
                return RowPlan(plan, real, lanes, tuple(stages(plan.inner, factors)))
        return None

    def twiddles(self, stage: Stage) -> Table:
        """``exp(-2 pi i k q / (radix stride))`` as ``[radix - 1, 2, q]`` for ``k`` from 1, over a vector at least."""
        size = stage.radix * stage.stride
        positions = np.arange(max(stage.stride, self.lanes)) % stage.stride
        values = roots(size, size)[np.outer(np.arange(1, stage.radix), positions)]
        return np.stack([values.real, values.imag], axis=1)


def flops(plan: Plan) -> int:
    """The customary count for one line: 5 n log2 n."""
    return 5 * plan.inner * max(1, plan.inner.bit_length())


def stage_key(plan: Plan, number: int) -> str:
    """The name of the table of a stage's twiddle factors."""
    return f"stage {number} of {plan.inner}"


def chirp_key(plan: Plan) -> str:
    """The name of the table of Bluestein's chirp."""
    return f"chirp of {plan.length}"


def filter_key(plan: Plan) -> str:
    """The name of the table of the chirp's transform."""
    return f"filter of {plan.length}"


def define_tables(tables: Tables, plan: Plan, part: ElementType) -> None:
    """Define the constant tables of a plan, in the type of a line's parts."""
    for number, stage in enumerate(plan.stages()):
        if stage.blocks > 1:
            tables.define(stage_key(plan, number), stage.twiddles().astype(part.dtype))
    if plan.is_bluestein:
        tables.define(chirp_key(plan), plan.chirp().astype(part.dtype))
        tables.define(filter_key(plan), plan.filter().astype(part.dtype))
