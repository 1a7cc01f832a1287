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
from gristmill.compiler.passes.rewriting import snapshot
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError
from gristmill.runtime import custom_calls


@dataclass(frozen=True)
class CheckSupportedPass(Pass):
    """Raise one ``UnsupportedError`` that names every operation no emitter compiles.

    Requires: nothing. Guarantees: every ``hlo`` operation left has an elemental rule or an emitter of its own; every
    custom call has a function registered for it, and is in ``main`` or in a computation of control flow. Does not
    check element types: an emitter refuses an operation on a type it lacks.
    """

    name: ClassVar[str] = "check-supported"

    def run(self, module: HloModule) -> None:
        """Check; the module is unchanged."""
        items: list[str] = []
        once = _run_once(module)
        for name, function in module.functions().items():
            for op in snapshot(function):
                problem = _problem(op, name in once)
                if problem is not None:
                    where = location_text(op.location)
                    items.append(f"{where}: {problem}" if where else problem)
        if items:
            raise UnsupportedError("; ".join(items), items=tuple(items))


def _run_once(module: HloModule) -> set[str]:
    """``main`` and what it reaches by control flow and calls: functions that are not applied to elements."""
    functions = module.functions()
    found: set[str] = set()
    pending = ["main"]
    while pending:
        name = pending.pop()
        if name in found or name not in functions:
            continue
        found.add(name)
        for op in snapshot(functions[name]):
            if op.name == "func.call":
                pending.append(hlo.symbol(op, "callee"))
            elif hlo.short_name(op) in ("while", "if", "case"):
                pending += hlo.computations(op)
    return found


def _problem(op: ir.Operation, once: bool) -> str | None:
    """Why the op cannot be compiled; ``once``: whether its function is not applied to elements."""
    name = hlo.short_name(op)
    if not op.name.startswith(("hlo.", "hlov.")):
        return None
    if not is_supported(name):
        return f"{name} is not supported on the CPU yet"
    if name != "custom_call":
        return None
    target = hlo.string(op, "call_target_name")
    if not custom_calls.is_registered(target):
        return (
            f"custom_call @{target}: no function is registered for it (gristmill.register_custom_call, or "
            "--custom-calls on the command line)"
        )
    if not once:
        return (
            f"custom_call @{target} in a computation that is applied to elements is not supported"
        )
    return None
