# SPDX-License-Identifier: Apache-2.0
"""The loop emitter: every element of every result, computed where it is stored.

All results of a loop fusion have one shape. When the whole computation is elementwise the nest collapses to one loop
over the linear index; otherwise tasks are rows (all dimensions but the last) and the inner loop runs over the last
dimension, contiguous in the results, for LLVM to vectorise. Short rows that nothing tells apart, as those of an image
whose channels have factors, are run over together. A long chain of dear operations is computed in parts,
a loop for each, stretch by stretch (see :mod:`.chains`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import chains, streaming
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    element_cost,
    interleaving,
    reachable,
    reached_in_place,
    run_together,
    side_by_side,
    worth_splitting,
)
from gristmill.compiler.emitters.elemental import Source
from gristmill.compiler.emitters.elemental.contraction import loop_nest
from gristmill.compiler.emitters.elemental.movement import gather_operand_index
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Graph, Node, is_uniform
from gristmill.dialects import hlo
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType

#: Elements of one task of a one-dimensional loop: 16 KiB of f32, so that a task's stores stay in L1.
CHUNK = 4096

#: Elements of such a task, or of a row, that are staged at a time: the stores past the caches, which memory takes
#: slowly, alternate with arithmetic.
STRETCH = 512

#: Elements of a row that is a task of its own, and of a block of shorter ones.
LEAST_ROW, LEAST_BLOCK = 8, 64

#: Elements at a time from which on, and up to which, a long chain is computed in parts: loops have a start and an end,
#: and stages of the values at the cuts are to stay in L1.
LEAST_IN_PARTS, MOST_IN_PARTS = 64, 1024

#: Elements of a row up to which rows are run over together, and tasks that must be left.
MOST_TOGETHER, LEAST_TASKS = 256, 16

#: Elements from which on LLVM's vectoriser takes a loop that does not fill its last vector; unrolled before, as short
#: ones are, it becomes twenty times as much code, of single elements.
LEAST_ROLLED = 16

#: Bytes of a gathered piece from which on the next one is asked for: of shorter ones the processor reaches several.
#: And the bytes that are asked for at most: a prefetcher follows from there.
LEAST_ASKED_FOR, MOST_ASKED_FOR = 512, 1024


#: The body of a loop: the loop variable and carried values to the next carried values.
Body = Callable[[ir.Value, list[ir.Value]], list[ir.Value]]


@dataclass(frozen=True)
class _Cut:
    """A value at which a chain is cut.

    Attributes:
        node: the value.
        staged: the memref of its stage.
        first: last component of the index of the element that the stage begins with.
    """

    node: Node
    staged: ir.Value
    first: Index

    def store(self, value: ir.Value, index: Sequence[Index]) -> None:
        """Put the element at ``index`` into the stage."""
        build.store(value, self.staged, (self._position(index),), self.node.type.element)

    def load(self, index: Sequence[Index]) -> ir.Value:
        """Take it from there: a :data:`Source`."""
        return build.load(self.staged, (self._position(index),), self.node.type.element)

    def _position(self, index: Sequence[Index]) -> Index:
        return build.sub(index[-1], self.first)


class LoopEmitter:
    """Compiles a fusion of elementwise, data-movement and generic operations; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        #: Offsets in scratch memory of the stages of streamed results, of ``_length`` elements each.
        self._stages: dict[int, int] = {}
        #: The same of values at which a long chain is cut.
        self._cuts: dict[Node, int] = {}
        self._length = self._scratch_bytes = 0
        shape = source.graph.results[0].shape
        self._merges = merges_rows(source.graph)
        #: What is run over: the results' shape, of whose last two dimensions there may be one.
        self._shape = (*shape[:-2], shape[-2] * shape[-1]) if self._merges else shape

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        graph = self.source.graph
        shape = self._shape
        size = math.prod(shape)
        parallel = worth_splitting(size, loop_cost(graph))
        tasks = 1
        body: Callable[[PhaseFrame], None]
        if not size:
            body = _nothing
        elif is_elementwise(graph.results):
            self._plan_stages(STRETCH, streaming.streams)
            tasks, body = -(-size // CHUNK), partial(self._linear, size=size)
        elif is_wide(shape):
            self._plan_cuts(STRETCH)
            tasks, body = -(-shape[-1] // CHUNK), partial(self._wide, shape=shape)
        elif inner := short_dimensions(shape):
            tasks = math.prod(shape[:-inner])
            body = partial(self._blocks, shape=shape, inner=inner)
        else:
            length = shape[-1] if shape else 1
            if length % STRETCH:
                self._plan_stages(length, streaming.streams_rows)
            else:
                self._plan_stages(STRETCH, streaming.streams)
            tasks, body = math.prod(shape[:-1]), partial(self._rows, shape=shape)
        frame = KernelFrame(self.source, scratch_bytes=self._scratch_bytes)
        frame.phase(body, max(1, tasks), parallel)
        return frame.finish("loop", size * element_cost(graph), inplace_pairs(graph))

    def _plan_stages(self, length: int, streams: Callable[[FusionSource, int, int], bool]) -> None:
        """Lay out stages of ``length`` elements for the results that are streamed."""
        for number, result in enumerate(self.source.results):
            if streams(self.source, number, length):
                self._stages[number] = self._scratch_bytes
                self._scratch_bytes += align_up(length * result.element.nbytes)
        self._plan_cuts(length)

    def _plan_cuts(self, length: int) -> None:
        """Lay out stages of ``length`` elements for the values at which the computation is cut into parts."""
        self._length = length
        shortest = min(length, self.source.results[0].size)
        if shortest >= LEAST_IN_PARTS and length <= MOST_IN_PARTS:
            for node in chains.cuts(self.source.graph):
                self._cuts[node] = self._scratch_bytes
                self._scratch_bytes += align_up(length * node.type.element.nbytes)

    @property
    def _in_stretches(self) -> bool:
        """Whether anything is staged."""
        return bool(self._stages or self._cuts)

    def _linear(self, phase: PhaseFrame, size: int) -> None:
        """One loop over ``[begin * CHUNK, min(end * CHUNK, size))``; every buffer is read at the linear index."""
        bind_linear(phase, self.source.graph)
        low = build.mul(phase.begin, CHUNK)
        high = build.minimum(build.mul(phase.end, CHUNK), size)
        if not self._in_stretches:
            self._stretch(phase, low, high)
            return

        def stretch(start: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            end = build.minimum(build.add(start, STRETCH), high)
            self._stretch(phase, start, end)
            return []

        build.for_loop(low, high, stretch, step=STRETCH)
        if self._stages:
            streaming.finish(self.source.target)

    def _stretch(self, phase: PhaseFrame, low: Index, high: Index) -> None:
        """Elements ``low`` to ``high`` of a linear loop; streamed results go by way of their stages."""
        graph = self.source.graph
        buffers = [build.flatten(x) for x in phase.results]
        starts: list[Index] = [0] * len(buffers)
        for number, staged in self._staged(phase).items():
            buffers[number], starts[number] = staged, low

        def body(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                for root, buffer, start in zip(graph.results, buffers, starts, strict=True):
                    # One shared key for all shapes: (iv,) for tensors of full size, () for scalars.
                    value = phase.elemental.value(root, (iv,))
                    build.store(value, buffer, (build.sub(iv, start),), root.type.element)
            return []

        with phase.elemental.bound(self._parts(phase, low, high, lambda iv: (iv,), low)):
            self._loop(low, high, body, min(CHUNK, graph.results[0].type.size))
        self._copy_out(phase, low, build.sub(high, low))

    def _loop(self, low: Index, high: Index, body: Body, length: int) -> None:
        """A loop over ``length`` elements, or as many as are staged, for LLVM to vectorise."""
        length = self._length if self._in_stretches else length
        rolled = length >= LEAST_ROLLED
        count = interleaving(self.source.graph, length, self.source.target)
        step = self.source.target.lanes(4)
        if rolled and count == 1 and length <= MOST_TOGETHER and length % step == 0:
            count = side_by_side(length // step)
        build.for_loop(low, high, body, unroll=int(rolled), interleave=count)

    def _parts(
        self,
        phase: PhaseFrame,
        low: Index,
        high: Index,
        index: Callable[[Index], Sequence[Index]],
        first: Index,
    ) -> dict[Node, Source]:
        """The parts before the last one of a chain that is cut: sources of the values at the cuts, in their stages.

        Args:
            low, high: bounds of the loop of each part; ``index`` gives the index of the element that a turn computes.
            first: last component of the index of the element that a stage begins with.
        """
        sources: dict[Node, Source] = {}
        for node, offset in self._cuts.items():
            array = ArrayType((self._length,), node.type.element)
            staged = build.view(phase.scratch, offset, array)

            def body(iv: ir.Value, _: list[ir.Value], cut: _Cut) -> list[ir.Value]:
                with phase.elemental.scope():
                    at = index(iv)
                    cut.store(phase.elemental.value(cut.node, at), at)
                return []

            cut = _Cut(node, staged, first)
            with phase.elemental.bound(sources):
                self._loop(low, high, partial(body, cut=cut), self._length)
            sources[node] = cut.load
        return sources

    def _staged(self, phase: PhaseFrame) -> dict[int, ir.Value]:
        """The stages, by result."""
        return {
            number: streaming.stage(phase, offset, self._length, self.source.results[number])
            for number, offset in self._stages.items()
        }

    def _copy_out(self, phase: PhaseFrame, start: Index, count: Index) -> None:
        """Store what the stages hold from linear position ``start`` on."""
        for number, staged in self._staged(phase).items():
            array, target = self.source.results[number], self.source.target
            streaming.copy_out(staged, phase.results[number], start, count, array, target)

    def _wide(self, phase: PhaseFrame, shape: Sequence[int]) -> None:
        """Few long rows: tasks are chunks of the last dimension."""
        low = build.mul(phase.begin, CHUNK)
        high = build.minimum(build.mul(phase.end, CHUNK), shape[-1])

        def row(position: Index) -> None:
            outer = build.delinearize(position, shape[:-1])
            if not self._cuts:
                self._columns(phase, outer, low, high)
                return

            def stretch(start: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                self._columns(
                    phase, outer, 0, build.minimum(build.sub(high, start), STRETCH), start
                )
                return []

            build.for_loop(low, high, stretch, step=STRETCH)

        rows = math.prod(shape[:-1])
        if rows == 1:
            row(0)
            return

        def body(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                row(iv)
            return []

        build.for_loop(0, rows, body)

    def _rows(self, phase: PhaseFrame, shape: Sequence[int]) -> None:
        gathers = row_gathers(self.source.graph)

        def body(iv: ir.Value) -> None:
            for node in gathers:
                self._ask_for_next(phase, node, iv)
            outer = build.delinearize(iv, shape[:-1])
            length = shape[-1] if shape else 1
            if not self._in_stretches:
                self._columns(phase, outer, 0, length)
                return

            def stretch(low: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                self._columns(phase, outer, 0, self._length, low)
                start = build.add(build.mul(iv, length), low)
                self._copy_out(phase, start, self._length)
                return []

            build.for_loop(0, length, stretch, step=self._length)

        phase.each_task(body)
        if self._stages:
            streaming.finish(self.source.target)

    def _blocks(self, phase: PhaseFrame, shape: Sequence[int], inner: int) -> None:
        """Rows of few elements: tasks are blocks of the ``inner`` last dimensions."""

        def body(block: ir.Value) -> None:
            outer = build.delinearize(block, shape[:-inner])

            def element(index: list[Index], _: list[ir.Value]) -> list[ir.Value]:
                store_results(phase, self.source.graph, [*outer, *index])
                return []

            loop_nest(phase.elemental, shape[-inner:], [], element)

        phase.each_task(body)

    def _ask_for_next(self, phase: PhaseFrame, node: Node, row: ir.Value) -> None:
        """Ask for the row of a table from which ``node`` gathers its next row: prefetchers cannot foresee it."""
        table, rows = node.operands[0], math.prod(node.shape[:-1])
        following = build.minimum(build.add(row, 1), rows - 1)
        index = [*build.delinearize(following, node.shape[:-1]), 0]
        with phase.elemental.scope():
            place = gather_operand_index(phase.elemental, node, index)
        flat, start = (
            build.flatten(phase.arguments[table.result]),
            build.linearize(place, table.shape),
        )
        element = table.type.element.nbytes
        nbytes = min(node.shape[-1] * element, MOST_ASKED_FOR)
        for at in range(0, nbytes, build.LINE_BYTES):
            build.prefetch(flat, build.add(start, at // element))

    def _columns(
        self, phase: PhaseFrame, outer: list[Index], low: Index, high: Index, first: Index = 0
    ) -> None:
        """Elements ``low`` to ``high`` of a row, counted from ``first``; streamed results go to their stages."""
        graph, stages = self.source.graph, self._staged(phase)

        def index(column: Index) -> list[Index]:
            at = build.add(first, column)
            if self._merges:
                # Of the division LLVM leaves nothing: the elements lie one after another.
                return [*outer, *build.delinearize(at, graph.results[0].shape[-2:])]
            return [*outer, at]

        def body(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                store_results(phase, graph, index(iv), stages, iv)
            return []

        if not self._shape:
            store_results(phase, graph, [])
        elif isinstance(low, int) and isinstance(high, int) and high - low == 1:
            store_results(phase, graph, index(low))
        else:
            parts = self._parts(phase, low, high, index, first)
            with phase.elemental.bound(parts):
                self._loop(low, high, body, min(CHUNK, self._shape[-1]))


def _nothing(phase: PhaseFrame) -> None:
    """The body of a loop without turns."""
    del phase


def store_results(
    phase: PhaseFrame,
    graph: Graph,
    index: Sequence[Index],
    stages: Mapping[int, ir.Value] | None = None,
    at: Index = 0,
) -> None:
    """Compute and store every result at ``index``; all values are computed before the first store.

    Results that have one of ``stages`` are stored there, at ``at``.
    """
    stages = stages or {}
    values = [phase.elemental.value(root, index) for root in graph.results]
    for number, (root, value) in enumerate(zip(graph.results, values, strict=True)):
        if number in stages:
            build.store(value, stages[number], (at,), root.type.element)
        else:
            phase.store(number, value, index, root.type)


def row_gathers(graph: Graph) -> list[Node]:
    """Gathers of long pieces of the rows of arguments, element for element of the results' rows."""
    shape, stack = graph.results[0].shape, list(graph.results)
    seen = dict.fromkeys(stack)  # in order, as code must come out the same each time
    while stack:
        node = stack.pop()
        if node.op is None or not hlo.has_trait(node.op, "elementwise"):
            continue
        following = [x for x in node.operands if x.shape == shape and x not in seen]
        seen |= dict.fromkeys(following)
        stack += following
    return [x for x in seen if x.kind == "gather" and _copies_rows(x)]


def _copies_rows(node: Node) -> bool:
    """Whether the last dimension of a gather runs along that of an argument, over :data:`LEAST_ASKED_FOR` bytes."""
    table, last = node.operands[0], len(node.shape) - 1
    removed = {*node.dims("collapsed_slice_dims"), *node.dims("operand_batching_dims")}
    along = last in node.dims("offset_dims") and table.type.rank - 1 not in removed
    nbytes = node.shape[last] * table.type.element.nbytes if along else 0
    return table.kind == "parameter" and nbytes >= LEAST_ASKED_FOR


def loop_cost(graph: Graph) -> int:
    """Cost of one result element in tenths of a nanosecond, inner reductions included."""
    cost = element_cost(graph)
    for node in reachable(graph.results):
        if node.kind == "reduce":
            cost *= max(1, node.operands[0].type.size // max(1, node.type.size))
        elif node.kind == "reduce_window":
            cost *= math.prod(node.dims("window_dimensions"))
        elif node.kind == "dot_general":
            lhs = node.operands[0]
            cost *= math.prod(lhs.shape[d] for d in node.dims("lhs_contracting_dimensions"))
        elif node.kind == "convolution":
            outputs = node.integer("kernel_output_feature_dimension")
            cost *= max(1, node.operands[1].type.size // max(1, node.operands[1].shape[outputs]))
    return cost


def is_wide(shape: Sequence[int]) -> bool:
    """Whether there are too few rows to share between threads but the rows are long."""
    return bool(shape) and math.prod(shape[:-1]) < 16 and shape[-1] >= 4 * CHUNK


def merges_rows(graph: Graph) -> bool:
    """Whether short rows are run over together: their common factors, a channel's, are then computed once for all."""
    shape = graph.results[0].shape
    if len(shape) < 2 or 0 in shape or shape[-2] == 1 or shape[-1] > MOST_TOGETHER:
        return False
    outer, inner = shape[:-2], shape[-2] * shape[-1]
    if inner < LEAST_ROW or (math.prod(outer) < LEAST_TASKS and not is_wide((*outer, inner))):
        return False
    # Where a chain is cut, stages hold parts of a single row.
    return (
        not is_elementwise(graph.results) and run_together(graph, shape) and not chains.cuts(graph)
    )


def short_dimensions(shape: Sequence[int]) -> int:
    """How many of the last dimensions make a block of rows that are too short to be a task each; 0 where rows are not.

    The place of a row takes divisions. Rows that make too large a block are left to LLVM, which vectorises over them.
    """
    if not shape or shape[-1] >= LEAST_ROW:
        return 0
    inner = 1
    while inner < len(shape) and math.prod(shape[-inner:]) < LEAST_BLOCK:
        inner += 1
    return inner if inner > 1 and math.prod(shape[-inner:]) <= CHUNK else 0


def is_elementwise(roots: Sequence[Node]) -> bool:
    """Whether all that ``roots`` depend on has their shape or is a scalar (broadcasts of scalars allowed)."""
    shape = roots[0].shape
    if not shape or 0 in shape or any(r.shape != shape for r in roots):
        return False
    for node in reachable(roots):
        if node.kind == "parameter" or node.kind == "constant":
            if node.shape != shape and node.type.rank != 0 and not _is_splat(node):
                return False
        elif node.kind == "broadcast_in_dim":
            if node.operands[0].type.size != 1:
                return False
        elif node.type.rank == 0 and all(x.type.rank == 0 for x in node.operands):
            if node.kind not in _SCALAR_KINDS and not hlo.has_trait(
                _operation(node), "elementwise"
            ):
                return False
        elif not hlo.has_trait(_operation(node), "elementwise") or node.shape != shape:
            return False
    return True


_SCALAR_KINDS = frozenset({"reshape"})


def _operation(node: Node) -> ir.Operation:
    assert node.op is not None
    return node.op


def _is_splat(node: Node) -> bool:
    data = node.constant
    return data is not None and is_uniform(data)


def bind_linear(phase: PhaseFrame, graph: Graph) -> None:
    """Let an elementwise graph be evaluated at linear positions."""
    for parameter, buffer in zip(graph.parameters, phase.arguments, strict=True):
        phase.elemental.bind(parameter, linear_source(build.flatten(buffer), parameter))


def linear_source(buffer: ir.Value, parameter: Node) -> Source:
    """Elements of a flattened buffer at a linear index; a single element is read at 0 whatever the index."""
    element = parameter.type.element
    if parameter.type.size == 1:
        return lambda index: build.load(buffer, (0,), element)
    return lambda index: build.load(buffer, index, element)


def inplace_pairs(graph: Graph) -> list[tuple[int, int]]:
    """(parameter, result) pairs that may share a buffer.

    The parameter is read only at the index being stored, and nothing but that result depends on it (see
    :class:`~gristmill.compiler.emitters.cpu.frame.KernelFrame`).
    """
    pairs: list[tuple[int, int]] = []
    for number, root in enumerate(graph.results):
        for parameter in graph.parameters:
            width = parameter.type.element.nbytes
            if parameter.shape != root.shape or width != root.type.element.nbytes:
                continue
            reached = reached_in_place(parameter)
            if reached is not None and [r for r in graph.results if r in reached] == [root]:
                pairs.append((parameter.result, number))
    return pairs
