# SPDX-License-Identifier: Apache-2.0
"""Generated pages are fresh, and what the documentation names does exist."""

from __future__ import annotations

import importlib.util
import random
import re
from pathlib import Path
from types import ModuleType

import pytest

import gristmill

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 8
PAGES = ["README.md", "CONTRIBUTING.md", "docs/architecture.md"]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generator() -> ModuleType:
    return load("generate")


@pytest.mark.parametrize("name", ["ir.md", "ops.md", "settings.md"])
def test_generated_pages_are_fresh(name: str) -> None:
    wanted = generator().PAGES[name]()
    assert (ROOT / "docs" / name).read_text() == wanted, "run make docs"


def test_evidence_is_of_these_operations() -> None:
    module = load("evidence")
    entries = module.load()
    assert sorted(entries) == sorted(generator().TARGETS)
    for target, entry in entries.items():
        assert entry["digest"] == module.digest(), f"run docs/evidence.py --target {target}"
        assert entry["modules"] > 0
        assert entry["value_tests"].keys() | entry["fuzzed"].keys() <= set(module.probe.names())


def test_a_sample_of_the_evidence_holds() -> None:
    """Programs that are given as evidence are made again: they have the operation, and agree."""
    module = load("evidence")
    fuzzed = module.load()["CPU"]["fuzzed"]
    claims = [(name, element, seed) for name in fuzzed for element, seed in fuzzed[name].items()]
    for name, element, seed in random.Random(0).sample(claims, SAMPLE):
        program = module.program(seed)
        assert (name, element) in module.program_pairs(program), "run docs/evidence.py"
        module.check(program)


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
