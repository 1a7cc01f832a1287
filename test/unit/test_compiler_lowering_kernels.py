# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mlir import ir

from gristmill.compiler.codegen.testing import run_phase
from gristmill.compiler.lowering.kernels import KERNEL_PIPELINE, lower_to_llvm_dialect
from gristmill.errors import LoweringError

ROWS = """
func.func @rows(%a: memref<8x4xf32> {llvm.noalias}, %r: memref<8x4xf32> {llvm.noalias, llvm.writeonly},
                %workspace: memref<64xi8>, %scratch: memref<128xi8>, %b: index, %e: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c64 = arith.constant 64 : index
  %two = arith.constant 2.0 : f32
  %tmp = memref.view %scratch[%c64][] : memref<128xi8> to memref<16xf32>
  scf.for %i = %b to %e step %c1 {
    %row = memref.subview %a[%i, 0] [1, 4] [1, 1]
      : memref<8x4xf32> to memref<4xf32, strided<[1], offset: ?>>
    scf.for %j = %c0 to %c4 step %c1 {
      %x = memref.load %row[%j] : memref<4xf32, strided<[1], offset: ?>>
      %y = math.fma %x, %two, %x : f32
      memref.store %y, %tmp[%j] : memref<16xf32>
    }
    %v = vector.load %tmp[%c0] : memref<16xf32>, vector<4xf32>
    vector.store %v, %r[%i, %c0] : memref<8x4xf32>, vector<4xf32>
  }
  return
}
"""

CONVERT = """
func.func @convert(%a: memref<64xf32>, %r: memref<64xbf16>, %back: memref<64xf32>,
                   %w: memref<64xi8>, %s: memref<64xi8>, %b: index, %e: index) {
  %c1 = arith.constant 1 : index
  scf.for %i = %b to %e step %c1 {
    %x = memref.load %a[%i] : memref<64xf32>
    %t = arith.truncf %x : f32 to bf16
    memref.store %t, %r[%i] : memref<64xbf16>
    %y = arith.extf %t : bf16 to f32
    memref.store %y, %back[%i] : memref<64xf32>
  }
  return
}
"""

CHOOSE = """
func.func @choose(%a: memref<8xbf16>, %r: memref<8xbf16>, %w: memref<8xi8>, %s: memref<8xi8>,
                  %b: index, %e: index) {
  %c1 = arith.constant 1 : index
  %first = memref.load %a[%b] : memref<8xbf16>
  %last = scf.for %i = %b to %e step %c1 iter_args(%best = %first) -> (bf16) {
    %x = memref.load %a[%i] : memref<8xbf16>
    %better = arith.cmpf ogt, %x, %best : bf16
    %next = arith.select %better, %x, %best : bf16
    memref.store %next, %r[%i] : memref<8xbf16>
    scf.yield %next : bf16
  }
  memref.store %last, %r[%b] : memref<8xbf16>
  return
}
"""

MASKED = """
func.func @masked(%a: memref<8xbf16>, %r: memref<8xbf16>, %w: memref<8xi8>, %s: memref<8xi8>,
                  %b: index, %e: index) {
  %zero = arith.constant 0 : index
  %none = arith.constant dense<0.0> : vector<8xbf16>
  %mask = vector.create_mask %e : vector<8xi1>
  %x = vector.maskedload %a[%zero], %mask, %none : memref<8xbf16>, vector<8xi1>, vector<8xbf16> into vector<8xbf16>
  vector.maskedstore %r[%zero], %mask, %x : memref<8xbf16>, vector<8xi1>, vector<8xbf16>
  return
}
"""

UNARY = """
func.func @f(%a: memref<8xf32>, %r: memref<8xf32>, %w: memref<64xi8>, %s: memref<64xi8>,
             %b: index, %e: index) {{
  %c1 = arith.constant 1 : index
  scf.for %i = %b to %e step %c1 {{
    %x = memref.load %a[%i] : memref<8xf32>
    %y = {op} %x : f32
    memref.store %y, %r[%i] : memref<8xf32>
  }}
  return
}}
"""


def test_argument_attributes_survive_the_bare_pointer_convention() -> None:
    with ir.Context():
        module = ir.Module.parse(ROWS)
        lower_to_llvm_dialect(module)
        text = str(module)
    assert "@rows(%arg0: !llvm.ptr {llvm.noalias}, %arg1: !llvm.ptr {llvm.noalias, " in text
    assert "%arg2: !llvm.ptr, %arg3: !llvm.ptr, %arg4: i64, %arg5: i64)" in text


def test_a_phase_runs_its_range_of_tasks_only() -> None:
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    r = np.full((8, 4), -1, np.float32)
    run_phase(ROWS, "rows", [a, r], 2, 6, scratch=128)
    np.testing.assert_array_equal(r[2:6], 3 * a[2:6])
    assert (r[:2] == -1).all()
    assert (r[6:] == -1).all()


def test_a_module_is_left_unchanged_by_run_phase() -> None:
    a, r = np.ones((8, 4), np.float32), np.zeros((8, 4), np.float32)
    with ir.Context():
        module = ir.Module.parse(ROWS)
        before = str(module)
        run_phase(module, "rows", [a, r], 0, 8, scratch=128)
        assert str(module) == before
    assert (r == 3).all()


def test_bf16_rounds_to_nearest_even_and_keeps_subnormals() -> None:
    bits = np.arange(64, dtype=np.uint32) * 0x03FF_1234 + 0x0000_8000
    a = bits.view(np.float32).copy()
    a[:8] = [0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 1e-45, 3.3961775e38]
    r, back = np.zeros(64, ml_dtypes.bfloat16), np.zeros(64, np.float32)
    run_phase(CONVERT, "convert", [a, r, back], 0, 64)
    expected = a.astype(ml_dtypes.bfloat16)
    finite = ~np.isnan(a)
    np.testing.assert_array_equal(r[finite].view(np.uint16), expected[finite].view(np.uint16))
    assert np.isnan(r[~finite].astype(np.float32)).all()
    np.testing.assert_array_equal(back[finite], expected[finite].astype(np.float32))


def test_bf16_is_chosen_and_carried_as_bits() -> None:
    """Where the CPU has no bf16, LLVM would call a function to round such values back from f32."""
    values = [3, -1, 7, 2, 9, 9, -4, 8]
    a, r = np.array(values, ml_dtypes.bfloat16), np.zeros(8, ml_dtypes.bfloat16)
    run_phase(CHOOSE, "choose", [a, r], 0, 8)
    np.testing.assert_array_equal(r.astype(int), [9, *np.maximum.accumulate(values)[1:]])
    with ir.Context():
        module = ir.Module.parse(CHOOSE)
        lower_to_llvm_dialect(module)
        moves = [x for x in str(module).splitlines() if "llvm.select" in x or "llvm.br" in x]
        assert any("i16" in line for line in moves)
        assert not any("bf16" in line for line in moves)


def test_integers_become_bf16_by_way_of_f32() -> None:
    text = CHOOSE.replace(
        "memref.load %a[%i] : memref<8xbf16>", "func.call @number(%i) : (index) -> bf16"
    )
    number = """
      func.func private @number(%i: index) -> bf16 {
        %n = arith.index_cast %i : index to i16
        %wide = arith.uitofp %n : i16 to f32
        %x = arith.truncf %wide : f32 to bf16
        return %x : bf16
      }"""
    with ir.Context():
        module = ir.Module.parse(text + number)
        lower_to_llvm_dialect(module)
        made = [x for x in str(module).splitlines() if "uitofp" in x]
    assert len(made) == 1
    assert made[0].endswith("i16 to f32")


def test_masked_bf16_is_moved_as_bits() -> None:
    """LLVM takes a masked vector apart and, without an instruction for it, calls a function to round its elements."""
    a = np.arange(8).astype(ml_dtypes.bfloat16)
    r = np.full(8, -1, ml_dtypes.bfloat16)
    run_phase(MASKED, "masked", [a, r], 0, 5)
    np.testing.assert_array_equal(r.astype(int), [0, 1, 2, 3, 4, -1, -1, -1])
    with ir.Context():
        module = ir.Module.parse(MASKED)
        lower_to_llvm_dialect(module)
        masked = [x for x in str(module).splitlines() if "llvm.intr.masked" in x]
        assert len(masked) == 2
        assert not any("bf16" in line for line in masked)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("math.sqrt", np.sqrt),
        ("math.absf", np.abs),
        ("math.floor", np.floor),
        ("math.ceil", np.ceil),
        ("math.roundeven", np.rint),
    ],
)
def test_supported_math_needs_no_library(op: str, reference: np.ufunc) -> None:
    a = np.array([0.5, 1.5, 2.5, 4.0, 1e-40, 1e30, 0.0, 7.7], np.float32)
    r = np.zeros(8, np.float32)
    run_phase(UNARY.format(op=op), "f", [a, r], 0, 8)
    np.testing.assert_array_equal(r, reference(a))


def test_an_op_without_lowering_is_named_with_its_location_and_a_repro(tmp_path: Path) -> None:
    text = UNARY.format(op="math.erf")
    with ir.Context(), pytest.raises(LoweringError, match=r'"-":7:10.*no lowering.*math\.erf') as e:
        lower_to_llvm_dialect(ir.Module.parse(text))
    assert e.value.op == "math.erf"
    command = e.value.message.splitlines()[-1].removeprefix("reproduce: ")
    arguments = shlex.split(command)
    assert arguments[:2] == ["mlir-opt", f"--pass-pipeline={KERNEL_PIPELINE}"]
    assert arguments[2:] == ["kernels.mlir"]


def test_a_pass_failure_keeps_mlirs_diagnostic() -> None:
    text = "func.func @f(%a: memref<?x?xf32, affine_map<(i, j) -> (j floordiv 2, i)>>) { return }"
    with ir.Context(), pytest.raises(LoweringError, match="reproduce: mlir-opt") as e:
        lower_to_llvm_dialect(ir.Module.parse(text))
    assert e.value.location is not None


def test_the_pipeline_parses_in_mlir_opt(tmp_path: Path) -> None:
    """The repro command works where the optional MLIR tools are installed."""
    tool = shutil.which("mlir-opt", path=str(Path(sys.executable).parent))
    source = tmp_path / "kernels.mlir"
    source.write_text(ROWS)
    if tool:
        done = subprocess.run(
            [tool, f"--pass-pipeline={KERNEL_PIPELINE}", str(source)],
            check=True,
            capture_output=True,
            text=True,
        )
        assert "llvm.func @rows" in done.stdout
