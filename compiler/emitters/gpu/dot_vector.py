# SPDX-License-Identifier: Apache-2.0
"""Products of a matrix with a few vectors, bound by reading the matrix once.

*Rows*: the matrix lies along ``k``. Warps take rows; a warp's lanes take neighbouring chunks of a row and add their
sums by shuffles. *Columns*: it lies along its rows' index. Lanes take neighbouring rows, the warps of a block different
``k``, and add their sums in workgroup memory. Where rows are few, several warps and then several blocks share a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot_build import widen
from gristmill.compiler.emitters.gpu import vectors, warp
from gristmill.compiler.emitters.gpu.dot_tiles import Cut, Product, put_sums
from gristmill.compiler.emitters.gpu.frame import WARP, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import where
from gristmill.compiler.target import GpuTarget

#: Warps and threads of a block.
_WARPS = 8
BLOCK = _WARPS * WARP

#: Blocks for each multiprocessor that keep its memory accesses going.
_FILL = 2

#: Chunks of a row that a lane should have at least.
_LEAST_CHUNKS = 4


def plan_rows(product: Product, target: GpuTarget) -> Cut:
    """The *rows* form's cut: rows of a block; its depth is what the warps of one row read in one step."""
    width = product.lhs.width
    rows, chunks = product.batch * product.m, -(-product.k // width)
    wanted = _FILL * target.multiprocessors
    share = 1
    while (
        share < _WARPS and rows * share < wanted * _WARPS and chunks > _LEAST_CHUNKS * WARP * share
    ):
        share *= 2
    depth = share * WARP * width
    splits = 1
    while rows * splits < wanted and product.k > 2 * splits * depth * _LEAST_CHUNKS:
        splits *= 2
    return Cut.of(product, _WARPS // share, product.n, depth, splits)


def plan_columns(product: Product, target: GpuTarget) -> Cut:
    """The *columns* form's cut: rows of a block; all its warps take them, of different ``k``."""
    width, nbytes = product.lhs.width, _WARPS * WARP * product.n * product.accumulate.nbytes
    while width * nbytes > target.shared_bytes:
        width //= 2
    rows = WARP * width
    blocks = product.batch * -(-product.m // rows)
    splits = 1
    wanted = _FILL * target.multiprocessors
    while blocks * splits < wanted and product.k > 2 * splits * _WARPS * _LEAST_CHUNKS:
        splits *= 2
    return Cut.of(product, rows, product.n, _WARPS, splits)


def emit_rows(launch: LaunchFrame, product: Product, cut: Cut) -> None:
    """The code of one block."""
    share = _WARPS // cut.rows
    width = product.lhs.width
    down = -(-product.m // cut.rows)
    split, batch, tile = build.delinearize(launch.block_number(), (cut.splits, product.batch, down))
    row, part = build.delinearize(launch.warp(), (cut.rows, share))
    m = build.add(build.mul(tile, cut.rows), row)
    inside = None if product.m % cut.rows == 0 else build.less(m, product.m)
    lane = build.add(build.mul(part, WARP), launch.lane())
    first = build.add(build.mul(split, cut.steps * cut.depth), build.mul(lane, width))
    last = build.minimum(build.mul(build.add(split, 1), cut.steps * cut.depth), product.k)
    if inside is not None:
        # A warp without a row goes on with an empty one: others of the block wait for it.
        last = _where(inside, last)
    kind = build.register_type(product.accumulate)
    zero = vectors.zero_like(kind if width == 1 else ir.VectorType.get([width], kind))

    def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        raw = product.lhs.read(launch, batch, m, k)
        row = widen(raw, product.lhs.element, product.accumulate)
        return [
            vectors.multiply_add(row, _columns(launch, product, batch, n, k, width), total)
            for n, total in enumerate(sums)
        ]

    sums = build.for_loop(first, last, step, [zero] * product.n, step=cut.depth)
    totals = warp.reduce_lanes(
        launch,
        [_sum(total) for total in sums],
        lambda a, b: [vectors.plus(x, y) for x, y in zip(a, b, strict=True)],
        WARP,
        ordered=False,
    )
    if share > 1:
        totals = _across_block(launch, totals, kind, cut.rows, share, row, part)
    leader = build.equal(lane, 0)
    if inside is not None:
        leader = vectors.both(leader, inside)
    with build.if_then(leader):
        put_sums(launch, product, cut, split, totals, batch, m, 0)


def _where(condition: ir.Value, index: Index) -> Index:
    return build.if_else(
        condition,
        [ir.IndexType.get()],
        lambda: [build.index_value(index)],
        lambda: [build.index_value(0)],
    )[0]


def _columns(
    launch: LaunchFrame, product: Product, batch: Index, n: Index, k: Index, width: int
) -> ir.Value:
    """``width`` elements of the right operand along ``k``, widened."""
    rhs = product.rhs
    if rhs.along == "k" and rhs.width >= width:
        raw = rhs.read(launch, batch, n, k, width=width)
        return widen(raw, rhs.element, product.accumulate)
    parts = [
        rhs.factor(launch, batch, n, build.add(k, i), product.accumulate) for i in range(width)
    ]
    return vectors.from_elements(parts)


def _sum(value: ir.Value) -> ir.Value:
    first, *rest = vectors.elements(value)
    for part in rest:
        first = vectors.plus(first, part)
    return first


def _across_block(
    launch: LaunchFrame,
    totals: Sequence[ir.Value],
    kind: ir.Type,
    rows: int,
    share: int,
    row: Index,
    part: Index,
) -> list[ir.Value]:
    """The sums over the warps of a row, for its first warp."""
    memory = launch.shared((rows, share, len(totals)), kind)
    with build.if_then(build.equal(launch.lane(), 0)):
        for n, total in enumerate(totals):
            vectors.store(total, memory, [row, part, n])
    launch.barrier()
    result: list[ir.Value] = []
    for n in range(len(totals)):
        total = vectors.load(memory, [row, 0, n], 1)
        for other in range(1, share):
            total = vectors.plus(total, vectors.load(memory, [row, other, n], 1))
        result.append(total)
    return result


def emit_columns(launch: LaunchFrame, product: Product, cut: Cut) -> None:
    """The code of one block."""
    width = cut.rows // WARP
    down = -(-product.m // cut.rows)
    split, batch, tile = build.delinearize(launch.block_number(), (cut.splits, product.batch, down))
    start = build.mul(tile, cut.rows)
    m = build.add(start, build.mul(launch.lane(), width))
    inside = [] if product.m % cut.rows == 0 else [build.less(m, product.m)]
    first = build.add(build.mul(split, cut.steps * cut.depth), launch.warp())
    last = build.minimum(build.mul(build.add(split, 1), cut.steps * cut.depth), product.k)
    kind = build.register_type(product.accumulate)
    zero = vectors.zero_like(kind if width == 1 else ir.VectorType.get([width], kind))

    def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        raw = product.lhs.read(launch, batch, m, k, inside, width)
        column = widen(raw, product.lhs.element, product.accumulate)
        result: list[ir.Value] = []
        for n, total in enumerate(sums):
            factor = product.rhs.factor(launch, batch, n, k, product.accumulate)
            result.append(vectors.multiply_add(column, vectors.splat(factor, width), total))
        return result

    sums = build.for_loop(first, last, step, [zero] * product.n, step=_WARPS)
    memory = launch.shared((_WARPS, product.n, cut.rows), kind)
    for n, total in enumerate(sums):
        vectors.store(total, memory, [launch.warp(), n, build.mul(launch.lane(), width)])
    launch.barrier()

    def finish(place: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        row = build.add(start, place)
        with where(build.less(row, product.m) if inside else None):
            totals: list[ir.Value] = []
            for n in range(product.n):
                total = vectors.load(memory, [0, n, place], 1)
                for other in range(1, _WARPS):
                    total = vectors.plus(total, vectors.load(memory, [other, n, place], 1))
                totals.append(total)
            put_sums(launch, product, cut, split, totals, batch, row, 0)
        return []

    build.for_loop(launch.thread(), cut.rows, finish, step=BLOCK)
