# SPDX-License-Identifier: Apache-2.0
"""Rows shorter than a few vectors, many side by side.

A row of three elements, or of ten, is no work for vectors along it. Its elements are computed without a loop and
held in registers, so that the loop over rows is all that is left for LLVM's vectoriser: each lane has a row. Loads and
stores are then a row apart, which costs less than a row's elements one by one: a softmax of 10 columns takes a quarter
of the time, an argmax of 5 a twelfth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import reduction
from gristmill.compiler.emitters.cpu.frame import FusionSource, PhaseFrame, element_cost
from gristmill.compiler.emitters.cpu.row_plan import RowPlan, full_index, row_index
from gristmill.compiler.emitters.elemental import scalar_source
from gristmill.compiler.graph import Node

#: Elements of such a row at most, of one dimension and of several, which a loop serves worse.
_WIDEST, _WIDEST_OF_SEVERAL = 32, 64

#: Cost of a row, in tenths of a nanosecond: more of it takes too long to compile, 0.4 s for a softmax of 20.
_DEAREST = 400


def are_short(source: FusionSource, plan: RowPlan) -> bool:
    """Whether the rows are computed side by side: short ones, unless they are whole vectors."""
    if not plan.rows or not plan.columns:
        return False
    width = math.prod(plan.columns)
    whole = plan.columns[-1] % source.target.lanes(4) == 0
    widest = _WIDEST if len(plan.columns) == 1 else _WIDEST_OF_SEVERAL
    cheap = width * element_cost(source.graph) <= _DEAREST
    return 1 < width <= widest and cheap and not whole


@dataclass(frozen=True)
class ShortRows:
    """A phase whose tasks are rows, computed side by side; see the module docstring.

    Attributes:
        source: the fusion.
        plan: its stages; what they keep is in registers here.
    """

    source: FusionSource
    plan: RowPlan

    def emit(self, phase: PhaseFrame) -> None:
        """Compute the rows of the phase's task range, line by line of the last dimension of rows."""
        *outer, last = self.plan.rows
        if not outer:
            self._line(phase, [], phase.begin, phase.end)
            return

        def line(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            first = build.mul(at, last)
            low = build.maximum(build.sub(phase.begin, first), 0)
            high = build.minimum(build.sub(phase.end, first), last)
            with phase.elemental.scope():
                self._line(phase, build.delinearize(at, outer), low, high)
            return []

        end = build.div(build.add(phase.end, last - 1), last)
        build.for_loop(build.div(phase.begin, last), end, line)

    def _line(self, phase: PhaseFrame, outer: Sequence[Index], low: Index, high: Index) -> None:
        def row(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with phase.elemental.scope():
                self._row(phase, [*outer, at])
            return []

        build.for_loop(low, high, row)

    def _row(self, phase: PhaseFrame, row: Sequence[Index]) -> None:
        e, plan = phase.elemental, self.plan
        for stage in plan.stages:
            for node in stage:
                self._reduce(phase, node, row)
        shape = (*plan.rows, *plan.columns)
        for number, node in itertools.chain.from_iterable(plan.full):
            for column in _columns(plan):
                at = full_index(node, [*row, *column], shape)
                phase.store(number, e.value(node, at), at, node.type)
        for number, node in plan.per_row:
            at = row_index(node, row)
            phase.store(number, e.value(node, at), at, node.type)

    def _reduce(self, phase: PhaseFrame, node: Node, row: Sequence[Index]) -> None:
        e = phase.elemental
        group = reduction.accumulation(e, node, row, self.source.target)
        values = group.initial()
        for column in _columns(self.plan):
            values = group.step(values, column)
        results = group.reducer.leave(group.finish(values))
        for sibling, value in zip(node.siblings, results, strict=True):
            e.bind(sibling, scalar_source(value))


def _columns(plan: RowPlan) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*map(range, plan.columns))
