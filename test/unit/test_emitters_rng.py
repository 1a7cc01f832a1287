# SPDX-License-Identifier: Apache-2.0
"""Random bits against XLA, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import xla_client

import gristmill
from gristmill.errors import UnsupportedError

Array = np.ndarray[Any, Any]

#: The counter wraps inside the first array.
STATES = {
    2: np.array([0x123456789ABCDEF0, 0xFFFFFFFFFFFFFFFE], np.uint64),
    3: np.array([0x0FEDCBA987654321, 0xFFFFFFFFFFFFFFFD, 7], np.uint64),
}
SHAPES = [
    (),
    (1,),
    (4,),
    (5,),
    (3, 4),
    (3, 5),
    (5, 3),
    (2, 3, 4),
    (7, 7),
    (3, 3, 2),
    (100,),
    (0, 3),
]


def module(algorithm: str, words: int, shape: tuple[int, ...], element: str) -> str:
    state = f"tensor<{words}xui64>"
    kind = "tensor<" + "".join(f"{s}x" for s in shape) + f"{element}>"
    return f"""func.func @main(%s: {state}) -> ({state}, {kind}) {{
  %a, %b = stablehlo.rng_bit_generator %s, algorithm = {algorithm} : ({state}) -> ({state}, {kind})
  return %a, %b : {state}, {kind}
}}"""


def xla(text: str, *arrays: Array) -> list[Array]:
    """Results of XLA's CPU compiler."""
    device = jax.devices("cpu")[0]
    with jax.enable_x64(True):
        program = device.client.compile_and_load(
            text.encode(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
        )
        buffers = [jax.device_put(a, device) for a in arrays]
        results = program.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [np.asarray(r[0]) for r in results]


def check(algorithm: str, words: int, shape: tuple[int, ...], element: str) -> None:
    text = module(algorithm, words, shape, element)
    ours = gristmill.compile(text)(STATES[words])
    for mine, wanted in zip(ours, xla(text, STATES[words]), strict=True):
        # XLA gives bits of signed types as unsigned ones.
        np.testing.assert_array_equal(mine, wanted.view(mine.dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("element", ["ui32", "ui64"])
def test_threefry(shape: tuple[int, ...], element: str) -> None:
    check("THREE_FRY", 2, shape, element)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("words", "element"), [(2, "ui32"), (3, "ui32"), (3, "ui64")])
def test_philox(words: int, shape: tuple[int, ...], element: str) -> None:
    check("PHILOX", words, shape, element)


@pytest.mark.parametrize("element", ["ui8", "ui16", "i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
def test_widths(algorithm: str, element: str) -> None:
    check(algorithm, 2, (3, 6), element)


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX"])
@pytest.mark.parametrize("shape", [(200000,), (3, 30001), (5, 7, 3001)])
def test_many_tasks(algorithm: str, shape: tuple[int, ...]) -> None:
    check(algorithm, 2, shape, "ui32")


def test_jax_key() -> None:
    key = np.arange(4, dtype=np.uint32)

    def function(k: Any) -> Any:
        return jax.lax.rng_bit_generator(k, (10, 3), jnp.uint32)

    ours = gristmill.compile(jax.jit(function).lower(key))(key)
    for mine, wanted in zip(ours, function(key), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_only_the_bits_are_read() -> None:
    text = module("THREE_FRY", 2, (8,), "ui32").replace(
        "-> (tensor<2xui64>, tensor<8xui32>) {", "-> tensor<8xui32> {"
    )
    text = text.replace("return %a, %b : tensor<2xui64>, ", "return %b : ")
    wanted = xla(module("THREE_FRY", 2, (8,), "ui32"), STATES[2])[1]
    np.testing.assert_array_equal(gristmill.compile(text)(STATES[2]), wanted)


def test_other_states_are_refused() -> None:
    text = module("THREE_FRY", 2, (8,), "ui32").replace("2xui64", "4xui32")
    with pytest.raises(UnsupportedError, match="a state of 4xui32"):
        gristmill.compile(text)


def draw(
    element: str, low: str, high: str, distribution: str = "UNIFORM", count: int = 20000
) -> Array:
    text = f"""func.func @main() -> tensor<{count}x{element}> {{
  %a = stablehlo.constant dense<{low}> : tensor<{element}>
  %b = stablehlo.constant dense<{high}> : tensor<{element}>
  %s = stablehlo.constant dense<[{count}]> : tensor<1xi64>
  %0 = stablehlo.rng %a, %b, %s, distribution = {distribution}
    : (tensor<{element}>, tensor<{element}>, tensor<1xi64>) -> tensor<{count}x{element}>
  return %0 : tensor<{count}x{element}>
}}"""
    program = gristmill.compile(text)
    first, second = np.array(program()), np.array(program())
    assert (first != second).any()  # every execution draws anew
    return first


@pytest.mark.parametrize("element", ["f16", "f32", "f64"])
def test_uniform(element: str) -> None:
    x = draw(element, "-1.0", "3.0").astype(np.float64)
    assert x.min() >= -1
    assert x.max() < 3
    np.testing.assert_allclose([x.mean(), x.var()], [1, 16 / 12], atol=0.06)
    counts = np.histogram(x, 8, (-1, 3))[0]
    assert np.abs(counts - 2500).max() < 300


@pytest.mark.parametrize("element", ["i8", "i32", "ui64"])
def test_uniform_integers(element: str) -> None:
    x = draw(element, "3", "10")
    assert set(np.unique(x)) == set(range(3, 10))
    assert np.abs(np.bincount(x.astype(int))[3:] - 20000 / 7).max() < 300


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_normal(element: str) -> None:
    x = draw(element, "2.0", "0.5", "NORMAL").astype(np.float64)
    standard = (x - 2) / 0.5
    np.testing.assert_allclose([standard.mean(), standard.var()], [0, 1], atol=0.06)
    assert abs((standard**4).mean() - 3) < 0.4
    assert np.isfinite(x).all()
