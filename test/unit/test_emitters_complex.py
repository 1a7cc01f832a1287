# SPDX-License-Identifier: Apache-2.0
"""Complex numbers end to end: elementary functions against mpmath, the rest against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.text import parse_module, print_module
from gristmill.dialects.rt import nbytes

Array = np.ndarray[Any, Any]

ELEMENTS = {"complex<f32>": np.complex64, "complex<f64>": np.complex128}
INF, NAN = np.inf, np.nan


def run(text: str, *arrays: Array) -> Array:
    result = gristmill.compile(text, options=CompileOptions(fold_constants=False))(*arrays)
    assert isinstance(result, np.ndarray)
    return result


def apply(op: str, element: str, *arrays: Array, result: str | None = None) -> Array:
    """An elementwise op on vectors of one type."""
    kind = f"tensor<{arrays[0].size}x{element}>"
    out = f"tensor<{arrays[0].size}x{result or element}>"
    names = [f"%a{i}" for i in range(len(arrays))]
    parameters = ", ".join(f"{name}: {kind}" for name in names)
    kinds = ", ".join([kind] * len(names))
    name = op if "." in op else f"stablehlo.{op}"
    return run(
        f"func.func @main({parameters}) -> {out} {{\n"
        f'  %0 = "{name}"({", ".join(names)}) : ({kinds}) -> {out}\n  return %0 : {out}\n}}',
        *arrays,
    )


def points(dtype: Any) -> Array:
    """All directions and magnitudes, near the unit circle, near -1, near both axes."""
    rng = np.random.default_rng(1)
    radius = np.concatenate(
        [
            np.exp2(rng.uniform(-30, 6, 40)),
            1 + np.exp2(rng.uniform(-25, -1, 12)),
            1 - np.exp2(rng.uniform(-25, -1, 12)),
        ]
    )
    z = radius * np.exp(1j * rng.uniform(-np.pi, np.pi, radius.size))
    axis, tiny = rng.standard_normal(10) * 3, np.exp2(rng.uniform(-60, -10, 10))
    return np.concatenate([z, z - 1, axis + 1j * tiny, tiny + 1j * axis]).astype(dtype)


def mp(z: complex) -> mpmath.mpc:
    return mpmath.mpc(float(z.real), float(z.imag))


def ulps(got: Array, want: list[mpmath.mpf]) -> float:
    rounded = np.array([float(x) for x in want]).astype(got.dtype)
    spacing = np.spacing(np.abs(rounded))
    errors = [
        abs(float((mpmath.mpf(float(g)) - w) / mpmath.mpf(float(s))))
        for g, w, s in zip(got, want, spacing, strict=True)
    ]
    return max(errors)


# Reference, and the error of either part in ulp that is allowed for f64.
FUNCTIONS: dict[str, tuple[Callable[[mpmath.mpc], mpmath.mpc], float]] = {
    "cbrt": (lambda z: mpmath.power(z, mpmath.mpf(1) / 3), 4),
    "chlo.cosh": (mpmath.cosh, 3),
    "chlo.sinh": (mpmath.sinh, 3),
    "cosine": (mpmath.cos, 3),
    "exponential": (mpmath.exp, 3),
    "exponential_minus_one": (lambda z: mpmath.exp(z) - 1, 8),
    "log": (mpmath.log, 3),
    "log_plus_one": (lambda z: mpmath.log(1 + z), 3),
    "logistic": (lambda z: 1 / (1 + mpmath.exp(-z)), 100),  # near its poles
    "rsqrt": (lambda z: 1 / mpmath.sqrt(z), 3),
    "sign": (lambda z: z / abs(z), 2),
    "sine": (mpmath.sin, 3),
    "sqrt": (mpmath.sqrt, 3),
    "tan": (mpmath.tan, 5),
    "tanh": (mpmath.tanh, 5),
}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, element: str) -> None:
    reference, limit = FUNCTIONS[name]
    z = points(ELEMENTS[element])
    got = apply(name, element, z)
    with mpmath.workprec(300):
        want = [reference(mp(v)) for v in z]
        worst = max(ulps(got.real, [w.real for w in want]), ulps(got.imag, [w.imag for w in want]))
    assert worst <= (limit if element == "complex<f64>" else 0.51)


def test_root_of_far_apart_parts() -> None:
    """A part that scaling by the other one would flush to zero."""
    z = np.array([-1.7e308 - 1.3e-154j, 1.7e308 + 1.3e-154j, 5e-324 + 1e-300j, -5e-324j])
    got = apply("sqrt", "complex<f64>", z)
    with mpmath.workprec(4000):
        for ours, v in zip(got, z, strict=True):
            want = mpmath.sqrt(mp(v))
            np.testing.assert_allclose(ours.real, float(want.real), rtol=1e-15, atol=1e-323)
            np.testing.assert_allclose(ours.imag, float(want.imag), rtol=1e-15, atol=1e-323)


@pytest.mark.parametrize("element", ELEMENTS)
def test_power(element: str) -> None:
    z, w = points(ELEMENTS[element]), np.roll(points(ELEMENTS[element]), 7)
    keep = np.abs(np.log(z) * w) < 20
    z, w = z[keep], w[keep]
    got = apply("power", element, z, w)
    for ours, a, b in zip(got, z, w, strict=True):
        want = mpmath.power(mp(a), mp(b))
        assert abs(mp(ours) - want) <= abs(want) * 32 * np.finfo(z.dtype).eps
    one = apply("power", element, np.zeros(3, z.dtype), np.array([0, 2, 1 + 1j], z.dtype))
    assert one.tolist() == [1, 0, 0]


@pytest.mark.parametrize("element", ELEMENTS)
def test_division(element: str) -> None:
    dtype = ELEMENTS[element]
    big = float(np.finfo(dtype).max) / 4
    small = float(np.finfo(dtype).tiny) * 4
    edges = np.array([big + 1j * big, small - 1j * small, big + 1j * small, 3 - 4j], dtype)
    a = np.concatenate([points(dtype), edges])
    b = np.concatenate([np.roll(points(dtype), 5), edges])
    got = apply("divide", element, a, b)
    for ours, x, y in zip(got, a, b, strict=True):
        want = mp(x) / mp(y)
        assert abs(mp(ours) - want) <= abs(want) * 3 * np.finfo(dtype).eps


@pytest.mark.parametrize("element", ELEMENTS)
def test_division_of_infinities(element: str) -> None:
    """The rules of C99's annex G."""
    a = np.array([1 + 1j, -1 + 0j, INF + 1j, complex(INF, NAN), 1 + 1j, 0j])
    b = np.array([0j, 0j, 1 + 0j, 1 + 0j, complex(INF, NAN), 0j])
    got = apply("divide", element, a.astype(ELEMENTS[element]), b.astype(ELEMENTS[element]))
    assert got[0] == complex(INF, INF)
    assert got[1].real == -INF
    assert got[2].real == INF
    assert got[3].real == INF
    assert got[4] == 0
    assert np.isnan(got[5].real)


@pytest.mark.parametrize("name", ["divide", "exponential"])
def test_special_values_are_those_of_f64(name: str) -> None:
    """Single precision has a way of its own; infinities and NaN come out alike."""
    parts = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN]
    numbers = np.array([complex(x, y) for x in parts for y in parts])
    operands = (
        [numbers] if name == "exponential" else [x.ravel() for x in np.meshgrid(numbers, numbers)]
    )
    wide = apply(name, "complex<f64>", *operands).view(np.float64)
    got = apply(name, "complex<f32>", *(x.astype(np.complex64) for x in operands)).view(np.float32)
    np.testing.assert_allclose(got, wide, rtol=1e-6)


@pytest.mark.parametrize("element", ELEMENTS)
def test_magnitude(element: str) -> None:
    dtype = ELEMENTS[element]
    part = np.finfo(dtype).dtype
    extremes = [
        np.finfo(dtype).max / 2,
        np.finfo(dtype).tiny,
        np.finfo(dtype).smallest_subnormal,
        0,
    ]
    z = np.concatenate([points(dtype), np.array([x + 1j * x for x in extremes], dtype)])
    got = apply("abs", element, z, result="f32" if part == np.float32 else "f64")
    assert got.dtype == part
    with mpmath.workprec(200):
        worst = ulps(got, [abs(mp(v)) for v in z])
    assert worst <= (0.51 if part == np.float32 else 1.5)
    special = np.array([complex(INF, NAN), complex(NAN, -INF), complex(NAN, 1)], dtype)
    got = apply("abs", element, special, result="f32" if part == np.float32 else "f64")
    assert got[0] == got[1] == INF
    assert np.isnan(got[2])


@pytest.mark.parametrize("element", ELEMENTS)
def test_arithmetic(element: str) -> None:
    dtype = ELEMENTS[element]
    a, b = points(dtype), np.roll(points(dtype), 3)
    np.testing.assert_array_equal(apply("add", element, a, b), a + b)
    np.testing.assert_array_equal(apply("subtract", element, a, b), a - b)
    np.testing.assert_array_equal(apply("negate", element, a), -a)
    real = a.real * b.real - a.imag * b.imag
    imaginary = a.real * b.imag + a.imag * b.real
    np.testing.assert_array_equal(apply("multiply", element, a, b), real + 1j * imaginary)


def test_extremes_are_lexicographic() -> None:
    a = np.array([1 + 2j, 1 + 3j, 2 + 0j, complex(NAN, 0), 1j], np.complex64)
    b = np.array([1 + 3j, 1 + 2j, 1 + 9j, 5 + 5j, complex(0, NAN)], np.complex64)
    got = apply("maximum", "complex<f32>", a, b)
    np.testing.assert_array_equal(got[:3], [1 + 3j, 1 + 3j, 2 + 0j])
    assert np.isnan(got[3:]).all()
    got = apply("minimum", "complex<f32>", a, b)
    np.testing.assert_array_equal(got[:3], [1 + 2j, 1 + 2j, 1 + 9j])
    assert np.isnan(got[3:]).all()


def test_comparison() -> None:
    kind, out = "tensor<4xcomplex<f64>>", "tensor<4xi1>"
    a = np.array([1 + 1j, complex(NAN, 0), 0j, 2 + 1j])
    b = np.array([1 + 1j, complex(NAN, 0), complex(-0.0, 0), 2 + 2j])
    for direction, want in (("EQ", a == b), ("NE", a != b)):
        got = run(
            f"func.func @main(%a: {kind}, %b: {kind}) -> {out} {{\n"
            f"  %0 = stablehlo.compare {direction}, %a, %b : ({kind}, {kind}) -> {out}\n"
            f"  return %0 : {out}\n}}",
            a,
            b,
        )
        np.testing.assert_array_equal(got, want)


Z = (np.random.default_rng(2).standard_normal((2, 6, 5)) + 1j).astype(np.complex64)
W = (np.random.default_rng(3).standard_normal((2, 5, 7)) - 2j).astype(np.complex64)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "parts": (lambda z: (jnp.real(z), jnp.imag(z), jnp.conj(z)), (Z,)),
    "of reals": (lambda x: (jnp.real(x), jnp.imag(x), abs(x)), (Z.real.copy(),)),
    "make": (lambda x, y: jax.lax.complex(x, y) * 1j, (Z.real.copy(), Z.imag.copy())),
    "sum": (lambda z: (z.sum(), z.sum(0), z.sum(2), z.mean(1)), (Z,)),
    "product": (lambda z: (z.prod(), z.prod(1)), (Z,)),
    "large sum": (lambda z: z.sum(), (np.resize(Z, (40, 500)),)),
    "cumulative": (lambda z: jnp.cumsum(z, 1), (Z,)),
    "matmul": (lambda a, b: a @ b, (np.resize(Z, (33, 65)), np.resize(W, (65, 40)))),
    "batch matmul": (lambda a, b: a @ b, (Z, W)),
    "vector": (jnp.vdot, (Z.reshape(-1), Z.reshape(-1))),
    "wider": (lambda a, b: jax.lax.dot(a, b), (Z[0], W[0])),
    "convolution": (lambda a, b: jnp.convolve(a, b, "same"), (Z.reshape(-1), W[0, 0])),
    "select": (lambda a, b: jnp.where(a.real > 0, a, b), (Z, Z * 2)),
    "transpose": (lambda z: z.transpose(2, 0, 1), (Z,)),
    "wide transpose": (lambda z: z.T, (np.resize(Z, (70, 90)),)),
    "movement": (
        lambda z: (jnp.pad(z, 2), jnp.concatenate([z, z], 1), z[:, ::2, ::-1], jnp.roll(z, 2)),
        (Z,),
    ),
    "gather": (lambda z: z[:, jnp.array([3, 0, 5])], (Z,)),
    "scatter": (lambda z: z.at[0, jnp.array([1, 1, 4])].add(2 - 1j), (Z,)),
    "update": (lambda z: jax.lax.dynamic_update_slice(z, z[:1, :2, :2], (1, 3, 2)), (Z,)),
    "window": (
        lambda z: jax.lax.reduce_window(z, 0j, jax.lax.add, (1, 2, 2), (1, 2, 1), "SAME"),
        (Z,),
    ),
    "loop": (
        lambda z: jax.lax.fori_loop(0, 5, lambda i, c: c * (0.5 + 0.5j) + i, z),
        (Z,),
    ),
    "scalar loop": (lambda z: jax.lax.fori_loop(0, 9, lambda i, c: c * z + 1j, z), (Z[0, 0, 0],)),
    "branch": (lambda z: jax.lax.cond(z[0].real > 0, lambda x: x * 2j, jnp.conj, z), (Z[0, 0],)),
    "convert": (
        lambda z, i: (z.astype(np.complex128), i.astype(np.complex64), z.real.astype(np.int32)),
        (Z, np.arange(6)),
    ),
    "constants": (
        lambda z: (z + np.arange(5) * 1j, z * np.resize(W, Z.shape), z + np.full((6, 5), 2 - 3j)),
        (Z,),
    ),
    "large constant": (lambda z: z + np.resize(W, (300, 2)), (np.resize(Z, (300, 2)),)),
    "sort": (lambda z: jnp.sort(z, axis=1), (Z,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, arrays = PROGRAMS[name]
    with jax.enable_x64(True):
        want = jax.tree.leaves(jax.jit(function)(*arrays))
        lowered = jax.jit(function).lower(*arrays)
    got = gristmill.compile(lowered)(*arrays)
    results = got if isinstance(got, tuple) else (got,)
    for ours, wanted in zip(results, want, strict=True):
        assert ours.dtype == wanted.dtype
        np.testing.assert_allclose(ours, wanted, rtol=3e-5, atol=1e-5)


def test_constants_survive_as_text() -> None:
    """Inline complex constants, which the bindings cannot read, print and parse as pairs."""
    kind = "tensor<2xcomplex<f32>>"
    text = (
        f"func.func @main() -> {kind} {{\n"
        f"  %0 = stablehlo.constant dense<[(1.5,-0.0), (0x7FC00000,2.0)]> : {kind}\n"
        f"  return %0 : {kind}\n}}"
    )
    module = parse_module(print_module(import_source(text)))
    got = gristmill.compile(module)()
    assert isinstance(got, np.ndarray)
    assert got[0] == 1.5
    assert np.signbit(got[0].imag)
    assert np.isnan(got[1].real)
    assert got[1].imag == 2.0


def test_buffers_have_a_size() -> None:
    from mlir import ir

    with ir.Context():
        assert nbytes(ir.Type.parse("memref<3x4xcomplex<f64>>")) == 192
