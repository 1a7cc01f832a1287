# SPDX-License-Identifier: Apache-2.0
"""The simulator's warp matrix operations and asynchronous copies, by the PTX ISA's formulas, and seeded mistakes.

Which element of a matrix a lane holds is written here a second time, from the formulas of PTX ISA 8.7, "Matrix
fragments for mma.m16n8k8 / .m16n8k16 / .m16n8k32" and the figures of "ldmatrix", independent of the simulator's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_support import simulate

Array = np.ndarray[Any, Any]

ORDERS = (0, 1, 6, 31)

MMA = """
module {{
  gpu.module @kernels {{
    gpu.func @product(%a: memref<32x4x{p}x{t}>, %b: memref<32x2x{p}x{t}>, %c: memref<32x2x2x{s}>) kernel
        attributes {{known_block_size = array<i32: 32, 1, 1>, known_grid_size = array<i32: 1, 1, 1>}} {{
      %0 = arith.constant 0 : index
      %l = gpu.thread_id x
      %af = memref.collapse_shape %a [[0], [1, 2]] : memref<32x4x{p}x{t}> into memref<32x{ap}x{t}>
      %bf = memref.collapse_shape %b [[0], [1, 2]] : memref<32x2x{p}x{t}> into memref<32x{bp}x{t}>
      %cf = memref.collapse_shape %c [[0], [1, 2]] : memref<32x2x2x{s}> into memref<32x4x{s}>
      %av = vector.load %af[%l, %0] : memref<32x{ap}x{t}>, vector<{ap}x{t}>
      %bv = vector.load %bf[%l, %0] : memref<32x{bp}x{t}>, vector<{bp}x{t}>
      %cv = vector.load %cf[%l, %0] : memref<32x4x{s}>, vector<4x{s}>
      %as = vector.shape_cast %av : vector<{ap}x{t}> to vector<4x{p}x{t}>
      %bs = vector.shape_cast %bv : vector<{bp}x{t}> to vector<2x{p}x{t}>
      %cs = vector.shape_cast %cv : vector<4x{s}> to vector<2x2x{s}>
      %d = nvgpu.mma.sync(%as, %bs, %cs) {{mmaShape = [16, 8, {k}]{tf32}}}
        : (vector<4x{p}x{t}>, vector<2x{p}x{t}>, vector<2x2x{s}>) -> vector<2x2x{s}>
      %dv = vector.shape_cast %d : vector<2x2x{s}> to vector<4x{s}>
      vector.store %dv, %cf[%l, %0] : memref<32x4x{s}>, vector<4x{s}>
      gpu.return
    }}
  }}
}}
"""


def halves_a(lane: int, i: int) -> tuple[int, int]:
    """m16n8k16, 16-bit: ``a_i``."""
    row = lane // 4 if i < 2 or 4 <= i < 6 else lane // 4 + 8
    return row, (lane % 4) * 2 + (i & 1) + (8 if i >= 4 else 0)


def halves_b(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4) * 2 + (i & 1) + (8 if i >= 2 else 0), lane // 4


def tf32_a(lane: int, i: int) -> tuple[int, int]:
    """m16n8k8, .tf32: ``a_i``."""
    row = lane // 4 if i in (0, 2) else lane // 4 + 8
    return row, lane % 4 if i in (0, 1) else lane % 4 + 4


def tf32_b(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 if i == 0 else lane % 4 + 4, lane // 4


def bytes_a(lane: int, i: int) -> tuple[int, int]:
    """m16n8k32, .s8: ``a_i``."""
    row = lane // 4 if i < 4 or 8 <= i < 12 else lane // 4 + 8
    return row, (lane % 4) * 4 + (i & 3) + (16 if i >= 8 else 0)


def bytes_b(lane: int, i: int) -> tuple[int, int]:
    return (lane % 4) * 4 + (i & 3) + (16 if i >= 4 else 0), lane // 4


def sums(lane: int, i: int) -> tuple[int, int]:
    """``c_i`` of all of them."""
    return lane // 4 if i < 2 else lane // 4 + 8, (lane % 4) * 2 + (i & 1)


def fragments(matrix: Array, place: Callable[[int, int], tuple[int, int]], count: int) -> Array:
    """What the lanes hold of a matrix."""
    return np.array([[matrix[place(lane, i)] for i in range(count)] for lane in range(32)])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kind", "dtype", "sum_type", "k", "a_place", "b_place"),
    [
        ("f16", np.float16, np.float32, 16, halves_a, halves_b),
        ("bf16", ml_dtypes.bfloat16, np.float32, 16, halves_a, halves_b),
        ("f32", np.float32, np.float32, 8, tf32_a, tf32_b),
        ("i8", np.int8, np.int32, 32, bytes_a, bytes_b),
    ],
)
def test_mma(
    kind: str, dtype: Any, sum_type: Any, k: int, a_place: Any, b_place: Any, order: int
) -> None:
    rng = np.random.default_rng(k)
    # Small integers: exact in every type, in any order of additions.
    a, b, c = (
        rng.integers(-8, 9, s).astype(t)
        for s, t in (((16, k), dtype), ((k, 8), dtype), ((16, 8), sum_type))
    )
    p = 4 // np.dtype(dtype).itemsize
    text = MMA.format(
        p=p, ap=4 * p, bp=2 * p, t=kind, s="i32" if sum_type is np.int32 else "f32", k=k,
        tf32=", tf32Enabled" if kind == "f32" else "",
    )  # fmt: skip
    held = fragments(c, sums, 4)
    operands = fragments(a, a_place, 4 * p), fragments(b, b_place, 2 * p)
    simulate(text, "product", (1, 1, 1), (32, 1, 1), *operands, held, order=order)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(held, fragments(expected, sums, 4))


def test_tf32_ignores_the_low_bits() -> None:
    a = np.full((16, 8), np.float32(1 + 2.0**-10 + 2.0**-12))
    b, held = np.eye(8, dtype=np.float32), np.zeros((32, 4), np.float32)
    text = MMA.format(p=1, ap=4, bp=2, t="f32", s="f32", k=8, tf32=", tf32Enabled")
    operands = fragments(a, tf32_a, 4), fragments(b, tf32_b, 2)
    simulate(text, "product", (1, 1, 1), (32, 1, 1), *operands, held)
    assert (held == np.float32(1 + 2.0**-10)).all()


def test_integer_sums_wrap() -> None:
    a, b = np.full((16, 32), -128, np.int8), np.full((32, 8), -128, np.int8)
    held = np.full((32, 4), 2**31 - 1, np.int32)
    text = MMA.format(p=4, ap=16, bp=8, t="i8", s="i32", k=32, tf32="")
    operands = fragments(a, bytes_a, 16), fragments(b, bytes_b, 8)
    simulate(text, "product", (1, 1, 1), (32, 1, 1), *operands, held)
    assert (held == np.int32(2**31 - 1 + 32 * 16384 - 2**32)).all()


LDMATRIX = """
module {{
  gpu.module @kernels {{
    gpu.func @load(%in: memref<32x8xf16>, %out: memref<32x8xf16>)
        workgroup(%s: memref<32x8xf16, #gpu.address_space<workgroup>>) kernel
        attributes {{known_block_size = array<i32: 32, 1, 1>, known_grid_size = array<i32: 1, 1, 1>}} {{
      %0 = arith.constant 0 : index
      %l = gpu.thread_id x
      %row = vector.load %in[%l, %0] : memref<32x8xf16>, vector<8xf16>
      vector.store %row, %s[%l, %0] : memref<32x8xf16, #gpu.address_space<workgroup>>, vector<8xf16>
      gpu.barrier
      %f = nvgpu.ldmatrix %s[%l, %0] {{numTiles = 4 : i32, transpose = {transpose}}}
        : memref<32x8xf16, #gpu.address_space<workgroup>> -> vector<4x2xf16>
      %v = vector.shape_cast %f : vector<4x2xf16> to vector<8xf16>
      vector.store %v, %out[%l, %0] : memref<32x8xf16>, vector<8xf16>
      gpu.return
    }}
  }}
}}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("transpose", [False, True])
def test_ldmatrix(transpose: bool, order: int) -> None:
    data = np.arange(256, dtype=np.float16).reshape(32, 8)
    out = np.zeros((32, 8), np.float16)
    text = LDMATRIX.format(transpose=str(transpose).lower())
    simulate(text, "load", (1, 1, 1), (32, 1, 1), data, out, order=order)
    for lane in range(32):
        for i in range(4):
            matrix = data[8 * i : 8 * i + 8]
            matrix = matrix.T if transpose else matrix
            pair = matrix[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            np.testing.assert_array_equal(out[lane, 2 * i : 2 * i + 2], pair)


COPY = """
module {{
  gpu.module @kernels {{
    gpu.func @copy(%in: memref<256xf32>, %out: memref<256xf32>)
        workgroup(%s: memref<256xf32, #gpu.address_space<workgroup>>) kernel
        attributes {{known_block_size = array<i32: 64, 1, 1>, known_grid_size = array<i32: 1, 1, 1>}} {{
      %4 = arith.constant 4 : index
      %n = arith.constant {valid} : index
      %last = arith.constant 252 : index
      %t = gpu.thread_id x
      %at = arith.muli %t, %4 : index
      %from = arith.addi %at, %shift : index
      %other = arith.subi %last, %at : index
      {before}
      %k = nvgpu.device_async_copy %in[%from], %s[%at], 4, %n
        : memref<256xf32> to memref<256xf32, #gpu.address_space<workgroup>>
      %g = nvgpu.device_async_create_group %k
      {wait}
      {barrier}
      %v = vector.load %s[%other] : memref<256xf32, #gpu.address_space<workgroup>>, vector<4xf32>
      vector.store %v, %out[%other] : memref<256xf32>, vector<4xf32>
      gpu.return
    }}
  }}
}}
"""


def copy(
    wait: str = "nvgpu.device_async_wait %g",
    barrier: str = "gpu.barrier",
    before: str = "",
    valid: int = 4,
    shift: int = 0,
    order: int = 0,
) -> tuple[Array, Array]:
    text = COPY.format(wait=wait, barrier=barrier, before=before, valid=valid)
    text = text.replace("%t = gpu", f"%shift = arith.constant {shift} : index\n%t = gpu")
    data, out = np.arange(256, dtype=np.float32), np.full(256, -1, np.float32)
    simulate(text, "copy", (1, 1, 1), (64, 1, 1), data, out, order=order)
    return data, out


@pytest.mark.parametrize("order", ORDERS)
def test_copies(order: int) -> None:
    data, out = copy(order=order)
    np.testing.assert_array_equal(out, data)
    data, out = copy(valid=1, order=order)
    np.testing.assert_array_equal(out.reshape(-1, 4)[:, 0], data[::4])
    assert not out.reshape(-1, 4)[:, 1:].any(), "what is beyond the source is zero"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wait", ["", "nvgpu.device_async_wait %g {numGroups = 1 : i32}"])
def test_a_copy_that_is_not_waited_for_never_arrives(wait: str, order: int) -> None:
    _, out = copy(wait=wait, order=order)
    assert np.isnan(out).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_is_seen_by_others_after_a_barrier_only(order: int) -> None:
    with pytest.raises(RuntimeError, match=r"no barrier between|never written"):
        copy(barrier="", order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_wait_after_the_barrier_is_too_late(order: int) -> None:
    with pytest.raises(RuntimeError, match="no barrier between"):
        copy(wait="gpu.barrier", barrier="nvgpu.device_async_wait %g", order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_over_what_others_read_is_a_race(order: int) -> None:
    read = """%z = arith.constant dense<0.0> : vector<4xf32>
      vector.store %z, %s[%at] : memref<256xf32, #gpu.address_space<workgroup>>, vector<4xf32>
      gpu.barrier
      %w = vector.load %s[%other] : memref<256xf32, #gpu.address_space<workgroup>>, vector<4xf32>
      vector.store %w, %out[%at] : memref<256xf32>, vector<4xf32>"""
    copy(before=read + "\ngpu.barrier", order=order)
    with pytest.raises(RuntimeError, match="no barrier between"):
        copy(before=read, order=order)


def test_sources_are_checked() -> None:
    copy(shift=3, valid=1)
    with pytest.raises(RuntimeError, match=r"index 256 is not in \[0, 256\)"):
        copy(shift=4, valid=1)
    with pytest.raises(RuntimeError, match=r"index 256 is not in \[0, 256\)"):
        copy(shift=1, valid=4)
    copy(shift=1000, valid=0)
