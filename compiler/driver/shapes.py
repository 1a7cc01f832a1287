# SPDX-License-Identifier: Apache-2.0
"""The ``--shape`` and ``--value`` options: concrete shapes for a model whose shapes are dynamic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gristmill.errors import InputError

if TYPE_CHECKING:
    from gristmill.compiler.frontends.polymorphic import PolymorphicArgument

Shape = tuple[int, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the two options."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="ARG=AxBxC",
        help="the shape of an argument, by name or index, of a model with dynamic shapes",
    )
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="ARG=N",
        help="the value of an integer argument that shapes are computed from (A,B,... for several)",
    )


def shapes(args: argparse.Namespace, inputs: Sequence[PolymorphicArgument]) -> list[Shape]:
    """The shape of every argument; raises ``InputError`` when one is neither known nor given."""
    given = {i: _numbers(t, "x", "--shape") for i, t in _by_index(args.shape, inputs).items()}
    found: list[Shape] = []
    missing: list[str] = []
    for index, item in enumerate(inputs):
        known = tuple(size for size in item.shape if size is not None)
        if index not in given and len(known) != len(item.shape):
            missing.append(f"--shape {item.name}=... ({item})")
        found.append(given.get(index, known))
    if missing:
        raise InputError(f"the model has dynamic shapes; give {', '.join(missing)}")
    return found


def values(
    args: argparse.Namespace, inputs: Sequence[PolymorphicArgument]
) -> dict[int | str, object]:
    """The content of every argument that is ``by_value``; raises ``InputError`` when one is missing."""
    given = _by_index(args.value, inputs)
    found: dict[int | str, object] = {}
    missing: list[str] = []
    for index, item in enumerate(inputs):
        if index in given:
            numbers = _numbers(given[index], ",", "--value")
            found[index] = numbers if item.shape else numbers[0]
        elif item.by_value:
            missing.append(f"--value {item.name}=N ({item})")
    if missing:
        raise InputError(f"shapes of the model depend on values; give {', '.join(missing)}")
    return found


def _by_index(options: Sequence[str], inputs: Sequence[PolymorphicArgument]) -> dict[int, str]:
    names = {item.name: index for index, item in enumerate(inputs)}
    found: dict[int, str] = {}
    for option in options:
        name, equals, text = option.partition("=")
        index = names.get(name, int(name) if name.isdecimal() else -1)
        if not equals or not 0 <= index < len(inputs):
            known = ", ".join(f"{item.name}: {item}" for item in inputs)
            raise InputError(f"{option!r} names no argument; write ARG=..., ARG one of {known}")
        found[index] = text
    return found


def _numbers(text: str, separator: str, option: str) -> Shape:
    parts = [part.strip() for part in text.split(separator)] if text.strip() else []
    if not all(part.lstrip("-").isdecimal() for part in parts):
        raise InputError(f"{option}: {text!r} is not a list of integers joined by {separator!r}")
    return tuple(int(part) for part in parts)
