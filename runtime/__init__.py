# SPDX-License-Identifier: Apache-2.0
"""Loads and runs compiled programs; needs numpy and ml_dtypes, and LLVM to link."""
