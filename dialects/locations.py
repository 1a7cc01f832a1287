# SPDX-License-Identifier: Apache-2.0
"""Source locations as text."""

from __future__ import annotations

from mlir import ir


def location_text(location: ir.Location) -> str:
    """``file:line:col`` of a location, or MLIR's own spelling of a more complex one."""
    text = str(location)
    inner = text[len("loc(") : -1] if text.startswith("loc(") else text
    return inner.replace('"', "")
