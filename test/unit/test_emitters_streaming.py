# SPDX-License-Identifier: Apache-2.0
"""Large results stored past the caches: right for every alignment, in rows and in one stretch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.target import Target
from gristmill.runtime.executable import Executable

# A machine with small caches: everything from 8 KiB on is large.
SMALL = replace(host_target(), l2_bytes=4096, l3_bytes=8192)

ADD = """
func.func @main(%x: tensor<NxK>) -> tensor<NxK> {
  %0 = stablehlo.add %x, %x : tensor<NxK>
  return %0 : tensor<NxK>
}
"""

BIAS = """
func.func @main(%x: tensor<37x256xf32>, %b: tensor<256xf32>) -> tensor<37x256xf32> {
  %0 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<256xf32>) -> tensor<37x256xf32>
  %1 = stablehlo.add %x, %0 : tensor<37x256xf32>
  return %1 : tensor<37x256xf32>
}
"""

CENTRE = """
func.func @main(%x: tensor<64x512xf32>) -> (tensor<64x512xf32>, tensor<64xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<64x512xf32>, tensor<f32>) -> tensor<64xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<64xf32>) -> tensor<64x512xf32>
  %d = stablehlo.subtract %x, %b : tensor<64x512xf32>
  return %d, %s : tensor<64x512xf32>, tensor<64xf32>
}
"""

GATHER = """
func.func @main(%x: tensor<9000x256xf32>, %i: tensor<37x1xi32>) -> tensor<37x256xf32> {
  %n = stablehlo.negate %x : tensor<9000x256xf32>
  %0 = "stablehlo.gather"(%n, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false,
    slice_sizes = array<i64: 1, 256>}>
    : (tensor<9000x256xf32>, tensor<37x1xi32>) -> tensor<37x256xf32>
  return %0 : tensor<37x256xf32>
}
"""

CUMULATIVE = """
func.func @main(%x: tensor<37x256xf32>) -> tensor<37x256xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %z) <{padding = dense<[[0, 0], [255, 0]]> : tensor<2x2xi64>,
    window_dimensions = array<i64: 1, 256>, window_strides = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<37x256xf32>, tensor<f32>) -> tensor<37x256xf32>
  return %0 : tensor<37x256xf32>
}
"""


def _compile(text: str, target: Target) -> tuple[Executable, str]:
    compilation = compile_stages(import_source(text), target, keep_stages=True)
    kernels = compilation.emit("kernels")
    assert isinstance(kernels, str)
    return compilation.executable(), kernels


def _offset(shape: tuple[int, ...], kind: type, nbytes: int) -> np.ndarray:
    """An array whose data begin ``nbytes`` behind a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    raw = np.zeros(size + 192, np.uint8)
    start = -raw.ctypes.data % 64 + nbytes
    return raw[start : start + size].view(kind).reshape(shape)


@pytest.mark.parametrize("offset", [0, 8, 32])
@pytest.mark.parametrize(("kind", "length"), [("f32", 10_000), ("f64", 4099), ("i8", 70_001)])
def test_a_stretch(kind: str, length: int, offset: int) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "i8": np.int8}[kind]
    text = ADD.replace("NxK", f"{length}x{kind}")
    executable, kernels = _compile(text, SMALL)
    assert "nontemporal" in kernels
    x = np.random.default_rng(0).integers(-50, 50, length).astype(dtype)
    out = _offset((length,), dtype, offset)
    with executable:
        executable(x, out=out)
        np.testing.assert_array_equal(out, x + x)
        np.testing.assert_array_equal(executable(x), x + x)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("width", [256, 1536, 16384])  # whole, in stretches, too wide to be staged
def test_rows_of_a_loop(width: int, offset: int) -> None:
    executable, kernels = _compile(BIAS.replace("256", str(width)), SMALL)
    assert "nontemporal" in kernels
    rng = np.random.default_rng(1)
    x, b = rng.standard_normal((37, width)).astype("f4"), rng.standard_normal(width).astype("f4")
    out = _offset((37, width), np.float32, offset)
    with executable:
        np.testing.assert_array_equal(executable(x, b, out=out), x + b)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize(
    "width", [512, 528, 2048, 4096]
)  # whole, whole, in stretches, not prefetched
def test_rows_around_a_reduction(width: int, offset: int) -> None:
    executable, kernels = _compile(CENTRE.replace("512", str(width)), SMALL)
    assert "nontemporal" in kernels
    assert ("prefetch" in kernels) == (width < 4096)
    x = np.random.default_rng(2).integers(-9, 9, (64, width)).astype(np.float32)
    out = _offset((64, width), np.float32, offset), np.zeros(64, np.float32)
    with executable:
        executable(x, out=out)
    centred, sums = out
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(centred, x - x.sum(1, keepdims=True))


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize(
    ("vector_bytes", "width", "streamed"),
    [(16, 256, True), (32, 256, True), (32, 250, False), (64, 256, False)],
)
def test_a_cumulative_sum(vector_bytes: int, width: int, streamed: bool, offset: int) -> None:
    text = CUMULATIVE.replace("256", str(width)).replace("255", str(width - 1))
    executable, kernels = _compile(text, replace(SMALL, vector_bytes=vector_bytes))
    assert ("nontemporal" in kernels) == streamed
    x = np.random.default_rng(4).integers(-9, 9, (37, width)).astype(np.float32)
    out = _offset((37, width), np.float32, offset)
    with executable:
        np.testing.assert_array_equal(executable(x, out=out), x.cumsum(1))


def test_a_transpose_is_streamed_where_many_cores_share_the_last_cache() -> None:
    text = """
    func.func @main(%x: tensor<192x256xf32>) -> tensor<256x192xf32> {
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<192x256xf32>) -> tensor<256x192xf32>
      return %0 : tensor<256x192xf32>
    }"""
    x = np.arange(192 * 256, dtype=np.float32).reshape(192, 256)
    for l3_bytes, streamed in ((32 << 20, False), (64 << 20, True)):
        executable, kernels = _compile(text, replace(SMALL, l3_bytes=l3_bytes))
        assert ("nontemporal" in kernels) == streamed
        with executable:
            np.testing.assert_array_equal(executable(x), x.T)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (
            ADD.replace("NxK", "10000xf32"),
            replace(SMALL, l3_bytes=64 << 20),
        ),  # shared, but a stretch
        (ADD.replace("NxK", "1000xf32"), SMALL),  # fits the second-level cache
        (ADD.replace("NxK", "10000xf32"), replace(SMALL, l3_bytes=1 << 20)),  # fits the last
        (BIAS.replace("256", "255"), SMALL),  # rows that are not whole vectors
        (GATHER, replace(SMALL, l3_bytes=1 << 20)),  # only what it takes of its operand counts
    ],
)
def test_other_results_are_stored_as_ever(text: str, target: Target) -> None:
    executable, kernels = _compile(text, target)
    executable.close()
    assert "nontemporal" not in kernels


def test_what_is_gathered_is_streamed_where_it_fills_the_caches() -> None:
    executable, kernels = _compile(GATHER, SMALL)
    assert "nontemporal" in kernels
    rng = np.random.default_rng(3)
    x, i = rng.standard_normal((9000, 256)).astype("f4"), rng.integers(0, 9000, (37, 1), np.int32)
    with executable:
        np.testing.assert_array_equal(executable(x, i), -x[i[:, 0]])
