# SPDX-License-Identifier: Apache-2.0
"""MLIR's exception and diagnostics: the typed name of the one, the other as one-line texts."""

from __future__ import annotations

import re
from typing import cast

from mlir import ir

from gristmill.dialects.locations import location_text

__all__ = ["MLIRError", "diagnostics_text", "location_text", "named_source"]

#: What the bindings raise on a failed parse, verification or pass (absent from their stubs).
MLIRError = cast(
    type[Exception],
    ir.MLIRError,  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
)


def diagnostics_text(error: Exception) -> str:
    """The diagnostics of an ``MLIRError`` on one line, each with its location, notes included."""
    parts: list[str] = []
    for diagnostic in cast(list[ir.DiagnosticInfo], getattr(error, "error_diagnostics", [])):
        text = f"{location_text(diagnostic.location)}: {diagnostic.message}"
        notes = [note.message.strip().partition("\n")[0] for note in diagnostic.notes]
        parts.append(" ".join([text, *(f"[note: {note}]" for note in notes)]))
    return "; ".join(parts) or str(error).strip().replace("\n", " ")


def named_source(message: str, name: str) -> str:
    """``message`` with MLIR's ``-:line:col`` of in-memory text replaced by ``name:line:col``."""
    return re.sub(r"(^|[\s;(])-:(\d+:\d+)", rf"\g<1>{name}:\2", message)
