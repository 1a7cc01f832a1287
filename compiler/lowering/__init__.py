# SPDX-License-Identifier: Apache-2.0
"""Upstream pass pipelines from kernel-level MLIR to the LLVM dialect."""
