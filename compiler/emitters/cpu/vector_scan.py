# SPDX-License-Identifier: Apache-2.0
"""The scan of a line in vector registers, for bodies of one operation.

A vector is scanned in log2(lanes) steps, each combining it with itself moved up by 1, 2, 4, … lanes; then the running
value joins in. Only that last step waits for the vector before, so one line alone keeps the vector units busy. Elements
that need computing, converting or reversing pass through a stage in scratch memory, whose loops LLVM vectorises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, ElementType

#: Vectors of one step: enough for the loops over the stage to be worth it.
_VECTORS = 4
#: Scratch bytes of the stage.
STAGE_BYTES = _VECTORS * 64


def scans(kind: str | None, element: ElementType) -> bool:
    """Whether lines of ``element`` accumulators are scanned here by a body of the operation ``kind``."""
    whole = element.bits in (8, 16, 32, 64) and element.kind != "complex"
    return kind is not None and whole and (not element.is_float or element.bits >= 32)


def identity(kind: str, element: ElementType) -> float | int:
    """What leaves any other operand of ``kind`` as it is."""
    if kind in ("maximum", "minimum") and element.is_float:
        return -math.inf if kind == "maximum" else math.inf
    if kind in ("maximum", "minimum"):
        limits = np.iinfo(element.dtype)
        return int(limits.min if kind == "maximum" else limits.max)
    if kind == "add":
        return -0.0 if element.is_float else 0
    return {"multiply": 1, "and": -1, "or": 0}[kind]


@dataclass(frozen=True)
class Line:
    """Where the elements of a line are, by position in the order of the scan.

    Attributes:
        load: the accumulator that the element at a position is.
        store: puts an accumulator as the result at a position.
        source, result: flat memrefs and the index of position 0, where they hold the accumulators as they are, in
            order; else ``None``.
        streamed: whether vectors of the result, which are aligned, are stored past the caches.
    """

    load: Callable[[Index], ir.Value]
    store: Callable[[Index, ir.Value], None]
    source: tuple[ir.Value, Index] | None
    result: tuple[ir.Value, Index] | None
    streamed: bool = False


class VectorScan:
    """Emits scans of lines by the operation ``kind`` of ``element`` accumulators."""

    def __init__(self, kind: str, element: ElementType, target: Target, stage: ir.Value):
        self.kind, self.element = kind, element
        self.lanes = target.lanes(element.nbytes)
        self.vector = ir.VectorType.get([self.lanes], build.register_type(element))
        self.block = self.lanes * _VECTORS
        self.stage = build.view(stage, 0, ArrayType((self.block,), element))
        neutral = build.constant(element, identity(kind, element))
        self.neutral = vector.BroadcastOp(self.vector, neutral).result

    def emit(self, line: Line, start: Index, count: int, running: ir.Value) -> ir.Value:
        """Scan ``count`` positions from ``start`` on, continuing from ``running``; returns the last result."""
        whole = count // self.block * self.block
        vectors = count // self.lanes * self.lanes
        state = [vector.BroadcastOp(self.vector, running).result]

        def step(at: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            return [self._block(line, build.add(start, at), self.block, state[0])]

        state = build.for_loop(0, whole, step, state, step=self.block)
        if whole < vectors:
            state = [self._block(line, build.add(start, whole), vectors - whole, state[0])]
        running = vector.ExtractOp(state[0], [], [0]).result

        def single(at: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
            position = build.add(start, at)
            scanned = self._combine(state[0], line.load(position))
            line.store(position, scanned)
            return [scanned]

        return build.for_loop(vectors, count, single, [running])[0]

    def _block(self, line: Line, start: Index, count: int, running: ir.Value) -> ir.Value:
        """Scan ``count`` positions, whole vectors and a block at most; returns the last result, in all lanes."""
        places = range(0, count, self.lanes)
        if line.source is None:
            build.for_loop(0, count, lambda i, _: self._fill(line, start, i))
            loaded = [self._load((self.stage, 0), at) for at in places]
        else:
            loaded = [self._load(line.source, build.add(start, at)) for at in places]
        for at, values in zip(places, loaded, strict=True):
            values = self._prefixes(values)
            scanned = self._combine(running, values)
            last = [self.lanes - 1] * self.lanes
            running = self._combine(running, vector.ShuffleOp(values, values, last).result)
            base, where = self.stage, at
            if line.result is not None:
                base, where = line.result[0], build.add(line.result[1], build.add(start, at))
            self._put(scanned, base, where, line.streamed)
        if line.result is None:
            build.for_loop(0, count, lambda i, _: self._drain(line, start, i))
        return running

    def _load(self, source: tuple[ir.Value, Index], at: Index) -> ir.Value:
        base, origin = source
        return vector.LoadOp(self.vector, base, [build.index_value(build.add(origin, at))]).result

    def _put(self, values: ir.Value, base: ir.Value, at: Index, streamed: bool) -> None:
        where = [build.index_value(at)]
        if streamed:
            nbytes = self.lanes * self.element.nbytes
            vector.StoreOp(values, base, where, nontemporal=True, alignment=nbytes)
        else:
            vector.StoreOp(values, base, where)

    def _fill(self, line: Line, start: Index, i: ir.Value) -> list[ir.Value]:
        build.store(line.load(build.add(start, i)), self.stage, [i], self.element)
        return []

    def _drain(self, line: Line, start: Index, i: ir.Value) -> list[ir.Value]:
        line.store(build.add(start, i), build.load(self.stage, [i], self.element))
        return []

    def _combine(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arithmetic.binary(self.kind, self.element, a, b)

    def _prefixes(self, values: ir.Value) -> ir.Value:
        """Every lane combined with those below it."""
        lanes, distance = self.lanes, 1
        while distance < lanes:
            moved = [*range(distance), *range(lanes, 2 * lanes - distance)]
            below = vector.ShuffleOp(self.neutral, values, moved).result
            values = self._combine(below, values)
            distance *= 2
        return values
