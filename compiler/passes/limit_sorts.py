# SPDX-License-Identifier: Apache-2.0
"""The ``limit-sorts`` pass: how much of its results anything reads of a sort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.dialects import hlo

#: The attribute that holds how many leading elements of each row are read.
LEADING = "gristmill.leading"


@dataclass(frozen=True)
class LimitSortsPass(Pass):
    """Note on a ``sort`` whose results are only sliced how many leading elements the slices take.

    The attribute :data:`LEADING` says that the elements of a row from that position on are not read: an emitter
    may leave them unspecified. Requires: nothing. Guarantees: other operations are unchanged. Does not handle: slices
    that do not begin with the first element, or computed ones.
    """

    name: ClassVar[str] = "limit-sorts"

    def run(self, module: HloModule) -> None:
        """Annotate in place."""
        sorts: list[ir.Operation] = []
        sort = hlo.full_name("sort")

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == sort:
                sorts.append(op)
            return ir.WalkResult.ADVANCE

        module.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        with module.context:
            for op in sorts:
                leading = _leading(op)
                if leading is not None:
                    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), leading)
                    op.attributes[LEADING] = number


def _leading(op: ir.Operation) -> int | None:
    """The number of leading elements that are read; ``None`` if it is all of them, or not known."""
    dimension = hlo.integer(op, "dimension")
    limits: list[int] = []
    for result in op.results:
        for use in result.uses:
            user = use.owner.operation
            if user.name != hlo.full_name("slice"):
                return None
            limits.append(hlo.dims(user, "limit_indices")[dimension])
    length = ir.RankedTensorType(op.operands[0].type).shape[dimension]
    leading = max(limits, default=length)
    return leading if leading < length else None
