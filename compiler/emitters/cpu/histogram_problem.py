# SPDX-License-Identifier: Apache-2.0
"""Counts written as a sum of indicators: ``one_hot(ids, k).sum(axis)``, and when to count instead.

    counts[b, c] = sum_r (ids[b, r] == c)        b: batch, r: reduced, c: the class, 0 <= c < k

The dimensions of the indicator may come in any order as long as neighbouring ids are neighbours in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gristmill.compiler.emitters.elemental.contraction import reduce_operands, simple_reducer
from gristmill.compiler.graph import Graph, Node, is_uniform
from gristmill.dialects import hlo
from gristmill.runtime.types import ElementType

#: Bytes of one id's indicators, in the wider of the types of ids and counts, from which counting the id is cheaper
#: than comparing it with all classes, whether vectors have 16, 32 or 64 bytes (docs/notes/2026-11-30-histograms.md).
LEAST_BYTES = 64
#: Fewer ids than this for one set of counts are compared.
LEAST_IDS = 64
#: Ids of one set of counts at most: they are counted in 32 bits.
MOST_IDS = 1 << 30


@dataclass(frozen=True)
class Histogram:
    """A ``reduce`` that counts.

    Attributes:
        node: the ``reduce``.
        ids: what is compared with the classes, of the indicator's shape; the same for all classes.
        classes: the indicator's dimension along which the classes lie.
    """

    node: Node
    ids: Node
    classes: int

    @property
    def reduced(self) -> list[int]:
        """The indicator's dimensions that are summed over."""
        return sorted(self.node.dims("dimensions"))

    @property
    def batch(self) -> list[int]:
        """The indicator's dimensions that remain beside the classes."""
        rest = {self.classes, *self.reduced}
        return [d for d in range(len(self.ids.shape)) if d not in rest]

    @property
    def count(self) -> int:
        """Ids of one set of counts."""
        return math.prod(self.ids.shape[d] for d in self.reduced)

    @property
    def width(self) -> int:
        """Number of classes."""
        return self.ids.shape[self.classes]

    @property
    def batches(self) -> int:
        """Number of sets of counts."""
        return math.prod(self.ids.shape[d] for d in self.batch)


def histogram_of(graph: Graph, functions: Mapping[str, Graph]) -> Histogram | None:
    """``graph`` as a histogram if its one result is a sum of indicators; ``functions`` has the sum's body."""
    if len(graph.results) != 1:
        return None
    node = graph.results[0]
    if node.kind != "reduce" or len(node.siblings) != 1 or not node.operands[0].type.size:
        return None
    if simple_reducer(functions[node.symbol("to_apply")]) != "add":
        return None
    inputs, _, _ = reduce_operands(node)
    compare = _indicator(inputs[0])
    if compare is None:
        return None
    for ids, classes in (compare.operands, compare.operands[::-1]):
        dimension = _counting(classes)
        if dimension is None or dimension in node.dims("dimensions"):
            continue
        found = Histogram(node, ids, dimension)
        if not _varies(ids, dimension) and _is_exact(found) and _is_in_order(found):
            return found
    return None


def is_worthwhile(histogram: Histogram) -> bool:
    """Whether counting is faster than comparing each id with each class in vectors."""
    widest = max(x.type.element.nbytes for x in (histogram.node, histogram.ids))
    return histogram.width * widest >= LEAST_BYTES and histogram.count >= LEAST_IDS


def _indicator(node: Node) -> Node | None:
    """The ``ids == classes`` that ``node`` is 1 for and 0 elsewhere."""
    if node.kind != "convert" or node.type.element.kind not in ("int", "uint", "float"):
        return None
    compare = node.operands[0]
    if compare.kind != "compare" or compare.string("direction") != "EQ":
        return None
    return compare if compare.operands[0].type.element.kind in ("int", "uint") else None


def _counting(node: Node) -> int | None:
    """The dimension along which the elements of ``node`` are 0, 1, 2, …, whatever the others."""
    if node.kind == "iota":
        dimension = node.integer("dimension")
        fits = node.shape[dimension] - 1 <= _largest(node.type.element)
        return dimension if fits else None
    if node.kind == "broadcast_in_dim":
        inner = _counting(node.operands[0])
        if inner is not None and node.operands[0].shape[inner] > 1:
            return node.dims("dimensions")[inner]
    return None


def _largest(element: ElementType) -> int:
    """The largest value of an integer type."""
    return (1 << (element.bits if element.is_unsigned else element.bits - 1)) - 1


def _varies(node: Node, dimension: int) -> bool:
    """Whether elements of ``node`` may differ along a dimension."""
    if node.shape[dimension] == 1:
        return False
    if node.kind == "broadcast_in_dim":
        where = node.dims("dimensions")
        return dimension in where and _varies(node.operands[0], where.index(dimension))
    if node.kind == "constant":
        return node.constant is None or not is_uniform(node.constant)
    if node.op is None or not hlo.has_trait(node.op, "elementwise"):
        return True
    return any(x.shape and _varies(x, dimension) for x in node.operands)


def _is_exact(histogram: Histogram) -> bool:
    """Whether 32 bits hold the counts, and every partial sum is exact in the type that the sum is accumulated in."""
    element = histogram.node.type.element
    single = element.is_float and element.bits <= 32  # narrower floats are accumulated in f32
    return histogram.count <= (1 << 24 if single else MOST_IDS)


def _is_in_order(histogram: Histogram) -> bool:
    """Whether the last of the ids' dimensions is one that is summed over."""
    real = [d for d in (*histogram.batch, *histogram.reduced) if histogram.ids.shape[d] != 1]
    return not real or max(real) in histogram.reduced
