# SPDX-License-Identifier: Apache-2.0
"""The ``resolve-shape-assertions`` pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, rewriters
from gristmill.dialects import hlo
from gristmill.errors import InputError

_PLACEHOLDER = re.compile(r"\{(\d+)\}")


@dataclass(frozen=True)
class ResolveShapeAssertionsPass(Pass):
    """Decide ``custom_call @shape_assertion(predicate, integers…)``, as shape-polymorphic exports hold.

    Requires: constants folded (``fold-constants``), so that what depends on shapes only is constant.
    Guarantees: an assertion that holds is gone; one that fails raises ``InputError`` with its
    ``error_message``, where ``{0}``, ``{1}``… stand for the integers.
    Does not handle: predicates that are not constant; those assertions stay.
    """

    name: ClassVar[str] = "resolve-shape-assertions"

    def run(self, module: HloModule) -> None:
        """Decide the assertions of every function."""
        for rewriter in rewriters(module):
            resolved = False
            for op in rewriter.ops:
                if hlo.short_name(op) != "custom_call":
                    continue
                if hlo.string(op, "call_target_name") == "shape_assertion":
                    resolved |= _resolve(rewriter, op)
            if resolved:
                rewriter.sweep_up()


def _resolve(rewriter: Rewriter, op: ir.Operation) -> bool:
    """Erase ``op`` if it holds; whether it did."""
    predicate, *integers = (rewriter.splat(operand) for operand in op.operands)
    if predicate is None:
        return False
    if not predicate:
        raise InputError(_message(hlo.string(op, "error_message"), integers))
    rewriter.erase(op)
    return True


def _message(template: str, integers: list[object]) -> str:
    def replace(match: re.Match[str]) -> str:
        index = int(match.group(1))
        known = index < len(integers) and integers[index] is not None
        return str(integers[index]) if known else "(unknown)"

    return _PLACEHOLDER.sub(replace, template) or "a shape assertion of the program does not hold"
