# SPDX-License-Identifier: Apache-2.0
"""Kernels on a GPU whose threads move or generate elements: transpose, concatenate, pooling, random bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gpu_check import assert_ptx, kinds, run_in_orders
from gpu_support import compile_for_gpu, run_on_simulator

TRANSPOSE = """
func.func @main(%a: tensor<{source}x{t}>) -> tensor<{target}x{t}> {{
  %0 = stablehlo.add %a, %a : tensor<{source}x{t}>
  %1 = stablehlo.transpose %0, dims = {dims} : (tensor<{source}x{t}>) -> tensor<{target}x{t}>
  return %1 : tensor<{target}x{t}>
}}
"""

CONCATENATE = """
func.func @main(%a: tensor<{a}xf32>, %b: tensor<{b}xf32>, %c: tensor<{c}xf32>) -> tensor<{to}xf32> {{
  %0 = stablehlo.negate %b : tensor<{b}xf32>
  %1 = stablehlo.concatenate %a, %0, %c, dim = {dim}
    : (tensor<{a}xf32>, tensor<{b}xf32>, tensor<{c}xf32>) -> tensor<{to}xf32>
  return %1 : tensor<{to}xf32>
}}
"""

POOL = """
func.func @main(%a: tensor<2x9x9x8xf32>) -> tensor<2x5x5x8xf32> {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %n) <{
    window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>,
    padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %m = stablehlo.maximum %x, %y : tensor<f32>
      stablehlo.return %m : tensor<f32>
  }) : (tensor<2x9x9x8xf32>, tensor<f32>) -> tensor<2x5x5x8xf32>
  return %0 : tensor<2x5x5x8xf32>
}
"""

BITS = """
func.func @main(%s: tensor<2xui64>) -> (tensor<2xui64>, tensor<{shape}x{t}>) {{
  %0, %1 = stablehlo.rng_bit_generator %s, algorithm = {algorithm}
    : (tensor<2xui64>) -> (tensor<2xui64>, tensor<{shape}x{t}>)
  return %0, %1 : tensor<2xui64>, tensor<{shape}x{t}>
}}
"""

UNIFORM = """
func.func @main(%a: tensor<f32>, %b: tensor<f32>) -> tensor<5000xf32> {
  %n = stablehlo.constant dense<[5000]> : tensor<1xi64>
  %0 = stablehlo.rng %a, %b, %n, distribution = UNIFORM
    : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<5000xf32>
  return %0 : tensor<5000xf32>
}
"""


def dims(shape: list[int]) -> str:
    return "x".join(map(str, shape))


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ([64, 128], [1, 0]),
        ([33, 70], [1, 0]),
        ([3, 40, 65], [0, 2, 1]),
        ([40, 5, 37], [2, 1, 0]),
        ([6, 1, 64, 32], [3, 1, 0, 2]),
    ],
)
def test_transpose(shape: list[int], permutation: list[int]) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = (a + a).transpose(permutation)
    target = dims(list(expected.shape))
    text = TRANSPOSE.format(source=dims(shape), target=target, dims=permutation, t="f32")
    program = run_in_orders(text, [a], [expected])
    assert kinds(program) == ["transpose"]


@pytest.mark.parametrize(
    ("t", "dtype"),
    [
        ("i8", np.int8),
        ("bf16", ml_dtypes.bfloat16),
        ("f64", np.float64),
        ("complex<f32>", np.complex64),
        ("complex<f64>", np.complex128),
    ],
)
@pytest.mark.parametrize("shape", [[140, 132], [35, 67]])
def test_transpose_of_types(t: str, dtype: type, shape: list[int]) -> None:
    a = np.random.default_rng(0).integers(-50, 50, shape).astype(dtype)
    source, target = dims(shape), dims(shape[::-1])
    text = TRANSPOSE.format(source=source, target=target, dims=[1, 0], t=t)
    run_in_orders(text, [a], [(a + a).T])


@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        ([[5, 3], [5, 7], [5, 1]], 1),
        ([[2, 8], [0, 8], [4, 8]], 0),
        ([[3, 2, 16], [3, 5, 16], [3, 1, 16]], 1),
    ],
)
def test_concatenate(shapes: list[list[int]], dim: int) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    expected = np.concatenate([a, -b, c], dim)
    names = {n: dims(list(x.shape)) for n, x in zip("abc", (a, b, c), strict=True)}
    text = CONCATENATE.format(**names, to=dims(list(expected.shape)), dim=dim)
    run_in_orders(text, [a, b, c], [expected])


def test_pooling() -> None:
    a = np.random.default_rng(2).standard_normal((2, 9, 9, 8)).astype(np.float32)
    assert kinds(run_in_orders(POOL, [a])) == ["pooling"]


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX"])
@pytest.mark.parametrize(("shape", "t"), [("7x5", "ui32"), ("6x5", "ui8"), ("33", "ui64")])
def test_random_bits_are_those_of_a_cpu(algorithm: str, shape: str, t: str) -> None:
    import jax
    from jax import lax

    sizes = tuple(int(s) for s in shape.split("x"))
    state = np.array([42, 7], np.uint64)
    method = "RNG_THREE_FRY" if algorithm == "THREE_FRY" else "RNG_PHILOX"
    with jax.enable_x64(True):
        key = np.asarray(state).view(np.uint32)
        expected = lax.rng_bit_generator(
            key if algorithm == "THREE_FRY" else np.resize(key, 4),
            sizes,
            dtype=t.replace("ui", "uint"),
            algorithm=getattr(lax.RandomAlgorithm, method),
        )
        after, bits = (np.asarray(x) for x in expected)
    text = BITS.format(shape=shape, t=t, algorithm=algorithm)
    run_in_orders(text, [state], [after.view(np.uint64)[:2], bits])


def test_random_numbers_fill_their_range() -> None:
    (numbers,) = run_on_simulator(UNIFORM, np.float32(2), np.float32(4), order=6)
    assert 2 <= numbers.min() < 2.01
    assert 3.99 < numbers.max() < 4
    assert abs(numbers.mean() - 3) < 0.05


def test_transpose_mapping_and_ptx() -> None:
    text = TRANSPOSE.format(source="1024x2048", target="2048x1024", dims=[1, 0], t="bf16")
    program = compile_for_gpu(text)
    (spec,) = program.specs.values()
    launch = spec.phases[0].launch
    assert launch is not None
    # Tiles of 64 x 64: two elements of a thread fill 32 bits; a row of the tile has 65 elements.
    assert (launch.grid, launch.block, launch.shared_bytes) == (
        (512, 1, 1),
        (32, 16, 1),
        64 * 65 * 2,
    )
    assert_ptx(program, r"ld\.global(\.nc)?\.(v2|[bu]32)", r"st\.shared", r"bar\.sync")


def test_concatenate_reads_and_writes_wide() -> None:
    text = CONCATENATE.format(a="512x64", b="512x64", c="512x128", to="512x256", dim=1)
    assert_ptx(compile_for_gpu(text), r"ld\.global(\.nc)?\.v4", r"st\.global\.v4")
