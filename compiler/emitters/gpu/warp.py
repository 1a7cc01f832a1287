# SPDX-License-Identifier: Apache-2.0
"""Values that threads exchange: shuffles of any element type, and reductions over a warp or a block.

A shuffle moves 32 bits, so a value is taken apart into 32-bit words and put together again on the other side: narrow
numbers ride in the low bits of one word, 64-bit ones and complex numbers take several. Where the order of a reduction's
operands matters to its body, lanes with lower numbers stay on the left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import complex as complex_dialect

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu.frame import WARP, LaunchFrame
from gristmill.runtime.types import ElementType

#: Merges two lists of values, the left one first.
Merge = Callable[[list[ir.Value], list[ir.Value]], list[ir.Value]]


def _integer(bits: int) -> ir.Type:
    return ir.IntegerType.get_signless(bits)


def to_words(value: ir.Value) -> list[ir.Value]:
    """The bits of a register value as 32-bit integers, low word first."""
    kind = value.type
    if isinstance(kind, ir.ComplexType):
        parts = complex_dialect.ReOp(value).result, complex_dialect.ImOp(value).result
        return [word for part in parts for word in to_words(part)]
    if isinstance(kind, ir.IndexType):
        value = arith.IndexCastOp(_integer(64), value).result
    elif not isinstance(kind, ir.IntegerType):
        value = arith.BitcastOp(_integer(ir.FloatType(kind).width), value).result
    bits = ir.IntegerType(value.type).width
    if bits < 32:
        return [arith.ExtUIOp(_integer(32), value).result]
    if bits == 32:
        return [value]
    half = arith.ConstantOp(_integer(64), 32).result
    high = arith.ShRUIOp(value, half).result
    return [arith.TruncIOp(_integer(32), x).result for x in (value, high)]


def from_words(words: Sequence[ir.Value], kind: ir.Type) -> ir.Value:
    """The value of type ``kind`` whose :func:`to_words` are ``words``."""
    if isinstance(kind, ir.ComplexType):
        half = len(words) // 2
        parts = [from_words(x, kind.element_type) for x in (words[:half], words[half:])]
        return complex_dialect.CreateOp(kind, *parts).result
    if len(words) == 2:
        low, high = (arith.ExtUIOp(_integer(64), word).result for word in words)
        half = arith.ConstantOp(_integer(64), 32).result
        value = arith.OrIOp(low, arith.ShLIOp(high, half).result).result
    else:
        value = words[0]
    if isinstance(kind, ir.IndexType):
        return arith.IndexCastOp(kind, value).result
    bits = kind.width if isinstance(kind, ir.IntegerType) else ir.FloatType(kind).width
    if bits < 32:
        value = arith.TruncIOp(_integer(bits), value).result
    return value if isinstance(kind, ir.IntegerType) else arith.BitcastOp(kind, value).result


def shuffle(
    launch: LaunchFrame, value: ir.Value, offset: int, mode: str = "xor", width: int = WARP
) -> ir.Value:
    """``value``, of any register type, of another lane; arguments as in :meth:`LaunchFrame.shuffle`."""
    words = [launch.shuffle(word, offset, mode, width) for word in to_words(value)]
    return from_words(words, value.type)


def reduce_lanes(
    launch: LaunchFrame, values: Sequence[ir.Value], merge: Merge, lanes: int, *, ordered: bool
) -> list[ir.Value]:
    """The merged values of every aligned group of ``lanes`` lanes (a power of two), in all of them.

    ``ordered`` keeps lower lanes on the left, for a ``merge`` that does not commute.
    """
    current, offset = list(values), 1
    while offset < lanes:
        other = [shuffle(launch, value, offset) for value in current]
        if ordered:
            bit = build.mod(build.div(launch.thread(), offset), 2)
            is_lower = build.equal(bit, 0)
            left, right = (
                [arith.SelectOp(is_lower, a, b).result for a, b in zip(x, y, strict=True)]
                for x, y in ((current, other), (other, current))
            )
        else:
            left, right = current, other
        current = merge(left, right)
        offset *= 2
    return current


def reduce_block(
    launch: LaunchFrame,
    values: Sequence[ir.Value],
    elements: Sequence[ElementType],
    merge: Merge,
    threads: int,
    *,
    ordered: bool,
) -> list[ir.Value]:
    """The merged values of a block of ``threads`` (a power of two) along x, in all its threads.

    Warps merge by shuffles and leave their values, of types ``elements``, in workgroup memory of their own. All
    threads of the block must take part.
    """
    merged = reduce_lanes(launch, values, merge, min(threads, WARP), ordered=ordered)
    warps = threads // WARP
    if warps <= 1:
        return merged
    buffers = [launch.shared((warps,), build.storage_type(x)) for x in elements]
    with build.if_then(build.equal(launch.lane(), 0)):
        put(buffers, elements, merged, (launch.warp(),))
    launch.barrier()
    lane = build.mod(launch.lane(), warps)
    return reduce_lanes(launch, take(buffers, elements, (lane,)), merge, warps, ordered=ordered)


def put(
    buffers: Sequence[ir.Value],
    elements: Sequence[ElementType],
    values: Sequence[ir.Value],
    at: Sequence[Index],
) -> None:
    """Store one value into each buffer at ``at``."""
    for buffer, element, value in zip(buffers, elements, values, strict=True):
        build.store(value, buffer, at, element)


def take(
    buffers: Sequence[ir.Value], elements: Sequence[ElementType], at: Sequence[Index]
) -> list[ir.Value]:
    """Load one value from each buffer at ``at``."""
    return [
        build.load(buffer, at, element) for buffer, element in zip(buffers, elements, strict=True)
    ]
