# SPDX-License-Identifier: Apache-2.0
"""Typed access to the IR in jaxlib's MLIR bindings, whose stubs leave the element types of lists open."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jaxlib.mlir import ir

if TYPE_CHECKING:
    Value = ir.Value[ir.Type]
else:
    Value = ir.Value


def operands(op: ir.Operation) -> list[Value]:
    """The operation's operands."""
    return cast("list[Value]", list(op.operands))  # pyright: ignore[reportUnknownArgumentType]


def results(op: ir.Operation) -> list[Value]:
    """The operation's results."""
    return cast("list[Value]", list(op.results))  # pyright: ignore[reportUnknownArgumentType]


def regions(op: ir.Operation) -> list[ir.Region]:
    """The operation's regions."""
    return list(op.regions)


def blocks(region: ir.Region) -> list[ir.Block]:
    """The region's blocks."""
    return list(region)


def first_block(op: ir.Operation) -> ir.Block:
    """The first block of the operation's first region."""
    return regions(op)[0].blocks[0]


def arguments(block: ir.Block) -> list[Value]:
    """The block's arguments."""
    return cast("list[Value]", list(block.arguments))  # pyright: ignore[reportUnknownArgumentType]


def operations(block: ir.Block) -> list[ir.Operation]:
    """The block's operations, in one pass (indexing a large block is slow)."""
    return [view.operation for view in block]


def defining_op(value: Value) -> ir.Operation | None:
    """The operation that produces ``value``; ``None`` for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def value_op(value: Value) -> ir.Operation:
    """The operation that produces ``value``, or the one whose block it is an argument of."""
    owner = value.owner
    return owner.owner.operation if isinstance(owner, ir.Block) else owner.operation


def walk(root: ir.Operation) -> list[ir.Operation]:
    """``root`` and every operation inside it, inner ones first."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found
