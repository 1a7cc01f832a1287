# SPDX-License-Identifier: Apache-2.0
"""Where the points of one line lie, read and written as vectors of neighbours, and shuffles of such vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu import fft_butterfly as butterfly
from gristmill.compiler.emitters.cpu.fft_butterfly import Complex


class Points(Protocol):
    """The complex points of one line."""

    def load(self, kind: ir.VectorType, at: Index) -> Complex:
        """The points from ``at`` on, as many as ``kind`` has lanes."""
        ...

    def store(self, at: Index, value: Complex) -> None:
        """Write a vector of points from ``at`` on."""
        ...


@dataclass(frozen=True)
class Planes:
    """Real and imaginary parts apart, in one-dimensional memrefs."""

    real: ir.Value
    imaginary: ir.Value

    @property
    def exchanged(self) -> Planes:
        """The same points with real and imaginary part exchanged."""
        return Planes(self.imaginary, self.real)

    def load(self, kind: ir.VectorType, at: Index) -> Complex:
        """See :class:`Points`."""
        where = [build.index_value(at)]
        real, imaginary = (
            vector.LoadOp(kind, plane, where).result for plane in (self.real, self.imaginary)
        )
        return real, imaginary

    def store(self, at: Index, value: Complex) -> None:
        """See :class:`Points`."""
        where = [build.index_value(at)]
        for plane, part in zip((self.real, self.imaginary), value, strict=True):
            vector.StoreOp(part, plane, where)


@dataclass(frozen=True)
class Interleaved:
    """Complex numbers as they are in an array.

    Attributes:
        values: one-dimensional memref of parts.
        start: where the line begins in it, in parts.
        exchanged: whether real and imaginary part are exchanged on the way.
        scale: what is multiplied into stored points.
    """

    values: ir.Value
    start: Index = 0
    exchanged: bool = False
    scale: float = 1.0

    def load(self, kind: ir.VectorType, at: Index) -> Complex:
        """See :class:`Points`."""
        lanes = kind.shape[0]
        first = build.add(self.start, build.mul(at, 2))
        low, high = (
            vector.LoadOp(kind, self.values, [build.index_value(build.add(first, i))]).result
            for i in (0, lanes)
        )
        real, imaginary = (shuffle(low, high, range(i, 2 * lanes, 2)) for i in (0, 1))
        return (imaginary, real) if self.exchanged else (real, imaginary)

    def store(self, at: Index, value: Complex) -> None:
        """See :class:`Points`."""
        if self.scale != 1:
            value = butterfly.scale(value, self.scale)
        real, imaginary = value[::-1] if self.exchanged else value
        lanes = ir.VectorType(real.type).shape[0]
        first = build.add(self.start, build.mul(at, 2))
        for i, part in enumerate(zip_chunks(real, imaginary, 1)):
            where = build.index_value(build.add(first, i * lanes))
            vector.StoreOp(part, self.values, [where])


def parts_of(buffer: ir.Value) -> ir.Value:
    """The real and imaginary parts of a memref of complex numbers, or its real numbers, in one dimension."""
    flat = build.flatten(buffer)
    kind = ir.MemRefType(flat.type)
    if not isinstance(kind.element_type, ir.ComplexType):
        return flat
    part = ir.ComplexType(kind.element_type).element_type
    # Both types become the same pointer, so the cast is gone once memrefs are.
    parts = ir.MemRefType.get([2 * kind.shape[0]], part)
    return ir.Operation.create("builtin.unrealized_conversion_cast", [parts], [flat]).result


def shuffle(low: ir.Value, high: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """The chosen lanes of two vectors side by side."""
    return vector.ShuffleOp(low, high, list(lanes)).result


def reverse(value: ir.Value) -> ir.Value:
    """The lanes of a vector from last to first."""
    return shuffle(value, value, range(ir.VectorType(value.type).shape[0])[::-1])


def zip_chunks(a: ir.Value, b: ir.Value, chunk: int) -> tuple[ir.Value, ir.Value]:
    """Chunks of ``chunk`` lanes from ``a`` and ``b`` in turn, over two vectors."""
    lanes = ir.VectorType(a.type).shape[0]
    order = [
        source + at + i
        for at in range(0, lanes, chunk)
        for source in (0, lanes)
        for i in range(chunk)
    ]
    return shuffle(a, b, order[:lanes]), shuffle(a, b, order[lanes:])


def gather_chunks(values: Sequence[ir.Value], chunk: int) -> list[ir.Value]:
    """The first chunk of every vector, then the second of every vector, and so on, over as many vectors.

    The number of vectors and ``chunk`` are powers of two.
    """
    count = len(values)
    chunks = ir.VectorType(values[0].type).shape[0] // chunk
    if count > chunks:
        groups = [gather_chunks(values[i : i + chunks], chunk) for i in range(0, count, chunks)]
        return [value for same in zip(*groups, strict=True) for value in same]
    result = list(values)
    for _ in range(count.bit_length() - 1):
        half = count // 2
        pairs = [zip_chunks(result[i], result[i + half], chunk) for i in range(half)]
        result = [value for pair in pairs for value in pair]
    return result


def each_vector(count: int, lanes: int, body: Callable[[Index], None]) -> None:
    """``body(at)`` so that vectors from ``at`` on cover ``count >= lanes`` points; the last two may overlap."""

    def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        body(at if count % lanes == 0 else build.minimum(at, count - lanes))
        return []

    if count == lanes:
        body(0)
    else:
        build.for_loop(0, count, step, step=lanes)
