# SPDX-License-Identifier: Apache-2.0
"""The argument lists of LAPACK's routines, as LAPACK's own documentation gives them.

Operands and results of a ``lapack`` operation are column-major matrices (so their last two dimensions are columns and
rows), vectors and scalars, each with the batch's dimensions in front. :data:`ROUTINES` maps a routine's name without
its type letter to the function that lists its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.runtime.types import ArrayType, ElementType, element_type


@dataclass(frozen=True)
class Number:
    """An integer."""

    value: int


@dataclass(frozen=True)
class Letter:
    """A character."""

    value: str


@dataclass(frozen=True)
class Null:
    """No address."""


@dataclass(frozen=True)
class Given:
    """An operand, only read."""

    operand: int


@dataclass(frozen=True)
class Copied:
    """A copy of an operand, which the routine overwrites."""

    operand: int


@dataclass(frozen=True)
class Made:
    """A result."""

    result: int


@dataclass(frozen=True)
class Work:
    """Workspace of ``count`` elements; ``None`` when the routine is asked."""

    name: str
    element: ElementType
    count: int | None = None


@dataclass(frozen=True)
class Size:
    """The number of elements of a workspace."""

    of: str


Argument = Number | Letter | Null | Given | Copied | Made | Work | Size

_I32 = element_type("i32")


@dataclass
class Problem:
    """What a routine is called for.

    Attributes:
        operands, results: array types.
        options: the routine's options, by name.
        overwritten: (operand, result) pairs: the routine turns one into the other.
    """

    operands: list[ArrayType]
    results: list[ArrayType]
    options: dict[str, str]
    overwritten: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def element(self) -> ElementType:
        """The element type of the first operand."""
        return self.operands[0].element

    @property
    def real(self) -> ElementType:
        """The type of magnitudes."""
        return element_type(self.element.name.removeprefix("complex<").rstrip(">"))

    @property
    def is_complex(self) -> bool:
        """Whether the routine is one for complex numbers."""
        return self.element.kind == "complex"

    @property
    def batch(self) -> int:
        """Number of matrices."""
        return math.prod(self.operands[0].shape[: -self.rank])

    @property
    def rank(self) -> int:
        """Dimensions of the first operand without the batch's."""
        return int(self.options.get("rank", "2"))

    @property
    def order(self) -> int:
        """The largest extent of the first operand."""
        return max(self.operands[0].shape[-self.rank :], default=1)

    def each(self, kind: ArrayType) -> int:
        """Bytes of one matrix's part of an array."""
        return kind.nbytes // self.batch if self.batch else 0

    def extents(self, operand: int = 0) -> tuple[int, int]:
        """Rows and columns of an operand."""
        columns, rows = self.operands[operand].shape[-2:]
        return rows, columns

    def overwrite(self, operand: int, result: int) -> Made:
        """An argument that holds an operand before the call and a result after it."""
        self.overwritten.append((operand, result))
        return Made(result)

    def letter(self, option: str) -> Letter:
        """An option that is a letter."""
        return Letter(self.options[option])

    def work(self) -> tuple[Work, Size]:
        """The workspace that the routine is asked for, and its size."""
        return Work("work", self.element), Size("work")


def _lead(rows: int) -> Number:
    """A leading dimension."""
    return Number(max(1, rows))


def _unused_info() -> Work:
    return Work("info", _I32, 1)


def _geqrf(p: Problem) -> list[Argument]:
    m, n = p.extents()
    return [Number(m), Number(n), p.overwrite(0, 0), _lead(m), Made(1), *p.work(), _unused_info()]


def _geqp3(p: Problem) -> list[Argument]:
    m, n = p.extents()
    head = [Number(m), Number(n), p.overwrite(0, 0), _lead(m), p.overwrite(1, 1), Made(2)]
    real = [Work("rwork", p.real, 2 * n)] if p.is_complex else []
    return [*head, *p.work(), *real, _unused_info()]


def _orgqr(p: Problem) -> list[Argument]:
    m, n = p.extents()
    k = p.operands[1].shape[-1]
    head = [Number(m), Number(n), Number(k), p.overwrite(0, 0), _lead(m), Given(1)]
    return [*head, *p.work(), _unused_info()]


def _ormqr(p: Problem) -> list[Argument]:
    m, n = p.extents(2)
    k = p.operands[1].shape[-1]
    rows = p.extents(0)[0]
    head = [p.letter("side"), p.letter("trans"), Number(m), Number(n), Number(k)]
    # The routine overwrites the reflectors and restores them.
    head += [Copied(0), _lead(rows), Given(1), p.overwrite(2, 0), _lead(m)]
    return [*head, *p.work(), _unused_info()]


def _gesdd(p: Problem) -> list[Argument]:
    m, n = p.extents()
    head, small, large = _svd(p, m, n), min(m, n), max(m, n)
    real = max(
        7 * small, 5 * small * small + 5 * small, 2 * large * small + 2 * small * small + small
    )
    rwork = [Work("rwork", p.real, real)] if p.is_complex else []
    iwork = Work("iwork", _I32, 8 * small)
    return [p.letter("mode"), *head, *p.work(), *rwork, iwork, Made(4)]


def _gesvd(p: Problem) -> list[Argument]:
    m, n = p.extents()
    rwork = [Work("rwork", p.real, 5 * min(m, n))] if p.is_complex else []
    mode = p.letter("mode")
    return [mode, mode, *_svd(p, m, n), *p.work(), *rwork, Made(4)]


def _svd(p: Problem, m: int, n: int) -> list[Argument]:
    left, right = p.results[2].shape[-1], p.results[3].shape[-1]
    head = [Number(m), Number(n), p.overwrite(0, 0), _lead(m), Made(1)]
    return [*head, Made(2), _lead(left), Made(3), _lead(right)]


def _syevd(p: Problem) -> list[Argument]:
    n, _ = p.extents()
    head = [p.letter("mode"), p.letter("uplo"), Number(n), p.overwrite(0, 0), _lead(n), Made(1)]
    rwork = [Work("rwork", p.real), Size("rwork")] if p.is_complex else []
    return [*head, *p.work(), *rwork, Work("iwork", _I32), Size("iwork"), Made(2)]


def _geev(p: Problem) -> list[Argument]:
    n, _ = p.extents()
    values = [Made(k) for k in range(1 if p.is_complex else 2)]
    left = len(values)
    head = [
        p.letter("left"),
        p.letter("right"),
        Number(n),
        p.overwrite(0, left + 3),
        _lead(n),
        *values,
    ]
    head += [Made(left), _lead(n), Made(left + 1), _lead(n)]
    rwork = [Work("rwork", p.real, 2 * n)] if p.is_complex else []
    return [*head, *p.work(), *rwork, Made(left + 2)]


def _gees(p: Problem) -> list[Argument]:
    n, _ = p.extents()
    values = [Made(k) for k in range(2, 3 if p.is_complex else 4)]
    selected = 2 + len(values)
    head = [
        p.letter("mode"),
        Letter("N"),
        Null(),
        Number(n),
        p.overwrite(0, 0),
        _lead(n),
        Made(selected),
    ]
    rwork = [Work("rwork", p.real, n)] if p.is_complex else []
    bwork = Work("bwork", _I32, n)
    return [*head, *values, Made(1), _lead(n), *p.work(), *rwork, bwork, Made(selected + 1)]


def _gehrd(p: Problem) -> list[Argument]:
    n, _ = p.extents()
    low, high = int(p.options["low"]), int(p.options["high"])
    head = [Number(n), Number(low), Number(high), p.overwrite(0, 0), _lead(n), Made(1)]
    return [*head, *p.work(), Made(2)]


def _sytrd(p: Problem) -> list[Argument]:
    n, _ = p.extents()
    head = [p.letter("uplo"), Number(n), p.overwrite(0, 0), _lead(n), Made(1), Made(2), Made(3)]
    return [*head, *p.work(), Made(4)]


def _getrf(p: Problem) -> list[Argument]:
    m, n = p.extents()
    return [Number(m), Number(n), p.overwrite(0, 0), _lead(m), Made(1), Made(2)]


def _gtsv(p: Problem) -> list[Argument]:
    n, columns = p.extents(3)
    bands = [p.overwrite(k, k) for k in range(3)]
    return [Number(n), Number(columns), *bands, p.overwrite(3, 3), _lead(n), Made(4)]


#: Routine without its type letter to its argument list.
ROUTINES: dict[str, Callable[[Problem], list[Argument]]] = {
    "gees": _gees,
    "geev": _geev,
    "gehrd": _gehrd,
    "geqp3": _geqp3,
    "geqrf": _geqrf,
    "gesdd": _gesdd,
    "gesvd": _gesvd,
    "getrf": _getrf,
    "gtsv": _gtsv,
    "heevd": _syevd,
    "hetrd": _sytrd,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "sytrd": _sytrd,
    "ungqr": _orgqr,
    "unmqr": _ormqr,
}
