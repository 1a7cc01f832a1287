# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import dataclasses
import os
import re

import numpy as np
import pytest
from mlir import ir

from gristmill.compiler.codegen import native
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.testing import run_phase
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.target import Target
from gristmill.errors import InputError, ToolchainError
from gristmill.runtime import knobs
from gristmill.runtime.code import link
from gristmill.runtime.llvm.core import Context

SUM = """
func.func @NAME(%a: memref<1024xf32> {llvm.noalias}, %r: memref<1xf32> {llvm.noalias},
               %w: memref<64xi8>, %s: memref<64xi8>, %b: index, %e: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant 1024 : index
  %zero = arith.constant 0.0 : f32
  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> f32 {
    %x = memref.load %a[%i] : memref<1024xf32>
    %t = arith.addf %acc, %x FASTMATH : f32
    scf.yield %t : f32
  }
  memref.store %sum, %r[%c0] : memref<1xf32>
  return
}
"""


def lowered(name: str = "sum", fastmath: str = "fastmath<reassoc>") -> ir.Module:
    module = ir.Module.parse(SUM.replace("NAME", name).replace("FASTMATH", fastmath))
    lower_to_llvm_dialect(module)
    return module


def test_reductions_vectorise_only_when_allowed_to() -> None:
    target = host_target()
    with ir.Context():
        free = native.to_llvm_ir(lowered(), target)
        ordered = native.to_llvm_ir(lowered(fastmath=""), target)
    lanes = target.vector_bytes // 4
    assert f"fadd reassoc <{lanes} x float>" in free
    assert not re.search(r"fadd [a-z ]*<\d+ x float>", ordered)


def test_ir_before_and_after_optimisation_carries_the_target() -> None:
    target = host_target()
    with ir.Context():
        for optimized in (False, True):
            text = native.to_llvm_ir(lowered(), target, optimized=optimized)
            assert f'"target-cpu"="{target.cpu}"' in text
            assert f'"prefer-vector-width"="{target.vector_bytes * 8}"' in text
            assert "noalias" in text
            assert f'target triple = "{target.triple}"' in text


def test_translation_leaves_the_module_alone() -> None:
    with ir.Context():
        module = lowered()
        before = str(module)
        native.to_object(module, host_target())
        assert str(module) == before


def test_objects_are_deterministic_and_run() -> None:
    with ir.Context():
        data = native.to_object(lowered(), host_target())
        assert data == native.to_object(lowered(), host_target())
    a, r = np.arange(1024, dtype=np.float32), np.zeros(1, np.float32)
    with link([data]) as code:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)
        kind(code.address("sum"))(a.ctypes.data, r.ctypes.data, None, None, 0, 1)
    assert r[0] == 1023 * 512


@pytest.mark.parametrize("jobs", [1, 3])
def test_compile_many_keeps_order(jobs: int) -> None:
    with ir.Context():
        names = [f"sum{i}" for i in range(7)]
        objects = native.compile_many([lowered(n) for n in names], host_target(), jobs)
    assert [name.encode() in data for name, data in zip(names, objects, strict=True)] == [True] * 7
    with link(objects) as code:
        assert len({code.address(name) for name in names}) == 7
    assert native.compile_many([], host_target(), jobs) == []


@pytest.mark.parametrize("jobs", [1, 3])
def test_compile_many_reports_what_has_no_translation(jobs: int) -> None:
    with ir.Context():
        bad = ir.Module.parse("func.func @f() { return }")
        with pytest.raises(ToolchainError, match=r"translation to LLVM IR failed: .*func\.func"):
            native.compile_many([lowered(), bad, lowered()], host_target(), jobs)


def test_translate_fails_cleanly_outside_the_llvm_dialect() -> None:
    with ir.Context(), Context() as context, pytest.raises(ToolchainError):
        native.translate(ir.Module.parse("func.func @f() { return }"), context)


def test_assembly() -> None:
    with ir.Context():
        assert "sum:" in native.to_assembly(lowered(), host_target())


def test_an_impossible_target_is_refused() -> None:
    with ir.Context(), pytest.raises(ToolchainError, match="cannot generate code for pdp11"):
        native.to_object(lowered(), Target("pdp11-dec-unix", "", ""))


def test_host_target_describes_this_machine() -> None:
    target = host_target()
    assert target.max_threads == len(os.sched_getaffinity(0))
    assert target.l1_bytes < target.l2_bytes
    assert (target.vector_bytes == 64) == ("+avx512f" in target.features.split(","))


@pytest.mark.parametrize(
    ("cpu", "vector_bytes", "fma"),
    [
        ("x86-64", 16, False),
        ("x86-64-v2", 16, False),
        ("x86-64-v3", 32, True),
        ("generic", 16, False),
    ],
)
def test_other_cpus_by_knob(cpu: str, vector_bytes: int, fma: bool) -> None:
    with knobs.CPU.scope(cpu):
        target = host_target()
    assert (target.cpu, target.vector_bytes, target.fma) == (cpu, vector_bytes, fma)
    a, r = np.ones(1024, np.float32), np.zeros(1, np.float32)
    text = SUM.replace("NAME", "sum").replace("FASTMATH", "fastmath<reassoc>")
    run_phase(text, "sum", [a, r], target=target)
    assert r[0] == 1024


def test_unknown_cpu_lists_the_known_ones() -> None:
    with (
        knobs.CPU.scope("i386"),
        pytest.raises(InputError, match=r"CPU 'i386' is not known; GRISTMILL_CPU .* x86-64-v4"),
    ):
        host_target()


def test_vector_width_is_the_targets() -> None:
    narrow = dataclasses.replace(host_target(), vector_bytes=16)
    with ir.Context():
        assert "<4 x float>" in native.to_llvm_ir(lowered(), narrow)
        assert "<8 x float>" not in native.to_llvm_ir(lowered(), narrow)
