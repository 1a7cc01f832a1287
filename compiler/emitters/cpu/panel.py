# SPDX-License-Identifier: Apache-2.0
"""Panels of a few vectors' width in scratch: the working set of triangular solves and factorisations.

A panel holds ``rows`` rows of ``width`` numbers; complex ones as two planes, so that both kinds are computed in whole
vectors. A number (or a vector of them) is a tuple of its *parts*: one value, or real and imaginary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import arithmetic, complex_arithmetic
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType, ElementType, element_type

Parts = tuple[ir.Value, ...]
_FMA = arith.FastMathFlags.contract


def computed_in(element: ElementType) -> ElementType:
    """The type that linear algebra over ``element`` is computed in."""
    if element.is_float and element.bits < 32:
        return element_type("f32")
    return element


def to_parts(element: ElementType, value: ir.Value) -> Parts:
    """A scalar of ``element`` as parts of the type it is computed in."""
    wide = computed_in(element)
    value = arithmetic.convert(element, wide, value)
    return complex_arithmetic.parts(value) if wide.kind == "complex" else (value,)


def from_parts(element: ElementType, parts: Parts) -> ir.Value:
    """The inverse of :func:`to_parts`."""
    value = complex_arithmetic.create(*parts) if len(parts) == 2 else parts[0]
    return arithmetic.convert(computed_in(element), element, value)


def conjugate(parts: Parts) -> Parts:
    """The complex conjugate."""
    return (parts[0], arith.NegFOp(parts[1]).result) if len(parts) == 2 else parts


def _mul(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.MulFOp(a, b, fastmath=_FMA).result


def _sub(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.SubFOp(a, b, fastmath=_FMA).result


def _add(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.AddFOp(a, b, fastmath=_FMA).result


def multiply(a: Parts, b: Parts) -> Parts:
    """``a * b``."""
    if len(a) == 1:
        return (_mul(a[0], b[0]),)
    real = _sub(_mul(a[0], b[0]), _mul(a[1], b[1]))
    return real, _add(_mul(a[0], b[1]), _mul(a[1], b[0]))


def subtract_product(c: Parts, a: Parts, b: Parts) -> Parts:
    """``c - a * b``."""
    if len(c) == 1:
        return (_sub(c[0], _mul(a[0], b[0])),)
    real = _add(_sub(c[0], _mul(a[0], b[0])), _mul(a[1], b[1]))
    return real, _sub(_sub(c[1], _mul(a[0], b[1])), _mul(a[1], b[0]))


@dataclass(frozen=True)
class Panel:
    """The shape of a panel.

    Attributes:
        element: what it is computed in: ``f32``, ``f64`` or complex.
        rows: number of rows.
        lanes: numbers of one vector.
        vectors: vectors of one row.
    """

    element: ElementType
    rows: int
    lanes: int
    vectors: int

    @staticmethod
    def of(element: ElementType, rows: int, columns: int, target: Target) -> Panel:
        """A panel for ``element`` arrays of ``columns`` columns."""
        wide = computed_in(element)
        is_complex = wide.kind == "complex"
        part_bytes = wide.nbytes // (2 if is_complex else 1)
        lanes = min(target.lanes(part_bytes), 1 << max(0, columns - 1).bit_length())
        vectors = min(2 if is_complex else 4, -(-columns // lanes))
        return Panel(wide, rows, lanes, max(1, vectors))

    @property
    def width(self) -> int:
        """Numbers of one row."""
        return self.lanes * self.vectors

    @property
    def part(self) -> ElementType:
        """The type of one part."""
        return complex_arithmetic.part_type(self.element) if self._is_complex else self.element

    @property
    def _is_complex(self) -> bool:
        return self.element.kind == "complex"

    @property
    def _plane_bytes(self) -> int:
        return -(-self.rows * self.width * self.part.nbytes // 64) * 64

    @property
    def nbytes(self) -> int:
        """Scratch it takes."""
        return self._plane_bytes * (2 if self._is_complex else 1)

    def bind(self, scratch: ir.Value, offset: int = 0) -> BoundPanel:
        """The panel at ``offset`` of ``scratch``."""
        array = ArrayType((self.rows * self.width,), self.part)
        count = 2 if self._is_complex else 1
        planes = [build.view(scratch, offset + i * self._plane_bytes, array) for i in range(count)]
        return BoundPanel(self, planes)


@dataclass(frozen=True)
class BoundPanel:
    """A panel in memory."""

    panel: Panel
    planes: Sequence[ir.Value]

    def get(self, row: Index, column: Index) -> Parts:
        """One number."""
        at = build.add(build.mul(row, self.panel.width), column)
        return tuple(build.load(plane, [at], self.panel.part) for plane in self.planes)

    def put(self, row: Index, column: Index, parts: Parts) -> None:
        """Store one number."""
        at = build.add(build.mul(row, self.panel.width), column)
        for plane, part in zip(self.planes, parts, strict=True):
            build.store(part, plane, [at], self.panel.part)

    def row(self, row: Index) -> list[Parts]:
        """The vectors of one row."""
        panel = self.panel
        kind = ir.VectorType.get([panel.lanes], build.register_type(panel.part))
        result: list[Parts] = []
        for number in range(panel.vectors):
            at = build.add(build.mul(row, panel.width), number * panel.lanes)
            where = [build.index_value(at)]
            result.append(tuple(vector.LoadOp(kind, plane, where).result for plane in self.planes))
        return result

    def put_row(self, row: Index, vectors: Sequence[Parts]) -> None:
        """Store the vectors of one row."""
        panel = self.panel
        for number, parts in enumerate(vectors):
            at = build.add(build.mul(row, panel.width), number * panel.lanes)
            for plane, part in zip(self.planes, parts, strict=True):
                vector.StoreOp(part, plane, [build.index_value(at)])

    def spread(self, parts: Parts) -> Parts:
        """A scalar in every lane."""
        return tuple(
            vector.BroadcastOp(ir.VectorType.get([self.panel.lanes], x.type), x).result
            for x in parts
        )

    def subtract_rows(
        self, vectors: Sequence[Parts], low: Index, high: Index, factor: Callable[[ir.Value], Parts]
    ) -> list[Parts]:
        """``vectors`` less ``factor(k)`` times row ``k``, for every ``low <= k < high``."""
        count = len(self.planes)

        def step(k: ir.Value, flat: list[ir.Value]) -> list[ir.Value]:
            scale = self.spread(factor(k))
            current = _group(flat, count)
            updated = [
                subtract_product(c, scale, x) for c, x in zip(current, self.row(k), strict=True)
            ]
            return [part for parts in updated for part in parts]

        initial = [part for parts in vectors for part in parts]
        return _group(build.for_loop(low, high, step, initial), count)

    def divide(self, vectors: Sequence[Parts], divisor: Parts) -> list[Parts]:
        """``vectors`` divided by a scalar; by a complex one as products with its reciprocal."""
        if len(divisor) == 1:
            spread = self.spread(divisor)[0]
            return [tuple(arith.DivFOp(x, spread).result for x in parts) for parts in vectors]
        element = self.panel.element
        one = build.constant(element, 1)
        value = arithmetic.binary("divide", element, one, complex_arithmetic.create(*divisor))
        scale = self.spread(complex_arithmetic.parts(value))
        return [multiply(parts, scale) for parts in vectors]

    def clear(self, row: Index) -> None:
        """Fill one row with zeros."""
        zero = build.constant(self.panel.part, 0)
        parts = self.spread((zero,) * len(self.planes))
        self.put_row(row, [parts] * self.panel.vectors)


def _group(flat: Sequence[ir.Value], count: int) -> list[Parts]:
    return [tuple(flat[i : i + count]) for i in range(0, len(flat), count)]
