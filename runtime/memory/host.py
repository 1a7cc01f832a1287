# SPDX-License-Identifier: Apache-2.0
"""Aligned host memory for arenas and results, recycled instead of returned to the system.

Fresh pages cost a page fault each, which for large results is more than the computation. So blocks go
back to a pool when the last array over them dies, and the most recently used one is handed out next.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.errors import ResourceExhaustedError
from gristmill.runtime import knobs
from gristmill.runtime.program import ALIGNMENT

#: Blocks at least this large ask for huge pages.
_HUGE_BYTES = 4 << 20


@dataclass(frozen=True)
class Block:
    """A page-aligned block. ``memory`` owns it; ``address`` and ``capacity`` are in bytes."""

    memory: mmap.mmap
    address: int
    capacity: int


@dataclass(frozen=True)
class HostPoolStatistics:
    """Bytes a pool holds: lent out, waiting for reuse, and the limit on the latter."""

    used_bytes: int
    cached_bytes: int
    limit_bytes: int


def aligned_empty(
    shape: Sequence[int], dtype: np.dtype[Any], alignment: int = ALIGNMENT
) -> np.ndarray[Any, Any]:
    """An uninitialised C-contiguous array whose data begins at a multiple of ``alignment``, outside any pool."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -data_address(raw) % alignment
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``array`` itself when it is C-contiguous and 64-byte aligned, else such a copy."""
    if array.flags.c_contiguous and data_address(array) % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def size_class(nbytes: int) -> int:
    """Capacity of the block that serves ``nbytes``: whole pages, eight classes per power of two."""
    step = max(mmap.PAGESIZE, 1 << max((nbytes - 1).bit_length() - 4, 0))
    return max(-(-nbytes // step), 1) * step


def _default_limit() -> int:
    megabytes = knobs.POOL_MB.get()
    if megabytes:
        return megabytes << 20
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(1 << 30, physical // 8)


class HostPool:
    """Blocks by size class, last in first out. Thread-safe.

    Args:
        limit: bytes kept for reuse; what comes back beyond it goes to the system. Default: the
            ``GRISTMILL_POOL_MB`` knob.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._free: dict[int, list[Block]] = {}
        self._cached = 0
        self._used = 0
        self._buffer_types: dict[int, type[Any]] = {}
        # Re-entrant: the garbage collector may return a block while this thread holds the lock.
        self._lock = threading.RLock()

    @property
    def limit(self) -> int:
        """Bytes that may wait for reuse."""
        if self._limit is None:
            self._limit = _default_limit()
        return self._limit

    def acquire(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``; its content is undefined.

        Raises ``ResourceExhaustedError`` when the system has no memory left.
        """
        capacity = size_class(nbytes)
        with self._lock:
            self._used += capacity
            blocks = self._free.get(capacity)
            if blocks:
                self._cached -= capacity
                return blocks.pop()
        try:
            return self._map(capacity)
        except BaseException:
            with self._lock:
                self._used -= capacity
            raise

    def release(self, block: Block) -> None:
        """Take a block back; nothing may use it any more."""
        with self._lock:
            self._used -= block.capacity
            if self._cached + block.capacity <= self.limit:
                self._cached += block.capacity
                self._free.setdefault(block.capacity, []).append(block)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised array whose memory returns here when its last view has died."""
        block = self.acquire(math.prod(shape) * dtype.itemsize)
        buffer = self._buffer_type(block.capacity).from_address(block.address)
        buffer.block = block
        return np.ndarray(shape, dtype, buffer=buffer)

    def trim(self) -> None:
        """Return all waiting blocks to the system."""
        with self._lock:
            self._free.clear()
            self._cached = 0

    def statistics(self) -> HostPoolStatistics:
        """Current figures."""
        with self._lock:
            return HostPoolStatistics(self._used, self._cached, self.limit)

    def _map(self, capacity: int) -> Block:
        try:
            memory = _anonymous(capacity)
        except OSError:
            self.trim()
            try:
                memory = _anonymous(capacity)
            except OSError as error:
                used = self.statistics().used_bytes
                raise ResourceExhaustedError(
                    f"the host memory pool cannot get {capacity} bytes ({error.strerror}); it has "
                    f"{used} bytes in use: drop results that are no longer needed, or raise the "
                    "memory limit (ulimit -v, the container's limit)"
                ) from None
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return Block(memory, address, capacity)

    def _buffer_type(self, capacity: int) -> type[Any]:
        """A ctypes array type of that size whose instances return their block when they die."""
        found = self._buffer_types.get(capacity)
        if found is None:
            pool = self

            class PoolBuffer(ctypes.c_char * capacity):
                """Owns ``block`` on behalf of the numpy arrays over it."""

                block: Block

                def __del__(self) -> None:
                    pool.release(self.block)

            found = self._buffer_types[capacity] = PoolBuffer
        return found


def _anonymous(capacity: int) -> mmap.mmap:
    memory = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if capacity >= _HUGE_BYTES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


#: numpy's C interface puts the address of an array's data right behind the head of the object.
_DATA = object.__basicsize__


def _layout_is_known() -> bool:
    probe = np.zeros(1, np.uint8)
    return ctypes.c_void_p.from_address(id(probe) + _DATA).value == probe.ctypes.data


_LAYOUT_IS_KNOWN = _layout_is_known()


def data_address(array: np.ndarray[Any, Any]) -> int:
    """The address of an array's data; ``array.ctypes.data``, which makes three objects, in an eighth of the time."""
    if _LAYOUT_IS_KNOWN:
        return ctypes.c_void_p.from_address(id(array) + _DATA).value or 0
    return array.ctypes.data


#: The pool that all executables of this process share.
PROCESS_POOL = HostPool()
