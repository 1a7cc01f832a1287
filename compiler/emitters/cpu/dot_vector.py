# SPDX-License-Identifier: Apache-2.0
"""A few rows against a large matrix: forms bound by reading the right operand once.

``emit_streamed`` serves a right operand contiguous in ``n``: it walks whole stretches of several rows of ``k`` at
a time and adds them to the running sums of a block of columns, so memory is read in long sequential streams.
``emit_dotted`` serves one contiguous in ``k``: several columns at a time, each a dot product held in vector sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters.build import (
    TILE_TURNS,
    Index,
    add,
    at_least,
    div,
    for_loop,
    if_then,
    less,
    minimum,
    mod,
    mul,
    prefetch,
    sub,
)
from gristmill.compiler.emitters.cpu.dot_build import (
    DotKernel,
    Frame,
    Sink,
    Source,
    broadcast,
    lane_masks,
    load_scalar,
    load_vector,
    multiply_add,
    phase_function,
    sources,
    store_scalar,
    store_vector,
    typed_view,
    zero,
)
from gristmill.compiler.emitters.cpu.dot_gemm import multiply_tile
from gristmill.compiler.emitters.cpu.dot_pack import pack_rows
from gristmill.compiler.emitters.kernel import Phase

#: Rows up to which a step walks so many rows of the right operand that a prefetcher hides where each begins.
_WALKED_ROWS = 4

#: Of a register tile of streamed sums: rows and vectors at most, 16 registers having to hold a row of the right operand
#: and a factor besides; and the steps of ``k`` that it is kept for.
_TILE_ROWS, _TILE_SUMS, _TILE_DEPTH = 4, 12, 32

#: Bytes of the right operand one task reads at least, so that a task is worth starting.
_TASK_BYTES = 128 * 1024


@dataclass(frozen=True)
class _Columns:
    """One task's columns: ``block`` of them, fewer in the last task."""

    kernel: DotKernel
    block: int

    @property
    def count(self) -> int:
        """Tasks of one batch."""
        return -(-self.kernel.problem.n // self.block)

    @property
    def pitch(self) -> int:
        """From one row of sums to the next: with a power of two, rows would meet in few sets of the cache."""
        return self.block + self.kernel.lanes

    @property
    def size(self) -> int:
        """Elements of the sums of one task: ``m`` rows of ``pitch``."""
        return self.kernel.problem.m * self.pitch

    @property
    def scratch_bytes(self) -> int:
        """Scratch for the sums of one task."""
        return self.size * self.kernel.problem.accumulate.nbytes

    def finish(self, sink: Sink, sums: ir.Value, batch: Index, n0: Index) -> None:
        """Pass the task's sums through the epilogue."""
        problem = self.kernel.problem

        def rows(width: int) -> None:
            for m in range(problem.m):

                def total(lane: ir.Value, m: int = m) -> ir.Value:
                    return load_scalar(sums, add(lane, m * self.pitch))

                sink.put_row(batch, m, n0, width, total)

        edge = problem.n % self.block
        if not edge:
            rows(self.block)
        elif self.count == 1:
            rows(edge)
        else:
            last = (self.count - 1) * self.block
            with if_then(less(n0, last)):
                rows(self.block)
            with if_then(at_least(n0, last)):
                rows(edge)


def _block(kernel: DotKernel, quantum: int, limit: int) -> int:
    """Columns for a task: at least ``_TASK_BYTES`` of the right operand, a multiple of ``quantum``."""
    problem = kernel.problem
    column_bytes = problem.k * problem.rhs.array.element.nbytes
    columns = min(limit, max(1, _TASK_BYTES // column_bytes), problem.n)
    return -(-columns // quantum) * quantum


def emit_streamed(
    module: ir.Module, kernel: DotKernel, threads: int, *, in_tiles: bool = False
) -> tuple[list[Phase], int, int]:
    """Emit the form for a right operand contiguous in ``n``; returns phases, workspace and scratch bytes.

    ``threads`` is the number of threads to have tasks for where there are columns enough. A step adds a few rows of the
    right operand to one sum after the other, or ``in_tiles`` more of them to a register tile of sums.
    """
    problem = kernel.problem
    # Long stretches of each row keep the prefetcher going; the sums of a block stay in the first-level cache.
    share = -(-problem.n // (kernel.lanes * threads)) * kernel.lanes
    block = max(_block(kernel, kernel.lanes, 2048), min(2048, share))
    columns = _Columns(kernel, block)
    name = f"{kernel.name}_compute"
    scratch = columns.scratch_bytes
    with phase_function(module, kernel, name, 0, scratch) as frame:
        lhs, rhs = sources(kernel, frame)
        sink = Sink.of(kernel, frame)
        sums = typed_view(frame.scratch, 0, columns.size, problem.accumulate)

        def task(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            batch, n0 = div(t, columns.count), mul(mod(t, columns.count), block)
            _clear(columns, sums)
            stream = _stream_tiles if in_tiles else _stream
            stream(columns, lhs, rhs, sums, batch, n0)
            columns.finish(sink, sums, batch, n0)
            return []

        for_loop(frame.begin, frame.end, task)
    return [Phase(name, problem.batch * columns.count, True)], 0, scratch


def _clear(columns: _Columns, sums: ir.Value) -> None:
    element, lanes = columns.kernel.problem.accumulate, columns.kernel.lanes

    def clear(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        store_vector(zero(element, lanes), sums, i)
        return []

    for_loop(0, columns.size, clear, step=lanes)


def _stream(
    columns: _Columns, lhs: Source, rhs: Source, sums: ir.Value, batch: Index, n0: Index
) -> None:
    kernel, block, pitch = columns.kernel, columns.block, columns.pitch
    problem, lanes = kernel.problem, kernel.lanes
    buffer = rhs.buffer
    assert buffer is not None
    # The factors of a step stay in registers, beside the values of the right operand and a sum.
    many = problem.m > _WALKED_ROWS
    factors_kept = 24 if many and kernel.vector_bytes >= 64 else 16
    depth = max(2, min(8, factors_kept // problem.m))
    width = minimum(sub(problem.n, n0), block) if problem.n % block else block
    ragged = problem.n % lanes != 0

    def rows(k: Index, count: int) -> None:
        factors = [
            [broadcast(lhs.scalar(batch, m, add(k, u)), lanes) for u in range(count)]
            for m in range(problem.m)
        ]
        starts = [rhs.offset(batch, n0, add(k, u)) for u in range(count)]
        following = [rhs.offset(batch, n0, add(k, count + u)) for u in range(count if many else 0)]

        def column(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            mask = lane_masks(sub(width, n), lanes, 1)[0] if ragged else None
            values = [rhs.vector(add(start, n), lanes, mask) for start in starts]
            for start in following:  # a prefetcher begins anew with each row
                prefetch(buffer, add(start, n), is_near=False)
            for m in range(problem.m):
                place = add(n, m * pitch)
                total = load_vector(sums, place, problem.accumulate, lanes)
                for factor, value in zip(factors[m], values, strict=True):
                    total = multiply_add(factor, value, total, problem.accumulate)
                store_vector(total, sums, place)
            return []

        for_loop(0, width, column, step=lanes, unroll=TILE_TURNS)

    whole = problem.k - problem.k % depth

    def group(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        rows(k, depth)
        return []

    if whole:
        for_loop(0, whole, group, step=depth)
    if whole < problem.k:
        rows(whole, problem.k - whole)


def _stream_tiles(
    columns: _Columns, lhs: Source, rhs: Source, sums: ir.Value, batch: Index, n0: Index
) -> None:
    """As :func:`_stream`, with register tiles of sums over ``_TILE_DEPTH`` steps of ``k``.

    A stretch of those rows of the right operand comes into the first-level cache with the first tile over it; the tiles
    of the other rows of sums find it there, even where its rows lie so that they meet in few sets.
    """
    kernel, block, pitch = columns.kernel, columns.block, columns.pitch
    problem, lanes = kernel.problem, kernel.lanes
    height = -(-problem.m // -(-problem.m // _TILE_ROWS))
    vectors = _TILE_SUMS // height
    width = minimum(sub(problem.n, n0), block) if problem.n % block else block
    ragged = problem.n % lanes != 0

    def tile(k: Index, count: Index, n: Index, across: int, mask: ir.Value | None) -> None:
        for first in range(0, problem.m, height):
            rows = range(first, min(first + height, problem.m))
            places = [add(n, m * pitch + j * lanes) for m in rows for j in range(across)]
            totals = multiply_tile(
                (len(rows), across, lanes),
                count,
                [load_vector(sums, place, problem.accumulate, lanes) for place in places],
                lambda u, i, rows=rows: lhs.scalar(batch, rows[i], add(k, u)),
                lambda u, j: rhs.vector(
                    add(rhs.offset(batch, n0, add(k, u)), add(n, j * lanes)), lanes, mask
                ),
                lambda a, b, total: multiply_add(a, b, total, problem.accumulate),
            )
            for place, total in zip(places, totals, strict=True):
                store_vector(total, sums, place)

    def group(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        count: Index = _TILE_DEPTH
        if problem.k % _TILE_DEPTH:
            count = minimum(sub(problem.k, k), _TILE_DEPTH)
        end = sub(width, mod(width, vectors * lanes))

        def whole(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            tile(k, count, n, vectors, None)
            return []

        def rest(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            tile(k, count, n, 1, lane_masks(sub(width, n), lanes, 1)[0] if ragged else None)
            return []

        for_loop(0, end, whole, step=vectors * lanes)
        for_loop(end, width, rest, step=lanes)
        return []

    for_loop(0, problem.k, group, step=_TILE_DEPTH)


def emit_dotted(module: ir.Module, kernel: DotKernel) -> tuple[list[Phase], int, int]:
    """Emit the form for a right operand contiguous in ``k``; returns phases, workspace and scratch bytes."""
    problem = kernel.problem
    tile = max(2, min(8, 16 // problem.m))
    columns = _Columns(kernel, min(_block(kernel, tile, 1024), -(-problem.n // tile) * tile))
    left = problem.lhs
    plain = (
        kernel.lhs_prologue is None
        and left.contract.stride in (0, 1)
        and left.array.element == problem.accumulate
    )
    workspace = 0 if plain else problem.batch * problem.m * problem.k * problem.accumulate.nbytes
    scratch = columns.scratch_bytes
    phases: list[Phase] = []
    if not plain:
        phases.append(_emit_rows(module, kernel, workspace, scratch))
    name = f"{kernel.name}_compute"
    with phase_function(module, kernel, name, workspace, scratch) as frame:
        form = _Dotted(kernel, frame, tile, plain)
        sink = Sink.of(kernel, frame)
        sums = typed_view(frame.scratch, 0, columns.size, problem.accumulate)

        def task(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            batch, n0 = div(t, columns.count), mul(mod(t, columns.count), columns.block)
            form.emit(columns, sums, batch, n0)
            columns.finish(sink, sums, batch, n0)
            return []

        for_loop(frame.begin, frame.end, task)
    phases.append(Phase(name, problem.batch * columns.count, True))
    return phases, workspace, scratch


def _emit_rows(module: ir.Module, kernel: DotKernel, workspace: int, scratch: int) -> Phase:
    """The phase that packs the left operand's few rows to the workspace, ``[batch][m][k]``."""
    problem = kernel.problem
    name = f"{kernel.name}_pack"
    with phase_function(module, kernel, name, workspace, scratch) as frame:
        lhs, _ = sources(kernel, frame)
        size = problem.batch * problem.m * problem.k
        target = typed_view(frame.workspace, 0, size, problem.accumulate)

        def task(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            pack_rows(
                lhs,
                target,
                mul(t, problem.m * problem.k),
                batch=t,
                m0=0,
                rows=problem.m,
                k=problem.k,
                row_stride=problem.k,
                k_stride=1,
            )
            return []

        for_loop(frame.begin, frame.end, task)
    return Phase(name, problem.batch)


class _Dotted:
    """Emits dot products of ``tile`` columns with every row at a time."""

    def __init__(self, kernel: DotKernel, frame: Frame, tile: int, plain: bool):
        self.kernel, self.problem, self.tile, self.plain = kernel, kernel.problem, tile, plain
        self.lhs, self.rhs = sources(kernel, frame)
        problem = self.problem
        if plain:
            assert self.lhs.buffer is not None
            self.rows = self.lhs.buffer
        else:
            size = problem.batch * problem.m * problem.k
            self.rows = typed_view(frame.workspace, 0, size, problem.accumulate)

    def emit(self, columns: _Columns, sums: ir.Value, batch: Index, n0: Index) -> None:
        """Sums of columns ``n0 …`` to ``sums``."""
        problem, tile, block, pitch = self.problem, self.tile, columns.block, columns.pitch
        limit = minimum(sub(problem.n, n0), block) if problem.n % block else block
        edge = problem.n % tile  # blocks are multiples of the tile, so only the last has one

        def group(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._columns(sums, pitch, batch, n0, n, tile)
            return []

        whole = sub(limit, mod(limit, tile)) if edge else limit
        for_loop(0, whole, group, step=tile)
        if edge:
            with if_then(less(whole, limit)):
                self._columns(sums, pitch, batch, n0, whole, edge)

    def _columns(
        self, sums: ir.Value, pitch: int, batch: Index, n0: Index, n: Index, count: int
    ) -> None:
        problem, lanes, element = self.problem, self.kernel.lanes, self.problem.accumulate
        starts = [self.rhs.offset(batch, add(n0, add(n, j)), 0) for j in range(count)]
        row_starts = [self._row(batch, m) for m in range(problem.m)]

        def step(k: Index, totals: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
            left = [load_vector(self.rows, add(s, k), element, lanes, mask) for s in row_starts]
            result: list[ir.Value] = []
            for j, start in enumerate(starts):
                value = self.rhs.vector(add(start, k), lanes, mask)
                result.extend(
                    multiply_add(left[m], value, totals[j * problem.m + m], element)
                    for m in range(problem.m)
                )
            return result

        totals = [zero(element, lanes)] * (count * problem.m)
        whole = problem.k - problem.k % lanes
        if whole:
            totals = for_loop(
                0, whole, lambda k, t: step(k, t, None), totals, step=lanes, unroll=TILE_TURNS
            )
        if whole < problem.k:
            mask = lane_masks(problem.k - whole, lanes, 1)[0]
            totals = step(whole, totals, mask)
        for j in range(count):
            for m in range(problem.m):
                total = _horizontal(totals[j * problem.m + m], lanes, element.is_float)
                store_scalar(total, sums, add(add(n, j), m * pitch))

    def _row(self, batch: Index, m: int) -> Index:
        if self.plain:
            return self.lhs.offset(batch, m, 0)
        return add(mul(batch, self.problem.m * self.problem.k), m * self.problem.k)


def _horizontal(value: ir.Value, lanes: int, is_float: bool) -> ir.Value:
    """The sum of a vector's lanes, by halves: a fixed order that needs few steps."""
    while lanes > 1:
        lanes //= 2
        low = vector.ShuffleOp(value, value, list(range(lanes))).result
        high = vector.ShuffleOp(value, value, list(range(lanes, 2 * lanes))).result
        value = (arith.AddFOp if is_float else arith.AddIOp)(low, high).result
    return vector.ExtractOp(value, [], [0]).result
