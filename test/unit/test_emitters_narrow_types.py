# SPDX-License-Identifier: Apache-2.0
"""Integers below 8 bits and floats below 16 against ml_dtypes, every bit pattern where that is possible."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gristmill
from gristmill.compiler.emitters.elemental.narrow_floats import is_narrow
from gristmill.compiler.options import CompileOptions
from gristmill.runtime.types import ELEMENT_TYPES, ElementType

Array = np.ndarray[Any, Any]

FLOATS = [name for name, element in ELEMENT_TYPES.items() if is_narrow(element)]
INTEGERS = ["i2", "i4", "ui2", "ui4"]
#: Formats with zero, sign and room for arithmetic: the tests of whole programs use these.
COMMON = ["f8E4M3FN", "f8E5M2", "f8E5M2FNUZ"]


def run(text: str, *arrays: Array, fold: bool = False) -> Array:
    result = gristmill.compile(text, options=CompileOptions(fold_constants=fold))(*arrays)
    assert isinstance(result, np.ndarray)
    return result


def patterns(element: ElementType) -> Array:
    """Every value of a narrow type."""
    if element.is_integer:
        low = 0 if element.is_unsigned else -(1 << (element.bits - 1))
        return np.arange(low, low + (1 << element.bits)).astype(element.dtype)
    return np.arange(1 << element.bits, dtype=np.uint8).view(element.dtype)


def apply(op: str, source: str, target: str, *arrays: Array, attributes: str = "") -> Array:
    """An elementwise op on equal vectors of ``source``, giving ``target``."""
    size = arrays[0].size
    names = [f"%a{i}" for i in range(len(arrays))]
    kinds = ", ".join([f"tensor<{size}x{source}>"] * len(names))
    parameters = ", ".join(f"{name}: tensor<{size}x{source}>" for name in names)
    return run(
        f"func.func @main({parameters}) -> tensor<{size}x{target}> {{\n"
        f'  %0 = "stablehlo.{op}"({", ".join(names)}) {attributes} '
        f": ({kinds}) -> tensor<{size}x{target}>\n"
        f"  return %0 : tensor<{size}x{target}>\n}}",
        *arrays,
    )


def check_same(got: Array, want: Array) -> None:
    """Equal bit for bit, but any NaN equals any other."""
    assert got.dtype == want.dtype
    bits = np.dtype(f"u{want.dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        both_nan = (got != got) & (want != want)
    same = (got.view(bits) == want.view(bits)) | both_nan
    assert same.all(), (got[~same][:5], want[~same][:5])


def pairs(values: Array) -> tuple[Array, Array]:
    return np.repeat(values, values.size), np.tile(values, values.size)


def hard_inputs(element: ElementType) -> Array:
    """Values around every number and every tie of a format, overflow, underflow, all exponents, specials."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        numbers = patterns(element).astype(np.float32).astype(np.float64)
        numbers = np.unique(numbers[np.isfinite(numbers)])
        ties = (numbers[1:] + numbers[:-1]) / 2
        base = np.concatenate([numbers, ties, numbers * 2, numbers * 1e-3, ties / 64])
        base = base.astype(np.float32)
        near = [np.nextafter(base, np.float32(s)) for s in (np.inf, -np.inf)]
    random = rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    return np.concatenate([base, *near, random, special])


@pytest.mark.parametrize("name", FLOATS)
def test_decoding(name: str) -> None:
    values = patterns(ELEMENT_TYPES[name])
    check_same(apply("convert", name, "f32", values), values.astype(np.float32))
    check_same(apply("convert", name, "f64", values), values.astype(np.float64))
    check_same(
        apply("convert", name, "bf16", values),
        values.astype(np.float32).astype(ml_dtypes.bfloat16),
    )


def nearest_power(values: Array) -> Array:
    """The codes of the nearest powers of two from 2**-127 to 2**127, ties upwards; 255 for what is none.

    Releases of ml_dtypes differ in how they round numbers between 2**-127 and 2**-126.
    """
    fractions, exponents = np.frexp(values.astype(np.float64))
    codes = np.where(fractions < 0.75, exponents - 1, exponents) + 127
    valid = (values > 0) & np.isfinite(values) & (codes < 255)
    return np.where(valid, np.maximum(codes, 0), 255).astype(np.uint8)


@pytest.mark.parametrize("name", FLOATS)
def test_encoding(name: str) -> None:
    element = ELEMENT_TYPES[name]
    values = hard_inputs(element)
    with np.errstate(all="ignore"):
        want = nearest_power(values) if name == "f8E8M0FNU" else values.astype(element.dtype)
    got = apply("convert", "f32", name, values)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_encoding_rounds_once() -> None:
    """From f64: a value beside a tie, which a first rounding to f32 would make one."""
    values = np.array([1.0625, 1.0625 + 2**-40, 1.125 - 2**-40, -1.1875 - 2**-45, 1e300, -1e-300])
    got = apply("convert", "f64", "f8E4M3FN", values).astype(np.float32)
    np.testing.assert_array_equal(got, [1.0, 1.125, 1.125, -1.25, np.nan, -0.0])


@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2", "f4E2M1FN"])
def test_between_narrow_floats_and_integers(name: str) -> None:
    element = ELEMENT_TYPES[name]
    values = patterns(element)
    finite = values[np.isfinite(values.astype(np.float32))]
    check_same(
        apply("convert", name, "i16", finite),
        np.clip(np.trunc(finite.astype(np.float64)), -32768, 32767).astype(np.int16),
    )
    integers = np.arange(-300, 300, dtype=np.int32)
    want = integers.astype(np.float32).astype(element.dtype)
    check_same(apply("convert", "i32", name, integers), want)
    check_same(
        apply("convert", name, "f8E3M4", values),
        values.astype(np.float32).astype(ml_dtypes.float8_e3m4),
    )


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("name", [*COMMON, "f4E2M1FN", "f6E2M3FN"])
def test_float_arithmetic(name: str, op: str) -> None:
    element = ELEMENT_TYPES[name]
    a, b = pairs(patterns(element))
    function = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
    with np.errstate(all="ignore"):
        wide = function.get(op, np.divide)(a.astype(np.float32), b.astype(np.float32))
        want = wide.astype(element.dtype)
    got = apply(op, name, name, a, b)
    if (
        element.bits < 8
    ):  # NaN has no encoding: what it becomes depends on its sign, which is left open
        keep = ~np.isnan(wide)
        got, want = got[keep], want[keep]
    check_same(got, want)


@pytest.mark.parametrize("name", FLOATS)
def test_float_order(name: str) -> None:
    a, b = pairs(patterns(ELEMENT_TYPES[name]))
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float32) < b.astype(np.float32)
    attributes = "{comparison_direction = #stablehlo<comparison_direction LT>}"
    np.testing.assert_array_equal(apply("compare", name, "i1", a, b, attributes=attributes), want)


@pytest.mark.parametrize("name", COMMON)
def test_float_functions(name: str) -> None:
    element = ELEMENT_TYPES[name]
    values = patterns(element)
    wide = values.astype(np.float32)
    with np.errstate(all="ignore"):
        for op, function in (("exponential", np.exp), ("sqrt", np.sqrt), ("abs", np.abs)):
            want = function(wide).astype(element.dtype)
            check_same(apply(op, name, name, values), want)
        check_same(apply("negate", name, name, values), (-wide).astype(element.dtype))
        np.testing.assert_array_equal(apply("is_finite", name, "i1", values), np.isfinite(wide))


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "and", "or", "xor"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_arithmetic_wraps(name: str, op: str) -> None:
    element = ELEMENT_TYPES[name]
    a, b = pairs(patterns(element))
    function = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]
    want = function(a.astype(np.int32), b.astype(np.int32)).astype(element.dtype)
    got = apply(op, name, name, a, b)
    np.testing.assert_array_equal(got.astype(np.int32), want.astype(np.int32))
    # The bytes are ml_dtypes' own form: zeros above the value.
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_operations(name: str) -> None:
    element = ELEMENT_TYPES[name]
    values, width = patterns(element), element.bits
    a, b = pairs(values)
    wide_a, wide_b = a.astype(np.int32), b.astype(np.int32)
    amount = wide_b & ((1 << width) - 1)
    over = amount >= width
    raw = wide_a & ((1 << width) - 1)
    left = np.where(over, 0, raw << np.minimum(amount, width)).astype(np.uint8)
    logical = np.where(over, 0, raw >> np.minimum(amount, width)).astype(np.uint8)

    def wrapped(bits: Array) -> Array:
        signed = bits.astype(np.int32) & ((1 << width) - 1)
        if not element.is_unsigned:
            signed = np.where(signed >> (width - 1), signed - (1 << width), signed)
        return signed

    def compute(op: str, *arrays: Array) -> Array:
        return apply(op, name, name, *arrays).astype(np.int32)

    np.testing.assert_array_equal(compute("shift_left", a, b), wrapped(left))
    np.testing.assert_array_equal(compute("shift_right_logical", a, b), wrapped(logical))
    np.testing.assert_array_equal(compute("maximum", a, b), np.maximum(wide_a, wide_b))
    np.testing.assert_array_equal(compute("minimum", a, b), np.minimum(wide_a, wide_b))
    np.testing.assert_array_equal(compute("not", values), wrapped(~values.astype(np.int32)))
    np.testing.assert_array_equal(compute("negate", values), wrapped(-values.astype(np.int32)))
    ones = np.bitwise_count((values.astype(np.int32) & ((1 << width) - 1)).astype(np.uint8))
    np.testing.assert_array_equal(compute("popcnt", values), wrapped(ones))
    nonzero = (wide_b != 0) & ~((wide_b == -1) & (wide_a == wide_a.min()))
    quotient = np.trunc(wide_a[nonzero] / wide_b[nonzero]).astype(np.int32)
    np.testing.assert_array_equal(compute("divide", a[nonzero], b[nonzero]), quotient)
    np.testing.assert_array_equal(
        compute("remainder", a[nonzero], b[nonzero]),
        wide_a[nonzero] - quotient * wide_b[nonzero],
    )


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(INTEGERS, 2)))
def test_integer_conversion_wraps(source: str, target: str) -> None:
    values = patterns(ELEMENT_TYPES[source])
    got = apply("convert", source, target, values)
    want = values.astype(np.int32).astype(ELEMENT_TYPES[target].dtype)
    np.testing.assert_array_equal(got.astype(np.int32), want.astype(np.int32))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_wide_types(name: str) -> None:
    values = patterns(ELEMENT_TYPES[name])
    for target in ("i32", "ui8", "f32", "i1"):
        want = values.astype(np.int32).astype(ELEMENT_TYPES[target].dtype)
        np.testing.assert_array_equal(apply("convert", name, target, values), want)
    wide = np.arange(-40, 40, dtype=np.int32)
    got = apply("convert", "i32", name, wide)
    np.testing.assert_array_equal(
        got.astype(np.int32), wide.astype(ELEMENT_TYPES[name].dtype).astype(np.int32)
    )


def test_bitcasts() -> None:
    """Sub-byte elements of a wider one come lowest bits first; 4-bit floats and integers share bits."""
    data = np.array([0x12345678, 0x0FEDCBA9], np.uint32)
    nibbles = run(
        "func.func @main(%a: tensor<2xui32>) -> tensor<2x8xui4> {\n"
        "  %0 = stablehlo.bitcast_convert %a : (tensor<2xui32>) -> tensor<2x8xui4>\n"
        "  return %0 : tensor<2x8xui4>\n}",
        data,
    )
    want = (data[:, None] >> np.arange(0, 32, 4)) & 15
    np.testing.assert_array_equal(nibbles.astype(np.uint32), want)
    back = run(
        "func.func @main(%a: tensor<2x8xui4>) -> tensor<2xui32> {\n"
        "  %0 = stablehlo.bitcast_convert %a : (tensor<2x8xui4>) -> tensor<2xui32>\n"
        "  return %0 : tensor<2xui32>\n}",
        nibbles,
    )
    np.testing.assert_array_equal(back, data)
    floats = patterns(ELEMENT_TYPES["f4E2M1FN"])
    bits = apply("bitcast_convert", "f4E2M1FN", "ui4", floats)
    np.testing.assert_array_equal(bits.astype(np.int32), np.arange(16))


@pytest.mark.parametrize("name", [*COMMON, *INTEGERS])
def test_products_and_sums(name: str) -> None:
    """Products accumulate in a wide type and round or wrap once."""
    element = ELEMENT_TYPES[name]
    rng = np.random.default_rng(5)
    a = (rng.integers(-3, 4, (9, 33)) / 2).astype(np.float32).astype(element.dtype)
    b = (rng.integers(-3, 4, (33, 20)) / 2).astype(np.float32).astype(element.dtype)
    wide = np.float64 if element.is_float else np.int64
    exact = a.astype(wide) @ b.astype(wide)
    for result in (name, "f32" if element.is_float else "i32"):
        got = run(
            f"func.func @main(%a: tensor<9x33x{name}>, %b: tensor<33x20x{name}>)"
            f" -> tensor<9x20x{result}> {{\n"
            f"  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]"
            f" : (tensor<9x33x{name}>, tensor<33x20x{name}>) -> tensor<9x20x{result}>\n"
            f"  return %0 : tensor<9x20x{result}>\n}}",
            a,
            b,
        )
        want = exact.astype(np.float32 if element.is_float else np.int64)
        np.testing.assert_array_equal(
            got.astype(wide), want.astype(ELEMENT_TYPES[result].dtype).astype(wide)
        )
    for dimension, size in ((0, 33), (1, 9)):
        got = run(
            f"func.func @main(%a: tensor<9x33x{name}>) -> tensor<{size}x{name}> {{\n"
            f"  %z = stablehlo.constant dense<{'0.0' if element.is_float else '0'}>"
            f" : tensor<{name}>\n"
            f"  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions ="
            f" [{dimension}] : (tensor<9x33x{name}>, tensor<{name}>) -> tensor<{size}x{name}>\n"
            f"  return %0 : tensor<{size}x{name}>\n}}",
            a,
        )
        want = a.astype(wide).sum(dimension)
        want = want.astype(np.float32 if element.is_float else np.int64).astype(element.dtype)
        np.testing.assert_array_equal(got.astype(wide), want.astype(wide))


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_movement_and_constants(name: str) -> None:
    """Bits are moved as they are, by kernels and by the constant folder."""
    element = ELEMENT_TYPES[name]
    values = np.resize(patterns(element), (40, 48))
    raw = values.view(np.uint8) & ((1 << element.bits) - 1)
    text = (
        f"func.func @main(%a: tensor<40x48x{name}>) -> tensor<48x80x{name}> {{\n"
        f'  %c = stablehlo.constant dense<"0x{raw.tobytes().hex()}"> : tensor<40x48x{name}>\n'
        f"  %r = stablehlo.reverse %c, dims = [0] : tensor<40x48x{name}>\n"
        f"  %0 = stablehlo.concatenate %a, %r, dim = 0 : (tensor<40x48x{name}>,"
        f" tensor<40x48x{name}>) -> tensor<80x48x{name}>\n"
        f"  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<80x48x{name}>)"
        f" -> tensor<48x80x{name}>\n"
        f"  return %1 : tensor<48x80x{name}>\n}}"
    )
    want = np.concatenate([values, values[::-1]]).T
    for fold in (False, True):
        got = run(text, values, fold=fold)
        np.testing.assert_array_equal(got.view(np.uint8), want.copy().view(np.uint8))


@pytest.mark.parametrize("name", ["i4", "ui2", "f8E4M3FN", "f4E2M1FN"])
def test_iota(name: str) -> None:
    kind = f"tensor<7x{name}>"
    got = run(
        f"func.func @main() -> {kind} {{\n"
        f"  %0 = stablehlo.iota dim = 0 : {kind}\n  return %0 : {kind}\n}}"
    )
    want = np.arange(7).astype(np.int32 if "i" in name else np.float32)
    check_same(got, want.astype(ELEMENT_TYPES[name].dtype))


@pytest.mark.parametrize("name", ["i4", "ui4", "f8E4M3FN", "f8E5M2FNUZ", "f4E2M1FN"])
def test_sort_and_scatter(name: str) -> None:
    element = ELEMENT_TYPES[name]
    values = patterns(element)
    values = values[np.isfinite(values.astype(np.float32))]
    np.random.default_rng(1).shuffle(values)
    kind = f"tensor<{values.size}x{name}>"
    got = run(
        f"func.func @main(%a: {kind}) -> {kind} {{\n"
        f'  %0 = "stablehlo.sort"(%a) <{{dimension = 0 : i64}}> ({{\n'
        f"  ^bb0(%x: tensor<{name}>, %y: tensor<{name}>):\n"
        f"    %p = stablehlo.compare LT, %x, %y : (tensor<{name}>, tensor<{name}>) -> tensor<i1>\n"
        f"    stablehlo.return %p : tensor<i1>\n  }}) : ({kind}) -> {kind}\n  return %0 : {kind}\n}}",
        values,
    )
    np.testing.assert_array_equal(got.astype(np.float32), np.sort(values.astype(np.float32)))
    numbers = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    indices = np.array([[0], [2], [0]], np.int32)
    ones = np.ones(3, np.float32).astype(element.dtype)
    got = run(
        f"func.func @main(%a: {kind}, %i: tensor<3x1xi32>, %u: tensor<3x{name}>) -> {kind} {{\n"
        f'  %0 = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = {numbers}}}> ({{\n'
        f"  ^bb0(%x: tensor<{name}>, %y: tensor<{name}>):\n"
        f"    %s = stablehlo.add %x, %y : tensor<{name}>\n"
        f"    stablehlo.return %s : tensor<{name}>\n"
        f"  }}) : ({kind}, tensor<3x1xi32>, tensor<3x{name}>) -> {kind}\n  return %0 : {kind}\n}}",
        values,
        indices,
        ones,
    )
    want = values.copy()
    for at in (0, 2, 0):
        total = want[at].astype(np.float32) + 1
        want[at] = total.astype(np.int32 if element.is_integer else np.float32).astype(
            element.dtype
        )
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("kind", ["ui2", "i4"])
def test_bits_of_narrow_vectors_are_counted(kind: str) -> None:
    """As vectors of 2 and 4 bits these operations end LLVM's instruction selection on AVX-512."""
    bits = int(kind.strip("ui"))
    text = (
        f"func.func @main(%x: tensor<512x{kind}>) -> (tensor<512x{kind}>, tensor<512x{kind}>) {{\n"
        f"%0 = stablehlo.popcnt %x : tensor<512x{kind}>\n"
        f"%1 = stablehlo.count_leading_zeros %x : tensor<512x{kind}>\n"
        f"return %0, %1 : tensor<512x{kind}>, tensor<512x{kind}> }}"
    )
    dtype = {"ui2": ml_dtypes.uint2, "i4": ml_dtypes.int4}[kind]
    numbers = np.random.default_rng(0).integers(0, 1 << bits, 512)
    signed = numbers - (1 << bits) * (numbers >> (bits - 1)) if kind[0] == "i" else numbers
    with gristmill.compile(text) as executable:
        ones, zeros = executable(signed.astype(dtype))
    wanted = [bin(n).count("1") for n in numbers], [bits - int(n).bit_length() for n in numbers]
    for result, expected in zip((ones, zeros), wanted, strict=True):
        np.testing.assert_array_equal(result.astype(np.int64) & ((1 << bits) - 1), expected)
