# SPDX-License-Identifier: Apache-2.0
"""Which form and which tiles a product gets on a GPU.

Tiles are compared by a small model of one multiprocessor: a step of a tile takes its multiply-adds or its loads from
the L2 cache, whichever is longer; blocks run in waves over the multiprocessors; sums split over several blocks cost
a second launch. Figures are those of an A100 ("NVIDIA A100 Tensor Core GPU Architecture", table 5), per cycle
and multiprocessor; only their ratios matter.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.compiler.emitters.gpu.dot_mma import MMA_DEPTH_BYTES, MMA_TILES, MmaTile
from gristmill.compiler.emitters.gpu.dot_simt import SimtTile
from gristmill.compiler.emitters.gpu.dot_tiles import Cut, Product
from gristmill.compiler.target import GpuTarget


class Form(enum.Enum):
    """How a product is computed: one thread a sum, one or more warps a row, threads along rows, or tiles."""

    ELEMENTS = "elements"
    ROWS = "rows"
    COLUMNS = "columns"
    SIMT = "simt"
    MMA = "mma"


#: Sums of at most this many products are added up by one thread.
_SHORT_SUM = 4

#: Products of at most this many multiply-adds, with sums up to ``_SMALL_SUM``, are not worth tiles.
_SMALL_WORK, _SMALL_SUM = 4096, 64

#: Columns (or rows) up to which the other operand's traffic decides, not arithmetic.
FEW = 4

#: Multiply-adds of one multiprocessor in a cycle, without and with tensor cores, by bytes of an element.
_SIMT_RATE = {1: 64, 2: 64, 4: 64, 8: 32}
_MMA_RATE = {1: 2048, 2: 1024, 4: 512}

#: Bytes that one multiprocessor gets from the L2 cache in a cycle.
_LOAD_RATE = 32

#: Cycles of a step that neither arithmetic nor loads explain; of a block's start and end; of another launch.
_STEP, _BLOCK, _LAUNCH = 16, 800, 4000

#: Fewest steps of a block that shares a tile's sums with others, and most such blocks.
_LEAST_STEPS, _MOST_SPLITS = 4, 64

#: Blocks for each multiprocessor from which sums are not split.
_FULL = 2

#: Threads that keep a multiprocessor's arithmetic busy.
_BUSY = 256

#: SIMT tiles: block rows, columns, depth, thread rows, columns.
SIMT_TILES = (
    SimtTile(128, 128, 8, 8, 8),
    SimtTile(128, 64, 8, 8, 4),
    SimtTile(64, 128, 8, 4, 8),
    SimtTile(64, 64, 16, 4, 4),
    SimtTile(32, 64, 16, 4, 4),
    SimtTile(64, 32, 16, 4, 4),
    SimtTile(32, 32, 16, 4, 4),
    SimtTile(8, 64, 16, 2, 4),
)

#: Bytes of the sums in one thread's registers at most.
_SUM_BYTES = 256


def choose_form(product: Product, is_tensor: bool) -> tuple[Form, bool]:
    """The form, and whether rows and columns are to be exchanged; ``is_tensor``: tensor cores may be used."""
    work = product.batch * product.m * product.n * product.k
    if product.k <= _SHORT_SUM or (work <= _SMALL_WORK and product.k <= _SMALL_SUM):
        return Form.ELEMENTS, False
    if min(product.m, product.n) <= FEW:
        swapped = product.m < product.n
        matrix = product.rhs if swapped else product.lhs
        return (Form.ROWS if matrix.along == "k" else Form.COLUMNS), swapped
    return (Form.MMA if is_tensor else Form.SIMT), False


@dataclass(frozen=True)
class Tiling:
    """A tile and the cut of the product into such tiles."""

    tile: SimtTile | MmaTile
    cut: Cut


def choose_tiling(product: Product, target: GpuTarget, is_tensor: bool) -> Tiling:
    """The tiles that the model finds fastest."""
    candidates = _mma(product, target) if is_tensor else _simt(product, target)
    return min(candidates, key=lambda c: _cycles(product, c, target))


def _mma(product: Product, target: GpuTarget) -> Iterator[Tiling]:
    depth = MMA_DEPTH_BYTES // product.lhs.element.nbytes
    for tile in MMA_TILES:
        yield from _splits(product, tile, depth, target)


def _simt(product: Product, target: GpuTarget) -> Iterator[Tiling]:
    nbytes = product.accumulate.nbytes
    for tile in SIMT_TILES:
        if tile.thread_rows * tile.thread_columns * nbytes > _SUM_BYTES:
            continue
        if tile.shared_bytes(nbytes) <= target.shared_bytes:
            yield from _splits(product, tile, tile.depth, target)


def _splits(
    product: Product, tile: SimtTile | MmaTile, depth: int, target: GpuTarget
) -> Iterator[Tiling]:
    splits = 1
    while splits <= _MOST_SPLITS:
        cut = Cut.of(product, tile.rows, tile.columns, depth, splits)
        if splits > 1 and cut.steps < _LEAST_STEPS:
            return
        yield Tiling(tile, cut)
        if cut.blocks(product) >= _FULL * target.multiprocessors:
            return
        splits *= 2


def _cycles(product: Product, tiling: Tiling, target: GpuTarget) -> float:
    """Estimated cycles of the whole product."""
    cut, nbytes = tiling.cut, product.lhs.element.nbytes
    is_tensor = isinstance(tiling.tile, MmaTile)
    rate = (_MMA_RATE if is_tensor else _SIMT_RATE)[nbytes]
    arithmetic = cut.rows * cut.columns * cut.depth / rate
    loads = (cut.rows + cut.columns) * cut.depth * nbytes / _LOAD_RATE
    stores = cut.rows * cut.columns * product.accumulate.nbytes / _LOAD_RATE
    # The last wave is half full on average; a single one takes as long as its blocks.
    shared = cut.blocks(product) / target.multiprocessors
    waves = 1.0 if shared <= 1 else shared + 0.5
    arithmetic *= tiling.tile.overhead / min(1.0, waves * tiling.tile.threads / _BUSY)
    block = cut.steps * (max(arithmetic, loads) + _STEP) + _BLOCK + stores
    if cut.splits == 1:
        return waves * block
    shares = cut.workspace(product).nbytes / (_LOAD_RATE * target.multiprocessors)
    return waves * block + _LAUNCH + shares
