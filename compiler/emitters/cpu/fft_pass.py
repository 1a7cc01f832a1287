# SPDX-License-Identifier: Apache-2.0
"""Which lines of which array a Fourier transform's phase works on, and one long line as two such phases.

A long line is a matrix of ``rows`` by ``columns`` points. Its columns are transformed, multiplied by roots of unity,
and then its rows, each result going where the transform of the whole line has it: two phases of many short lines,
which fill vectors and threads (W. M. Gentleman and G. Sande, "Fast Fourier Transforms for Fun and Profit", 1966).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import fft_butterfly as butterfly
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex
from gristmill.compiler.emitters.cpu.fft_plan import factorize, roots
from gristmill.compiler.emitters.cpu.tables import Tables
from gristmill.compiler.emitters.elemental import Elemental, complex_arithmetic
from gristmill.runtime.types import ArrayType, ElementType, element_type


class Buffers(Protocol):
    """What reading and writing lines needs of a phase, or of a GPU launch."""

    arguments: list[ir.Value]
    results: list[ir.Value]
    workspace: ir.Value
    elemental: Elemental

    def store(self, number: int, value: ir.Value, index: Sequence[Index], array: ArrayType) -> None:
        """Store one element of result ``number``."""
        ...


#: An element of an array of lines: called with an index, gives real and imaginary part.
Read = Callable[[Buffers, list[Index]], Complex]
Write = Callable[[Buffers, list[Index], Complex], None]
#: The memref that holds all lines as they are.
Array = Callable[[Buffers], ir.Value]


@dataclass(frozen=True)
class Pass:
    """One transformed dimension.

    Attributes:
        shape: the array's shape, the line's own extent aside (that of ``dimension`` is not used).
        dimension: the dimension transformed.
        length: number of points.
        inverse: whether the sign is positive and the result divided by ``length``.
        stored: result points kept: ``length``, or ``length / 2 + 1`` for the first half.
        hermitian: whether only the first half is given, the rest being its conjugate mirrored.
        read, write: elements of the source and the target.
        source, target: where these lie, if the lines are arrays that are read and written as they are.
        real: whether the source is real, or the target if only the first half of the source is given.
    """

    shape: tuple[int, ...]
    dimension: int
    length: int
    inverse: bool
    stored: int
    hermitian: bool
    read: Read
    write: Write
    source: Array | None = None
    target: Array | None = None
    real: bool = False

    @property
    def lines(self) -> int:
        """Number of lines."""
        return math.prod(self._others)

    @property
    def neighbours(self) -> int:
        """Lines that are side by side in memory."""
        return math.prod(self.shape[self.dimension + 1 :])

    @property
    def _others(self) -> list[int]:
        return [s for d, s in enumerate(self.shape) if d != self.dimension]

    def index(self, first: Index, lane: Index, position: Index) -> list[Index]:
        """Where ``position`` of the line ``lane`` lines after ``first`` is."""
        result = build.delinearize(build.add(first, lane), self._others)
        result.insert(self.dimension, position)
        return result

    def near(self, first: Index, lane: Index, position: Index) -> list[Index]:
        """As :meth:`index`, where lines from ``first`` on differ in the last of the other dimensions only."""
        result = build.delinearize(first, self._others)
        if result:
            result[-1] = build.add(result[-1], lane)
        result.insert(self.dimension, position)
        return result

    def are_near(self, width: int) -> bool:
        """Whether groups of ``width`` lines differ in the last of the other dimensions only."""
        return bool(self._others) and self._others[-1] % width == 0


#: Points of a line from which it is split.
_MIN_SPLIT = 4096


def split_length(length: int) -> tuple[int, int] | None:
    """``(rows, columns)`` of a line worth splitting: as nearly square as its factors allow, else ``None``."""
    factors = factorize(length)
    if length < _MIN_SPLIT or factors is None:
        return None
    rows = 1
    for factor in sorted(factors, reverse=True):
        if rows * factor * rows * factor <= length:
            rows *= factor
    return (rows, length // rows) if rows >= 32 else None


class SplitLine:
    """One long line of a batch as two passes.

    Args:
        batch: leading dimensions.
        length: points of a line.
        sizes: its rows and columns.
        whole: the pass that it replaces.
        part: type of a part.
    """

    def __init__(
        self,
        batch: tuple[int, ...],
        length: int,
        sizes: tuple[int, int],
        whole: Pass,
        part: ElementType,
    ):
        self.batch, self.length, (self.rows, self.columns) = batch, length, sizes
        self.whole, self.part = whole, part
        self.between = ArrayType((*batch, *sizes), element_type(f"complex<{part.name}>"))
        self._bits = (length - 1).bit_length() // 2
        self.tables: Tables | None = None

    def define(self, tables: Tables) -> None:
        """Define the roots of unity: a fine table, and a coarse one of every ``1 << bits``-th."""
        self.tables = tables
        step = 1 << self._bits
        values = roots(self.length, self.length)
        for name, data in (("fine", values[:step]), ("coarse", values[::step])):
            stacked: np.ndarray[Any, Any] = np.stack([data.real, data.imag], axis=-1)
            tables.define(name, stacked.astype(self.part.dtype))

    def passes(self) -> list[Pass]:
        """Columns, then rows."""
        shape, rank = self.between.shape, len(self.between.shape)
        inverse = self.whole.inverse
        return [
            Pass(shape, rank - 2, self.rows, inverse, self.rows, False, self._read, self._turn),
            Pass(
                shape,
                rank - 1,
                self.columns,
                inverse,
                self.columns,
                False,
                self._read_between,
                self._write,
                self._buffer,
            ),
        ]

    def _buffer(self, phase: Buffers) -> ir.Value:
        return build.view(phase.workspace, 0, self.between)

    def _read(self, phase: Buffers, index: list[Index]) -> Complex:
        *batch, row, column = index
        return self.whole.read(phase, [*batch, build.add(build.mul(row, self.columns), column)])

    def _root(self, row: Index, column: Index) -> Complex:
        """``exp(-2 pi i row column / length)``, conjugate for an inverse transform."""
        assert self.tables is not None, "define comes first"
        exponent = build.index_value(build.mul(row, column))
        mask = build.index_value((1 << self._bits) - 1)
        low = arith.AndIOp(exponent, mask).result
        high = arith.ShRUIOp(exponent, build.index_value(self._bits)).result

        def entry(name: str, at: ir.Value) -> Complex:
            assert self.tables is not None, "define comes first"
            table = self.tables.get(name)
            real, imaginary = (build.load(table, [at, i], self.part) for i in (0, 1))
            return real, imaginary

        real, imaginary = butterfly.multiply(entry("fine", low), entry("coarse", high))
        if self.whole.inverse:
            imaginary = arith.NegFOp(imaginary).result
        return real, imaginary

    def _turn(self, phase: Buffers, index: list[Index], value: Complex) -> None:
        turned = butterfly.multiply(value, self._root(index[-2], index[-1]))
        packed = complex_arithmetic.create(*turned)
        build.store(packed, self._buffer(phase), index, self.between.element)

    def _read_between(self, phase: Buffers, index: list[Index]) -> Complex:
        return complex_arithmetic.parts(
            build.load(self._buffer(phase), index, self.between.element)
        )

    def _write(self, phase: Buffers, index: list[Index], value: Complex) -> None:
        *batch, row, column = index
        at = build.add(build.mul(column, self.rows), row)
        if self.whole.stored == self.length:
            self.whole.write(phase, [*batch, at], value)
            return
        with build.if_then(build.less(at, self.whole.stored)):
            self.whole.write(phase, [*batch, at], value)
