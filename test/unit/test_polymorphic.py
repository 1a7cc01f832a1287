# SPDX-License-Identifier: Apache-2.0
"""Dynamic shapes: exports of JAX against JAX, caching, what is refused and how it is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreter import evaluate
from jax import export

import gristmill
from gristmill.compiler.compile import import_source
from gristmill.compiler.polymorphic import PolymorphicExecutable
from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.device_executable import DeviceExecutable

Array = np.ndarray[Any, Any]


def exported(function: Callable[..., Any], *shapes: str, **options: Any) -> PolymorphicExecutable:
    """``function`` of f32 arrays of symbolic shapes, exported and given to the compiler."""
    scope = export.SymbolicScope(**options)
    arguments = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), np.float32)
        for shape in shapes
    ]
    executable = gristmill.compile(export.export(jax.jit(function))(*arguments))
    assert isinstance(executable, PolymorphicExecutable)
    return executable


def random(*shapes: tuple[int, ...]) -> list[Array]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def agrees(executable: PolymorphicExecutable, function: Callable[..., Any], *arrays: Array) -> None:
    got, want = executable(*arrays), function(*arrays)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def joined(x: Any, y: Any) -> Any:
    return jnp.concatenate([x.reshape(-1), y[: x.shape[0]].reshape(-1)]), (x @ y.T).sum()


FUNCTIONS: dict[
    str, tuple[Callable[..., Any], tuple[str, ...], list[tuple[tuple[int, ...], ...]]]
] = {
    "joined": (joined, ("b, n", "2*b + 1, n"), [((3, 5), (7, 5)), ((1, 1), (3, 1))]),
    "softmax": (lambda x: jax.nn.softmax(x), ("b, n",), [((4, 7),), ((1, 3),), ((5, 1),)]),
    "mean": (lambda x: x.mean(0) * x.shape[0], ("b, 4",), [((2, 4),), ((9, 4),)]),
    "cumsum": (lambda x: jnp.cumsum(x, 0), ("b, 3",), [((6, 3),), ((1, 3),)]),
    "roll": (lambda x: jnp.roll(x, 2), ("b, 4",), [((3, 4),)]),
    "half": (lambda x: x[: x.shape[0] // 2] * 2, ("b, 2",), [((6, 2),), ((7, 2),)]),
    "top": (lambda x: jax.lax.top_k(x, 3), ("b, n + 3",), [((2, 5),)]),
    "window": (
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (x.shape[0] // 2,), (1,), "VALID"),
        ("2*b",),
        [((8,),), ((6,),)],
    ),
    "loop": (
        lambda x: jax.lax.fori_loop(
            0, x.shape[0], lambda i, a: a + jnp.asarray(x)[i], jnp.zeros(x.shape[1])
        ),
        ("b, n",),
        [((3, 2),), ((5, 4),)],
    ),
    "bits": (
        lambda x: jax.lax.rng_bit_generator(jnp.zeros(4, np.uint32), (x.shape[0],)),
        ("b",),
        [((5,),)],
    ),
    "iota": (lambda x: x + jnp.arange(x.shape[0]), ("b",), [((4,),), ((1,),)]),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), ("b, n",), [((2, 3),)]),
    "sort": (lambda x: jnp.sort(x, 0), ("b, 2",), [((7, 2),)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_compute_what_jax_computes(name: str) -> None:
    function, symbols, shapes = FUNCTIONS[name]
    executable = exported(function, *symbols)
    for given in shapes:
        agrees(executable, function, *random(*given))
    assert len(executable) == len(shapes)


def test_signature_names_arguments_and_symbols() -> None:
    executable = exported(lambda x, y: (x, y), "b, n", "max(b, n), 2*b + 1, 4")
    assert [(i.name, str(i)) for i in executable.inputs] == [
        ("x", "f32[b, n]"),
        ("y", "f32[max(b, n), 2*b + 1, 4]"),
    ]
    assert "y: f32[max(b, n), 2*b + 1, 4]), 0 specialised" in repr(executable)


def test_lowered_functions_take_their_dimension_variables() -> None:
    lowered = jax.jit(lambda x: x.reshape(-1) + 1).lower(
        jax.ShapeDtypeStruct(export.symbolic_shape("b, n"), np.float32)
    )
    executable = gristmill.compile(lowered)
    assert [item.name for item in executable.inputs] == ["b", "n", "x"]
    (x,) = random((3, 4))
    np.testing.assert_array_equal(executable(np.int32(3), np.int32(4), x), x.reshape(-1) + 1)


def test_each_set_of_shapes_is_compiled_once() -> None:
    executable = exported(jnp.sin, "b, n")
    first = executable.specialise((3, 4))
    assert executable.specialised_for(*random((3, 4))) is first
    assert executable.specialise((4, 3)) is not first
    assert len(executable) == 2
    out = np.empty((3, 4), np.float32)
    (x,) = random((3, 4))
    assert executable(x, out=out, threads=1) is out
    np.testing.assert_allclose(out, np.sin(x), rtol=1e-6)
    assert len(executable) == 2


def test_the_oldest_specialisation_goes_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gristmill.compiler.polymorphic.CAPACITY", 2)
    executable = exported(jnp.negative, "b")
    first = executable.specialise((1,))
    executable.specialise((2,))
    executable.specialise((3,))
    assert len(executable) == 2
    assert executable.specialise((1,)) is not first


DOUBLED = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.add %x, %x : tensor<?xf32>
  return %0 : tensor<?xf32>
}"""


def test_what_goes_on_a_device_is_closed_unless_it_was_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gristmill.compiler.polymorphic.CAPACITY", 2)
    closed: list[tuple[int, ...]] = []
    close = DeviceExecutable.close

    def note(executable: DeviceExecutable) -> None:
        closed.append(executable.inputs[0].type.shape)
        close(executable)

    monkeypatch.setattr(DeviceExecutable, "close", note)
    with gristmill.compile(DOUBLED, device="simulator") as executable:
        assert isinstance(executable, PolymorphicExecutable)
        kept = executable.specialise((1,))
        for size in (2, 3, 4, 5):
            executable(np.ones(size, np.float32))
        assert closed == [(2,), (3,)]
        np.testing.assert_array_equal(kept(np.ones(1, np.float32)), [2])
        with pytest.raises(InputError, match="dtype int32 does not fit"):
            executable(np.ones(5, np.int32))
    assert sorted(closed) == [(1,), (2,), (3,), (4,), (5,)]


def test_a_call_whose_executable_went_meanwhile_compiles_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gristmill.compiler.polymorphic.CAPACITY", 1)
    with gristmill.compile(DOUBLED, device="simulator") as executable:
        assert isinstance(executable, PolymorphicExecutable)
        executable(np.ones(1, np.float32))
        known = executable._known

        def known_until_another_call_comes(arrays: Any) -> Any:
            found = known(arrays)
            monkeypatch.setattr(executable, "_known", known)
            executable(np.ones(2, np.float32))
            return found

        monkeypatch.setattr(executable, "_known", known_until_another_call_comes)
        np.testing.assert_array_equal(executable(np.ones(1, np.float32)), [2])


def test_threads_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = exported(lambda x: x * 2, "b, n")
    compiled: list[object] = []
    build = executable._build  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(executable, "_build", lambda k, m: (compiled.append(k), build(k, m))[1])
    barrier = threading.Barrier(8)
    wrong: list[int] = []

    def work(index: int) -> None:
        x = np.full((2 + index % 2, 3), index, np.float32)
        barrier.wait()
        for _ in range(20):
            if not np.array_equal(executable(x, threads=1), x * 2):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((3, 5), (6, 5)),
            r"dimension size args\[1\].shape\[0\] \(= 6\) and the specification '2\*b \+ 1' \(= 7\)",
        ),
        (
            ((3, 5), (7, 4)),
            r"dimension size args\[1\].shape\[1\] \(= 4\) and the specification 'n' \(= 5\)",
        ),
        (((1, 5), (3, 5)), r"constraint b >= 2. Expected 'b - 2' to be greater .* but found -1"),
    ],
)
def test_shape_assertions_say_what_is_wrong(
    shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    executable = exported(joined, "b, n", "2*b + 1, n", constraints_str=("b >= 2",))
    for _ in range(2):  # a failure is not cached
        with pytest.raises(InputError, match=message):
            executable(*random(*shapes))
    assert len(executable) == 0


def test_arguments_that_cannot_fit_are_refused() -> None:
    executable = exported(joined, "b, 4", "2*b + 1, 4")
    x, y = random((3, 4), (7, 4))
    with pytest.raises(InputError, match=r"1 arguments given, 2 expected \(x: f32\[b, 4\], y:"):
        executable(x)
    with pytest.raises(
        InputError, match=r"argument 1 \('y'\): rank 1 does not fit f32\[2\*b \+ 1, 4\]"
    ):
        executable(x, y[0])
    with pytest.raises(
        InputError, match=r"argument 0 \('x'\): shape \(3, 3\) .* dimension 1 is 3, not 4"
    ):
        executable(x[:, :3], y)
    with pytest.raises(
        InputError, match=r"argument 0 \('x'\): dtype float64 .*astype\('float32'\)"
    ):
        executable(x.astype(np.float64), y)
    with pytest.raises(InputError, match=r"argument 0 .*an array is needed, not list"):
        executable([1.0], y)
    executable(x, y)
    with pytest.raises(InputError, match=r"argument 0 .*dtype float64"):  # also once it is cached
        executable(x.astype(np.float64), y)
    with pytest.raises(InputError, match="not C-contiguous"):
        executable(np.asfortranarray(x), y)


def test_static_imports_refuse_it() -> None:
    text = "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"
    with pytest.raises(UnsupportedError, match=r"dynamic shapes \(arg0: f32\[\?\]\)"):
        import_source("module {" + text + "}")


ROWS = """func.func @main(%n: tensor<i32>, %x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c4 = stablehlo.constant dense<4> : tensor<1xi32>
  %0 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %1 = stablehlo.concatenate %0, %c4, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %2 = stablehlo.dynamic_broadcast_in_dim %c, %1, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
  %3 = stablehlo.multiply %x, %2 : tensor<?x4xf32>
  return %3 : tensor<?x4xf32>
}"""


def test_values_that_shapes_depend_on_are_part_of_the_key() -> None:
    executable = gristmill.compile(ROWS)
    assert isinstance(executable, PolymorphicExecutable)
    assert [item.by_value for item in executable.inputs] == [True, False]
    (x,) = random((3, 4))
    np.testing.assert_array_equal(executable(np.int32(3), x), x * 2)
    with pytest.raises(InputError, match="the shapes do not fit the program: "):
        executable(np.int32(2), x)
    with pytest.raises(InputError, match=r"argument 0 \('arg0'\): shapes depend on its value"):
        executable.specialise((), (3, 4))
    assert executable.specialise((), (3, 4), values={0: 3}) is executable.specialised_for(
        np.int32(3), x
    )


SLICE = """func.func @main(%x: tensor<?x3xf32>, %at: tensor<1xi32>) -> tensor<?x3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<1xi32>
  %one = stablehlo.constant dense<1> : tensor<2xi32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %three = stablehlo.constant dense<3> : tensor<1xi32>
  %start = stablehlo.concatenate %at, %zero, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %size = stablehlo.concatenate %two, %three, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %limit = stablehlo.add %start, %size : tensor<2xi32>
  %0 = stablehlo.real_dynamic_slice %x, %start, %limit, %one
    : (tensor<?x3xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}"""


def test_a_slice_that_moves_is_compiled_once() -> None:
    executable = gristmill.compile(SLICE)
    (x,) = random((5, 3))
    for start in range(4):
        got = executable(x, np.array([start], np.int32))
        np.testing.assert_array_equal(got, x[start : start + 2])
    assert isinstance(executable, PolymorphicExecutable)
    assert len(executable) == 1


BOUNDED = """func.func @main(%a: tensor<?xf32, #stablehlo.bounds<8>>, %n: tensor<i32>, %b: tensor<6xf32>)
    -> (tensor<?xf32, #stablehlo.bounds<8>>, tensor<?xf32, #stablehlo.bounds<6>>, tensor<f32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.add %a, %a : tensor<?xf32, #stablehlo.bounds<8>>
  %1 = stablehlo.set_dimension_size %b, %n, dim = 0
    : (tensor<6xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<6>>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<?xf32, #stablehlo.bounds<6>>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.get_dimension_size %1, dim = 0 : (tensor<?xf32, #stablehlo.bounds<6>>) -> tensor<i32>
  return %0, %1, %2, %3 : tensor<?xf32, #stablehlo.bounds<8>>, tensor<?xf32, #stablehlo.bounds<6>>,
    tensor<f32>, tensor<i32>
}"""


def test_bounded_dimensions() -> None:
    executable = gristmill.compile(BOUNDED)
    a, b = random((3,), (6,))
    for count in (4, 6, 0):
        results = executable(a, np.int32(count), b)
        wanted = [a + a, b[:count], b[:count].sum(), np.int32(count)]
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(InputError, match="dimension 0 is 9; it is at most 8"):
        executable(np.zeros(9, np.float32), np.int32(1), b)
    with pytest.raises(InputError, match="size 7 of dimension 0 is not between 0 and 6"):
        executable(a, np.int32(7), b)


def test_sizes_computed_from_data_are_refused() -> None:
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<?xf32> {
      %0 = stablehlo.slice %x [0:1] : (tensor<4xf32>) -> tensor<1xf32>
      %1 = stablehlo.convert %0 : (tensor<1xf32>) -> tensor<1xi32>
      %2 = stablehlo.dynamic_iota %1, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
      return %2 : tensor<?xf32>
    }"""
    with pytest.raises(
        UnsupportedError, match=r"dynamic_iota: type .* neither constants nor the shapes"
    ):
        gristmill.compile(text)


CALLS = """func.func @main(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %m = stablehlo.multiply %n, %two : tensor<i32>
  %0 = call @ramp(%n) : (tensor<i32>) -> tensor<?xf32>
  %1 = call @ramp(%m) : (tensor<i32>) -> tensor<?xf32>
  return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
func.func private @ramp(%n: tensor<i32>) -> tensor<?xf32> {
  %0 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %1 = stablehlo.dynamic_iota %0, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}"""


def test_one_function_called_for_two_shapes() -> None:
    first, second = gristmill.compile(CALLS)(np.zeros(3, np.float32))
    np.testing.assert_array_equal(first, np.arange(3))
    np.testing.assert_array_equal(second, np.arange(6))


def test_static_programs_with_dynamic_operations_stay_executables() -> None:
    text = """func.func @main(%x: tensor<2x3xf32>) -> tensor<?xf32> {
      %0 = stablehlo.constant dense<6> : tensor<1xi64>
      %1 = stablehlo.dynamic_reshape %x, %0 : (tensor<2x3xf32>, tensor<1xi64>) -> tensor<?xf32>
      return %1 : tensor<?xf32>
    }"""
    executable = gristmill.compile(text)
    assert isinstance(executable, gristmill.Executable)
    (x,) = random((2, 3))
    static = text.replace("?", "6")
    np.testing.assert_array_equal(executable(x), evaluate(static, x)[0])
