# SPDX-License-Identifier: Apache-2.0
"""What the simulator finds in kernels that break a rule, and that it finds nothing in those that do not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_support import simulate

BLOCK = 128
BLOCKS = 3
SIZE = BLOCK * BLOCKS
SPACE = "#gpu.address_space<workgroup>"

_KERNEL = """
gpu.module @kernels {
  gpu.func @k(%in: memref<384xf32>, %out: memref<384xf32>)
      workgroup(%s: memref<128xf32, #gpu.address_space<workgroup>>, %t: memref<4xf32, #gpu.address_space<workgroup>>,
                %n: memref<1xi32, #gpu.address_space<workgroup>>)
      kernel attributes {known_block_size = array<i32: 128, 1, 1>, known_grid_size = array<i32: 3, 1, 1>} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c31 = arith.constant 31 : index
    %c32 = arith.constant 32 : index
    %c64 = arith.constant 64 : index
    %c127 = arith.constant 127 : index
    %c128 = arith.constant 128 : index
    %i0 = arith.constant 0 : i32
    %i1 = arith.constant 1 : i32
    %i32 = arith.constant 32 : i32
    %zero = arith.constant 0.0 : f32
    %x = gpu.thread_id x
    %b = gpu.block_id x
    %base = arith.muli %b, %c128 : index
    %g = arith.addi %base, %x : index
    %mirror = arith.subi %c127, %x : index
    %v = memref.load %in[%g] : memref<384xf32>
    BODY
    gpu.return
  }
}
"""

# Reverse each block by way of shared memory.
REVERSE = """
    memref.store %v, %s[%x] : S
    gpu.barrier
    %r = memref.load %s[%mirror] : S
    memref.store %r, %out[%g] : memref<384xf32>
"""

# The sum of a block in a tree of shared memory.
TREE = """
    memref.store %v, %s[%x] : S
    gpu.barrier
    %last = scf.while (%h = %c64) : (index) -> index {
      %more = arith.cmpi ugt, %h, %c0 : index
      scf.condition(%more) %h : index
    } do {
    ^bb0(%h: index):
      %low = arith.cmpi ult, %x, %h : index
      scf.if %low {
        %p = arith.addi %x, %h : index
        %u = memref.load %s[%p] : S
        %w = memref.load %s[%x] : S
        %z = arith.addf %u, %w : f32
        memref.store %z, %s[%x] : S
      }
      gpu.barrier
      %half = arith.shrui %h, %c1 : index
      scf.yield %half : index
    }
    %sum = memref.load %s[%c0] : S
    memref.store %sum, %out[%g] : memref<384xf32>
"""

# The same by shuffles, the warps combined in shared memory, twice over the same four words.
SHUFFLES = """
    %c2 = arith.constant 2 : index
    %sum = scf.for %turn = %c0 to %c2 step %c1 iter_args(%carry = %v) -> f32 {
      %end = arith.constant 5 : index
      %all = scf.for %k = %c0 to %end step %c1 iter_args(%a = %carry) -> f32 {
        %bit = arith.shli %c1, %k : index
        %o = arith.index_cast %bit : index to i32
        %other, %valid = gpu.shuffle xor %a, %o, %i32 : f32
        %z = arith.addf %a, %other : f32
        scf.yield %z : f32
      }
      %lane = arith.remui %x, %c32 : index
      %warp = arith.divui %x, %c32 : index
      %first = arith.cmpi eq, %lane, %c0 : index
      scf.if %first {
        memref.store %all, %t[%warp] : T
      }
      gpu.barrier
      %total = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero) -> f32 {
        %part = memref.load %t[%k] : T
        %z = arith.addf %a, %part : f32
        scf.yield %z : f32
      }
      gpu.barrier // before the words are used again
      scf.yield %total : f32
    }
    memref.store %sum, %out[%g] : memref<384xf32>
"""

# Lanes of a warp hand values on through shared memory, ordered by a shuffle.
WARP = """
    memref.store %v, %s[%x] : S
    %same, %valid = gpu.shuffle idx %v, %i0, %i32 : f32
    %o = arith.xori %x, %c31 : index
    %r = memref.load %s[%o] : S
    memref.store %r, %out[%g] : memref<384xf32>
"""

# Every thread adds to one counter.
COUNTER = """
    %first = arith.cmpi eq, %x, %c0 : index
    scf.if %first {
      memref.store %i0, %n[%c0] : N
    }
    gpu.barrier
    %old = memref.atomic_rmw addi %i1, %n[%c0] : (i32, N) -> i32
    gpu.barrier
    %all = memref.load %n[%c0] : N
    %r = arith.sitofp %all : i32 to f32
    memref.store %r, %out[%g] : memref<384xf32>
"""

CORRECT = {"reverse": REVERSE, "tree": TREE, "shuffles": SHUFFLES, "warp": WARP, "counter": COUNTER}
ORDERS = (0, 1, 2, 7, 31)


def _nth(text: str, old: str, new: str, number: int) -> str:
    """``text`` with occurrence ``number`` of ``old`` replaced."""
    places = [match.start() for match in re.finditer(re.escape(old), text)]
    at = places[number]
    return text[:at] + new + text[at + len(old) :]


#: Kernels with one fault each: the code and what the message must say.
SEEDED = {
    "reverse without its barrier": (
        _nth(REVERSE, "gpu.barrier", "", 0),
        "no barrier|never written",
    ),
    "tree without the first barrier": (
        _nth(TREE, "gpu.barrier", "", 0),
        "no barrier|never written",
    ),
    "tree without the barrier of each step": (_nth(TREE, "gpu.barrier", "", 1), "no barrier"),
    "shuffles without the first barrier": (
        _nth(SHUFFLES, "gpu.barrier", "", 0),
        "no barrier|never written",
    ),
    "shuffles without the barrier before reuse": (
        _nth(SHUFFLES, "gpu.barrier", "", 1),
        "no barrier",
    ),
    "warp without its shuffle": (
        re.sub(r"%same, %valid = gpu.shuffle[^\n]*", "", WARP),
        "no barrier|never written",
    ),
    "warp that reads another warp's part": (
        WARP.replace("arith.xori %x, %c31", "arith.xori %x, %c32"),
        "no barrier|never written",
    ),
    "counter without atomics": (
        COUNTER.replace(
            "%old = memref.atomic_rmw addi %i1, %n[%c0] : (i32, N) -> i32",
            "%old = memref.load %n[%c0] : N\n %new = arith.addi %old, %i1 : i32\n memref.store %new, %n[%c0] : N",
        ),
        "no barrier",
    ),
    "counter read without the second barrier": (_nth(COUNTER, "gpu.barrier", "", 1), "no barrier"),
    "counter that nobody clears": (
        COUNTER.replace("memref.store %i0, %n[%c0] : N", ""),
        "never written",
    ),
    "barrier in a branch": (
        REVERSE.replace(
            "gpu.barrier", "%h = arith.cmpi ult, %x, %c64 : index\n scf.if %h { gpu.barrier }"
        ),
        "not all threads|no barrier|never written",
    ),
    "barrier that some threads never reach": (
        "%h = arith.cmpi ult, %x, %c64 : index\n scf.if %h { gpu.barrier }\n"
        "memref.store %v, %out[%g] : memref<384xf32>",
        "not all threads of the block",
    ),
    "shuffle in a branch": (
        "%h = arith.cmpi ult, %x, %c1 : index\n scf.if %h { %o, %y = gpu.shuffle xor %v, %i1, %i32 : f32 }",
        "not all lanes",
    ),
    "store behind the end": (
        "%far = arith.addi %g, %c1 : index\n memref.store %v, %out[%far] : memref<384xf32>",
        r"block 2, thread 127: .*index 384 is not in \[0, 384\)",
    ),
    "load before the start": (
        "%far = arith.subi %g, %c1 : index\n %r = memref.load %in[%far] : memref<384xf32>"
        "\n memref.store %r, %out[%g] : memref<384xf32>",
        r"block 0, thread 0: .*index -1 is not in \[0, 384\)",
    ),
    "shared store behind the end": (
        "%far = arith.addi %x, %c1 : index\n memref.store %v, %s[%far] : S",
        r"index 128 is not in \[0, 128\)",
    ),
}


def _source(body: str) -> str:
    for name, kind in (("S", "128xf32"), ("T", "4xf32"), ("N", "1xi32")):
        body = re.sub(rf"\b{name}\b", f"memref<{kind}, {SPACE}>", body)
    return _KERNEL.replace("BODY", body)


def _run(body: str, order: int) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    results = np.zeros(SIZE, np.float32)
    simulate(_source(body), "k", (BLOCKS, 1, 1), (BLOCK, 1, 1), values, results, order=order)
    return values.reshape(BLOCKS, BLOCK), results.reshape(BLOCKS, BLOCK)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_kernel_is_not_flagged_and_right_in_every_order(name: str, order: int) -> None:
    values, results = _run(CORRECT[name], order)
    sums = np.broadcast_to(values.sum(1, dtype=np.float64, keepdims=True), values.shape)
    expected = {
        "reverse": values[:, ::-1],
        "tree": sums,
        "shuffles": sums * BLOCK,
        "warp": values.reshape(BLOCKS, -1, 32)[:, :, ::-1].reshape(values.shape),
        "counter": np.full(values.shape, BLOCK),
    }
    np.testing.assert_allclose(results, expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_fault_is_found_in_every_order(name: str) -> None:
    body, message = SEEDED[name]
    for order in ORDERS:
        with pytest.raises(RuntimeError, match=message):
            _run(body, order)


_VIEW = """
gpu.module @kernels {
  gpu.func @k(%in: memref<64xf32>, %out: memref<64xf32>)
      workgroup(%bytes: memref<512xi8, #gpu.address_space<workgroup>>)
      kernel attributes {known_block_size = array<i32: 64, 1, 1>, known_grid_size = array<i32: 1, 1, 1>} {
    %c63 = arith.constant 63 : index
    %c256 = arith.constant 256 : index
    %x = gpu.thread_id x
    %mirror = arith.subi %c63, %x : index
    %s = memref.view %bytes[%c256][] : memref<512xi8, #gpu.address_space<workgroup>>
      to memref<64xf32, #gpu.address_space<workgroup>>
    %v = memref.load %in[%x] : memref<64xf32>
    memref.store %v, %s[%x] : memref<64xf32, #gpu.address_space<workgroup>>
    BARRIER
    %r = memref.load %s[%mirror] : memref<64xf32, #gpu.address_space<workgroup>>
    memref.store %r, %out[%x] : memref<64xf32>
    gpu.return
  }
}
"""


@pytest.mark.parametrize("order", [0, 1, 6])
def test_views_of_shared_memory_are_checked(order: int) -> None:
    data, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    grid, block = (1, 1, 1), (64, 1, 1)
    simulate(_VIEW.replace("BARRIER", "gpu.barrier"), "k", grid, block, data, out, order=order)
    np.testing.assert_array_equal(out, data[::-1])
    with pytest.raises(RuntimeError, match=r"never written|no barrier between"):
        simulate(_VIEW.replace("BARRIER", ""), "k", grid, block, data, out, order=order)
