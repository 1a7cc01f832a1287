# SPDX-License-Identifier: Apache-2.0
"""Where exponentials are known to be of nothing positive, and what they are then."""

from __future__ import annotations

import numpy as np
import pytest

import gristmill
from gristmill.compiler.options import CompileOptions

_OPTIONS = CompileOptions(cache=False)

_PROGRAM = """
func.func @main(%x: tensor<{shape}xf32>, %y: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %high = stablehlo.constant dense<0x7F800000> : tensor<f32>
  %mhalf = stablehlo.constant dense<-0.5> : tensor<{shape}xf32>
  %half = stablehlo.constant dense<0.5> : tensor<{shape}xf32>
  %masked = stablehlo.constant dense<-1.0e30> : tensor<{shape}xf32>
  {body}
  %e = stablehlo.exponential %a : tensor<{shape}xf32>
  return %e : tensor<{shape}xf32>
}}
"""


def _reduced(what: str, by: str, start: str, dimension: int, kept: str) -> str:
    return (
        f"%m = stablehlo.reduce({what} init: {start}) applies stablehlo.{by} across dimensions = [{dimension}]"
        f" : (tensor<{{shape}}xf32>, tensor<f32>) -> tensor<{kept}xf32>\n"
    )


def _spread(dimension: int, kept: str) -> str:
    return (
        f"%b = stablehlo.broadcast_in_dim %m, dims = [{dimension}]"
        f" : (tensor<{kept}xf32>) -> tensor<{{shape}}xf32>\n"
    )


_SUBTRACT = "%a = stablehlo.subtract %x, %b : tensor<{shape}xf32>"
_ROW = _reduced("%x", "maximum", "%low", 1, "64") + _spread(0, "64")

#: name: (shape, body, whether it is shown that %a is never positive)
BODIES = {
    "softmax": ("64x64", _ROW + _SUBTRACT, True),
    "masked": (
        "64x64",
        _ROW
        + """%d = stablehlo.subtract %x, %b : tensor<{shape}xf32>
  %p = stablehlo.compare LT, %x, %y : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xi1>
  %a = stablehlo.select %p, %d, %masked : tensor<{shape}xi1>, tensor<{shape}xf32>""",
        True,
    ),
    "gaussian": (
        "4096",
        """%s = stablehlo.multiply %x, %x : tensor<{shape}xf32>
  %a = stablehlo.multiply %s, %mhalf : tensor<{shape}xf32>""",
        True,
    ),
    "decay": (
        "4096",
        "%s = stablehlo.abs %x : tensor<{shape}xf32>\n %a = stablehlo.negate %s : tensor<{shape}xf32>",
        True,
    ),
    "anything": ("4096", "%a = stablehlo.add %x, %half : tensor<{shape}xf32>", False),
    "growth": (
        "4096",
        """%s = stablehlo.multiply %x, %x : tensor<{shape}xf32>
  %a = stablehlo.multiply %s, %half : tensor<{shape}xf32>""",
        False,
    ),
    "transposed maxima": (
        "64x64",
        _reduced("%x", "maximum", "%low", 1, "64") + _spread(1, "64") + _SUBTRACT,
        False,
    ),
    "maxima of others": (
        "64x64",
        _reduced("%y", "maximum", "%low", 1, "64") + _spread(0, "64") + _SUBTRACT,
        False,
    ),
    "minima": (
        "64x64",
        _reduced("%x", "minimum", "%high", 1, "64") + _spread(0, "64") + _SUBTRACT,
        False,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_never_positive_is_known(name: str) -> None:
    shape, body, shown = BODIES[name]
    text = _PROGRAM.format(shape=shape, body=body.format(shape=shape))
    kernels = gristmill.compile_stages(text, options=_OPTIONS, keep_stages=True).emit("kernels")
    assert ("llvm.exp" not in kernels) == shown


@pytest.mark.parametrize("name", BODIES)
def test_exponentials_are_right(name: str) -> None:
    shape, body, _ = BODIES[name]
    text = _PROGRAM.format(shape=shape, body=body.format(shape=shape))
    random = np.random.default_rng(3)
    extents = [int(n) for n in shape.split("x")]
    x, y = (random.standard_normal(extents).astype(np.float32) * 8 for _ in range(2))
    x.flat[:6] = [-np.inf, -200, -0.0, 0.0, 5e-41, 9]
    got = gristmill.compile(text, options=_OPTIONS)(x, y)
    want = _interpret(name, x.astype(np.float64), y)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-44)


def _interpret(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    arguments = {
        "softmax": lambda: x - x.max(1, keepdims=True),
        "masked": lambda: np.where(x < y, x - x.max(1, keepdims=True), -np.inf),
        "gaussian": lambda: -x * x / 2,
        "decay": lambda: -abs(x),
        "anything": lambda: x + 0.5,
        "growth": lambda: x * x / 2,
        "transposed maxima": lambda: x - x.max(1),
        "maxima of others": lambda: x - y.max(1, keepdims=True),
        "minima": lambda: x - x.min(1, keepdims=True),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        want = np.exp(arguments[name]())
        return np.where(want > np.finfo(np.float32).max, np.inf, want)
