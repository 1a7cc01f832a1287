# SPDX-License-Identifier: Apache-2.0
"""The ``check-supported`` pass: refuse, all at once, what no emitter compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.diagnostics import location_text
from gristmill.compiler.emitters.registry import is_supported
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError


@dataclass(frozen=True)
class CheckSupportedPass(Pass):
    """Raise one ``UnsupportedError`` that names every operation no emitter compiles.

    Requires: nothing. Guarantees: every ``hlo`` operation left has an elemental rule or an emitter of its own. Does not
    check element types: an emitter refuses an operation on a type it lacks.
    """

    name: ClassVar[str] = "check-supported"

    def run(self, module: HloModule) -> None:
        """Check; the module is unchanged."""
        items: list[str] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith(("hlo.", "hlov.")) and not is_supported(hlo.short_name(op)):
                where = location_text(op.location)
                prefix = f"{where}: " if where else ""
                items.append(f"{prefix}{_describe(op)} is not supported on the CPU yet")
            return ir.WalkResult.ADVANCE

        module.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        if items:
            raise UnsupportedError("; ".join(items), items=tuple(items))


def _describe(op: ir.Operation) -> str:
    name = hlo.short_name(op)
    if name == "custom_call":
        return f"custom_call @{hlo.string(op, 'call_target_name')}"
    return name
