# SPDX-License-Identifier: Apache-2.0
"""How many threads an execution uses, and the OpenMP library that provides them."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from importlib import metadata

from gristmill.errors import ToolchainError
from gristmill.runtime import knobs


def usable_cores() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


@lru_cache(maxsize=1)
def load_openmp() -> ctypes.CDLL:
    """LLVM's OpenMP runtime, loaded on first use.

    Workers of a finished region spin for the ``GRISTMILL_SPIN_MS`` knob before they sleep, unless
    the user set ``KMP_BLOCKTIME``. Raises ``ToolchainError`` when the library is missing.
    """
    os.environ.setdefault("KMP_BLOCKTIME", str(knobs.SPIN_MS.get()))
    try:
        path = metadata.distribution("cmeel-libomp").locate_file("cmeel.prefix/lib/libomp.so")
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except (metadata.PackageNotFoundError, OSError) as error:
        raise ToolchainError(
            f"the OpenMP library cannot be loaded ({error}); install it with: "
            "pip install cmeel-libomp"
        ) from None
