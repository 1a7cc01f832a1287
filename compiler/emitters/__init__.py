# SPDX-License-Identifier: Apache-2.0
"""Kernel emitters: from a fused computation to MLIR loops."""
