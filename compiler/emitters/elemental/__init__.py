# SPDX-License-Identifier: Apache-2.0
"""The meaning of every HLO operation on one element (see :mod:`.core`)."""

from gristmill.compiler.emitters.elemental import contraction, movement
from gristmill.compiler.emitters.elemental.core import (
    RULES,
    Elemental,
    Source,
    buffer_source,
    scalar_source,
)

__all__ = [
    "RULES",
    "Elemental",
    "Source",
    "buffer_source",
    "contraction",
    "movement",
    "scalar_source",
]
