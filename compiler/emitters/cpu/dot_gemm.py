# SPDX-License-Identifier: Apache-2.0
"""The blocked matrix product: register tiles of ``MR`` rows by ``NV`` vectors over packed or plain operands.

One task computes ``block_rows`` rows by one panel of ``NR = NV * lanes`` columns of one batch. It walks ``k`` in chunks
small enough that the panel's chunk stays in the first-level cache while every row group passes over it, and keeps
the sums of its tile in the result itself or, where an epilogue or a narrower type follows, in scratch. Where
operands need packing to be shared by several tasks, a first phase packs them to the workspace; a right-hand panel that
one task alone uses is packed to that thread's scratch just before its chunk is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mlir import ir

from gristmill.compiler.emitters.build import (
    LINE_BYTES,
    TILE_TURNS,
    Index,
    add,
    at_least,
    div,
    equal,
    for_loop,
    if_else,
    if_then,
    less,
    maximum,
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
    store_vector,
    typed_view,
    zero,
)
from gristmill.compiler.emitters.cpu.dot_pack import pack_columns, pack_rows
from gristmill.compiler.emitters.cpu.dot_pairs import multiply_add_pairs, step_sources
from gristmill.compiler.emitters.kernel import Phase
from gristmill.runtime.types import ElementType


@dataclass(frozen=True)
class Tiling:
    """How a product is cut.

    Attributes:
        mr: rows of a register tile.
        vectors: vectors in a register tile's row.
        block_rows: rows of one task; a multiple of ``mr`` unless it divides the number of rows.
        k_chunk: steps of ``k`` of the right operand's panel used at a time, a multiple of the lanes.
        lhs: ``plain`` reads the left operand where it lies; ``rows`` packs it row-major with a padded row
            length; ``columns`` packs it as ``[k][mr]`` panels.
        rhs: ``plain`` reads the right operand where it lies; ``shared`` packs all of it in a first phase; ``private``
            packs a task's panel in the task.
    """

    mr: int
    vectors: int
    block_rows: int
    k_chunk: int
    lhs: Literal["plain", "rows", "columns"]
    rhs: Literal["plain", "shared", "private"]


@dataclass(frozen=True)
class Geometry:
    """Sizes that follow from a problem and its tiling; all in elements unless said otherwise."""

    kernel: DotKernel
    tiling: Tiling

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.tiling.vectors * self.kernel.lanes

    @property
    def panels(self) -> int:
        """Column panels of one product."""
        return -(-self.kernel.problem.n // self.width)

    @property
    def groups(self) -> int:
        """Row groups of ``mr`` in one block, the last perhaps partial."""
        return -(-self.tiling.block_rows // self.tiling.mr)

    @property
    def blocks(self) -> int:
        """Row blocks (tasks along ``m``) of one product."""
        return -(-self.kernel.problem.m // self.tiling.block_rows)

    @property
    def edges(self) -> tuple[int, int]:
        """Rows left over after whole register tiles in a block, and in the last block."""
        rows = self.tiling.block_rows
        last = self.kernel.problem.m - (self.blocks - 1) * rows
        mr = self.tiling.mr
        return (rows % mr if self.blocks > 1 else last % mr), last % mr

    @property
    def tasks(self) -> int:
        """Tasks of the computing phase."""
        return self.kernel.problem.batch * self.blocks * self.panels

    @property
    def padded_k(self) -> int:
        """Rows of a packed panel."""
        lanes = self.kernel.lanes
        return -(-self.kernel.steps // lanes) * lanes

    @property
    def lhs_row_length(self) -> int:
        """Row length of a left operand packed row-major: never a multiple of a page."""
        nbytes = self.kernel.problem.accumulate.nbytes
        line = max(1, 64 // nbytes)
        length = -(-self.kernel.steps // line) * line
        return length + line if (length * nbytes) % 512 == 0 else length

    @property
    def lhs_strides(self) -> tuple[int, int]:
        """Strides of the left operand's rows (within a row group) and of ``k`` as the micro-kernel sees them."""
        if self.tiling.lhs == "rows":
            return self.lhs_row_length, 1
        if self.tiling.lhs == "columns":
            return 1, self.tiling.mr
        problem = self.kernel.problem
        row, k = problem.lhs.free.stride, problem.lhs.contract.stride
        assert row is not None
        assert k is not None
        return row, k

    def lhs_group(self, batch: Index, block: Index, group: Index) -> Index:
        """Where a row group of a block starts in the packed left operand."""
        problem, tiling = self.kernel.problem, self.tiling
        if tiling.lhs == "rows":
            row = add(mul(block, tiling.block_rows), mul(group, tiling.mr))
            return mul(add(mul(batch, problem.m), row), self.lhs_row_length)
        position = add(mul(add(mul(batch, self.blocks), block), self.groups), group)
        return mul(position, tiling.mr * self.kernel.steps)

    @property
    def lhs_elements(self) -> int:
        """Elements of the packed left operand."""
        if self.tiling.lhs == "plain":
            return 0
        problem = self.kernel.problem
        if self.tiling.lhs == "rows":
            return problem.batch * problem.m * self.lhs_row_length
        return problem.batch * self.blocks * self.groups * self.tiling.mr * self.kernel.steps

    @property
    def rhs_elements(self) -> int:
        """Elements of the packed right operand in the workspace."""
        if self.tiling.rhs != "shared":
            return 0
        return self.kernel.problem.batch * self.panels * self.padded_k * self.width

    @property
    def lhs_bytes(self) -> int:
        """Workspace bytes of the packed left operand; the right one follows."""
        return _round(self.lhs_elements * self.kernel.problem.accumulate.nbytes)

    @property
    def workspace_bytes(self) -> int:
        """Workspace of the kernel."""
        return self.lhs_bytes + _round(self.rhs_elements * self.kernel.problem.accumulate.nbytes)

    @property
    def chunk_elements(self) -> int:
        """Elements of the privately packed chunk, at the start of scratch."""
        if self.tiling.rhs != "private":
            return 0
        return min(self.tiling.k_chunk, self.padded_k) * self.width

    @property
    def sum_elements(self) -> int:
        """Elements of the tile of sums in scratch, after the chunk."""
        if self.kernel.stores_sums:
            return 0
        return self.tiling.block_rows * self.width

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the private chunk."""
        return _round(self.chunk_elements * self.kernel.problem.accumulate.nbytes)

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one thread."""
        return self.chunk_bytes + self.sum_elements * self.kernel.problem.accumulate.nbytes


def multiply_tile(
    shape: tuple[int, int, int],
    count: Index,
    sums: list[ir.Value],
    lhs_at: Callable[[Index, int], ir.Value],
    rhs_at: Callable[[Index, int], ir.Value],
    combine: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    *,
    unroll: int = TILE_TURNS,
) -> list[ir.Value]:
    """The loop over ``k`` of a register tile: one vector load a vector, one broadcast a row, one multiply-add each.

    Args:
        shape: rows, vectors in a row and lanes of a vector.
        count: steps of ``k``.
        sums: the sums to add to, row by row.
        lhs_at: the left operand at a step, in a row.
        rhs_at: the right operand's vector at a step, by its number.
        combine: ``lhs * rhs + sum`` on vectors.
        unroll: turns that LLVM takes at a time.
    """
    rows, vectors, lanes = shape

    def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        columns = [rhs_at(k, j) for j in range(vectors)]
        result: list[ir.Value] = []
        for i in range(rows):
            value = broadcast(lhs_at(k, i), lanes)
            result += [combine(value, columns[j], sums[i * vectors + j]) for j in range(vectors)]
        return result

    return for_loop(0, count, step, sums, unroll=unroll)


def _ask_for(
    buffer: ir.Value, start: Index, element: ElementType, nbytes: int, *, is_write: bool
) -> None:
    for line in range(0, nbytes, LINE_BYTES):
        prefetch(buffer, add(start, line // element.nbytes), is_write=is_write)


def _round(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def emit_gemm(module: ir.Module, kernel: DotKernel, tiling: Tiling) -> tuple[list[Phase], int, int]:
    """Emit the phases into ``module``; returns them with the workspace and scratch bytes."""
    geometry = Geometry(kernel, tiling)
    phases: list[Phase] = []
    if geometry.workspace_bytes:
        phases.append(_emit_packing(module, geometry))
    name = f"{kernel.name}_compute"
    phases.append(Phase(name, geometry.tasks, True))
    sizes = geometry.workspace_bytes, geometry.scratch_bytes
    with phase_function(module, kernel, name, *sizes) as frame:
        task = _Task(geometry, frame)

        def body(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            task.emit(t)
            return []

        for_loop(frame.begin, frame.end, body)
    return phases, *sizes


def _emit_packing(module: ir.Module, geometry: Geometry) -> Phase:
    """The packing phase: tasks for the left operand's row groups, then for the right operand's panels."""
    kernel, tiling, problem = geometry.kernel, geometry.tiling, geometry.kernel.problem
    # A task of either kind packs about the same number of elements.
    per_task = max(1, geometry.width // tiling.mr)
    groups = geometry.blocks * geometry.groups
    units = -(-groups // per_task)
    lhs_tasks = problem.batch * units if tiling.lhs != "plain" else 0
    rhs_tasks = problem.batch * geometry.panels if tiling.rhs == "shared" else 0
    name = f"{kernel.name}_pack"
    sizes = geometry.workspace_bytes, geometry.scratch_bytes
    with phase_function(module, kernel, name, *sizes) as frame:
        lhs, rhs = step_sources(kernel, frame)
        if lhs_tasks:
            target = typed_view(frame.workspace, 0, geometry.lhs_elements, problem.accumulate)

            def left(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                unit = mod(t, units)
                _pack_groups(geometry, lhs, target, div(t, units), mul(unit, per_task), per_task)
                return []

            for_loop(frame.begin, minimum(frame.end, lhs_tasks), left)
        if rhs_tasks:
            target_rhs = typed_view(
                frame.workspace, geometry.lhs_bytes, geometry.rhs_elements, problem.accumulate
            )

            def right(t: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                task = sub(t, lhs_tasks)
                pack_columns(
                    rhs,
                    target_rhs,
                    mul(task, geometry.padded_k * geometry.width),
                    batch=div(task, geometry.panels),
                    n0=mul(mod(task, geometry.panels), geometry.width),
                    n=problem.n,
                    k0=0,
                    count=kernel.steps,
                    k=problem.k,
                    lanes=kernel.lanes,
                    vectors=tiling.vectors,
                )
                return []

            for_loop(maximum(frame.begin, lhs_tasks), frame.end, right)
    return Phase(name, lhs_tasks + rhs_tasks, True)


def _pack_groups(
    geometry: Geometry, lhs: Source, target: ir.Value, batch: Index, first: Index, count: int
) -> None:
    """Pack ``count`` row groups, counted over all blocks of one batch of the left operand."""
    problem, tiling = geometry.kernel.problem, geometry.tiling
    row_stride, k_stride = geometry.lhs_strides

    def group(g: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        block, within = div(g, geometry.groups), mod(g, geometry.groups)
        start, inside = mul(block, tiling.block_rows), mul(within, tiling.mr)
        m0 = add(start, inside)
        limit = minimum(add(start, tiling.block_rows), problem.m)
        pack_rows(
            lhs,
            target,
            geometry.lhs_group(batch, block, within),
            batch=batch,
            m0=m0,
            rows=minimum(sub(limit, m0), tiling.mr),
            k=geometry.kernel.steps,
            row_stride=row_stride,
            k_stride=k_stride,
        )
        return []

    for_loop(first, minimum(add(first, count), geometry.blocks * geometry.groups), group)


class _Task:
    """Emits the body of one computing task: the buffers it reads are set up once for all tasks."""

    def __init__(self, geometry: Geometry, frame: Frame):
        self.geometry = geometry
        self.frame = frame
        kernel, self.tiling = geometry.kernel, geometry.tiling
        self.kernel, self.problem = kernel, kernel.problem
        self.element: ElementType = self.problem.accumulate
        self.lanes = kernel.lanes
        self.lhs, self.rhs = step_sources(kernel, frame)
        self.combine = multiply_add_pairs if kernel.paired else multiply_add
        self.sink = Sink.of(kernel, frame)
        if self.tiling.lhs != "plain":
            self.packed_lhs = typed_view(frame.workspace, 0, geometry.lhs_elements, self.element)
        if self.tiling.rhs == "shared":
            self.packed_rhs = typed_view(
                frame.workspace, geometry.lhs_bytes, geometry.rhs_elements, self.element
            )
        elif self.tiling.rhs == "private":
            self.packed_rhs = typed_view(frame.scratch, 0, geometry.chunk_elements, self.element)
        if kernel.stores_sums:
            self.sums, self.sum_stride = self.sink.flat_results[0], self.problem.n
        else:
            self.sums = typed_view(
                frame.scratch, geometry.chunk_bytes, geometry.sum_elements, self.element
            )
            self.sum_stride = geometry.width

    def emit(self, task: ir.Value) -> None:
        """Emit the task numbered ``task``: batch, row block and panel, the panel fastest."""
        g, problem = self.geometry, self.problem
        panel = mod(task, g.panels)
        rest = div(task, g.panels)
        self.block = block = mod(rest, g.blocks)
        self.batch = div(rest, g.blocks)
        self.n0 = mul(panel, g.width)
        self.m0 = mul(block, self.tiling.block_rows)
        self.m1 = minimum(add(self.m0, self.tiling.block_rows), problem.m)
        self.edge = problem.n % g.width
        self.masks = (
            lane_masks(sub(problem.n, self.n0), self.lanes, self.tiling.vectors)
            if self.edge and (self.kernel.stores_sums or self.tiling.rhs == "plain")
            else None
        )
        self.panel_start = mul(add(mul(self.batch, g.panels), panel), g.padded_k * g.width)

        chunk = self.tiling.k_chunk
        steps = self.kernel.steps
        if steps <= chunk:
            self._chunk(0, steps)
        else:

            def chunks(k0: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                whole = steps % chunk == 0
                self._chunk(k0, chunk if whole else minimum(sub(steps, k0), chunk))
                return []

            for_loop(0, steps, chunks, step=chunk)
        if not self.kernel.stores_sums:
            self._finish(panel)

    def _chunk(self, k0: Index, count: Index) -> None:
        """Add rows ``k0 … k0 + count`` of the panel to every row group of the block."""
        problem, mr = self.problem, self.tiling.mr
        if self.tiling.rhs == "private":
            pack_columns(
                self.rhs,
                self.packed_rhs,
                0,
                batch=self.batch,
                n0=self.n0,
                n=problem.n,
                k0=k0,
                count=count,
                k=problem.k,
                lanes=self.lanes,
                vectors=self.tiling.vectors,
            )

        def tile(m: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._tile(m, mr, k0, count)
            return []

        edge, last_edge = self.geometry.edges
        whole = sub(self.m1, mod(sub(self.m1, self.m0), mr)) if edge or last_edge else self.m1
        for_loop(self.m0, whole, tile, step=mr)
        last = equal(self.m1, problem.m)
        if edge and edge == last_edge:
            self._tile(whole, edge, k0, count)
        elif edge or last_edge:
            assert edge == 0
            with if_then(last):
                self._tile(whole, last_edge, k0, count)

    def _tile(self, m: Index, rows: int, k0: Index, count: Index) -> None:
        """One register tile: ``rows`` rows from ``m``, a multiple of ``mr``, over ``count`` steps of ``k``."""
        vectors, element = self.tiling.vectors, self.element
        places = [
            [add(self._sum_position(m, i), j * self.lanes) for j in range(vectors)]
            for i in range(rows)
        ]
        kind = ir.VectorType.get([self.lanes], zero(element).type)

        kinds = [kind] * (rows * vectors)

        def fresh() -> list[ir.Value]:
            return [zero(element, self.lanes)] * (rows * vectors)

        def load(masks: list[ir.Value] | None) -> list[ir.Value]:
            return [
                load_vector(self.sums, p, element, self.lanes, masks[j] if masks else None)
                for row in places
                for j, p in enumerate(row)
            ]

        def earlier() -> list[ir.Value]:
            return self._at_edge(kinds, load)

        start = fresh() if k0 == 0 else if_else(equal(k0, 0), kinds, fresh, earlier)
        self._ask_ahead(m, rows, k0)
        totals = self._multiply(m, rows, k0, count, start)

        def store(masks: list[ir.Value] | None) -> list[ir.Value]:
            for i, row in enumerate(places):
                for j, place in enumerate(row):
                    store_vector(
                        totals[i * vectors + j], self.sums, place, masks[j] if masks else None
                    )
            return []

        self._at_edge([], store)

    def _ask_ahead(self, m: Index, rows: int, k0: Index) -> None:
        """Ask for where the next tile's rows of the left operand and its sums begin.

        A prefetcher begins anew with each row, and the sums were last touched a chunk ago.
        """
        lhs, next_m = self.lhs, add(m, rows)
        for i in range(rows):
            if self.tiling.lhs == "plain" and lhs.buffer is not None:
                start, array = lhs.offset(self.batch, add(next_m, i), k0), lhs.operand.array
                _ask_for(lhs.buffer, start, array.element, 2 * LINE_BYTES, is_write=False)
            if self.kernel.stores_sums:
                place, nbytes = self._sum_position(next_m, i), self.element.nbytes
                width = self.geometry.width * nbytes
                _ask_for(self.sums, place, self.element, width, is_write=True)

    def _at_edge(
        self, kinds: Sequence[ir.Type], access: Callable[[list[ir.Value] | None], list[ir.Value]]
    ) -> list[ir.Value]:
        """What ``access`` gives with the masks of the last panel, or without masks in any other one.

        A masked store takes seven times as long as a plain one on Zen 3.
        """
        if self.masks is None or not self.kernel.stores_sums:
            return access(None)
        if self.geometry.panels == 1:
            return access(self.masks)
        whole = less(self.n0, self.problem.n - self.edge)
        return if_else(whole, kinds, lambda: access(None), lambda: access(self.masks))

    def _sum_position(self, m: Index, i: int) -> Index:
        row = add(m, i)
        if self.kernel.stores_sums:
            return self.sink.position(self.batch, row, self.n0)
        return mul(sub(row, self.m0), self.sum_stride)

    def _multiply(
        self, m: Index, rows: int, k0: Index, count: Index, start: list[ir.Value]
    ) -> list[ir.Value]:
        """Add ``count`` steps of ``k`` to the sums of a tile."""
        # LLVM loads the factors of two unrolled steps first: one for every multiply-add, or pairs, spill registers.
        spills = self.kernel.paired or (self.tiling.vectors == 1 and self.kernel.vector_bytes < 64)
        return multiply_tile(
            (rows, self.tiling.vectors, self.lanes),
            count,
            start,
            self._lhs_address(m, k0),
            self._rhs_address(k0),
            lambda lhs, rhs, total: self.combine(lhs, rhs, total, self.element),
            unroll=1 if spills else TILE_TURNS,
        )

    def _lhs_address(self, m: Index, k0: Index):
        row, step = self.geometry.lhs_strides
        if self.tiling.lhs == "plain":
            start = self.lhs.offset(self.batch, m, k0)
            buffer = self.lhs.buffer
        else:
            group = div(sub(m, self.m0), self.tiling.mr)
            start = self.geometry.lhs_group(self.batch, self.block, group)
            start = add(start, mul(k0, step))
            buffer = self.packed_lhs
        assert buffer is not None

        def at(k: Index, i: int) -> ir.Value:
            position = add(add(start, mul(k, step)), i * row)
            if self.tiling.lhs == "plain":
                return self.lhs.widened(position)
            return load_scalar(buffer, position)

        return at

    def _rhs_address(self, k0: Index):
        width, lanes = self.geometry.width, self.lanes
        if self.tiling.rhs == "plain":
            start = self.rhs.offset(self.batch, self.n0, k0)
            step = self.problem.rhs.contract.stride
            assert step is not None

            def plain(k: Index, j: int) -> ir.Value:
                mask = self.masks[j] if self.masks else None
                return self.rhs.vector(add(add(start, mul(k, step)), j * lanes), lanes, mask)

            return plain
        start = 0 if self.tiling.rhs == "private" else add(self.panel_start, mul(k0, width))

        def packed(k: Index, j: int) -> ir.Value:
            place = add(add(start, mul(k, width)), j * lanes)
            return load_vector(self.packed_rhs, place, self.element, lanes)

        return packed

    def _finish(self, panel: Index) -> None:
        """Pass the tile of sums through the epilogue."""
        width = self.geometry.width
        if not self.edge:
            self._finish_rows(width)
        elif self.geometry.panels == 1:
            self._finish_rows(self.edge)
        else:
            with if_then(less(panel, self.geometry.panels - 1)):
                self._finish_rows(width)
            with if_then(at_least(panel, self.geometry.panels - 1)):
                self._finish_rows(self.edge)

    def _finish_rows(self, columns: int) -> None:
        def row(m: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            start = mul(sub(m, self.m0), self.sum_stride)

            def total(lane: ir.Value) -> ir.Value:
                return load_scalar(self.sums, add(start, lane))

            self.sink.put_row(self.batch, m, self.n0, columns, total)
            return []

        for_loop(self.m0, self.m1, row)
