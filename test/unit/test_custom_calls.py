# SPDX-License-Identifier: Apache-2.0
"""Custom calls of registered Python and C functions, and what happens when they fail."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gristmill
from gristmill.errors import ArtifactError, CustomCallError, InputError, UnsupportedError
from gristmill.runtime import custom_calls
from gristmill.runtime.custom_calls import HEADER, register_custom_call

Array = np.ndarray[Any, Any]

UNARY = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.custom_call @test.f(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.negate %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    yield
    assert custom_calls._registry == {}


def compiled(text: str, function: Any, name: str = "test.f", **options: Any) -> Any:
    """The program, compiled with one function registered for that long."""
    with register_custom_call(name, function, **options):
        return gristmill.compile(text)


# Python callables


def test_a_callable_between_kernels_outlives_its_registration() -> None:
    executable = compiled(UNARY, lambda x: x * x)
    np.testing.assert_array_equal(executable(X), -(4 * X * X))


def test_operands_are_read_only_and_may_be_kept() -> None:
    kept: list[Array] = []

    def keep(x: Array) -> Array:
        assert not x.flags.writeable
        kept.append(x)
        return x + 1

    executable = compiled(UNARY, keep)
    for step in range(20):
        executable(X + step)
    for step, array in enumerate(kept):
        np.testing.assert_array_equal(array, 2 * (X + step))


def test_writing_to_an_operand_fails() -> None:
    def write(x: Array) -> Array:
        x[0] = 1
        return x

    with pytest.raises(CustomCallError, match="read-only"):
        compiled(UNARY, write)(X)


def test_several_results_attributes_and_types() -> None:
    text = """
    func.func @main(%x: tensor<2x3xbf16>, %m: tensor<3xi1>, %e: tensor<0x2xf64>)
        -> (tensor<3x2xcomplex<f32>>, tensor<i8>, tensor<2x0xui16>) {
      %0:3 = stablehlo.custom_call @test.f(%x, %m, %e) {
        backend_config = {scale = 2.5 : f64, name = "n", flags = [true, 3 : i32], dims = array<i64: 4, 5>,
                          nested = {table = dense<[[1, 2]]> : tensor<1x2xi16>}}}
        : (tensor<2x3xbf16>, tensor<3xi1>, tensor<0x2xf64>)
          -> (tensor<3x2xcomplex<f32>>, tensor<i8>, tensor<2x0xui16>)
      return %0#0, %0#1, %0#2 : tensor<3x2xcomplex<f32>>, tensor<i8>, tensor<2x0xui16>
    }"""
    seen: list[Any] = []

    def function(x: Array, m: Array, e: Array, **attributes: Any) -> tuple[Any, ...]:
        seen.append((x.dtype, m.tolist(), e.shape, attributes))
        result = (x.astype(np.float32).T * np.complex64(1j)).astype(np.complex64)
        return result, np.int8(-7), np.zeros((2, 0), np.uint16)

    bfloat16 = np.dtype(jax.numpy.bfloat16)
    x = np.arange(6).reshape(2, 3).astype(bfloat16)
    a, b, c = compiled(text, function)(x, np.array([True, False, True]), np.zeros((0, 2)))
    np.testing.assert_array_equal(a, 1j * np.arange(6).reshape(2, 3).T)
    assert (b, c.shape) == (-7, (2, 0))
    attributes = {"scale": 2.5, "name": "n", "flags": [True, 3], "dims": [4, 5]}
    attributes["nested"] = {"table": [[1, 2]]}
    assert seen == [(bfloat16, [True, False, True], (0, 2), attributes)]


def test_a_string_configuration_is_passed_as_it_is() -> None:
    text = UNARY.replace("@test.f(%0)", '@test.f(%0) {backend_config = "a=1;\\22b\\22"}')

    def function(x: Array, backend_config: str) -> Array:
        assert backend_config == 'a=1;"b"'
        return x

    np.testing.assert_array_equal(compiled(text, function)(X), -2 * X)


def test_jax_ffi_calls() -> None:
    def model(x: Any) -> Any:
        kind = jax.ShapeDtypeStruct((4,), np.float32)
        return jax.ffi.ffi_call("test.f", kind)(x * 2, power=np.int64(3)) + 1

    with register_custom_call("test.f", lambda x, power: x**power):
        executable: Any = gristmill.compile(jax.jit(model).lower(X))
    np.testing.assert_array_equal(executable(X), (2 * X) ** 3 + 1)


def test_borrowed_arrays_are_the_programs_own() -> None:
    def fill(x: Array, *, out: tuple[Array, ...]) -> None:
        assert not x.flags.writeable
        assert not x.flags.owndata
        np.multiply(x, 3, out=out[0])

    np.testing.assert_array_equal(compiled(UNARY, fill, borrow=True)(X), -6 * X)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.astype(np.float64), r"result 0 .* is float64\[4\], not float32\[4\]"),
        (lambda x: x[:2], r"result 0 .* is float32\[2\], not float32\[4\]"),
        (lambda x: (x, x), "returned 2 results, not 1"),
        (lambda x: None, r"result 0 .* is object\[\], not float32"),
        (lambda x, y: x, "raised TypeError: .*missing 1 required"),
        (lambda x: 1 // 0, "@test.f: its function raised ZeroDivisionError"),
        (lambda x: (), "returned 0 results, not 1"),
    ],
)
def test_what_does_not_fit_is_an_error(function: Callable[..., Any], message: str) -> None:
    executable = compiled(UNARY, function)
    with pytest.raises(CustomCallError, match=message):
        executable(X)


def test_exceptions_are_the_cause_and_the_executable_stays_usable() -> None:
    def maybe(x: Array) -> Array:
        if x[1] > 2:
            raise RuntimeError("too large")
        return x

    executable = compiled(UNARY, maybe)
    out = np.empty(4, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(executable(X), -2 * X)
        with pytest.raises(CustomCallError, match="too large") as caught:
            executable(3 * X)
        assert isinstance(caught.value.__cause__, RuntimeError)
        with pytest.raises(CustomCallError, match="too large"):
            executable(3 * X, out=out)
        np.testing.assert_array_equal(executable(X, out=out), -2 * X)


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(exception: type[BaseException]) -> None:
    def interrupted(x: Array) -> Array:
        raise exception

    executable = compiled(UNARY, interrupted)
    with pytest.raises(exception):
        executable(X)


def test_a_callable_may_run_programs_itself() -> None:
    inner = compiled(UNARY, lambda x: x + 1)

    def outer(x: Array) -> Array:
        with pytest.raises(CustomCallError, match="inner failure"):
            failing(x)
        return inner(x)

    def fails(x: Array) -> Array:
        raise ValueError("inner failure")

    failing = compiled(UNARY, fails)
    np.testing.assert_array_equal(compiled(UNARY, outer)(X), 4 * X + 1)


# Effects


EFFECTS = """
func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<i32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  stablehlo.custom_call @test.f(%n) {has_side_effect = true} : (tensor<i32>) -> ()
  %w = stablehlo.while(%i = %zero) : tensor<i32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %parity = stablehlo.remainder %i, %two : tensor<i32>
    "stablehlo.case"(%parity) ({
      stablehlo.custom_call @test.f(%i) {has_side_effect = true} : (tensor<i32>) -> ()
      stablehlo.return
    }, {
      %minus = stablehlo.negate %i : tensor<i32>
      stablehlo.custom_call @test.f(%minus) {has_side_effect = true} : (tensor<i32>) -> ()
      stablehlo.custom_call @test.f(%minus) {has_side_effect = true} : (tensor<i32>) -> ()
      stablehlo.return
    }) : (tensor<i32>) -> ()
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next : tensor<i32>
  }
  %hundred = stablehlo.constant dense<100> : tensor<i32>
  stablehlo.custom_call @test.f(%hundred) {has_side_effect = true} : (tensor<i32>) -> ()
  return %w : tensor<i32>
}
"""


def test_effects_happen_once_each_and_in_program_order() -> None:
    seen: list[int] = []
    executable = compiled(EFFECTS, lambda n: seen.append(int(n)))
    assert executable(np.int32(4), X) == 4
    assert seen == [4, 0, -1, -1, 2, -3, -3, 100]


def test_a_failure_ends_the_program_at_once() -> None:
    seen: list[int] = []

    def stop(n: Array) -> None:
        seen.append(int(n))
        if n == -1:
            raise StopIteration

    with pytest.raises(CustomCallError, match="StopIteration"):
        compiled(EFFECTS, stop)(np.int32(4), X)
    assert seen == [4, 0, -1]


def test_tokens_order_calls_and_are_not_seen() -> None:
    text = """
    func.func @main(%t: !stablehlo.token, %x: tensor<4xf32>) -> (tensor<4xf32>, !stablehlo.token) {
      %a:2 = stablehlo.custom_call @test.f(%x, %t) : (tensor<4xf32>, !stablehlo.token)
        -> (!stablehlo.token, tensor<4xf32>)
      %u = stablehlo.after_all %a#0, %t : !stablehlo.token
      %b:2 = stablehlo.custom_call @test.f(%u, %x) : (!stablehlo.token, tensor<4xf32>)
        -> (tensor<4xf32>, !stablehlo.token)
      return %a#1, %b#1 : tensor<4xf32>, !stablehlo.token
    }"""
    calls: list[Array] = []

    def function(x: Array) -> Array:
        calls.append(x)
        return x + len(calls)

    np.testing.assert_array_equal(compiled(text, function)(X), X + 1)
    assert len(calls) == 2


def test_unused_calls_without_effects_are_dropped() -> None:
    text = UNARY.replace("return %2", "return %0")
    compiled(text, lambda x: 1 // 0)(X)


PARALLEL = """
func.func @main(%x: tensor<512x2048xf32>, %n: tensor<i32>) -> (tensor<512x2048xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<512x2048xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %e = stablehlo.sine %y : tensor<512x2048xf32>
    %f = stablehlo.custom_call @test.f(%e, %i) : (tensor<512x2048xf32>, tensor<i32>) -> tensor<512x2048xf32>
    %g = stablehlo.cosine %f : tensor<512x2048xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %g : tensor<i32>, tensor<512x2048xf32>
  }
  return %0#1, %0#0 : tensor<512x2048xf32>, tensor<i32>
}
"""


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_parallel_programs_meet_around_calls_and_after_failures(threads: int) -> None:
    def function(x: Array, i: Array) -> Array:
        if i == 7:
            raise ValueError("seven")
        return x + np.float32(i)

    executable = compiled(PARALLEL, function)
    x = np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)
    want = x
    for i in range(4):
        want = np.cos(np.sin(want) + np.float32(i))
    for _ in range(3):
        got, count = executable(x, np.int32(4), threads=threads)
        assert count == 4
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        with pytest.raises(CustomCallError, match="seven"):
            executable(x, np.int32(9), threads=threads)


def test_executions_on_several_threads_keep_their_failures_apart() -> None:
    def function(x: Array) -> Array:
        if x[0]:
            raise ValueError(f"value {x[0]:g}")
        return x

    executable = compiled(UNARY, function)
    problems: list[str] = []

    def work(number: int) -> None:
        for _ in range(50):
            try:
                executable(np.full(4, number, np.float32))
            except CustomCallError as error:
                if not number or f"value {2 * number}" not in str(error):
                    problems.append(f"{number}: {error}")
            else:
                if number:
                    problems.append(f"{number}: no error")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []


# C functions

SOURCE = """
#include <string.h>
#include "custom_call.h"

static int is(const gristmill_array_type *kind, const char *element, int64_t rank) {
  return !strcmp(kind->element, element) && kind->rank == rank;
}

int32_t scale(const gristmill_call *call, const void *const *inputs, void *const *outputs, char *message) {
  if (call->version != 1 || strcmp(call->target, "test.f") || call->num_inputs != 1 || call->num_outputs != 1 ||
      !is(call->inputs, "f32", 2) || !is(call->outputs, "f32", 2) || call->inputs->shape[1] != 3 ||
      (int64_t)strlen(call->config) != call->config_size) {
    strcpy(message, "unexpected call");
    return 1;
  }
  if (!strcmp(call->config, "fail")) {
    strncpy(message, "asked to fail", GRISTMILL_MESSAGE_BYTES);
    return 7;
  }
  if (!strcmp(call->config, "quiet")) return -1;
  const float *x = inputs[0];
  float *y = outputs[0];
  for (int64_t i = 0; i < call->inputs->shape[0] * call->inputs->shape[1]; ++i)
    y[i] = x[i] * *(const float *)call->user_data;
  return 0;
}
"""
MATRIX = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.custom_call @test.f(%x) {backend_config = "CONFIG"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("custom_call")
    source, made = folder / "scale.c", folder / "libscale.so"
    source.write_text(SOURCE)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1"]
    command = ["cc", *flags, f"-I{HEADER.parent}", "-o", made, source]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))


@pytest.mark.parametrize("kind", ["function", "address", "capsule"])
def test_c_functions(kind: str, library: ctypes.CDLL) -> None:
    function: Any = library.scale
    address = ctypes.cast(function, ctypes.c_void_p).value
    if kind == "address":
        function = address
    elif kind == "capsule":
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        function = make(address, b"gristmill.custom_call", None)
    factor = ctypes.c_float(2.5)
    data = ctypes.addressof(factor)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    executable = compiled(MATRIX.replace("CONFIG", "fine"), function, user_data=data)
    np.testing.assert_array_equal(executable(x), 2.5 * x)
    for config, message in (("fail", "asked to fail"), ("quiet", "gave no reason")):
        executable = compiled(MATRIX.replace("CONFIG", config), function, user_data=data)
        for _ in range(2):
            with pytest.raises(CustomCallError, match=f"@test.f failed: .*{message}"):
                executable(x)


# Registration


def test_names_are_taken_once() -> None:
    with register_custom_call("test.f", abs) as first:
        with pytest.raises(InputError, match=r"'test\.f' is registered already"):
            register_custom_call("test.f", abs)
        with register_custom_call("test.f", np.negative, replace=True):
            first.unregister()  # it has been replaced: nothing to remove
            assert custom_calls.is_registered("test.f")
            executable: Any = gristmill.compile(UNARY)
        assert not custom_calls.is_registered("test.f")
    np.testing.assert_array_equal(executable(X), 2 * X)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("", abs), {}, "needs a name"),
        (("test.f", "abs"), {}, "str is neither a callable"),
        (("test.f", 0), {}, "must not be null"),
        (("test.f", 4096), {"borrow": True}, "borrow is for Python callables"),
        (("test.f", abs), {"user_data": 8}, "user_data is for C functions"),
    ],
)
def test_bad_registrations(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        register_custom_call(*arguments, **options)


def test_a_capsule_of_another_name_is_refused() -> None:
    import datetime

    with pytest.raises(InputError, match=r"not called gristmill\.custom_call"):
        register_custom_call("test.f", datetime.datetime_CAPI)  # pyright: ignore[reportAttributeAccessIssue]


def test_unregistered_targets_are_refused_all_at_once() -> None:
    text = UNARY.replace("%2 = stablehlo.negate %1 :", "%2 = stablehlo.custom_call @test.g(%1) :")
    text = text.replace(
        "@test.g(%1) : tensor<4xf32>", "@test.g(%1) : (tensor<4xf32>) -> tensor<4xf32>"
    )
    with pytest.raises(UnsupportedError) as caught:
        gristmill.compile(text)
    assert [
        "@test.f: no function" in i or "@test.g: no function" in i for i in caught.value.items
    ] == [True] * 2


def test_calls_for_each_element_are_refused() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
        reducer(%a: tensor<f32>, %b: tensor<f32>) {
        %r = stablehlo.custom_call @test.f(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        stablehlo.return %r : tensor<f32>
      }
      return %0 : tensor<f32>
    }"""
    with pytest.raises(
        UnsupportedError, match=r"@test\.f in a computation that is applied to elements"
    ):
        compiled(text, max)


def test_a_registration_wins_over_what_the_compiler_knows() -> None:
    text = UNARY.replace("test.f", "Sharding")
    with register_custom_call("Sharding", lambda x: x + 1):
        executable: Any = gristmill.compile(text)
    np.testing.assert_array_equal(executable(X), -(2 * X + 1))


# Artifacts and the cache


def test_cached_programs_are_bound_to_what_is_registered_now(tmp_path: Path) -> None:
    options = gristmill.CompileOptions(cache=tmp_path / "cache")

    def run(text: str) -> list[float]:
        result: Any = gristmill.compile(text, options=options)(X)
        return result.tolist()

    for factor in (2, 3):
        with register_custom_call("test.f", lambda x, by=factor: x * by):
            assert run(UNARY) == (-2 * factor * X).tolist()
    assert len(list((tmp_path / "cache").rglob("*.gmill"))) == 1
    with pytest.raises(UnsupportedError, match=r"@test\.f: no function is registered"):
        gristmill.compile(UNARY, options=options)
    known = UNARY.replace("test.f", "Sharding")
    assert run(known) == (-2 * X).tolist()
    with register_custom_call("Sharding", lambda x: x + 1):
        assert run(known) == (-2 * X - 1).tolist()
    assert run(known) == (-2 * X).tolist()


def test_artifacts_name_the_targets_they_need(tmp_path: Path) -> None:
    path = tmp_path / "program.gmill"
    compiled(UNARY, lambda x: x + 1).save(path)
    with pytest.raises(
        CustomCallError, match=r"program .* needs custom calls .*: @test\.f; call gristmill\.reg"
    ):
        gristmill.load(path)
    with register_custom_call("test.f", lambda x: x - 1):
        loaded: Any = gristmill.load(path)
    np.testing.assert_array_equal(loaded(X), -(2 * X - 1))
    code = f"""
        import sys, numpy, gristmill
        gristmill.register_custom_call("test.f", lambda x: x * 10)
        result = gristmill.load({str(path)!r})(numpy.arange(4, dtype="f4"))
        assert result.tolist() == [0, -20, -40, -60], result
        assert not [name for name in sys.modules if name.partition(".")[0] in ("mlir", "jaxlib", "jax")]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_damaged_custom_calls_in_a_manifest(tmp_path: Path) -> None:
    from gristmill.runtime.manifest import parse_manifest, render_manifest
    from gristmill.runtime.manifest_fields import read_fields

    text = MATRIX.replace('"CONFIG"', "{a = 1 : i64}")
    program = compiled(text, lambda x, a: x)._program
    good = render_manifest(program, ["object0.o"], [], {})
    good = good.replace('"members": {}', '"members": {"object0.o": {"size": 1, "sha256": ""}, '
                        '"constants.bin": {"size": 0, "sha256": ""}}')  # fmt: skip
    assert parse_manifest(read_fields(good.encode())).custom_calls == tuple(program.custom_calls)
    for old, new, message in (
        ('"2x3xf32"\n   ]', '"2x-3xf32"\n   ]', "malformed|negative"),
        ('"{\\"a\\": 1}"', '"{\\"a"', "config is not JSON"),
        ('"{\\"a\\": 1}"', '"[1]"', "is not an object"),
        ('"target": "test.f"', '"target": 3', "no valid 'target'"),
    ):
        assert old in good
        with pytest.raises(ArtifactError, match=message):
            parse_manifest(read_fields(good.replace(old, new).encode()))


# Targets that need no function


@pytest.mark.parametrize(
    "target",
    ["Sharding", "SPMDFullToShardShape", "annotate_device_placement", "LayoutConstraint", "xla.sdy.Sharding"],
)  # fmt: skip
def test_marks_of_placement_and_sharding_change_nothing(target: str) -> None:
    text = UNARY.replace("test.f", target)
    np.testing.assert_array_equal(np.asarray(gristmill.compile(text)(X)), -2 * X)


def test_shape_assertions_hold_or_say_why() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<4xf32>) -> tensor<i32>
      %w = stablehlo.constant dense<WANTED> : tensor<i32>
      %p = stablehlo.compare EQ, %n, %w : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.custom_call @shape_assertion(%p, %n) {error_message = "x has {0} elements", has_side_effect = true}
        : (tensor<i1>, tensor<i32>) -> ()
      return %x : tensor<4xf32>
    }"""
    np.testing.assert_array_equal(np.asarray(gristmill.compile(text.replace("WANTED", "4"))(X)), X)
    with pytest.raises(InputError, match="x has 4 elements"):
        gristmill.compile(text.replace("WANTED", "5"))
