# SPDX-License-Identifier: Apache-2.0
"""Sorts on a GPU: several rows a block, one a block, chunks that are merged; keys and any other comparator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_check import assert_ptx, kinds, run_in_orders
from gpu_support import GpuProgram, compile_for_gpu

Array = np.ndarray[Any, Any]


LONG = """
func.func @main(%a: tensor<{n}xi8>) -> tensor<{n}xi8> {{
  %0 = "stablehlo.sort"(%a) ({{
    ^bb0(%x: tensor<i8>, %y: tensor<i8>):
      %c = stablehlo.compare LT, %x, %y : (tensor<i8>, tensor<i8>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }}) : (tensor<{n}xi8>) -> tensor<{n}xi8>
  return %0 : tensor<{n}xi8>
}}
"""


def text(function: Any, *arrays: Array) -> str:
    return jax.jit(function).lower(*arrays).as_text()


def check(function: Any, *arrays: Array) -> GpuProgram:
    """Compare with what JAX's own CPU client computes."""
    wanted = jax.tree.leaves(jax.jit(function)(*arrays))
    return run_in_orders(text(function, *arrays), arrays, [np.asarray(x) for x in wanted])


def sample(dtype: Any, shape: tuple[int, ...]) -> Array:
    """Values with repeats; floats with both zeros and NaNs."""
    rng = np.random.default_rng(7)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 40, shape).astype(dtype)
    values = (np.round(rng.standard_normal(shape) * 8) / 4).astype(dtype)
    flat = values.reshape(-1)
    special = rng.choice(np.array([np.nan, np.inf, 0.0, -0.0], dtype), flat.size // 4)
    flat[rng.integers(0, flat.size, flat.size // 4)] = special
    return values


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5,), 0), ((70, 3), 1), ((9, 33), 1), ((130, 3), 0), ((2, 3, 700), 2), ((2, 5000), 1)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_argsort_is_stable(dtype: Any, shape: tuple[int, ...], axis: int) -> None:
    assert kinds(check(lambda a: jnp.argsort(a, axis=axis), sample(dtype, shape))) == ["sort"]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_sort(dtype: Any) -> None:
    check(lambda a: jnp.sort(a, axis=1, descending=True), sample(dtype, (3, 300)))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_wide_keys(dtype: Any) -> None:
    with jax.enable_x64(True):
        check(lambda a: jnp.argsort(a, axis=1), sample(dtype, (2, 200)))


@pytest.mark.parametrize("length", [1, 2, 7, 200, 4500])
def test_lexicographic(length: int) -> None:
    """Two keys and a payload: the comparator is no single key."""
    rng = np.random.default_rng(length)
    a, b = rng.integers(0, 5, (2, 2, length)).astype(np.int32)
    c = np.arange(2 * length, dtype=np.float32).reshape(2, length)
    check(lambda a, b, c: jax.lax.sort((a, b, c), dimension=1, num_keys=2), a, b, c)


def test_top_k() -> None:
    check(lambda a: jax.lax.top_k(a, 5), sample(np.int32, (6, 100)).astype(np.float32))


def test_chunks_and_merges() -> None:
    program = compile_for_gpu(text(jnp.sort, np.zeros(20000, np.float32)))
    (spec,) = program.specs.values()
    launches = [(p.launch.grid[0], p.launch.block[0]) for p in spec.phases if p.launch]
    # 10 chunks of 2048 records, then 4 levels of merges, 8 records a thread.
    assert launches == [(10, 1024), *[(10, 256)] * 4]
    assert_ptx(program, r"st\.shared", r"bar\.sync")


def test_positions_of_long_rows_are_wide() -> None:
    assert "xi64>" not in str(compile_for_gpu(LONG.format(n=2**31 - 1)).module)
    assert "xi64>" in str(compile_for_gpu(LONG.format(n=2**31)).module)
