# SPDX-License-Identifier: Apache-2.0
"""Sums of one-hot vectors: which are counted, and that the counts are numpy's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.compiler.compile import Compilation, compile_stages, import_source
from gristmill.runtime.executable import Executable

Array = np.ndarray[Any, Any]

ID_TYPES = ("i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64")


def dtype(name: str) -> Any:
    return np.dtype(f"{'u' if name[0] == 'u' else ''}int{name.strip('ui')}")


@functools.cache
def compiled(text: str) -> Compilation:
    return compile_stages(import_source(text), keep_stages=True)


def counts(compilation: Compilation, *inputs: Array, threads: int = 2) -> Array:
    with Executable(compilation.program()) as executable:
        return np.array(executable(*inputs, threads=threads))


def is_counted(compilation: Compilation) -> bool:
    return 'kind = "histogram"' in str(compilation.emit("fused"))


def bincount(ids: Array, width: int) -> Array:
    """Counts along the last dimension of the ids in ``[0, width)``."""
    rows = ids.reshape(-1, ids.shape[-1])
    inside = [row[(row >= 0) & (row < width)].astype(np.int64) for row in rows]
    found = [np.bincount(row, minlength=width) for row in inside]
    return np.array(found).reshape(*ids.shape[:-1], width)


def program(
    ids: str,
    shape: str,
    full: str,
    where: tuple[int, ...],
    classes: int,
    out: str = "i32",
    *,
    sums: tuple[int, ...],
    result: str,
    swapped: bool = False,
    initial: str = "0",
) -> str:
    """``ids`` of ``shape`` placed at dimensions ``where`` of ``full``, compared with the classes and summed."""
    order = "UNSIGNED" if ids.startswith("u") else "SIGNED"
    pair = "%c, %b" if swapped else "%b, %c"
    zero = f"{initial}.0" if "f" in out else initial
    return f"""
func.func @main(%a: tensor<{shape}x{ids}>) -> tensor<{result}x{out}> {{
  %b = stablehlo.broadcast_in_dim %a, dims = {list(where)} : (tensor<{shape}x{ids}>) -> tensor<{full}x{ids}>
  %c = stablehlo.iota dim = {classes} : tensor<{full}x{ids}>
  %e = stablehlo.compare EQ, {pair}, {order} : (tensor<{full}x{ids}>, tensor<{full}x{ids}>) -> tensor<{full}xi1>
  %o = stablehlo.convert %e : (tensor<{full}xi1>) -> tensor<{full}x{out}>
  %z = stablehlo.constant dense<{zero}> : tensor<{out}>
  %r = stablehlo.reduce(%o init: %z) applies stablehlo.add across dimensions = {list(sums)}
    : (tensor<{full}x{out}>, tensor<{out}>) -> tensor<{result}x{out}>
  return %r : tensor<{result}x{out}>
}}
"""


def plain(n: int, width: int, ids: str = "i32", out: str = "i32", **options: Any) -> str:
    """``ids[n] -> counts[width]``."""
    return program(
        ids, f"{n}", f"{n}x{width}", (0,), 1, out, sums=(0,), result=f"{width}", **options
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [64, 1000, 1023, 1025, 50_001])
@pytest.mark.parametrize("width", [17, 100, 2100, 9000])
def test_counts(n: int, width: int, threads: int) -> None:
    ids = np.random.default_rng(n).integers(-3, width + 3, n, np.int32)
    compilation = compiled(plain(n, width))
    assert is_counted(compilation)
    got = counts(compilation, ids, threads=threads)
    np.testing.assert_array_equal(got, bincount(ids, width))
    for same in (0, width - 1, width):
        ids[:] = same
        np.testing.assert_array_equal(counts(compilation, ids), bincount(ids, width))


@pytest.mark.parametrize("ids", ID_TYPES)
def test_types_of_ids_and_what_is_no_class(ids: str) -> None:
    width, kind = 100, dtype(ids)
    limits = np.iinfo(kind)
    rng = np.random.default_rng(1)
    values = rng.integers(0, width, 900).astype(kind)
    values[::3] = rng.integers(limits.min, limits.max, 300, kind, endpoint=True)
    values[:4] = limits.min, limits.max, width - 1, min(width, limits.max)
    if kind.itemsize == 8:
        values[4:6] = (1 << 32) + 5, (1 << 62) + 7  # 5 and 7 in the low half
    compilation = compiled(plain(900, width, ids))
    assert is_counted(compilation)
    np.testing.assert_array_equal(counts(compilation, values), bincount(values, width))


def test_all_classes_of_a_narrow_type() -> None:
    values = np.arange(3 * 256, dtype=np.uint8)
    compilation = compiled(plain(768, 256, "ui8"))
    assert is_counted(compilation)
    np.testing.assert_array_equal(counts(compilation, values), np.full(256, 3))
    # Of i8, whose largest number is 127, the indicator's 200th class is what the iota wraps to.
    assert not is_counted(compiled(plain(768, 200, "i8")))


@pytest.mark.parametrize("out", ["i8", "ui16", "i64", "f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("initial", ["0", "3"])
def test_types_of_counts(out: str, initial: str) -> None:
    """Integers wrap; floats are rounded once, from the exact count."""
    n, width = 5000, 64
    ids = np.minimum(np.random.default_rng(2).integers(0, 2 * width, n, np.int32), width - 1)
    compilation = compiled(plain(n, width, out=out, initial=initial))
    assert is_counted(compilation)
    got = counts(compilation, ids)
    expected = bincount(ids, width) + int(initial)
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_sums_of_floats_that_round_are_left() -> None:
    """Beyond 2^24 ones a sum in f32 stays where it is, in one grouping of the additions or another."""
    most = 1 << 24
    assert is_counted(compiled(plain(most, 64, out="f32")))
    assert not is_counted(compiled(plain(most + 64, 64, out="f32")))
    assert is_counted(compiled(plain(most + 64, 64, out="f64")))
    assert is_counted(compiled(plain(most + 64, 64)))


#: Shape of ids, of the indicator, where the ids lie in it, the classes' dimension, dimensions summed, result.
LAYOUTS = {
    "batch": ("5x900", "5x900x33", (0, 1), 2, (1,), "5x33"),
    "both dimensions": ("70x30", "70x30x33", (0, 1), 2, (0, 1), "33"),
    "classes first": ("900", "33x900", (1,), 0, (1,), "33"),
    "classes between": ("5x900", "5x33x900", (0, 2), 1, (2,), "5x33"),
    "classes first, batch": ("5x900", "33x5x900", (1, 2), 0, (2,), "33x5"),
    "two of three": ("4x30x20", "4x30x20x33", (0, 1, 2), 3, (1, 2), "4x33"),
    "unit dimensions": ("900x1", "900x1x33", (0, 1), 2, (0,), "1x33"),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("swapped", [False, True])
def test_layouts(name: str, swapped: bool) -> None:
    shape, full, where, classes, sums, result = LAYOUTS[name]
    size = tuple(map(int, shape.split("x")))
    ids = np.random.default_rng(3).integers(-1, 35, size, np.int32)
    compilation = compiled(
        program("i32", shape, full, where, classes, sums=sums, result=result, swapped=swapped)
    )
    assert is_counted(compilation)
    indicator = np.expand_dims(ids, classes) == np.arange(33).reshape(
        [-1 if d == classes else 1 for d in range(len(full.split("x")))]
    )
    np.testing.assert_array_equal(counts(compilation, ids), indicator.sum(axis=sums))


def test_ids_in_columns_are_left() -> None:
    """Ids of one set of counts that are far apart in memory."""
    text = program("i32", "900x50", "900x33x50", (0, 2), 1, sums=(0,), result="33x50")
    ids = np.random.default_rng(4).integers(-1, 35, (900, 50), np.int32)
    compilation = compiled(text)
    assert not is_counted(compilation)
    np.testing.assert_array_equal(counts(compilation, ids), bincount(ids.T, 33).T)


def of_values(x: Any) -> Any:
    """A histogram of values: the ids are computed inside the kernel."""
    return jax.nn.one_hot(jnp.floor(x * 40).astype(jnp.int32), 40, dtype=jnp.int32).sum(0)


def mean_load(logits: Any) -> Any:
    """The share of tokens that each expert gets."""
    return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1]).mean(axis=0)


def summed_outside(ids: Any) -> Any:
    return (ids[:, None] == jnp.arange(50)).sum(axis=0)


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (of_values, (3000,), lambda x: bincount(np.floor(x * np.float32(40)).astype(int), 40)),
        (mean_load, (2000, 64), lambda x: bincount(x.argmax(-1), 64) / np.float32(2000)),
    ],
)
def test_as_models_write_it(
    function: Callable[..., Any], shape: tuple[int, ...], expected: Callable[[Array], Array]
) -> None:
    values = np.random.default_rng(5).random(shape, np.float32)
    compilation = compile_stages(import_source(jax.jit(function).lower(values)), keep_stages=True)
    assert is_counted(compilation)
    np.testing.assert_allclose(counts(compilation, values), expected(values), rtol=1e-6)


def test_what_is_left() -> None:
    """A few classes or ids, an indicator that others read, weights, other comparisons and reductions."""
    ids = np.zeros(500, np.int32)

    def left(function: Callable[..., Any]) -> bool:
        source = import_source(jax.jit(function).lower(ids))
        return not is_counted(compile_stages(source, keep_stages=True))

    def hot(x: Any, width: int = 64) -> Any:
        return jax.nn.one_hot(x, width, dtype=jnp.int32)

    assert not left(summed_outside)
    assert left(lambda x: hot(x, 15).sum(0))
    assert left(lambda x: hot(x[:63]).sum(0))
    assert left(lambda x: (hot(x), hot(x).sum(0)))
    assert left(lambda x: (hot(x) * x[:, None]).sum(0))
    assert left(lambda x: hot(x).max(0))
    assert left(lambda x: hot(x).sum(1))
    assert left(lambda x: (x[:, None] <= jnp.arange(64)).sum(0))
    assert left(lambda x: (x[:, None] == 2 * jnp.arange(64)).sum(0))
    assert left(lambda x: (x[:, None] + jnp.arange(64) == jnp.arange(64)).sum(0))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_ids(data: st.DataObject) -> None:
    """Random types, sizes, ids in and out of range, sorted or equal."""
    name = data.draw(st.sampled_from(ID_TYPES))
    batch, n = data.draw(st.sampled_from([(1, 64), (3, 100), (2, 1500), (1, 9000)]))
    width = data.draw(st.sampled_from([64, 127, 128]))
    limits = np.iinfo(dtype(name))
    low = data.draw(st.integers(int(limits.min), width))
    high = data.draw(st.integers(max(low, 0), int(limits.max)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    ids = rng.integers(low, high, (batch, n), dtype(name), endpoint=True)
    if data.draw(st.booleans()):
        ids.sort()
    compilation = compiled(
        program(
            name,
            f"{batch}x{n}",
            f"{batch}x{n}x{width}",
            (0, 1),
            2,
            sums=(1,),
            result=f"{batch}x{width}",
        )
    )
    assert is_counted(compilation)
    threads = data.draw(st.sampled_from([1, 2, 3]))
    got = counts(compilation, ids, threads=threads)
    np.testing.assert_array_equal(got, bincount(ids, width))
