# SPDX-License-Identifier: Apache-2.0
"""The ``dce-hlo`` pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gristmill.compiler.module import HloModule, is_resource, resource_name
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import (
    effectful_functions,
    erase_dead,
    erase_unreferenced,
    snapshot,
)


@dataclass(frozen=True)
class DceHloPass(Pass):
    """Erase what nothing uses: ops, private functions and the data of large constants.

    Requires: nothing.
    Guarantees: every ``hlo`` op left has a use or a side effect (a ``custom_call`` that says so, or a
    computation with one), every private function is reached from a public one, and
    ``module.constants`` holds what is referred to.
    Does not handle: ops of other dialects, which stay; loop-carried values (``simplify-loops``).
    """

    name: ClassVar[str] = "dce-hlo"

    def run(self, module: HloModule) -> None:
        """Erase dead ops and functions."""
        effectful = effectful_functions(module)
        for function in module.functions().values():
            erase_dead(snapshot(function), effectful)
        erase_unreferenced(module)
        used: set[str] = set()
        for op in snapshot(module.module.operation):
            if op.name == "hlo.constant" and is_resource(op.attributes["value"]):
                used.add(resource_name(op.attributes["value"]))
        for name in module.constants.keys() - used:
            del module.constants[name]
