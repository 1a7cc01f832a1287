# SPDX-License-Identifier: Apache-2.0
"""The attention emitter: two matrix products and the rows between them, a block of rows at a time.

The scores of one block of rows, over all keys, stay in scratch that the second-level cache holds: the first product
writes them there, the row computation turns them into weights where they lie, and the second product reads those. So
memory never holds the scores. A first phase packs the right operands of both products into panels, which the blocks
share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index, add, div, for_loop, minimum, mod, mul, sub
from gristmill.compiler.emitters.cpu.attention_problem import Attention, attention_of, rows_of
from gristmill.compiler.emitters.cpu.dot_build import (
    Source,
    load_scalar,
    load_vector,
    multiply_add,
    store_vector,
    zero,
)
from gristmill.compiler.emitters.cpu.dot_fusion import matching_index
from gristmill.compiler.emitters.cpu.dot_gemm import multiply_tile
from gristmill.compiler.emitters.cpu.dot_pack import pack_columns
from gristmill.compiler.emitters.cpu.dot_plan import register_tile
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem, Operand
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.row import RowEmitter
from gristmill.compiler.emitters.elemental import scalar_source
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import Target
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

_At = Callable[[Index, int], ir.Value]


@dataclass(frozen=True)
class Panels:
    """How one product of the pair is cut; sizes in elements unless said otherwise.

    Attributes:
        problem: the product.
        mr: rows of a register tile.
        vectors: vectors in a register tile's row.
        lanes: elements of a vector.
        k_chunk: steps of ``k`` used at a time, a multiple of the lanes.
    """

    problem: DotProblem
    mr: int
    vectors: int
    lanes: int
    k_chunk: int

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        """Panels of one right operand."""
        return -(-self.problem.n // self.width)

    @property
    def padded_k(self) -> int:
        """Steps of a packed panel."""
        return -(-self.problem.k // self.lanes) * self.lanes

    @property
    def panel(self) -> int:
        """Elements of a packed panel."""
        return self.padded_k * self.width

    @property
    def size(self) -> int:
        """Elements of all packed panels."""
        return self.problem.batch * self.count * self.panel

    @property
    def row_length(self) -> int:
        """Length of a row of sums: whole panels, and rows do not collide in one cache set."""
        length = self.count * self.width
        return length + self.lanes if (length * 4) % 512 == 0 else length


def _panels(problem: DotProblem, rows: int, target: Target) -> Panels:
    lanes = target.lanes(4)
    registers = target.vector_registers
    tallest, vectors = register_tile(problem, lanes, registers)
    mr = -(-rows // -(-rows // tallest))
    chunks = -(-problem.k * vectors * lanes * 4 // (target.l2_bytes // 8))
    return Panels(problem, mr, vectors, lanes, -(-problem.k // (chunks * lanes)) * lanes)


@dataclass(frozen=True)
class Plan:
    """How attention is cut into blocks of rows.

    Attributes:
        first, second: the products.
        rows: rows of a block.
    """

    first: Panels
    second: Panels
    rows: int

    @staticmethod
    def of(attention: Attention, target: Target) -> Plan:
        """Blocks whose scores take a part of the second-level cache, and enough of them for the threads."""
        problem = attention.first
        tall = _panels(problem, problem.m, target)
        limit = max(tall.mr, target.l2_bytes // 4 // (tall.row_length * 4))
        blocks = -(-problem.m // limit)
        while problem.batch * blocks < 4 * target.max_threads and problem.m > 4 * tall.mr * blocks:
            blocks += 1
        rows = -(-problem.m // blocks)
        if problem.m % blocks:
            rows = -(-rows // tall.mr) * tall.mr
        return Plan(_panels(problem, rows, target), _panels(attention.second, rows, target), rows)

    @property
    def blocks(self) -> int:
        """Blocks of one batch."""
        return -(-self.first.problem.m // self.rows)

    @property
    def heights(self) -> set[int]:
        """Heights that blocks have."""
        last = self.first.problem.m - (self.blocks - 1) * self.rows
        return {last} if self.blocks == 1 else {self.rows, last}


class AttentionEmitter:
    """Compiles an attention fusion; see the module docstring."""

    def __init__(self, source: FusionSource):
        attention = attention_of(source.graph, source.functions)
        assert attention is not None, "the pass that made the fusion asked the same"
        self.source, self.attention = source, attention
        self.plan = Plan.of(attention, source.target)
        rows = rows_of(source.graph, attention)
        self.rows = RowEmitter(dataclasses.replace(source, graph=rows, streamed=frozenset()))
        first, second = self.plan.first, self.plan.second
        # Workspace: the packed panels of both products. Scratch: scores, sums of the output, divisors of its rows, what
        # the rows need.
        self._second_at = align_up(first.size * 4)
        self._sums_at = align_up(self.plan.rows * first.row_length * 4)
        self._divisors_at = self._sums_at + align_up(self.plan.rows * second.row_length * 4)
        self._rows_at = self._divisors_at + align_up(self.plan.rows * 4)

    def emit(self) -> KernelDefinition:
        """Emit the kernel: tasks of the second phase are blocks of rows."""
        first, second = self.plan.first, self.plan.second
        workspace = self._second_at + second.size * 4
        scratch = self.rows.lay_out(self._rows_at)
        frame = KernelFrame(self.source, workspace, scratch)
        problem = first.problem
        scores = problem.batch * problem.m * problem.n
        cost = problem.k + second.problem.n + element_cost(self.rows.source.graph)
        parallel = worth_splitting(scores, cost)
        frame.phase(self._pack, self._packing_tasks(first) + self._packing_tasks(second), parallel)
        frame.phase(self._blocks, problem.batch * self.plan.blocks, parallel)
        products = 2 * (problem.k + second.problem.n)
        return frame.finish("attention", scores * (products + element_cost(self.rows.source.graph)))

    # Packing: a task of either product packs about the same number of elements.

    def _packing_steps(self, panels: Panels) -> int:
        return min(self.plan.first.padded_k, panels.padded_k)

    def _packing_tasks(self, panels: Panels) -> int:
        pieces = -(-panels.padded_k // self._packing_steps(panels))
        return panels.problem.batch * panels.count * pieces

    def _pack(self, phase: PhaseFrame) -> None:
        first, second = self.plan.first, self.plan.second
        attention, border = self.attention, self._packing_tasks(first)
        low, high = phase.begin, phase.end
        self._pack_tasks(
            phase, first, attention.scores.operands[1].result, low, minimum(high, border)
        )
        begin = sub(build.maximum(low, border), border)
        value = attention.output.operands[1].result
        self._pack_tasks(phase, second, value, begin, sub(high, border))

    def _pack_tasks(
        self, phase: PhaseFrame, panels: Panels, argument: int, begin: Index, end: Index
    ) -> None:
        problem = panels.problem
        source = self._operand(phase, problem.rhs, argument)
        target = self._packed(phase, panels)
        steps = self._packing_steps(panels)
        pieces = -(-panels.padded_k // steps)

        def task(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            panel, k0 = div(number, pieces), mul(mod(number, pieces), steps)
            pack_columns(
                source,
                target,
                add(mul(panel, panels.panel), mul(k0, panels.width)),
                batch=div(panel, panels.count),
                n0=mul(mod(panel, panels.count), panels.width),
                n=problem.n,
                k0=k0,
                count=minimum(sub(problem.k, k0), steps),
                k=problem.k,
                lanes=panels.lanes,
                vectors=panels.vectors,
            )
            return []

        for_loop(begin, end, task)

    def _operand(self, phase: PhaseFrame, operand: Operand, argument: int) -> Source:
        element = self.attention.first.accumulate
        return Source(operand, argument, None, tuple(phase.arguments), element)

    def _packed(self, phase: PhaseFrame, panels: Panels) -> ir.Value:
        offset = 0 if panels is self.plan.first else self._second_at
        return build.view(phase.workspace, offset, self._array(panels.size))

    def _array(self, size: int) -> ArrayType:
        return ArrayType((size,), self.attention.first.accumulate)

    # Blocks.

    def _blocks(self, phase: PhaseFrame) -> None:
        plan = self.plan
        problem = plan.first.problem
        scores = build.view(phase.scratch, 0, self._array(plan.rows * plan.first.row_length))
        sums = build.view(
            phase.scratch, self._sums_at, self._array(plan.rows * plan.second.row_length)
        )

        def block(task: ir.Value) -> None:
            batch = div(task, plan.blocks)
            m0 = mul(mod(task, plan.blocks), plan.rows)
            count = minimum(sub(problem.m, m0), plan.rows)
            self._first_product(phase, batch, m0, count, scores)
            self._weigh(phase, batch, m0, count)
            self._second_product(phase, batch, count, scores, sums)
            self._finish(phase, batch, m0, count, sums)

        phase.each_task(block)

    def _first_product(
        self, phase: PhaseFrame, batch: Index, m0: Index, count: Index, scores: ir.Value
    ) -> None:
        queries = self.attention.scores.operands[0].result
        left = self._operand(phase, self.attention.first.lhs, queries)
        row, step = left.operand.free.stride, left.operand.contract.stride
        assert row is not None
        assert step is not None

        def lhs(start: Index, k0: Index) -> _At:
            base = left.offset(batch, add(m0, start), k0)
            return lambda k, i: left.widened(add(add(base, mul(k, step)), i * row))

        self._product(phase, self.plan.first, batch, count, lhs, scores)

    def _second_product(
        self, phase: PhaseFrame, batch: Index, count: Index, weights: ir.Value, sums: ir.Value
    ) -> None:
        length = self.plan.first.row_length

        def lhs(start: Index, k0: Index) -> _At:
            base = add(mul(start, length), k0)
            return lambda k, i: load_scalar(weights, add(add(base, k), i * length))

        self._product(phase, self.plan.second, batch, count, lhs, sums)

    def _product(
        self,
        phase: PhaseFrame,
        panels: Panels,
        batch: Index,
        count: Index,
        lhs: Callable[[Index, Index], _At],
        sums: ir.Value,
    ) -> None:
        """One product for ``count`` rows, into rows of ``sums``; ``lhs(row, k0)`` reads the left operand from there."""
        packed, k = self._packed(phase, panels), panels.problem.k

        def panel(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            start = mul(add(mul(batch, panels.count), number), panels.panel)
            column = mul(number, panels.width)

            def chunk(k0: Index, steps: Index) -> None:
                def tile(row: Index, height: int) -> None:
                    at = add(start, mul(k0, panels.width))
                    place = add(mul(row, panels.row_length), column)
                    self._tile(panels, height, k0, steps, lhs(row, k0), (packed, at), (sums, place))

                self._row_groups(count, panels.mr, tile)

            if k <= panels.k_chunk:
                chunk(0, k)
            else:
                _chunks(k, panels.k_chunk, chunk)
            return []

        for_loop(0, panels.count, panel)

    def _row_groups(self, count: Index, mr: int, tile: Callable[[Index, int], None]) -> None:
        """``tile(row, height)`` for every group of ``mr`` of ``count`` rows, and for those left over."""

        def group(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            tile(row, mr)
            return []

        left = mod(count, mr)
        whole = sub(count, left)
        for_loop(0, whole, group, step=mr)
        edges = {height % mr for height in self.plan.heights}
        for edge in sorted(edges - {0}):
            if len(edges) == 1:
                tile(whole, edge)
            else:
                with build.if_then(build.equal(left, edge)):
                    tile(whole, edge)

    def _tile(
        self,
        panels: Panels,
        height: int,
        k0: Index,
        steps: Index,
        lhs: _At,
        rhs: tuple[ir.Value, Index],
        target: tuple[ir.Value, Index],
    ) -> None:
        """One register tile: ``steps`` steps of ``k`` from ``k0``, added to what earlier ones gave."""
        lanes, element = panels.lanes, panels.problem.accumulate
        sums, place = target
        places = [
            add(place, i * panels.row_length + j * lanes)
            for i in range(height)
            for j in range(panels.vectors)
        ]

        def fresh() -> list[ir.Value]:
            return [zero(element, lanes)] * len(places)

        def earlier() -> list[ir.Value]:
            return [load_vector(sums, at, element, lanes) for at in places]

        def rhs_at(k: Index, j: int) -> ir.Value:
            buffer, start = rhs
            return load_vector(
                buffer, add(add(start, mul(k, panels.width)), j * lanes), element, lanes
            )

        kinds = [ir.VectorType.get([lanes], build.register_type(element))] * len(places)
        initial = (
            fresh()
            if isinstance(k0, int)
            else build.if_else(build.equal(k0, 0), kinds, fresh, earlier)
        )
        shape = height, panels.vectors, lanes
        combine = partial(multiply_add, element=element)
        totals = multiply_tile(shape, steps, initial, lhs, rhs_at, combine)
        for total, at in zip(totals, places, strict=True):
            store_vector(total, sums, at)

    def _weigh(self, phase: PhaseFrame, batch: Index, m0: Index, count: Index) -> None:
        """Make the scores of ``count`` rows into weights, in place."""
        problem, length = self.plan.first.problem, self.plan.first.row_length
        array = self._array(problem.n)

        def row(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            buffer = build.view(phase.scratch, mul(i, length * 4), array)
            number = build.index_value(add(mul(batch, problem.m), add(m0, i)))
            with phase.elemental.scope():
                phase.elemental.bind(self.attention.scores, lambda at: load_scalar(buffer, at[-1]))
                divisor = build.view(
                    phase.scratch, add(mul(i, 4), self._divisors_at), self._array(1)
                )
                self.rows.row(phase, number, {0: buffer, 1: divisor})
            return []

        for_loop(0, count, row)

    def _finish(
        self, phase: PhaseFrame, batch: Index, m0: Index, count: Index, sums: ir.Value
    ) -> None:
        """Compute the results' elements from finished sums."""
        problem, length = self.plan.second.problem, self.plan.second.row_length
        output, e = self.attention.output, phase.elemental
        divisors = build.view(phase.scratch, self._divisors_at, self._array(self.plan.rows))

        def element(i: Index, n: Index) -> None:
            index = problem.output_index(batch, add(m0, i), n)
            total = load_scalar(sums, add(mul(i, length), n))
            if self.attention.softmax is not None:
                total = arith.DivFOp(total, load_scalar(divisors, i)).result
            e.bind(output, scalar_source(total))
            for number, root in enumerate(self.source.graph.results):
                at = matching_index(root, output, index)
                phase.store(number, e.value(root, at), at, root.type)

        def row(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            def column(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                with e.scope():
                    element(i, n)
                return []

            for_loop(0, problem.n, column, unroll=1)
            return []

        for_loop(0, count, row)


def _chunks(k: int, length: int, chunk: Callable[[Index, Index], None]) -> None:
    """``chunk(k0, steps)`` for each stretch of ``length`` steps of ``k``."""

    def body(k0: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        chunk(k0, length if k % length == 0 else minimum(sub(k, k0), length))
        return []

    for_loop(0, k, body, step=length)
