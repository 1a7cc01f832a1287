# SPDX-License-Identifier: Apache-2.0
"""Loops over the math library come out of LLVM as SIMD code without calls."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from math_phase import math_module
from mlir import ir

from gristmill.compiler.codegen.native import to_assembly, to_llvm_ir
from gristmill.compiler.emitters import math as library
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.target import Target

AVX2 = Target(
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    features="+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe",
)
#: The function and type that loop.
LOOPS = {("remainder", "f8")}


#: A call or a tail call of a named function in assembly.
CALL = re.compile(r"^\s+(?:call|jmp)q?\s+[a-z]\w*", re.MULTILINE)


def _lowered(name: str, dtype: str) -> ir.Module:
    module = ir.Module.parse(math_module(name, np.dtype(dtype), 1024))
    lower_to_llvm_dialect(module)
    return module


@pytest.mark.parametrize(
    ("name", "dtype"), sorted(set(product(library.FUNCTIONS, ("f4", "f8"))) - LOOPS)
)
def test_loops_become_simd(name: str, dtype: str) -> None:
    """At least four lanes (binary32 functions that work in binary64 have no more), and no function call."""
    with ir.Context():
        text = to_llvm_ir(_lowered(name, dtype), AVX2)
    widths = [int(n) for n in re.findall(r"<(\d+) x (?:float|double)>", text)]
    assert widths
    assert max(widths) >= 4
    called = set(re.findall(r"\bcall [^@\n]*@([\w.]+)", text))
    assert all(callee.startswith("llvm.") for callee in called), called


@pytest.mark.parametrize("name", ["exponential", "tanh", "log", "logistic", "erf", "rsqrt"])
def test_hot_single_precision_loops_fill_the_register(name: str) -> None:
    with ir.Context():
        text = to_llvm_ir(_lowered(name, "f4"), AVX2)
    assert "<8 x float>" in text
    assert "double" not in text


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", library.FUNCTIONS)
def test_machine_code_calls_nothing(name: str, dtype: str) -> None:
    """No C library function, not even behind an LLVM intrinsic."""
    with ir.Context():
        assembly = to_assembly(_lowered(name, dtype), AVX2)
    assert re.search(r"\bv(add|mul|fmadd\w*|round|sqrt|and|div)\w*p?[sd]", assembly)
    assert not CALL.search(assembly)


def test_call_check_sees_the_library_call_of_a_target_without_fma() -> None:
    with ir.Context():
        bare = Target(AVX2.triple, cpu="x86-64", features="", vector_bytes=16, fma=False)
        assembly = to_assembly(_lowered("exponential", "f4"), bare)
    assert CALL.search(assembly)
    assert "fmaf" in assembly


def test_avx512_scales_by_its_instruction() -> None:
    """e^x in single precision: vectors of 16, and 2^n applied by one instruction."""
    wide = "+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
    target = Target(AVX2.triple, "x86-64-v4", f"{AVX2.features},{wide}", vector_bytes=64)
    with ir.Context():
        module = ir.Module.parse(math_module("exponential", np.dtype("f4"), 1024))
        lower_to_llvm_dialect(module, target)
        assembly = to_assembly(module, target)
    assert re.search(r"vscalefps\s.*%zmm", assembly)
    assert not CALL.search(assembly)
