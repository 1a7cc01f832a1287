# SPDX-License-Identifier: Apache-2.0
"""The ``fold-constants`` pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from mlir import ir

from gristmill.compiler.module import (
    INLINE_CONSTANT_BYTES,
    HloModule,
    elements_from_numpy,
    is_resource,
    resource_name,
)
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.evaluate import EVALUATORS, evaluate
from gristmill.compiler.passes.rewriting import (
    Array,
    Rewriter,
    fresh_name,
    rewriters,
)
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor, mlir_type
from gristmill.runtime.types import ELEMENT_TYPES


@dataclass(frozen=True)
class FoldConstantsPass(Pass):
    """Evaluate ops whose operands are all constants.

    Requires: single-block functions.
    Guarantees: results are bit for bit what the program would compute; a value that is the same in
    every element becomes a broadcast scalar; broadcasts that repeat elements stay; reshapes of
    constants of any size share their data. No operand or result of more than ``limit-bytes`` is
    otherwise read or made, so big splats stay broadcasts.
    Does not handle: transcendental functions, reductions, dots, and cases where numpy's answer may
    differ from the program's (see ``evaluate``).
    """

    name: ClassVar[str] = "fold-constants"
    limit_bytes: int = 4096

    def run(self, module: HloModule) -> None:
        """Fold every function of ``module``."""
        for rewriter in rewriters(module):
            _Folder(rewriter, self.limit_bytes).run()


class _Folder:
    """One forward sweep over one function."""

    def __init__(self, rewriter: Rewriter, limit: int):
        self._rewriter = rewriter
        self._limit = limit
        self._known: dict[ir.Value, Array | None] = {}

    def run(self) -> None:
        """Fold in program order, so that folded operands are seen by their users."""
        rewriter = self._rewriter
        changed = False
        for op in rewriter.ops:
            if len(op.results) != 1 or hlo.short_name(op) not in EVALUATORS:
                continue
            with ir.InsertionPoint(op), op.location:
                value = self._fold(op)
            if value is not None:
                op.results[0].replace_all_uses_with(value)
                changed = True
        if changed:
            rewriter.sweep_up()

    def _fold(self, op: ir.Operation) -> ir.Value | None:
        result = self._rewriter.type(op.results[0])
        kind = hlo.short_name(op)
        if kind == "iota" or (kind == "broadcast_in_dim" and self._grows(op, result)):
            return None  # already the best form; users evaluate it through _value
        if kind == "reshape":
            shared = self._reshaped_resource(op, result)
            if shared is not None:
                return shared
        splats = [self._rewriter.splat(operand) for operand in op.operands]
        if hlo.has_trait(op, "elementwise") and all(splat is not None for splat in splats):
            data = evaluate(op, result, [np.asarray(splat) for splat in splats])
            return None if data is None else self._emit_splat(data, result)
        if not self._fits(result):
            return None
        operands = [self._value(operand) for operand in op.operands]
        present = [operand for operand in operands if operand is not None]
        if len(present) != len(operands):
            return None
        data = evaluate(op, result, present)
        return None if data is None else self._emit(data, result)

    def _grows(self, op: ir.Operation, result: Tensor) -> bool:
        source = self._rewriter.type(op.operands[0])
        return source.rank == 0 or source.size < result.size

    def _fits(self, kind: Tensor) -> bool:
        element = ELEMENT_TYPES.get(kind.element)
        return element is not None and kind.size * element.nbytes <= self._limit

    def _value(self, value: ir.Value) -> Array | None:
        """The data of a small constant, iota or broadcast of them; ``None`` for anything else."""
        if value not in self._known:
            self._known[value] = self._compute(value)
        return self._known[value]

    def _compute(self, value: ir.Value) -> Array | None:
        kind = self._rewriter.type(value)
        op = self._rewriter.producer(value)
        if op is None or not self._fits(kind):
            return None
        name = hlo.short_name(op)
        if name == "constant":
            return self._rewriter.constant(value, self._limit)
        if name == "iota":
            return evaluate(op, kind, [])
        if name == "broadcast_in_dim":
            source = self._value(op.operands[0])
            return None if source is None else evaluate(op, kind, [source])
        return None

    def _emit(self, data: Array, result: Tensor) -> ir.Value:
        if result.rank and data.size and _uniform(data):
            return self._emit_splat(data.reshape(-1)[0], result)
        return self._constant(data, result)

    def _emit_splat(self, data: Array, result: Tensor) -> ir.Value:
        scalar = self._constant(np.asarray(data).reshape(()), result.with_shape(()))
        if result.rank == 0:
            return scalar
        return builders.broadcast_in_dim(scalar, result.shape, [])

    def _constant(self, data: Array, result: Tensor) -> ir.Value:
        element = ELEMENT_TYPES[result.element]
        if data.size * element.nbytes < INLINE_CONSTANT_BYTES:
            return builders.constant(elements_from_numpy(data, element), result)
        stored = np.ascontiguousarray(data, element.dtype)
        stored.flags.writeable = False
        return self._resource(stored, result, "folded")

    def _resource(self, data: Array, result: Tensor, base: str) -> ir.Value:
        constants = self._rewriter.module.constants
        name = fresh_name(constants, base)
        constants[name] = data
        text = f"dense_resource<{name}> : {mlir_type(result)}"
        return builders.constant(ir.Attribute.parse(text))

    def _reshaped_resource(self, op: ir.Operation, result: Tensor) -> ir.Value | None:
        source = self._rewriter.operand(op, 0, "constant")
        if source is None or not is_resource(source.attributes["value"]):
            return None
        name = resource_name(source.attributes["value"])
        data = self._rewriter.module.constants.get(name)
        if data is None:
            return None
        return self._resource(data.reshape(result.shape), result, f"{name}_reshaped")


def _uniform(data: Array) -> bool:
    """Whether all elements have the same bits (so 0.0 and -0.0 differ, and NaNs are equal)."""
    raw = np.ascontiguousarray(data).view(np.dtype((np.void, data.dtype.itemsize)))
    first = raw.reshape(-1)[0].tobytes()
    return raw.tobytes() == first * data.size
