# SPDX-License-Identifier: Apache-2.0
"""Custom calls of LAPACK routines, as JAX exports them for CPUs, to the ``lapack`` operation.

JAX's targets are ``lapack_<routine>_ffi``; their matrices are row-major values like all others, and ``lapack`` takes
column-major ones: they are transposed on the way in and out. Cholesky factors and triangular solves have become
StableHLO before (:mod:`gristmill.compiler.frontends.lapack`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxlib.mlir import ir as source_ir
from mlir import ir

from gristmill.compiler.frontends.views import results
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor, tensor
from gristmill.errors import UnsupportedError

if TYPE_CHECKING:
    from gristmill.compiler.frontends.function import FunctionTranslator

#: Operands and results of each routine: matrices, vectors and scalars.
_SIGNATURES = {
    "gees": ("M", "MMVVSS"),
    "geev": ("M", "VVMMSM"),  # JAX's call has no last result: the operand as the routine leaves it
    "gehrd": ("M", "MVS"),
    "geqp3": ("MV", "MVV"),
    "geqrf": ("M", "MV"),
    "gesdd": ("M", "MVMMS"),
    "gesvd": ("M", "MVMMS"),
    "getrf": ("M", "MVS"),
    "gtsv": ("VVVM", "VVVMS"),
    "orgqr": ("MV", "M"),
    "ormqr": ("MVM", "M"),
    "syevd": ("M", "MVS"),
    "sytrd": ("M", "MVVVS"),
}
#: Names of the routines for complex numbers, where they differ.
_COMPLEX = {"heevd": "syevd", "hetrd": "sytrd", "ungqr": "orgqr", "unmqr": "ormqr"}
_TARGET = re.compile(rf"lapack_([sdcz])({'|'.join([*_SIGNATURES, *_COMPLEX])})_ffi")


def is_routine(target: str) -> bool:
    """Whether the target is a routine that has a ``lapack`` operation."""
    return _TARGET.fullmatch(target) is not None


def translate(scope: FunctionTranslator, op: source_ir.Operation, target: str) -> list[ir.Value]:
    """The results of a call of ``target``."""
    match = _TARGET.fullmatch(target)
    assert match is not None, "asked only for routines"
    letter, routine = match.groups()
    name = _COMPLEX.get(routine, routine)
    operands = scope.operands(op)
    wanted = [tensor(scope.importer.type(result.type)) for result in results(op)]
    options = _options(op, name, is_complex=letter in "cz")
    with scope.importer.location(op.location):
        if name == "geev":
            return _geev(letter, operands, wanted, options)
        if name == "gtsv":
            return _gtsv(letter, operands, wanted)
        return _call(letter + routine, name, operands, wanted, options)


def _attributes(op: source_ir.Operation) -> dict[str, int | bool]:
    """The call's configuration; letters are numbers."""
    if "mhlo.backend_config" not in op.attributes:
        return {}
    return {
        item.name: source_ir.BoolAttr(item.attr).value
        if isinstance(item.attr, source_ir.BoolAttr)
        else source_ir.IntegerAttr(item.attr).value
        for item in source_ir.DictAttr(op.attributes["mhlo.backend_config"])
    }


def _options(op: source_ir.Operation, routine: str, *, is_complex: bool) -> dict[str, str]:
    given = _attributes(op)
    try:
        if routine == "ormqr":
            trans = "C" if is_complex else "T"
            return {
                "side": "L" if given["left"] else "R",
                "trans": trans if given["transpose"] else "N",
            }
        if routine == "gehrd":
            return {"low": str(given["low"]), "high": str(given["high"])}
        if routine == "geev":
            return {"left": chr(given["compute_left"]), "right": chr(given["compute_right"])}
        if routine == "gees":
            if chr(given["sort"]) != "N":
                raise UnsupportedError("sorted Schur forms are not supported")
            return {"mode": chr(given["mode"])}
        names = {
            "gesdd": ("mode",),
            "gesvd": ("mode",),
            "syevd": ("mode", "uplo"),
            "sytrd": ("uplo",),
        }
        return {name: chr(given[name]) for name in names.get(routine, ())}
    except KeyError as error:
        raise UnsupportedError(f"its backend_config has no {error}") from None


def _call(
    routine: str,
    signature: str,
    operands: Sequence[ir.Value],
    wanted: Sequence[Tensor],
    options: dict[str, str],
) -> list[ir.Value]:
    """The operation, with transpositions around it; ``wanted`` are row-major result types."""
    taken, given = _SIGNATURES[signature]
    if len(wanted) != len(given):  # complex eigenvalues are one vector, not two
        given = given.replace("VV", "V", 1)
    if len(operands) != len(taken) or len(wanted) != len(given):
        raise UnsupportedError(
            f"{len(operands)} operands and {len(wanted)} results do not fit {routine}"
        )
    turned = [_turn(x) if kind == "M" else x for x, kind in zip(operands, taken, strict=True)]
    kinds = [_turned(x) if kind == "M" else x for x, kind in zip(wanted, given, strict=True)]
    made = hlo.build(
        "lapack",
        [ir.Type.parse(str(kind)) for kind in kinds],
        turned,
        routine=routine,
        options=",".join(f"{name}={value}" for name, value in options.items()),
    )
    return [
        _turn(x) if kind == "M" else x for x, kind in zip(list(made.results), given, strict=True)
    ]


def _turned(kind: Tensor) -> Tensor:
    *batch, rows, columns = kind.shape
    return kind.with_shape((*batch, columns, rows))


def _turn(value: ir.Value) -> ir.Value:
    rank = tensor(value.type).rank
    return builders.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


def _geev(
    letter: str, operands: Sequence[ir.Value], wanted: Sequence[Tensor], options: dict[str, str]
) -> list[ir.Value]:
    """Eigenvalues and eigenvectors; those of real matrices come in LAPACK's packed form."""
    *values, left, right, info = wanted
    given = tensor(operands[0].type)
    if letter in "cz":
        kinds = [*values, left, right, info, given]
        return _call(f"{letter}geev", "geev", operands, kinds, options)[:-1]
    kinds = [*values, given, given, info, given]
    real, imaginary, *packed, code, _ = _call(f"{letter}geev", "geev", operands, kinds, options)
    return [real, imaginary, *(_unpacked(x, imaginary) for x in packed), code]


def _unpacked(vectors: ir.Value, imaginary: ir.Value) -> ir.Value:
    """Complex eigenvectors, one a column. A pair ``u ± iv`` is stored as the columns ``u``, ``v``.

    The eigenvalue of positive imaginary part comes first, so each column sees by its own which one it is.
    """
    kind = tensor(vectors.type)
    *batch, rows, columns = kind.shape
    axis = kind.rank - 1
    zeros = builders.splat(0, kind)
    edge = builders.splat(0, kind.with_shape((*batch, rows, 1)))

    def part(low: int, high: int) -> ir.Value:
        limits = [*kind.shape[:-1], high]
        return builders.slice_(vectors, [*([0] * axis), low], limits)

    following = builders.concatenate([part(min(1, columns), columns), edge], axis)
    following = following if columns else vectors
    preceding = (
        builders.concatenate([edge, part(0, max(columns - 1, 0))], axis) if columns else vectors
    )
    spread = builders.broadcast_in_dim(imaginary, kind.shape, [*range(axis - 1), axis])
    first = builders.compare(spread, zeros, "GT")
    second = builders.compare(spread, zeros, "LT")
    real = builders.select(second, preceding, vectors)
    negated = builders.negate(vectors)
    parts = builders.select(first, following, builders.select(second, negated, zeros))
    return builders.complex_(real, parts)


def _gtsv(letter: str, operands: Sequence[ir.Value], wanted: Sequence[Tensor]) -> list[ir.Value]:
    """A tridiagonal solve: the first element of JAX's lower and the last of its upper diagonal mean nothing."""
    lower, diagonal, upper, right = operands
    kind = tensor(diagonal.type)
    n = kind.shape[-1]
    if n == 0:
        return [lower, diagonal, upper, right, builders.splat(0, wanted[4])]
    short = kind.with_shape((*kind.shape[:-1], n - 1))

    def part(value: ir.Value, low: int, high: int) -> ir.Value:
        return builders.slice_(value, [*([0] * (kind.rank - 1)), low], [*kind.shape[:-1], high])

    inner = [part(lower, 1, n), diagonal, part(upper, 0, n - 1), right]
    kinds = [short, wanted[1], short, *wanted[3:]]
    low, middle, high, x, info = _call(f"{letter}gtsv", "gtsv", inner, kinds, {"rank": "1"})
    low = builders.concatenate([part(lower, 0, 1), low], kind.rank - 1)
    high = builders.concatenate([high, part(upper, n - 1, n)], kind.rank - 1)
    return [low, middle, high, x, info]
