# SPDX-License-Identifier: Apache-2.0
"""Tools that watch the runtime: for native debuggers (``jit``), leaks, races, timelines and bottlenecks.

Importing the package costs nothing; each tool is a module of it. The tools of the memory runtime install
themselves in :mod:`gristmill.runtime.observer` while their ``with`` block runs.
"""
