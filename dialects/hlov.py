# SPDX-License-Identifier: Apache-2.0
"""Makes the namespace ``hlov`` known to MLIR's bindings; its operations are defined in ``hlo``.

Whenever the bindings wrap an operation they look for a Python module named after its namespace, and do not
remember that there is none: without this file that costs 50 µs each time.
"""
