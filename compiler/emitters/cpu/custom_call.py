# SPDX-License-Identifier: Apache-2.0
"""Custom calls: kernels without code, in whose place the entry function calls a registered function."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.kernel import ExternalCall, KernelDefinition, KernelSpec, Phase
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError
from gristmill.runtime.program import CustomCall

_WORD = 8
_DENSE_ARRAYS = (
    ir.DenseBoolArrayAttr,
    ir.DenseI8ArrayAttr,
    ir.DenseI16ArrayAttr,
    ir.DenseI32ArrayAttr,
    ir.DenseI64ArrayAttr,
    ir.DenseF32ArrayAttr,
    ir.DenseF64ArrayAttr,
)


class CustomCallEmitter:
    """Describes one ``custom_call``; the workspace is for the pointers that the callee is given."""

    def __init__(self, source: FusionSource):
        self.source = source
        op = source.graph.results[0].op
        assert op is not None, "a fused computation returns an operation's result"
        self.op: ir.Operation = op

    def emit(self) -> KernelDefinition:
        """The kernel's interface; its module is empty."""
        op, source = self.op, self.source
        arguments = self._seen("token_operands", len(source.arguments))
        results = self._seen("token_results", len(source.results))
        config, typed = _config(op)
        call = CustomCall(
            hlo.string(op, "call_target_name"),
            tuple(source.arguments[n] for n in arguments),
            tuple(source.results[n] for n in results),
            config,
            typed,
        )
        spec = KernelSpec(
            source.name,
            (Phase(source.name),),
            source.arguments,
            source.results,
            workspace_bytes=_WORD * (len(arguments) + len(results)),
            bytes=sum(kind.nbytes for kind in (*call.inputs, *call.outputs)),
            kind="custom_call",
            external=ExternalCall(call, arguments, results),
        )
        return KernelDefinition(spec, ir.Module.create(loc=ir.Location.unknown()))

    def _seen(self, name: str, count: int) -> tuple[int, ...]:
        tokens = hlo.dims(self.op, name) if name in self.op.attributes else []
        return tuple(number for number in range(count) if number not in tokens)


def _config(op: ir.Operation) -> tuple[str, bool]:
    """The call's configuration as text, and whether it is JSON of named attributes."""
    if "backend_config" not in op.attributes:
        return "", False
    value = op.attributes["backend_config"]
    if isinstance(value, ir.StringAttr):
        return value.value, False
    if isinstance(value, ir.DictAttr):
        return json.dumps({item.name: _plain(item.attr) for item in value}), True
    raise UnsupportedError(f"backend_config {value} is neither a string nor a dictionary")


def _plain(value: ir.Attribute) -> Any:
    """An attribute as JSON holds it; raises ``UnsupportedError`` for a kind that it cannot hold."""
    if isinstance(value, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr):
        return value.value
    if isinstance(value, ir.ArrayAttr):
        return [_plain(item) for item in value]
    if isinstance(value, ir.DictAttr):
        return {item.name: _plain(item.attr) for item in value}
    if isinstance(value, _DENSE_ARRAYS):
        return list(value)
    if isinstance(value, ir.DenseElementsAttr):
        return np.array(value).tolist()
    raise UnsupportedError(f"an attribute {value} in backend_config is not supported")
