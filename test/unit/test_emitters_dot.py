# SPDX-License-Identifier: Apache-2.0
"""The dot emitter against numpy: any dimension numbers, element types, forms, tilings and fusions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from dot_support import aligned, assert_matches, random_array, reference, run_kernel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlir import ir
from mlir.dialects import arith, memref

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.emitters.build import Index, index_value, load
from gristmill.compiler.emitters.cpu.dot import emit_dot
from gristmill.compiler.emitters.cpu.dot_build import DotKernel
from gristmill.compiler.emitters.cpu.dot_gemm import Tiling, emit_gemm
from gristmill.compiler.emitters.cpu.dot_plan import Form, choose_form, choose_tiling
from gristmill.compiler.emitters.cpu.dot_problem import AxisMap, DotProblem
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelSpec
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, element_type

MATMUL: dict[str, Any] = {"lhs_contract": (1,), "rhs_contract": (0,)}


def problem_of(lhs: str, rhs: str, result: str, **dims: Sequence[int]) -> DotProblem:
    kinds = ArrayType.parse(lhs), ArrayType.parse(rhs)
    return DotProblem.of(*kinds, element_type(result), **dims)


def check(problem: DotProblem, *, target: Target | None = None, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    kinds = problem.lhs.array, problem.rhs.array
    lhs, rhs = (random_array(k, rng) for k in kinds)
    with ir.Context(), ir.Location.unknown():
        kernel = emit_dot(
            "dot", problem, target or host_target(), arguments=kinds, results=[problem.output]
        )
        (got,) = run_kernel(kernel, [lhs, rhs], target=target)
    assert_matches(problem, got, reference(problem, lhs, rhs))


#: Operand type and result type.
TYPES = [
    *[(t, t) for t in ("f32", "f32", "f64", "bf16", "f16", "i1")],
    *[(t, t) for t in ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")],
    *[("bf16", "f32"), ("f16", "f32"), ("f32", "f64"), ("f32", "bf16")],
    *[("i8", "i32"), ("ui8", "i32"), ("ui8", "ui32"), ("i16", "i64"), ("i8", "f32")],
]


@st.composite
def problems(draw: st.DrawFn) -> DotProblem:
    operand, result = draw(st.sampled_from(TYPES))
    largest = draw(st.sampled_from([4, 12, 40, 130]))
    most = 1 if largest > 12 else 2
    size = st.integers(1, largest) if draw(st.integers(0, 9)) else st.integers(0, 3)
    batch = draw(st.lists(st.integers(1, 3), max_size=most))
    rows, columns, depth = (draw(st.lists(size, max_size=most)) for _ in range(3))

    def arrange(free: list[int]) -> tuple[tuple[int, ...], list[int], list[int]]:
        dims = [
            *[("batch", i, s) for i, s in enumerate(batch)],
            *[("free", i, s) for i, s in enumerate(free)],
            *[("depth", i, s) for i, s in enumerate(depth)],
        ]
        order = draw(st.permutations(dims))

        def find(group: str, count: int) -> list[int]:
            return [
                next(p for p, d in enumerate(order) if d[:2] == (group, i)) for i in range(count)
            ]

        shape = tuple(s for _, _, s in order)
        return shape, find("batch", len(batch)), find("depth", len(depth))

    lhs_shape, lhs_batch, lhs_contract = arrange(rows)
    rhs_shape, rhs_batch, rhs_contract = arrange(columns)
    element = element_type(operand)
    return DotProblem.of(
        ArrayType(lhs_shape, element),
        ArrayType(rhs_shape, element),
        element_type(result),
        lhs_batch=lhs_batch,
        rhs_batch=rhs_batch,
        lhs_contract=lhs_contract,
        rhs_contract=rhs_contract,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(), st.integers(0, 2**32 - 1))
def test_any_dimension_numbers_and_types(problem: DotProblem, seed: int) -> None:
    check(problem, seed=seed)


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "dims"),
    [
        ("0x5xf32", "5x7xf32", "f32", MATMUL),
        ("3x0xf32", "0x7xf32", "f32", MATMUL),
        ("3x0xi8", "0x7xi8", "i32", MATMUL),
        ("3x5xbf16", "5x0xbf16", "bf16", MATMUL),
        (
            "4x0x5xf32",
            "4x5x2xf32",
            "f32",
            dict(MATMUL, lhs_batch=(0,), rhs_batch=(0,))
            | {"lhs_contract": (2,), "rhs_contract": (1,)},
        ),
    ],
)
def test_empty_dimensions(lhs: str, rhs: str, result: str, dims: dict[str, Any]) -> None:
    check(problem_of(lhs, rhs, result, **dims))


@pytest.mark.parametrize("operand", ["f32", "bf16", "f16", "i8"])
@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (1, 1), (0, 0)])
def test_long_sums_in_every_orientation(operand: str, dims: tuple[int, int]) -> None:
    lhs, rhs = [(37, 2500), (2500, 37)][dims[0] == 0], [(50, 2500), (2500, 50)][dims[1] == 0]
    result = "i32" if operand == "i8" else operand
    problem = problem_of(
        f"{lhs[0]}x{lhs[1]}x{operand}",
        f"{rhs[0]}x{rhs[1]}x{operand}",
        result,
        lhs_contract=(dims[0],),
        rhs_contract=(dims[1],),
    )
    check(problem)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("operand", ["f32", "f64", "bf16"])
def test_few_rows(rows: int, transposed: bool, operand: str) -> None:
    rhs = f"203x{301}x{operand}" if transposed else f"301x203x{operand}"
    contract = (1,) if transposed else (0,)
    problem = problem_of(
        f"{rows}x301x{operand}", rhs, operand, lhs_contract=(1,), rhs_contract=contract
    )
    check(problem)
    check(dataclasses.replace(problem, lhs=problem.rhs, rhs=problem.lhs))  # few columns


def test_several_rows_against_a_large_matrix() -> None:
    check(problem_of("6x1030xf32", "1030x1025xf32", "f32", **MATMUL))
    small = dataclasses.replace(host_target(), l3_bytes=1 << 20)
    check(problem_of("8x1030xf32", "1030x1025xf32", "f32", **MATMUL), target=small)


def test_smaller_vectors() -> None:
    for nbytes in (16, 32):
        target = dataclasses.replace(host_target(), vector_bytes=nbytes)
        for rows in (2, 61):
            check(problem_of(f"{rows}x70xf32", "70x45xf32", "f32", **MATMUL), target=target)
            problem = problem_of(
                f"{rows}x70xf64", "45x70xf64", "f64", lhs_contract=(1,), rhs_contract=(1,)
            )
            check(problem, target=target)


def gemm(problem: DotProblem, tiling: Tiling) -> KernelDefinition:
    kinds = problem.lhs.array, problem.rhs.array
    vector_bytes = host_target().vector_bytes
    kernel = DotKernel(
        "dot", problem, kinds, (problem.output,), 0, 1, None, None, None, vector_bytes
    )
    module = ir.Module.create()
    phases, workspace, scratch = emit_gemm(module, kernel, tiling)
    spec = KernelSpec("dot", tuple(phases), kinds, (problem.output,), workspace, scratch)
    return KernelDefinition(spec, module)


@pytest.mark.parametrize("result", ["f32", "bf16"])
@pytest.mark.parametrize("lhs", ["plain", "rows", "columns"])
@pytest.mark.parametrize("rhs", ["plain", "shared", "private"])
@pytest.mark.parametrize(("rows", "k_chunk"), [(45, 64), (15, 208), (20, 32)])
def test_every_packing_gives_the_same_sums(
    result: str, lhs: Any, rhs: Any, rows: int, k_chunk: int
) -> None:
    problem = problem_of(
        "2x45x203xf32",
        "203x2x70xf32",
        result,
        lhs_batch=(0,),
        rhs_batch=(1,),
        lhs_contract=(2,),
        rhs_contract=(0,),
    )
    rng = np.random.default_rng(1)
    a, b = (random_array(k, rng) for k in (problem.lhs.array, problem.rhs.array))
    with ir.Context(), ir.Location.unknown():
        kernel = gemm(problem, Tiling(4, 2, rows, k_chunk, lhs, rhs))
        (got,) = run_kernel(kernel, [a, b])
    assert_matches(problem, got, reference(problem, a, b))


@pytest.mark.parametrize("operand", ["i8", "ui8", "i16"])
@pytest.mark.parametrize("lhs", ["rows", "columns"])
@pytest.mark.parametrize("rhs", ["shared", "private"])
@pytest.mark.parametrize("orientation", [(1, 0), (0, 1)])
def test_pairs_of_narrow_integers(
    operand: str, lhs: Any, rhs: Any, orientation: tuple[int, int]
) -> None:
    """An odd depth, in two chunks, by every packing and orientation."""
    a, b = orientation
    problem = problem_of(
        f"45x203x{operand}" if a else f"203x45x{operand}",
        f"70x203x{operand}" if b else f"203x70x{operand}",
        "i32",
        lhs_contract=(a,),
        rhs_contract=(b,),
    )
    rng = np.random.default_rng(4)
    left, right = (random_array(k, rng) for k in (problem.lhs.array, problem.rhs.array))
    with ir.Context(), ir.Location.unknown():
        kernel = gemm(problem, Tiling(4, 2, 20, 64, lhs, rhs))
        (got,) = run_kernel(kernel, [left, right])
    assert_matches(problem, got, reference(problem, left, right))


def test_narrow_results_are_rounded_once() -> None:
    problem = problem_of("8x4096xbf16", "4096x32xbf16", "bf16", **MATMUL)
    lhs = np.ones((8, 4096), problem.lhs.array.element.dtype)
    rhs = np.ones((4096, 32), lhs.dtype)
    with ir.Context(), ir.Location.unknown():
        kernel = emit_dot(
            "dot",
            problem,
            host_target(),
            arguments=[problem.lhs.array, problem.rhs.array],
            results=[problem.output],
        )
        (got,) = run_kernel(kernel, [lhs, rhs])
    # Sums kept in bf16 would stop at 256.
    assert (got.astype(np.float32) == 4096).all()


@pytest.mark.parametrize(
    ("lhs", "rhs", "dims"),
    [
        ("40x64xf32", "64x70xf32", MATMUL),
        ("40x64xf32", "64x3x32xf32", MATMUL),
        ("2x20x64xf32", "64x5x7xf32", {"lhs_contract": (2,), "rhs_contract": (0,)}),
        ("1x64xf32", "64x130xf32", MATMUL),
        ("130x64xf32", "64x1xf32", MATMUL),
        ("130x64xf32", "2x64xf32", {"lhs_contract": (1,), "rhs_contract": (1,)}),
        ("3x2xf32", "2x5xf32", MATMUL),
        ("64x64xbf16", "64x64xbf16", MATMUL),
    ],
)
def test_epilogue_sees_every_element_at_its_index(lhs: str, rhs: str, dims: dict[str, Any]) -> None:
    """Bias by the last dimension, then relu; the second result is a copy of a full-shape operand."""
    result = lhs.rpartition("x")[2]
    problem = problem_of(lhs, rhs, result, **dims)
    out = problem.output
    bias, residual = ArrayType(out.shape[-1:], out.element), out

    def epilogue(
        value: ir.Value, index: Sequence[Index], buffers: Sequence[ir.Value]
    ) -> list[ir.Value]:
        shift = memref.LoadOp(buffers[2], [index_value(index[-1])]).result
        other = memref.LoadOp(buffers[3], [index_value(i) for i in index]).result
        wide = ir.F32Type.get()
        narrow = value.type != wide  # CPUs need not have arithmetic on bf16
        value, shift = (arith.ExtFOp(wide, x).result if narrow else x for x in (value, shift))
        nought = arith.ConstantOp(wide, ir.FloatAttr.get(wide, 0.0)).result
        total = arith.MaximumFOp(arith.AddFOp(value, shift).result, nought).result
        return [arith.TruncFOp(other.type, total).result if narrow else total, other]

    rng = np.random.default_rng(2)
    kinds = [problem.lhs.array, problem.rhs.array, bias, residual]
    arrays = [random_array(k, rng) for k in kinds]
    with ir.Context(), ir.Location.unknown():
        kernel = emit_dot(
            "dot", problem, host_target(), arguments=kinds, results=[out, out], epilogue=epilogue
        )
        got, copy = run_kernel(kernel, arrays)
    np.testing.assert_array_equal(copy.astype(np.float64), arrays[3].astype(np.float64))
    wide = reference(problem, arrays[0], arrays[1]) + arrays[2].astype(np.float64)
    tolerance = 0.05 if result == "bf16" else 1e-5
    np.testing.assert_allclose(got.astype(np.float64), np.maximum(wide, 0), atol=tolerance)


@pytest.mark.parametrize("shape", [(33, 40, 50), (2, 40, 50), (600, 40, 50), (3, 4, 5)])
def test_prologues_compute_the_operands(shape: tuple[int, int, int]) -> None:
    """The left operand is converted from i8, the right one is a transpose times two."""
    m, k, n = shape
    problem = problem_of(f"{m}x{k}xf32", f"{k}x{n}xf32", "f32", **MATMUL)
    kinds = [ArrayType.parse(f"{m}x{k}xi8"), ArrayType.parse(f"{n}x{k}xf32")]
    f32 = element_type("f32")

    def left(index: Sequence[Index], buffers: Sequence[ir.Value]) -> ir.Value:
        value = load(buffers[0], index, kinds[0].element)
        return arith.SIToFPOp(ir.F32Type.get(), value).result

    def right(index: Sequence[Index], buffers: Sequence[ir.Value]) -> ir.Value:
        value = load(buffers[1], [index[1], index[0]], f32)
        return arith.AddFOp(value, value).result

    rng = np.random.default_rng(3)
    a, b = (random_array(t, rng) for t in kinds)
    with ir.Context(), ir.Location.unknown():
        kernel = emit_dot(
            "dot",
            problem,
            host_target(),
            arguments=kinds,
            results=[problem.output],
            lhs_prologue=left,
            rhs_prologue=right,
        )
        (got,) = run_kernel(kernel, [a, b])
    np.testing.assert_allclose(got, a.astype(np.float64) @ (2 * b.T), rtol=1e-4, atol=1e-2)


BATCH = {"lhs_batch": (0,), "rhs_batch": (0,)}


@pytest.mark.parametrize(
    ("lhs", "rhs", "dims", "form"),
    [
        ("3x3xf32", "3x3xf32", MATMUL, Form.SCALAR),
        ("1x512xf32", "512x512xf32", MATMUL, Form.STREAMED),
        ("6x1024xf32", "1024x1024xf32", MATMUL, Form.STREAMED),
        ("6x512xf32", "512x512xf32", MATMUL, Form.BLOCKED),
        ("8x768xf32", "768x3072xf32", MATMUL, Form.BLOCKED),
        ("8x1024xf32", "1024x4096xf32", MATMUL, Form.STREAMED),  # more than L3 keeps
        ("512x512xf32", "512xf32", MATMUL, Form.DOTTED),
        ("512x512xf32", "512xf32", {"lhs_contract": (0,), "rhs_contract": (0,)}, Form.STREAMED),
        ("64x512xf32", "512x512xf32", MATMUL, Form.BLOCKED),
        (
            "999x3x4xf32",
            "999x4xf32",
            BATCH | {"lhs_contract": (2,), "rhs_contract": (1,)},
            Form.SCALAR,
        ),
        (
            "999x5x4xf32",
            "999x4xf32",
            BATCH | {"lhs_contract": (2,), "rhs_contract": (1,)},
            Form.BLOCKED,
        ),
    ],
)
def test_forms(lhs: str, rhs: str, dims: dict[str, Any], form: Form) -> None:
    problem = problem_of(lhs, rhs, "f32", **dims)
    kinds = problem.lhs.array, problem.rhs.array
    kernel = DotKernel("dot", problem, kinds, (problem.output,), 0, 1, None, None, None, 64)
    target = dataclasses.replace(host_target(), features="+avx512vl", l3_bytes=32 << 20)
    assert choose_form(kernel, target)[0] is form


@pytest.mark.parametrize(
    ("lhs", "rhs", "form"),
    [
        ("6x1024xf32", "1024x1024xf32", Form.STREAMED),
        ("7x1024xf32", "1024x1024xf32", Form.TILED),
        ("16x1024xf32", "1024x1024xf32", Form.TILED),
        ("17x1024xf32", "1024x1024xf32", Form.BLOCKED),
        ("8x256xf32", "256x512xf32", Form.BLOCKED),  # fits the second-level cache
        ("8x1024xbf16", "1024x1024xbf16", Form.BLOCKED),
    ],
)
def test_forms_with_16_registers(lhs: str, rhs: str, form: Form) -> None:
    problem = problem_of(lhs, rhs, lhs.rpartition("x")[2], **MATMUL)
    kinds = problem.lhs.array, problem.rhs.array
    kernel = DotKernel("dot", problem, kinds, (problem.output,), 0, 1, None, None, None, 32)
    target = dataclasses.replace(
        host_target(), triple="x86_64-linux", features="+avx2", l2_bytes=1 << 19
    )
    assert choose_form(kernel, target)[0] is form


@pytest.mark.parametrize("element", ["f32", "f64", "i32"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(7, 70, 130), (8, 32, 256), (10, 33, 57), (13, 31, 96), (16, 100, 11)]
)
def test_streamed_tiles(m: int, k: int, n: int, element: str) -> None:
    """Rows that fill tiles or do not, steps of ``k`` left over, columns beside whole tiles and whole vectors."""
    problem = problem_of(f"{m}x{k}x{element}", f"{k}x{n}x{element}", element, **MATMUL)
    target = dataclasses.replace(host_target(), vector_bytes=32, features="+avx2,+fma", l2_bytes=64)
    check(problem, target=target)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("m", [5, 64, 100, 1024])
@pytest.mark.parametrize("n", [3, 40, 1000])
def test_register_tiles_fit(vector_bytes: int, m: int, n: int) -> None:
    problem = problem_of(f"{m}x256xf32", f"256x{n}xf32", "f32", **MATMUL)
    kinds = problem.lhs.array, problem.rhs.array
    kernel = DotKernel(
        "dot", problem, kinds, (problem.output,), 0, 1, None, None, None, vector_bytes
    )
    target = dataclasses.replace(host_target(), vector_bytes=vector_bytes)
    tiling = choose_tiling(kernel, target)
    registers = target.vector_registers
    assert tiling.mr * tiling.vectors + tiling.vectors + 1 <= registers
    assert tiling.block_rows % tiling.mr == 0 or m % tiling.block_rows == 0
    assert tiling.k_chunk % kernel.lanes == 0


@pytest.mark.parametrize(
    ("m", "k", "n", "rhs"),
    [
        (24, 512, 512, "plain"),  # in the second-level cache
        (8, 1024, 2048, "plain"),
        (16, 1024, 2048, "private"),  # in the third: a few rows do not pay for packing
        (8, 4096, 4096, "private"),  # in memory
    ],
)
def test_matrices_far_away_are_packed(m: int, k: int, n: int, rhs: str) -> None:
    problem = problem_of(f"{m}x{k}xf32", f"{k}x{n}xf32", "f32", **MATMUL)
    kinds = problem.lhs.array, problem.rhs.array
    kernel = DotKernel("dot", problem, kinds, (problem.output,), 0, 1, None, None, None, 64)
    target = dataclasses.replace(host_target(), vector_bytes=64, l2_bytes=2 << 20)
    assert choose_tiling(kernel, target).rhs == rhs


@pytest.mark.parametrize(("m", "vectors"), [(8, 2), (1024, 3)])
def test_few_rows_of_a_matrix_in_place_get_whole_panels(m: int, vectors: int) -> None:
    # 1024 columns are 64 panels of two vectors; 43 of three, the last of which needs masks.
    problem = problem_of(f"{m}x256xf32", "256x1024xf32", "f32", **MATMUL)
    kinds = problem.lhs.array, problem.rhs.array
    kernel = DotKernel("dot", problem, kinds, (problem.output,), 0, 1, None, None, None, 32)
    target = Target("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2", l2_bytes=512 << 10)
    assert choose_tiling(kernel, target).vectors == vectors


@pytest.mark.parametrize(("vector_bytes", "is_parallel"), [(32, True), (64, False)])
def test_threads_are_woken_for_ten_microseconds_of_vectors(
    vector_bytes: int, is_parallel: bool
) -> None:
    problem = problem_of("8x256xf32", "256x256xf32", "f32", **MATMUL)
    kinds = problem.lhs.array, problem.rhs.array
    target = dataclasses.replace(host_target(), vector_bytes=vector_bytes)
    with ir.Context(), ir.Location.unknown():
        kernel = emit_dot("dot", problem, target, arguments=kinds, results=[problem.output])
    assert [p.parallel for p in kernel.spec.phases] == [is_parallel]


def test_axis_maps_collapse_and_address() -> None:
    assert AxisMap.of((4, 1, 5), (10, 7, 2)).parts == ((20, 2),)
    split = AxisMap.of((4, 5), (100, 2))
    assert split.stride is None
    assert split.inner_stride == 2
    assert [split.offset(i) for i in (0, 1, 5, 19)] == [0, 2, 100, 308]
    assert AxisMap.of((1,), (9,)).offset(0) == 0
    assert AxisMap.of((1,), (9,)).stride == 0


def test_emission_is_deterministic_and_reports_its_work() -> None:
    problem = problem_of("64x784xf32", "784x512xf32", "f32", **MATMUL)

    def emit() -> tuple[str, KernelSpec]:
        kinds = [problem.lhs.array, problem.rhs.array]
        with ir.Context(), ir.Location.unknown():
            kernel = emit_dot(
                "dot", problem, host_target(), arguments=kinds, results=[problem.output]
            )
            return str(kernel.source), kernel.spec

    assert emit() == emit()
    spec = emit()[1]
    assert spec.flops == 2 * 64 * 784 * 512
    assert spec.phases[-1].parallel
    assert math.prod(problem.output.shape) == 64 * 512


def test_the_harness_notices_a_kernel_that_writes_nothing() -> None:
    problem = problem_of("2x2xf32", "2x2xf32", "f32", **MATMUL)
    untouched = aligned(16).view(np.float32).reshape(2, 2)
    with pytest.raises(AssertionError):
        assert_matches(problem, untouched, np.ones((2, 2)))
