# SPDX-License-Identifier: Apache-2.0
"""Operands of a product on a GPU: where an element lies, and how threads share out the elements of a tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot_build import flat, widen
from gristmill.compiler.emitters.cpu.dot_problem import AxisMap, Operand
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, LaunchFrame
from gristmill.compiler.emitters.gpu.vectors import load, zero_like
from gristmill.compiler.graph import Node
from gristmill.runtime.types import ElementType

#: The direction in which an operand's elements lie next to one another: the sum's, or the rows' (columns').
Axis = Literal["k", "free"]


class TileOperand(ABC):
    """One side of ``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``; ``free`` is its ``m`` or ``n``.

    Attributes:
        element: type of the stored elements.
        free, k: extents.
        along: the direction of neighbouring elements.
        width: elements of one access; they lie in one row of ``along``, aligned to the access.
    """

    element: ElementType
    free: int
    k: int
    along: Axis
    width: int

    @abstractmethod
    def place(self, batch: Index, free: Index, k: Index) -> tuple[Index, list[ir.Value]]:
        """Offset in :meth:`buffer`, and conditions (besides the extents') under which there is an element."""

    @abstractmethod
    def buffer(self, launch: LaunchFrame) -> ir.Value | None:
        """The elements as a flat memref; None when they are computed."""

    def compute(self, launch: LaunchFrame, batch: Index, free: Index, k: Index) -> ir.Value:
        """One stored element, for an operand without a buffer."""
        raise NotImplementedError  # only asked of operands whose buffer is None; those that have one inherit this

    def read(
        self,
        launch: LaunchFrame,
        batch: Index,
        free: Index,
        k: Index,
        conditions: Sequence[ir.Value] = (),
        width: int | None = None,
    ) -> ir.Value:
        """``width`` elements as stored (a scalar when that is 1); zero unless all ``conditions`` hold.

        Nothing outside the buffer is read: what does not exist is read at offset 0 and replaced.
        """
        buffer = self.buffer(launch)
        if buffer is None:
            inside = all_of(conditions)
            at = [select_index(inside, i) for i in (batch, free, k)]
            return _or_zero(inside, self.compute(launch, at[0], at[1], at[2]))
        offset, inside = self.source(batch, free, k, conditions)
        return _or_zero(inside, load(buffer, [offset], self.width if width is None else width))

    def factor(
        self, launch: LaunchFrame, batch: Index, free: Index, k: Index, accumulate: ElementType
    ) -> ir.Value:
        """One element in the type of the sums."""
        return widen(self.read(launch, batch, free, k, width=1), self.element, accumulate)

    def source(
        self, batch: Index, free: Index, k: Index, conditions: Sequence[ir.Value]
    ) -> tuple[Index, ir.Value | None]:
        """A readable offset, and whether the elements there are the wanted ones (None: certainly)."""
        offset, more = self.place(batch, free, k)
        inside = all_of([*conditions, *more])
        return select_index(inside, offset), inside


class DotOperand(TileOperand):
    """An operand of ``dot_general``: a parameter, or a fused computation of one."""

    def __init__(self, operand: Operand, node: Node):
        self.operand, self.node = operand, node
        self.element = operand.array.element
        self.maps = operand.batch, operand.free, operand.contract
        self.free = _size(operand, operand.free_dims)
        self.k = _size(operand, operand.contract_dims)
        by_k = operand.contract.inner_stride == 1 and self.k > 1
        self.along = "k" if by_k or operand.free.inner_stride != 1 else "free"
        self.width = 1
        if node.kind == "parameter" and self.element.bits >= 8:
            self.width = self._width(BUFFER_ALIGNMENT // self.element.nbytes)

    def _width(self, width: int) -> int:
        batch, free, contract = self.maps
        line, others = (contract, free) if self.along == "k" else (free, contract)
        if line.inner_stride != 1:
            return 1
        outer = AxisMap(line.parts[:-1])
        extents = [line.parts[-1][0]]
        extents += [stride for m in (outer, others, batch) for _, stride in m.parts]
        while width > 1 and any(extent % width for extent in extents):
            width //= 2
        return max(1, width)

    def place(self, batch: Index, free: Index, k: Index) -> tuple[Index, list[ir.Value]]:
        """A sum of one offset for each group of dimensions; there is an element everywhere."""
        offset: Index = 0
        for axis, index in zip(self.maps, (batch, free, k), strict=True):
            offset = build.add(offset, axis.offset(index))
        return offset, []

    def buffer(self, launch: LaunchFrame) -> ir.Value | None:
        """The parameter, if it is one."""
        if self.node.kind != "parameter":
            return None
        return flat(launch.arguments[self.node.result], self.operand.array)

    def compute(self, launch: LaunchFrame, batch: Index, free: Index, k: Index) -> ir.Value:
        """An element of the fused computation."""
        with launch.elemental.scope():
            value = launch.elemental.value(self.node, self.operand.logical_index(batch, free, k))
        if self.element.bits < 8:
            return arith.ExtUIOp(ir.IntegerType.get_signless(8), value).result
        return value


def _size(operand: Operand, dims: Sequence[int]) -> int:
    size = 1
    for extent in operand.sizes(dims):
        size *= extent
    return size


@dataclass(frozen=True)
class Chunk:
    """What one thread fetches at once: ``width`` elements of a tile.

    Attributes:
        free, k: the first element's place in the tile.
        exists: false for a thread that has nothing left to fetch; None when all have something.
    """

    free: Index
    k: Index
    exists: ir.Value | None


@dataclass(frozen=True)
class TileShare:
    """How ``threads`` share out a tile of ``free`` by ``depth`` elements; neighbouring threads fetch neighbours."""

    operand: TileOperand
    free: int
    depth: int
    threads: int

    def chunks(self, thread: Index) -> list[Chunk]:
        """What a thread fetches."""
        width = self.operand.width
        by_k = self.operand.along == "k"
        line = (self.depth if by_k else self.free) // width
        count = self.free * self.depth // width
        result: list[Chunk] = []
        for turn in range(-(-count // self.threads)):
            number = build.add(thread, turn * self.threads)
            complete = (turn + 1) * self.threads <= count
            exists = None if complete else build.less(number, count)
            row, start = build.div(number, line), build.mul(build.mod(number, line), width)
            free, k = (row, start) if by_k else (start, row)
            result.append(Chunk(free, k, exists))
        return result

    @property
    def is_even(self) -> bool:
        """Whether every thread fetches the same number of chunks."""
        return self.free * self.depth // self.operand.width % self.threads == 0

    def conditions(self, chunk: Chunk, free: Index, k: Index) -> list[ir.Value]:
        """When a chunk at ``(free, k)`` of the operand lies inside it."""
        found = [] if chunk.exists is None else [chunk.exists]
        if self.operand.free % self.free:
            found.append(build.less(free, self.operand.free))
        # The step after the last is fetched too, and the last share of a split sum may end early.
        return [*found, build.less(k, self.operand.k)]


def all_of(conditions: Sequence[ir.Value]) -> ir.Value | None:
    """Whether all hold; None for none."""
    result: ir.Value | None = None
    for condition in conditions:
        result = condition if result is None else arith.AndIOp(result, condition).result
    return result


def select_index(condition: ir.Value | None, index: Index) -> Index:
    """``index`` where the condition holds, else 0."""
    if condition is None:
        return index
    return arith.SelectOp(condition, build.index_value(index), build.index_value(0)).result


def _or_zero(condition: ir.Value | None, value: ir.Value) -> ir.Value:
    if condition is None:
        return value
    return arith.SelectOp(condition, value, zero_like(value.type)).result
