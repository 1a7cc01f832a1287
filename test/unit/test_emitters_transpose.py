# SPDX-License-Identifier: Apache-2.0
"""Transposes on the CPU against numpy: any permutation, tiles that overlap, stages, vectors of every width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.emitters.cpu.transpose import Movement
from gristmill.compiler.target import Target

HOST = host_target()
NAMES: dict[str, Any] = {
    "i1": np.bool_,
    "i8": np.int8,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}


def program(shape: tuple[int, ...], order: tuple[int, ...], kind: str, before: str) -> str:
    operand = "x".join([*map(str, shape), kind])
    result = "x".join([*(str(shape[d]) for d in order), kind])
    computed = {
        "nothing": "",
        "elementwise": f"%c = stablehlo.multiply %a, %a : tensor<{operand}>",
        "reverse": f"%c = stablehlo.reverse %a, dims = [0] : tensor<{operand}>",
    }[before]
    return f"""
    func.func @main(%a: tensor<{operand}>) -> tensor<{result}> {{
      {computed}
      %0 = stablehlo.transpose {"%c" if computed else "%a"}, dims = {list(order)}
        : (tensor<{operand}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def check(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    kind: str = "f32",
    before: str = "nothing",
    target: Target = HOST,
    past_line: int = 0,
) -> str:
    """Compile, run on an operand ``past_line`` bytes past the begin of a cache line, compare; returns the kernels."""
    numbers = np.random.default_rng(0).integers(0, 2 if kind == "i1" else 11, (2, *shape))
    drawn = numbers[0].astype(NAMES[kind])
    if kind.startswith("complex"):
        drawn = (drawn + 1j * numbers[1]).astype(NAMES[kind])
    memory = np.empty(drawn.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + past_line
    values = memory[begin : begin + drawn.nbytes].view(drawn.dtype).reshape(shape)
    values[...] = drawn
    computed = {"elementwise": values * values, "reverse": values[::-1]}.get(before, values)
    text = program(shape, order, kind, before)
    compilation = compile_stages(import_source(text), target, keep_stages=True)
    with compilation.executable() as executable:
        result = executable(values, threads=2)
    expected = np.ascontiguousarray(computed.transpose(order))
    assert isinstance(result, np.ndarray)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))
    kernels = compilation.emit("kernels")
    assert isinstance(kernels, str)
    return kernels


@pytest.mark.parametrize("vector_bytes", sorted({16, 32, HOST.vector_bytes}))
@pytest.mark.parametrize("before", ["nothing", "elementwise", "reverse"])
@pytest.mark.parametrize("kind", NAMES)
def test_types_and_vectors(kind: str, before: str, vector_bytes: int) -> None:
    target = replace(HOST, vector_bytes=vector_bytes)
    check((3, 83, 70), (2, 0, 1), kind, before, target)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((130, 67), (1, 0)),
        ((512, 64), (1, 0)),  # rows of the result at a critical pitch
        ((64, 512), (1, 0)),
        ((3, 500), (1, 0)),  # shorter than a vector
        ((500, 3), (1, 0)),
        ((2, 3, 40, 50), (0, 2, 3, 1)),  # neighbours that stay neighbours
        ((2, 40, 50, 3), (0, 3, 1, 2)),
        ((1, 64, 1, 48), (3, 2, 1, 0)),  # unit dimensions
        ((2, 70, 1, 5), (0, 3, 1, 2)),
        ((17, 19, 23), (2, 1, 0)),
        ((2,) * 8, (7, 6, 5, 4, 3, 2, 1, 0)),
        ((0, 4), (1, 0)),
        ((1000, 17), (1, 0)),
    ],
)
@pytest.mark.parametrize("before", ["nothing", "elementwise", "reverse"])
def test_shapes(shape: tuple[int, ...], order: tuple[int, ...], before: str) -> None:
    check(shape, order, "f32", before)


@pytest.mark.parametrize("past_line", [0, 8, 16, 56])
@pytest.mark.parametrize("shape", [(70, 1024), (200, 1088), (512, 1024), (3, 70, 1024)])
@pytest.mark.parametrize("kind", ["i8", "bf16", "f32", "f64"])
def test_lines_of_the_operand(kind: str, shape: tuple[int, ...], past_line: int) -> None:
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    kernels = check(shape, order, kind, past_line=past_line)
    assert "extract_aligned_pointer_as_index" in kernels


@st.composite
def movements(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = draw(st.integers(2, 5))
    order = draw(st.permutations(range(rank)))
    most = {2: 200, 3: 60, 4: 24, 5: 12}[rank]
    return tuple(draw(st.integers(1, most)) for _ in range(rank)), tuple(order)


@settings(max_examples=60, deadline=None)
@given(movements(), st.sampled_from([*NAMES]), st.sampled_from(["nothing", "elementwise"]))
def test_any_movement(
    movement: tuple[tuple[int, ...], tuple[int, ...]], kind: str, before: str
) -> None:
    check(*movement, kind, before)


@given(movements())
def test_normal_form_moves_memory_alike(
    movement: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, order = movement
    given = Movement(tuple(shape[d] for d in order), order)
    merged = given.merged()
    memory = np.arange(np.prod(shape))
    expected = memory.reshape(shape).transpose(order)
    moved = memory.reshape(merged.operand(merged.shape)).transpose(merged.permutation)
    np.testing.assert_array_equal(moved.ravel(), expected.ravel())
    assert 1 not in merged.shape
    pairs = zip(merged.permutation, merged.permutation[1:], strict=False)
    assert all(b != a + 1 for a, b in pairs)


@pytest.mark.parametrize(
    ("shape", "streamed"),
    [
        ((256, 96), True),
        ((250, 96), False),  # rows of the result that are not whole vectors
        ((240, 70), True),  # tiles that overlap
    ],
)
def test_large_results_go_past_the_caches(shape: tuple[int, ...], streamed: bool) -> None:
    small = replace(HOST, vector_bytes=32, l2_bytes=4096, l3_bytes=8192)
    kernels = check(shape, (1, 0), target=small, past_line=16)
    assert ("nontemporal" in kernels) == streamed


def test_short_floats_are_moved_as_integers() -> None:
    shuffles = [x for x in check((64, 160), (1, 0), "bf16").splitlines() if "vector.shuffle" in x]
    assert shuffles
    assert all("xi16>" in x for x in shuffles)


@pytest.mark.parametrize(("nbytes", "span", "asked"), [(32, 4, 4), (64, 1, 16)])
def test_short_vectors_ask_for_lines_of_a_row_together(nbytes: int, span: int, asked: int) -> None:
    target = replace(HOST, vector_bytes=nbytes)
    kernels = check((256, 512), (1, 0), target=replace(target, l2_bytes=4096, l3_bytes=8192))
    assert kernels.count("memref.prefetch") == asked
    assert ("arith.select" in kernels) == (span > 1)  # behind the last column follow the next rows
