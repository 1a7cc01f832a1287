# SPDX-License-Identifier: Apache-2.0
"""Narrow integers two at a time: a step of ``k`` is a pair of i16 values in one i32.

The product of two pairs is the sum of their products, in i32 with wraparound: vector instruction sets have it as one
instruction (``vpmaddwd``, ``vpdpwssd``, …), which LLVM recognises in what :func:`multiply_add_pairs` emits.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, vector

from gristmill.compiler.emitters.build import (
    Index,
    add,
    constant,
    index_value,
    less,
    minimum,
    mul,
    sub,
)
from gristmill.compiler.emitters.cpu.dot_build import (
    DotKernel,
    Frame,
    Source,
    lane_masks,
    load_vector,
    sources,
    widen,
)
from gristmill.compiler.emitters.cpu.dot_problem import Operand
from gristmill.runtime.types import element_type

_I16 = element_type("i16")
_I32 = element_type("i32")


class PairedSource(Source):
    """Reads an operand in pairs of ``k``; the last pair of an odd number is completed with zero."""

    unit = 2

    def _depth(self) -> int:
        operand: Operand = self.operand
        total = 1
        for size in operand.sizes(operand.contract_dims):
            total *= size
        return total

    def scalar(self, batch: Index, free: Index, contract: Index) -> ir.Value:
        """The pair at step ``contract``."""
        depth, low = self._depth(), mul(contract, 2)
        high = add(low, 1)
        first = super().scalar(batch, free, low)
        second = super().scalar(batch, free, minimum(high, depth - 1) if depth % 2 else high)
        if depth % 2:
            second = arith.SelectOp(less(high, depth), second, constant(_I32, 0)).result
        kept = arith.AndIOp(first, constant(_I32, 0xFFFF)).result
        return arith.OrIOp(kept, arith.ShLIOp(second, constant(_I32, 16)).result).result

    def across(
        self,
        batch: Index,
        n0: Index,
        step: Index,
        lanes: int,
        vectors: int,
        remaining: Index | None,
    ) -> list[ir.Value]:
        """Pairs of adjacent columns: two rows interleaved."""
        depth, low = self._depth(), mul(step, 2)
        high = add(low, 1)
        high_remaining = remaining
        if depth % 2:
            columns = index_value(lanes * vectors if remaining is None else remaining)
            high_remaining = arith.SelectOp(less(high, depth), columns, index_value(0)).result
        first = self._row(batch, n0, low, lanes, vectors, remaining)
        second = self._row(batch, n0, high, lanes, vectors, high_remaining)
        kind = ir.VectorType.get([lanes], ir.IntegerType.get_signless(32))
        return [
            vector.BitCastOp(kind, vector.InterleaveOp(a, b).result).result
            for a, b in zip(first, second, strict=True)
        ]

    def along(self, start: Index, step: Index, lanes: int, remaining: Index | None) -> ir.Value:
        """Adjacent pairs of one column."""
        first = mul(step, 2)
        mask = None if remaining is None else lane_masks(sub(remaining, first), 2 * lanes, 1)[0]
        kind = ir.VectorType.get([lanes], ir.IntegerType.get_signless(32))
        return vector.BitCastOp(kind, self._load(add(start, first), 2 * lanes, mask)).result

    def _row(
        self,
        batch: Index,
        n0: Index,
        k: Index,
        lanes: int,
        vectors: int,
        remaining: Index | None,
    ) -> list[ir.Value]:
        start = self.offset(batch, n0, k)
        masks = [None] * vectors if remaining is None else lane_masks(remaining, lanes, vectors)
        return [self._load(add(start, j * lanes), lanes, masks[j]) for j in range(vectors)]

    def _load(self, offset: Index, lanes: int, mask: ir.Value | None) -> ir.Value:
        assert self.buffer is not None
        return widen(
            load_vector(self.buffer, offset, self.element, lanes, mask), self.element, _I16
        )


def step_sources(kernel: DotKernel, frame: Frame) -> tuple[Source, Source]:
    """Readers of the operands in steps of ``k``: of pairs where the kernel takes them."""
    if not kernel.paired:
        return sources(kernel, frame)
    problem = kernel.problem
    sides = (
        (problem.lhs, kernel.lhs, kernel.lhs_prologue),
        (problem.rhs, kernel.rhs, kernel.rhs_prologue),
    )
    left, right = (PairedSource(*side, frame.buffers, problem.accumulate) for side in sides)
    return left, right


def multiply_add_pairs(lhs: ir.Value, rhs: ir.Value, acc: ir.Value, _: object) -> ir.Value:
    """``acc`` plus, lane by lane, the sum of the two products of the pairs in ``lhs`` and ``rhs``."""
    lanes = ir.VectorType(acc.type).shape[0]
    halves = ir.VectorType.get([2 * lanes], ir.IntegerType.get_signless(16))
    wide = ir.VectorType.get([2 * lanes], ir.IntegerType.get_signless(32))
    left, right = (
        arith.ExtSIOp(wide, vector.BitCastOp(halves, value).result).result for value in (lhs, rhs)
    )
    products = arith.MulIOp(left, right).result
    even = vector.ShuffleOp(products, products, list(range(0, 2 * lanes, 2))).result
    odd = vector.ShuffleOp(products, products, list(range(1, 2 * lanes, 2))).result
    return arith.AddIOp(acc, arith.AddIOp(even, odd).result).result
