# SPDX-License-Identifier: Apache-2.0
"""The ``hlo`` verifier: shape, type and signature rules that IRDL cannot express."""

from __future__ import annotations

from mlir import ir


def verify_module(module: ir.Module) -> None:
    """Check every ``hlo`` op of ``module``; raises ``VerifyError`` listing all violations."""
