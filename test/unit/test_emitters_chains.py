# SPDX-License-Identifier: Apache-2.0
"""Loops over long chains in parts: where they are cut, and what comes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.emitters.cpu import chains
from gristmill.compiler.graph import load_graph

# Everything from 8 KiB on is stored past the caches.
SMALL = replace(host_target(), l2_bytes=4096, l3_bytes=8192)

#: name: operations from %x and %y to %r, and the kinds of the operations whose results are cuts.
CHAINS = {
    "two": (
        "%0 = stablehlo.tanh %x : T\n %r = stablehlo.tanh %0 : T",
        ["tanh"],
    ),
    "three": (
        "%0 = stablehlo.tanh %x : T\n %1 = stablehlo.sine %0 : T\n %r = stablehlo.tanh %1 : T",
        ["tanh", "sine"],
    ),
    "with x again": (
        """%0 = stablehlo.tanh %x : T
 %1 = stablehlo.add %0, %y : T
 %2 = stablehlo.sine %1 : T
 %r = stablehlo.add %2, %x : T""",
        ["add"],
    ),
    "one": ("%r = stablehlo.tanh %x : T", []),
    "side by side": (
        "%0 = stablehlo.tanh %x : T\n %1 = stablehlo.sine %y : T\n %r = stablehlo.add %0, %1 : T",
        [],
    ),
    "another beside": (
        """%0 = stablehlo.cosine %x : T
 %1 = stablehlo.sine %y : T
 %2 = stablehlo.tanh %1 : T
 %r = stablehlo.add %0, %2 : T""",
        [],
    ),
}


def _program(name: str, shape: str, rows: bool = False) -> str:
    """A chain of x and y of ``shape``; if ``rows`` y is the same in all rows."""
    kind = f"tensor<{shape}xf32>"
    body = CHAINS[name][0]
    given = kind
    if rows:
        given = f"tensor<{shape.split('x')[1]}xf32>"
        body = f"%y = stablehlo.broadcast_in_dim %b, dims = [1] : ({given}) -> T\n {body}"
    argument = "%b" if rows else "%y"
    text = f"func.func @main(%x: T, {argument}: {given}) -> T {{\n {body}\n return %r : T\n}}"
    return text.replace("T", kind).replace(f"{kind}0", "T0")


def _value(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    functions = {
        "two": lambda: np.tanh(np.tanh(x)),
        "three": lambda: np.tanh(np.sin(np.tanh(x))),
        "with x again": lambda: np.sin(np.tanh(x) + y) + x,
        "one": lambda: np.tanh(x),
        "side by side": lambda: np.tanh(x) + np.sin(y),
        "another beside": lambda: np.cos(x) + np.tanh(np.sin(y)),
    }
    return functions[name]()


@pytest.mark.parametrize("name", CHAINS)
def test_where_chains_are_cut(name: str) -> None:
    source = import_source(_program(name, "8"))
    with source.context:
        found = chains.cuts(load_graph(source.functions()["main"]))
    assert [node.kind for node in found] == CHAINS[name][1]


#: All in one loop, rows in stretches and rows that are staged whole; rows of few and of too many elements.
SHAPES = ["100", "10000", "37x1024", "37x300", "7x40", "3x5000", "2x20000"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CHAINS)
def test_values(name: str, shape: str, streamed: bool) -> None:
    extents = [int(n) for n in shape.split("x")]
    rows = len(extents) == 2
    text = _program(name, shape, rows)
    target = SMALL if streamed else host_target()
    random = np.random.default_rng(1)
    x = random.standard_normal(extents).astype(np.float32)
    y = random.standard_normal(extents[-1:] if rows else extents).astype(np.float32)
    with compile_stages(import_source(text), target).executable() as executable:
        got = executable(x, y)
    want = _value(name, x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_results_are_not_computed_twice() -> None:
    source = import_source("""
func.func @main(%x: tensor<700xf32>) -> (tensor<700xf32>, tensor<700xf32>) {
  %0 = stablehlo.exponential %x : tensor<700xf32>
  %1 = stablehlo.exponential %0 : tensor<700xf32>
  %2 = stablehlo.tanh %1 : tensor<700xf32>
  return %2, %0 : tensor<700xf32>, tensor<700xf32>
}
""")
    with source.context:
        assert not chains.cuts(load_graph(source.functions()["main"]))


def test_sums_are_not_computed_twice() -> None:
    source = import_source("""
func.func @main(%x: tensor<600xf32>, %y: tensor<600x8xf32>) -> tensor<600xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%y init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<600x8xf32>, tensor<f32>) -> tensor<600xf32>
  %0 = stablehlo.add %x, %s : tensor<600xf32>
  %1 = stablehlo.tanh %0 : tensor<600xf32>
  %2 = stablehlo.tanh %1 : tensor<600xf32>
  %3 = stablehlo.add %2, %s : tensor<600xf32>
  return %3 : tensor<600xf32>
}
""")
    with source.context:
        assert not chains.cuts(load_graph(source.functions()["main"]))


def test_values_read_elsewhere_are_no_cuts() -> None:
    """A reversal reads the chain at other places than those where it is computed."""
    text = """
func.func @main(%x: tensor<4x600xf32>) -> tensor<4x600xf32> {
  %0 = stablehlo.tanh %x : tensor<4x600xf32>
  %1 = stablehlo.reverse %0, dims = [1] : tensor<4x600xf32>
  %2 = stablehlo.tanh %1 : tensor<4x600xf32>
  return %2 : tensor<4x600xf32>
}
"""
    source = import_source(text)
    with source.context:
        found = chains.cuts(load_graph(source.functions()["main"]))
    assert [node.kind for node in found] == ["reverse"]
    x = np.random.default_rng(2).standard_normal((4, 600)).astype(np.float32)
    with compile_stages(source, host_target()).executable() as executable:
        want = np.tanh(np.tanh(x.astype(np.float64)))[:, ::-1]
        np.testing.assert_allclose(executable(x), want, rtol=2e-6)
