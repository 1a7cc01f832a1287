# SPDX-License-Identifier: Apache-2.0
"""Small helpers over the MLIR builders: index arithmetic that folds, constants, loops.

An :data:`Index` is a Python ``int`` (known now) or an SSA value of type ``index``; arithmetic on two ints makes no
operation, so addressing of unit dimensions and of constant offsets leaves nothing behind in the IR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith, memref, scf
from mlir.dialects import complex as complex_dialect

from gristmill.runtime.types import ArrayType, ElementType

Index = int | ir.Value

#: Bytes of a cache line.
LINE_BYTES = 64
#: Turns of the innermost loop of a register tile that LLVM takes at a time; four take longer to compile for no gain.
TILE_TURNS = 2
#: Turns of a loop of known bounds that LLVM may write out one by one.
_SHORT = 8


def index_value(index: Index) -> ir.Value:
    """``index`` as an SSA value."""
    if isinstance(index, int):
        return arith.ConstantOp(ir.IndexType.get(), index).result
    return index


def _is(index: Index, number: int) -> bool:
    return isinstance(index, int) and index == number


def add(lhs: Index, rhs: Index) -> Index:
    """``lhs + rhs``."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs + rhs
    if _is(lhs, 0):
        return rhs
    if _is(rhs, 0):
        return lhs
    return arith.AddIOp(index_value(lhs), index_value(rhs), overflowFlags=_no_wrap()).result


def sub(lhs: Index, rhs: Index) -> Index:
    """``lhs - rhs``."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs - rhs
    if _is(rhs, 0):
        return lhs
    return arith.SubIOp(index_value(lhs), index_value(rhs), overflowFlags=_no_wrap()).result


def mul(lhs: Index, rhs: Index) -> Index:
    """``lhs * rhs``."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs * rhs
    if _is(lhs, 0) or _is(rhs, 0):
        return 0
    if _is(lhs, 1):
        return rhs
    if _is(rhs, 1):
        return lhs
    return arith.MulIOp(index_value(lhs), index_value(rhs), overflowFlags=_no_wrap()).result


def div(lhs: Index, rhs: int) -> Index:
    """``lhs // rhs`` for a non-negative ``lhs``."""
    if isinstance(lhs, int):
        return lhs // rhs
    return lhs if rhs == 1 else arith.DivUIOp(lhs, index_value(rhs)).result


def mod(lhs: Index, rhs: int) -> Index:
    """``lhs % rhs`` for a non-negative ``lhs``."""
    if isinstance(lhs, int):
        return lhs % rhs
    return 0 if rhs == 1 else arith.RemUIOp(lhs, index_value(rhs)).result


def minimum(lhs: Index, rhs: Index) -> Index:
    """Signed minimum."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return min(lhs, rhs)
    return arith.MinSIOp(index_value(lhs), index_value(rhs)).result


def maximum(lhs: Index, rhs: Index) -> Index:
    """Signed maximum."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return max(lhs, rhs)
    return arith.MaxSIOp(index_value(lhs), index_value(rhs)).result


def clamp(index: Index, low: int, high: int) -> Index:
    """``index`` limited to ``[low, high]``."""
    if low == high:
        return low
    return maximum(minimum(index, high), low)


def less(lhs: Index, rhs: Index) -> ir.Value:
    """``lhs < rhs``, signed, as ``i1``."""
    return arith.CmpIOp(arith.CmpIPredicate.slt, index_value(lhs), index_value(rhs)).result


def at_least(lhs: Index, rhs: Index) -> ir.Value:
    """``lhs >= rhs``, signed, as ``i1``."""
    return arith.CmpIOp(arith.CmpIPredicate.sge, index_value(lhs), index_value(rhs)).result


def equal(lhs: Index, rhs: Index) -> ir.Value:
    """``lhs == rhs`` as ``i1``."""
    return arith.CmpIOp(arith.CmpIPredicate.eq, index_value(lhs), index_value(rhs)).result


def _no_wrap() -> Any:
    # Indices stay far below 2**63; saying so lets LLVM strength-reduce and vectorise addresses.
    return arith.IntegerOverflowFlags.nsw


def linearize(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major linear position of ``index`` in ``shape``."""
    position: Index = 0
    for component, size in zip(index, shape, strict=True):
        position = add(mul(position, size), component)
    return position


def delinearize(position: Index, shape: Sequence[int]) -> list[Index]:
    """The row-major multi-index of linear ``position`` in ``shape``; unit dimensions become 0."""
    index: list[Index] = [0] * len(shape)
    real = [d for d, size in enumerate(shape) if size != 1]
    for dimension in reversed(real[1:]):
        index[dimension] = mod(position, shape[dimension])
        position = div(position, shape[dimension])
    if real:
        index[real[0]] = position
    return index


def storage_type(element: ElementType) -> ir.Type:
    """The memref element type: signless; ``i8`` for everything narrower than a byte."""
    if element.bits < 8:
        return ir.IntegerType.get_signless(8)
    return register_type(element)


def register_type(element: ElementType) -> ir.Type:
    """The SSA type of one element: signless integers of its width, floats and complex numbers as they are.

    Floats narrower than 16 bits are integers holding their bits: MLIR gives them no arithmetic.
    """
    if element.kind == "complex" or (element.is_float and element.bits >= 16):
        return ir.Type.parse(element.name)
    return ir.IntegerType.get_signless(element.bits)


def memref_type(array: ArrayType) -> ir.MemRefType:
    """The row-major memref of ``array``; empty dimensions, which MLIR gives no strides, have size 1."""
    return ir.MemRefType.get([max(1, size) for size in array.shape], storage_type(array.element))


def bytes_type(nbytes: int) -> ir.MemRefType:
    """``memref<nbytes x i8>`` (at least one byte)."""
    return ir.MemRefType.get([max(1, nbytes)], ir.IntegerType.get_signless(8))


def constant(element: ElementType, value: Any) -> ir.Value:
    """``value`` (a Python or numpy scalar) as an SSA constant of the element's register type."""
    kind = register_type(element)
    if element.kind == "complex":
        part = ir.ComplexType(kind).element_type
        real, imaginary = (
            arith.ConstantOp(part, ir.FloatAttr.get(part, number)).result
            for number in (complex(value).real, complex(value).imag)
        )
        return complex_dialect.CreateOp(kind, real, imaginary).result
    if element.is_float and element.bits < 16:
        raw = np.asarray(value, element.dtype).view(np.uint8)
        value = int(raw) & ((1 << element.bits) - 1)
    elif element.is_float:
        number = float(value)
        # IEEE bits for the values that have no decimal spelling in MLIR.
        return arith.ConstantOp(kind, ir.FloatAttr.get(kind, number)).result
    bits = int(value) & ((1 << element.bits) - 1)
    if bits >> (element.bits - 1) and element.bits > 1:
        bits -= 1 << element.bits
    if element.bits == 1:
        return arith.ConstantOp(kind, ir.BoolAttr.get(bool(value))).result
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, bits)).result


def for_loop(
    low: Index,
    high: Index,
    body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
    carried: Sequence[ir.Value] = (),
    step: int = 1,
    *,
    unroll: int = 0,
    interleave: int = 1,
) -> list[ir.Value]:
    """``scf.for`` from ``low`` to ``high``; ``body(iv, carried)`` returns the next carried values.

    LLVM takes ``unroll`` turns of the loop at a time: 1 leaves it as it is, also for the vectoriser, before which LLVM
    unrolls short loops; 0 lets LLVM choose, if the loop is small (:mod:`~gristmill.compiler.lowering.unrolling`), which
    it does also if more are asked for but there are few. A loop with ``interleave`` above 1 works on that many vectors
    side by side.
    """
    loop = scf.ForOp(index_value(low), index_value(high), index_value(step), list(carried))
    hints = ["unroll = <disable = true>"] if unroll == 1 else []
    is_short = isinstance(low, int) and isinstance(high, int) and high - low <= _SHORT * step
    hints += [f"unroll = <count = {unroll} : i32>"] if unroll > 1 and not is_short else []
    hints += [f"interleave = <count = {interleave} : i32>"] if interleave > 1 else []
    if hints:
        loop.operation.attributes["llvm.loop_annotation"] = ir.Attribute.parse(
            f"#llvm.loop_annotation<{', '.join(hints)}>"
        )
    with ir.InsertionPoint(loop.body):
        results = body(loop.induction_variable, list(loop.inner_iter_args))
        scf.YieldOp(list(results))
    return list(loop.results)


@contextmanager
def if_then(condition: ir.Value) -> Generator[None]:
    """``scf.if`` without results around the body of the ``with``."""
    branch = scf.IfOp(condition)
    with ir.InsertionPoint(branch.then_block):
        yield
        scf.YieldOp([])


def if_else(
    condition: ir.Value,
    kinds: Sequence[ir.Type],
    then: Callable[[], Sequence[ir.Value]],
    otherwise: Callable[[], Sequence[ir.Value]],
) -> list[ir.Value]:
    """``scf.if`` with results."""
    branch = scf.IfOp(condition, list(kinds), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp(list(then()))
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp(list(otherwise()))
    return list(branch.results)


def load(buffer: ir.Value, index: Sequence[Index], element: ElementType) -> ir.Value:
    """Load one element; what is narrower than a byte comes out at its own width."""
    value = memref.LoadOp(*_run_together(buffer, index)).result
    if element.bits < 8:
        return arith.TruncIOp(register_type(element), value).result
    return value


def store(value: ir.Value, buffer: ir.Value, index: Sequence[Index], element: ElementType) -> None:
    """Store one element; what is narrower than a byte goes into its low bits, with zeros above."""
    if element.bits < 8:
        value = arith.ExtUIOp(ir.IntegerType.get_signless(8), value).result
    memref.StoreOp(value, *_run_together(buffer, index))


def _run_together(buffer: ir.Value, index: Sequence[Index]) -> tuple[ir.Value, list[ir.Value]]:
    """The same element by fewer coordinates: those that a position was split into make it up again.

    LLVM finds that out only of neighbouring additions, and else computes the address of every element by itself.
    """
    kind = ir.MemRefType(buffer.type)
    shape: list[int] = []
    merged: list[Index] = []
    for size, component in zip(kind.shape, index, strict=True):
        while merged and (whole := _split_position(merged[-1], component, size)) is not None:
            merged.pop()
            size, component = shape.pop() * size, whole
        shape.append(size)
        merged.append(component)
    if len(merged) < len(index):
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        view = ir.MemRefType.get(shape, kind.element_type)
        buffer = memref.ReinterpretCastOp(
            view, buffer, [], [], [], static_offsets=[0], static_sizes=shape, static_strides=strides
        ).result
    return buffer, [index_value(i) for i in merged]


def _split_position(quotient: Index, remainder: Index, size: int) -> Index | None:
    """The position whose quotient and remainder by ``size`` these are, if they are those of one.

    What was added to the remainder is added to the position: the addresses are the same.
    """
    if isinstance(quotient, int) or isinstance(remainder, int):
        return None
    position = _division(quotient, "arith.divui", size)
    if position is None:
        return None
    owner = remainder.owner
    is_sum = not isinstance(owner, ir.Block) and owner.name == "arith.addi"
    rest = _division(owner.operands[0] if is_sum else remainder, "arith.remui", size)
    if rest is None or rest != position:
        return None
    return add(position, owner.operands[1]) if is_sum else position


def _division(value: ir.Value, name: str, size: int) -> ir.Value | None:
    """What ``value`` divides by ``size``, if it is an operation ``name`` that does."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != name:
        return None
    divisor = owner.operands[1].owner
    if isinstance(divisor, ir.Block) or divisor.name != "arith.constant":
        return None
    is_size = ir.IntegerAttr(divisor.attributes["value"]).value == size
    return owner.operands[0] if is_size else None


def view(workspace: ir.Value, offset: Index, array: ArrayType) -> ir.Value:
    """A typed memref over ``workspace`` bytes (``memref<Nxi8>``) starting at byte ``offset``."""
    return memref.ViewOp(memref_type(array), workspace, index_value(offset), []).result


def prefetch(
    buffer: ir.Value, position: Index, *, is_write: bool = False, is_near: bool = True
) -> None:
    """Ask for the cache line of an element of a one-dimensional memref, for the first-level cache if ``is_near``, else
    for the second. The position may lie outside.
    """
    memref.PrefetchOp(buffer, [index_value(position)], is_write, 3 if is_near else 2, True)


def flatten(buffer: ir.Value) -> ir.Value:
    """The same elements as a one-dimensional memref."""
    kind = ir.MemRefType(buffer.type)
    if kind.rank == 1:
        return buffer
    size = math.prod(kind.shape)
    flat = ir.MemRefType.get([size], kind.element_type)
    return memref.ReinterpretCastOp(
        flat, buffer, [], [], [], static_offsets=[0], static_sizes=[size], static_strides=[1]
    ).result
