# SPDX-License-Identifier: Apache-2.0
"""A Fourier transform along the last dimension, one line at a time, by vectors of neighbouring points.

The line and its two pairs of planes stay in the first-level cache, where as many lines as a vector has lanes would not.
The first step reads the operand and the last one writes the result; while the stride of Stockham's algorithm is below a
vector, a step transposes its results in registers. A real line of even length is transformed as half as many complex
points, whose even and odd parts are told apart afterwards (for the inverse put together before).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import fft_butterfly as butterfly
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex
from gristmill.compiler.emitters.cpu.fft_pass import Array, Pass
from gristmill.compiler.emitters.cpu.fft_plan import RowPlan, Stage, Table, half_roots
from gristmill.compiler.emitters.cpu.fft_points import (
    Interleaved,
    Planes,
    Points,
    each_vector,
    gather_chunks,
    parts_of,
    reverse,
)
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, ElementType

#: Bytes between planes beyond their size: powers of two would meet in the same sets of a cache.
_PADDING = 128


class RowLines:
    """The code of one pass that has a target; ``row`` is the plan of its lines."""

    def __init__(self, job: Pass, row: RowPlan, part: ElementType, target: Target):
        self.job, self.row, self.part, self.target = job, row, part, target
        self.plan = row.plan
        self.kind = ir.VectorType.get([row.lanes], build.register_type(part))

    @property
    def tasks(self) -> int:
        """A task for each line."""
        return self.job.lines

    @property
    def plane_bytes(self) -> int:
        """From one plane to the next."""
        return -(-self.plan.inner * self.part.nbytes // 64) * 64 + _PADDING

    @property
    def scratch_bytes(self) -> int:
        """Two pairs of planes."""
        return 4 * self.plane_bytes

    @property
    def points(self) -> tuple[int, int]:
        """Parts of a line of the source and of the target."""
        job = self.job
        given = job.length // 2 + 1 if job.hermitian else job.length
        real_source = self.row.packed and not job.hermitian
        real_target = self.row.packed and job.hermitian
        return given * (1 if real_source else 2), job.stored * (1 if real_target else 2)

    @property
    def per_line(self) -> int:
        """Parts in a line of a cache."""
        return build.LINE_BYTES // self.part.nbytes

    def comes_from_afar(self, count: int) -> bool:
        """Whether lines of ``count`` parts are asked for ahead: lines that a cache can hold besides those at work."""
        nbytes = count * self.part.nbytes
        far = nbytes * self.job.lines > self.target.l2_bytes
        return far and nbytes <= self.target.l1_bytes and not self.plan.is_bluestein

    def key(self, name: str) -> str:
        """The name of a table of the plan."""
        return f"{name} of {self.plan.length} by {self.row.lanes}"

    def define(self, tables: Tables) -> None:
        """Define the constant tables."""

        def table(name: str, data: Table) -> None:
            tables.define(self.key(name), data.astype(self.part.dtype))

        for number, stage in enumerate(self.row.stages):
            if stage.stride > 1:
                table(f"stage {number}", self.row.twiddles(stage))
        if self.plan.is_bluestein:
            table("chirp", self.plan.chirp().T)
            table("filter", self.plan.filter().T)
        if self.row.packed:
            table("halves", half_roots(self.plan.length))

    def emit(self, phase: PhaseFrame, tables: Tables) -> None:
        """Emit the task loop."""
        phase.each_task(lambda line: _Row(self, phase, tables, line).emit())


@dataclass(frozen=True)
class _Ahead:
    """A share of a line that one step asks the caches for, besides its own work.

    Attributes:
        values: one-dimensional memref.
        start: where the share begins in it.
        rate: elements for each butterfly.
        most: the last element of the share that is asked for.
        writes: whether it will be written.
    """

    values: ir.Value
    start: Index
    rate: int
    most: int
    writes: bool

    def emit(self, at: Index, lanes: int, per_line: int) -> None:
        """Ask for what falls to the vector of butterflies from ``at`` on, by lines of ``per_line`` elements."""
        for first in range(0, lanes * self.rate, per_line):
            place = build.minimum(build.add(build.mul(at, self.rate), first), self.most)
            where = build.add(self.start, place)
            build.prefetch(self.values, where, is_write=self.writes, is_near=False)


@dataclass
class _Row:
    """One task: one line."""

    lines: RowLines
    phase: PhaseFrame
    tables: Tables
    line: ir.Value
    _region: int = field(default=1, init=False)
    _ahead: list[_Ahead] = field(default_factory=list[_Ahead], init=False)

    @property
    def part(self) -> ElementType:
        """The type of a part."""
        return self.lines.part

    @property
    def lanes(self) -> int:
        """Points of a vector."""
        return self.lines.row.lanes

    def emit(self) -> None:
        """Emit the transform."""
        job = self.lines.job
        source, output = self._source(), self._target()
        if self.lines.row.packed and job.hermitian:
            self._transform(self._tangle(source), output)
        elif self.lines.row.packed:
            self._untangle(self._transform(source, None), output)
        else:
            self._transform(source, output)

    def _floats(self, plane: int, count: int) -> ir.Value:
        """Scratch from a plane on, as ``count`` parts."""
        array = ArrayType((count,), self.part)
        return build.view(self.phase.scratch, plane * self.lines.plane_bytes, array)

    def _next(self) -> Planes:
        """The pair of planes that the last step did not write."""
        self._region = 1 - self._region
        size = self.lines.plan.inner
        real, imaginary = (self._floats(2 * self._region + i, size) for i in (0, 1))
        return Planes(real, imaginary)

    def _source(self) -> Interleaved:
        """The line as the operand has it; computed into the second pair of planes if it is not in memory."""
        job, count = self.lines.job, self.lines.points[0]
        # With real and imaginary part exchanged, the inverse is the forward transform. Hermitian lines first meet
        # their mirror image.
        exchanged = job.inverse and not job.hermitian
        if job.source is not None:
            values = parts_of(job.source(self.phase))
            return Interleaved(values, build.mul(self.line, count), exchanged)
        values = self._floats(2, count)
        parts = 1 if self.lines.row.packed and not job.hermitian else 2

        def element(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with self.phase.elemental.scope():
                value = job.read(self.phase, job.index(self.line, 0, at))
                for i, part in enumerate(value[:parts]):
                    build.store(part, values, [build.add(build.mul(at, parts), i)], self.part)
            return []

        build.for_loop(0, count // parts, element)
        return Interleaved(values, 0, exchanged)

    def _target(self) -> Interleaved:
        job, count = self.lines.job, self.lines.points[1]
        scale = 1 / job.length if job.inverse else 1.0
        assert job.target is not None, "the pass says where its lines go"
        values = parts_of(job.target(self.phase))
        return Interleaved(values, build.mul(self.line, count), job.inverse, scale)

    def _transform(self, source: Points, output: Points | None) -> Planes:
        """The transform of ``source``, to ``output`` or else the planes that are returned."""
        plan = self.lines.plan
        if not plan.is_bluestein:
            return self._stages(source, output)
        chirped = self._next()
        zero = butterfly.splat(self.lines.kind, 0.0)
        first = plan.length // self.lanes * self.lanes
        each_vector(
            plan.inner - first,
            self.lanes,
            lambda at: chirped.store(build.add(at, first), (zero, zero)),
        )
        self._scale("chirp", plan.length, source, chirped)
        result = self._stages(chirped, None)
        self._scale("filter", plan.inner, result, result)
        # With the parts exchanged the same transform goes back.
        result = self._stages(result.exchanged, None).exchanged
        chirped = self._next()
        self._scale("chirp", plan.length, result, chirped if output is None else output)
        return chirped

    def _scale(self, name: str, count: int, source: Points, target: Points) -> None:
        """Multiply points by those of a table."""
        table = self.tables.get(self.lines.key(name))

        def points(at: Index) -> None:
            value = source.load(self.lines.kind, at)
            target.store(at, butterfly.multiply(value, self._entries(table, [], at)))

        each_vector(count, self.lanes, points)

    def _entries(self, table: ir.Value, index: list[int], at: Index) -> Complex:
        """A vector of a table ``[..., 2, count]``."""
        real, imaginary = (
            vector.LoadOp(
                self.lines.kind, table, [build.index_value(i) for i in (*index, part, at)]
            ).result
            for part in (0, 1)
        )
        return real, imaginary

    def _stages(self, source: Points, output: Points | None) -> Planes:
        """Stockham's steps from ``source`` to ``output`` or else the planes that are returned."""
        stages = self.lines.row.stages
        planes = self._next()
        for number, stage in enumerate(stages):
            is_last = number == len(stages) - 1
            emit = self._short_stage if stage.stride < self.lanes else self._stage
            self._ahead = self._look_ahead(stage, number)
            emit(stage, number, source, output if is_last and output is not None else planes)
            source = planes
            if not is_last:
                planes = self._next()
        return planes

    def _look_ahead(self, stage: Stage, number: int) -> list[_Ahead]:
        """What a step asks for: a share of the next line, but for the first, and of the result, but for the last.

        Prefetchers take the inputs of a butterfly for streams that go on where the line ends. Shared out among
        all steps, the requests are never more than a core can have under way.
        """
        job, (given, stored) = self.lines.job, self.lines.points
        result: list[_Ahead] = []
        if job.source is not None and number > 0:
            line = build.minimum(build.add(self.line, 1), job.lines - 1)
            result += self._ask(stage, number - 1, job.source, line, given, writes=False)
        is_last = number == len(self.lines.row.stages) - 1
        if job.target is not None and job.target != job.source and not is_last:
            result += self._ask(stage, number, job.target, self.line, stored, writes=True)
        return result

    def _ask(
        self, stage: Stage, share: int, array: Array, line: Index, count: int, *, writes: bool
    ) -> list[_Ahead]:
        """Share number ``share`` of ``line``, which has ``count`` parts, if it comes from afar."""
        if not self.lines.comes_from_afar(count):
            return []
        per_line, shares = self.lines.per_line, len(self.lines.row.stages) - 1
        size = -(-count // (shares * per_line)) * per_line
        vectors = -(-stage.blocks * stage.stride // self.lanes)
        each = -(-size // (vectors * per_line)) * per_line
        most = min(size, count - share * size) - 1
        start = build.add(build.mul(line, count), share * size)
        values = parts_of(array(self.phase))
        return [_Ahead(values, start, each // self.lanes, most, writes)] if most >= 0 else []

    def _factors(self, stage: Stage, number: int, at: Index) -> list[Complex]:
        if stage.stride == 1:
            return []
        table = self.tables.get(self.lines.key(f"stage {number}"))
        return [self._entries(table, [k], at) for k in range(stage.radix - 1)]

    def _butterfly(
        self, stage: Stage, factors: list[Complex], source: Points, at: Index
    ) -> list[Complex]:
        """One vector of butterflies, whose inputs are ``blocks * stride`` apart."""
        for ahead in self._ahead:
            ahead.emit(at, self.lanes, self.lines.per_line)
        step = stage.blocks * stage.stride
        values = [source.load(self.lines.kind, build.add(at, step * k)) for k in range(stage.radix)]
        for k, factor in enumerate(factors):
            values[k + 1] = butterfly.multiply(values[k + 1], factor)
        return butterfly.transform(values)

    def _stage(self, stage: Stage, number: int, source: Points, target: Points) -> None:
        """A step whose stride is whole vectors."""
        stride = stage.stride

        def block(p: Index) -> None:
            def step(q: Index) -> None:
                factors = self._factors(stage, number, q)
                at = build.add(build.mul(p, stride), q)
                base = build.add(build.mul(p, stage.radix * stride), q)
                for j, value in enumerate(self._butterfly(stage, factors, source, at)):
                    target.store(build.add(base, j * stride), value)

            each_vector(stride, self.lanes, step)

        each_vector(stage.blocks, 1, block)

    def _short_stage(self, stage: Stage, number: int, source: Points, target: Points) -> None:
        """A step whose stride is less than a vector: results are brought in order in registers."""
        factors = self._factors(stage, number, 0)

        def step(at: Index) -> None:
            values = self._butterfly(stage, factors, source, at)
            real, imaginary = (
                gather_chunks([value[i] for value in values], stage.stride) for i in (0, 1)
            )
            base = build.mul(at, stage.radix)
            for j, value in enumerate(zip(real, imaginary, strict=True)):
                target.store(build.add(base, j * self.lanes), value)

        each_vector(stage.blocks * stage.stride, self.lanes, step)

    def _pairs(self, body: Callable[[Index, Index, Complex], None]) -> None:
        """``body(k, mirror, factor)`` for vectors of points from ``k`` on and their partners, which end there."""
        count = self.lines.plan.length
        table = self.tables.get(self.lines.key("halves"))

        def step(at: Index) -> None:
            mirror = build.sub(count - self.lanes, at)
            body(build.add(at, 1), mirror, self._entries(table, [], at))

        each_vector(count // 2, self.lanes, step)

    def _untangle(self, source: Planes, target: Interleaved) -> None:
        """The first half of a real line's transform, from that of its even points plus i times its odd points."""
        count, kind = self.lines.plan.length, self.lines.kind

        def pair(k: Index, mirror: Index, factor: Complex) -> None:
            a, b = source.load(kind, k), _reversed(source.load(kind, mirror))
            first, second = butterfly.untangle(a, b, factor)
            target.store(k, first)
            target.store(mirror, _reversed(second))

        real, imaginary = (build.load(x, [0], self.part) for x in (source.real, source.imaginary))
        zero = build.constant(self.part, 0)
        self._put(target, 0, (butterfly.add(real, imaginary), zero))
        self._put(target, count, (butterfly.sub(real, imaginary), zero))
        self._pairs(pair)

    def _put(self, target: Interleaved, at: int, value: Complex) -> None:
        for i, part in enumerate(value):
            build.store(part, target.values, [build.add(target.start, 2 * at + i)], self.part)

    def _tangle(self, source: Interleaved) -> Planes:
        """The reverse of :meth:`_untangle`, doubled, with real and imaginary part exchanged for the inverse."""
        count, kind = self.lines.plan.length, self.lines.kind
        planes = self._next()
        target = planes.exchanged

        def pair(k: Index, mirror: Index, factor: Complex) -> None:
            a, b = source.load(kind, k), _reversed(source.load(kind, mirror))
            first, second = butterfly.tangle(a, b, factor)
            target.store(k, first)
            target.store(mirror, _reversed(second))

        self._pairs(pair)
        first, last = (
            build.load(source.values, [build.add(source.start, 2 * i)], self.part)
            for i in (0, count)
        )
        build.store(butterfly.add(first, last), target.real, [0], self.part)
        build.store(butterfly.sub(first, last), target.imaginary, [0], self.part)
        return planes


def _reversed(value: Complex) -> Complex:
    return reverse(value[0]), reverse(value[1])
