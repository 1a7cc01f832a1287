# SPDX-License-Identifier: Apache-2.0
"""Large results that nothing in the program reads again go to memory by non-temporal stores.

An ordinary store first fetches the cache line that it is about to overwrite, and what is written pushes useful data out
of the caches. A kernel that streams a result computes a stretch of it into scratch memory, a *stage* in the first-level
cache, where LLVM vectorises the loop as ever; :func:`copy_out` then stores the stage as whole vectors past the caches.
That needs a result aligned to vectors, which an output that the caller provides need not be: the copy tests for it and
falls back to ordinary stores.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, llvm, memref, vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, PhaseFrame
from gristmill.compiler.target import Target
from gristmill.runtime.types import ArrayType

#: Bytes of a row that is staged whole: shorter ones do not repay it, longer ones leave the first-level cache.
_LEAST_ROW, _MOST_ROW = 512, 32 * 1024


def streams(source: FusionSource, number: int, length: int) -> bool:
    """Whether result ``number`` is streamed in stretches of ``length`` elements, which are whole vectors."""
    element = source.results[number].element
    whole = length * element.nbytes % source.target.vector_bytes == 0
    return number in source.streamed and element.kind != "complex" and whole


def streams_rows(source: FusionSource, number: int, length: int) -> bool:
    """As :func:`streams`, where the length is the program's."""
    nbytes = length * source.results[number].element.nbytes
    return streams(source, number, length) and _LEAST_ROW <= nbytes <= _MOST_ROW


def stage(phase: PhaseFrame, offset: int, length: int, array: ArrayType) -> ir.Value:
    """A one-dimensional memref of ``length`` elements of ``array`` in scratch memory."""
    return build.view(phase.scratch, offset, ArrayType((length,), array.element))


def copy_out(
    staged: ir.Value,
    result: ir.Value,
    start: Index,
    count: Index,
    array: ArrayType,
    target: Target,
    *,
    first: Index = 0,
) -> None:
    """Store ``count`` elements of a stage, from ``first`` on, to ``result``.

    There they begin at linear position ``start``, a multiple of a vector.
    """
    flat, element = build.flatten(result), array.element
    lanes = target.vector_bytes // element.nbytes
    kind = ir.VectorType.get([lanes], build.storage_type(element))
    whole = build.mul(build.div(count, lanes), lanes)

    def past_caches(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        value = vector.LoadOp(kind, staged, [build.index_value(build.add(first, at))]).result
        store(value, flat, build.add(start, at), target)
        return []

    def ordinary(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        value = memref.LoadOp(staged, [build.index_value(build.add(first, at))]).result
        memref.StoreOp(value, flat, [build.index_value(build.add(start, at))])
        return []

    def aligned() -> list[ir.Value]:
        build.for_loop(0, whole, past_caches, step=lanes)
        if not isinstance(count, int) or count % lanes:
            build.for_loop(whole, count, ordinary)
        return []

    def unaligned() -> list[ir.Value]:
        build.for_loop(0, count, ordinary)
        return []

    build.if_else(is_aligned(flat, target), [], aligned, unaligned)


def store(value: ir.Value, flat: ir.Value, at: Index, target: Target) -> None:
    """Store whole vectors past the caches, from position ``at``, a multiple of a vector, of what :func:`is_aligned`."""
    where = [build.index_value(at)]
    vector.StoreOp(value, flat, where, nontemporal=True, alignment=target.vector_bytes)


def is_aligned(result: ir.Value, target: Target) -> ir.Value:
    """Whether a result begins where vectors can be stored past the caches."""
    address = memref.ExtractAlignedPointerAsIndexOp(result).result
    low = arith.AndIOp(address, build.index_value(target.vector_bytes - 1)).result
    return build.equal(low, 0)


def finish(target: Target) -> None:
    """Order the stores before everything later: other threads read the result after the next barrier."""
    if target.triple.startswith("x86_64"):  # elsewhere the barrier's release does that
        empty = ir.DenseI32ArrayAttr.get([])
        llvm.CallIntrinsicOp(None, ir.StringAttr.get("llvm.x86.sse.sfence"), [], [], empty)
