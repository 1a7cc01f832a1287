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
from gristmill.compiler.emitters.gpu.dot_tiles import Product
from gristmill.compiler.emitters.gpu.frame import LaunchFrame


def emit_element(launch: LaunchFrame, product: Product, number: Index) -> None:
    """Compute and finish sum ``number`` of the product."""
    batch, m, n = build.delinearize(number, (product.batch, product.m, product.n))

    def add(k: Index, carried: list[ir.Value]) -> list[ir.Value]:
        lhs = product.lhs.factor(launch, batch, m, k, product.accumulate)
        rhs = product.rhs.factor(launch, batch, n, k, product.accumulate)
        return [multiply_add(lhs, rhs, carried[0], product.accumulate)]

    zero = vectors.zero_like(build.register_type(product.accumulate))
    (total,) = build.for_loop(0, product.k, add, [zero])
    product.finish(launch, total, batch, m, n)
