# SPDX-License-Identifier: Apache-2.0
"""Generated pages are fresh, and what the documentation names does exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import gristmill

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "docs/architecture.md"]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["ir.md", "ops.md", "settings.md"])
def test_generated_pages_are_fresh(name: str) -> None:
    wanted = generator().PAGES[name]()
    assert (ROOT / "docs" / name).read_text() == wanted, "run make docs"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_the_documentation_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    folders = "compiler|dialects|runtime|gristmill|docs|examples|benchmarks|test"
    paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    assert links or paths
    base = (ROOT / page).parent
    assert [link for link in links if not (base / link).exists()] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_public_name_is_documented() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [name for name in gristmill.__all__ if name != "__version__" and name not in text]
    assert missing == []
