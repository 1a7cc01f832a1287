# SPDX-License-Identifier: Apache-2.0
"""What a pass is: one file, one frozen dataclass, one contract docstring.

A pass's options are the dataclass's fields; their command-line spelling is derived from the field
names (``limit_bytes`` is written ``limit-bytes=4096``). See CONTRIBUTING for how to add one.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

from mlir import ir
from mlir.passmanager import PassManager

from gristmill.compiler.diagnostics import MLIRError, diagnostics_text
from gristmill.compiler.module import HloModule
from gristmill.errors import PassError


@dataclass(frozen=True)
class Pass(ABC):
    """A transformation of a module, in place.

    The class docstring of every pass states what it requires, guarantees and does not handle.
    ``run`` raises a :class:`~gristmill.errors.GristmillError` when it cannot do its work.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: HloModule) -> None:
        """Transform ``module`` in place."""

    def spelling(self) -> str:
        """The pipeline text of this pass: its name and the options that are not defaults."""
        changed = [
            f"{_option_name(f.name)}={_print_value(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{' '.join(changed)}}}" if changed else self.name

    @classmethod
    def from_options(cls, options: dict[str, str]) -> Self:
        """Build the pass from option texts; raises ``PassError`` for unknown or malformed ones."""
        hints = _option_types(cls)
        values: dict[str, object] = {}
        for option, text in options.items():
            if option not in hints:
                hint = closest(option, hints)
                known = ", ".join(hints) or "none"
                raise PassError(
                    f"pass {cls.name!r} has no option {option!r}{hint}; it has: {known}"
                )
            try:
                values[option.replace("-", "_")] = _parse_value(text, hints[option])
            except ValueError as error:
                raise PassError(f"option {option!r} of pass {cls.name!r}: {error}") from None
        return cls(**values)


@dataclass(frozen=True)
class FunctionPass(Pass):
    """A Python function as a pass, for pipelines built in Python; it has no textual form.

    Requires and guarantees what ``function`` does.
    """

    name: ClassVar[str] = "python"
    function: Callable[[HloModule], None]

    def run(self, module: HloModule) -> None:
        """Call the function."""
        self.function(module)

    def spelling(self) -> str:
        """A readable name that no parser accepts."""
        return f"<python {getattr(self.function, '__name__', 'function')}>"


@dataclass(frozen=True)
class UpstreamPass(Pass):
    """One element of an upstream pipeline, nesting and options included, run over the whole module.

    Requires IR that the upstream pass accepts; ops of dialects it does not know pass through it.
    """

    name: ClassVar[str] = "upstream"
    element: str

    def run(self, module: HloModule) -> None:
        """Run the upstream pass; raises ``PassError`` with MLIR's diagnostics when it fails."""
        with module.context:
            manager = PassManager.parse(f"builtin.module({self.element})")
            manager.enable_verifier(False)  # the pipeline verifies between passes
            try:
                manager.run(module.module.operation)
            except MLIRError as error:
                raise PassError(diagnostics_text(error)) from error

    def spelling(self) -> str:
        """The element itself."""
        return self.element


@lru_cache(maxsize=512)
def upstream_error(element: str) -> str | None:
    """Why ``element`` is not a valid upstream pipeline element, or ``None`` when it is one."""
    with ir.Context():
        try:
            PassManager.parse(f"builtin.module({element})")
        except ValueError as error:
            lines = str(error).strip().splitlines()
            return lines[0].rpartition("error: ")[2] if lines else "malformed pipeline"
    return None


def closest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest known word, or the empty string."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def options_of(cls: type[Pass]) -> list[tuple[str, str, str]]:
    """(name, type, default) of every option, as spelled on the command line."""
    hints = _option_types(cls)
    rows: list[tuple[str, str, str]] = []
    for f in dataclasses.fields(cls):
        option = _option_name(f.name)
        default = "" if f.default is dataclasses.MISSING else _print_value(f.default)
        hint = hints[option]
        rows.append((option, hint.__name__ if isinstance(hint, type) else str(hint), default))
    return rows


def _option_name(field: str) -> str:
    return field.replace("_", "-")


def _option_types(cls: type[Pass]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {_option_name(f.name): hints[f.name] for f in dataclasses.fields(cls)}


def _print_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        items = typing.cast(tuple[object, ...], value)
        return f"[{','.join(_print_value(item) for item in items)}]"
    text = str(value)
    return f'"{text}"' if any(c in text for c in " ,{}[]()=") else text


def _parse_value(text: str, kind: Any) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if text == "None":
            return None
        return _parse_value(text, next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        inner = text.removeprefix("[").removesuffix("]").strip()
        parts = inner.split(",") if inner else []
        return tuple(_parse_value(part.strip(), arguments[0]) for part in parts)
    text = text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text
    if kind is bool:
        if text in ("", "true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise ValueError(f"{text!r} is not a bool; write true or false")
    if kind is int or kind is float:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a valid {kind.__name__}") from None
    if kind is str:
        return text
    raise TypeError(f"pass options cannot have the type {kind}")
