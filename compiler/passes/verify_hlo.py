# SPDX-License-Identifier: Apache-2.0
"""The ``verify-hlo`` pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.dialects.verify import verify_module


@dataclass(frozen=True)
class VerifyHloPass(Pass):
    """Check every ``hlo`` op against the dialect's shape, type and signature rules.

    Requires: a module that MLIR's own verifier accepts.
    Guarantees: nothing changes; ``VerifyError`` lists every violation with op and location.
    Does not handle: ops of other dialects, which MLIR verifies.
    """

    name: ClassVar[str] = "verify-hlo"

    def run(self, module: HloModule) -> None:
        """Verify ``module``."""
        verify_module(module.module)
