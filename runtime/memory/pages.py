# SPDX-License-Identifier: Apache-2.0
"""Page-level system calls with typed errors: map, protect, discard, unmap."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from gristmill.errors import ResourceExhaustedError, ToolchainError

PAGE = mmap.PAGESIZE

PROT_NONE = 0
PROT_READ = mmap.PROT_READ
PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
PROT_READ_EXEC = mmap.PROT_READ | mmap.PROT_EXEC

_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


@lru_cache(maxsize=1)
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, flag, flag, flag, ctypes.c_long]
    library.munmap.argtypes = [pointer, size]
    library.mprotect.argtypes = [pointer, size, flag]
    library.madvise.argtypes = [pointer, size, flag]
    return library


def reserve(size: int) -> int:
    """Map ``size`` bytes of inaccessible address space, free of memory; returns the address."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    address = _libc().mmap(None, size, PROT_NONE, flags, -1, 0)
    if address == _MAP_FAILED or address is None:
        raise _failure(f"cannot reserve {size} bytes of address space")
    return address


def protect(address: int, size: int, protection: int) -> None:
    """Change the protection of whole pages."""
    if size and _libc().mprotect(address, size, protection) != 0:
        raise _failure(f"cannot change the protection of {size} bytes")


def discard(address: int, size: int) -> None:
    """Give the memory behind whole pages back; they read as zero afterwards."""
    if size and _libc().madvise(address, size, mmap.MADV_DONTNEED) != 0:
        raise _failure(f"cannot discard {size} bytes")


def unmap(address: int, size: int) -> None:
    """Remove a mapping."""
    if _libc().munmap(address, size) != 0:
        raise _failure(f"cannot unmap {size} bytes")


def mapping_count() -> int:
    """How many memory mappings this process has."""
    with Path("/proc/self/maps").open("rb") as maps:
        return sum(1 for _ in maps)


def mapping_limit() -> int:
    """``vm.max_map_count``; 0 where the system does not tell."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 0


def _failure(what: str) -> ResourceExhaustedError | ToolchainError:
    """The error for the current ``errno``, naming the limit that was hit."""
    code = ctypes.get_errno()
    reason = os.strerror(code)
    if code != errno.ENOMEM:
        return ToolchainError(f"{what}: {reason}")
    limit = mapping_limit()
    # The kernel returns ENOMEM for both; near the limit, mappings are what ran out.
    if limit and mapping_count() >= limit - 16:
        return ResourceExhaustedError(
            f"{what}: the process has reached vm.max_map_count ({limit} mappings); "
            "close executables that are no longer needed or raise it with: "
            f"sysctl vm.max_map_count={limit * 4}"
        )
    return ResourceExhaustedError(
        f"{what}: {reason}; free memory, or raise the address space limit (ulimit -v)"
    )
