# SPDX-License-Identifier: Apache-2.0
"""Copies of host arrays that change the order of their elements, fast.

numpy copies in the destination's order, which for a transpose reads one element of every cache line.
Here dimensions are merged where both sides allow, and short contiguous runs become wider elements. If a
transpose remains, it is done in register tiles by :mod:`gristmill.runtime.relayout_kernels`, as are large
copies of runs; other copies are numpy's. Large ones are divided over threads, and written past the caches.

Small arrays go to numpy. So do transposes where LLVM is not installed, in blocks that fit a cache.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from gristmill.errors import InputError, ToolchainError
from gristmill.runtime import relayout_kernels
from gristmill.runtime.caches import cache_sizes
from gristmill.runtime.memory.host import PROCESS_POOL, aligned_empty
from gristmill.runtime.threads import num_threads
from gristmill.runtime.workers import WorkerPool

Array = np.ndarray[Any, Any]

#: Below this size numpy's own copy is faster than planning.
_SMALL_BYTES = 16 << 10
#: Compiling the kernels pays from this size on; once they are compiled the smaller bound holds.
_COMPILE_BYTES = 4 << 20
#: Least bytes for each thread.
_THREAD_BYTES = 4 << 20
#: New arrays of this size and more come from the pool, whose pages need no faults.
_POOL_BYTES = 1 << 20

#: Copies to this many bytes, or a quarter of the last cache if that is less, are written past the caches.
#: It pays from here on; caches may be larger, but are shared with other cores.
_STREAM_BYTES = 8 << 20
#: Runs of this length are mostly whole lines, wherever they begin.
_LONG_RUN = 512
#: Least bytes of a row and of a column for staging to pay where lines collide.
_STAGED_BYTES = 32
#: A usual L1 cache: how many lines at the same offset of so many bytes it holds.
_WAYS = 8
_WAY_BYTES = 4 << 10

#: Sides of a block of the numpy fallback, in elements.
_BLOCK = (128, 64)


@dataclass(frozen=True)
class Dimension:
    """One dimension of a copy: its size, and the bytes one step moves in destination and source."""

    size: int
    target: int
    source: int


@dataclass(frozen=True)
class CopyPlan:
    """A copy in normal form: destination-ordered, merged dimensions of elements of ``size`` bytes.

    ``target`` and ``source`` are addresses. The destination's steps are positive.
    """

    target: int
    source: int
    size: int
    dims: tuple[Dimension, ...]

    @staticmethod
    def of(target: Array, source: Array) -> CopyPlan:
        """Normal form of ``target[...] = source``; the same shape and element size, none empty."""
        address, origin, size = target.ctypes.data, source.ctypes.data, target.itemsize
        dims: list[Dimension] = []
        for extent, to, fro in zip(target.shape, target.strides, source.strides, strict=True):
            if extent == 1:
                continue
            if to < 0:
                address, origin = address + to * (extent - 1), origin + fro * (extent - 1)
                to, fro = -to, -fro
            dims.append(Dimension(extent, to, fro))
        dims.sort(key=lambda d: (d.target, abs(d.source)), reverse=True)
        return CopyPlan(address, origin, size, tuple(_merge(dims)))._widen()

    def _widen(self) -> CopyPlan:
        """Short contiguous runs of 2, 4, 8 or 16 bytes as elements."""
        if self.dims and self.dims[-1].target == self.dims[-1].source == self.size:
            width = self.size * self.dims[-1].size
            if width in relayout_kernels.SIZES:
                return replace(self, size=width, dims=self.dims[:-1])
        return self

    @property
    def row(self) -> int | None:
        """Which dimension is contiguous in the source, where the copy is a transpose; else None.

        Transposes that numpy does as well, with few rows and long columns, are not counted as such.
        """
        if not self.dims or self.dims[-1].target != self.size:
            return None
        columns, tile = self.dims[-1].size, 16 // self.size
        for number, dim in enumerate(self.dims[:-1]):
            if dim.source == self.size and (dim.size >= tile or columns < 16):
                return number
        return None

    @property
    def has_long_runs(self) -> bool:
        """Whether it copies runs, contiguous on both sides, that are mostly whole cache lines."""
        if len(self.dims) < 2 or not self.dims[-1].target == self.dims[-1].source == self.size:
            return False
        return self._writes_lines(self.size * self.dims[-1].size)

    def transpose(self, row: int, stream: bool) -> None:
        """Do it natively, without the GIL. Raises ``ToolchainError`` where LLVM is not installed.

        Args:
            row: the dimension that is contiguous in the source.
            stream: write past the caches, if lines of the destination can be written whole.
        """
        outer = [*self.dims[:row], *self.dims[row + 1 : -1]]
        rows, columns = self.dims[row], self.dims[-1]
        run, part = columns.size * self.size, rows.size * self.size
        stream = stream and part >= relayout_kernels.LINE and self._writes_lines(run)
        staged = stream or (min(run, part) >= _STAGED_BYTES and self._collides(rows, columns))
        rectangle = (rows.size, columns.size, rows.target, columns.source, staged)
        # Lines of the destination should be filled, or those of the source be used up, one after another.
        if run < relayout_kernels.LINE:
            outer.reverse()
        else:
            outer.sort(key=lambda d: abs(d.source))
        self._execute(relayout_kernels.kernel(self.size), rectangle, outer, stream)

    def copy_runs(self) -> None:
        """Copy the last dimension, contiguous on both sides, as one run each time, past the caches."""
        outer = sorted(self.dims[:-1], key=lambda d: abs(d.source))
        run = self.size * self.dims[-1].size
        self._execute(relayout_kernels.kernel(0), (1, run, 0, 0, False), outer, True)

    def _writes_lines(self, run: int) -> bool:
        """Whether runs of that many bytes in the destination are mostly whole cache lines."""
        steps = (d.target for d in self.dims[:-1])
        return run >= _LONG_RUN or math.gcd(self.target, run, *steps) % relayout_kernels.LINE == 0

    def _collides(self, rows: Dimension, columns: Dimension) -> bool:
        """Whether the lines that direct tiles work on evict each other from an L1 cache."""
        return any(
            count > _WAYS * (_WAY_BYTES // math.gcd(step, _WAY_BYTES))
            for count, step in (
                (relayout_kernels.LINE // self.size, rows.target),
                (relayout_kernels.DIRECT_TILES[self.size], columns.source),
            )
        )

    def _execute(
        self,
        kernel: relayout_kernels.Kernel,
        rectangle: Sequence[int],
        outer: Sequence[Dimension],
        stream: bool,
    ) -> None:
        line = relayout_kernels.LINE - 1 if stream else 0
        values = [self.target, self.source, *rectangle, line, len(outer)]
        values += [v for d in outer for v in (d.size, d.target, d.source)]
        plan = np.array(values, np.int64)
        kernel(plan.ctypes.data, math.prod(d.size for d in outer))


def _merge(dims: Sequence[Dimension]) -> Iterator[Dimension]:
    """Join neighbours that step through memory as one on both sides."""
    held: Dimension | None = None
    for dim in dims:
        if (
            held is not None
            and held.target == dim.target * dim.size
            and held.source == dim.source * dim.size
        ):
            held = replace(dim, size=held.size * dim.size)
            continue
        if held is not None:
            yield held
        held = dim
    if held is not None:
        yield held


def copy_array(target: Array, source: Array, *, threads: int | None = None) -> None:
    """``target[...] = source`` for arrays of one shape and element type, of any strides.

    Byte orders may differ: values are kept. Memory may overlap: the result is as if ``source`` had been
    copied first.

    Args:
        target: a writable array; no two of its elements may share memory.
        source: what to copy.
        threads: how many to use at most; default: as many as executions use.

    Raises ``InputError`` for other arrays. The memory must not be used by others meanwhile.
    """
    _check(target, source)
    if not target.size:
        return
    if np.may_share_memory(target, source):
        source = source.copy()
    target, source = as_bits(target), as_bits(source)
    if target.nbytes < _SMALL_BYTES:
        np.copyto(target, source)
    else:
        _copy(target, source, threads or num_threads())


def contiguous(array: Array, *, threads: int | None = None) -> Array:
    """``array`` if it is C-contiguous and of native byte order, else a 64-byte aligned copy that is."""
    if array.flags.c_contiguous and array.dtype.isnative:
        return array
    copy = new_array(array.shape, array.dtype.newbyteorder("="))
    copy_array(copy, array, threads=threads)
    return copy


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised, C-contiguous, 64-byte aligned array."""
    large = math.prod(shape) * dtype.itemsize >= _POOL_BYTES
    return PROCESS_POOL.empty(shape, dtype) if large else aligned_empty(shape, dtype)


def as_bits(array: Array) -> Array:
    """The same elements as unsigned integers of their size; complex ones stay, as they swap by component."""
    if array.dtype.kind == "c":
        return array
    bits = np.dtype(f"u{array.itemsize}")
    return array.view(bits if array.dtype.isnative else bits.newbyteorder())


def _check(target: Array, source: Array) -> None:
    if target.shape != source.shape:
        raise InputError(f"cannot copy an array of shape {source.shape} to one of {target.shape}")
    if target.dtype.newbyteorder("=") != source.dtype.newbyteorder("="):
        raise InputError(
            f"cannot copy {source.dtype} elements to {target.dtype}: convert them first"
        )
    if target.dtype.hasobject or target.itemsize not in relayout_kernels.SIZES:
        raise InputError(f"arrays of {target.dtype} cannot be copied: elements have 1 to 16 bytes")
    if not target.flags.writeable:
        raise InputError("the target array is read-only")
    steps = zip(target.shape, target.strides, strict=True)
    if target.size and any(s == 0 and n > 1 for n, s in steps):
        raise InputError("the target array is a broadcast: its elements share memory")


def _copy(target: Array, source: Array, threads: int) -> None:
    """Copy, on several threads where that pays."""
    whole = target.nbytes
    parts = min(threads, whole // _THREAD_BYTES)
    axes = [k for k, n in enumerate(target.shape) if n >= 4 * parts]
    if parts < 2 or not axes:
        copy_part(target, source, whole)
        return
    axis = max(axes, key=lambda k: abs(target.strides[k]))
    size = target.shape[axis]
    # Multiples of 16 elements, so that tiles and cache lines stay whole.
    unit = 16 if size >= 64 * parts else 1
    step = -(-size // (parts * unit)) * unit
    target, source = np.moveaxis(target, axis, 0), np.moveaxis(source, axis, 0)
    jobs = [(target[k : k + step], source[k : k + step]) for k in range(0, size, step)]
    ended = threading.Semaphore(0)
    failures: list[BaseException] = []

    def run(part: Array, origin: Array) -> None:
        try:
            copy_part(part, origin, whole)
        except BaseException as error:  # it is the caller's, who waits
            failures.append(error)
        finally:
            ended.release()

    for job in jobs[1:]:
        _workers[0].submit(partial(run, *job))
    run(*jobs[0])
    for _ in jobs:
        ended.acquire()
    if failures:
        raise failures[0]


def _stream_bytes() -> int:
    """From how many bytes on the destination is written past the caches."""
    return min(_STREAM_BYTES, cache_sizes().get("L3", 4 * _STREAM_BYTES) // 4)


def copy_part(target: Array, source: Array, whole: int) -> None:
    """Copy on this thread: natively what that is good for and where it can be had, the rest with numpy.

    ``whole`` is how many bytes are copied in all, of which this may be a part.
    """
    plan = CopyPlan.of(target, source)
    row, swap, stream = (
        plan.row,
        target.dtype.isnative != source.dtype.isnative,
        whole >= _stream_bytes(),
    )
    by_runs = row is None and stream and not swap and plan.has_long_runs
    enough = _SMALL_BYTES if relayout_kernels.is_loaded() else _COMPILE_BYTES
    if whole < enough or (row is None and not by_runs) or not _native():
        copy_blocked(target, source)
    elif row is None:
        plan.copy_runs()
    else:
        plan.transpose(row, stream)
        if swap:
            target.byteswap(inplace=True)


@lru_cache(maxsize=1)
def _native() -> bool:
    """Whether the native kernels can be had; tried once."""
    try:
        relayout_kernels.kernel(1)
    except ToolchainError:
        return False
    return True


_workers: list[WorkerPool] = []


def _make_workers() -> None:
    _workers[:] = [WorkerPool(64, "gristmill-relayout")]


_make_workers()
# A forked child has no threads, but a pool that believes in them.
os.register_at_fork(after_in_child=_make_workers)


def copy_blocked(target: Array, source: Array) -> None:
    """Copy with numpy, transposes in blocks that fit the first-level cache."""
    inner = [k for k in range(target.ndim) if target.shape[k] > 1]
    if not inner:
        np.copyto(target, source)
        return
    column = min(inner, key=lambda k: abs(target.strides[k]))
    row = min(inner, key=lambda k: abs(source.strides[k]))
    if row == column or min(target.shape[row], target.shape[column]) < min(_BLOCK):
        np.copyto(target, source)
        return
    target = np.moveaxis(target, (row, column), (-2, -1))
    source = np.moveaxis(source, (row, column), (-2, -1))
    steps = [
        range(0, n, b) for n, b in zip((target.shape[-2], target.shape[-1]), _BLOCK, strict=True)
    ]
    for index in np.ndindex(target.shape[:-2]):
        to, fro = target[index], source[index]
        for r, c in product(*steps):
            block = (slice(r, r + _BLOCK[0]), slice(c, c + _BLOCK[1]))
            to[block] = fro[block]
