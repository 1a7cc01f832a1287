# SPDX-License-Identifier: Apache-2.0
"""Entry functions that time themselves: same results, every launch counted, no time lost or made up."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from gristmill.compiler.compile import Compilation, compile_stages, import_source
from gristmill.compiler.program import Profile
from gristmill.compiler.program.profile import COPIES, START, SlotTimes
from gristmill.runtime.executable import Executable

Array = np.ndarray[Any, Any]

TRIPS = 7
LOOP = f"""
func.func @main(%x: tensor<300x400xf32>, %w: tensor<400x400xf32>) -> tensor<300x400xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %trips = stablehlo.constant dense<{TRIPS}> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<300x400xf32>
    cond {{
      %p = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0]
        : (tensor<300x400xf32>, tensor<400x400xf32>) -> tensor<300x400xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<300x400xf32>
    }}
  return %r#1 : tensor<300x400xf32>
}}
"""


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return compile_stages(import_source(LOOP))


def inputs() -> list[Array]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 400), np.float32)
    return [x, rng.standard_normal((400, 400), np.float32) / 20]


def run(
    compilation: Compilation, threads: int, arrays: list[Array]
) -> tuple[Array, Profile, list[dict[str, SlotTimes]], float]:
    program, profile = compilation.profiled(threads)
    record = np.zeros(profile.type.shape, np.uint64)
    result = np.empty((300, 400), np.float32)
    with Executable(program) as executable:
        executable(*arrays, out=[result, record], threads=threads)
        record[...] = 0
        start = time.perf_counter()
        executable(*arrays, out=[result, record], threads=threads)
        wall = time.perf_counter() - start
    return result, profile, profile.read(record), wall


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_launch_is_counted_and_every_nanosecond_belongs_to_one(
    compilation: Compilation, threads: int
) -> None:
    x, w = inputs()
    result, profile, rows, wall = run(compilation, threads, [x, w])
    want = x.astype(np.float64)
    for _ in range(TRIPS):
        want = want @ w
    np.testing.assert_allclose(result, want, atol=1e-3)
    assert len(rows) == threads
    dots = [name for name in profile.kernels if name.endswith("dot")]
    assert len(dots) == 1
    assert all(row[dots[0]].launches == TRIPS for row in rows)
    first = rows[0]
    assert first[START].launches == 0
    assert first[dots[0]].running > 0
    running = sum(times.running for times in first.values()) * 1e-9
    waiting = sum(times.waiting for times in first.values()) * 1e-9
    assert 0.3 * wall < running + waiting < wall
    if threads == 1:
        assert waiting < 0.1 * running  # nobody to wait for


def test_slots_do_not_overlap_and_rows_are_cache_lines() -> None:
    profile = Profile(("a", "b", "c"), 4, 1)
    assert profile.slots == (START, COPIES, "a", "b", "c")
    offsets = [profile.slot_offset(slot) for slot in profile.slots]
    assert [b - a for a, b in itertools.pairwise(offsets)] == [24] * 4
    assert profile.row_words % 8 == 0
    assert offsets[-1] + 24 <= 8 * profile.row_words
    record = np.zeros(profile.type.shape, np.uint64)
    record[2, profile.slot_offset("b") // 8 :][:3] = 5, 6, 7
    assert profile.read(record)[2]["b"] == SlotTimes(5, 6, 7)
    assert profile.read(record)[2]["a"] == SlotTimes(0, 0, 0)


def test_the_plain_program_does_not_read_the_clock(compilation: Compilation) -> None:
    assert not any(b"clock_gettime" in data for data in compilation.program().objects)
    assert b"clock_gettime" in compilation.profiled(1)[0].objects[0]
