# SPDX-License-Identifier: Apache-2.0
"""The softmax of an argument's rows where the results go past the caches, by vectors all along.

Two passes a row: its exponentials and their sum, then the quotients, which need no stage on their way past the caches.
The second also finds the largest and the least element of the next row. A processor whose maxima are not computed where
multiply-adds are has room for that; and loads and stores past the caches go side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, llvm, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import reduction, softmax, streaming
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.compiler.emitters.elemental import scalar_source
from gristmill.compiler.target import Target
from gristmill.runtime.types import element_type

_F32 = element_type("f32")

_EXTREMES = (
    (-math.inf, llvm.MaxNumOp, vector.CombiningKind.MAXNUMF),
    (math.inf, llvm.MinNumOp, vector.CombiningKind.MINNUMF),
)


@dataclass(frozen=True)
class SoftmaxRows:
    """A phase that computes rows of a softmax.

    Attributes:
        phase: the phase; its result is aligned for :func:`.streaming.store`.
        found: its exponentials and their sum.
        argument: memref of what they are of.
        powers: a row of scratch memory.
        rows: the leading dimensions.
        width: elements of a row, whole blocks of :func:`.softmax.block_of`.
        ahead: whether to ask for the lines of the next row but one.
        target: the CPU.
    """

    phase: PhaseFrame
    found: softmax.PowerSum
    argument: ir.Value
    powers: ir.Value
    rows: tuple[int, ...]
    width: int
    ahead: bool
    target: Target

    def emit(self) -> None:
        """Compute the rows of the phase's task range."""
        x, last = build.flatten(self.argument), math.prod(self.rows) - 1

        def step(row: ir.Value, extremes: list[ir.Value]) -> list[ir.Value]:
            following = build.minimum(build.add(row, 1), last)
            with self.phase.elemental.scope():
                return self._row(x, row, following, extremes)

        first = self._extremes(x, build.minimum(self.phase.begin, last))
        build.for_loop(self.phase.begin, self.phase.end, step, first)

    def _row(
        self, x: ir.Value, row: ir.Value, following: Index, extremes: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Compute a row, given its extremes; returns those of the ``following``."""
        e, found, (largest, least) = self.phase.elemental, self.found, extremes
        e.bind(found.largest, scalar_source(largest))
        index = build.delinearize(row, self.rows)
        top = e.value(found.top, [*index, 0])
        start, ahead = build.mul(row, self.width), 2 * self.width if self.ahead else 0
        block = softmax.block_of(self.target)
        powers = softmax.PowerPass(x, start, self.powers, self.width, block, found.below, ahead)
        number = powers.emit(top, largest, least)
        total = reduction.with_initial(e, found.total, index, self.target, number)
        divisor = softmax.divisor_of(total, top, least)
        spread = divisor.spread(self._kind)

        def multiplied() -> list[ir.Value]:
            return self._quotients(x, start, following, spread.divide)

        def divided() -> list[ir.Value]:
            return self._quotients(
                x, start, following, lambda power: arith.DivFOp(power, spread.number).result
            )

        kinds = [value.type for value in extremes]
        return build.if_else(divisor.exact, kinds, multiplied, divided)

    @property
    def _kind(self) -> ir.VectorType:
        """Two vectors: with the extremes' they fit 16 registers."""
        return ir.VectorType.get([2 * self.target.lanes(4)], ir.F32Type.get())

    def _quotients(
        self, x: ir.Value, start: Index, following: Index, divide: Callable[[ir.Value], ir.Value]
    ) -> list[ir.Value]:
        """Store the quotients of the row that begins at ``start``; returns the extremes of the ``following``."""
        results = build.flatten(self.phase.results[0])

        def store(at: ir.Value) -> None:
            quotient = divide(vector.LoadOp(self._kind, self.powers, [at]).result)
            streaming.store(quotient, results, build.add(start, at), self.target)

        return self._extremes(x, following, store)

    def _extremes(
        self, x: ir.Value, row: Index, visit: Callable[[ir.Value], None] = lambda at: None
    ) -> list[ir.Value]:
        """The largest and the least element of ``row``, any numbers if one is NaN; calls ``visit`` for each block."""
        kind, start = self._kind, build.mul(row, self.width)

        def step(at: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            # Loaded first: a load seems to depend on a store to the same place of another page.
            place = build.index_value(build.add(start, at))
            element = vector.LoadOp(kind, x, [place]).result
            visit(at)
            return [
                op(value, element, fastmathFlags=reduction.NO_NAN).result
                for (_, op, _), value in zip(_EXTREMES, values, strict=True)
            ]

        initial = [
            vector.BroadcastOp(kind, build.constant(_F32, number)).result
            for number, _, _ in _EXTREMES
        ]
        # Rolled, or LLVM moves loads behind stores and stores of one line behind those of another.
        values = build.for_loop(0, self.width, step, initial, step=kind.shape[0], unroll=1)
        flags = arith.FastMathFlags.nnan
        return [
            reduction.settled(
                vector.ReductionOp(kind.element_type, combine, value, fastmath=flags).result
            )
            for (_, _, combine), value in zip(_EXTREMES, values, strict=True)
        ]
