# SPDX-License-Identifier: Apache-2.0
"""Let this process import gristmill and the test suites from the source tree, without installing."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def use() -> None:
    """Extend the import paths; the packages' folders lie beside ``gristmill``, not inside."""
    sys.path[:0] = [
        str(ROOT), str(ROOT / "test" / "unit"), str(ROOT / "test" / "cuda_driver"),
        str(Path(__file__).parent / "shim"),
    ]  # fmt: skip
    import gristmill

    gristmill.__path__.append(str(ROOT))
