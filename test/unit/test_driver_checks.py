# SPDX-License-Identifier: Apache-2.0
"""The rules by which ``gristmill check`` judges results, and their extraction from modules."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gristmill.compiler.driver.check_extraction import extract_checks
from gristmill.compiler.driver.checks import compare, ulp_distance
from gristmill.compiler.text import parse_module
from gristmill.errors import UnsupportedError

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_ulp_apart(dtype: type) -> None:
    info = ml_dtypes.finfo(dtype)
    values = np.array([1, -1, info.smallest_normal, info.smallest_subnormal, -3.5], dtype)
    for direction in (math.inf, -math.inf):
        neighbours = np.nextafter(values, np.array(direction, dtype))
        assert ulp_distance(values, neighbours).tolist() == [1] * len(values)
        assert ulp_distance(neighbours, values).tolist() == [1] * len(values)


@pytest.mark.parametrize("dtype", FLOATS)
def test_distance_crosses_zero_and_the_exponents(dtype: type) -> None:
    info = ml_dtypes.finfo(dtype)
    tiny = info.smallest_subnormal
    a = np.array([-0.0, -tiny, tiny, 1], dtype)
    b = np.array([0.0, tiny, -0.0, 2], dtype)
    assert ulp_distance(a, b).tolist() == [0, 2, 1, 2**info.nmant]


NARROW = [
    ml_dtypes.float4_e2m1fn,
    ml_dtypes.float6_e3m2fn,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_formats_are_counted_value_by_value(dtype: type) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    values = np.unique(codes[np.isfinite(codes)]).astype(dtype)
    assert ulp_distance(values[:-1], values[1:]).tolist() == [1] * (len(values) - 1)
    assert ulp_distance(values[:1], values[-1:]).tolist() == [len(values) - 1]
    assert compare(values, values.copy(), "close", 0) is None
    assert compare(values[1:], values[:-1], "close", 0) is not None


def test_the_greatest_distance_does_not_overflow() -> None:
    top = np.finfo(np.float64).max
    distance = ulp_distance(np.array([-top]), np.array([top]))
    assert distance.tolist() == [2 * (0x7FEFFFFFFFFFFFFF)]


CASES = [
    # kind, limit, got, want, whether it passes
    ("eq", 0, [1.0, math.nan, -0.0], [1.0, math.nan, 0.0], True),
    ("eq", 0, [1.0], [np.nextafter(np.float32(1), np.float32(2))], False),
    ("eq", 0, [math.nan], [1.0], False),
    ("close", 3, [1.0 + 3 * 2**-23], [1.0], True),
    ("close", 3, [1.0 + 4 * 2**-23], [1.0], False),
    ("close", 3, [math.inf, -math.inf, math.nan], [math.inf, -math.inf, math.nan], True),
    ("close", 3, [math.inf], [np.finfo(np.float32).max], False),  # one step apart as bits
    ("close", 3, [math.inf], [-math.inf], False),
    ("close", 3, [1.0], [math.nan], False),
    ("close", 3, [math.nan], [1.0], False),
    ("almost_eq", 1e-3, [1000.9], [1000.0], True),
    ("almost_eq", 1e-3, [1001.1], [1000.0], False),
    ("almost_eq", 1e-3, [0.0009], [0.0], True),
    ("almost_eq", 1e-3, [0.0011], [0.0], False),
    ("almost_eq", 1e-3, [math.inf], [3e38], False),
    ("almost_eq", 1e-3, [math.inf, math.nan], [math.inf, math.nan], True),
]


@pytest.mark.parametrize(("kind", "limit", "got", "want", "passes"), CASES)
def test_rules(kind: str, limit: float, got: list[float], want: list[float], passes: bool) -> None:
    message = compare(np.array(got, np.float32), np.array(want, np.float32), kind, limit)
    assert (message is None) == passes


@pytest.mark.parametrize("kind", ["eq", "close", "almost_eq"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.int32])
def test_what_is_not_floating_point_must_be_equal(kind: str, dtype: type) -> None:
    ones, other = np.array([1, 1], dtype), np.array([1, 0], dtype)
    assert compare(ones, ones.copy(), kind, 5) is None
    assert compare(ones, other, kind, 5) is not None


def test_complex_parts_are_judged_one_by_one() -> None:
    want = np.array([1 + 1e-20j], np.complex64)
    assert compare(want.copy(), want, "close", 3) is None
    assert compare(np.array([1 + 2e-20j], np.complex64), want, "close", 3) is not None


def test_shape_and_type_must_match() -> None:
    four = np.zeros(4, np.float32)
    assert compare(four, four.reshape(2, 2), "eq", 0) == "got float32[4], want float32[2, 2]"
    assert compare(four, four.astype(np.float64), "eq", 0) is not None


def test_the_message_names_the_first_and_the_worst() -> None:
    got = np.array([[1, 2], [3, 4]], np.float32)
    want = np.array([[1, 2], [3.5, 8]], np.float32)
    assert compare(got, want, "close", 3) == (
        "2 of 4 elements differ; first at [1, 0]: got 3.0, want 3.5; worst distance 8388608 ULP"
    )


def test_empty_arrays_pass() -> None:
    assert compare(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), "close", 3) is None


MODULE = """
func.func @main(%a: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "y"}) {
  %c = "hlo.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %b = "hlo.add"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  "hlov.custom_call"(%b, %c) {call_target_name = "check.expect_close", has_side_effect = true,
    backend_config = {max_ulp_difference = 4 : i64}} : (tensor<2xf32>, tensor<2xf32>) -> ()
  "hlov.custom_call"(%b, %a) {call_target_name = "check.expect_almost_eq",
    backend_config = {tolerance = 0.5 : f64}} : (tensor<2xf32>, tensor<2xf32>) -> ()
  "hlov.custom_call"(%a, %a) {call_target_name = "check.expect_eq"}
    : (tensor<2xf32>, tensor<2xf32>) -> ()
  "hlov.custom_call"(%a) {call_target_name = "other"} : (tensor<2xf32>) -> ()
  return %b : tensor<2xf32>
}
"""


def test_checks_become_results() -> None:
    module = parse_module(MODULE)
    checks = extract_checks(module)
    assert [(c.kind, c.limit, c.got) for c in checks] == [
        ("close", 4.0, 1),
        ("almost_eq", 0.5, 2),
        ("eq", 0.0, 4),
    ]
    assert isinstance(checks[0].want, np.ndarray)
    assert checks[0].want.tolist() == [1.0, 2.0]
    assert [c.want for c in checks[1:]] == [3, 5]
    assert checks[0].location.endswith(":5:3")
    assert module.module.operation.verify()
    text = str(module.module)
    assert "check.expect" not in text
    assert '"other"' in text
    assert "return %1, %1, %1, %arg0, %arg0, %arg0" in text
    assert 'jax.result_info = "y"' in text


def test_extracted_checks_judge() -> None:
    checks = extract_checks(parse_module(MODULE))
    value = np.array([1, 2], np.float32)
    results = [value, value, value, value * 2, value, value]
    assert [check.judge(results) is None for check in checks] == [True, True, True]
    results[1:4] = [value + 1, value, value * 3]
    assert [check.judge(results) is None for check in checks] == [False, False, True]


def test_an_unknown_check_is_refused() -> None:
    text = MODULE.replace("expect_eq", "expect_nice")
    with pytest.raises(UnsupportedError, match=r":9:3: check.expect_nice: no such check"):
        extract_checks(parse_module(text))


def test_a_check_outside_main_is_refused() -> None:
    text = MODULE.replace("@main", "@helper") + "func.func @main() { return }"
    with pytest.raises(UnsupportedError, match="move it to @main"):
        extract_checks(parse_module(text))
