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
from types import FrameType
from typing import Any, NamedTuple

_RUNTIME = str(Path(__file__).resolve().parents[1]) + "/"
#: Frames of the standard library at the bottom of threads and loops, which are nobody's program.
_MACHINERY = (
    *(module.__file__ or "" for module in (threading, contextlib, functools)),
    str(Path(asyncio.__file__).parent) + "/",
)
_known: dict[str, bool] = {}


class Site(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_user_file(name: str) -> bool:
    """Whether a file is part of the program that uses the runtime."""
    known = _known.get(name)
    if known is None:
        inside = name.startswith(_RUNTIME) or str(Path(name).resolve()).startswith(_RUNTIME)
        known = _known[name] = not inside and not name.startswith(_MACHINERY)
    return known


def caller() -> Site | None:
    """The innermost frame of the user's on this thread's stack, or None where there is none."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return Site(code.co_filename, frame.f_lineno, code.co_name)
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
