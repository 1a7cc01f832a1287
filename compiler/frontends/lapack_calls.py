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

#: Operands and results of each routine, an array each: its element type and its extents without the batch's.
#: Types: ``e`` the routine's, ``r`` that of magnitudes, ``i`` 32-bit integers. Extents: ``k`` is the smaller of ``m``
#: and ``n``, ``s`` one less than ``n``; others are what the first array that has them says.
_SIGNATURES = {
    "gees": ("e:nn", "e:nn e:nn W i: i:"),
    "geev": (
        "e:nn",
        "W e:nn e:nn i: e:nn",
    ),  # JAX's call has no last result: the operand as the routine leaves it
    "gehrd": ("e:nn", "e:nn e:s i:"),
    "geqp3": ("e:mn i:n", "e:mn i:n e:k"),
    "geqrf": ("e:mn", "e:mn e:k"),
    "gesdd": ("e:mn", "e:mn r:k e:mu e:vn i:"),
    "gesvd": ("e:mn", "e:mn r:k e:mu e:vn i:"),
    "getrf": ("e:mn", "e:mn i:k i:"),
    "gtsv": ("e:s e:n e:s e:nb", "e:s e:n e:s e:nb i:"),
    "orgqr": ("e:mn e:t", "e:mn"),
    "ormqr": ("e:pq e:t e:mn", "e:mn"),
    "syevd": ("e:nn", "e:nn r:n i:"),
    "sytrd": ("e:nn", "e:nn r:n r:s e:s i:"),
}
#: Eigenvalues: real and imaginary parts, or complex numbers.
_EIGENVALUES = {False: "r:n r:n", True: "e:n"}
#: Element types by a routine's first letter, and those of magnitudes.
_ELEMENTS = {
    "s": ("f32", "f32"),
    "d": ("f64", "f64"),
    "c": ("complex<f32>", "f32"),
    "z": ("complex<f64>", "f64"),
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
    try:
        given = _attributes(op)
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
    except (ValueError, OverflowError) as error:  # no letter, or no number
        raise UnsupportedError(f"its backend_config is not the routine's: {error}") from None


def _call(
    routine: str,
    signature: str,
    operands: Sequence[ir.Value],
    wanted: Sequence[Tensor],
    options: dict[str, str],
) -> list[ir.Value]:
    """The operation, with transpositions around it; ``wanted`` are row-major result types."""
    taken, given = (
        text.replace("W", _EIGENVALUES[routine[0] in "cz"]).split()
        for text in _SIGNATURES[signature]
    )
    _check(routine, (taken, given), [tensor(x.type) for x in operands], wanted, options)
    matrices = [[len(array.partition(":")[2]) == 2 for array in side] for side in (taken, given)]
    turned = [_turn(x) if m else x for x, m in zip(operands, matrices[0], strict=True)]
    kinds = [_turned(x) if m else x for x, m in zip(wanted, matrices[1], strict=True)]
    made = hlo.build(
        "lapack",
        [ir.Type.parse(str(kind)) for kind in kinds],
        turned,
        routine=routine,
        options=",".join(f"{name}={value}" for name, value in options.items()),
    )
    return [_turn(x) if m else x for x, m in zip(list(made.results), matrices[1], strict=True)]


def _check(
    routine: str,
    signature: tuple[Sequence[str], Sequence[str]],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    options: dict[str, str],
) -> None:
    """Raise ``UnsupportedError`` for arrays or options that the routine would read or write beyond."""
    given = ", ".join(map(str, operands)), ", ".join(map(str, results))
    refusal = UnsupportedError(f"{routine} does not take {given[0]} to {given[1]} with {options}")
    if [len(operands), len(results)] != [len(side) for side in signature]:
        raise refusal
    batch = operands[0].shape[: operands[0].rank - len(signature[0][0].partition(":")[2])]
    sizes: dict[str, int] = {}
    elements = dict(zip("er", _ELEMENTS[routine[0]], strict=True), i="i32")

    def fits(array: str, kind: Tensor) -> bool:
        element, _, extents = array.partition(":")
        if kind.element != elements[element] or kind.rank != len(batch) + len(extents):
            return False
        own = zip(extents, kind.shape[len(batch) :], strict=True)
        return kind.shape[: len(batch)] == batch and all(
            sizes.setdefault(x, size) == size for x, size in own
        )

    if not all(map(fits, signature[0], operands)):
        raise refusal
    sizes.setdefault("k", min(sizes.get("m", 0), sizes["n"]))
    if sizes.setdefault("s", max(sizes["n"] - 1, 0)) != max(sizes["n"] - 1, 0):
        raise refusal
    if not all(map(fits, signature[1], results)) or not _options_fit(routine[1:], sizes, options):
        raise refusal


def _options_fit(routine: str, sizes: dict[str, int], options: dict[str, str]) -> bool:
    """Whether the routine knows the options, and they fit the extents."""
    letters = {"left": "NV", "right": "NV", "uplo": "UL", "side": "LR"}
    letters["mode"] = "NAS" if routine in ("gesdd", "gesvd") else "NV"
    if any(value not in letters[name] for name, value in options.items() if name in letters):
        return False
    m, n = sizes.get("m", 0), sizes["n"]
    if options.get("mode") in ("A", "S"):
        wanted = (m, n) if options["mode"] == "A" else (sizes["k"], sizes["k"])
        return (sizes["u"], sizes["v"]) == wanted
    if routine == "gehrd":
        return 1 <= int(options["low"]) <= max(n, 1) and int(options["high"]) <= n
    if routine in ("orgqr", "ungqr"):
        return m >= n >= sizes["t"]
    if routine in ("ormqr", "unmqr"):
        rows = m if options["side"] == "L" else n
        return sizes["p"] == rows and sizes["t"] <= min(rows, sizes["q"])
    return True


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
    if len(wanted) < 4 or len(operands) != 1:
        raise UnsupportedError(f"{letter}geev has one operand and more results")
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
    shapes = {tensor(x.type).shape for x in operands[:3]}
    if len(operands) != 4 or len(wanted) != 5 or len(shapes) != 1 or shapes == {()}:
        raise UnsupportedError(
            f"{letter}gtsv takes three diagonals of one length and the right sides"
        )
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
