# SPDX-License-Identifier: Apache-2.0
"""Triangular solves and Cholesky factorisation, a panel of columns at a time.

A right-hand side is solved in panels of a few vectors' width, which are independent tasks: row ``i`` of the panel
stays in registers while the rows already solved are subtracted. ``X op(A) = B`` is solved as ``op(A)ᵀ Xᵀ = Bᵀ``.
Cholesky computes ``U`` with ``A = Uᴴ U`` panel by panel from the left: a triangular solve for the rows above the
diagonal block, then the same recurrence with square roots on the diagonal; ``L`` is written as ``Uᴴ``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_dialect

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.panel import (
    BoundPanel,
    Panel,
    Parts,
    conjugate,
    from_parts,
    to_parts,
)
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType, ElementType, element_type


class TriangularSolveEmitter:
    """Compiles one ``triangular_solve`` and the data movement fused into its operands."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        op = self.node.op
        assert op is not None, "a fused computation returns an operation's result"
        self.a, self.b = self.node.operands
        self.left = hlo.boolean(op, "left_side")
        self.unit = hlo.boolean(op, "unit_diagonal")
        transpose = self.node.string("transpose_a")
        self.conjugates = transpose == "ADJOINT"
        # Solving from the right transposes once more.
        self.swaps = (transpose in ("TRANSPOSE", "ADJOINT")) == self.left
        self.ascending = hlo.boolean(op, "lower") != self.swaps
        self.size = self.a.shape[-1]
        self.columns = self.b.shape[-1] if self.left else self.b.shape[-2]
        self.batch = self.b.shape[:-2]
        self.panel = Panel.of(self.node.type.element, self.size, self.columns, source.target)

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source, scratch_bytes=self.panel.nbytes)
        flops = self.node.type.size * self.size
        if self.node.type.size == 0:
            frame.phase(lambda phase: None)
            return frame.finish("triangular_solve")
        tasks = math.prod(self.batch) * self._panels
        frame.phase(self._tasks, tasks, worth_splitting(flops, 1))
        return frame.finish("triangular_solve", flops)

    @property
    def _panels(self) -> int:
        return -(-self.columns // self.panel.width)

    def _tasks(self, phase: PhaseFrame) -> None:
        def task(number: ir.Value) -> None:
            batch = build.delinearize(build.div(number, self._panels), self.batch)
            first = build.mul(build.mod(number, self._panels), self.panel.width)
            self._solve(phase, batch, first)

        phase.each_task(task)

    def _place(self, row: Index, column: Index) -> list[Index]:
        return [row, column] if self.left else [column, row]

    def _solve(self, phase: PhaseFrame, batch: list[Index], first: Index) -> None:
        e, element = phase.elemental, self.node.type.element
        panel = self.panel.bind(phase.scratch)
        count = build.minimum(build.sub(self.columns, first), self.panel.width)
        if self.columns % self.panel.width == 0:
            count = self.panel.width

        def each(body: Callable[[Index, Index, list[Index]], None], clears: bool) -> None:
            def row(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                if clears and count is not self.panel.width:
                    panel.clear(i)
                build.for_loop(0, count, lambda j, _: column(i, j))
                return []

            def column(i: Index, j: ir.Value) -> list[ir.Value]:
                with e.scope():
                    body(i, j, [*batch, *self._place(i, build.add(first, j))])
                return []

            build.for_loop(0, self.size, row)

        def read(i: Index, j: Index, at: list[Index]) -> None:
            panel.put(i, j, to_parts(element, e.value(self.b, at)))

        def write(i: Index, j: Index, at: list[Index]) -> None:
            phase.store(0, from_parts(element, panel.get(i, j)), at, self.node.type)

        each(read, True)
        build.for_loop(0, self.size, lambda step, _: self._row(phase, panel, batch, step))
        each(write, False)

    def _coefficient(self, phase: PhaseFrame, batch: list[Index], i: Index, k: Index) -> Parts:
        at = [*batch, k, i] if self.swaps else [*batch, i, k]
        parts = to_parts(self.a.type.element, phase.elemental.value(self.a, at))
        return conjugate(parts) if self.conjugates else parts

    def _row(
        self, phase: PhaseFrame, panel: BoundPanel, batch: list[Index], step: ir.Value
    ) -> list[ir.Value]:
        """Solve one row of the panel."""
        e = phase.elemental
        i = step if self.ascending else build.sub(self.size - 1, step)

        def factor(k: ir.Value) -> Parts:
            with e.scope():
                return self._coefficient(phase, batch, i, k)

        low: Index = 0 if self.ascending else build.add(i, 1)
        high: Index = i if self.ascending else self.size
        with e.scope():
            vectors = panel.subtract_rows(panel.row(i), low, high, factor)
            if not self.unit:
                vectors = panel.divide(vectors, self._coefficient(phase, batch, i, i))
        panel.put_row(i, vectors)
        return []


class CholeskyEmitter:
    """Compiles one ``cholesky`` and the data movement fused into its operand."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        op = self.node.op
        assert op is not None, "a fused computation returns an operation's result"
        self.lower = hlo.boolean(op, "lower")
        self.size = self.node.shape[-1]
        self.batch = self.node.shape[:-2]
        self.element: ElementType = self.node.type.element
        self.panel = Panel.of(self.element, self.size, self.size, source.target)

    @property
    def keeps_factor(self) -> bool:
        """Whether the factor is kept in scratch too, because the result's type is too narrow to go on with."""
        return self.element.is_float and self.element.bits < 32

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        if self.node.type.size == 0:
            frame = KernelFrame(self.source)
            frame.phase(lambda phase: None)
            return frame.finish("cholesky")
        factor = 4 * self.size * self.size if self.keeps_factor else 0
        frame = KernelFrame(self.source, scratch_bytes=self.panel.nbytes + factor)
        flops = self.node.type.size * self.size // 3

        def tasks(phase: PhaseFrame) -> None:
            def task(number: ir.Value) -> None:
                _Factorisation(self, phase, build.delinearize(number, self.batch)).emit()

            phase.each_task(task)

        frame.phase(tasks, math.prod(self.batch), worth_splitting(flops, 2))
        return frame.finish("cholesky", flops)


class _Factorisation:
    """The code that factors one matrix."""

    def __init__(self, owner: CholeskyEmitter, phase: PhaseFrame, batch: list[Index]):
        self.owner, self.phase, self.batch = owner, phase, batch
        self.panel = owner.panel.bind(phase.scratch)
        self.factor: ir.Value | None = None
        if owner.keeps_factor:
            array = ArrayType((owner.size, owner.size), element_type("f32"))
            self.factor = build.view(phase.scratch, owner.panel.nbytes, array)

    def emit(self) -> None:
        """Emit all panels."""
        size, width = self.owner.size, self.owner.panel.width

        def block(first: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            end = build.minimum(build.add(first, width), size)
            build.for_loop(0, end, lambda i, _: self._read(i, first, end))
            build.for_loop(0, end, lambda i, _: self._row(i, first, end))
            return []

        build.for_loop(0, size, block, step=width)

    def _read(self, i: ir.Value, first: Index, end: Index) -> list[ir.Value]:
        """Row ``i`` of the panel from the triangle that is given; below the diagonal the panel is zero."""
        e, owner = self.phase.elemental, self.owner
        operand = owner.node.operands[0]
        self.panel.clear(i)

        def column(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                at = [j, i] if owner.lower else [i, j]
                parts = to_parts(owner.element, e.value(operand, [*self.batch, *at]))
                self.panel.put(i, build.sub(j, first), conjugate(parts) if owner.lower else parts)
            return []

        build.for_loop(build.maximum(i, first), end, column)
        return []

    def _row(self, i: ir.Value, first: Index, end: Index) -> list[ir.Value]:
        panel = self.panel
        vectors = panel.subtract_rows(panel.row(i), 0, i, lambda k: conjugate(self._get(k, i)))
        panel.put_row(i, vectors)
        kind = build.register_type(self.owner.panel.part)
        in_block = build.at_least(i, first)
        column = build.sub(i, first)

        def root() -> list[ir.Value]:
            return [math_dialect.SqrtOp(panel.get(i, column)[0]).result]

        diagonal = build.if_else(in_block, [kind], root, lambda: [self._get(i, i)[0]])[0]
        scale = panel.spread((diagonal,))[0]
        panel.put_row(
            i,
            [tuple(arith.DivFOp(x, scale).result for x in parts) for parts in panel.row(i)],
        )
        with build.if_then(in_block):
            zero = build.constant(self.owner.panel.part, 0)
            panel.put(i, column, (diagonal, *([zero] * (len(panel.planes) - 1))))

        def store(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._put(i, j, panel.get(i, build.sub(j, first)))
            return []

        build.for_loop(build.maximum(i, first), end, store)
        return []

    def _get(self, i: Index, j: Index) -> Parts:
        """``U[i, j]``, computed before."""
        at = [j, i] if self.owner.lower else [i, j]
        if self.factor is not None:
            parts: Parts = (build.load(self.factor, at, element_type("f32")),)
        else:
            index = [*self.batch, *at]
            value = build.load(self.phase.results[0], index, self.owner.element)
            parts = to_parts(self.owner.element, value)
        return conjugate(parts) if self.owner.lower else parts

    def _put(self, i: Index, j: Index, parts: Parts) -> None:
        """Store ``U[i, j]``, and zero across the diagonal."""
        owner, element = self.owner, self.owner.element
        at, across = ([j, i], [i, j]) if owner.lower else ([i, j], [j, i])
        zero = build.constant(element, 0)
        self.phase.store(0, zero, [*self.batch, *across], owner.node.type)
        parts = conjugate(parts) if owner.lower else parts
        self.phase.store(0, from_parts(element, parts), [*self.batch, *at], owner.node.type)
        if self.factor is not None:
            build.store(parts[0], self.factor, at, element_type("f32"))
