# SPDX-License-Identifier: Apache-2.0
"""Where in the user's program something happened: the innermost frame outside the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_RUNTIME = str(Path(__file__).resolve().parents[1]) + "/"
#: Frames of the standard library at the bottom of threads and loops, which are nobody's program.
_MACHINERY = (
    *(module.__file__ or "" for module in (threading, contextlib, functools)),
    str(Path(asyncio.__file__).parent) + "/",
)
_known: dict[str, bool] = {}


class Site:
    """A line of a program. Which line it is is found out when somebody asks: most are never asked for."""

    __slots__ = ("_at", "_code", "_line")

    def __init__(self, code: CodeType, at: int) -> None:
        """``at``: the offset of the instruction in ``code``."""
        self._code = code
        self._at = at
        self._line = 0

    @property
    def file(self) -> str:
        """The file's name."""
        return self._code.co_filename

    @property
    def function(self) -> str:
        """The name of the function."""
        return self._code.co_name

    @property
    def line(self) -> int:
        """The number of the line."""
        if not self._line:
            lines = (line for low, high, line in self._code.co_lines() if low <= self._at < high)
            self._line = next(lines, None) or self._code.co_firstlineno
        return self._line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and (self.file, self.line) == (other.file, other.line)

    def __hash__(self) -> int:
        return hash((self.file, self.line))

    def __repr__(self) -> str:
        return f"{self.file}:{self.line}"


def is_user_file(name: str) -> bool:
    """Whether a file is part of the program that uses the runtime."""
    known = _known.get(name)
    if known is None:
        inside = name.startswith(_RUNTIME) or str(Path(name).resolve()).startswith(_RUNTIME)
        known = _known[name] = not inside and not name.startswith(_MACHINERY)
    return known


def caller(depth: int = 2) -> Site | None:
    """The innermost frame of the user's on this thread's stack, or None where there is none.

    The frames of this function and of ``depth - 1`` more above it are known not to be the user's.
    """
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    known = _known
    while frame is not None:
        code = frame.f_code
        user = known.get(code.co_filename)
        if user is None:
            user = is_user_file(code.co_filename)
        if user:
            return Site(code, frame.f_lasti)
        frame = frame.f_back
    return None


def is_user_function(function: Callable[..., Any]) -> bool:
    """Whether a callback is the user's, not one of the runtime's own."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None)
    return module is None or not module.startswith("gristmill.runtime")


def describe(site: Site | None) -> str:
    """``file:line``, or words for work that no line of the program asked for directly."""
    return "the runtime itself" if site is None else str(site)
