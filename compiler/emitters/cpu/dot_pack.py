# SPDX-License-Identifier: Apache-2.0
"""Packing: operand blocks rewritten, in the accumulator type, in the order the micro-kernel reads them.

A right-hand panel is ``[k][NR]``: ``NR`` adjacent columns, zero-filled past the last one. A left-hand panel of ``MR``
rows is either row-major with a padded row length (rows adjacent in ``k`` stay so, and rows do not collide in
one cache set), or ``[k][MR]``.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters.build import Index, add, for_loop, minimum, mul, sub
from gristmill.compiler.emitters.cpu.dot_build import (
    Source,
    store_scalar,
    store_vector,
    zero,
)


def pack_columns(
    source: Source,
    target: ir.Value,
    base: Index,
    *,
    batch: Index,
    n0: Index,
    n: int,
    k0: Index,
    count: Index,
    k: int,
    lanes: int,
    vectors: int,
) -> None:
    """Pack columns ``n0 …`` and steps ``k0 … k0 + count`` of the right operand to ``target[base …]``.

    Args:
        source: the right operand.
        target: flat buffer of the accumulator type, with room for ``count`` rounded up to ``lanes`` steps.
        base: where the block starts in ``target``.
        batch: batch index.
        n0: first column, a multiple of the panel width ``lanes * vectors``.
        n: number of columns of the operand.
        k0: first step of ``k``.
        count: number of steps.
        k: elements of ``k`` of the operand.
        lanes: elements in a vector.
        vectors: vectors in a panel row.
    """
    width = lanes * vectors
    operand = source.operand
    whole = n % width == 0
    remaining = None if whole else sub(n, n0)

    def copy_row(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        row = source.across(batch, n0, add(k0, i), lanes, vectors, remaining)
        for j, value in enumerate(row):
            store_vector(value, target, add(base, add(mul(i, width), j * lanes)))
        return []

    def gather_row(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        row = add(base, mul(i, width))

        def element(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            value = source.scalar(batch, add(n0, j), add(k0, i))
            store_scalar(value, target, add(row, j))
            return []

        def blank(j: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            store_scalar(zero(source.accumulate), target, add(row, j))
            return []

        limit: Index = width if whole else minimum(sub(n, n0), width)
        for_loop(0, limit, element)
        if not whole:
            for_loop(limit, width, blank)
        return []

    if source.buffer is not None and operand.free.stride == 1:
        for_loop(0, count, copy_row)
    elif source.buffer is not None and operand.contract.stride == 1 and k >= lanes:
        for j in range(vectors):
            _transpose_columns(
                source,
                target,
                add(base, j * lanes),
                batch=batch,
                columns=[_existing(add(n0, j * lanes + q), n, width) for q in range(lanes)],
                k0=k0,
                count=count,
                k=k,
                width=width,
            )
    else:
        for_loop(0, count, gather_row)


def _existing(column: Index, n: int, width: int) -> Index:
    return column if n % width == 0 else minimum(column, n - 1)


def _transpose_columns(
    source: Source,
    target: ir.Value,
    base: Index,
    *,
    batch: Index,
    columns: list[Index],
    k0: Index,
    count: Index,
    k: int,
    width: int,
) -> None:
    """Pack ``lanes`` columns that are contiguous in ``k``, a square of registers at a time.

    Columns past the operand's last repeat it: their products are never stored.
    """
    lanes = len(columns)
    first = mul(k0, source.unit)
    starts = [source.offset(batch, column, first) for column in columns]
    remaining = None if k % (lanes * source.unit) == 0 else sub(k, first)

    def square(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        rows = [source.along(start, i, lanes, remaining) for start in starts]
        for q, row in enumerate(transpose_square(rows)):
            store_vector(row, target, add(base, mul(add(i, q), width)))
        return []

    for_loop(0, count, square, step=lanes)


def transpose_square(rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square matrix held as one vector a row; its size is a power of two.

    Each step exchanges the off-diagonal blocks of half the previous size with one two-source shuffle a row.
    """
    size = len(rows)
    block = size // 2
    while block:
        low = [q if not q & block else size + q - block for q in range(size)]
        high = [q + block if not q & block else size + q for q in range(size)]
        result = list(rows)
        for i in range(size):
            if not i & block:
                a, b = rows[i], rows[i + block]
                result[i] = vector.ShuffleOp(a, b, low).result
                result[i + block] = vector.ShuffleOp(a, b, high).result
        rows = result
        block //= 2
    return rows


def pack_rows(
    source: Source,
    target: ir.Value,
    base: Index,
    *,
    batch: Index,
    m0: Index,
    rows: Index,
    k: int,
    row_stride: int,
    k_stride: int,
) -> None:
    """Pack ``k`` steps of ``rows`` rows from ``m0`` of the left operand.

    Element ``(i, k)`` goes to ``base + i * row_stride + k * k_stride``.
    """

    def element(i: Index, kk: Index) -> None:
        value = source.scalar(batch, add(m0, i), kk)
        store_scalar(value, target, add(base, add(mul(i, row_stride), mul(kk, k_stride))))

    def nest(outer: Index, inner: Index, by_rows: bool) -> None:
        def outer_body(o: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            def inner_body(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                element(*((o, i) if by_rows else (i, o)))
                return []

            for_loop(0, inner, inner_body)
            return []

        for_loop(0, outer, outer_body)

    if k_stride == 1:
        nest(rows, k, True)
    else:
        nest(k, rows, False)
