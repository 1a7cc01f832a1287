# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose result has the last dimension of space as its minor one (NCHW): blocks transposed in registers.

Tiles hold features in vectors. Their sums wait in scratch, pixel by pixel, until a chunk of a row is complete; then
square blocks of pixels by features are transposed and stored as vectors of pixels, each to the plane of its feature.
Stored element by element, features after one another would go to different pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import vector

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem, Tile
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.compiler.emitters.cpu.transpose_tiles import transpose_vectors
from gristmill.runtime.types import ArrayType


def block_side(problem: ConvProblem, tile: Tile) -> int:
    """Pixels and features of a block: a power of two; 0 where results are to be stored element by element.

    The last block of a chunk of pixels may overlap the one before, so every chunk has one; features are whole blocks.
    """
    node, width = problem.node, problem.width
    space = node.dims("output_spatial_dimensions")
    planar = bool(space) and space[-1] == len(node.shape) - 1
    if not planar or problem.dimensions[-1].residues > 1 or tile.channels > 1:
        return 0
    if node.type.element != problem.element or problem.element.nbytes not in (4, 8):
        return 0
    shortest = min(width, width % tile.chunk or tile.chunk)
    side = min(tile.lanes, problem.features & -problem.features)
    while side > shortest:
        side //= 2
    return side if side >= 4 else 0


def stage_of(phase: PhaseFrame, problem: ConvProblem, tile: Tile) -> ir.Value:
    """Where the sums of a chunk of pixels wait, those of a pixel side by side."""
    return build.view(phase.scratch, 0, ArrayType((tile.chunk * tile.block,), problem.element))


def keep_sums(
    phase: PhaseFrame, problem: ConvProblem, tile: Tile, pixel: Index, sums: Sequence[ir.Value]
) -> None:
    """Let the sums of a tile wait, which begins at ``pixel`` of the chunk."""
    stage, start = stage_of(phase, problem, tile), build.mul(pixel, tile.block)
    for number, value in enumerate(sums):
        at = build.add(start, number * tile.lanes)
        vector.StoreOp(value, stage, [build.index_value(at)])


def store_planes(
    phase: PhaseFrame,
    problem: ConvProblem,
    tile: Tile,
    side: int,
    pixels: tuple[Index, Index],
    where: tuple[Index, Index, Index, Sequence[Index]],
) -> None:
    """Store a chunk of a row of pixels from the stage.

    Args:
        side: of a block.
        pixels: the first of the row, and the one behind the last.
        where: batch, group, the first feature of the group and the leading position in space.
    """
    node, (begin, end), (batch, group, first, leading) = problem.node, pixels, where
    stage, result = stage_of(phase, problem, tile), build.flatten(phase.results[0])
    kind = ir.VectorType.get([side], build.register_type(problem.element))
    feature_dimension = node.integer("output_feature_dimension")
    plane = math.prod(node.shape[feature_dimension + 1 :])

    def block(pixel: Index, column: Index) -> None:
        waiting = build.add(build.mul(build.sub(pixel, begin), tile.block), column)
        places = [build.add(waiting, r * tile.block) for r in range(side)]
        rows = [vector.LoadOp(kind, stage, [build.index_value(p)]).result for p in places]
        feature = build.add(build.add(build.mul(group, problem.features), first), column)
        index = problem.output_index(batch, feature, [*leading, pixel])
        start = build.linearize(index, node.shape)
        for r, values in enumerate(transpose_vectors(rows, problem.element.nbytes)):
            vector.StoreOp(values, result, [build.index_value(build.add(start, r * plane))])

    def columns(pixel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        start = build.minimum(pixel, build.sub(end, side))

        def column(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            block(start, at)
            return []

        count = build.minimum(build.sub(problem.features, first), tile.block)
        build.for_loop(0, count, column, step=side)
        return []

    build.for_loop(begin, end, columns, step=side)
