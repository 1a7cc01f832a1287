# SPDX-License-Identifier: Apache-2.0
"""Emitters for NVIDIA GPUs: how a fusion's elements map to blocks, warps and threads."""
