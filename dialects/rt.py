# SPDX-License-Identifier: Apache-2.0
"""The ``rt`` dialect."""

from __future__ import annotations

from mlir import ir


def register(context: ir.Context) -> None:
    """Load the dialect into ``context``."""
