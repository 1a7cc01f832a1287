# SPDX-License-Identifier: Apache-2.0
"""Products with short sums, or few of them: one thread for each sum.

Products are rounded before they are added, as on the CPU: short sums may cancel, and then the difference is seen.
"""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.dot_build import multiply_add
from gristmill.compiler.emitters.gpu import vectors
from gristmill.compiler.emitters.gpu.dot_tiles import Product, each
from gristmill.compiler.emitters.gpu.frame import GpuFrame, LaunchFrame
from gristmill.compiler.target import GpuTarget

#: Threads of a block.
_BLOCK = 256

#: Times the resident threads of the device that the launch has at most.
_WAVES = 4


def launch_elements(frame: GpuFrame, product: Product, target: GpuTarget) -> None:
    """Add the launch that computes ``product``."""
    size = product.batch * product.m * product.n
    block = min(_BLOCK, -(-max(1, size) // 32) * 32)
    grid = max(1, min(-(-size // block), _WAVES * target.max_threads // block))
    frame.launch(lambda launch: _elements(launch, product, size), (grid,), (block,))


def _elements(launch: LaunchFrame, product: Product, size: int) -> None:
    zero = vectors.zero_like(build.register_type(product.accumulate))

    def one(number: ir.Value) -> None:
        batch, m, n = build.delinearize(number, (product.batch, product.m, product.n))

        def add(k: Index, carried: list[ir.Value]) -> list[ir.Value]:
            lhs = product.lhs.factor(launch, batch, m, k, product.accumulate)
            rhs = product.rhs.factor(launch, batch, n, k, product.accumulate)
            return [multiply_add(lhs, rhs, carried[0], product.accumulate)]

        (total,) = build.for_loop(0, product.k, add, [zero])
        product.finish(launch, total, batch, m, n)

    each(launch.global_thread(), size, launch.grid[0] * launch.block[0], one)
