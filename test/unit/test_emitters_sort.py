# SPDX-License-Identifier: Apache-2.0
"""Sorting: every way of the emitter, against numpy and JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.emitters.cpu.sort_keys import find_key
from gristmill.compiler.graph import load_graph

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)


def sample(dtype: str, shape: tuple[int, ...]) -> Array:
    """Values with repeats, both zeros and several NaNs."""
    kind = jnp.dtype(dtype)
    if kind == np.bool_:
        return RNG.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        return RNG.integers(info.min, info.max, shape, kind, endpoint=True)
    values = np.round(RNG.standard_normal(shape) * 8) / 4
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 0.0, -0.0]
    flat = values.reshape(-1)
    flat[RNG.integers(0, flat.size, flat.size // 4)] = RNG.choice(special, flat.size // 4)
    return values.astype(kind)


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def run(function: Any, *arrays: Array) -> Any:
    return gristmill.compile(jax.jit(function).lower(*arrays))(*arrays)


def same(ours: Any, wanted: Any) -> None:
    ours = ours if isinstance(ours, tuple) else (ours,)
    wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
    for mine, other in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(bits(mine), bits(np.asarray(other)))


SHAPES = [((5,), 0), ((7, 33), 1), ((130, 3), 0), ((2, 3, 700), 2), ((1, 9001), 1), ((40000,), 0)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_sort_keys(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    x = sample(dtype, shape)
    same(run(lambda a: jnp.sort(a, axis=axis), x), jnp.sort(x, axis=axis))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int32", "uint32", "float16", "bfloat16"]
)
def test_types(dtype: str) -> None:
    x = sample(dtype, (4, 150))
    same(run(lambda a: jnp.sort(a, axis=1), x), jnp.sort(x, axis=1))
    same(run(lambda a: jnp.argsort(a, axis=1), x), jnp.argsort(x, axis=1))


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_wide_types(dtype: str) -> None:
    with jax.enable_x64(True):
        x = sample(dtype, (3, 500))
        same(run(lambda a: jnp.sort(a, axis=1), x), jnp.sort(x, axis=1))
        same(run(lambda a: jnp.argsort(a, axis=1), x), jnp.argsort(x, axis=1))


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_argsort(shape: tuple[int, ...], axis: int) -> None:
    x = sample("float32", shape)
    same(run(lambda a: jnp.argsort(a, axis=axis), x), jnp.argsort(x, axis=axis))


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 63, 200, 1000])
def test_lexicographic(length: int) -> None:
    """Two keys and a payload: the comparator is no single key."""
    a, b = RNG.integers(0, 5, (2, 3, length)).astype(np.int32)
    c = np.arange(3 * length, dtype=np.float32).reshape(3, length)
    same(
        run(lambda *x: jax.lax.sort(x, dimension=1, num_keys=2), a, b, c),
        jax.lax.sort((a, b, c), dimension=1, num_keys=2),
    )


def test_several_operands_gathered_by_position() -> None:
    key = RNG.integers(0, 9, (6, 77)).astype(np.int32)
    others = [RNG.standard_normal((6, 77)).astype(np.float32) for _ in range(3)]
    same(
        run(lambda *x: jax.lax.sort(x, dimension=0, num_keys=1), key, *others),
        jax.lax.sort((key, *others), dimension=0, num_keys=1),
    )


def test_top_k() -> None:
    x = sample("float32", (5, 90))
    same(run(lambda a: jax.lax.top_k(a, 7), x), jax.lax.top_k(x, 7))


def module(body: str, element: str = "f32", count: int = 300) -> str:
    kind = f"tensor<{count}x{element}>"
    return f"""func.func @main(%x: {kind}) -> {kind} {{
  %0 = "stablehlo.sort"(%x) ({{
  ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
    {body}
    stablehlo.return %r : tensor<i1>
  }}) {{dimension = 0 : i64, is_stable = true}} : ({kind}) -> {kind}
  return %0 : {kind}
}}"""


SCALAR = "(tensor<f32>, tensor<f32>) -> tensor<i1>"
MAGNITUDE = f"""%c = stablehlo.abs %a : tensor<f32>
    %d = stablehlo.abs %b : tensor<f32>
    %r = stablehlo.compare LT, %c, %d, FLOAT : {SCALAR}"""
SWAPPED = f"%r = stablehlo.compare LT, %b, %a, FLOAT : {SCALAR}"
INCLUSIVE = f"%r = stablehlo.compare LE, %b, %a, FLOAT : {SCALAR}"
TOTAL = f"%r = stablehlo.compare LT, %a, %b, TOTALORDER : {SCALAR}"


def test_key_that_is_computed() -> None:
    x = np.round(RNG.standard_normal(300) * 4).astype(np.float32)
    ours = gristmill.compile(module(MAGNITUDE))(x)
    same(ours, x[np.argsort(np.abs(x), kind="stable")])


def test_descending_keeps_equal_values_in_order() -> None:
    x = np.round(RNG.standard_normal(300) * 2).astype(np.float32)
    x[::7] = np.float32(-0.0)
    ours = gristmill.compile(module(SWAPPED))(x)
    same(ours, x[np.argsort(-x, kind="stable")])


def test_total_order() -> None:
    x = sample("float32", (300,))
    integers = x.view(np.int32)
    order = np.argsort(integers ^ ((integers >> 31) & 0x7FFFFFFF), kind="stable")
    same(gristmill.compile(module(TOTAL))(x), x[order])


def test_unordered_values_are_kept() -> None:
    """A comparator that is no order still permutes."""
    x = RNG.standard_normal(300).astype(np.float32)
    x[::5] = np.nan
    ours = gristmill.compile(module(INCLUSIVE))(x)
    np.testing.assert_array_equal(np.sort(ours), np.sort(x))


@pytest.mark.parametrize(
    ("body", "found", "descending"),
    [
        (MAGNITUDE, True, False),
        (SWAPPED, True, True),
        (INCLUSIVE, False, False),
        ("%r = stablehlo.compare LT, %a, %a : " + SCALAR, False, False),
    ],
)
def test_recognition(body: str, found: bool, descending: bool) -> None:
    source = import_source(module(body))
    with source.context:
        function = next(f for name, f in source.functions().items() if name != "main")
        key = find_key(load_graph(function))
    assert (key is not None) == found
    if key is not None:
        assert key.descending == descending


def test_empty_rows() -> None:
    x = np.zeros((0, 4), np.float32)
    assert run(lambda a: jnp.sort(a, axis=0), x).shape == (0, 4)
