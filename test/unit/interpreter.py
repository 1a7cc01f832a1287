# SPDX-License-Identifier: Apache-2.0
"""The StableHLO reference interpreter, as the oracle of tests: slow, right, and none of our code."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

Array = np.ndarray[Any, Any]


def _attribute(array: Array, kind: ir.Type) -> ir.Attribute:
    if array.dtype == np.bool_:
        return ir.Attribute.parse(f"dense<{str(array.tolist()).lower()}> : {kind}")
    if array.ndim == 0:  # the binding takes no rank-0 buffers
        element = ir.RankedTensorType(kind).element_type
        floating = array.dtype.kind == "f"
        item = (
            ir.FloatAttr.get(element, float(array))
            if floating
            else ir.IntegerAttr.get(element, int(array))
        )
        return ir.DenseElementsAttr.get_splat(kind, item)
    array = np.ascontiguousarray(array)
    raw = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    element = ir.RankedTensorType(kind).element_type
    return ir.DenseElementsAttr.get(raw, shape=list(array.shape), type=element)


def evaluate(text: str, *arrays: Array) -> list[Array]:
    """Results of ``@main`` of a StableHLO module on ``arrays``, element types as in numpy (no bf16 results)."""
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        kinds = module.body.operations[0].type.inputs
        attributes = [_attribute(a, k) for a, k in zip(arrays, kinds, strict=True)]
        return [np.array(result) for result in stablehlo.eval_module(module, attributes)]
