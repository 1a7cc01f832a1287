# SPDX-License-Identifier: Apache-2.0
"""The FFT emitter: Stockham's algorithm along lines, or over several lines at once, one in each lane of a vector.

A *line* runs along one transformed dimension. Where its points are neighbours in memory and its length allows, a task
is one line (:mod:`.fft_row`). Otherwise a task loads as many lines as a vector has lanes into scratch, as planes of
real and imaginary parts with the lanes innermost; every step is then whole-vector arithmetic whatever the length
(:mod:`.fft_butterfly`), and a twiddle factor is one scalar for all lanes. Lengths with large prime factors are
convolved with a chirp (Bluestein). Several dimensions are transformed one after another, a phase each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import fft_butterfly as butterfly
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex
from gristmill.compiler.emitters.cpu.fft_pass import Array, Buffers, Pass, SplitLine, split_length
from gristmill.compiler.emitters.cpu.fft_plan import Plan, RowPlan, Stage
from gristmill.compiler.emitters.cpu.fft_row import RowLines
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.compiler.emitters.elemental import complex_arithmetic
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.types import ArrayType, ElementType, element_type

#: Scratch that the lines of one task should not exceed, while they fill at least this many lanes.
_SCRATCH_LIMIT, _MIN_LANES = 2 << 20, 4
#: Vectors side by side where neighbouring lines are neighbours in memory, and the scratch they may take: a line's
#: elements are pages apart there, and every page touched costs.
_MAX_VECTORS, _VECTORS_LIMIT = 4, 1 << 20
#: How many times the work of a line's own algorithm that of two passes is, which more threads can share.
_SPLIT_COST = 4


class FftEmitter:
    """Compiles one ``fft`` and the data movement fused into its operand."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.operand = self.node.operands[0]
        self.kind = self.node.string("fft_type")
        self.lengths = self.node.dims("fft_length")
        element = self.node.type.element
        is_real = element.kind != "complex"
        self.part: ElementType = element if is_real else complex_arithmetic.part_type(element)
        self.complex = element_type(f"complex<{self.part.name}>")
        between = self.operand.shape if self.kind == "IRFFT" else self.node.shape
        self._between = ArrayType(between, self.complex)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        if self.is_empty:
            frame = KernelFrame(self.source)
            frame.phase(self._fill_zero)
            return frame.finish("fft")
        workspace = self.workspace_bytes
        passes = self.passes()
        split = self._split(passes)
        if split is not None:
            passes, workspace = split.passes(), split.between.nbytes
        lines = [self._lines(p) for p in passes]
        scratch = max(x.scratch_bytes for x in lines)
        frame = KernelFrame(self.source, workspace_bytes=workspace, scratch_bytes=scratch)
        tables = Tables(frame.module.body, self.source.name)
        if split is not None:
            split.define(tables)
        work = 0
        for item in lines:
            item.define(tables)
            work_of_pass = flops(item.plan) * item.job.lines
            work += work_of_pass
            frame.phase(
                lambda phase, item=item: item.emit(phase, tables),
                item.tasks,
                worth_splitting(work_of_pass, 2),
            )
        return frame.finish("fft", work)

    def _lines(self, job: Pass) -> _Lines | RowLines:
        """Vectors along the line where its points are neighbours, or else of the same point of several lines."""
        row = self._row(job)
        return _Lines(self, job) if row is None else RowLines(job, row, self.part)

    def _row(self, job: Pass) -> RowPlan | None:
        target = self.source.target
        if job.neighbours > 1 or job.target is None or isinstance(target, GpuTarget):
            return None
        real = job.hermitian or job.stored != job.length
        return RowPlan.of(job.length, real, target.lanes(self.part.nbytes))

    def _fill_zero(self, phase: PhaseFrame) -> None:
        zero = build.constant(self.node.type.element, 0)

        def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            index = build.delinearize(at, self.node.shape)
            phase.store(0, zero, index, self.node.type)
            return []

        if self.node.type.size:
            build.for_loop(0, self.node.type.size, step)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is transformed: the result, if it has elements, is zero."""
        return self.node.type.size == 0 or self.operand.type.size == 0

    @property
    def workspace_bytes(self) -> int:
        """Memory for complex values in between, which a real result cannot hold."""
        return self._between.nbytes if self.kind == "IRFFT" and len(self.lengths) > 1 else 0

    def passes(self) -> list[Pass]:
        """The last dimension first, or last for ``IRFFT``; results in between are complex."""
        rank, count = len(self.node.shape), len(self.lengths)
        dimensions = list(range(rank - count, rank))
        inverse = self.kind in ("IFFT", "IRFFT")
        order = dimensions if self.kind == "IRFFT" else dimensions[::-1]
        result: list[Pass] = []
        for number, dimension in enumerate(order):
            length = self.lengths[dimension - (rank - count)]
            is_real_result = self.kind == "IRFFT" and number == count - 1
            halves = self.kind == "RFFT" and number == 0
            shape = self.node.shape if is_real_result else self._between.shape
            result.append(
                Pass(
                    shape,
                    dimension,
                    length,
                    inverse,
                    length // 2 + 1 if halves else length,
                    is_real_result,
                    self._read_operand if number == 0 else self._read_between,
                    self._write_real if is_real_result else self._write_between,
                    self._operand_array() if number == 0 else self._buffer,
                    (lambda phase: phase.results[0]) if is_real_result else self._buffer,
                )
            )
        return result

    def _split(self, passes: list[Pass]) -> SplitLine | None:
        """Two passes instead of one whose lines are long and do not fill a vector."""
        whole, target = passes[0], self.source.target
        if len(passes) > 1 or whole.hermitian or 2 * whole.lines > target.lanes(self.part.nbytes):
            return None
        row = self._row(whole)
        if row is not None:
            fits = RowLines(whole, row, self.part).scratch_bytes < target.l3_bytes
            if fits and target.max_threads < _SPLIT_COST * whole.lines:
                return None
        sizes = split_length(whole.length)
        if sizes is None:
            return None
        return SplitLine(whole.shape[:-1], whole.length, sizes, whole, self.part)

    def _read_operand(self, phase: Buffers, index: list[Index]) -> Complex:
        value = phase.elemental.value(self.operand, index)
        if self.operand.type.element.kind == "complex":
            return complex_arithmetic.parts(value)
        return value, build.constant(self.part, 0)

    def _operand_array(self) -> Array | None:
        """The operand, unless it is computed."""
        operand = self.operand
        return (
            (lambda phase: phase.arguments[operand.result]) if operand.kind == "parameter" else None
        )

    def _buffer(self, phase: Buffers) -> ir.Value:
        """Where complex results in between are: the result, unless that is real."""
        if self.kind != "IRFFT":
            return phase.results[0]
        return build.view(phase.workspace, 0, self._between)

    def _read_between(self, phase: Buffers, index: list[Index]) -> Complex:
        value = build.load(self._buffer(phase), index, self.complex)
        return complex_arithmetic.parts(value)

    def _write_between(self, phase: Buffers, index: list[Index], value: Complex) -> None:
        build.store(complex_arithmetic.create(*value), self._buffer(phase), index, self.complex)

    def _write_real(self, phase: Buffers, index: list[Index], value: Complex) -> None:
        phase.store(0, value[0], index, self.node.type)


def flops(plan: Plan) -> int:
    """The customary count for one line: 5 n log2 n."""
    return 5 * plan.inner * max(1, plan.inner.bit_length())


def stage_key(plan: Plan, number: int) -> str:
    """The name of the table of a stage's twiddle factors."""
    return f"stage {number} of {plan.inner}"


def chirp_key(plan: Plan) -> str:
    """The name of the table of Bluestein's chirp."""
    return f"chirp of {plan.length}"


def filter_key(plan: Plan) -> str:
    """The name of the table of the chirp's transform."""
    return f"filter of {plan.length}"


def define_tables(tables: Tables, plan: Plan, part: ElementType) -> None:
    """Define the constant tables of a plan, in the type of a line's parts."""
    for number, stage in enumerate(plan.stages()):
        if stage.blocks > 1:
            tables.define(stage_key(plan, number), stage.twiddles().astype(part.dtype))
    if plan.is_bluestein:
        tables.define(chirp_key(plan), plan.chirp().astype(part.dtype))
        tables.define(filter_key(plan), plan.filter().astype(part.dtype))


class _Lines:
    """The code of one pass."""

    def __init__(self, owner: FftEmitter, job: Pass):
        self.job, self.part = job, owner.part
        self.plan = Plan.of(job.length)
        self.stages = self.plan.stages()
        lanes = owner.source.target.lanes(self.part.nbytes)
        lanes = min(lanes, 1 << max(0, job.lines - 1).bit_length())
        while lanes > _MIN_LANES and 4 * self._plane_bytes(lanes) > _SCRATCH_LIMIT:
            lanes //= 2
        self.lanes, self.vectors = lanes, 1
        while (
            self.vectors < _MAX_VECTORS
            and job.neighbours % (2 * self.width) == 0
            and 8 * self._plane_bytes(self.width) <= _VECTORS_LIMIT
        ):
            self.vectors *= 2

    @property
    def width(self) -> int:
        """Lines of one task."""
        return self.lanes * self.vectors

    def _plane_bytes(self, lanes: int) -> int:
        return -(-self.plan.inner * lanes * self.part.nbytes // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one task: two pairs of planes."""
        return 4 * self._plane_bytes(self.width)

    @property
    def tasks(self) -> int:
        """Groups of lines."""
        return -(-self.job.lines // self.width)

    @property
    def vector(self) -> ir.VectorType:
        """One part of a point of every line."""
        return ir.VectorType.get([self.lanes], build.register_type(self.part))

    def define(self, tables: Tables) -> None:
        """Define the constant tables."""
        define_tables(tables, self.plan, self.part)

    def emit(self, phase: PhaseFrame, tables: Tables) -> None:
        """Emit the task loop."""
        array = ArrayType((self.plan.inner * self.width,), self.part)
        planes = [
            build.view(phase.scratch, i * self._plane_bytes(self.width), array) for i in range(4)
        ]

        def task(number: ir.Value) -> None:
            first = build.mul(number, self.width)
            count: Index = self.width
            if self.job.lines % self.width:
                count = build.minimum(build.sub(self.job.lines, first), self.width)
            _Group(self, phase, tables, first, count).emit(planes)

        phase.each_task(task)


Planes = Sequence[ir.Value]


@dataclass(frozen=True)
class _Group:
    """One task: ``count`` lines from ``first`` on."""

    lines: _Lines
    phase: PhaseFrame
    tables: Tables
    first: Index
    count: Index

    def emit(self, planes: Planes) -> None:
        """Emit the transform; ``planes`` are two pairs."""
        job, plan = self.lines.job, self.lines.plan
        source, target = list(planes[:2]), list(planes[2:])
        if (
            job.inverse
        ):  # with real and imaginary part exchanged, the inverse is the forward transform
            source.reverse()
        self._load(source)
        if job.inverse:
            source.reverse()
        if plan.is_bluestein:
            source, target = self._convolve(source, target)
        else:
            source, target = self._transform(source, target)
        self._store(source[::-1] if job.inverse else source)

    def _each(self, low: Index, high: Index, body: Callable[[Index, Index], None]) -> None:
        """``body(position, lane)`` for the positions in range of every line."""

        def position(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            build.for_loop(0, self.count, lambda lane, _: element(at, lane))
            return []

        def element(at: Index, lane: ir.Value) -> list[ir.Value]:
            with self.phase.elemental.scope():
                body(at, lane)
            return []

        build.for_loop(low, high, position)

    def _put(self, planes: Planes, at: Index, lane: Index, value: Complex) -> None:
        where = [build.add(build.mul(at, self.lines.width), lane)]
        for plane, part in zip(planes, value, strict=True):
            build.store(part, plane, where, self.lines.part)

    def _get(self, planes: Planes, at: Index, lane: Index) -> Complex:
        where = [build.add(build.mul(at, self.lines.width), lane)]
        real, imaginary = (build.load(plane, where, self.lines.part) for plane in planes)
        return real, imaginary

    def _index(self, lane: Index, position: Index) -> list[Index]:
        job = self.lines.job
        index = job.near if job.are_near(self.lines.width) else job.index
        return index(self.first, lane, position)

    def _load(self, planes: Planes) -> None:
        job = self.lines.job

        def value(position: Index, lane: Index) -> Complex:
            return job.read(self.phase, self._index(lane, position))

        given = job.length // 2 + 1 if job.hermitian else job.length
        self._each(0, given, lambda at, lane: self._put(planes, at, lane, value(at, lane)))

        def mirrored(at: Index, lane: Index) -> None:
            real, imaginary = value(build.sub(job.length, at), lane)
            self._put(planes, at, lane, (real, arith.NegFOp(imaginary).result))

        if given < job.length:
            self._each(given, job.length, mirrored)

    def _store(self, planes: Planes) -> None:
        job, part = self.lines.job, self.lines.part

        def element(at: Index, lane: Index) -> None:
            value = self._get(planes, at, lane)
            if job.inverse:
                scale = build.constant(part, 1.0 / job.length)
                value = butterfly.mul(value[0], scale), butterfly.mul(value[1], scale)
            job.write(self.phase, self._index(lane, at), value)

        self._each(0, job.stored, element)

    def _vector(self, planes: Planes, at: Index) -> Complex:
        where = [build.index_value(build.mul(at, self.lines.lanes))]
        kind = self.lines.vector
        real, imaginary = (vector.LoadOp(kind, plane, where).result for plane in planes)
        return real, imaginary

    def _put_vector(self, planes: Planes, at: Index, value: Complex) -> None:
        where = [build.index_value(build.mul(at, self.lines.lanes))]
        for plane, part in zip(planes, value, strict=True):
            vector.StoreOp(part, plane, where)

    def _scalars(self, table: ir.Value, index: Sequence[Index]) -> Complex:
        """A complex number of a table, in every lane."""
        kind, part = self.lines.vector, self.lines.part
        real, imaginary = (
            vector.BroadcastOp(kind, build.load(table, [*index, i], part)).result for i in (0, 1)
        )
        return real, imaginary

    def _transform(self, source: Planes, target: Planes) -> tuple[Planes, Planes]:
        """The inner transform; returns ``(result, other planes)``."""
        for number, stage in enumerate(self.lines.stages):
            self._stage(stage, number, source, target)
            source, target = target, source
        return source, target

    def _stage(self, stage: Stage, number: int, source: Planes, target: Planes) -> None:
        table, stride = None, stage.stride * self.lines.vectors
        if stage.blocks > 1:
            table = self.tables.get(stage_key(self.lines.plan, number))

        def block(p: Index) -> None:
            factors: list[Complex] = []
            if table is not None:
                factors = [self._scalars(table, [p, j]) for j in range(stage.radix - 1)]

            def step(q: Index) -> None:
                at = [
                    build.add(q, build.mul(build.add(p, stage.blocks * k), stride))
                    for k in range(stage.radix)
                ]
                values = butterfly.transform([self._vector(source, x) for x in at])
                for j, factor in enumerate(factors):
                    values[j + 1] = butterfly.multiply(values[j + 1], factor)
                base = build.add(q, build.mul(p, stage.radix * stride))
                for j, value in enumerate(values):
                    self._put_vector(target, build.add(base, j * stride), value)

            _loop(stride, step)

        _loop(stage.blocks, block)

    def _convolve(self, source: Planes, target: Planes) -> tuple[Planes, Planes]:
        """Bluestein: the transform as a convolution with a chirp."""
        plan = self.lines.plan
        chirp = self.tables.get(chirp_key(plan))
        kernel = self.tables.get(filter_key(plan))

        vectors = self.lines.vectors

        def turn(at: Index) -> None:
            factor = self._scalars(chirp, [build.div(at, vectors)])
            self._put_vector(source, at, butterfly.multiply(self._vector(source, at), factor))

        def clear(at: Index) -> None:
            zero = butterfly.splat(self.lines.vector, 0.0)
            self._put_vector(source, build.add(at, plan.length * vectors), (zero, zero))

        _loop(plan.length * vectors, turn)
        _loop((plan.inner - plan.length) * vectors, clear)
        source, target = self._transform(source, target)

        def filtered(at: Index) -> None:
            factor = self._scalars(kernel, [build.div(at, vectors)])
            real, imaginary = butterfly.multiply(self._vector(source, at), factor)
            self._put_vector(source, at, (imaginary, real))  # exchanged: transforms back

        _loop(plan.inner * vectors, filtered)
        source, target = self._transform(source, target)

        def turn_back(at: Index) -> None:
            imaginary, real = self._vector(source, at)
            factor = self._scalars(chirp, [build.div(at, vectors)])
            self._put_vector(source, at, butterfly.multiply((real, imaginary), factor))

        _loop(plan.length * vectors, turn_back)
        return source, target


def _loop(count: int, body: Callable[[Index], None]) -> None:
    """A loop without carried values; none for a single step."""

    def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(at)
        return []

    if count == 1:
        body(0)
    else:
        build.for_loop(0, count, step)
