# SPDX-License-Identifier: Apache-2.0
"""LAPACK's routines as native functions, from the library that SciPy brings (``scipy.linalg.cython_lapack``).

They follow Fortran's convention: every argument is an address, matrices are column-major, integers have 32 bits.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib import import_module
from typing import Any

from gristmill.errors import ToolchainError

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
