# SPDX-License-Identifier: Apache-2.0
"""Comparisons of absolute values of complex numbers with constants, which take no root."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.emitters.elemental import magnitudes
from gristmill.compiler.graph import load_graph
from gristmill.compiler.options import CompileOptions

_OPTIONS = CompileOptions(cache=False)


def _module(direction: str, constant: float, count: int, part: str = "f32") -> str:
    kind = f"tensor<{count}x{part}>"
    return f"""
    func.func @main(%z: tensor<{count}xcomplex<{part}>>) -> tensor<{count}xi1> {{
      %c = stablehlo.constant dense<{constant!r}> : {kind}
      %0 = stablehlo.abs %z : (tensor<{count}xcomplex<{part}>>) -> {kind}
      %1 = stablehlo.compare {direction}, %0, %c, FLOAT : ({kind}, {kind}) -> tensor<{count}xi1>
      return %1 : tensor<{count}xi1>
    }}"""


def _bound(source: str) -> magnitudes.Bound | None:
    module = import_source(source)
    with module.context:
        graph = load_graph(module.functions()["main"])
        return magnitudes.find(graph.results[0], lambda _: False)


def _near(constant: np.float32, count: int) -> np.ndarray:
    """Numbers whose absolute value is within a few units in the last place of ``constant``, and special ones."""
    random = np.random.default_rng(1)
    angle = random.uniform(0, 2 * np.pi, count)
    length = float(constant) * (1 + random.uniform(-3e-7, 3e-7, count))
    z = (length * np.exp(1j * angle)).astype(np.complex64)
    inf, nan = np.inf, np.nan
    parts = np.array([0, -0.0, inf, -inf, nan, constant, -constant, constant * 0.6], np.float32)
    grid = [complex(x, y) for x in parts for y in parts]
    exact = [complex(0.6 * c, 0.8 * c) for c in (float(constant), 2.5, 5.0)]
    return np.concatenate([z, np.array(grid + exact, np.complex64)])


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("constant", [2.0, 1.9999998807907104, 5.0, 0.10000000149011612])
def test_compares_what_the_rounded_value_would(direction: str, constant: float) -> None:
    z = _near(np.float32(constant), 20_000)
    program = gristmill.compile(_module(direction, constant, z.size), options=_OPTIONS)
    length = np.abs(z.astype(np.complex128)).astype(np.float32)
    compare = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}
    want = compare[direction](length, np.float32(constant))
    assert 100 < want.sum() < z.size - 100
    np.testing.assert_array_equal(np.asarray(program(z)), want)


def test_bound_lies_between_two_numbers() -> None:
    """Below 2 lies 2 - 2^-23; half way between, the nearest even number is 2."""
    below, up_to = _bound(_module("LT", 2.0, 4)), _bound(_module("LE", 2.0, 4))
    assert below is not None
    assert (below.square, below.inclusive) == ((2 - 2.0**-24) ** 2, False)
    assert up_to is not None
    assert (up_to.square, up_to.inclusive) == ((2 + 2.0**-23) ** 2, True)


@pytest.mark.parametrize(
    "source",
    [
        _module("GT", 2.0, 4),
        _module("LT", 0.0, 4),
        _module("LT", -1.0, 4),
        _module("LT", 2.0, 4, "f64"),
    ],
    ids=["greater", "zero", "negative", "f64"],
)
def test_others_are_left(source: str) -> None:
    assert _bound(source) is None
