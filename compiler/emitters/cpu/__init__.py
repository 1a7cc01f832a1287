# SPDX-License-Identifier: Apache-2.0
"""Kernel emitters for CPUs, one module a fusion kind."""
