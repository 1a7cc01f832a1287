# SPDX-License-Identifier: Apache-2.0
"""Every elementwise, data-movement and reduction form against the StableHLO reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import evaluate

import gristmill
from gristmill.compiler.options import CompileOptions

RNG = np.random.default_rng(7)
DTYPES = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, np.inf, -np.inf, np.nan, 3e38, 1e-3]


def sample(element: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(DTYPES[element])
    if element == "i1":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.kind == "f":
        values = RNG.standard_normal(shape) * 4
        flat = values.reshape(-1)
        flat[: len(EDGES)] = EDGES[: flat.size]
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    info = np.iinfo(dtype)
    values = RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values.reshape(-1)[:4] = [info.min, info.max, 0, 1][: values.size]
    return values


def check(text: str, *arrays: np.ndarray, ulps: float = 0) -> None:
    wanted = evaluate(text, *arrays)
    executable = gristmill.compile(text, options=CompileOptions(fold_constants=False))
    got = executable(*arrays)
    got = got if isinstance(got, tuple) else (got,)
    for ours, want in zip(got, wanted, strict=True):
        assert ours.shape == want.shape
        assert ours.dtype == want.dtype
        if want.dtype.kind != "f" or not ulps:
            np.testing.assert_array_equal(ours, want)
        else:
            spacing = np.spacing(np.maximum(np.abs(want), np.finfo(want.dtype).tiny))
            with np.errstate(invalid="ignore"):
                close = np.abs(ours - want) <= ulps * spacing
            same = (ours == want) | (np.isnan(ours) & np.isnan(want))
            assert (close | same).all()


def main(signature: str, body: str, result: str) -> str:
    return f"func.func @main({signature}) -> {result} {{\n{body}\n}}"


INTEGERS = ["i8", "i16", "i32", "i64", "ui8", "ui32", "ui64"]
FLOATS = ["f16", "f32", "f64"]
BINARY = [
    *[
        (op, t)
        for op in ("add", "subtract", "multiply", "maximum", "minimum")
        for t in [*INTEGERS, *FLOATS]
    ],
    *[(op, t) for op in ("and", "or", "xor") for t in ["i1", *INTEGERS]],
    *[(op, "i1") for op in ("add", "multiply", "maximum", "minimum")],
    *[("divide", t) for t in FLOATS],
    *[
        (f"shift_{kind}", t)
        for kind in ("left", "right_logical", "right_arithmetic")
        for t in INTEGERS
    ],
    *[("remainder", t) for t in FLOATS],
]


@pytest.mark.parametrize(("op", "element"), BINARY)
def test_binary(op: str, element: str) -> None:
    kind = f"tensor<37x{element}>"
    lhs, rhs = sample(element, (37,)), np.roll(sample(element, (37,)), 5)
    if op.startswith("shift"):
        rhs = (np.abs(rhs.astype(np.int64)) % 80).astype(rhs.dtype)
        if element.startswith("ui"):
            rhs %= (
                np.dtype(DTYPES[element]).itemsize * 8
            )  # the interpreter reads the amount as signed
    text = main(
        f"%a: {kind}, %b: {kind}", f"%0 = stablehlo.{op} %a, %b : {kind}\nreturn %0 : {kind}", kind
    )
    check(text, lhs, rhs)


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("op", ["divide", "remainder"])
def test_integer_division(op: str, element: str) -> None:
    """Where the divisor is zero or the quotient overflows, StableHLO leaves the result open: not compared."""
    kind = f"tensor<64x{element}>"
    lhs, rhs = sample(element, (64,)), np.roll(sample(element, (64,)), 7)
    rhs[(rhs == 0) | (rhs == np.array(-1).astype(rhs.dtype))] = 3
    text = main(
        f"%a: {kind}, %b: {kind}", f"%0 = stablehlo.{op} %a, %b : {kind}\nreturn %0 : {kind}", kind
    )
    check(text, lhs, rhs)


def test_division_by_zero_does_not_trap() -> None:
    kind = "tensor<3xi32>"
    text = main(
        f"%a: {kind}, %b: {kind}",
        f"%0 = stablehlo.divide %a, %b : {kind}\nreturn %0 : {kind}",
        kind,
    )
    low = np.iinfo(np.int32).min
    got = gristmill.compile(text)(np.array([7, low, low], np.int32), np.array([0, -1, 0], np.int32))
    assert got.tolist() == [-1, low, -1]


UNARY = [
    *[(op, t) for op in ("abs", "negate", "sign") for t in ["i8", "i32", "i64", *FLOATS]],
    *[(op, t) for op in ("not", "popcnt", "count_leading_zeros") for t in INTEGERS],
    ("not", "i1"),
    *[
        (op, t)
        for op in ("floor", "ceil", "round_nearest_even", "round_nearest_afz", "sqrt")
        for t in FLOATS
    ],
]


@pytest.mark.parametrize(("op", "element"), UNARY)
def test_unary(op: str, element: str) -> None:
    kind = f"tensor<37x{element}>"
    text = main(f"%a: {kind}", f"%0 = stablehlo.{op} %a : {kind}\nreturn %0 : {kind}", kind)
    check(text, sample(element, (37,)), ulps=1 if op == "sqrt" else 0)


@pytest.mark.parametrize("element", ["i1", "i32", "ui32", "f16", "f32", "f64"])
@pytest.mark.parametrize("direction", ["EQ", "NE", "GE", "GT", "LE", "LT"])
def test_compare(direction: str, element: str) -> None:
    kind = f"tensor<37x{element}>"
    text = main(
        f"%a: {kind}, %b: {kind}",
        f"%0 = stablehlo.compare {direction}, %a, %b : ({kind}, {kind}) -> tensor<37xi1>\nreturn %0 : tensor<37xi1>",
        "tensor<37xi1>",
    )
    check(text, sample(element, (37,)), np.roll(sample(element, (37,)), 3))


@pytest.mark.parametrize("direction", ["EQ", "GT", "LE"])
def test_total_order(direction: str) -> None:
    """Expected from the definition: the order of the bits, sign and magnitude."""
    kind = "tensor<64xf32>"
    text = main(
        f"%a: {kind}, %b: {kind}",
        f"%0 = stablehlo.compare {direction}, %a, %b, TOTALORDER : ({kind}, {kind}) -> tensor<64xi1>\n"
        "return %0 : tensor<64xi1>",
        "tensor<64xi1>",
    )
    lhs, rhs = sample("f32", (64,)), np.roll(sample("f32", (64,)), 3)
    lhs[20], rhs[20] = -0.0, 0.0

    def order(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)

    compare = {"EQ": np.equal, "GT": np.greater, "LE": np.less_equal}[direction]
    np.testing.assert_array_equal(
        gristmill.compile(text)(lhs, rhs), compare(order(lhs), order(rhs))
    )


@pytest.mark.parametrize("target", ["i1", "i8", "i32", "i64", "ui8", "ui32", "f16", "f32", "f64"])
@pytest.mark.parametrize("source", ["i1", "i8", "i32", "i64", "ui8", "ui64", "f16", "f32", "f64"])
def test_convert(source: str, target: str) -> None:
    """Floats out of an integer's range are left open by StableHLO, so samples stay inside it."""
    values = sample(source, (40,))
    if np.dtype(DTYPES[source]).kind == "f" and target != "i1":
        values = np.nan_to_num(values, posinf=3, neginf=2)
        if np.dtype(DTYPES[target]).kind != "f":
            values = np.clip(np.abs(values), 0, 100).astype(values.dtype)
    text = main(
        f"%a: tensor<40x{source}>",
        f"%0 = stablehlo.convert %a : (tensor<40x{source}>) -> tensor<40x{target}>\nreturn %0 : tensor<40x{target}>",
        f"tensor<40x{target}>",
    )
    with np.errstate(over="ignore"):
        check(text, values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e9, -3e9])
def test_float_to_int_saturates(value: float) -> None:
    text = main(
        "%a: tensor<f32>",
        "%0 = stablehlo.convert %a : (tensor<f32>) -> tensor<i32>\nreturn %0 : tensor<i32>",
        "tensor<i32>",
    )
    info = np.iinfo(np.int32)
    want = 0 if np.isnan(value) else (info.max if value > 0 else info.min)
    assert gristmill.compile(text)(np.float32(value)) == want


MOVEMENT = {
    "broadcast": (
        "%a: tensor<3x1x4xf32>",
        "%0 = stablehlo.broadcast_in_dim %a, dims = [2, 0, 3] : (tensor<3x1x4xf32>) -> tensor<5x2x3x4xf32>",
        "tensor<5x2x3x4xf32>",
    ),
    "reshape": (
        "%a: tensor<3x1x4xf32>",
        "%0 = stablehlo.reshape %a : (tensor<3x1x4xf32>) -> tensor<2x6x1xf32>\n"
        "%1 = stablehlo.abs %0 : tensor<2x6x1xf32>",
        "tensor<2x6x1xf32>",
    ),
    "transpose": (
        "%a: tensor<17x5x35xf32>",
        "%0 = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<17x5x35xf32>) -> tensor<35x17x5xf32>",
        "tensor<35x17x5xf32>",
    ),
    "transpose-outer": (
        "%a: tensor<7x5x9xf32>",
        "%0 = stablehlo.transpose %a, dims = [1, 0, 2] : (tensor<7x5x9xf32>) -> tensor<5x7x9xf32>",
        "tensor<5x7x9xf32>",
    ),
    "slice": (
        "%a: tensor<10x9xf32>",
        "%0 = stablehlo.slice %a [1:10:3, 2:9:2] : (tensor<10x9xf32>) -> tensor<3x4xf32>",
        "tensor<3x4xf32>",
    ),
    "reverse": (
        "%a: tensor<4x5x6xf32>",
        "%0 = stablehlo.reverse %a, dims = [0, 2] : tensor<4x5x6xf32>",
        "tensor<4x5x6xf32>",
    ),
    "pad": (
        "%a: tensor<4x5xf32>",
        "%z = stablehlo.constant dense<9.0> : tensor<f32>\n"
        "%0 = stablehlo.pad %a, %z, low = [2, -1], high = [-1, 3], interior = [1, 2]"
        " : (tensor<4x5xf32>, tensor<f32>) -> tensor<8x15xf32>",
        "tensor<8x15xf32>",
    ),
    "concatenate": (
        "%a: tensor<4x5xf32>, %b: tensor<4x1xf32>, %c: tensor<4x0xf32>, %d: tensor<4x7xf32>",
        "%0 = stablehlo.concatenate %a, %b, %c, %d, dim = 1"
        " : (tensor<4x5xf32>, tensor<4x1xf32>, tensor<4x0xf32>, tensor<4x7xf32>) -> tensor<4x13xf32>",
        "tensor<4x13xf32>",
    ),
    "iota": (
        "%a: tensor<3x5xf32>",
        "%i = stablehlo.iota dim = 1 : tensor<3x5xf32>\n%0 = stablehlo.add %a, %i : tensor<3x5xf32>",
        "tensor<3x5xf32>",
    ),
}


@pytest.mark.parametrize("name", list(MOVEMENT))
def test_movement(name: str) -> None:
    signature, body, result = MOVEMENT[name]
    last = "%1" if "%1" in body else "%0"
    text = main(signature, f"{body}\nreturn {last} : {result}", result)
    shapes = [part.split("tensor<")[1].split("xf32")[0] for part in signature.split(", ")]
    arrays = [RNG.standard_normal(tuple(map(int, s.split("x")))).astype(np.float32) for s in shapes]
    check(text, *arrays)


@pytest.mark.parametrize("start", [(-5, 1), (2, 2), (100, -100), (0, 3)])
def test_dynamic_slices_clamp_their_start(start: tuple[int, int]) -> None:
    signature = "%a: tensor<6x8xf32>, %u: tensor<2x3xf32>, %i: tensor<i32>, %j: tensor<i32>"
    body = (
        "%0 = stablehlo.dynamic_slice %a, %i, %j, sizes = [2, 3]"
        " : (tensor<6x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>\n"
        "%1 = stablehlo.dynamic_update_slice %a, %u, %i, %j"
        " : (tensor<6x8xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<6x8xf32>\n"
        "return %0, %1 : tensor<2x3xf32>, tensor<6x8xf32>"
    )
    text = main(signature, body, "(tensor<2x3xf32>, tensor<6x8xf32>)")
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in ((6, 8), (2, 3))]
    check(text, *arrays, *(np.array(i, np.int32) for i in start))


REDUCED = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("dims", REDUCED)
@pytest.mark.parametrize(
    ("op", "element"), [("add", "i32"), ("maximum", "f32"), ("minimum", "i8"), ("and", "i1")]
)
def test_reduce(op: str, element: str, dims: tuple[int, ...]) -> None:
    """Exact reducers, over every choice of dimensions: row, column, middle, scattered, all, none."""
    shape = (5, 7, 9)
    kept = [s for d, s in enumerate(shape) if d not in dims]
    result = "x".join([*map(str, kept), element])
    text = main(
        f"%a: tensor<5x7x9x{element}>, %z: tensor<{element}>",
        f"%0 = stablehlo.reduce(%a init: %z) applies stablehlo.{op} across dimensions = {list(dims)}"
        f" : (tensor<5x7x9x{element}>, tensor<{element}>) -> tensor<{result}>\nreturn %0 : tensor<{result}>",
        f"tensor<{result}>",
    )
    values = sample(element, shape)
    identity = {"add": 0, "maximum": -np.inf, "minimum": 127, "and": True}[op]
    check(text, values, np.array(identity, values.dtype))


def test_reduce_of_several_operands_with_a_general_body() -> None:
    """argmin with ties going to the lower index, long enough for the lane form."""
    text = """
    func.func @main(%a: tensor<3x200xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
      %p = stablehlo.constant dense<0x7F800000> : tensor<f32>
      %m = stablehlo.constant dense<2147483647> : tensor<i32>
      %i = stablehlo.iota dim = 1 : tensor<3x200xi32>
      %0:2 = stablehlo.reduce(%a init: %p), (%i init: %m) across dimensions = [1]
        : (tensor<3x200xf32>, tensor<3x200xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
        reducer(%x: tensor<f32>, %y: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {
          %lt = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %eq = stablehlo.compare EQ, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %lo = stablehlo.compare LT, %j, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
          %tie = stablehlo.and %eq, %lo : tensor<i1>
          %take = stablehlo.or %lt, %tie : tensor<i1>
          %v = stablehlo.select %take, %x, %y : tensor<i1>, tensor<f32>
          %n = stablehlo.select %take, %j, %k : tensor<i1>, tensor<i32>
          stablehlo.return %v, %n : tensor<f32>, tensor<i32>
        }
      return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
    }"""
    values = RNG.integers(0, 12, (3, 200)).astype(np.float32)
    check(text, values)


def test_bitcast_between_widths() -> None:
    text = main(
        "%a: tensor<4x2xi16>",
        "%0 = stablehlo.bitcast_convert %a : (tensor<4x2xi16>) -> tensor<4xf32>\n"
        "%1 = stablehlo.bitcast_convert %0 : (tensor<4xf32>) -> tensor<4x4xi8>\n"
        "return %0, %1 : tensor<4xf32>, tensor<4x4xi8>",
        "(tensor<4xf32>, tensor<4x4xi8>)",
    )
    check(text, RNG.integers(0, 1 << 14, (4, 2)).astype(np.int16))


def test_loops_and_branches_over_arrays() -> None:
    """A while that carries an array and a case inside it: the computation kernel's buffer table."""
    text = """
    func.func @main(%a: tensor<5xf32>, %n: tensor<i32>) -> (tensor<i32>, tensor<5xf32>) {
      %z = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.while(%i = %z, %x = %a) : tensor<i32>, tensor<5xf32>
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %j = stablehlo.remainder %i, %three : tensor<i32>
        %y = "stablehlo.case"(%j) ({
          %r = stablehlo.reverse %x, dims = [0] : tensor<5xf32>
          stablehlo.return %r : tensor<5xf32>
        }, {
          %d = stablehlo.add %x, %x : tensor<5xf32>
          stablehlo.return %d : tensor<5xf32>
        }, {
          %d = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0]> : tensor<5xf32>
          %s = stablehlo.subtract %x, %d : tensor<5xf32>
          stablehlo.return %s : tensor<5xf32>
        }) : (tensor<i32>) -> tensor<5xf32>
        %k = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %k, %y : tensor<i32>, tensor<5xf32>
      }
      return %0#0, %0#1 : tensor<i32>, tensor<5xf32>
    }"""
    for count in (0, 1, 2, 7):
        check(text, RNG.standard_normal(5).astype(np.float32), np.array(count, np.int32))
