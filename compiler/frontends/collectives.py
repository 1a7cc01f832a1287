# SPDX-License-Identifier: Apache-2.0
"""Communication between devices, as it is on the one device that a program runs on: replica 0 of partition 0.

Every group of processes that the device belongs to is the device alone. So a reduction over a group is its operand, and
so are what is gathered, exchanged and scattered; a permutation or a broadcast gives zeros where nothing is sent to the
device (StableHLO's specification, ``collective_permute`` and ``collective_broadcast``). A group that names another
device is refused, and so is what needs a peer outside the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxlib.mlir import ir as source_ir
from mlir import ir

from gristmill.compiler.frontends.views import results
from gristmill.dialects import builders
from gristmill.dialects.types import Tensor
from gristmill.errors import UnsupportedError

if TYPE_CHECKING:
    from gristmill.compiler.frontends.function import FunctionTranslator

#: Why operations that talk to something outside the program are refused.
NO_PEER = {
    "stablehlo.infeed": "there is no host queue to read from; pass the data as an argument",
    "stablehlo.outfeed": "there is no host queue to write to; return the data as a result",
    "stablehlo.recv": "there is no other device or host channel to receive from; pass the data as an argument",
    "stablehlo.send": "there is no other device or host channel to send to; return the data as a result",
}


def _devices(op: source_ir.Operation, name: str) -> list[int]:
    """The device numbers in attribute ``name``, a matrix; raises ``UnsupportedError`` for any but 0."""
    value = op.attributes[name]
    if not isinstance(value, source_ir.DenseIntElementsAttr):
        raise UnsupportedError(f"{name} of the form {value} is not supported")
    numbers = [int(number) for number in value]
    others = sorted({number for number in numbers if number != 0})
    if others:
        listed = ", ".join(map(str, others))
        raise UnsupportedError(
            f"{name} names device {listed}, but a program runs on one device, number 0; "
            "export it for one device"
        )
    return numbers


def over_group(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """``all_reduce``, ``all_gather``, ``all_to_all``, ``reduce_scatter``: the operands themselves."""
    _devices(op, "replica_groups")
    return scope.operands(op)


def permute(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """``collective_permute``: the operand if the device sends to itself, else zeros."""
    return scope.operands(op) if _devices(op, "source_target_pairs") else _zeros(scope, op)


def broadcast(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """``collective_broadcast``: the operand if the device is in a group, else zeros."""
    return scope.operands(op) if _devices(op, "replica_groups") else _zeros(scope, op)


def refuse(scope: FunctionTranslator, op: source_ir.Operation) -> Sequence[ir.Value]:
    """An operation of :data:`NO_PEER`."""
    raise UnsupportedError(NO_PEER[op.name])


def _zeros(scope: FunctionTranslator, op: source_ir.Operation) -> list[ir.Value]:
    (result,) = results(op)
    array = scope.importer.array(result.type)
    is_complex = array.element.kind == "complex"
    part = array.element.name.removeprefix("complex<").rstrip(">")
    with scope.importer.location(op.location):
        zeros = builders.splat(0, Tensor(array.shape, part))
        return [builders.complex_(zeros, zeros) if is_complex else zeros]
