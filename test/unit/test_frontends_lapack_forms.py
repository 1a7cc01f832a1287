# SPDX-License-Identifier: Apache-2.0
"""Calls of LAPACK routines whose arrays or options are not the routine's: errors, never memory that is overrun."""

from __future__ import annotations

import pytest

from gristmill.compiler.frontends import load_text
from gristmill.errors import UnsupportedError

MODE = "mhlo.backend_config = {mode = %d : ui8, uplo = 76 : ui8}"
UPLO = "mhlo.backend_config = {uplo = 76 : ui8}"
TRSM = (
    "mhlo.backend_config = {side = 76 : ui8, uplo = 76 : ui8, diag = 78 : ui8, trans_x = 78 : ui8}"
)
SVD = "9x9xf64, 9xf64, {u}x{u}xf64, 9x9xf64, i32"


def call(target: str, config: str, operands: str, results: str) -> str:
    ins, outs = ([f"tensor<{x}>" for x in text.split(", ")] for text in (operands, results))
    names = ", ".join(f"%a{k}" for k in range(len(ins)))
    header = ", ".join(f"%a{k}: {kind}" for k, kind in enumerate(ins))
    made = ", ".join(f"%r#{k}" for k in range(len(outs))) if len(outs) > 1 else "%r"
    count = f":{len(outs)}" if len(outs) > 1 else ""
    kinds = ", ".join(outs)
    return (
        f"func.func @main({header}) -> ({kinds}) {{\n"
        f"  %r{count} = stablehlo.custom_call @lapack_{target}_ffi({names}) {{{config}}} : "
        f"({', '.join(ins)}) -> ({kinds})\n  return {made} : {kinds}\n}}\n"
    )


@pytest.mark.parametrize(
    ("target", "config", "operands", "results"),
    [
        ("dgetrf", "", "9x9xf64", "9x9xf64, 1xi32, i32"),  # room for one pivot
        ("dgetrf", "", "9x9xf64", "2x2xf64, 9xi32, i32"),
        ("dgetrf", "", "9x9xf64", "9x9xf64, 9xi64, i32"),
        ("sgetrf", "", "9x9xf64", "9x9xf64, 9xi32, i32"),
        ("dgetrf", "", "3x9x9xf64", "3x9x9xf64, 9xi32, i32"),
        ("dgetrf", "", "9xf64", "9xf64, 9xi32, i32"),
        ("dsyevd", MODE % ord("V"), "9x9xf64", "9x9xf64, 2xf64, i32"),
        ("dsyevd", MODE % ord("V"), "9x8xf64", "9x8xf64, 9xf64, i32"),
        ("dsyevd", MODE % ord("Q"), "9x9xf64", "9x9xf64, 9xf64, i32"),
        ("dgesdd", MODE % ord("A"), "9x9xf64", SVD.format(u=3)),
        ("dgesdd", MODE % ord("O"), "9x9xf64", SVD.format(u=9)),
        ("dorgqr", "", "3x3xf64, 9xf64", "3x3xf64"),
        ("dgtsv", "", "3xf64, 9xf64, 9xf64, 9x1xf64", "9xf64, 9xf64, 9xf64, 9x1xf64, i32"),
        ("dpotrf", UPLO, "3x3xf64", "4x4xf64, i32"),
        ("dpotrf", UPLO, "3x3xf64", "3x3xf64"),
        ("dpotrf", UPLO, "3xf64", "3xf64, i32"),
        ("dpotrf", "", "3x3xf64", "3x3xf64, i32"),
        ("dtrsm", "", "3x3xf64, 3x2xf64", "3x2xf64"),
        ("dtrsm", TRSM, "3x3xf64, 3x2xf64", "3x4xf64"),
        ("dtrsm", TRSM, "3x3xf64", "3x3xf64"),
    ],
)
def test_forms_that_do_not_fit(target: str, config: str, operands: str, results: str) -> None:
    with pytest.raises(UnsupportedError, match=target[1:]):
        load_text(call(target, config, operands, results))


@pytest.mark.parametrize(
    ("target", "config", "operands", "results"),
    [
        ("dgetrf", "", "9x7xf64", "9x7xf64, 7xi32, i32"),
        ("dgesdd", MODE % ord("S"), "9x9xf64", SVD.format(u=9)),
        ("dpotrf", UPLO, "3x3xf64", "3x3xf64, i32"),
        ("dtrsm", TRSM, "3x3xf64, 3x2xf64", "3x2xf64"),
    ],
)
def test_forms_that_fit(target: str, config: str, operands: str, results: str) -> None:
    load_text(call(target, config, operands, results))
