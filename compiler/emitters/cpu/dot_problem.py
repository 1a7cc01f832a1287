# SPDX-License-Identifier: Apache-2.0
"""What a ``dot_general`` computes, as a batched matrix product over four groups of dimensions.

Every dimension of an operand belongs to one group: batch, free (``m`` of the left, ``n`` of the right) or contracting
(``k``). A dense row-major operand is therefore addressed by a sum of three independent terms, one a group, each
a function of the group's linear index: an :class:`AxisMap`. Emitters see only ``out[b, m, n] = sum_k lhs[b, m, k] *
rhs[b, k, n]`` and those maps; the output is always dense in ``(b, m, n)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.compiler.emitters.build import Index, add, delinearize, mul
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ArrayType, ElementType, element_type


@dataclass(frozen=True)
class AxisMap:
    """Element offset of a group's linear index.

    Attributes:
        parts: ``(size, stride)`` of the group's dimensions, outermost first, neighbours merged where one stride
            serves both and unit dimensions dropped.
    """

    parts: tuple[tuple[int, int], ...]

    @staticmethod
    def of(sizes: Sequence[int], strides: Sequence[int]) -> AxisMap:
        """The map of dimensions with these sizes and element strides."""
        parts: list[tuple[int, int]] = []
        for size, stride in zip(sizes, strides, strict=True):
            if size == 1:
                continue
            if parts and parts[-1][1] == size * stride:
                parts[-1] = (parts[-1][0] * size, stride)
            else:
                parts.append((size, stride))
        return AxisMap(tuple(parts))

    @property
    def stride(self) -> int | None:
        """The one stride of the group, 0 for a group of one element, None when there is no single one."""
        if not self.parts:
            return 0
        return self.parts[0][1] if len(self.parts) == 1 else None

    @property
    def inner_stride(self) -> int:
        """Stride of the innermost dimension (0 for a group of one element)."""
        return self.parts[-1][1] if self.parts else 0

    def offset(self, index: Index) -> Index:
        """Element offset of linear ``index``."""
        terms = delinearize(index, [size for size, _ in self.parts])
        total: Index = 0
        for term, (_, stride) in zip(terms, self.parts, strict=True):
            total = add(total, mul(term, stride))
        return total


@dataclass(frozen=True)
class Operand:
    """One side of the product.

    Attributes:
        array: the operand's type.
        batch_dims, free_dims, contract_dims: its dimensions by group, in the order the groups are linearised.
    """

    array: ArrayType
    batch_dims: tuple[int, ...]
    free_dims: tuple[int, ...]
    contract_dims: tuple[int, ...]

    def sizes(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Sizes of ``dims``."""
        return tuple(self.array.shape[d] for d in dims)

    def _map(self, dims: Sequence[int]) -> AxisMap:
        shape = self.array.shape
        return AxisMap.of(self.sizes(dims), [math.prod(shape[d + 1 :]) for d in dims])

    @property
    def batch(self) -> AxisMap:
        """Offsets of the batch index."""
        return self._map(self.batch_dims)

    @property
    def free(self) -> AxisMap:
        """Offsets of the free index (``m`` or ``n``)."""
        return self._map(self.free_dims)

    @property
    def contract(self) -> AxisMap:
        """Offsets of the contracting index ``k``."""
        return self._map(self.contract_dims)

    def logical_index(self, batch: Index, free: Index, contract: Index) -> list[Index]:
        """The operand's multi-index at group positions ``(batch, free, contract)``."""
        index: list[Index] = [0] * self.array.rank
        groups = (
            (self.batch_dims, batch),
            (self.free_dims, free),
            (self.contract_dims, contract),
        )
        for dims, position in groups:
            for d, component in zip(dims, delinearize(position, self.sizes(dims)), strict=True):
                index[d] = component
        return index


def accumulator(lhs: ElementType, rhs: ElementType, result: ElementType) -> ElementType:
    """The type sums are kept in: f64 if any type is f64, else f32 for floats, else i32 or i64.

    Integer sums wrap, so the accumulator need only be as wide as the result.
    """
    kinds = (lhs, rhs, result)
    if any(t.is_float for t in kinds):
        wide = any(t.name == "f64" or (t.is_integer and t.bits > 16) for t in kinds)
        return element_type("f64" if wide else "f32")
    return element_type("i64" if result.bits > 32 else "i32")


@dataclass(frozen=True)
class DotProblem:
    """A ``dot_general``: two operands and the output's element type.

    Attributes:
        lhs, rhs: the operands; equal batch and contracting sizes.
        result: element type of the output (the preferred element type).
        accumulate: element type of the running sums.
        swapped: whether the output has the right operand's free dimensions before the left's.
    """

    lhs: Operand
    rhs: Operand
    result: ElementType
    accumulate: ElementType
    swapped: bool = False

    @staticmethod
    def of(
        lhs: ArrayType,
        rhs: ArrayType,
        result: ElementType,
        *,
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        lhs_contract: Sequence[int],
        rhs_contract: Sequence[int],
    ) -> DotProblem:
        """The problem of ``dot_general`` with these operand types and dimension numbers.

        Raises ``UnsupportedError`` for element types that are not real numbers.
        """
        for t in (lhs.element, rhs.element, result):
            if t.kind == "complex":
                raise UnsupportedError(f"dot_general on {t.name} is not implemented")

        def free(array: ArrayType, batch: Sequence[int], contract: Sequence[int]) -> list[int]:
            return [d for d in range(array.rank) if d not in batch and d not in contract]

        left = Operand(
            lhs, tuple(lhs_batch), tuple(free(lhs, lhs_batch, lhs_contract)), tuple(lhs_contract)
        )
        right = Operand(
            rhs, tuple(rhs_batch), tuple(free(rhs, rhs_batch, rhs_contract)), tuple(rhs_contract)
        )
        assert left.sizes(left.batch_dims) == right.sizes(right.batch_dims)
        assert left.sizes(left.contract_dims) == right.sizes(right.contract_dims)
        kind = accumulator(lhs.element, rhs.element, result)
        return DotProblem(left, right, result, kind)

    @property
    def batch(self) -> int:
        """Number of independent matrix products."""
        return math.prod(self.lhs.sizes(self.lhs.batch_dims))

    @property
    def m(self) -> int:
        """Rows of one product."""
        return math.prod(self.lhs.sizes(self.lhs.free_dims))

    @property
    def n(self) -> int:
        """Columns of one product."""
        return math.prod(self.rhs.sizes(self.rhs.free_dims))

    @property
    def k(self) -> int:
        """Length of one sum."""
        return math.prod(self.lhs.sizes(self.lhs.contract_dims))

    @property
    def output(self) -> ArrayType:
        """Type of the output: batch, left free and right free dimensions, in this order unless swapped."""
        lhs, rhs = self.lhs, self.rhs
        free = [lhs.sizes(lhs.free_dims), rhs.sizes(rhs.free_dims)]
        if self.swapped:
            free.reverse()
        return ArrayType((*lhs.sizes(lhs.batch_dims), *free[0], *free[1]), self.result)

    def output_index(self, batch: Index, m: Index, n: Index) -> list[Index]:
        """The output's multi-index at ``(batch, m, n)``."""
        lhs, rhs = self.lhs, self.rhs
        free = [
            delinearize(m, lhs.sizes(lhs.free_dims)),
            delinearize(n, rhs.sizes(rhs.free_dims)),
        ]
        if self.swapped:
            free.reverse()
        return [*delinearize(batch, lhs.sizes(lhs.batch_dims)), *free[0], *free[1]]

    @property
    def inner_column_dim(self) -> tuple[int | None, int]:
        """The output dimension (and its size) that varies fastest with ``n``; None when ``n`` has one value."""
        sizes = self.rhs.sizes(self.rhs.free_dims)
        first = len(self.lhs.batch_dims)
        if not self.swapped:
            first += len(self.lhs.free_dims)
        real = [(first + d, size) for d, size in enumerate(sizes) if size != 1]
        return real[-1] if real else (None, 1)

    def swap(self) -> DotProblem:
        """The same product with the operands exchanged: rows become columns."""
        return DotProblem(self.rhs, self.lhs, self.result, self.accumulate, not self.swapped)
