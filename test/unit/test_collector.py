# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cyclic garbage rests while a program is compiled, and only then."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

import gristmill
from gristmill.compiler.collector import paused

NEGATE = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


@pytest.fixture(autouse=True)
def collecting() -> Generator[None]:
    gc.enable()
    yield
    gc.enable()


def test_a_compilation_is_not_interrupted_by_it() -> None:
    seen: list[bool] = []
    options = gristmill.CompileOptions(cache=False)
    gristmill.compile(NEGATE, options=options, observer=lambda _: seen.append(gc.isenabled()))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(gristmill.GristmillError):
        gristmill.compile("func.func @main(", options=gristmill.CompileOptions(cache=False))
    assert gc.isenabled()


def test_it_runs_again_after_the_last_of_several() -> None:
    first, second = paused(), paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_stays_off_where_it_was() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()
