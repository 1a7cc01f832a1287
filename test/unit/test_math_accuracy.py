# SPDX-License-Identifier: Apache-2.0
"""Errors of the math library against independent references.

binary32 results are compared with the C library's binary64 functions (through numpy and Python's ``math``), whose
own error is 2^-29 of a binary32 ulp, over every exponent and around the points where the code changes its formula;
the worst points are judged again by mpmath. binary64 results are compared with mpmath alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from math_phase import apply, math_module
from mlir import ir

from gristmill.compiler.codegen.testing import run_phase
from gristmill.compiler.emitters import math as library

Array = np.ndarray

_INF, _NAN = math.inf, math.nan


def _logistic(x: Array) -> Array:
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1.0) / (1.0 + power)


def _logistic_mp(x: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-x))


def _rounded_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.copysign(np.abs(whole) + (np.abs(x - whole) >= 0.5), x)


# name: (binary64 reference, mpmath reference, allowed error in ulp: binary32, binary64)
UNARY: dict[str, tuple[Callable[[Array], Array], Callable[..., object], float, float]] = {
    "cbrt": (np.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), 0.7, 0.6),
    "cosine": (np.cos, mpmath.cos, 0.6, 0.9),
    "erf": (np.vectorize(math.erf), mpmath.erf, 1.6, 1.0),
    "erfc": (np.vectorize(math.erfc), mpmath.erfc, 0.6, 1.1),
    "exponential": (np.exp, mpmath.exp, 1.1, 1.1),
    "exponential_minus_one": (np.expm1, mpmath.expm1, 1.1, 1.1),
    "log": (np.log, mpmath.log, 1.0, 1.0),
    "log_plus_one": (np.log1p, mpmath.log1p, 1.0, 1.0),
    "logistic": (_logistic, _logistic_mp, 2.5, 2.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), 0.6, 0.6),
    "sine": (np.sin, mpmath.sin, 0.6, 0.9),
    "sqrt": (np.sqrt, mpmath.sqrt, 0.5, 0.5),
    "tan": (np.tan, mpmath.tan, 0.6, 0.9),
    "tanh": (np.tanh, mpmath.tanh, 1.6, 1.6),
}

EXACT: dict[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_nearest_afz": _rounded_away,
    "round_nearest_even": np.rint,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
}


def specials(dtype: type) -> Array:
    """Zeros, infinities, NaN, extremes, small integers and halves, and the neighbours of each."""
    info = np.finfo(dtype)
    half_ulp = float(info.eps) / 2
    magnitudes = [0, half_ulp, 0.1, 0.5, 0.55, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 3.93, 7, 88.7, 103.97]
    magnitudes += [709.78, 745.13, 2.0**23, 2.0**52, math.pi / 4, math.pi / 2, math.pi, _INF]
    magnitudes += [float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    with np.errstate(over="ignore"):
        positive = np.array(magnitudes, dtype)
        points = np.concatenate([positive, -positive])
        up, down = np.nextafter(points, dtype(_INF)), np.nextafter(points, dtype(-_INF))
    return np.concatenate([points, up, down, np.array([_NAN], dtype)])


def samples(dtype: type, per_exponent: int, dense: int, seed: int = 1) -> Array:
    """Specials, ``per_exponent`` points of each sign and exponent, ``dense`` of everyday magnitude."""
    random = np.random.default_rng(seed)
    bits = 8 * np.dtype(dtype).itemsize
    mantissa = np.finfo(dtype).nmant
    heads = np.arange(1 << (bits - mantissa), dtype=np.uint64) << np.uint64(mantissa)
    tails = random.integers(0, 1 << mantissa, (per_exponent, heads.size), dtype=np.uint64)
    spread = (heads | tails).ravel().astype(f"u{bits // 8}").view(dtype)
    everyday = random.standard_normal(dense) * np.exp(random.uniform(-3, 3, dense))
    return np.concatenate([specials(dtype), spread, everyday.astype(dtype)])


def errors_f32(got: Array, want: Array) -> Array:
    """Error in ulp of binary32 results against binary64 references; infinite where the class or sign is wrong."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        _, exponent = np.frexp(want)
        ulp = np.ldexp(1.0, np.maximum(exponent - 24, -149))
        error = np.abs(got.astype(np.float64) - want) / ulp
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded))
    same |= np.isnan(got) & np.isnan(rounded)
    largest = np.finfo(np.float32).max
    overflow = np.isinf(rounded) & (got == np.copysign(largest, rounded))
    overflow |= np.isinf(got) & (rounded == np.copysign(largest, got))
    measured = np.where(np.isfinite(rounded) & np.isfinite(got), error, _INF)
    measured = np.where((got == 0) & (rounded == 0) & ~same, _INF, measured)
    return np.where(overflow, 1.0, np.where(same & ~np.isfinite(rounded), 0.0, measured))


def error_mp(got: float, exact: mpmath.mpf, mantissa: int, min_exponent: int) -> float:
    """Error in ulp of one result against mpmath."""
    if mpmath.isnan(exact) or math.isnan(got):
        return 0.0 if mpmath.isnan(exact) and math.isnan(got) else _INF
    if mpmath.isinf(exact) or exact == 0:
        return 0.0 if got == exact else _INF
    exponent = mpmath.frexp(exact)[1]
    if math.isinf(got):
        # the largest finite number is (1 - 2^-mantissa) 2^(3 - mantissa - min_exponent)
        largest = mpmath.ldexp(1 - mpmath.ldexp(1, -mantissa), 3 - mantissa - min_exponent)
        return 0.0 if abs(exact) > largest and (got > 0) == (exact > 0) else _INF
    ulp = mpmath.ldexp(1, max(exponent - mantissa, min_exponent))
    return float(abs(mpmath.mpf(got) - exact) / ulp)


def _exact(function: Callable[..., object], *operands: float) -> mpmath.mpf:
    """The mpmath value, with precision for the argument reduction of huge operands; NaN where not real."""
    reach = max(abs(math.frexp(x)[1]) for x in operands)
    with mpmath.workprec(160 + reach):
        value = function(*(mpmath.mpf(x) for x in operands))
    return value if isinstance(value, mpmath.mpf) else mpmath.nan


def worst_mp(function: Callable[..., object], got: Array, *operands: Array) -> float:
    """The largest error in ulp against mpmath."""
    double = got.dtype == np.float64
    form = (53, -1074) if double else (24, -149)
    rows = zip(got.tolist(), *(x.tolist() for x in operands), strict=True)
    return max(error_mp(g, _exact(function, *xs), *form) for g, *xs in rows)


def _describe(got: Array, error: Array, *operands: Array) -> str:
    at = int(np.argmax(error))
    point = ", ".join(repr(float(x[at])) for x in operands)
    return f"{error[at]:.3f} ulp at {point}: got {float(got[at])!r}"


@pytest.mark.parametrize("name", UNARY)
def test_single_precision(name: str) -> None:
    reference, exact, bound, _ = UNARY[name]
    x = samples(np.float32, 48, 20_000)
    got = apply(name, x)
    with np.errstate(all="ignore"):
        error = errors_f32(got, reference(x.astype(np.float64)))
    assert error.max() <= bound, _describe(got, error, x)
    worst = np.argsort(np.where(np.isfinite(x) & (x != 0), error, -1))[-20:]
    assert worst_mp(exact, got[worst], x[worst]) <= bound


def _in_range(name: str, x: Array) -> Array:
    """Finite points whose result mpmath can compute quickly and that are not poles."""
    keep = np.isfinite(x) & (x != 0)
    if name in ("exponential", "exponential_minus_one", "logistic", "tanh"):
        keep &= np.abs(x) < 1000
    if name in ("erf", "erfc"):
        keep &= np.abs(x) < 30
    if name in ("log", "sqrt", "rsqrt"):
        keep &= x > 0
    if name == "log_plus_one":
        keep &= x > -1
    return x[keep]


@pytest.mark.parametrize("name", UNARY)
def test_double_precision(name: str) -> None:
    _, exact, _, bound = UNARY[name]
    random = np.random.default_rng(2)
    x = _in_range(name, samples(np.float64, 1, 3000))
    x = np.concatenate([_in_range(name, specials(np.float64)), random.permutation(x)[:1500]])
    got = apply(name, x)
    assert worst_mp(exact, got, x) <= bound


def test_exponential_in_two_parts() -> None:
    """The form for CPUs with few registers."""
    x = _in_range("exponential", samples(np.float64, 1, 3000))
    got = np.zeros_like(x)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(math_module("exponential", x.dtype, x.size))
        library.expand_exponentials(module, split=True)
        run_phase(str(module), "phase", [x, got])
    assert worst_mp(mpmath.exp, got, x) <= UNARY["exponential"][3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_of_nonpositive(dtype: type) -> None:
    """As exact as the general one; every power of two, and the ends, where results are subnormal or 0."""
    double = dtype is np.float64
    edge, steps = (745.3, 1100) if double else (104.1, 200)
    near = np.linspace(0, edge, 40 * steps)
    x = -np.abs(np.concatenate([near.astype(dtype), samples(dtype, 1, 1000)]))
    x = x[: x.size // 8 * 8]
    got = apply(library.NONPOSITIVE_EXPONENTIAL, x)
    finite = np.flatnonzero(x > -1000)
    picked = finite[:: 40 if double else 7]
    assert worst_mp(mpmath.exp, got[picked], x[picked]) <= 1.0
    assert not got[x < -edge].any()
    assert not np.signbit(got[~np.isnan(x)]).any()
    ends = apply(library.NONPOSITIVE_EXPONENTIAL, np.array([-_INF, -0.0, 0.0, _NAN], dtype))
    np.testing.assert_array_equal(ends, np.array([0.0, 1.0, 1.0, _NAN], dtype))


# name: expected results for -inf, -1, -0, 0, 1, inf
_LIMITS: dict[str, list[float]] = {
    "cbrt": [-_INF, -1, -0.0, 0.0, 1, _INF],
    "cosine": [_NAN, math.cos(1), 1, 1, math.cos(1), _NAN],
    "erf": [-1, -math.erf(1), -0.0, 0.0, math.erf(1), 1],
    "erfc": [2, 1 + math.erf(1), 1, 1, math.erfc(1), 0.0],
    "exponential": [0.0, math.exp(-1), 1, 1, math.e, _INF],
    "exponential_minus_one": [-1, math.expm1(-1), -0.0, 0.0, math.expm1(1), _INF],
    "log": [_NAN, _NAN, -_INF, -_INF, 0.0, _INF],
    "log_plus_one": [_NAN, -_INF, -0.0, 0.0, math.log(2), _INF],
    "logistic": [0.0, 1 / (1 + math.e), 0.5, 0.5, 1 / (1 + math.exp(-1)), 1],
    "rsqrt": [_NAN, _NAN, -_INF, _INF, 1, 0.0],
    "sine": [_NAN, -math.sin(1), -0.0, 0.0, math.sin(1), _NAN],
    "sqrt": [_NAN, _NAN, -0.0, 0.0, 1, _INF],
    "tan": [_NAN, -math.tan(1), -0.0, 0.0, math.tan(1), _NAN],
    "tanh": [-1, -math.tanh(1), -0.0, 0.0, math.tanh(1), 1],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", _LIMITS)
def test_limits(name: str, dtype: type) -> None:
    x = np.array([-_INF, -1, -0.0, 0.0, 1, _INF, _NAN], dtype)
    got = apply(name, x)
    want = np.array([*_LIMITS[name], _NAN], dtype)
    np.testing.assert_allclose(got, want, rtol=2 * np.finfo(dtype).eps, atol=0)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(name: str, dtype: type) -> None:
    x = samples(dtype, 8, 5000)
    got = apply(name, x)
    with np.errstate(invalid="ignore"):
        want = EXACT[name](x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(np.where(x == 0, x, want)))


def _pairs(dtype: type, count: int) -> tuple[Array, Array]:
    """All pairs of specials, and ``count`` random pairs."""
    points = specials(dtype)
    left, right = (grid.ravel() for grid in np.meshgrid(points, points))
    spread = samples(dtype, max(1, count // 1024), count)
    random = np.random.default_rng(3)
    picks = random.choice(spread, (2, count))
    return np.concatenate([left, picks[0]]), np.concatenate([right, picks[1]])


def _power_pairs(dtype: type, count: int) -> tuple[Array, Array]:
    """Pairs whose power is finite, up to the ends of the range."""
    random = np.random.default_rng(4)
    base = np.exp(random.uniform(-4, 4, count) * random.uniform(0, 1, count) ** 4).astype(dtype)
    ends = 149 if dtype is np.float32 else 1074
    with np.errstate(all="ignore"):
        exponent = random.uniform(-ends, ends, count) / np.log2(base.astype(np.float64))
        return base, np.where(base == 1, 1, exponent).astype(dtype)


def _power_f64(x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.power(x.astype(np.float64), y.astype(np.float64))


def test_power_single_precision() -> None:
    wide, narrow = _pairs(np.float32, 30_000), _power_pairs(np.float32, 30_000)
    x, y = (np.concatenate(part) for part in zip(wide, narrow, strict=True))
    got = apply("power", x, y)
    error = errors_f32(got, _power_f64(x, y))
    assert error.max() <= 0.6, _describe(got, error, x, y)


def test_power_double_precision() -> None:
    x, y = _power_pairs(np.float64, 4000)
    got = apply("power", x, y)
    assert worst_mp(mpmath.power, got, x, y) <= 1.0


def test_power_double_precision_special_values() -> None:
    """Where the C library's power is a special value, so is ours, with its sign."""
    x, y = _pairs(np.float64, 2000)
    want = _power_f64(x, y)
    special = ~np.isfinite(want) | (want == 0) | (np.abs(x) == 1) | (y == 0)
    got, want = apply("power", x, y)[special], want[special]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(np.where(np.isnan(want), got, want)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power_of_ieee_754(dtype: type) -> None:
    cases = [
        (_NAN, 0, 1),
        (1, _NAN, 1),
        (-1, _INF, 1),
        (-1, -_INF, 1),
        (-2, 3, -8),
        (-2, 2, 4),
        (-8, 1 / 3, _NAN),
        (-0.0, -3, -_INF),
        (-0.0, -2, _INF),
        (-0.0, 3, -0.0),
        (-_INF, 3, -_INF),
        (-_INF, 2.5, _INF),
        (-_INF, -3, -0.0),
        (0.5, -_INF, _INF),
        (2, -_INF, 0),
        (_NAN, 1, _NAN),
        (0, _NAN, _NAN),
    ]
    x, y, want = (np.array(column, dtype) for column in zip(*cases, strict=True))
    got = apply("power", x, y)
    np.testing.assert_array_equal(got, want)
    ordered = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[ordered]), np.signbit(want[ordered]))


def test_atan2_single_precision() -> None:
    y, x = _pairs(np.float32, 30_000)
    got = apply("atan2", y, x)
    with np.errstate(invalid="ignore"):
        want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    error = errors_f32(got, want)
    assert error.max() <= 0.6, _describe(got, error, y, x)


def test_atan2_double_precision() -> None:
    y, x = _pairs(np.float64, 3000)
    keep = np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)
    got = apply("atan2", y, x)
    assert worst_mp(mpmath.atan2, got[keep][::4], y[keep][::4], x[keep][::4]) <= 1.1
    with np.errstate(invalid="ignore"):
        want = np.arctan2(y, x)
    np.testing.assert_allclose(got[~keep], want[~keep], rtol=4e-16, atol=0)
    ordered = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[ordered]), np.signbit(want[ordered]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainder_is_exact(dtype: type) -> None:
    x, y = _pairs(dtype, 20_000)
    got = apply("remainder", x, y)
    with np.errstate(invalid="ignore"):
        want = np.fmod(x, y)
    np.testing.assert_array_equal(got, want)
    ordered = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[ordered]), np.signbit(want[ordered]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", library.FUNCTIONS)
def test_vectors_compute_what_scalars_do(name: str, dtype: type) -> None:
    """The same bits for ``vector<8x…>`` operands as for scalars."""
    x, y = _pairs(dtype, 4000)
    operands = [x, y][: library.FUNCTIONS[name]]
    operands = [operand[: operand.size // 8 * 8] for operand in operands]
    scalar, vector = apply(name, *operands), apply(name, *operands, lanes=8)
    np.testing.assert_array_equal(scalar, vector)
    ordered = ~np.isnan(scalar)
    np.testing.assert_array_equal(np.signbit(scalar[ordered]), np.signbit(vector[ordered]))


@pytest.mark.parametrize(("name", "bound"), [("exponential", 1.1), ("tanh", 1.6)])
def test_every_997th_single(name: str, bound: float) -> None:
    x = np.arange(0, 1 << 32, 997, dtype=np.uint64).astype(np.uint32).view(np.float32)
    got = apply(name, x)
    with np.errstate(all="ignore"):
        error = errors_f32(got, UNARY[name][0](x.astype(np.float64)))
    assert error.max() <= bound, _describe(got, error, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exponential", "tanh"])
def test_every_97th_single(name: str) -> None:
    reference, _, bound, _ = UNARY[name]
    chunk = 97 << 22
    for start in range(0, 1 << 32, chunk):
        stop = min(start + chunk, 1 << 32)
        bits = np.arange(start, stop, 97, dtype=np.uint64)
        x = bits.astype(np.uint32).view(np.float32)
        got = apply(name, x)
        with np.errstate(all="ignore"):
            error = errors_f32(got, reference(x.astype(np.float64)))
        assert error.max() <= bound, _describe(got, error, x)


def test_supported_types() -> None:
    with ir.Context():
        assert library.supported("tanh", ir.Type.parse("f32"))
        assert library.supported("power", ir.Type.parse("vector<8xf64>"))
        assert not library.supported("tanh", ir.Type.parse("f16"))
        assert not library.supported("tanh", ir.Type.parse("vector<8xi32>"))
        assert not library.supported("add", ir.Type.parse("f32"))


def test_error_measure_sees_faults() -> None:
    """The judge of this file: two ulp off, a wrong zero sign, an infinity, a NaN."""
    want = np.array([1.0, 0.0, 2.0, 3.0, 1e39])
    one = np.nextafter(np.nextafter(np.float32(1), np.float32(2)), np.float32(2))
    got = np.array([one, -0.0, _INF, _NAN, 1], np.float32)
    assert errors_f32(got, want).tolist() == [2.0, _INF, _INF, _INF, _INF]
    assert error_mp(1.0 + 2**-51, mpmath.mpf(1), 53, -1074) == 2.0
    assert error_mp(_INF, mpmath.mpf(1), 53, -1074) == _INF
    assert error_mp(_INF, mpmath.ldexp(1, 1024), 53, -1074) == 0.0
    assert error_mp(_INF, mpmath.mpf(1.7e308), 53, -1074) == _INF
