# SPDX-License-Identifier: Apache-2.0
"""Source locations as text."""

from __future__ import annotations

import re

from mlir import ir

_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def location_text(location: ir.Location) -> str:
    """``file:line:col``: of a call stack its innermost place, of other locations MLIR's own spelling."""
    text = str(location)
    place = _PLACE.search(text)
    if place is not None:
        return ":".join(place.groups())
    inner = text[len("loc(") : -1] if text.startswith("loc(") else text
    return inner.replace('"', "")
