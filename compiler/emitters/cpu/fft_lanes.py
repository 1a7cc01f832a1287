# SPDX-License-Identifier: Apache-2.0
"""A Fourier transform of several lines at once, one in each lane of a vector.

A task loads as many lines as a vector has lanes into scratch, as planes of real and imaginary parts with the lanes
innermost; every step is then whole-vector arithmetic whatever the length, and a twiddle factor is one scalar for all
lanes. Steps are taken in groups: a group's butterflies, of up to :data:`_MOST_RADIX` points, stay in a tile of the
first-level cache, so that the planes, which need not fit there, are passed over once a group. Where neighbouring lines
are neighbours in memory, the first group reads the source and the last one writes the target; where neighbouring points
are, vectors along lines are transposed in registers.
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
from gristmill.compiler.emitters.cpu.fft_pass import Pass
from gristmill.compiler.emitters.cpu.fft_plan import (
    Group,
    Plan,
    Stage,
    by_fours,
    chirp_key,
    factorize,
    filter_key,
    groups,
    half_roots,
)
from gristmill.compiler.emitters.cpu.fft_points import (
    Interleaved,
    Planes,
    Points,
    each_vector,
    gather_chunks,
    parts_of,
)
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.compiler.target import GpuTarget, Target
from gristmill.runtime.types import ArrayType, ElementType

#: Scratch that the lines of one task should not exceed, while they fill at least this many lanes.
_SCRATCH_LIMIT, _MIN_LANES = 2 << 20, 4
#: Vectors side by side where neighbouring lines are neighbours in memory, and the scratch they may take: a line's
#: elements are pages apart there, and every page touched costs.
_MAX_VECTORS, _VECTORS_LIMIT = 4, 1 << 20
#: Points of a group's butterfly.
_MOST_RADIX = 64
#: The name of the table by which even and odd points of a real line meet.
_HALVES = "halves of lines"


class LaneLines:
    """The code of one pass.

    Attributes:
        lanes: lines of one vector.
        vectors: side by side in a task.
        by_columns: whether a task's points are vectors of the source and the target, but for the last of neighbours.
        by_rows: whether its lines are rows of both, as long as a vector at least.
        packed: whether these are real on one side, transformed as half as many complex points.
    """

    def __init__(self, job: Pass, part: ElementType, target: Target):
        self.job, self.part = job, part
        lanes = min(target.lanes(part.nbytes), 1 << max(0, job.lines - 1).bit_length())
        arrays = None not in (job.source, job.target) and lanes > 1
        arrays = arrays and not isinstance(target, GpuTarget)  # whose vectors are other
        halved = job.real and job.length % 2 == 0
        points = job.length // 2 if halved else job.length
        rows = arrays and job.neighbours == 1 and (halved or not job.real)
        self.by_rows = rows and points >= min(lanes, _MIN_LANES)
        while self.by_rows and lanes > points:
            lanes //= 2
        self.packed = self.by_rows and halved
        self.plan = Plan.of(points if self.packed else job.length)
        factors = factorize(self.plan.inner)
        assert factors is not None, "the inner length has small factors"
        if target.vector_bytes < 64:
            factors = by_fours(factors)
        self.groups = groups(self.plan.inner, factors, _MOST_RADIX)
        while lanes > _MIN_LANES and 4 * self._plane_bytes(lanes) > _SCRATCH_LIMIT:
            lanes //= 2
        columns = arrays and not job.real and not self.plan.is_bluestein and self.plan.inner > 1
        self.by_columns = columns and job.neighbours >= min(lanes, _MIN_LANES)
        while self.by_columns and lanes > job.neighbours:
            lanes //= 2
        self.lanes, self.vectors = lanes, 1
        while (
            not self.by_columns
            and self.vectors < _MAX_VECTORS
            and job.neighbours % (2 * self.width) == 0
            and 8 * self._plane_bytes(self.width) <= _VECTORS_LIMIT
        ):
            self.vectors *= 2

    @property
    def width(self) -> int:
        """Lines of one task."""
        return self.lanes * self.vectors

    def _plane_bytes(self, lanes: int) -> int:
        return -(-self._positions * lanes * self.part.nbytes // 64) * 64

    @property
    def _positions(self) -> int:
        return self.plan.inner + (1 if self.packed else 0)

    @property
    def _radix(self) -> int:
        """Points of the largest tile."""
        return max((g.whole.radix for g in self.groups), default=1)

    @property
    def _tile_bytes(self) -> int:
        return -(-self._radix * self.lanes * self.part.nbytes // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one task: two pairs of planes, and of tiles."""
        return 4 * (self._plane_bytes(self.width) + self._tile_bytes)

    @property
    def tasks(self) -> int:
        """Groups of lines."""
        if self.by_columns:
            return self.job.lines // self.job.neighbours * self._across
        return -(-self.job.lines // self.width)

    @property
    def _across(self) -> int:
        """Tasks of neighbouring lines."""
        return -(-self.job.neighbours // self.lanes)

    @property
    def kind(self) -> ir.VectorType:
        """One part of a point of every line."""
        return ir.VectorType.get([self.lanes], build.register_type(self.part))

    def define(self, tables: Tables) -> None:
        """Define the constant tables."""
        for group in self.groups:
            if group.whole.blocks > 1:
                tables.define(group_key(group), group.twiddles().astype(self.part.dtype))
            for step in group.steps:
                if step.blocks > 1:
                    tables.define(step_key(step), step.twiddles().astype(self.part.dtype))
        if self.packed:
            tables.define(_HALVES, half_roots(self.plan.length).astype(self.part.dtype))
        if self.plan.is_bluestein:
            tables.define(chirp_key(self.plan), self.plan.chirp().astype(self.part.dtype))
            tables.define(filter_key(self.plan), self.plan.filter().astype(self.part.dtype))

    def emit(self, phase: PhaseFrame, tables: Tables) -> None:
        """Emit the task loop."""
        sizes = [self._positions * self.width] * 4 + [self._radix * self.lanes] * 4
        steps = [self._plane_bytes(self.width)] * 4 + [self._tile_bytes] * 4
        memory = [
            build.view(phase.scratch, sum(steps[:i]), ArrayType((size,), self.part))
            for i, size in enumerate(sizes)
        ]
        pairs = [_Vectors(memory[i], memory[i + 1], self.lanes) for i in (0, 2, 4, 6)]

        def task(number: ir.Value) -> None:
            first, count = self._range(number)
            _Task(self, phase, tables, first, count, pairs[2:]).emit(pairs[:2])

        phase.each_task(task)

    def _range(self, number: ir.Value) -> tuple[Index, Index]:
        """The first line of a task, and how many."""
        job, width = self.job, self.width
        if not self.by_columns:
            first = build.mul(number, width)
            whole = job.lines % width == 0
            return first, width if whole else build.minimum(build.sub(job.lines, first), width)
        inner = build.mul(build.mod(number, self._across), width)
        first = build.add(build.mul(build.div(number, self._across), job.neighbours), inner)
        if job.neighbours % width == 0:
            return first, width
        return first, build.minimum(build.sub(job.neighbours, inner), width)


def group_key(group: Group) -> str:
    """The name of the table of a group's twiddle factors."""
    return f"group {group.whole.blocks} of {group.whole.radix}"


def step_key(step: Stage) -> str:
    """The name of the table of a step's twiddle factors."""
    return f"step {step.blocks} of {step.radix}"


@dataclass(frozen=True)
class _Vectors:
    """Planes of vectors: a position is a vector."""

    real: ir.Value
    imaginary: ir.Value
    lanes: int

    @property
    def exchanged(self) -> _Vectors:
        return _Vectors(self.imaginary, self.real, self.lanes)

    def load(self, kind: ir.VectorType, at: Index) -> Complex:
        return Planes(self.real, self.imaginary).load(kind, build.mul(at, self.lanes))

    def store(self, at: Index, value: Complex) -> None:
        Planes(self.real, self.imaginary).store(build.mul(at, self.lanes), value)


@dataclass(frozen=True)
class _View:
    """Every ``step``-th position from ``first`` on, or from ``first`` of a table of factors what is stored."""

    points: Points
    first: Index
    step: int
    factor: Callable[[Index], Complex] | None = None

    def load(self, kind: ir.VectorType, at: Index) -> Complex:
        return self.points.load(kind, build.add(self.first, build.mul(at, self.step)))

    def store(self, at: Index, value: Complex) -> None:
        if self.factor is not None:
            value = butterfly.multiply(value, self.factor(at))
        self.points.store(build.add(self.first, build.mul(at, self.step)), value)


#: What becomes of a point and its mirror image, given a factor.
Pair = Callable[[Complex, Complex, Complex], tuple[Complex, Complex]]


@dataclass(frozen=True)
class _Task:
    """One task: ``count`` lines from ``first`` on; ``tiles`` are two pairs."""

    lines: LaneLines
    phase: PhaseFrame
    tables: Tables
    first: Index
    count: Index
    tiles: Sequence[_Vectors]

    def emit(self, planes: Sequence[_Vectors]) -> None:
        """Emit the transform; ``planes`` are two pairs."""

        def vectors() -> list[ir.Value]:
            job = self.lines.job
            source, target = self._columns(job.source, 1.0), self._columns(job.target, self._scale)
            self._groups(source, target, planes)
            return []

        def elements() -> list[ir.Value]:
            self._by_planes(planes[0], planes[1])
            return []

        if not self.lines.by_columns:
            elements()
        elif isinstance(self.count, int):
            vectors()
        else:
            build.if_else(build.equal(self.count, self.lines.lanes), [], vectors, elements)

    def _by_planes(self, source: _Vectors, other: _Vectors) -> None:
        """Load, transform, store."""
        job, packed = self.lines.job, self.lines.packed
        load, store = self._load, self._store
        if self.lines.by_rows:
            load, store = self._load_rows, self._store_rows
        # With real and imaginary part exchanged, the inverse is the forward transform.
        load(source.exchanged if job.inverse and not packed else source)
        if packed and job.hermitian:
            self._tangle(source, other.exchanged)
            source, other = other, source
        transform = self._convolve if self.lines.plan.is_bluestein else self._transform
        source, other = transform(source, other)
        if packed and not job.hermitian:
            self._untangle(source, other)
            source, other = other, source
        store(source.exchanged if job.inverse else source)

    def _pairs(self, source: _Vectors, target: _Vectors, pair: Pair) -> None:
        """Points and their mirror images, but for the first."""
        count, kind = self.lines.plan.length, self.lines.kind
        table, part = self.tables.get(_HALVES), self.lines.part

        def step(at: Index) -> None:
            k, mirror = build.add(at, 1), build.sub(count - 1, at)
            real, imaginary = (
                vector.BroadcastOp(kind, build.load(table, [i, at], part)).result for i in (0, 1)
            )
            values = pair(source.load(kind, k), source.load(kind, mirror), (real, imaginary))
            target.store(k, values[0])
            target.store(mirror, values[1])

        _loop(count // 2, step)

    def _untangle(self, source: _Vectors, target: _Vectors) -> None:
        """See :func:`~.fft_butterfly.untangle`; the mirror image of the first point is itself."""
        real, imaginary = source.load(self.lines.kind, 0)
        zero = butterfly.splat(self.lines.kind, 0.0)
        target.store(0, (butterfly.add(real, imaginary), zero))
        target.store(self.lines.plan.length, (butterfly.sub(real, imaginary), zero))
        self._pairs(source, target, butterfly.untangle)

    def _tangle(self, source: _Vectors, target: _Vectors) -> None:
        """See :func:`~.fft_butterfly.tangle`."""
        (first, _), (last, _) = (
            source.load(self.lines.kind, at) for at in (0, self.lines.plan.length)
        )
        target.store(0, (butterfly.add(first, last), butterfly.sub(first, last)))
        self._pairs(source, target, butterfly.tangle)

    @property
    def _scale(self) -> float:
        return 1.0 / self.lines.job.length if self.lines.job.inverse else 1.0

    def _columns(self, array: Callable[[PhaseFrame], ir.Value] | None, scale: float) -> _View:
        """The task's lines where they are: a position is a vector of an array."""
        assert array is not None, "by_columns has arrays"
        job = self.lines.job
        outer, inner = build.div(self.first, job.neighbours), build.mod(self.first, job.neighbours)
        start = build.add(build.mul(outer, job.length * job.neighbours), inner)
        values = parts_of(array(self.phase))
        points = Interleaved(values, build.mul(start, 2), job.inverse, scale)
        return _View(points, 0, job.neighbours)

    def _row(
        self, array: Callable[[PhaseFrame], ir.Value] | None, lane: int, points: int
    ) -> Interleaved:
        """One of the task's lines, or the last of all lines if there are not so many."""
        assert array is not None, "by_rows has arrays"
        line = build.add(self.first, lane)
        if not isinstance(self.count, int):
            line = build.minimum(line, self.lines.job.lines - 1)
        start = build.mul(line, 2 * points)
        return Interleaved(parts_of(array(self.phase)), start, False, self._scale)

    def _load_rows(self, planes: _Vectors) -> None:
        job, lanes = self.lines.job, self.lines.lanes
        count = self.lines.plan.length + (1 if self.lines.packed and job.hermitian else 0)
        rows = [self._row(job.source, lane, count) for lane in range(lanes)]

        def block(at: Index) -> None:
            for i, value in enumerate(_turned([row.load(self.lines.kind, at) for row in rows])):
                planes.store(build.add(at, i), value)

        each_vector(count, lanes, block)

    def _store_rows(self, planes: _Vectors) -> None:
        job, lanes = self.lines.job, self.lines.lanes
        count = self.lines.plan.length + (1 if self.lines.packed and not job.hermitian else 0)
        rows = [self._row(job.target, lane, count) for lane in range(lanes)]

        def block(at: Index) -> None:
            points = [planes.load(self.lines.kind, build.add(at, i)) for i in range(lanes)]
            for lane, value in enumerate(_turned(points)):
                if isinstance(self.count, int):
                    rows[lane].store(at, value)
                    continue
                with build.if_then(build.less(lane, self.count)):
                    rows[lane].store(at, value)

        each_vector(count, lanes, block)

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

    def _put(self, planes: _Vectors, at: Index, lane: Index, value: Complex) -> None:
        where = [build.add(build.mul(at, self.lines.width), lane)]
        for plane, part in zip((planes.real, planes.imaginary), value, strict=True):
            build.store(part, plane, where, self.lines.part)

    def _get(self, planes: _Vectors, at: Index, lane: Index) -> Complex:
        where = [build.add(build.mul(at, self.lines.width), lane)]
        real, imaginary = (
            build.load(plane, where, self.lines.part) for plane in (planes.real, planes.imaginary)
        )
        return real, imaginary

    def _index(self, lane: Index, position: Index) -> list[Index]:
        job = self.lines.job
        index = job.near if job.are_near(self.lines.width) else job.index
        return index(self.first, lane, position)

    def _load(self, planes: _Vectors) -> None:
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

    def _store(self, planes: _Vectors) -> None:
        job, part = self.lines.job, self.lines.part

        def element(at: Index, lane: Index) -> None:
            value = self._get(planes, at, lane)
            if job.inverse:
                scale = build.constant(part, 1.0 / job.length)
                value = butterfly.mul(value[0], scale), butterfly.mul(value[1], scale)
            job.write(self.phase, self._index(lane, at), value)

        self._each(0, job.stored, element)

    def _scalars(self, table: ir.Value, index: Sequence[Index]) -> Complex:
        """A complex number of a table, in every lane."""
        kind, part = self.lines.kind, self.lines.part
        real, imaginary = (
            vector.BroadcastOp(kind, build.load(table, [*index, i], part)).result for i in (0, 1)
        )
        return real, imaginary

    def _transform(self, source: _Vectors, target: _Vectors) -> tuple[_Vectors, _Vectors]:
        """The inner transform; returns ``(result, other planes)``."""
        for number in range(len(self.lines.groups)):
            self._group(number, source, target)
            source, target = target, source
        return source, target

    def _groups(self, source: Points, target: Points, planes: Sequence[_Vectors]) -> None:
        """The inner transform by way of planes."""
        last = len(self.lines.groups) - 1
        for number in range(last + 1):
            result = target if number == last else planes[number % 2]
            self._group(number, source, result)
            source = result

    def _group(self, number: int, source: Points, target: Points) -> None:
        group, vectors = self.lines.groups[number], self.lines.vectors
        stage, stride = group.whole, group.whole.stride * vectors

        def block(p: Index) -> None:
            def factor(j: Index) -> Complex:
                return self._scalars(self.tables.get(group_key(group)), [p, j])

            def step(q: Index) -> None:
                read = _View(source, build.add(q, build.mul(p, stride)), stage.blocks * stride)
                first = build.add(q, build.mul(p, stage.radix * stride))
                write = _View(target, first, stride, factor if stage.blocks > 1 else None)
                self._steps(group, read, write)

            _loop(stride, step)

        _loop(stage.blocks, block)

    def _steps(self, group: Group, source: Points, target: Points) -> None:
        """One of a group's butterflies, by way of tiles."""
        last = len(group.steps) - 1
        for number, step in enumerate(group.steps):
            result = target if number == last else self.tiles[number % 2]
            self._step(step, source, result)
            source = result

    def _step(self, stage: Stage, source: Points, target: Points) -> None:
        stride = stage.stride

        def block(p: Index) -> None:
            factors: list[Complex] = []
            if stage.blocks > 1:
                table = self.tables.get(step_key(stage))
                factors = [self._scalars(table, [p, j]) for j in range(stage.radix - 1)]

            def step(q: Index) -> None:
                at = [
                    build.add(q, build.mul(build.add(p, stage.blocks * k), stride))
                    for k in range(stage.radix)
                ]
                values = butterfly.transform([source.load(self.lines.kind, x) for x in at])
                for j, factor in enumerate(factors):
                    values[j + 1] = butterfly.multiply(values[j + 1], factor)
                base = build.add(q, build.mul(p, stage.radix * stride))
                for j, value in enumerate(values):
                    target.store(build.add(base, j * stride), value)

            _loop(stride, step)

        _loop(stage.blocks, block)

    def _convolve(self, source: _Vectors, target: _Vectors) -> tuple[_Vectors, _Vectors]:
        """Bluestein: the transform as a convolution with a chirp."""
        plan = self.lines.plan
        chirp = self.tables.get(chirp_key(plan))
        kernel = self.tables.get(filter_key(plan))

        vectors = self.lines.vectors

        def turn(at: Index) -> None:
            factor = self._scalars(chirp, [build.div(at, vectors)])
            source.store(at, butterfly.multiply(source.load(self.lines.kind, at), factor))

        def clear(at: Index) -> None:
            zero = butterfly.splat(self.lines.kind, 0.0)
            source.store(build.add(at, plan.length * vectors), (zero, zero))

        _loop(plan.length * vectors, turn)
        _loop((plan.inner - plan.length) * vectors, clear)
        source, target = self._transform(source, target)

        def filtered(at: Index) -> None:
            factor = self._scalars(kernel, [build.div(at, vectors)])
            real, imaginary = butterfly.multiply(source.load(self.lines.kind, at), factor)
            source.store(at, (imaginary, real))  # exchanged: transforms back

        _loop(plan.inner * vectors, filtered)
        source, target = self._transform(source, target)

        def turn_back(at: Index) -> None:
            imaginary, real = source.load(self.lines.kind, at)
            factor = self._scalars(chirp, [build.div(at, vectors)])
            source.store(at, butterfly.multiply((real, imaginary), factor))

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


def _turned(values: Sequence[Complex]) -> list[Complex]:
    """As many vectors as they have lanes, transposed."""
    real, imaginary = (gather_chunks([value[i] for value in values], 1) for i in (0, 1))
    return list(zip(real, imaginary, strict=True))
