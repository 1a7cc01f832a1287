# SPDX-License-Identifier: Apache-2.0
"""The examples of the memory runtime run, show what they promise, and are all named by its documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

#: For each example, texts that show that it did its work.
SHOWN = {
    "memory_sections": ["the code returns 42", "refused: ", "state: released"],
    "memory_allocator": ["aligned: True", "sum: 175.0", "GRISTMILL_HOST_MEMORY_LIMIT", "hits: 1"],
    "memory_pool": ["predicate: True", "held: memory_pool.py:", "generation 2", "peak: 3 now: 0"],
    "memory_predicates": ["turns: 7 value: 2187", "slots in use: 0"],
    "memory_buffer": ["a slice: [ 8  9 10 11]", "in place: True", "first: the disk is gone"],
    "memory_transfer": ["missing: [(0, 2000)]", "equal: True", "file: None", "cancelled: "],
    "memory_events": ["['first', 'second', 'third']", "first: no such row", "awaited"],
    "memory_devices": ["host:0: equal: True", "host:0: live bytes: 0", "memory_limit"],
    "memory_debug": ["1 × buffer, 1000 B, opened at memory_debug.py:", "race on bytes 0..1048576"],
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    missing = [text for text in SHOWN[name] if text not in result.stdout]
    assert missing == [], result.stdout


def test_every_example_is_shown_and_documented() -> None:
    text = (ROOT / "docs" / "memory.md").read_text()
    there = {path.stem for path in EXAMPLES.glob("memory_*.py")}
    assert there == set(SHOWN)
    assert there == set(re.findall(r"\.\./examples/(\w+)\.py", text))


def test_what_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "memory.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:runtime|docs|test)/[\w./-]+)`", text)
    assert links
    assert paths
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []
