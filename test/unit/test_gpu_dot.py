# SPDX-License-Identifier: Apache-2.0
"""Products on a GPU: every form, type and layout on the simulator, in several orders of threads, and in PTX.

Expected values are numpy's in f64 (or i64). The bound on the error of a sum of ``k`` products in a type of unit
roundoff ``u`` is ``k u |A| |B|`` (N. Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1), to which
the rounding of operands (tf32) and of the result is added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_check import ORDERS, assert_ptx
from gpu_support import GpuProgram, compile_for_gpu, simulate
from interpreter import evaluate
from mlir import ir

from gristmill.compiler.compile import import_source
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.gpu.dot import DotEmitter
from gristmill.compiler.graph import load_graph
from gristmill.compiler.target import gpu_target

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "i8": np.int8, "i32": np.int32, "i64": np.int64, "ui8": np.uint8,
}  # fmt: skip

#: Unit roundoff.
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}

TF32 = (
    ", algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, "
    "lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, "
    "allow_imprecise_accumulation = false>"
)


@dataclass(frozen=True)
class Case:
    """A product: extents, element type of operands and result, batches, which operands lie transposed."""

    m: int
    n: int
    k: int
    kind: str = "f32"
    result: str = ""
    batch: int = 0
    lhs_t: bool = False
    rhs_t: bool = False
    algorithm: str = ""
    tanh: bool = False

    @property
    def out(self) -> str:
        return self.result or self.kind

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        lhs, rhs = (self.m, self.k), (self.k, self.n)
        batch = (self.batch,) if self.batch else ()
        sides = (
            (lhs[::-1] if self.lhs_t else lhs),
            (rhs[::-1] if self.rhs_t else rhs),
            (self.m, self.n),
        )
        return tuple((*batch, *side) for side in sides)

    def text(self) -> str:
        kinds = (self.kind, self.kind, self.out)
        a, b, c = (
            f"tensor<{'x'.join(map(str, (*s, t)))}>"
            for s, t in zip(self.shapes(), kinds, strict=True)
        )
        first = int(bool(self.batch))
        batching = "batching_dims = [0] x [0], " if self.batch else ""
        lhs_k, rhs_k = first + (not self.lhs_t), first + self.rhs_t
        tanh = f"%t = stablehlo.tanh %r : {c}" if self.tanh else ""
        return f"""func.func @main(%a: {a}, %b: {b}) -> {c} {{
          %r = stablehlo.dot_general %a, %b, {batching}contracting_dims = [{lhs_k}] x [{rhs_k}]{self.algorithm}
            : ({a}, {b}) -> {c}
          {tanh}
          return {"%t" if self.tanh else "%r"} : {c} }}"""

    def operands(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(self.m + 3 * self.n + 7 * self.k)
        dtype = DTYPES[self.kind]

        def make(shape: tuple[int, ...]) -> Array:
            if self.kind in ROUNDOFF:
                return rng.standard_normal(shape).astype(dtype)
            info = np.iinfo(dtype)
            low, high = max(-1000, int(info.min)), min(1000, int(info.max))
            return rng.integers(low, high, shape, endpoint=True).astype(dtype)

        lhs, rhs, _ = self.shapes()
        return make(lhs), make(rhs)

    def expected(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The product and the bound on its error."""
        exact: Any = np.float64 if self.kind in ROUNDOFF else np.int64
        x, y = a.astype(exact), b.astype(exact)
        x = np.swapaxes(x, -1, -2) if self.lhs_t else x
        y = np.swapaxes(y, -1, -2) if self.rhs_t else y
        value = x @ y
        if self.kind not in ROUNDOFF:
            return value.astype(DTYPES[self.out]), np.zeros_like(value)
        sums = 2.0**-53 if self.kind == "f64" else 2.0**-24
        # The f64 reference has rounding errors of its own: doubled.
        relative = 2 * self.k * sums + (2 * 2.0**-11 if self.algorithm else 0)
        bound = relative * (np.abs(x) @ np.abs(y))
        if self.tanh:
            value = np.tanh(value)
        return value, bound + 2 * ROUNDOFF[self.out] * np.abs(value) + 1e-300


def run(case: Case, orders: tuple[int, ...] = ORDERS[::2], chip: str = "sm_80") -> GpuProgram:
    program = compile_for_gpu(case.text(), chip)
    a, b = case.operands()
    value, bound = case.expected(a, b)
    for order in orders:
        (result,) = program.run(a, b, order=order)
        error = np.abs(result.astype(value.dtype) - value)
        assert (error <= bound).all(), f"error {error.max()}, allowed {bound.flat[error.argmax()]}"
    return program


def launches(program: GpuProgram) -> list[tuple[int, int]]:
    """Blocks and threads of every launch."""
    found = [p.launch for spec in program.specs.values() for p in spec.phases]
    return [(x.grid[0], x.block[0]) for x in found if x is not None]


@pytest.mark.parametrize(
    "case",
    [
        Case(130, 33, 70),
        Case(33, 130, 64, lhs_t=True, rhs_t=True),
        Case(7, 7, 130, batch=3, rhs_t=True),
        Case(40, 36, 100, "f64", lhs_t=True),
        Case(40, 36, 100, "i32"),
        Case(33, 40, 100, "ui8", "i32", batch=2, rhs_t=True),
        Case(20, 20, 36, "i64"),
    ],
)
def test_tiles_without_tensor_cores(case: Case) -> None:
    program = run(case)
    assert "mma.sync" not in str(program.module)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_older_chips_have_no_tensor_core_tiles(kind: str) -> None:
    program = run(Case(40, 40, 40, kind), orders=(0,), chip="sm_75")
    assert "mma.sync" not in str(program.module)


@pytest.mark.parametrize("side", [(128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (8, 64)])
def test_every_tile_is_right(side: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.compiler.emitters.gpu import dot_plan

    tiles = [t for t in dot_plan.SIMT_TILES if (t.rows, t.columns) == side]
    monkeypatch.setattr(dot_plan, "SIMT_TILES", tiles)
    program = run(Case(side[0] + 5, side[1] + 4, 20), orders=(6,))
    assert launches(program) == [(4, tiles[0].threads)]


@pytest.mark.parametrize(
    "side", [(128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (16, 64), (64, 16)]
)
def test_every_tensor_tile_is_right(side: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.compiler.emitters.gpu import dot_plan

    tiles = [t for t in dot_plan.MMA_TILES if (t.rows, t.columns) == side]
    monkeypatch.setattr(dot_plan, "MMA_TILES", tiles)
    program = run(Case(side[0] + 8, side[1] + 8, 40, "bf16", "f32", rhs_t=side[0] > 64), (31,))
    assert launches(program) == [(4, tiles[0].threads)]


def test_long_sums_are_split_over_blocks() -> None:
    program = run(Case(40, 40, 3000, batch=2, lhs_t=True, tanh=True))
    (_, threads), (blocks, combined) = launches(program)
    assert threads % 32 == 0
    assert blocks * combined >= 2 * 40 * 40


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 100, 300),
        Case(100, 1, 300, batch=2),
        Case(3, 101, 333, rhs_t=True, tanh=True),
        Case(1, 50, 2048, "bf16", "f32", rhs_t=True),
        Case(1, 1, 40000),
        Case(2, 1030, 64, "f64", lhs_t=True),
        Case(1, 130, 64, "i8", "i32"),
        Case(1056, 1, 200, "i8", "i32", lhs_t=True),  # more rows than threads
        Case(1024, 4, 200, "i8", "i32", lhs_t=True),  # sums that fill the workgroup memory
    ],
)
def test_matrix_times_a_few_vectors(case: Case) -> None:
    program = run(case)
    used = [p.launch.shared_bytes for s in program.specs.values() for p in s.phases if p.launch]
    assert max(used) <= program.target.shared_bytes


@pytest.mark.parametrize("case", [Case(1, 1, 1), Case(7, 7, 7), Case(50, 33, 3), Case(5, 4, 0)])
def test_short_sums(case: Case) -> None:
    run(case, orders=(0,))


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 64, 64, "bf16"),
        Case(130, 130, 40, "bf16", lhs_t=True, tanh=True),
        Case(70, 72, 72, "f16", "f32", lhs_t=True, rhs_t=True),
        Case(33, 7, 33, "f16", rhs_t=True),
        Case(7, 200, 130, "bf16", "f32", batch=2, rhs_t=True),
        Case(33, 50, 66, "i8", "i32"),
        Case(40, 40, 128, "i8", "i32", rhs_t=True),
        Case(65, 33, 57, rhs_t=True, algorithm=TF32),
        Case(40, 40, 64, algorithm=TF32),
    ],
)
def test_tensor_cores(case: Case) -> None:
    program = run(case)
    assert "nvgpu.mma.sync" in str(program.module)


def test_integer_sums_wrap() -> None:
    case = Case(16, 16, 140000, "i8", "i32", rhs_t=True)
    a, b = np.full((16, 140000), -128, np.int8), np.full((16, 140000), -128, np.int8)
    program = compile_for_gpu(case.text())
    assert "satfinite" not in program.ptx()
    (result,) = program.run(a, b)
    assert (result == np.int64(140000 * 16384).astype(np.int32)).all()


@pytest.mark.parametrize(
    "algorithm", ["", TF32.replace("operations = 1", "operations = 3"), TF32.replace("tf32", "f32")]
)
def test_full_precision_where_nothing_else_is_asked_for(algorithm: str) -> None:
    program = compile_for_gpu(Case(128, 128, 128, algorithm=algorithm).text())
    assert "mma.sync" not in str(program.module)


@pytest.mark.parametrize(
    ("kind", "out"), [("i1", "i1"), ("i4", "i32"), ("ui32", "ui32"), ("f8E4M3FN", "f32")]
)
def test_rarer_types(kind: str, out: str) -> None:
    """What the interpreter computes, on values that make every sum exact."""
    text = f"""func.func @main(%a: tensor<9x40xi8>, %b: tensor<40x17xi8>) -> tensor<9x17x{out}> {{
      %0 = stablehlo.convert %a : (tensor<9x40xi8>) -> tensor<9x40x{kind}>
      %1 = stablehlo.convert %b : (tensor<40x17xi8>) -> tensor<40x17x{kind}>
      %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
        : (tensor<9x40x{kind}>, tensor<40x17x{kind}>) -> tensor<9x17x{out}>
      return %2 : tensor<9x17x{out}> }}"""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 3, s).astype(np.int8) for s in ((9, 40), (40, 17)))
    (result,) = compile_for_gpu(text).run(a, b)
    np.testing.assert_array_equal(result, evaluate(text, a, b)[0])


def test_complex_products() -> None:
    text = """func.func @main(%a: tensor<9x40xcomplex<f32>>, %b: tensor<40x17xcomplex<f32>>)
        -> tensor<9x17xcomplex<f32>> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<9x40xcomplex<f32>>, tensor<40x17xcomplex<f32>>) -> tensor<9x17xcomplex<f32>>
      return %0 : tensor<9x17xcomplex<f32>> }"""
    rng = np.random.default_rng(4)
    a, b = (
        (rng.integers(-3, 4, s) + 1j * rng.integers(-3, 4, s)).astype(np.complex64)
        for s in ((9, 40), (40, 17))
    )
    (result,) = compile_for_gpu(text).run(a, b)
    np.testing.assert_array_equal(result, a @ b)


def test_epilogue_reads_and_writes_several_buffers() -> None:
    text = """func.func @main(%a: tensor<33x64xf32>, %b: tensor<64x40xf32>, %c: tensor<40xf32>)
        -> (tensor<33x40xf32>, tensor<33x40xf16>) {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<33x64xf32>, tensor<64x40xf32>) -> tensor<33x40xf32>
      %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<40xf32>) -> tensor<33x40xf32>
      %2 = stablehlo.add %0, %1 : tensor<33x40xf32>
      %3 = stablehlo.convert %2 : (tensor<33x40xf32>) -> tensor<33x40xf16>
      return %2, %3 : tensor<33x40xf32>, tensor<33x40xf16> }"""
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((33, 64), (64, 40), (40,)))
    program = compile_for_gpu(text)
    assert [spec.kind for spec in program.specs.values()] == ["dot"]
    wide, narrow = program.run(a, b, c)
    expected = a.astype(np.float64) @ b + c
    np.testing.assert_allclose(wide, expected, atol=1e-5)
    np.testing.assert_allclose(narrow, expected, atol=2e-2)


def test_producers_are_computed_where_operands_are_read() -> None:
    module = import_source("""func.func @main(%a: tensor<33x64xbf16>, %b: tensor<40x64xbf16>) -> tensor<33x40xf32> {
      %0 = stablehlo.negate %a : tensor<33x64xbf16>
      %1 = stablehlo.dot_general %0, %b, contracting_dims = [1] x [1]
        : (tensor<33x64xbf16>, tensor<40x64xbf16>) -> tensor<33x40xf32>
      return %1 : tensor<33x40xf32> }""")
    with module.context, ir.Location.unknown():
        graph = load_graph(module.functions()["main"])
        kernel = DotEmitter(FusionSource("product", graph, {}, gpu_target())).emit()
        text = str(kernel.source)
    assert "mma.sync" in text
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((33, 64), (40, 64)))
    result = np.zeros((33, 40), np.float32)
    workspace = np.zeros(kernel.spec.workspace_bytes + 1, np.uint8)
    for phase in kernel.spec.phases:
        assert phase.launch is not None
        simulate(
            text, phase.function, phase.launch.grid, phase.launch.block, a, b, result, workspace
        )
    np.testing.assert_allclose(result, -a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-4)


def test_ptx_of_large_products() -> None:
    simt = compile_for_gpu(Case(2048, 2048, 512).text())
    assert_ptx(simt, r"ld\.global\.nc\.v4", r"st\.global\.v4", r"ld\.shared\.v4", r"fma\.rn\.f32")
    halves = compile_for_gpu(Case(2048, 2048, 512, "bf16").text())
    copies = r"cp\.async\.cg\.shared\.global", r"cp\.async\.commit_group", r"cp\.async\.wait_group"
    assert_ptx(halves, r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16", *copies)
    assert_ptx(halves, r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans", r"st\.global\.v4")
    (shared,) = re.findall(r"\.shared .*\[(\d+)\];", halves.ptx())
    assert int(shared) <= gpu_target().shared_bytes
    integers = compile_for_gpu(Case(256, 256, 512, "i8", "i32", rhs_t=True).text())
    assert_ptx(integers, r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8", copies[0])
    rounded = compile_for_gpu(Case(256, 256, 512, algorithm=TF32).text())
    assert_ptx(rounded, r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32", r"cvt\.rna\.tf32")
