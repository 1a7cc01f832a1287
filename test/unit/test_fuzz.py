# SPDX-License-Identifier: Apache-2.0
"""A short differential fuzzing run, programs that fuzzing found, and proof that it would find a wrong compiler."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from interpreter import evaluate
from jaxlib.mlir.dialects import chlo, stablehlo

import gristmill
from gristmill.compiler.compile import compile_stages, import_source

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

from fuzz_oracle import check, difference, reference
from fuzz_programs import RandomProgram, build, programs
from fuzz_reducer import smaller
from fuzz_scope import Chooser
from fuzz_values import Value

#: What fuzzing found, made small by hand: a description and the module's text.
FOUND = {
    "a reduction that is read elsewhere leaves no trace in a loop it did not join": """
  func.func @main(%0: tensor<2x8xi32>) -> tensor<2xi32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.maximum across dimensions = [1]
      : (tensor<2x8xi32>, tensor<i32>) -> tensor<2xi32>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.or across dimensions = [0]
      : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
    %3 = stablehlo.maximum %2, %2 : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %5 = stablehlo.and %1, %4 : tensor<2xi32>
    %6 = stablehlo.popcnt %5 : tensor<2xi32>
    return %6 : tensor<2xi32>
  }""",
    "windows of one element beyond the end": """
  func.func @main(%0: tensor<2x8xi32>) -> tensor<6x8xi32> {
    %none = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.reduce_window"(%0, %none) <{
      window_dimensions = array<i64: 1, 1>, padding = dense<[[0, 4], [0, 0]]> : tensor<2x2xi64>
    }> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %2 = stablehlo.xor %a, %b : tensor<i32>
      stablehlo.return %2 : tensor<i32>
    }) : (tensor<2x8xi32>, tensor<i32>) -> tensor<6x8xi32>
    return %1 : tensor<6x8xi32>
  }""",
    "a row's full result with other unit dimensions": """
  func.func @main(%0: tensor<2x8xi32>) -> (tensor<2x1x8x1xi32>, tensor<2x1x1xi32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.reshape %0 : (tensor<2x8xi32>) -> tensor<2x1x8x1xi32>
    %2 = stablehlo.multiply %1, %1 : tensor<2x1x8x1xi32>
    %3 = stablehlo.reshape %2 : (tensor<2x1x8x1xi32>) -> tensor<2x1x1x8xi32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [3]
      : (tensor<2x1x1x8xi32>, tensor<i32>) -> tensor<2x1x1xi32>
    return %2, %4 : tensor<2x1x8x1xi32>, tensor<2x1x1xi32>
  }""",
    "one of the results of a scatter": """
  func.func @main(%0: tensor<2x8xi32>) -> tensor<2x8xi32> {
    %at = stablehlo.constant dense<[[1], [0], [1]]> : tensor<3x1xi64>
    %new = stablehlo.constant dense<5> : tensor<3x8xi32>
    %1:2 = "stablehlo.scatter"(%0, %0, %at, %new, %new) <{
      scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>
    }> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
      %2 = stablehlo.add %a, %c : tensor<i32>
      %3 = stablehlo.xor %b, %d : tensor<i32>
      stablehlo.return %2, %3 : tensor<i32>, tensor<i32>
    }) : (tensor<2x8xi32>, tensor<2x8xi32>, tensor<3x1xi64>, tensor<3x8xi32>, tensor<3x8xi32>)
      -> (tensor<2x8xi32>, tensor<2x8xi32>)
    return %1#1 : tensor<2x8xi32>
  }""",
    "a product that an operation reads for two places": """
  func.func @main(%0: tensor<2x8xi32>) -> tensor<2x2xi32> {
    %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [1]
      : (tensor<2x8xi32>, tensor<2x8xi32>) -> tensor<2x2xi32>
    %2 = stablehlo.negate %1 : tensor<2x2xi32>
    %3 = stablehlo.reverse %2, dims = [0] : tensor<2x2xi32>
    %4 = stablehlo.popcnt %2 : tensor<2x2xi32>
    %5 = stablehlo.subtract %4, %3 : tensor<2x2xi32>
    return %5 : tensor<2x2xi32>
  }""",
    "a reduction that an operation reads for rows and for columns": """
  func.func @main(%0: tensor<2x8xi32>) -> tensor<8x8xi32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.concatenate %0, %0, %0, %0, dim = 0
      : (tensor<2x8xi32>, tensor<2x8xi32>, tensor<2x8xi32>, tensor<2x8xi32>) -> tensor<8x8xi32>
    %2 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %3 = stablehlo.add %1, %2 : tensor<8x8xi32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x8xi32>, tensor<i32>) -> tensor<8xi32>
    %5 = stablehlo.negate %4 : tensor<8xi32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [1] : (tensor<8xi32>) -> tensor<8x8xi32>
    %7 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<8xi32>) -> tensor<8x8xi32>
    %8 = stablehlo.multiply %6, %7 : tensor<8x8xi32>
    %9 = stablehlo.add %3, %8 : tensor<8x8xi32>
    return %9 : tensor<8x8xi32>
  }""",
    "an empty array that is reshaped beside a reduction": """
  func.func @main(%0: tensor<2x8xi32>) -> (tensor<1xi32>, tensor<1x0xi32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.slice %0 [0:1, 0:0] : (tensor<2x8xi32>) -> tensor<1x0xi32>
    %2 = stablehlo.negate %1 : tensor<1x0xi32>
    %3 = stablehlo.reshape %2 : (tensor<1x0xi32>) -> tensor<0xi32>
    %4 = stablehlo.pad %3, %zero, low = [0], high = [1], interior = [0]
      : (tensor<0xi32>, tensor<i32>) -> tensor<1xi32>
    %5 = stablehlo.slice %0 [0:2, 0:1] : (tensor<2x8xi32>) -> tensor<2x1xi32>
    %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<2x1xi32>, tensor<i32>) -> tensor<1xi32>
    %7 = stablehlo.add %6, %4 : tensor<1xi32>
    return %7, %2 : tensor<1xi32>, tensor<1x0xi32>
  }""",
    "a predicate that is a reshaped vector": """
  func.func @main(%0: tensor<2x8xi32>, %1: tensor<1xi1>) -> tensor<2x8xi32> {
    %2 = stablehlo.reshape %1 : (tensor<1xi1>) -> tensor<i1>
    %3 = "stablehlo.if"(%2) ({
      %4 = "stablehlo.sort"(%0) <{dimension = 1 : i64, is_stable = true}> ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %5 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %5 : tensor<i1>
      }) : (tensor<2x8xi32>) -> tensor<2x8xi32>
      stablehlo.return %4 : tensor<2x8xi32>
    }, {
      stablehlo.return %0 : tensor<2x8xi32>
    }) : (tensor<i1>) -> tensor<2x8xi32>
    return %3 : tensor<2x8xi32>
  }""",
}


@pytest.mark.parametrize("name", FOUND)
def test_found_by_fuzzing(name: str) -> None:
    text = f"module {{{FOUND[name]}\n}}\n"
    array = np.random.default_rng(0).integers(-9, 9, (2, 8), np.int32)
    arrays = [array, np.array([True])][: text.partition(") ->")[0].count(": tensor")]
    got: Any = gristmill.compile(text)(*arrays)
    got = got if isinstance(got, list | tuple) else [got]
    for one, want in zip(got, evaluate(text, *arrays), strict=True):
        np.testing.assert_array_equal(one, want)


#: Values that a row kernel has at hand for one row, read at another.
OTHER_ROWS = {
    "a kept value, rows reversed": """
    %r = stablehlo.reverse %e, dims = [0] : tensor<4x6xf32>
    %d = stablehlo.divide %r, %b : tensor<4x6xf32>
    return %d : tensor<4x6xf32>""",
    "a reduction, rows reversed": """
    %r = stablehlo.reverse %s, dims = [0] : tensor<4xf32>
    %c = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %d = stablehlo.divide %e, %b : tensor<4x6xf32>
    %f = stablehlo.add %d, %c : tensor<4x6xf32>
    return %f : tensor<4x6xf32>""",
    "a reduction that a member reads for both": """
    %n = stablehlo.negate %s : tensor<4xf32>
    %r = stablehlo.reverse %n, dims = [0] : tensor<4xf32>
    %c = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %k = stablehlo.broadcast_in_dim %n, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>
    %d = stablehlo.divide %e, %k : tensor<4x6xf32>
    %f = stablehlo.add %c, %d : tensor<4x6xf32>
    return %f : tensor<4x6xf32>""",
    "a kept value that a member reads for both": """
    %n = stablehlo.negate %e : tensor<4x6xf32>
    %r = stablehlo.reverse %n, dims = [0] : tensor<4x6xf32>
    %d = stablehlo.divide %r, %b : tensor<4x6xf32>
    %f = stablehlo.multiply %d, %n : tensor<4x6xf32>
    return %f : tensor<4x6xf32>""",
    "a reduction, of one row": """
    %r = stablehlo.slice %s [2:3] : (tensor<4xf32>) -> tensor<1xf32>
    %t = stablehlo.reshape %r : (tensor<1xf32>) -> tensor<f32>
    %c = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %d = stablehlo.divide %e, %b : tensor<4x6xf32>
    %f = stablehlo.add %d, %c : tensor<4x6xf32>
    return %f : tensor<4x6xf32>""",
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_rows_that_read_other_rows(name: str) -> None:
    text = f"""module {{
  func.func @main(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {{
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %e = stablehlo.exponential %x : tensor<4x6xf32>
    %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
      : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x6xf32>{OTHER_ROWS[name]}
  }}
}}
"""
    array = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    (want,) = evaluate(text, array)
    np.testing.assert_allclose(gristmill.compile(text)(array), want, rtol=1e-5)


@pytest.mark.parametrize("other", ["map", "rng"])
def test_deprecated_operations_beside_others(other: str) -> None:
    """StableHLO's pass that rewrites deprecated operations fails at ``map`` and ``rng`` unless told not to."""
    lines = {
        "map": """%2 = "stablehlo.map"(%1) <{dimensions = array<i64: 0, 1>}> ({
    ^bb0(%a: tensor<f32>):
      %n = stablehlo.negate %a : tensor<f32>
      stablehlo.return %n : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>""",
        "rng": """%low = stablehlo.constant dense<-1.0> : tensor<f32>
    %shape = stablehlo.constant dense<2> : tensor<2xi64>
    %noise = stablehlo.rng %low, %low, %shape, distribution = UNIFORM
      : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<2x2xf32>
    %2 = stablehlo.multiply %1, %noise : tensor<2x2xf32>""",
    }
    text = f"""module {{
  func.func @main(%0: tensor<2x3xf32>, %y: tensor<3x2xf32>) -> tensor<2x2xf32> {{
    %1 = stablehlo.dot %0, %y : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    {lines[other]}
    return %2 : tensor<2x2xf32>
  }}
}}
"""
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(gristmill.compile(text)(x, y), -(x @ y))


def test_empty_results_are_not_computed() -> None:
    text = """module {
  func.func @main(%0: tensor<5x3x0xf32>) -> tensor<0x5x3xf32> {
    %1 = stablehlo.transpose %0, dims = [2, 0, 1] : (tensor<5x3x0xf32>) -> tensor<0x5x3xf32>
    return %1 : tensor<0x5x3xf32>
  }
}
"""
    compilation = compile_stages(import_source(text), keep_stages=True, stop_after="rt")
    assert "rtv.launch" not in str(compilation.emit("rt"))
    assert np.asarray(gristmill.compile(text)(np.empty((5, 3, 0), np.float32))).shape == (0, 5, 3)


def test_moves_of_bf16() -> None:
    """LLVM's instruction selection asserts on the vectors that it makes of such moves."""
    text = """module {
  func.func @main(%0: tensor<17x2xbf16>) -> tensor<2x17xbf16> {
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<17x2xbf16>) -> tensor<2x17xbf16>
    return %1 : tensor<2x17xbf16>
  }
}
"""
    array = np.arange(34, dtype=np.float32).reshape(17, 2).astype(ml_dtypes.bfloat16)
    result = np.asarray(gristmill.compile(text)(array))
    np.testing.assert_array_equal(result.astype(np.float32), array.T.astype(np.float32))


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_random_programs_agree_with_the_reference_interpreter(program: RandomProgram) -> None:
    check(program)


@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_random_programs_agree_on_the_simulator(program: RandomProgram) -> None:
    check(program, "simulator")


#: Operations that random programs do not have, and why.
NOT_FUZZED = {
    "one device": "all_gather all_reduce all_to_all async_done async_start collective_broadcast collective_permute "
    "cross-replica-sum partition_id recv reduce_scatter replica_id send",
    "nothing to compare": "after_all create_token custom_call infeed outfeed",
    "the interpreter knows no bounded dimensions": "set_dimension_size",
    "removed from the specification": "einsum torch_index_select unary_einsum",
    "quantised types": "uniform_dequantize uniform_quantize",
    "the same rewrite as the broadcasting operations that are": " ".join(
        f"chlo.broadcast_{name}"
        for name in "atan2 compare complex divide next_after polygamma power remainder select shift_left "
        "shift_right_arithmetic shift_right_logical zeta".split()
    ),
    "JAX does not emit it for CPUs": "chlo._asin_acos_kernel chlo.constant chlo.ragged_dot chlo.scan",
}
MOST_PROGRAMS = 3000


def test_random_programs_have_every_operation() -> None:
    excepted = {
        name if "." in name else f"stablehlo.{name}"
        for names in NOT_FUZZED.values()
        for name in names.split()
    }
    classes = [v for m in (stablehlo, chlo) for v in vars(m).values() if isinstance(v, type)]
    known = {str(vars(c)["OPERATION_NAME"]) for c in classes if "OPERATION_NAME" in vars(c)}
    missing = set(known)
    for seed in range(MOST_PROGRAMS):
        made = build(Chooser(random.Random(seed).randint)).operations()
        assert made <= known
        assert not made & excepted
        missing -= made
        if missing == excepted:
            return
    assert missing == excepted


def test_a_failing_program_becomes_small() -> None:
    program = next(
        candidate
        for candidate in (build(Chooser(random.Random(seed).randint)) for seed in range(100))
        if "stablehlo.sort" in candidate.operations() and len(candidate.lines) > 40
    )

    def fails(candidate: RandomProgram) -> bool:
        reference(candidate)  # it stays valid
        return any('"stablehlo.sort"' in line for line in candidate.lines)

    least = smaller(program, fails)
    assert len(least.lines) < 4
    assert fails(least)


def test_differences_are_seen() -> None:
    exact = Value("%0", "f32", (2,))
    got, want = np.array([1, 2], np.float32), np.array([1, 2.5], np.float32)
    assert difference(exact, got, got) is None
    message = difference(exact, got, want)
    assert message is not None
    assert "1 of 2 elements differ; first at [1]" in message
    assert difference(replace(exact, error=0.5), got, want) is None
    nan = np.array([1, np.nan], np.float32)
    assert difference(exact, nan, nan) is None
    assert difference(replace(exact, error=0.5), nan, want) is not None
