# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation as elementwise operations and reductions; formulas of the StableHLO specification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxlib.mlir import ir as source_ir
from mlir import ir
from mlir.dialects import func

from gristmill.compiler.frontends.views import operands
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType

if TYPE_CHECKING:
    from gristmill.compiler.frontends.function import FunctionTranslator


def inference(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """Operands: operand, scale, offset, mean, variance. Result: the normalised operand."""
    operand, scale, offset, mean, variance = scope.operands(op)
    build = _Builder(scope, op)
    return [build.normalise(operand, scale, offset, mean, variance)]


def training(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """Operands: operand, scale, offset. Results: the normalised operand, mean, variance."""
    operand, scale, offset = scope.operands(op)
    build = _Builder(scope, op)
    mean = build.mean(operand)
    centered = build.binary("subtract", operand, build.spread(mean))
    variance = build.mean(build.binary("multiply", centered, centered))
    return [build.normalise(operand, scale, offset, mean, variance), mean, variance]


def grad(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """Operands: operand, scale, mean, variance, output gradient. Results: gradients of the first three
    inputs of the training form (operand, scale, offset)."""
    operand, scale, mean, variance, output = scope.operands(op)
    build = _Builder(scope, op)
    shifted = build.binary("add", build.spread(variance), build.number(build.full, build.epsilon))
    deviation = build.unary("sqrt", shifted)
    centered = build.binary("subtract", operand, build.spread(mean))
    normalised = build.binary("divide", centered, deviation)
    count = build.number(build.full, build.count)
    offset_gradient = build.total(output)
    weighted = build.spread(build.total(build.binary("multiply", output, centered)))
    correction = build.binary("divide", build.binary("multiply", weighted, centered), shifted)
    inner = build.binary("multiply", output, count)
    inner = build.binary("subtract", inner, build.spread(offset_gradient))
    inner = build.binary("subtract", inner, correction)
    factor = build.binary("divide", build.spread(scale), deviation)
    factor = build.binary("divide", factor, count)
    scale_gradient = build.total(build.binary("multiply", output, normalised))
    return [build.binary("multiply", factor, inner), scale_gradient, offset_gradient]


class _Builder:
    """Builds on arrays of the operand's type (``full``) and of one value a feature (``feature``)."""

    def __init__(self, scope: FunctionTranslator, op: source_ir.Operation):
        self._scope = scope
        self._op = op
        self.epsilon: float = source_ir.FloatAttr(op.attributes["epsilon"]).value
        axis = source_ir.IntegerAttr(op.attributes["feature_index"]).value
        self.full = scope.importer.array(operands(op)[0].type)
        shape = self.full.shape
        self.feature = ArrayType((shape[axis],), self.full.element)
        self._axis = axis
        self._others = [index for index in range(len(shape)) if index != axis]
        self.count = math.prod(shape[index] for index in self._others)

    def _emit(
        self,
        name: str,
        values: Sequence[ir.Value],
        result: ArrayType,
        **attributes: hlo.AttributeValue,
    ) -> ir.Value:
        types = [ir.Type.parse(f"tensor<{result}>")]
        return self._scope.emit(self._op, name, values, types, **attributes)[0]

    def unary(self, name: str, operand: ir.Value) -> ir.Value:
        """An elementwise operation on a full array."""
        return self._emit(name, [operand], self.full)

    def binary(
        self, name: str, lhs: ir.Value, rhs: ir.Value, kind: ArrayType | None = None
    ) -> ir.Value:
        """An elementwise operation on full arrays, or on arrays of type ``kind``."""
        return self._emit(name, [lhs, rhs], kind or self.full)

    def number(self, kind: ArrayType, value: float) -> ir.Value:
        """``value`` in every element of an array of type ``kind``."""
        scalar = ArrayType((), kind.element)
        attribute = ir.Attribute.parse(f"dense<{float(value)!r}> : tensor<{scalar}>")
        constant = self._emit("constant", [], scalar, value=attribute)
        return self._emit("broadcast_in_dim", [constant], kind, dimensions=())

    def spread(self, feature: ir.Value) -> ir.Value:
        """One value a feature, repeated over all other dimensions."""
        return self._emit("broadcast_in_dim", [feature], self.full, dimensions=[self._axis])

    def total(self, operand: ir.Value) -> ir.Value:
        """The sum over all dimensions but the feature's."""
        scalar = ArrayType((), self.full.element)
        zero = ir.Attribute.parse(f"dense<0.0> : tensor<{scalar}>")
        initial = self._emit("constant", [], scalar, value=zero)
        return self._emit(
            "reduce",
            [operand, initial],
            self.feature,
            dimensions=self._others,
            to_apply=self._sum(scalar),
        )

    def mean(self, operand: ir.Value) -> ir.Value:
        """The mean over all dimensions but the feature's."""
        count = self.number(self.feature, self.count)
        return self.binary("divide", self.total(operand), count, self.feature)

    def normalise(
        self,
        operand: ir.Value,
        scale: ir.Value,
        offset: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
    ) -> ir.Value:
        """``scale · (operand - mean) / sqrt(variance + epsilon) + offset``."""
        centered = self.binary("subtract", operand, self.spread(mean))
        epsilon = self.number(self.full, self.epsilon)
        deviation = self.unary("sqrt", self.binary("add", self.spread(variance), epsilon))
        scaled = self.binary(
            "multiply", self.spread(scale), self.binary("divide", centered, deviation)
        )
        return self.binary("add", scaled, self.spread(offset))

    def _sum(self, scalar: ArrayType) -> str:
        importer = self._scope.importer
        symbol = importer.fresh_symbol("reduce_body")
        kind = ir.Type.parse(f"tensor<{scalar}>")
        location = importer.location(self._op.location)
        with ir.InsertionPoint(importer.target.body), location:
            function = func.FuncOp(symbol, ([kind, kind], [kind]), visibility="private")
            block = ir.Block.create_at_start(function.operation.regions[0], [kind, kind])
            with ir.InsertionPoint(block):
                total = hlo.build("add", [kind], list(block.arguments))
                func.ReturnOp(list(total.results))
        return symbol
