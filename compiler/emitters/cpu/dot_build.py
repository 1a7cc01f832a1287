# SPDX-License-Identifier: Apache-2.0
"""Building blocks of the dot kernels: phase functions, flat views, vectors and conversions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from gristmill.compiler.emitters.build import (
    Index,
    add,
    bytes_type,
    constant,
    for_loop,
    index_value,
    memref_type,
    mul,
    register_type,
    storage_type,
    sub,
)
from gristmill.compiler.emitters.cpu.dot_problem import DotProblem, Operand
from gristmill.runtime.types import ArrayType, ElementType

#: ``epilogue(value, index, buffers)``: the scalars to store, one for each result, given one finished output element
#: (of the output's element type, ``i1`` for predicates), its multi-index and the phase's argument and result memrefs.
Epilogue = Callable[[ir.Value, Sequence[Index], Sequence[ir.Value]], Sequence[ir.Value]]

#: ``prologue(index, buffers)``: the operand's element at a multi-index, of the operand's element type.
Prologue = Callable[[Sequence[Index], Sequence[ir.Value]], ir.Value]


@dataclass(frozen=True)
class DotKernel:
    """Everything the emitters of one kernel share.

    Attributes:
        name: kernel name.
        problem: the product.
        arguments, results: the kernel's buffers.
        lhs, rhs: argument number of each operand; unused where the operand has a prologue.
        lhs_prologue, rhs_prologue: computes an operand's elements instead of loading them.
        epilogue: computes the results from a finished element; None stores it as it is.
        vector_bytes: width of a vector register.
    """

    name: str
    problem: DotProblem
    arguments: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    lhs: int
    rhs: int
    lhs_prologue: Prologue | None
    rhs_prologue: Prologue | None
    epilogue: Epilogue | None
    vector_bytes: int

    @property
    def lanes(self) -> int:
        """Accumulator elements in one vector register."""
        return max(2, self.vector_bytes // self.problem.accumulate.nbytes)

    @property
    def paired(self) -> bool:
        """Whether blocked forms take ``k`` two at a time: sums in i32 of products of integers that fit in i16.

        Every vector instruction set has a multiply that adds neighbouring products.
        """
        operands = self.problem.lhs.array.element, self.problem.rhs.array.element
        narrow_enough = all(not t.is_float and (t.bits <= 8 or t.name == "i16") for t in operands)
        return narrow_enough and self.problem.accumulate.name == "i32"

    @property
    def steps(self) -> int:
        """Steps of ``k`` in a blocked form."""
        return -(-self.problem.k // 2) if self.paired else self.problem.k

    @property
    def stores_sums(self) -> bool:
        """Whether the result buffer holds plain accumulators, so partial sums may live in it."""
        problem = self.problem
        plain = self.epilogue is None and not problem.swapped
        return plain and problem.result == problem.accumulate


class Frame:
    """The values a phase function starts with.

    Attributes:
        buffers: memrefs of the arguments, then of the results.
        workspace, scratch: raw bytes.
        begin, end: the task range.
    """

    # A plain class, not a dataclass: the bindings' stubs make class-level fields of type Value unknown to pyright.
    def __init__(self, values: Sequence[ir.Value]):
        self.buffers = tuple(values[:-4])
        self.workspace, self.scratch, self.begin, self.end = values[-4:]


@contextmanager
def phase_function(
    module: ir.Module, kernel: DotKernel, name: str, workspace_bytes: int, scratch_bytes: int
) -> Generator[Frame]:
    """A phase function of the kernel ABI around the body of the ``with``."""
    arrays = (*kernel.arguments, *kernel.results)
    index = ir.IndexType.get()
    kinds = [
        *map(_buffer_type, arrays),
        bytes_type(workspace_bytes),
        bytes_type(scratch_bytes),
        index,
        index,
    ]
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, ir.FunctionType.get(kinds, []))
        noalias = ir.DictAttr.get({"llvm.noalias": ir.UnitAttr.get()})
        plain = ir.DictAttr.get({})
        function.arg_attrs = ir.ArrayAttr.get([noalias] * (len(arrays) + 2) + [plain, plain])
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        yield Frame(list(block.arguments))
        func.ReturnOp([])


def _buffer_type(array: ArrayType) -> ir.MemRefType:
    # Upstream cannot lower a bare-pointer argument of several dimensions one of which is 0.
    return memref_type(array if array.size else ArrayType((0,), array.element))


def flat(buffer: ir.Value, array: ArrayType) -> ir.Value:
    """A one-dimensional memref over all of a dense buffer."""
    kind = ir.MemRefType.get([array.size], storage_type(array.element))
    if kind == buffer.type:
        return buffer
    return memref.ReinterpretCastOp(kind, buffer, [], [], [], [0], [array.size], [1]).result


def typed_view(raw: ir.Value, offset: int, size: int, element: ElementType) -> ir.Value:
    """``size`` elements over the bytes of ``raw`` from byte ``offset``."""
    kind = ir.MemRefType.get([size], storage_type(element))
    return memref.ViewOp(kind, raw, index_value(offset), []).result


def vector_type(element: ElementType, lanes: int) -> ir.VectorType:
    """``lanes`` elements as stored in memory."""
    return ir.VectorType.get([lanes], storage_type(element))


def load_scalar(buffer: ir.Value, index: Index) -> ir.Value:
    """One element of a flat buffer, as stored."""
    return memref.LoadOp(buffer, [index_value(index)]).result


def store_scalar(value: ir.Value, buffer: ir.Value, index: Index) -> None:
    """Store one element, as stored, to a flat buffer."""
    memref.StoreOp(value, buffer, [index_value(index)])


def zero(element: ElementType, lanes: int | None = None) -> ir.Value:
    """Zero of ``element``, or a vector of zeros."""
    scalar = constant(element, 0)
    return scalar if lanes is None else broadcast(scalar, lanes)


def broadcast(value: ir.Value, lanes: int) -> ir.Value:
    """A vector with ``value`` in every lane."""
    return vector.BroadcastOp(ir.VectorType.get([lanes], value.type), value).result


def load_vector(
    buffer: ir.Value,
    index: Index,
    element: ElementType,
    lanes: int,
    mask: ir.Value | None = None,
) -> ir.Value:
    """``lanes`` consecutive elements of a flat buffer, as stored; lanes outside ``mask`` are zero and not read."""
    kind = vector_type(element, lanes)
    if mask is None:
        return vector.LoadOp(kind, buffer, [index_value(index)]).result
    scalar = kind.element_type
    blank = ir.FloatAttr.get(scalar, 0.0) if element.is_float else ir.IntegerAttr.get(scalar, 0)
    padding = arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, blank)).result
    return vector.MaskedLoadOp(kind, buffer, [index_value(index)], mask, padding).result


def store_vector(
    value: ir.Value, buffer: ir.Value, index: Index, mask: ir.Value | None = None
) -> None:
    """Store a vector to consecutive elements of a flat buffer, only the lanes in ``mask`` where one is given."""
    if mask is None:
        vector.StoreOp(value, buffer, [index_value(index)])
    else:
        vector.MaskedStoreOp(buffer, [index_value(index)], mask, value)


def lane_masks(remaining: Index, lanes: int, count: int) -> list[ir.Value]:
    """Masks of ``count`` adjacent vectors of which the first ``remaining`` lanes, in all, exist."""
    kind = ir.VectorType.get([lanes], ir.IntegerType.get_signless(1))
    return [
        vector.CreateMaskOp(kind, [index_value(sub(remaining, j * lanes))]).result
        for j in range(count)
    ]


def multiply_add(lhs: ir.Value, rhs: ir.Value, acc: ir.Value, element: ElementType) -> ir.Value:
    """``lhs * rhs + acc`` on vectors or scalars of the accumulator type; fused for float vectors."""
    if not element.is_float:
        return arith.AddIOp(acc, arith.MulIOp(lhs, rhs).result).result
    if isinstance(lhs.type, ir.VectorType):
        return vector.FMAOp(lhs, rhs, acc).result
    return arith.AddFOp(acc, arith.MulFOp(lhs, rhs).result).result


def widen(value: ir.Value, source: ElementType, target: ElementType) -> ir.Value:
    """A stored element (or vector of them) as the accumulator type ``target``.

    Exact wherever ``target`` can hold the value; integers narrower than their storage wrap.
    """
    scalar = register_type(target)
    kind = _like(value, scalar)
    if source.is_float:
        if target.is_float:
            return arith.ExtFOp(kind, value).result if source.bits < target.bits else value
        return arith.FPToSIOp(kind, value).result
    if target.is_float:
        make = arith.UIToFPOp if source.is_unsigned else arith.SIToFPOp
        return make(kind, value).result
    stored_bits = source.nbytes * 8
    if stored_bits == target.bits:
        return value
    if stored_bits > target.bits:
        return arith.TruncIOp(kind, value).result
    make = arith.ExtUIOp if source.is_unsigned else arith.ExtSIOp
    return make(kind, value).result


def narrow(value: ir.Value, source: ElementType, target: ElementType) -> ir.Value:
    """An accumulator as the output's element type, rounded once; ``i1`` for predicates."""
    kind = _like(value, register_type(target))
    if target.kind == "pred":
        if source.is_float:
            return arith.CmpFOp(arith.CmpFPredicate.UNE, value, zero(source)).result
        return arith.CmpIOp(arith.CmpIPredicate.ne, value, zero(source)).result
    if source.is_float:
        if target.is_float:
            return arith.TruncFOp(kind, value).result if target.bits < source.bits else value
        make = arith.FPToUIOp if target.is_unsigned else arith.FPToSIOp
        return make(kind, value).result
    return arith.TruncIOp(kind, value).result if target.bits < source.bits else value


def _like(value: ir.Value, scalar: ir.Type) -> ir.Type:
    kind = value.type
    if isinstance(kind, ir.VectorType):
        return ir.VectorType.get(kind.shape, scalar)
    return scalar


class Source:
    """Reads one operand in the accumulator type, from its buffer or through its prologue.

    Attributes:
        operand: the operand.
        buffer: flat view of its buffer; None where a prologue computes it.
        prologue: the prologue, or None.
        buffers: the phase's memrefs, for the prologue.
        accumulate: the type values are widened to.
    """

    #: Elements of ``k`` in one step.
    unit = 1

    def __init__(
        self,
        operand: Operand,
        argument: int,
        prologue: Prologue | None,
        buffers: tuple[ir.Value, ...],
        accumulate: ElementType,
    ):
        self.operand = operand
        self.prologue = prologue
        self.buffers = buffers
        self.accumulate = accumulate
        self.buffer = None if prologue else flat(buffers[argument], operand.array)

    @property
    def element(self) -> ElementType:
        """The operand's own element type."""
        return self.operand.array.element

    def offset(self, batch: Index, free: Index, contract: Index) -> Index:
        """Element offset in the buffer."""
        o = self.operand
        return add(add(o.batch.offset(batch), o.free.offset(free)), o.contract.offset(contract))

    def scalar(self, batch: Index, free: Index, contract: Index) -> ir.Value:
        """One element, widened."""
        if self.prologue is None:
            assert self.buffer is not None
            value = load_scalar(self.buffer, self.offset(batch, free, contract))
        else:
            index = self.operand.logical_index(batch, free, contract)
            value = self.prologue(index, self.buffers)
            if self.element.kind == "pred":
                value = arith.ExtUIOp(ir.IntegerType.get_signless(8), value).result
        return widen(value, self.element, self.accumulate)

    def widened(self, offset: Index) -> ir.Value:
        """The element at a buffer offset, widened."""
        assert self.buffer is not None
        return widen(load_scalar(self.buffer, offset), self.element, self.accumulate)

    def across(
        self,
        batch: Index,
        n0: Index,
        step: Index,
        lanes: int,
        vectors: int,
        remaining: Index | None,
    ) -> list[ir.Value]:
        """Adjacent columns ``n0 …`` of one step of ``k``, for an operand contiguous in its free dimension.

        Columns past the first ``remaining`` are zero; None when all exist.
        """
        start = self.offset(batch, n0, step)
        masks = [None] * vectors if remaining is None else lane_masks(remaining, lanes, vectors)
        return [self.vector(add(start, j * lanes), lanes, masks[j]) for j in range(vectors)]

    def along(self, start: Index, step: Index, lanes: int, remaining: Index | None) -> ir.Value:
        """``lanes`` adjacent steps of ``k`` from ``step`` of a column that starts at a buffer offset.

        For an operand contiguous in ``k``. Elements past the column's first ``remaining`` are zero.
        """
        mask = None if remaining is None else lane_masks(sub(remaining, step), lanes, 1)[0]
        return self.vector(add(start, step), lanes, mask)

    def vector(self, offset: Index, lanes: int, mask: ir.Value | None = None) -> ir.Value:
        """``lanes`` adjacent elements at a buffer offset, widened."""
        assert self.buffer is not None
        value = load_vector(self.buffer, offset, self.element, lanes, mask)
        return widen(value, self.element, self.accumulate)


def sources(kernel: DotKernel, frame: Frame) -> tuple[Source, Source]:
    """Readers of the left and right operand in this phase."""

    problem = kernel.problem
    sides = (
        (problem.lhs, kernel.lhs, kernel.lhs_prologue),
        (problem.rhs, kernel.rhs, kernel.rhs_prologue),
    )
    left, right = (Source(*side, frame.buffers, problem.accumulate) for side in sides)
    return left, right


@dataclass(frozen=True)
class Sink:
    """Writes finished elements to the kernel's results, through the epilogue where there is one."""

    kernel: DotKernel
    frame: Frame
    flat_results: tuple[ir.Value, ...]

    @staticmethod
    def of(kernel: DotKernel, frame: Frame) -> Sink:
        """The sink of one phase."""
        buffers = frame.buffers[len(kernel.arguments) :]
        views = tuple(flat(b, a) for b, a in zip(buffers, kernel.results, strict=True))
        return Sink(kernel, frame, views)

    def position(self, batch: Index, m: Index, n: Index) -> Index:
        """Flat output position."""
        problem = self.kernel.problem
        if problem.swapped:
            m, n = n, m
        columns = problem.m if problem.swapped else problem.n
        rows = problem.n if problem.swapped else problem.m
        return add(mul(add(mul(batch, rows), m), columns), n)

    def put(self, total: ir.Value, batch: Index, m: Index, n: Index) -> None:
        """Finish element ``(batch, m, n)`` from its sum ``total``."""
        index = self.kernel.problem.output_index(batch, m, n)
        self._put(total, index, self.position(batch, m, n))

    def put_row(
        self,
        batch: Index,
        m: Index,
        n: Index,
        width: int,
        total: Callable[[ir.Value], ir.Value],
    ) -> None:
        """Finish ``width`` elements of row ``m`` from column ``n``, a multiple of ``width``.

        ``total(lane)`` is the sum of column ``n + lane``. The loop is scalar, with consecutive innermost output
        indices where the shape allows, for LLVM to vectorise.
        """
        inner, size = self.kernel.problem.inner_column_dim
        aligned = inner is not None and size % width == 0
        first = self.kernel.problem.output_index(batch, m, n)
        position = self.position(batch, m, n)
        step = self.kernel.problem.m if self.kernel.problem.swapped else 1

        def one(lane: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            if aligned and inner is not None:
                index = [*first]
                index[inner] = add(index[inner], lane)
            else:
                index = self.kernel.problem.output_index(batch, m, add(n, lane))
            self._put(total(lane), index, add(position, mul(lane, step)))
            return []

        for_loop(0, width, one, unroll=1)

    def _put(self, total: ir.Value, index: list[Index], position: Index) -> None:
        problem = self.kernel.problem
        value = narrow(total, problem.accumulate, problem.result)
        values: Sequence[ir.Value] = [value]
        if self.kernel.epilogue is not None:
            values = self.kernel.epilogue(value, index, self.frame.buffers)
        for out, scalar, array in zip(self.flat_results, values, self.kernel.results, strict=True):
            if array.element.bits < 8:
                scalar = arith.ExtUIOp(ir.IntegerType.get_signless(8), scalar).result
            store_scalar(scalar, out, position)
