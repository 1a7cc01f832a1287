# SPDX-License-Identifier: Apache-2.0
"""How many threads an execution uses, and the OpenMP library that provides them."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from gristmill.errors import InputError, ToolchainError
from gristmill.runtime import knobs
from gristmill.runtime.packages import find_package

#: libomp's variable for how long, in milliseconds, idle workers spin.
_BLOCKTIME = "KMP_BLOCKTIME"

_count: list[int] = []


def usable_cores() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def num_threads() -> int:
    """Threads of an execution that does not say otherwise.

    What :func:`set_num_threads` set, else the ``GRISTMILL_NUM_THREADS`` knob, else the usable cores.
    """
    if not _count:
        _count.append(knobs.NUM_THREADS.get() or usable_cores())
    return _count[0]


def set_num_threads(count: int | None) -> None:
    """Set the threads of later executions in this process; None goes back to the default."""
    if count is not None and count < 1:
        raise InputError(f"the number of threads must be at least 1, not {count}")
    _count[:] = [] if count is None else [count]


def _loaded_openmp() -> str | None:
    """The path of an LLVM or Intel OpenMP runtime that is already in this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line[line.find("/") :]
        if "/" in line and Path(path).name.startswith(("libomp.", "libomp-", "libiomp5")):
            return path
    return None


def _installed_openmp() -> str:
    """The path of libomp's own package; raises ``OSError`` when it is not installed."""
    package = find_package("cmeel-libomp")
    if package is None:
        raise FileNotFoundError("the package cmeel-libomp is not installed")
    return str(package.folder / "cmeel.prefix" / "lib" / "libomp.so")


@lru_cache(maxsize=1)
def load_openmp() -> ctypes.CDLL:
    """LLVM's OpenMP runtime, loaded on first use.

    A copy that another package has loaded into this process is shared, as two would make libomp abort
    the process. Workers of a finished region spin for the ``GRISTMILL_SPIN_MS`` knob before they sleep, unless
    the user set ``KMP_BLOCKTIME``. Raises ``ToolchainError`` when the library is missing.
    """
    try:
        library = ctypes.CDLL(_loaded_openmp() or _installed_openmp())
    except OSError as error:
        raise ToolchainError(
            f"the OpenMP library cannot be loaded ({error}); install it with: "
            "pip install cmeel-libomp"
        ) from None
    ours = _BLOCKTIME not in os.environ
    if ours:
        os.environ[_BLOCKTIME] = str(knobs.SPIN_MS.get())
    # The first call makes libomp read its environment; child processes need not inherit ours.
    library.omp_get_max_threads()
    if ours:
        del os.environ[_BLOCKTIME]
    return library
