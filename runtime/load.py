# SPDX-License-Identifier: Apache-2.0
"""Loading artifacts. Needs neither MLIR nor jaxlib, only numpy and LLVM to link."""

from __future__ import annotations

from pathlib import Path

from gristmill.runtime import artifact
from gristmill.runtime.executable import Executable


def load(path: str | Path) -> Executable:
    """The executable stored in an artifact; raises ``ArtifactError`` for anything wrong with it."""
    return Executable(artifact.load(path))
