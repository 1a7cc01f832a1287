# SPDX-License-Identifier: Apache-2.0
"""The compiler: everything that needs MLIR (see docs/architecture.md)."""
