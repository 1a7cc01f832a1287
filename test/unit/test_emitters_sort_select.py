# SPDX-License-Identifier: Apache-2.0
"""The first elements of sorted rows, selected without sorting: against numpy's stable sort and XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import gristmill

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(5)


def first(x: Array, count: int) -> tuple[Array, Array]:
    """Ours: the largest elements of each row and where they are."""

    def function(a: jax.Array) -> Any:
        return jax.lax.top_k(a, count)

    values, places = gristmill.compile(jax.jit(function).lower(x))(x)
    return values, places


def check(x: Array, count: int) -> None:
    """Numpy sorts stably what is negated or, for integers, inverted: equal values keep their order."""
    inverted = -x.astype(np.float64) if x.dtype.kind not in "iu" else ~x
    expected = np.argsort(inverted, axis=-1, kind="stable")[..., :count]
    values, places = first(x, count)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


ORDERS = {
    "random": lambda n: RNG.permutation(n),
    "ascending": lambda n: np.arange(n),
    "descending": lambda n: np.arange(n)[::-1],
    "ties": lambda n: RNG.integers(0, 4, n),
    "equal": lambda n: np.zeros(n),
    "late": lambda n: np.r_[np.zeros(n - 70), RNG.integers(0, 9, 70)],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 10, 64, 65, 300])
@pytest.mark.parametrize("length", [3072, 3073, 5001])
def test_orders(order: str, count: int, length: int) -> None:
    check(np.stack([ORDERS[order](length) for _ in range(3)]).astype(np.float32), count)


@pytest.mark.parametrize("length", [383, 384, 385, 447, 448])
def test_lengths_from_which_rows_are_selected(length: int) -> None:
    check(RNG.integers(0, 50, (2, length)).astype(np.float32), 5)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.float16, ml_dtypes.bfloat16]
)
def test_types(dtype: Any) -> None:
    x = RNG.integers(0, 100, (2, 2, 700)).astype(dtype)
    if x.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x[0, 0, 600:] = limits.min
        x[0, 1] = limits.min
        x[1, 0, 33:36] = limits.max
        x[1, 1] = limits.max
    check(x, 20)


def test_zeros_infinities_and_nans_are_in_total_order() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1, -1], np.float32)
    x = RNG.choice(special, (4, 1000))
    x[0, 300:] = -np.nan
    for ours, wanted in zip(first(x, 30), jax.lax.top_k(x, 30), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(wanted))
        if ours.dtype == np.float32:
            np.testing.assert_array_equal(ours.view(np.int32), np.asarray(wanted).view(np.int32))


def test_the_smallest_of_columns_with_two_more_operands() -> None:
    x = RNG.integers(0, 30, (900, 3)).astype(np.int32)
    a, b = RNG.standard_normal(x.shape), RNG.standard_normal(x.shape).astype(np.float32)

    def function(*arrays: jax.Array) -> Any:
        keys, *rest = jax.lax.sort(arrays, dimension=0, num_keys=1, is_stable=True)
        return keys[:12], rest[0][2:7], rest[1][:9:2]

    with jax.enable_x64(True):
        lowered = jax.jit(function).lower(x, a, b)
    order = np.argsort(x, axis=0, kind="stable")
    expected = [np.take_along_axis(array, order, 0) for array in (x, a, b)]
    results = gristmill.compile(lowered)(x, a, b)
    wanted = (expected[0][:12], expected[1][2:7], expected[2][:9:2])
    for ours, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_sort_that_is_also_read_whole() -> None:
    x = RNG.standard_normal((2, 1000)).astype(np.float32)

    def function(a: jax.Array) -> Any:
        ordered = jnp.sort(a, axis=1)
        return ordered[:, :5], ordered

    few, whole = gristmill.compile(jax.jit(function).lower(x))(x)
    np.testing.assert_array_equal(few, np.sort(x, 1)[:, :5])
    np.testing.assert_array_equal(whole, np.sort(x, 1))
