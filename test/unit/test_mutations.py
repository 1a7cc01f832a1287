# SPDX-License-Identifier: Apache-2.0
"""Damaged input of every kind gives an error of ours: never a crash, a hang or another exception."""

from __future__ import annotations

import io
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gristmill
from gristmill.compiler import frontends
from gristmill.compiler.frontends.guard import survives
from gristmill.errors import GristmillError, ParseError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

from fuzz_programs import build
from fuzz_scope import Chooser

COUNTS = [25, pytest.param(500, marks=pytest.mark.slow)]
X, W = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)


def model() -> jax.stages.Wrapped:
    return jax.jit(lambda x, w: jax.nn.softmax(jnp.tanh(x @ w) + jnp.cumsum(x @ w, 1)))


def text() -> bytes:
    return model().lower(X, W).as_text().encode()


def bytecode() -> bytes:
    stream = io.BytesIO()
    model().lower(X, W).compiler_ir().operation.write_bytecode(stream)
    return stream.getvalue()


def portable() -> bytes:
    return jax.export.export(model())(X, W).mlir_module_serialized


def of_all_kinds() -> bytes:
    """A random program of many kinds of operations."""
    return program(random.Random(3)).encode()


def program(rng: random.Random) -> str:
    """A random program of moderate size."""
    while True:
        made = build(Chooser(rng.randint))
        if 5 <= len(made.lines) <= 60:
            return made.text()


def renumbered(module: str, rng: random.Random) -> str:
    """One or two numbers of a module's text replaced: shapes, attributes, constants."""
    for _ in range(rng.choice((1, 1, 2))):
        found = rng.choice(list(re.finditer(r"\b\d+\b", module)))
        old = int(found.group())
        new = rng.choice((max(old - 1, 0), old + 1, 0, -1, 7, 2**63 - 1))
        module = f"{module[: found.start()]}{new}{module[found.end() :]}"
    return module


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A truncation, or a few bytes replaced, removed or doubled."""
    copy = bytearray(data)
    if rng.randrange(4) == 0:
        return bytes(copy[: rng.randrange(len(copy))])
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(copy))
        how = rng.randrange(4)
        if how == 0:
            del copy[at]
        elif how == 1:
            copy.insert(at, copy[at])
        else:
            copy[at] = rng.randrange(256)
    return bytes(copy)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("make", [text, bytecode, portable, of_all_kinds])
def test_damaged_modules(make: Callable[[], bytes], count: int) -> None:
    data, rng = make(), random.Random(make.__name__)
    messages: list[str] = []
    for _ in range(count):
        try:
            frontends.load_bytes(damaged(data, rng), "model")
        except GristmillError as error:
            messages.append(error.message)
    assert len(messages) > count // 4
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("make", [bytecode, portable])
def test_a_name_that_is_not_utf8(make: Callable[[], bytes]) -> None:
    data = make()
    assert b"jit_" in data
    with pytest.raises(ParseError, match="not UTF-8"):
        frontends.load_bytes(data.replace(b"jit_", b"jit\xff"), "model")


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_other_numbers(count: int) -> None:
    """Modules that often still parse: what they say is refused, or compiled."""
    rng = random.Random(0)
    refused = 0
    for _ in range(count):
        try:
            gristmill.compile(renumbered(program(rng), rng))
        except GristmillError:
            refused += 1
    assert count // 4 < refused


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_artifacts(tmp_path: Path, count: int) -> None:
    path = tmp_path / "model.gmill"
    with gristmill.compile(model().lower(X, W)) as executable:
        wanted = executable(X, W).copy()
        executable.save(path)
    data, rng = path.read_bytes(), random.Random(7)
    for _ in range(count):
        path.write_bytes(damaged(data, rng))
        try:
            loaded = gristmill.load(path)
        except GristmillError:
            continue
        with loaded:  # the damage was in what carries no meaning, a time stamp say
            np.testing.assert_array_equal(loaded(X, W), wanted)


def test_a_reader_that_ends_the_process_or_hangs_does_not_survive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os
    import time

    monkeypatch.setattr("gristmill.compiler.frontends.guard._PATIENCE", 0.3)
    assert survives(lambda: None, 0)
    assert survives(lambda: 1 / 0, 0)
    assert not survives(os.abort, 0)
    assert not survives(lambda: time.sleep(60), 0)
