# SPDX-License-Identifier: Apache-2.0
"""Launches over independent items: neighbouring threads take neighbouring items, and stride over the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame

#: Threads of one block.
BLOCK = 256

#: Times the resident threads of the device that a grid has at most: enough to balance, few enough to start quickly.
WAVES = 4


def launch_items(
    frame: GpuFrame,
    items: int,
    body: Callable[[LaunchFrame, Index], None],
    copies: Sequence[tuple[int, int]] = (),
) -> None:
    """Add a launch that runs ``body(launch, item)`` for every ``item < items``; ``copies`` as in :class:`Phase`."""
    block = min(BLOCK, max(1, -(-items // WARP)) * WARP)
    most = max(1, WAVES * frame.source.target.max_threads // block)
    grid = max(1, min(-(-items // block), most))
    frame.launch(lambda launch: _each(launch, items, body), (grid,), (block,), copies)


def _each(launch: LaunchFrame, items: int, body: Callable[[LaunchFrame, Index], None]) -> None:
    stride = launch.grid[0] * launch.block[0]
    thread = launch.global_thread()

    def step(item: Index) -> None:
        with launch.elemental.scope():
            body(launch, item)

    def turn(item: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        step(item)
        return []

    if stride == items:
        step(thread)
    elif stride > items:
        with build.if_then(build.less(thread, items)):
            step(thread)
    else:
        build.for_loop(thread, items, turn, step=stride)
