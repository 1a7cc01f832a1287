# SPDX-License-Identifier: Apache-2.0
"""The FFT emitter: Stockham's algorithm along lines, or over several lines at once, one in each lane of a vector.

A *line* runs along one transformed dimension. Where its points are neighbours in memory and its length allows, a task
is one line (:mod:`.fft_row`). Otherwise a task loads as many lines as a vector has lanes into scratch, as planes of
real and imaginary parts with the lanes innermost; every step is then whole-vector arithmetic whatever the length
(:mod:`.fft_butterfly`), and a twiddle factor is one scalar for all lanes. Lengths with large prime factors are
convolved with a chirp (Bluestein). Several dimensions are transformed one after another, a phase each.
"""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex
from gristmill.compiler.emitters.cpu.fft_lanes import LaneLines
from gristmill.compiler.emitters.cpu.fft_pass import Array, Buffers, Pass, SplitLine, split_length
from gristmill.compiler.emitters.cpu.fft_plan import RowPlan, flops
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

    def _lines(self, job: Pass) -> LaneLines | RowLines:
        """Vectors along the line where its points are neighbours, or else of the same point of several lines."""
        row, target = self._row(job), self.source.target
        if row is None:
            return LaneLines(job, self.part, target)
        return RowLines(job, row, self.part, target)

    def _row(self, job: Pass) -> RowPlan | None:
        target = self.source.target
        if job.neighbours > 1 or job.target is None or isinstance(target, GpuTarget):
            return None
        # Passing over a line that is far away once more costs more than a few registers too few.
        near = 2 * self.complex.nbytes * job.length <= target.l2_bytes // 2
        fours = target.vector_bytes < 64 and near
        return RowPlan.of(job.length, job.real, target.lanes(self.part.nbytes), fours=fours)

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
                    halves or is_real_result,
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
            fits = RowLines(whole, row, self.part, target).scratch_bytes < target.l3_bytes
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
