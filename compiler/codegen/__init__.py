# SPDX-License-Identifier: Apache-2.0
"""LLVM-dialect modules to objects, assembly and LLVM IR."""
