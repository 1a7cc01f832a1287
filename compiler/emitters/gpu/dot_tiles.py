# SPDX-License-Identifier: Apache-2.0
"""A product cut into tiles for blocks: which block computes what, and how finished sums reach the results.

The tile kernels (:mod:`.dot_simt`, :mod:`.dot_mma`) end with sums in registers, spread over threads in a way that
suits the inner loop. They go through workgroup memory, a band of rows at a time, so that neighbouring threads finish
and store neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu import vectors
from gristmill.compiler.emitters.gpu.dot_operand import TileOperand
from gristmill.compiler.emitters.gpu.frame import LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import where
from gristmill.runtime.types import ArrayType, ElementType

#: Rows of tiles that are computed next to each other, so that they find their operands in the L2 cache.
_GROUP = 8

#: Elements between a row of the staged band and the next, beyond the tile's columns; keeps banks apart.
_PADDING = 8

#: ``finish(launch, value, batch, m, n)`` computes and stores the results' elements from a finished sum.
Finish = Callable[[LaunchFrame, ir.Value, Index, Index, Index], None]


@dataclass(frozen=True)
class Product:
    """``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``.

    Attributes:
        batch, m, n, k: extents.
        accumulate: type of the sums.
        lhs, rhs: the operands.
        finish: what becomes of a sum.
        width: neighbouring elements of the results that a thread finishes: one access of the narrowest.
        is_gathered: whether an address takes more than a few operations, as a convolution's do.
    """

    batch: int
    m: int
    n: int
    k: int
    accumulate: ElementType
    lhs: TileOperand
    rhs: TileOperand
    finish: Finish
    width: int
    is_gathered: bool = False

    @property
    def size(self) -> int:
        """Number of sums."""
        return self.batch * self.m * self.n

    def swap(self) -> Product:
        """The same product with rows and columns exchanged."""

        def finish(launch: LaunchFrame, value: ir.Value, batch: Index, m: Index, n: Index) -> None:
            self.finish(launch, value, batch, n, m)

        return Product(
            self.batch,
            self.n,
            self.m,
            self.k,
            self.accumulate,
            self.rhs,
            self.lhs,
            finish,
            self.width,
            self.is_gathered,
        )


@dataclass(frozen=True)
class Cut:
    """How a product is cut into the work of blocks.

    Attributes:
        rows, columns: of one tile.
        depth: elements of the sum that a block takes in one step.
        splits: blocks that share one tile's sums; their shares are added up by a second launch.
        steps: of one block.
    """

    rows: int
    columns: int
    depth: int
    splits: int
    steps: int

    @staticmethod
    def of(product: Product, rows: int, columns: int, depth: int, splits: int) -> Cut:
        """A cut with at most ``splits`` shares, none of them empty."""
        total = -(-product.k // depth)
        steps = -(-total // splits)
        return Cut(rows, columns, depth, -(-total // steps), steps)

    def blocks(self, product: Product) -> int:
        """Blocks of the launch."""
        tiles = -(-product.m // self.rows) * -(-product.n // self.columns)
        return tiles * product.batch * self.splits

    def workspace(self, product: Product) -> ArrayType:
        """The shares of the sums; empty when there is one."""
        size = product.size if self.splits > 1 else 0
        return ArrayType((self.splits * size,), product.accumulate)


@dataclass(frozen=True)
class Position:
    """What a block computes: the first row and column, the first step of the sum.

    Attributes:
        split, batch: which share of the sums, which product.
        m, n: first row and column.
        step: first step.
    """

    split: Index
    batch: Index
    m: Index
    n: Index
    step: Index

    @staticmethod
    def of(launch: LaunchFrame, product: Product, cut: Cut) -> Position:
        """The calling block's. Tiles follow each other in groups of a few rows of tiles, columns first."""
        down, across = -(-product.m // cut.rows), -(-product.n // cut.columns)
        split, batch, tile = build.delinearize(
            launch.block_number(), (cut.splits, product.batch, down * across)
        )
        group = next(g for g in range(min(_GROUP, down), 0, -1) if down % g == 0)
        outer, column, row = build.delinearize(tile, (down // group, across, group))
        m = build.add(build.mul(outer, group), row)
        step = build.mul(split, cut.steps)
        return Position(split, batch, build.mul(m, cut.rows), build.mul(column, cut.columns), step)


@dataclass(frozen=True)
class Bands:
    """The rows of a tile that are staged together.

    A thread's (or warp's) ``thread_rows`` consecutive rows are staged ``rows`` at a time, those of all
    ``groups`` threads together.
    """

    groups: int
    thread_rows: int
    rows: int

    @property
    def count(self) -> int:
        """Bands of a tile."""
        return self.thread_rows // self.rows

    @property
    def height(self) -> int:
        """Rows of a band."""
        return self.groups * self.rows

    def tile_row(self, band: int, row: Index) -> Index:
        """Where row ``row`` of a band lies in the tile."""
        group, within = build.div(row, self.rows), build.mod(row, self.rows)
        return build.add(build.mul(group, self.thread_rows), build.add(within, band * self.rows))

    def shape(self, cut: Cut) -> tuple[int, int]:
        """Of the staged band."""
        return self.height, cut.columns + _PADDING


def store_tile(
    launch: LaunchFrame,
    product: Product,
    cut: Cut,
    position: Position,
    bands: Bands,
    stage: ir.Value,
    put: Callable[[int], None],
) -> None:
    """Finish a tile: ``put(band)`` writes the calling thread's part of a band to ``stage``."""
    threads = launch.block[0]
    width = product.width
    while product.n % width or width * threads > bands.height * cut.columns:
        width //= 2
    for band in range(bands.count):
        launch.barrier()
        put(band)
        launch.barrier()
        count = bands.height * cut.columns // width

        def chunk(number: ir.Value, _: list[ir.Value], band: int = band) -> list[ir.Value]:
            row, place = build.delinearize(number, (bands.height, cut.columns // width))
            column = build.mul(place, width)
            m = build.add(position.m, bands.tile_row(band, row))
            n = build.add(position.n, column)
            inside: list[ir.Value] = []
            if product.m % cut.rows:
                inside.append(build.less(m, product.m))
            if product.n % cut.columns:
                inside.append(build.less(n, product.n))
            sums = vectors.elements(vectors.load(stage, [row, column], width))

            with where(*inside):
                put_sums(launch, product, cut, position.split, sums, position.batch, m, n)
            return []

        build.for_loop(launch.thread(), count, chunk, step=threads)


def put_sums(
    launch: LaunchFrame,
    product: Product,
    cut: Cut,
    split: Index,
    sums: Sequence[ir.Value],
    batch: Index,
    m: Index,
    n: Index,
) -> None:
    """Finish the sums of neighbouring columns of a row, or put them with the other shares of share ``split``."""
    for lane, value in enumerate(sums):
        column = build.add(n, lane)
        if cut.splits == 1:
            product.finish(launch, value, batch, m, column)
            continue
        shares = build.view(launch.workspace, 0, cut.workspace(product))
        extents = (cut.splits, product.batch, product.m, product.n)
        place = build.linearize((split, batch, m, column), extents)
        vectors.store(value, shares, [place])


def combine_shares(launch: LaunchFrame, product: Product, cut: Cut, number: Index) -> None:
    """A split product's second launch: add up the shares of sum ``number`` and finish it."""
    shares = build.view(launch.workspace, 0, cut.workspace(product))
    total = vectors.load(shares, [number], 1)
    for split in range(1, cut.splits):
        share = vectors.load(shares, [build.add(number, split * product.size)], 1)
        total = vectors.plus(total, share)
    batch, m, n = build.delinearize(number, (product.batch, product.m, product.n))
    product.finish(launch, total, batch, m, n)
