# SPDX-License-Identifier: Apache-2.0
"""Custom calls that select the first elements, against JAX's CPU client and numpy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import gristmill
from gristmill.errors import UnsupportedError

Array = np.ndarray[Any, Any]


def distinct(*shape: int) -> Array:
    size = int(np.prod(shape))
    return np.random.default_rng(1).permutation(size).reshape(shape).astype(np.float32) - size // 2


def test_approximate_selections_are_as_jaxs() -> None:
    x = distinct(3, 500)

    def function(x: Any) -> Any:
        return (
            lax.approx_max_k(x, 5),
            lax.approx_min_k(x.T, 4, reduction_dimension=0, recall_target=0.8),
            lax.approx_max_k(x, 3, recall_target=0.5, aggregate_to_topk=False),
        )

    jitted = jax.jit(function)
    lowered = jitted.lower(x)
    assert "@ApproxTopK" in lowered.as_text()
    got: Any = gristmill.compile(lowered)(x)
    wanted = jax.tree.leaves(jitted(x))
    np.testing.assert_array_equal(got[0], -np.sort(-x, axis=1)[:, :5])
    np.testing.assert_array_equal(got[2], np.sort(x.T, axis=0)[:4])
    for one, other in zip(got[:4], wanted[:4], strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))
    values, places = got[4:]
    assert values.shape == wanted[4].shape
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))
    np.testing.assert_array_equal(values[:, :3], -np.sort(-x, axis=1)[:, :3])


def exact(target: str, attributes: str, kind: str = "f32") -> str:
    return f"""
    func.func @main(%x: tensor<3x20x{kind}>) -> (tensor<3x4x{kind}>, tensor<3x4xi32>) {{
      %0:2 = stablehlo.custom_call @{target}(%x) {attributes}
        : (tensor<3x20x{kind}>) -> (tensor<3x4x{kind}>, tensor<3x4xi32>)
      return %0#0, %0#1 : tensor<3x4x{kind}>, tensor<3x4xi32>
    }}"""


@pytest.mark.parametrize("kind", ["f32", "i8", "ui8"])
@pytest.mark.parametrize("largest", [True, False])
def test_exported_selections(largest: bool, kind: str) -> None:
    x = distinct(3, 20).astype({"f32": np.float32, "i8": np.int8, "ui8": np.uint8}[kind])
    attributes = f"{{mhlo.attributes = {{k = 4 : i64, largest = {str(largest).lower()}}}, mhlo.version = 1 : i64}}"
    got: Any = gristmill.compile(exact("mhlo.topk", attributes, kind))(x)
    order = np.argsort(x.astype(int) * (-1 if largest else 1), axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(got[1], order)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, 1))


def test_what_xla_makes_of_top_k_and_of_a_partial_reduction() -> None:
    x = distinct(3, 20)
    got: Any = gristmill.compile(exact("TopK", ""))(x)
    np.testing.assert_array_equal(got[0], np.asarray(lax.top_k(x, 4)[0]))
    text = """
    func.func private @greater(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
      %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      return %0 : tensor<i1>
    }
    func.func @main(%x: tensor<20x3xf32>) -> tensor<5x3xf32> {
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %0 = stablehlo.custom_call @PartialReduce(%x, %low) {called_computations = [@greater],
        backend_config = "{\\22log2_reduction\\22: 2, \\22reduction_dim\\22: 0}"}
        : (tensor<20x3xf32>, tensor<f32>) -> tensor<5x3xf32>
      return %0 : tensor<5x3xf32>
    }"""
    y = np.ascontiguousarray(x.T)
    np.testing.assert_array_equal(gristmill.compile(text)(y), -np.sort(-y, axis=0)[:5])
    with pytest.raises(UnsupportedError, match="@PartialReduce"):
        gristmill.compile(text.replace("reduction_dim", "other"))


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("TopK", ("8xf32", "8xf32"), ("3xf32", "3xi32")),
        ("TopK", ("f32",), ("f32", "i32")),
        ("TopK", ("8xf32",), ("30xf32", "30xi32")),
        ("ApproxTopK", ("8xf32", "f32"), ("3xf32",)),
    ],
)
def test_other_forms_are_refused(
    target: str, operands: tuple[str, ...], results: tuple[str, ...]
) -> None:
    header = ", ".join(f"%a{k}: tensor<{kind}>" for k, kind in enumerate(operands))
    kinds = [", ".join(f"tensor<{kind}>" for kind in side) for side in (operands, results)]
    names = ", ".join(f"%a{k}" for k in range(len(operands)))
    count = len(results)
    made = ", ".join(f"%r#{k}" for k in range(count))
    text = f"""func.func @main({header}) -> ({kinds[1]}) {{
  %r:{count} = stablehlo.custom_call @{target}({names}) : ({kinds[0]}) -> ({kinds[1]})
  return {made} : {kinds[1]}
}}"""
    with pytest.raises(UnsupportedError, match=target):
        gristmill.compile(text)
