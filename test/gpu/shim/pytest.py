# SPDX-License-Identifier: Apache-2.0
"""The part of pytest's interface that the behaviour suites use, for machines without pytest."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Generator
from typing import Any


class _Mark:
    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **kwargs: Any) -> Any:
            def decorate(function: Any) -> Any:
                function.marks = [*getattr(function, "marks", []), (name, args, kwargs)]
                return function

            bare = name != "parametrize" and len(args) == 1 and callable(args[0]) and not kwargs
            return decorate(args[0]) if bare else decorate

        return mark


mark = _Mark()


class Param:
    """One row of ``parametrize``."""

    def __init__(self, values: tuple[Any, ...]):
        self.values = values


def param(*values: Any, **_: Any) -> Param:
    """A row; ids and marks are not used here."""
    return Param(values)


def fixture(function: Any = None, *, params: Any = (None,), **_: Any) -> Any:
    """Mark a fixture."""

    def decorate(made: Any) -> Any:
        made.fixture_params = list(params)
        return made

    return decorate if function is None else decorate(function)


class Caught:
    """What ``raises`` gives: the exception, once there is one."""

    value: BaseException


@contextlib.contextmanager
def raises(expected: Any, *, match: str | None = None) -> Any:
    """The block must raise ``expected`` with a text that ``match`` is found in."""
    caught = Caught()
    try:
        yield caught
    except expected as error:
        caught.value = error
        if match is not None and not re.search(match, str(error)):
            raise AssertionError(f"{match!r} is not in {str(error)!r}") from error
        return
    raise AssertionError(f"did not raise {expected}")


@contextlib.contextmanager
def warns(expected: Any, *, match: str = "") -> Any:
    """The block must give such a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    texts = [str(w.message) for w in caught if issubclass(w.category, expected)]
    if not any(re.search(match, text) for text in texts):
        raise AssertionError(f"no {expected} with {match!r} among {texts}")


class MonkeyPatch:
    """Changes that are undone at the end of the test."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute."""
        self._undo.callback(setattr, target, name, getattr(target, name))
        setattr(target, name, value)

    def setenv(self, name: str, value: str) -> None:
        """Set an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value
        undo = os.environ.pop if before is None else os.environ.__setitem__
        self._undo.callback(undo, name, *([] if before is None else [before]))

    def undo(self) -> None:
        """Undo all changes."""
        self._undo.close()

    @contextlib.contextmanager
    def context(self) -> Generator[MonkeyPatch]:
        """Changes that are undone at the end of a block."""
        inner = MonkeyPatch()
        try:
            yield inner
        finally:
            inner.undo()
