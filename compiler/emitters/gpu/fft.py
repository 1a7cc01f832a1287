# SPDX-License-Identifier: Apache-2.0
"""The FFT emitter: Stockham's algorithm in shared memory, a block for some lines.

A *line* runs along one transformed dimension. A block loads its lines into shared memory, as planes of real and
imaginary parts; each step reads one pair of planes and writes the other, a butterfly a thread at a time, with a barrier
between steps. Lines too long for shared memory run as tasks of the CPU's emitter, whose passes over several dimensions,
plans and butterflies this emitter shares. As everywhere, several dimensions are one launch each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import fft as cpu
from gristmill.compiler.emitters.cpu import fft_butterfly as butterfly
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex
from gristmill.compiler.emitters.cpu.fft_pass import Pass
from gristmill.compiler.emitters.cpu.fft_plan import (
    Plan,
    Stage,
    chirp_key,
    define_tables,
    filter_key,
    flops,
    stage_key,
)
from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.tasks import TaskEmitter
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.target import GpuTarget

#: Threads of one block at most, and butterflies of the first step that a block should have.
BLOCK, BUTTERFLIES = 256, 128

#: A pair of planes: real and imaginary parts.
Planes = list[ir.Value]


class FftEmitter(cpu.FftEmitter):
    """Compiles one ``fft`` and the data movement fused into its operand."""

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        target = self.source.target
        assert isinstance(target, GpuTarget)
        passes = self.passes()
        most = max(4 * Plan.of(p.length).inner * self.part.nbytes for p in passes)
        if self.is_empty or most > target.shared_bytes:
            return TaskEmitter(cpu.FftEmitter, self.source).emit()
        frame = GpuFrame(self.source, self.workspace_bytes)
        tables = Tables(frame.body, self.source.name)
        work = 0
        for job in passes:
            lines = _Lines.of(job, self, target.shared_bytes)
            define_tables(tables, lines.plan, self.part)
            blocks = -(-job.lines // lines.count)
            frame.launch(
                lambda launch, x=lines: _Block(x, launch, tables).emit(),
                (blocks,),
                (lines.threads,),
            )
            work += flops(lines.plan) * job.lines
        return frame.finish("fft", work)


@dataclass(frozen=True)
class _Lines:
    """The lines of one block.

    Attributes:
        job: the pass they belong to.
        owner: the emitter.
        plan: how one line is transformed.
        count: number of lines.
        threads: of the block.
    """

    job: Pass
    owner: FftEmitter
    plan: Plan
    count: int
    threads: int

    @staticmethod
    def of(job: Pass, owner: FftEmitter, shared_bytes: int) -> _Lines:
        """As many lines as give the block enough butterflies and fit its shared memory."""
        plan = Plan.of(job.length)
        radix = plan.stages()[0].radix if plan.inner > 1 else 1
        butterflies = plan.inner // radix
        fitting = shared_bytes // (4 * plan.inner * owner.part.nbytes)
        count = max(1, min(BUTTERFLIES // butterflies, fitting, job.lines))
        threads = min(BLOCK, -(-count * butterflies // WARP) * WARP)
        return _Lines(job, owner, plan, count, threads)


@dataclass
class _Block:
    """The code of one block of one pass."""

    lines: _Lines
    launch: LaunchFrame
    tables: Tables
    kind: ir.VectorType = field(init=False)

    def __post_init__(self) -> None:
        self.kind = ir.VectorType.get([1], build.register_type(self.lines.owner.part))
        self.first = build.mul(self.launch.block_number(), self.lines.count)

    def emit(self) -> None:
        """Load, transform, store."""
        job, plan = self.lines.job, self.lines.plan
        size = plan.inner * self.lines.count
        real = build.register_type(self.lines.owner.part)
        source, target = ([self.launch.shared([size], real) for _ in "ri"] for _ in "st")
        # With real and imaginary part exchanged, the inverse is the forward transform.
        self._load(source[::-1] if job.inverse else source)
        self.launch.barrier()
        transform = self._convolve if plan.is_bluestein else self._transform
        source, target = transform(source, target)
        self._store(source[::-1] if job.inverse else source)

    def _each(self, count: int, body: Callable[[Index, Index], None]) -> None:
        """``body(line, position)`` for every line that exists and ``count`` positions, shared between the threads.

        Neighbouring threads take what is neighbouring in memory.
        """
        lines, side_by_side = self.lines.count, self.lines.job.neighbours > 1

        def item(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            line, position = build.div(number, count), build.mod(number, count)
            if side_by_side:
                line, position = build.mod(number, lines), build.div(number, lines)
            exists = self._exists(line)
            with self.launch.elemental.scope(), build.if_then(exists) if exists else nullcontext():
                body(line, position)
            return []

        build.for_loop(self.launch.thread(), lines * count, item, step=self.lines.threads)

    def _exists(self, line: Index) -> ir.Value | None:
        """Whether the block's ``line`` is one of the array; None when all are."""
        job = self.lines.job
        if job.lines % self.lines.count == 0:
            return None
        return build.less(build.add(self.first, line), job.lines)

    def _load(self, planes: Planes) -> None:
        job = self.lines.job
        given = job.length // 2 + 1 if job.hermitian else job.length

        def element(line: Index, at: Index) -> None:
            value = job.read(self.launch, job.index(self.first, line, at))
            self._put(planes, line, at, value)

        def mirrored(line: Index, at: Index) -> None:
            source = build.sub(job.length - given, at)
            real, imaginary = job.read(self.launch, job.index(self.first, line, source))
            negative = arith.NegFOp(imaginary).result
            self._put(planes, line, build.add(at, given), (real, negative))

        self._each(given, element)
        if given < job.length:
            self._each(job.length - given, mirrored)

    def _store(self, planes: Planes) -> None:
        job, part = self.lines.job, self.lines.owner.part

        def element(line: Index, at: Index) -> None:
            value = self._get(planes, line, at)
            if job.inverse:
                scale = build.constant(part, 1.0 / job.length)
                value = butterfly.mul(value[0], scale), butterfly.mul(value[1], scale)
            job.write(self.launch, job.index(self.first, line, at), value)

        self._each(job.stored, element)

    def _where(self, line: Index, at: Index) -> list[Index]:
        return [build.add(build.mul(line, self.lines.plan.inner), at)]

    def _put(self, planes: Planes, line: Index, at: Index, value: Complex) -> None:
        for plane, part in zip(planes, value, strict=True):
            build.store(part, plane, self._where(line, at), self.lines.owner.part)

    def _get(self, planes: Planes, line: Index, at: Index) -> Complex:
        where, part = self._where(line, at), self.lines.owner.part
        real, imaginary = (build.load(plane, where, part) for plane in planes)
        return real, imaginary

    def _vector(self, value: Complex) -> Complex:
        """The parts as vectors of one lane, which the butterflies compute with."""
        real, imaginary = (vector.BroadcastOp(self.kind, part).result for part in value)
        return real, imaginary

    def _scalar(self, value: Complex) -> Complex:
        real, imaginary = (vector.ExtractOp(part, [], [0]).result for part in value)
        return real, imaginary

    def _factor(self, name: str, index: Sequence[Index]) -> Complex:
        """A complex number of a table."""
        table, part = self.tables.get(name), self.lines.owner.part
        real, imaginary = (build.load(table, [*index, i], part) for i in (0, 1))
        return self._vector((real, imaginary))

    def _transform(self, source: Planes, target: Planes) -> tuple[Planes, Planes]:
        """The inner transform; returns ``(result, other planes)``."""
        for number, stage in enumerate(self.lines.plan.stages()):
            self._stage(stage, number, source, target)
            self.launch.barrier()
            source, target = target, source
        return source, target

    def _stage(self, stage: Stage, number: int, source: Planes, target: Planes) -> None:
        name = stage_key(self.lines.plan, number)

        def step(line: Index, item: Index) -> None:
            p, q = build.div(item, stage.stride), build.mod(item, stage.stride)
            values: list[Complex] = []
            for k in range(stage.radix):
                at = build.add(q, build.mul(build.add(p, stage.blocks * k), stage.stride))
                values.append(self._vector(self._get(source, line, at)))
            values = butterfly.transform(values)
            base = build.add(q, build.mul(p, stage.radix * stage.stride))
            for j, value in enumerate(values):
                if j and stage.blocks > 1:
                    value = butterfly.multiply(value, self._factor(name, [p, j - 1]))
                at = build.add(base, j * stage.stride)
                self._put(target, line, at, self._scalar(value))

        self._each(stage.blocks * stage.stride, step)

    def _convolve(self, source: Planes, target: Planes) -> tuple[Planes, Planes]:
        """Bluestein: the transform as a convolution with a chirp, in place between the two transforms."""
        plan = self.lines.plan
        chirp, kernel = chirp_key(plan), filter_key(plan)

        def clear(line: Index, at: Index) -> None:
            zero = build.constant(self.lines.owner.part, 0)
            self._put(source, line, build.add(at, plan.length), (zero, zero))

        self._scale(plan.length, source, chirp)
        self._each(plan.inner - plan.length, clear)
        self.launch.barrier()
        source, target = self._transform(source, target)
        self._scale(plan.inner, source, kernel)
        self.launch.barrier()
        # With the parts exchanged the same transform goes back.
        source, target = self._transform(source[::-1], target[::-1])
        source, target = source[::-1], target[::-1]
        self._scale(plan.length, source, chirp)
        self.launch.barrier()
        return source, target

    def _scale(self, count: int, planes: Planes, table: str) -> None:
        """Multiply the first ``count`` points of each line by a table."""

        def element(line: Index, at: Index) -> None:
            value = self._vector(self._get(planes, line, at))
            self._put(
                planes, line, at, self._scalar(butterfly.multiply(value, self._factor(table, [at])))
            )

        self._each(count, element)
