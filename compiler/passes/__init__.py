# SPDX-License-Identifier: Apache-2.0
"""Passes over ``hlo`` modules, their registry, and the pipeline that runs them."""
