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
from collections.abc import Callable, Iterator, Sequence
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

#: Below this many elements numpy's own copy, some 0.3 ns for each in the caches, is faster than planning.
_SMALL = 16 << 10
#: Compiling the kernels pays from this size on.
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
#: Where source and destination fit the last cache together, every fourth run goes through the caches: of what it
#: takes, the other cores' part is not the memory's.
_KEPT_MASK = 3
#: Groups of lines in a strip of rows that is transposed by way of stages.
_STRIP_GROUPS = 32
#: Least number of items for each thread to share work evenly, and bytes of what a thread takes at a time.
_ITEMS, _CHUNK_BYTES = 16, 128 << 10
#: How many pauses of the processor to wait for other threads' last items before sleeping: some 0.1 ms.
_SPINS = 4000
#: A usual L1 cache: how many lines at the same offset of so many bytes it holds.
_WAYS = 8
_WAY_BYTES = 4 << 10

#: Sides of a block of the numpy fallback, in elements.
_BLOCK = (128, 64)

_DST, _SRC = relayout_kernels.FIELDS.index("dst"), relayout_kernels.FIELDS.index("src")


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
    def of(
        shape: Sequence[int],
        target: Sequence[int],
        source: Sequence[int],
        size: int,
        address: int,
        origin: int,
    ) -> CopyPlan:
        """Normal form of the copy from ``origin`` to ``address``, by strides; no extent is 0."""
        dims: list[Dimension] = []
        for extent, to, fro in zip(shape, target, source, strict=True):
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

    def transpose(self, row: int, stream: bool, parts: int = 1) -> Job:
        """How to do it natively. Raises ``ToolchainError`` where LLVM is not installed.

        Args:
            row: the dimension that is contiguous in the source.
            stream: write past the caches, if lines of the destination can be written whole.
            parts: threads to divide it for.
        """
        outer = [*self.dims[:row], *self.dims[row + 1 : -1]]
        rows, columns = self.dims[row], self.dims[-1]
        run, part = columns.size * self.size, rows.size * self.size
        enough = min(run, part) >= relayout_kernels.LINE
        stream = stream and enough and self._writes_lines(run)
        staged = stream or (enough and self._collides(rows, columns))
        # Lines of the destination should be filled, or those of the source be used up, one after another.
        if run < relayout_kernels.LINE:
            outer.reverse()
        else:
            outer.sort(key=lambda d: abs(d.source))
        count = math.prod(d.size for d in outer)
        strip = self._strip(rows.size, columns.size, count, parts, staged)
        past = self._past_line(columns, outer) if staged else 0
        aligned = math.gcd(self.target, rows.target, *(d.target for d in outer))
        width = relayout_kernels.LINE // self.size
        fields = {
            "items": count * -(-(rows.size + past) // strip[0]) * -(-columns.size // strip[1]),
            "rows": rows.size,
            "cols": columns.size,
            "dst_row": rows.target,
            "src_col": columns.source,
            "strip_rows": strip[0],
            "strip_cols": strip[1],
            "past": past,
            "staged": staged,
            "line": relayout_kernels.LINE - 1 if stream else 0,
            "back": width if stream and aligned % relayout_kernels.LINE else 0,
        }
        return self._job(self.size, fields, outer, parts)

    def copy_runs(self, parts: int = 1, mixed: bool = False) -> Job:
        """How to copy the last dimension, contiguous on both sides, as one run each time, past the caches.

        Args:
            parts: threads to divide it for.
            mixed: write some runs through the caches.
        """
        outer = sorted(self.dims[:-1], key=lambda d: abs(d.source))
        fields = {
            "items": math.prod(d.size for d in outer),
            "cols": self.size * self.dims[-1].size,
            "line": relayout_kernels.LINE - 1,
            "kept": _KEPT_MASK if mixed else -1,
        }
        return self._job(0, fields, outer, parts)

    def _strip(
        self, rows: int, columns: int, outer: int, parts: int, staged: bool
    ) -> tuple[int, int]:
        """Rows and columns of an item: all of them, but for stages and where threads would have too few items."""
        width = relayout_kernels.LINE // self.size
        down, across = -(-rows // (_STRIP_GROUPS * width)) if staged else 1, 1
        wanted = _ITEMS * parts if parts > 1 else 1
        if outer * down < wanted:
            down = max(down, min(-(-wanted // outer), rows // (8 * width)))
        if outer * down < wanted:
            across = max(1, min(-(-wanted // (outer * down)), columns // 256))
        return _even(rows, down, width), _even(columns, across, relayout_kernels.LINE)

    def _past_line(self, columns: Dimension, outer: Sequence[Dimension]) -> int:
        """How many elements into a line the source's rows begin; 0 where that is not the same for all."""
        steps = math.gcd(columns.source, *(d.source for d in outer))
        past = self.source % relayout_kernels.LINE
        return 0 if steps % relayout_kernels.LINE or past % self.size else past // self.size

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

    def _job(
        self, size: int, fields: dict[str, int], outer: Sequence[Dimension], parts: int
    ) -> Job:
        """What the kernel for elements of ``size`` bytes is to do."""
        items, nbytes = fields["items"], self.size * math.prod(d.size for d in self.dims)
        grain = max(1, items * _CHUNK_BYTES // nbytes) if parts > 1 else items
        fields |= {"dst": self.target, "src": self.source, "grain": grain, "outer": len(outer)}
        values = [fields.get(name, 0) for name in relayout_kernels.FIELDS]
        values += [v for d in outer for v in (d.size, d.target, d.source)]
        return Job(relayout_kernels.kernel(size), np.array(values, np.int64), parts)


@dataclass(frozen=True, eq=False)
class Job:
    """A native copy: a plan that up to ``parts`` threads share, as described with the kernels."""

    kernel: relayout_kernels.Kernel
    plan: Array
    parts: int

    def run(self) -> None:
        """Do it, without the GIL. What threads that come late would have done is done by the others."""
        address = self.plan.ctypes.data
        if self.parts == 1:
            self.kernel(address, 0)
            return
        ended = threading.Semaphore(0)

        def help_out() -> None:
            self.kernel(self.plan.ctypes.data, 0)
            ended.release()

        for _ in range(self.parts - 1):
            _workers[0].submit(help_out)
        self.kernel(address, _SPINS)
        while self.field("done") < self.field("items"):
            ended.acquire()

    def moved(self, target: int, source: int) -> Job:
        """The same between places that many bytes further on, which are multiples of a line."""
        plan = self.plan.copy()
        plan[_DST] += target
        plan[_SRC] += source
        return Job(self.kernel, plan, self.parts)

    def field(self, name: str) -> int:
        """What a slot of the plan holds now."""
        return int(self.plan[relayout_kernels.FIELDS.index(name)])


def _even(extent: int, parts: int, unit: int) -> int:
    """Length of at most as many parts, the last of which may be shorter; a multiple of ``unit`` if they are several."""
    length = -(-extent // parts)
    return -(-length // unit) * unit if parts > 1 else extent


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
    if target.size < _SMALL:
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
    """Copy on several threads where that pays, natively what that is good for, the rest with numpy."""
    parts = max(1, min(threads, target.nbytes // _THREAD_BYTES))
    job = native_job(target, source, parts)
    if job is None:
        _in_parts(copy_blocked, parts, target, source)
        return
    job.run()
    if target.dtype.isnative != source.dtype.isnative:
        _in_parts(_swap_bytes, parts, target)


def _swap_bytes(array: Array) -> None:
    array.byteswap(inplace=True)


def native_job(target: Array, source: Array, parts: int = 1) -> Job | None:
    """How to copy the elements' bytes natively; None if numpy does it as well, or where LLVM is not installed."""
    if target.nbytes < _COMPILE_BYTES and not relayout_kernels.is_loaded():
        return None
    swap = target.dtype.isnative != source.dtype.isnative
    to, fro = target.ctypes.data, source.ctypes.data
    line = relayout_kernels.LINE
    strides = target.strides, source.strides
    job = _planned(target.shape, *strides, target.itemsize, to % line, fro % line, parts, swap)
    return job and job.moved(to - to % line, fro - fro % line)


@lru_cache(maxsize=256)
def _planned(
    shape: tuple[int, ...],
    target: tuple[int, ...],
    source: tuple[int, ...],
    size: int,
    to: int,
    fro: int,
    parts: int,
    swap: bool,
) -> Job | None:
    """The native copy between arrays of such strides at the addresses ``to`` and ``fro``."""
    plan = CopyPlan.of(shape, target, source, size, to, fro)
    nbytes = size * math.prod(shape)
    row, stream = plan.row, nbytes >= _stream_bytes()
    by_runs = row is None and stream and not swap and plan.has_long_runs
    if (row is None and not by_runs) or not _native():
        return None
    if row is None:
        return plan.copy_runs(parts, parts > 1 and 2 * nbytes <= cache_sizes().get("L3", 0))
    return plan.transpose(row, stream, parts)


def _in_parts(function: Callable[..., object], parts: int, target: Array, *others: Array) -> None:
    """Call ``function`` with the same part of all arrays, for several parts at once."""
    axes = [k for k, n in enumerate(target.shape) if n >= 4 * parts]
    if parts < 2 or not axes:
        function(target, *others)
        return
    axis = max(axes, key=lambda k: abs(target.strides[k]))
    size = target.shape[axis]
    # Multiples of 16 elements, so that blocks and cache lines stay whole.
    unit = 16 if size >= 64 * parts else 1
    step = _even(size, parts, unit)
    arrays = [np.moveaxis(a, axis, 0) for a in (target, *others)]
    jobs = [[a[k : k + step] for a in arrays] for k in range(0, size, step)]
    ended = threading.Semaphore(0)
    failures: list[BaseException] = []

    def run(*job: Array) -> None:
        try:
            function(*job)
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
