# SPDX-License-Identifier: Apache-2.0
"""MLIR's exception and diagnostics: the typed name of the one, the other as one-line texts."""

from __future__ import annotations

from typing import cast

from mlir import ir

from gristmill.dialects.locations import location_text

__all__ = ["MLIRError", "diagnostics_text", "location_text"]

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
