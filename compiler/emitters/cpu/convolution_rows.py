# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few features: vectors of neighbouring outputs along one spatial dimension.

With one feature there are no vectors of features, and neighbouring outputs read neighbouring inputs: a tile is a few
vectors of a row of outputs for each feature, and one step multiplies vectors of the input, loaded from wherever the
window's element puts them, by a broadcast weight. An operand with that dimension innermost is read where it is, and the
windows that cross its borders by masked loads; any other is first copied into the workspace with its padding, as batch,
channel, leading space, phase, row: with a stride of s, the elements s apart lie side by side, in one of s phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem
from gristmill.compiler.emitters.cpu.dot_build import broadcast, load_vector, store_vector, zero
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.windows import bounded_nest
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType

#: Outputs of a row that one task computes, where a row is longer.
_CHUNK = 4096
#: Features whose sums are in registers at a time, at most.
_MOST_FEATURES = 4


@dataclass(frozen=True)
class RowPlan:
    """How the outputs of a row are cut into vectors.

    Attributes:
        width: outputs of a row.
        lanes: outputs of a vector.
        vectors: vectors of a tile.
        begin: the first output of the whole tiles.
        tiles: whole tiles, whose windows lie inside the operand.
        chunk: whole tiles of one task.
        inside: where the vectors after them start whose windows lie inside the operand.
        outside: the same of those whose windows may not.
    """

    width: int
    lanes: int
    vectors: int
    begin: int
    tiles: int
    chunk: int
    inside: tuple[int, ...]
    outside: tuple[int, ...]

    @staticmethod
    def of(
        width: int, interior: tuple[int, int], features: int, nbytes: int, target: Target
    ) -> RowPlan:
        """The plan for rows of ``width`` outputs, of which those of ``interior`` have their windows inside."""
        lanes = min(target.lanes(nbytes), 1 << (width.bit_length() - 1))
        # Besides the sums, registers hold the weights of a step, a vector of the input and one to spare.
        vectors = min(8, (target.vector_registers - 2) // features - 1)
        end = interior[1]
        # Whole vectors before the tiles, so that no other task stores to where they do.
        begin = -(-interior[0] // lanes) * lanes
        whole = max(0, end - begin) // lanes
        tiles, rest = divmod(whole, vectors)
        after = begin + whole * lanes
        starts = [after - (rest - i) * lanes for i in range(rest)]
        # The last vector ends with the row, over outputs that another computes as well.
        edges = (*range(0, begin, lanes), *range(after, width, lanes))
        starts += [min(i, width - lanes) for i in edges]
        inside = tuple(i for i in starts if interior[0] <= i and i + lanes <= end)
        outside = tuple(i for i in starts if i not in inside)
        chunk = max(1, _CHUNK // (vectors * lanes))
        return RowPlan(width, lanes, vectors, begin, tiles, chunk, inside, outside)

    @property
    def chunks(self) -> int:
        """Tasks of a row; the last computes what is left besides whole tiles."""
        return max(1, -(-self.tiles // self.chunk))

    def groups(self, starts: Sequence[int]) -> list[Sequence[int]]:
        """``starts`` in parts that registers hold."""
        return [starts[i : i + self.vectors] for i in range(0, len(starts), self.vectors)]


class RowConvolutionEmitter:
    """Compiles one ``convolution`` of few features."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node = source.graph.results[0]
        problem = self.problem = ConvProblem.of(self.node)
        self.groups = problem.features if problem.depthwise else problem.groups
        self.features = 1 if problem.depthwise else problem.features
        #: The spatial dimension that vectors lie along.
        self.lane = problem.row_dimension
        self.leading = [d for d in range(len(problem.outputs)) if d != self.lane]
        #: Features whose sums are in registers at a time.
        self.part = -(-self.features // -(-self.features // _MOST_FEATURES))
        width, nbytes = problem.outputs[self.lane], problem.element.nbytes

        def plan(interior: tuple[int, int]) -> RowPlan:
            return RowPlan.of(width, interior, self.part, nbytes, source.target)

        in_place = plan(problem.window(self.lane).interior)
        few = len(in_place.outside) <= 2 * in_place.vectors
        self.reads_input = problem.reads_rows and few
        self.plan = in_place if self.reads_input else plan((0, width))

    @property
    def pitch(self) -> int:
        """Elements of a phase of a row of the copied input."""
        lane, problem = self.lane, self.problem
        reach = (problem.kernel[lane] - 1) * problem.dilations[lane] // problem.strides[lane]
        return problem.outputs[lane] + reach

    @property
    def input_type(self) -> ArrayType:
        """The copied input."""
        problem = self.problem
        batch = problem.batch * (problem.groups if problem.batch_groups else 1)
        leading = [problem.padded[d] for d in self.leading]
        shape = (batch, problem.inputs, *leading, problem.strides[self.lane], self.pitch)
        return ArrayType(shape, problem.element)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        problem = self.problem
        workspace = 0 if self.reads_input else self.input_type.nbytes
        scratch = self.plan.vectors * self.plan.lanes * problem.element.nbytes
        frame = KernelFrame(self.source, workspace, scratch)
        if not self.reads_input:
            array = self.input_type
            frame.phase(
                self._copy_input, array.size // array.shape[-1], worth_splitting(array.size, 5)
            )
        tasks = math.prod(self._grid)
        frame.phase(self._compute, tasks, worth_splitting(problem.work, 1))
        return frame.finish("convolution", 2 * problem.work)

    def _copy_input(self, phase: PhaseFrame) -> None:
        problem, node, e = self.problem, self.node, phase.elemental
        lhs, array = node.operands[0], self.input_type
        target = build.view(phase.workspace, 0, array)
        stride, low = problem.strides[self.lane], problem.low[self.lane]
        blank = build.constant(problem.element, 0)

        def row(task: ir.Value) -> None:
            batch, channel, *space, phase_number = build.delinearize(task, array.shape[:-1])
            position: list[Index] = [0] * len(problem.outputs)
            inside = build.constant(arithmetic.element_type("i1"), 1)
            for d, at in zip(self.leading, space, strict=True):
                position[d] = build.sub(at, problem.low[d])
                inside = both(inside, build.at_least(position[d], 0))
                inside = both(inside, build.less(position[d], problem.extents[d]))

            def copy(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                with e.scope():
                    here = build.sub(build.add(build.mul(at, stride), phase_number), low)
                    where = [*position[: self.lane], here, *position[self.lane + 1 :]]
                    index = problem.input_index(batch, channel, where)
                    value = arithmetic.convert(
                        lhs.type.element, problem.element, e.value(lhs, index)
                    )
                    place = [batch, channel, *space, phase_number, at]
                    build.store(value, target, place, problem.element)
                return []

            def clear(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                place = [batch, channel, *space, phase_number, at]
                build.store(blank, target, place, problem.element)
                return []

            def first_at(position: int) -> Index:
                """The first element of the phase that stands for ``position`` or one after it."""
                ahead = build.maximum(build.sub(position + stride - 1, phase_number), 0)
                return build.minimum(build.div(ahead, stride), self.pitch)

            begin, end = first_at(low), first_at(low + problem.extents[self.lane])
            end = arithmetic.select(inside, build.index_value(end), build.index_value(begin))
            build.for_loop(0, begin, clear)
            build.for_loop(begin, end, copy)
            build.for_loop(end, self.pitch, clear)

        phase.each_task(row)

    @property
    def _grid(self) -> tuple[int, ...]:
        """Tasks by group, batch, leading space and part of a row."""
        problem = self.problem
        leading = [problem.outputs[d] for d in self.leading]
        return (self.groups, problem.batch, *leading, self.plan.chunks)

    def _compute(self, phase: PhaseFrame) -> None:
        plan = self.plan
        if self.reads_input:
            source = build.flatten(phase.arguments[self.node.operands[0].result])
        else:
            source = build.flatten(build.view(phase.workspace, 0, self.input_type))
        width = plan.vectors * plan.lanes

        def row(task: ir.Value) -> None:
            group, batch, *space, chunk = build.delinearize(task, self._grid)
            line = _Line(self, phase, source, group, batch, space)

            def tile(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                begin = build.add(build.mul(number, width), plan.begin)
                line.emit(begin, [i * plan.lanes for i in range(plan.vectors)], is_border=False)
                return []

            begin = build.mul(chunk, plan.chunk)
            build.for_loop(begin, build.minimum(build.add(begin, plan.chunk), plan.tiles), tile)
            with build.if_then(build.equal(chunk, plan.chunks - 1)):
                for part in plan.groups(plan.inside):
                    line.emit(0, part, is_border=False)
                for part in plan.groups(plan.outside):
                    line.emit(0, part, is_border=True)

        phase.each_task(row)


@dataclass(frozen=True)
class _Line:
    """One row of outputs, all features of a group.

    Attributes:
        source: the input as a flat memref.
        space: the leading spatial position.
    """

    owner: RowConvolutionEmitter
    phase: PhaseFrame
    source: ir.Value
    group: Index
    batch: Index
    space: Sequence[Index]

    def emit(self, begin: Index, starts: Sequence[int], is_border: bool) -> None:
        """Compute the vectors at ``begin + starts``; ``is_border``: their windows may lie partly outside."""
        owner, problem = self.owner, self.owner.problem
        bounds: list[tuple[Index, Index]] = [(0, problem.channels)]
        for d, at in zip(owner.leading, self.space, strict=True):
            inside = not owner.reads_input or problem.window(d).is_inside
            bounds.append((0, problem.kernel[d]) if inside else problem.window(d).bounds(at))
        bounds.append((0, problem.kernel[owner.lane]))
        blank = zero(problem.element, owner.plan.lanes)
        for first in range(0, owner.features, owner.part):
            features = range(first, min(first + owner.part, owner.features))
            sums = bounded_nest(
                self.phase.elemental,
                bounds,
                [blank] * (len(starts) * len(features)),
                self._step(features, begin, starts, is_border),
            )
            for number, feature in enumerate(features):
                values = sums[number * len(starts) : (number + 1) * len(starts)]
                self._store(feature, begin, starts, values)

    def _step(
        self, features: Sequence[int], begin: Index, starts: Sequence[int], is_border: bool
    ) -> Callable[[list[Index], list[ir.Value]], list[ir.Value]]:
        """What one channel and position of the window add to the sums of ``features``."""
        problem, lanes = self.owner.problem, self.owner.plan.lanes

        def step(index: list[Index], sums: list[ir.Value]) -> list[ir.Value]:
            channel, *window, tap = index
            at = build.add(build.add(self._base(channel, window), self._shift(tap)), begin)
            weights = [broadcast(self._weight(f, index), lanes) for f in features]
            result = list(sums)
            for v, start in enumerate(starts):
                mask = self._mask(build.add(begin, start), tap) if is_border else None
                here = build.add(at, start)
                factor = load_vector(self.source, here, problem.element, lanes, mask)
                for number in range(v, len(sums), len(starts)):
                    weight = weights[number // len(starts)]
                    result[number] = problem.multiply_add(result[number], factor, weight)
            return result

        return step

    def _base(self, channel: Index, window: Sequence[Index]) -> Index:
        """Where the input's row for the first output and position 0 along it begins."""
        owner, problem, node = self.owner, self.owner.problem, self.owner.node
        batch = self.batch
        if problem.batch_groups:
            batch = build.add(build.mul(self.group, problem.batch), batch)
        else:
            channel = build.add(build.mul(self.group, problem.channels), channel)
        rows = [
            build.add(build.mul(at, problem.strides[d]), build.mul(tap, problem.dilations[d]))
            for d, at, tap in zip(owner.leading, self.space, window, strict=True)
        ]
        if not owner.reads_input:
            return build.linearize([batch, channel, *rows, 0, 0], owner.input_type.shape)
        first = [build.sub(row, problem.low[d]) for d, row in zip(owner.leading, rows, strict=True)]
        first.insert(owner.lane, -problem.low[owner.lane])
        return build.linearize(problem.input_index(batch, channel, first), node.operands[0].shape)

    def _shift(self, tap: Index) -> Index:
        """How far on from output 0's window position 0 the input for position ``tap`` lies."""
        owner, problem = self.owner, self.owner.problem
        stride = problem.strides[owner.lane]
        position = build.mul(tap, problem.dilations[owner.lane])
        if stride == 1:
            return position
        phase = build.mul(build.mod(position, stride), owner.pitch)
        return build.add(phase, build.div(position, stride))

    def _mask(self, first: Index, tap: Index) -> ir.Value:
        """The lanes of the vector for output ``first`` and position ``tap`` that lie inside the operand."""
        problem, lane, lanes = self.owner.problem, self.owner.lane, self.owner.plan.lanes
        number = ir.IntegerType.get_signless(64 if problem.element.nbytes == 8 else 32)
        kind = ir.VectorType.get([lanes], number)
        position = build.sub(
            build.add(first, build.mul(tap, problem.dilations[lane])), problem.low[lane]
        )
        start = arith.IndexCastOp(number, build.index_value(position)).result
        counts = np.arange(lanes, dtype=f"i{number.width // 8}")
        steps = arith.ConstantOp(kind, ir.DenseElementsAttr.get(counts, type=kind)).result
        positions = arith.AddIOp(broadcast(start, lanes), steps).result
        extent = ir.DenseElementsAttr.get_splat(
            kind, ir.IntegerAttr.get(number, problem.extents[lane])
        )
        # Positions before the operand are large ones without a sign.
        bound = arith.ConstantOp(kind, extent).result
        return arith.CmpIOp(arith.CmpIPredicate.ult, positions, bound).result

    def _weight(self, feature: int, position: Sequence[Index]) -> ir.Value:
        """The weight of one channel and position of the window."""
        problem, rhs = self.owner.problem, self.owner.node.operands[1]
        channel, *window, tap = position
        window.insert(self.owner.lane, tap)
        index = problem.kernel_index(window, channel, self._feature(feature))
        value = self.phase.elemental.value(rhs, index)
        return arithmetic.convert(rhs.type.element, problem.element, value)

    def _feature(self, number: int) -> Index:
        return build.add(build.mul(self.group, self.owner.features), number)

    def _place(self, feature: int, at: Index) -> list[Index]:
        """The index of one output."""
        position = [*self.space]
        position.insert(self.owner.lane, at)
        return self.owner.problem.output_index(self.batch, self._feature(feature), position)

    def _store(
        self, feature: int, begin: Index, starts: Sequence[int], values: Sequence[ir.Value]
    ) -> None:
        """Store vectors of one feature's outputs."""
        owner, problem, node = self.owner, self.owner.problem, self.owner.node
        lanes = owner.plan.lanes
        if problem.writes_rows:
            result = build.flatten(self.phase.results[0])
            for start, value in zip(starts, values, strict=True):
                place = self._place(feature, build.add(begin, start))
                store_vector(value, result, build.linearize(place, node.shape))
            return
        array = ArrayType((len(starts) * lanes,), problem.element)
        buffer = build.view(self.phase.scratch, 0, array)
        for v, value in enumerate(values):
            store_vector(value, buffer, v * lanes)
        for v, start in enumerate(starts):
            self._store_elements(buffer, v * lanes, feature, build.add(begin, start))

    def _store_elements(self, buffer: ir.Value, first: int, feature: int, at: Index) -> None:
        """Store a vector kept in scratch element by element, wherever the output's elements lie."""
        owner, problem, node = self.owner, self.owner.problem, self.owner.node

        def store(lane: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            value = build.load(buffer, [build.add(first, lane)], problem.element)
            narrow = arithmetic.convert(problem.element, node.type.element, value)
            self.phase.store(0, narrow, self._place(feature, build.add(at, lane)), node.type)
            return []

        build.for_loop(0, owner.plan.lanes, store)
