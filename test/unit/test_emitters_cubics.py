# SPDX-License-Identifier: Apache-2.0
"""Logistic functions of a x + b x³: which arguments are seen to be that, and what comes out."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.emitters.elemental import cubics
from gristmill.compiler.graph import load_graph
from gristmill.compiler.options import CompileOptions

_OPTIONS = CompileOptions(cache=False)

_A, _B = 1.5957691669464111328125, 0.044714998453855514526367  # f32: 2 sqrt(2/π) and 0.044715

#: name: operations for %v = a x + b x³, in the ways that GELU is written.
FORMS = {
    "jax": """
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %x : T
  %2 = stablehlo.multiply %b, %1 : T
  %3 = stablehlo.add %x, %2 : T
  %v = stablehlo.multiply %a, %3 : T""",
    "factored": """
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %b : T
  %2 = stablehlo.add %1, %one : T
  %3 = stablehlo.multiply %x, %2 : T
  %v = stablehlo.multiply %3, %a : T""",
    "scaled": """
  %0 = stablehlo.multiply %a, %x : T
  %1 = stablehlo.multiply %b, %x : T
  %2 = stablehlo.multiply %1, %x : T
  %3 = stablehlo.add %one, %2 : T
  %v = stablehlo.multiply %0, %3 : T""",
}

#: The same of arguments that are something else.
OTHERS = {
    "itself": "%v = stablehlo.multiply %one, %x : T",
    "two variables": """
  %0 = stablehlo.multiply %x, %y : T
  %1 = stablehlo.multiply %0, %x : T
  %v = stablehlo.add %1, %x : T""",
    "a constant term": """
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %x : T
  %2 = stablehlo.add %1, %one : T
  %v = stablehlo.add %2, %x : T""",
    "a square": """
  %0 = stablehlo.add %x, %one : T
  %1 = stablehlo.multiply %x, %x : T
  %2 = stablehlo.multiply %1, %0 : T
  %v = stablehlo.add %2, %x : T""",
    "a fourth power": """
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %0 : T
  %v = stablehlo.add %1, %x : T""",
    "cancellation": """
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %x : T
  %2 = stablehlo.multiply %1, %minus : T
  %v = stablehlo.add %2, %x : T""",
    "no linear term": """
  %0 = stablehlo.multiply %x, %x : T
  %v = stablehlo.multiply %0, %x : T""",
}

_CONSTANTS = "".join(
    f"  %{name} = stablehlo.constant dense<{value!r}> : T\n"
    for name, value in (("a", _A), ("b", _B), ("one", 1.0), ("minus", -1.0))
)


def _find(body: str, element: str = "f32", at_hand: str = "") -> cubics.Cubic | None:
    """What is found of the argument of the logistic function; operations of kind ``at_hand`` are at hand."""
    text = f"func.func @main(%x: T, %y: T) -> T {{\n{_CONSTANTS}{body}\n"
    text += "  %l = stablehlo.logistic %v : T\n  return %l : T\n}"
    module = import_source(text.replace("T", f"tensor<8x{element}>"))
    with module.context:
        graph = load_graph(module.functions()["main"])
        found = cubics.find(graph.results[0].operands[0], lambda node: node.kind == at_hand)
    assert found is None or found.variable is graph.parameters[0]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_gelu(form: str) -> None:
    found = _find(FORMS[form])
    assert found is not None
    np.testing.assert_allclose([found.linear, found.cubic], [_A, _A * _B], rtol=1e-15)


@pytest.mark.parametrize("body", OTHERS)
def test_other_arguments(body: str) -> None:
    assert _find(OTHERS[body]) is None


@pytest.mark.parametrize("element", ["bf16", "f64"])
def test_other_types(element: str) -> None:
    assert _find(FORMS["jax"], element) is None


def test_values_at_hand_are_not_taken_apart() -> None:
    assert _find(FORMS["jax"], at_hand="multiply") is None


_GELU = """
func.func @main(%x: T) -> T {
  %a = stablehlo.constant dense<0.797884583> : T
  %b = stablehlo.constant dense<4.471500e-02> : T
  %one = stablehlo.constant dense<1.0> : T
  %half = stablehlo.constant dense<0.5> : T
  %s = stablehlo.constant dense<SIGN> : T
  %0 = stablehlo.multiply %x, %x : T
  %1 = stablehlo.multiply %0, %x : T
  %2 = stablehlo.multiply %b, %1 : T
  %3 = stablehlo.add %x, %2 : T
  %4 = stablehlo.multiply %a, %3 : T
  %5 = stablehlo.multiply %4, %s : T
  %6 = stablehlo.tanh %5 : T
  %7 = stablehlo.add %one, %6 : T
  %8 = stablehlo.multiply %half, %7 : T
  return %8 : T
}
"""


def _logistic(x: float, sign: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The exact value and its argument."""
    with mpmath.workprec(100):
        v = sign * mpmath.mpf(_A) * (x + mpmath.mpf(_B) * mpmath.mpf(x) ** 3)
        return 1 / (1 + mpmath.exp(-v)), v


@pytest.mark.parametrize("sign", [1, -1])
def test_values(sign: int) -> None:
    """Two ulp, and what an error of the argument of 1.5 ulp makes of the result; the ends are exact."""
    dense = np.random.default_rng(0).uniform(-9.5, 9.5, 4000)
    powers = np.outer([1, -1], 2.0 ** np.arange(-149, 128)).ravel()
    x = np.concatenate([dense, powers, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    text = _GELU.replace("T", f"tensor<{x.size}xf32>").replace("SIGN", f"{sign}.0")
    with gristmill.compile(text, options=_OPTIONS) as executable:
        got = np.asarray(executable(x))
    np.testing.assert_array_equal(got[-5:], [0.5, 0.5, sign > 0, sign < 0, np.nan])
    for at, result in zip(x[:-5].tolist(), got.tolist(), strict=False):
        exact, v = _logistic(at, sign)
        ulp = mpmath.ldexp(1, max(mpmath.frexp(exact)[1] - 24, -149))
        assert abs(result - exact) <= ulp * (2 + 1.5 * abs(v) * (1 - exact)), at
