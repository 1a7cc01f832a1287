# SPDX-License-Identifier: Apache-2.0
"""Gristmill: a StableHLO compiler on MLIR with its own memory runtime."""

__version__ = "0.1.0.dev0"
