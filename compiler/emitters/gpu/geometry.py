# SPDX-License-Identifier: Apache-2.0
"""What the emitters share in mapping elements to threads: units of one wide access, powers of two, guards."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT
from gristmill.compiler.graph import Graph

#: Elements of one unit at most: narrow types do without the widest access.
MOST_WIDTH = 8


def power_below(number: int) -> int:
    """The largest power of two up to ``number``."""
    return 1 << (number.bit_length() - 1)


def power_above(number: int) -> int:
    """The smallest power of two from ``number``."""
    return 1 << max(0, number - 1).bit_length()


def unit_width(graph: Graph, size: int, extents: Sequence[int]) -> int:
    """Consecutive elements of one thread: a power of two that divides the last of ``extents``.

    They fill a 16-byte access of the narrowest argument or result of ``size`` elements.
    """
    values = [*graph.parameters, *graph.results]
    nbytes = [x.type.element.nbytes for x in values if x.type.size == size]
    width = min(MOST_WIDTH, BUFFER_ALIGNMENT // max(1, min(nbytes))) if nbytes else 1
    last = next((extent for extent in reversed(extents) if extent != 1), 1)
    while width > 1 and last % width:
        width //= 2
    return max(1, width)


def expand_unit(unit: Index, width: int, extents: Sequence[int]) -> list[list[Index]]:
    """The indices in ``extents`` of the ``width`` elements of ``unit``."""
    first = build.delinearize(build.mul(unit, width), extents)
    last = max((d for d, size in enumerate(extents) if size != 1), default=0)
    return [
        [build.add(i, lane) if d == last else i for d, i in enumerate(first)]
        for lane in range(width)
    ]


@contextmanager
def where(*conditions: ir.Value | None) -> Generator[None]:
    """The body of the ``with`` only where all ``conditions`` hold; ``None`` always does."""
    real = [condition for condition in conditions if condition is not None]
    if not real:
        yield
        return
    condition = real[0]
    for other in real[1:]:
        condition = arith.AndIOp(condition, other).result
    with build.if_then(condition):
        yield
