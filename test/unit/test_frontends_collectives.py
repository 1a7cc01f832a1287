# SPDX-License-Identifier: Apache-2.0
"""Collectives on one device, tokens and tuples; the expected values are XLA's or the specification's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxlib import _jax

import gristmill
from gristmill.compiler.frontends import load_text
from gristmill.errors import UnsupportedError

Array = np.ndarray[Any, Any]

X = np.array([[1.5, -2.0, 3.0, 4.0], [5.0, 6.0, np.nan, -0.0]], np.float32)


def compiled(text: str, *arrays: Any) -> list[Array]:
    got: Any = gristmill.compile(text)(*arrays)
    return list(got) if isinstance(got, tuple) else [got]


def xla(text: str, *arrays: Array) -> list[Array]:
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(
        text, _jax.DeviceList((device,)), _jax.CompileOptions()
    )
    return [np.asarray(r) for r in program.execute([jax.device_put(a, device) for a in arrays])]


def check(text: str, *arrays: Array) -> list[Array]:
    got, want = compiled(text, *arrays), xla(text, *arrays)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    return got


def test_functions_mapped_over_a_mesh_of_one_device() -> None:
    def function(x: Any) -> Any:
        return (
            lax.psum(x, "i") + lax.pmax(2 * x, "i"),
            lax.all_gather(x, "i", tiled=True),
            lax.ppermute(x, "i", [(0, 0)]),
            lax.ppermute(x, "i", []),
            lax.all_to_all(x, "i", 0, 1, tiled=True),
            lax.psum_scatter(x, "i", tiled=True),
            x + lax.axis_index("i"),
        )

    spec = PartitionSpec("i")
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))
    got: Any = gristmill.compile(mapped.lower(X))(X)
    for one, other in zip(got, mapped(X), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


ONE = "replica_groups = dense<0> : tensor<1x1xi64>"


def unary(operation: str, attributes: str, kind: str = "tensor<2x4xf32>") -> str:
    return (
        f"func.func @main(%x: {kind}) -> {kind} {{\n"
        f'  %0 = "stablehlo.{operation}"(%x) {{{attributes}}} : ({kind}) -> {kind}\n'
        f"  return %0 : {kind}\n}}\n"
    )


@pytest.mark.parametrize(
    ("operation", "attributes"),
    [
        ("all_gather", f"all_gather_dim = 1 : i64, {ONE}"),
        ("all_to_all", f"concat_dimension = 0 : i64, {ONE}, split_count = 1 : i64, split_dimension = 1 : i64"),
        ("collective_permute", "source_target_pairs = dense<0> : tensor<1x2xi64>"),
    ],
)  # fmt: skip
def test_the_operand_comes_back(operation: str, attributes: str) -> None:
    (got,) = check(unary(operation, attributes), X)
    np.testing.assert_array_equal(got, X)


def test_a_broadcast_from_oneself() -> None:  # XLA:CPU has none; the specification says so
    (got,) = compiled(unary("collective_broadcast", ONE), X)
    np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter"])
def test_reductions_apply_nothing_to_a_single_operand(operation: str) -> None:
    scatter = "scatter_dimension = 0 : i64, " if operation == "reduce_scatter" else ""
    text = f"""func.func @main(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {{
  %0 = "stablehlo.{operation}"(%x) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) {{{scatter}{ONE}}} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}}"""
    (got,) = check(text, X)
    np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("kind", ["f32", "i8", "i1", "complex<f32>", "bf16"])
def test_what_nothing_is_sent_to_is_zero(kind: str) -> None:
    dtype = {"f32": "f4", "i8": "i1", "i1": "?", "complex<f32>": "c8"}.get(kind)
    array = np.ones((2, 4), jax.numpy.bfloat16 if dtype is None else dtype)
    for operation, attributes in (
        ("collective_permute", "source_target_pairs = dense<> : tensor<0x2xi64>"),
        ("collective_broadcast", "replica_groups = dense<> : tensor<0x0xi64>"),
    ):
        (got,) = compiled(unary(operation, attributes, f"tensor<2x4x{kind}>"), array)
        assert got.dtype == array.dtype
        assert not got.any()


@pytest.mark.parametrize(
    ("operation", "attributes"),
    [
        ("collective_broadcast", "replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>"),
        ("collective_permute", "source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>"),
    ],
)
def test_other_devices_are_refused(operation: str, attributes: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{operation}: .* names device 1, .*one device"):
        load_text(unary(operation, attributes))


def test_several_operands_and_asynchronous_operations() -> None:
    text = f"""func.func @main(%x: tensor<2x4xf32>, %y: tensor<f32>) -> (tensor<2x4xf32>, tensor<f32>) {{
  %f = "stablehlo.async_start"(%x) ({{
  ^bb0(%a: tensor<2x4xf32>):
    %g = "stablehlo.all_gather"(%a) {{all_gather_dim = 1 : i64, {ONE}}} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    stablehlo.return %g : tensor<2x4xf32>
  }}) : (tensor<2x4xf32>) -> !stablehlo.future<tensor<2x4xf32>>
  %d = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<2x4xf32>>) -> tensor<2x4xf32>
  %0:2 = "stablehlo.all_reduce"(%d, %y) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) {{{ONE}}} : (tensor<2x4xf32>, tensor<f32>) -> (tensor<2x4xf32>, tensor<f32>)
  return %0#0, %0#1 : tensor<2x4xf32>, tensor<f32>
}}"""
    first, second = compiled(text, X, np.float32(3))
    np.testing.assert_array_equal(first, X)
    assert second == 3


TOKENS = """
func.func @main(%t: !stablehlo.token {jax.token = true}, %x: tensor<4xf32> {tf.aliasing_output = 2 : i32},
    %n: tensor<i32>) -> (!stablehlo.token, tensor<i32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %new = stablehlo.create_token : !stablehlo.token
  %both = stablehlo.after_all %new, %t : !stablehlo.token
  %w:3 = stablehlo.while(%i = %zero, %u = %both, %y = %x) : tensor<i32>, !stablehlo.token, tensor<4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    %odd = stablehlo.and %i, %one : tensor<i32>
    %c:2 = "stablehlo.case"(%odd) ({
      %r:2 = stablehlo.optimization_barrier %u, %y : !stablehlo.token, tensor<4xf32>
      stablehlo.return %r#0, %r#1 : !stablehlo.token, tensor<4xf32>
    }, {
      %v = stablehlo.after_all %u, %new : !stablehlo.token
      %d = stablehlo.add %y, %y : tensor<4xf32>
      stablehlo.return %v, %d : !stablehlo.token, tensor<4xf32>
    }) : (tensor<i32>) -> (!stablehlo.token, tensor<4xf32>)
    %p = stablehlo.tuple %c#0, %c#1 : tuple<!stablehlo.token, tensor<4xf32>>
    %p0 = stablehlo.get_tuple_element %p[0] : (tuple<!stablehlo.token, tensor<4xf32>>) -> !stablehlo.token
    %p1 = stablehlo.get_tuple_element %p[1] : (tuple<!stablehlo.token, tensor<4xf32>>) -> tensor<4xf32>
    %q0, %q1 = func.call @step(%p0, %p1) : (!stablehlo.token, tensor<4xf32>) -> (!stablehlo.token, tensor<4xf32>)
    stablehlo.return %next, %q0, %q1 : tensor<i32>, !stablehlo.token, tensor<4xf32>
  }
  return %w#1, %w#0, %w#2 : !stablehlo.token, tensor<i32>, tensor<4xf32>
}
func.func private @step(%t: !stablehlo.token, %x: tensor<4xf32>) -> (!stablehlo.token, tensor<4xf32>) {
  %y = stablehlo.negate %x : tensor<4xf32>
  return %t, %y : !stablehlo.token, tensor<4xf32>
}
"""


def test_tokens_pass_through_everything_and_are_no_arguments() -> None:
    executable = gristmill.compile(TOKENS)
    assert isinstance(executable, gristmill.Executable)
    assert [str(i.type) for i in executable.inputs] == ["4xf32", "i32"]
    assert [str(o.type) for o in executable.outputs] == ["i32", "4xf32"]
    assert executable.inputs[0].alias == 1
    x = np.array([1, 2, 3, 4], np.float32)
    count, values = executable(x, np.int32(5))
    assert count == 5
    np.testing.assert_array_equal(values, -4 * x)  # doubled for i = 1, 3; negated five times


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ('%0:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (T) -> (tensor<4xf32>, T)', "host queue"),
        ('%0 = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""} : (tensor<4xf32>, T) -> T', "as a result"),
        (
            '%0 = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, '
            "is_host_transfer = true} : (tensor<4xf32>, T) -> T",
            "host channel",
        ),
        (
            '%0:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, '
            "is_host_transfer = true} : (T) -> (tensor<4xf32>, T)",
            "as an argument",
        ),
    ],
)  # fmt: skip
def test_queues_and_channels_are_refused_by_name(operation: str, why: str) -> None:
    line = operation.replace("T", "!stablehlo.token", 9)
    text = f"func.func @main(%x: tensor<4xf32>, %t: !stablehlo.token) {{\n  {line}\n  return\n}}"
    name = operation.split('"')[1]
    with pytest.raises(UnsupportedError, match=f"{name}: .*{why}"):
        load_text(text)


TUPLES = """
func.func @main(%p: tuple<tensor<4xf32>, tuple<tensor<4xf32>, tensor<i32>>>) -> tuple<tensor<i32>, tensor<4xf32>> {
  %x = stablehlo.get_tuple_element %p[0] : (tuple<tensor<4xf32>, tuple<tensor<4xf32>, tensor<i32>>>) -> tensor<4xf32>
  %q = stablehlo.get_tuple_element %p[1]
    : (tuple<tensor<4xf32>, tuple<tensor<4xf32>, tensor<i32>>>) -> tuple<tensor<4xf32>, tensor<i32>>
  %r = func.call @swap(%q) : (tuple<tensor<4xf32>, tensor<i32>>) -> tuple<tensor<i32>, tensor<4xf32>>
  %n = stablehlo.get_tuple_element %r[0] : (tuple<tensor<i32>, tensor<4xf32>>) -> tensor<i32>
  %y = stablehlo.get_tuple_element %r[1] : (tuple<tensor<i32>, tensor<4xf32>>) -> tensor<4xf32>
  %d = stablehlo.subtract %x, %y : tensor<4xf32>
  %s = stablehlo.tuple %n, %d : tuple<tensor<i32>, tensor<4xf32>>
  return %s : tuple<tensor<i32>, tensor<4xf32>>
}
func.func private @swap(%p: tuple<tensor<4xf32>, tensor<i32>>) -> tuple<tensor<i32>, tensor<4xf32>> {
  %a = stablehlo.get_tuple_element %p[0] : (tuple<tensor<4xf32>, tensor<i32>>) -> tensor<4xf32>
  %b = stablehlo.get_tuple_element %p[1] : (tuple<tensor<4xf32>, tensor<i32>>) -> tensor<i32>
  %r = stablehlo.tuple %b, %a : tuple<tensor<i32>, tensor<4xf32>>
  return %r : tuple<tensor<i32>, tensor<4xf32>>
}
"""


def test_tuples_are_spread_out() -> None:
    x, y = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)
    count, difference = compiled(TUPLES, x, y, np.array(7, np.int32))
    assert count == 7
    np.testing.assert_array_equal(difference, x - y)
