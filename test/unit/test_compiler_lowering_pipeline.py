# SPDX-License-Identifier: Apache-2.0
"""Upstream passes by MLIR's C API: their errors, and what other threads do meanwhile."""

import threading
import time
from itertools import pairwise

import pytest
from mlir import ir

from gristmill.compiler.lowering.pipeline import run_pipeline
from gristmill.errors import LoweringError

CANONICALIZE = "builtin.module(canonicalize)"


def test_the_module_is_changed_in_place() -> None:
    with ir.Context():
        module = ir.Module.parse("func.func @f(%a: i32) { %b = arith.addi %a, %a : i32 return }")
        run_pipeline(CANONICALIZE, module)
        assert "addi" not in str(module)


def test_a_malformed_module_is_refused() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f(%a: i32) -> i32 { return %a : i32 }")
        number = ir.IntegerType.get_signless(64)
        module.body.operations[0].attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([number], [number])
        )
        with pytest.raises(LoweringError, match=r"malformed kernels: .*type of entry block"):
            run_pipeline(CANONICALIZE, module)


def test_an_error_has_mlirs_words_its_notes_the_place_and_the_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = """func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = math.erf %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    with ir.Context(), pytest.raises(LoweringError) as caught:
        run_pipeline("builtin.module(one-shot-bufferize)", ir.Module.parse(text), "whole")
    assert caught.value.location == 'loc("-":2:8)'
    message, command = caught.value.message.splitlines()
    assert message.startswith("op was not bufferized; see current operation: ")
    assert command == "reproduce: mlir-opt --pass-pipeline='whole' kernels.mlir"
    assert capfd.readouterr().err == ""


def test_other_threads_run_meanwhile() -> None:
    body = "\n".join(f"%{i + 1} = arith.addi %{i}, %{i} : i32" for i in range(20_000))
    text = f"func.func @f(%0: i32) -> i32 {{\n{body}\nreturn %20000 : i32\n}}"
    over = threading.Event()
    turns = [time.perf_counter()]

    def turn() -> None:
        while not over.is_set():
            turns.append(time.perf_counter())
            time.sleep(1e-4)

    other = threading.Thread(target=turn)
    with ir.Context():
        module = ir.Module.parse(text)
        other.start()
        start = time.perf_counter()
        try:
            run_pipeline(f"builtin.module({','.join(['cse'] * 40)})", module)
        finally:
            spent = time.perf_counter() - start
            over.set()
            other.join()
    assert max(b - a for a, b in pairwise(turns)) < spent / 2
