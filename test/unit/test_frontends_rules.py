# SPDX-License-Identifier: Apache-2.0
"""The rule table is complete, and decompositions give the right values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gristmill.compiler.frontends import load_text
from gristmill.compiler.frontends.rules import RULES
from gristmill.compiler.module import HloModule, array_type, constant_value
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError

# Operations that StableHLO does not have: LAPACK's functions come from custom calls.
NOT_IMPORTED = {"erf", "erfc", "fusion", "lapack"}


def test_every_dialect_operation_can_be_imported():
    imported = {name.removeprefix("stablehlo.") for name in RULES}
    assert set(hlo.OPS) - NOT_IMPORTED - imported == set()


def test_rules_name_operations_of_stablehlo():
    from jaxlib.mlir.dialects import stablehlo

    known = {getattr(value, "OPERATION_NAME", None) for value in vars(stablehlo).values()}
    ours = {name for name in RULES if name.startswith("stablehlo.")}
    assert ours <= known


def evaluate(module: HloModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """A numpy evaluator for what batch normalisation decomposes into."""
    (block,) = module.function("main").regions[0].blocks
    values = dict(zip(block.arguments, inputs, strict=True))
    functions = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "sqrt": np.sqrt,
    }
    for view in block.operations:
        op = view.operation
        operands = [values[value] for value in op.operands]
        name = hlo.short_name(op)
        if name == "func.return":
            return operands
        shape = array_type(op.results[0]).shape
        if name == "constant":
            result = constant_value(op, module.constants)
        elif name == "broadcast_in_dim":
            dimensions = hlo.dims(op, "dimensions")
            spread = [shape[axis] if axis in dimensions else 1 for axis in range(len(shape))]
            result = np.broadcast_to(operands[0].reshape(spread), shape)
        elif name == "reduce":
            assert '"hlo.add"(%arg0, %arg1)' in str(module.function(hlo.symbol(op, "to_apply")))
            result = operands[0].sum(axis=tuple(hlo.dims(op, "dimensions"))) + operands[1]
        else:
            result = functions[name](*operands)
        values[op.results[0]] = result
    raise AssertionError("no return")


SHAPE = (5, 3, 4)
EPSILON = 1e-3


def arrays() -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(1)
    full = generator.standard_normal((2, *SHAPE))
    features = generator.uniform(0.5, 2.0, (4, SHAPE[1]))
    return full[0], full[1], *features


def reference(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    mean = jnp.mean(x, (0, 2), keepdims=True)
    variance = jnp.mean((x - mean) ** 2, (0, 2), keepdims=True)
    normal = (x - mean) / jnp.sqrt(variance + EPSILON)
    return normal * scale[:, None] + offset[:, None]


def batch_norm(kind: str, arguments: str, types: str, results: str) -> HloModule:
    parameters = ", ".join(
        f"{name.strip()}: {kind.strip()}"
        for name, kind in zip(arguments.split(","), types.split(","), strict=True)
    )
    count = results.count("tensor")
    values = ", ".join(f"%r#{index}" for index in range(count)) if count > 1 else "%r"
    left = f"%r:{count}" if count > 1 else "%r"
    plain = results.strip("()")
    return load_text(
        f"""func.func @main({parameters}) -> ({plain}) {{
          {left} = "stablehlo.batch_norm_{kind}"({arguments})
            <{{epsilon = {EPSILON} : f32, feature_index = 1 : i64}}> : ({types}) -> ({plain})
          return {values} : {plain}
        }}"""
    )


FULL, FEATURE = "tensor<5x3x4xf64>", "tensor<3xf64>"


def test_batch_norm_training():
    x, _, scale, offset, *_ = arrays()
    module = batch_norm(
        "training",
        "%x, %s, %o",
        f"{FULL}, {FEATURE}, {FEATURE}",
        f"({FULL}, {FEATURE}, {FEATURE})",
    )
    out, mean, variance = evaluate(module, x, scale, offset)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(variance, x.var((0, 2)), rtol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(out, reference(x, scale, offset), rtol=1e-6)


def test_batch_norm_inference():
    x, _, scale, offset, mean, variance = arrays()
    module = batch_norm("inference", "%x, %s, %o, %m, %v", ", ".join([FULL, *[FEATURE] * 4]), FULL)
    (out,) = evaluate(module, x, scale, offset, mean, variance)
    column = (slice(None), None)
    expected = (x - mean[column]) / np.sqrt(variance[column] + EPSILON)
    np.testing.assert_allclose(out, expected * scale[column] + offset[column], rtol=1e-6)


def test_batch_norm_grad():
    x, output, scale, offset, *_ = arrays()
    module = batch_norm(
        "grad",
        "%x, %s, %m, %v, %g",
        f"{FULL}, {FEATURE}, {FEATURE}, {FEATURE}, {FULL}",
        f"({FULL}, {FEATURE}, {FEATURE})",
    )
    got = evaluate(module, x, scale, x.mean((0, 2)), x.var((0, 2)), output)
    with jax.enable_x64(True):
        _, pull = jax.vjp(reference, *map(jnp.asarray, (x, scale, offset)))
        expected = pull(jnp.asarray(output))
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def main(body: str, results: str = "", arguments: str = "%x: tensor<4xf32>") -> str:
    return str(load_text(f"func.func @main({arguments}) {results} {{ {body} }}").module)


def test_partition_and_replica_are_zero():
    text = main(
        "%0 = stablehlo.partition_id : tensor<ui32> %1 = stablehlo.replica_id : tensor<ui32> "
        "return %0, %1 : tensor<ui32>, tensor<ui32>",
        "-> (tensor<ui32>, tensor<ui32>)",
    )
    assert text.count("value = dense<0> : tensor<ui32>") == 2


def test_the_size_of_a_static_dimension_is_a_constant():
    text = main(
        "%0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<4xf32>) -> tensor<i32> "
        "return %0 : tensor<i32>",
        "-> tensor<i32>",
    )
    assert "value = dense<4> : tensor<i32>" in text


def test_real_and_imaginary_part_of_a_real_number():
    text = main(
        "%0 = stablehlo.real %x : tensor<4xf32> %1 = stablehlo.imag %x : tensor<4xf32> "
        "return %0, %1 : tensor<4xf32>, tensor<4xf32>",
        "-> (tensor<4xf32>, tensor<4xf32>)",
    )
    assert "return %arg0, %1" in text
    assert "value = dense<0.000000e+00> : tensor<f32>" in text


def test_a_sort_dimension_counts_from_the_front():
    text = main(
        """%0 = "stablehlo.sort"(%x) <{dimension = -1 : i64}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %p : tensor<i1>
        }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
        return""",
        arguments="%x: tensor<2x4xf32>",
    )
    assert "dimension = 1 : i64" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "%0 = stablehlo.custom_call @f(%x) {called_computations = [@g]} : "
            "(tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32> } "
            "func.func private @g() { return",
            "custom call @f with called computations is not supported",
        ),
        (
            """%0 = stablehlo.real_dynamic_slice %x, %n, %n, %n : (tensor<4xf32>, tensor<1xi64>,
              tensor<1xi64>, tensor<1xi64>) -> tensor<4xf32>
            return %0 : tensor<4xf32>""",
            "stablehlo.real_dynamic_slice: strides that are not constant are not supported",
        ),
        (
            """%two = stablehlo.constant dense<2> : tensor<1xi64>
            %0 = stablehlo.real_dynamic_slice %x, %n, %n, %two : (tensor<4xf32>, tensor<1xi64>,
              tensor<1xi64>, tensor<1xi64>) -> tensor<4xf32>
            return %0 : tensor<4xf32>""",
            "strides other than 1 are not supported",
        ),
    ],
)
def test_refused_forms(body: str, message: str):
    with pytest.raises(UnsupportedError, match=message):
        main(body, "-> tensor<4xf32>", "%x: tensor<4xf32>, %n: tensor<1xi64>")
