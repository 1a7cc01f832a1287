# SPDX-License-Identifier: Apache-2.0
"""Every registered pass keeps the naming rules, and the registry refuses what it should."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest

from gristmill.compiler.passes import registry
from gristmill.compiler.passes.base import Pass, options_of
from gristmill.errors import PassError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(registry.PASSES))
def test_names_follow_the_pass(name: str) -> None:
    module, _, cls = registry.PASSES[name].partition(":")
    assert module == name.replace("-", "_")
    assert cls == "".join(part.capitalize() for part in name.split("-")) + "Pass"
    assert (ROOT / "compiler" / "passes" / f"{module}.py").is_file()
    tests = [
        ROOT / "test" / "passes" / f"{name}.mlir",
        ROOT / "test" / "dialects" / "hlo-invalid.mlir",
    ]
    assert any(t.is_file() and f"{name}" in t.read_text().partition("\n\n")[0] for t in tests)


@pytest.mark.parametrize("name", sorted(registry.PASSES))
def test_passes_are_frozen_dataclasses_with_a_contract(name: str) -> None:
    cls = registry.resolve(name)
    assert issubclass(cls, Pass)
    assert cls.name == name
    assert dataclasses.is_dataclass(cls)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().name = "other"  # pyright: ignore
    doc = inspect.getdoc(cls) or ""
    for word in ("Requires", "Guarantees"):
        assert word in doc, f"the docstring of {cls.__name__} lacks {word!r}"


@pytest.mark.parametrize("name", sorted(registry.PASSES))
def test_options_print_and_parse(name: str) -> None:
    default = registry.create(name)
    assert default.spelling() == name
    for option, kind, value in options_of(registry.resolve(name)):
        assert registry.create(name, {option: value}) == default
        if kind == "int":
            changed = registry.create(name, {option: "7"})
            assert changed.spelling() == f"{name}{{{option}=7}}"


def test_duplicates_raise() -> None:
    with pytest.raises(ValueError, match="'a' is registered twice"):
        registry._table(("a", "x:Y"), ("a", "z:W"))  # pyright: ignore[reportPrivateUsage]


def test_unknown_pass_names_the_closest() -> None:
    with pytest.raises(PassError, match=r"no pass 'dce-hol'; did you mean 'dce-hlo'\?"):
        registry.create("dce-hol")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "1"}, r"no option 'limit'; did you mean 'limit-bytes'\?; it has: limit-bytes"),
        (
            {"limit-bytes": "many"},
            "option 'limit-bytes' of pass 'fold-constants': 'many' is not a valid int",
        ),
    ],
)
def test_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(PassError, match=message):
        registry.create("fold-constants", options)
