# SPDX-License-Identifier: Apache-2.0
"""LAPACK's routines as native functions, from the library that SciPy brings (``scipy.linalg.cython_lapack``).

They follow Fortran's convention: every argument is an address, matrices are column-major, integers have 32 bits.

That library, OpenBLAS, has threads of its own. They spin while they wait, as the program's do, and each kind keeps the
other from the cores: a factorisation of a millisecond then takes a hundred now and then. So while a program runs that
calls LAPACK, OpenBLAS has one thread, or as many as the knob ``GRISTMILL_LAPACK_THREADS`` says.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from gristmill.errors import ToolchainError
from gristmill.runtime import knobs

#: What symbols of these routines are called in objects: this and the routine's name.
PREFIX = "lapack_"


@lru_cache(maxsize=1)
def _capsules() -> dict[str, Any]:
    try:
        return import_module("scipy.linalg.cython_lapack").__pyx_capi__
    except ImportError as error:
        raise ToolchainError(
            f"the program calls LAPACK, which SciPy provides: pip install 'scipy>=1.13' ({error})"
        ) from None


@lru_cache(maxsize=256)
def address(routine: str) -> int:
    """The address of a routine, ``dgeqrf`` for example; raises ``ToolchainError`` if SciPy is missing or has none."""
    capsule = _capsules().get(routine)
    if capsule is None:
        raise ToolchainError(
            f"SciPy's LAPACK has no routine {routine}; its version must be at least 1.13"
        )
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    name = name_of(capsule)
    if b"int *" not in name:  # with another name for it, SciPy's LAPACK would have 64-bit integers
        raise ToolchainError(f"SciPy's {routine} has an unknown signature: {name!r}")
    return pointer_of(capsule, name)


class ThreadLimit:
    """A limit of a library's threads while any ``with`` block of it runs; then they are as many as before.

    Args:
        get, put: the library's functions that say and set how many threads it uses.
        count: the limit.
    """

    def __init__(self, get: Callable[[], int], put: Callable[[int], object], count: int) -> None:
        self._get, self._put, self.count = get, put, count
        self._lock = threading.Lock()
        self._inside = self._before = 0
        os.register_at_fork(after_in_child=self._forked)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = self._get()
                if self._before > self.count:
                    self._put(self.count)
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._before > self.count:
                self._put(self._before)

    def _forked(self) -> None:
        """In the child of a fork nobody is inside, whoever was in its parent."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._put(self._before)


@lru_cache(maxsize=1)
def thread_limit() -> ThreadLimit | None:
    """The limit of LAPACK's threads in programs; None where SciPy's LAPACK is not an OpenBLAS that can be told."""
    library = ctypes.CDLL(import_module("scipy.linalg.cython_lapack").__file__)
    for prefix in ("scipy_", ""):  # looked up in what the module depends on, too
        functions = [
            getattr(library, f"{prefix}openblas_{verb}_num_threads", None)
            for verb in ("get", "set")
        ]
        if functions[0] and functions[1]:
            return ThreadLimit(functions[0], functions[1], knobs.LAPACK_THREADS.get())
    return None


def limited(call: Callable[[int], int]) -> Callable[[int], int]:
    """``call``, for code that calls LAPACK, with the limit on its threads."""
    limit = thread_limit()
    if limit is None:
        return call

    def run(frame: int) -> int:
        with limit:
            return call(frame)

    return run
