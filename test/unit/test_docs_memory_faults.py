# SPDX-License-Identifier: Apache-2.0
"""Every test that docs/memory-faults.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_named_tests_exist() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "memory-faults.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| Fault", "| ---"))
    ]
    files = (ROOT / "test" / "unit").glob("test_*.py")
    there = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = [re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2]) for row in rows]
    assert len(rows) > 80
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert sorted({test for tests in named for test in tests} - there) == []
