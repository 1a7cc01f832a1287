# SPDX-License-Identifier: Apache-2.0
"""LLVM through its C API: a typed wrapper that owns every handle and checks every error."""
