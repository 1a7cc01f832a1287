# SPDX-License-Identifier: Apache-2.0
"""The ``split-reductions`` pass: reductions over dimensions that do not lie side by side, one group after the other.

A sum over the images and pixels of an N x C x H x W batch, say, as a sum over H and W and then one over N; one over the
pixels and the few channels of a group of an N x H x W x G x C batch as a sum over H and W and then one over C. Each of
these has an emitter that goes over memory in order, with vectors; the whole has not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.reduce_rules import combiner, is_identity
from gristmill.compiler.passes.rewriting import Rewriter, simplify
from gristmill.dialects import builders, hlo

#: What the first reduction leaves is written and read again. So it combines this many elements at least, along its last
#: dimension or, as loops over a few elements cost more, altogether. Where the last group does not, the others may.
_LEAST_ALONG, _LEAST = 16, 128


@dataclass(frozen=True)
class SplitReductionsPass(Pass):
    """Split a ``reduce`` between groups of neighbouring dimensions, the last group first unless it is short.

    Requires: nothing. Guarantees: the same results but for the order in which elements are combined. Does not handle:
    bodies other than one commutative operation, initial values that are not its identity, elements narrower than 32
    bits that are floats (what lies between would be rounded), groups of a few elements.
    """

    name: ClassVar[str] = "split-reductions"

    def run(self, module: HloModule) -> None:
        """Split in place."""
        simplify(module, {"reduce": (_split,)})


def _split(r: Rewriter, op: ir.Operation) -> Sequence[ir.Value] | None:
    dimensions = sorted(hlo.dims(op, "dimensions"))
    last = _last_group(dimensions)
    name = combiner(r, op) if len(last) < len(dimensions) else None
    if name is None:
        return None
    source, kind = r.type(op.operands[0]), r.type(op.results[0])
    rounded = kind.is_float and kind.bits < 32
    if source.element != kind.element or rounded or kind.is_complex:
        return None
    if not is_identity(r.splat(op.operands[1]), name, kind):
        return None
    first = _first_reduced(source.shape, dimensions, last)
    if not first:
        return None
    initial, body = op.operands[1], hlo.symbol(op, "to_apply")
    (inner,) = builders.reduce([op.operands[0]], [initial], first, body)
    rest = [d - sum(f < d for f in first) for d in dimensions if d not in first]
    return builders.reduce([inner], [initial], rest, body)


def _first_reduced(
    shape: Sequence[int], dimensions: Sequence[int], last: Sequence[int]
) -> Sequence[int]:
    """The dimensions to reduce first: the ``last`` group, or if it is short all others; none if these are, too."""
    if 0 in shape:
        return ()
    if shape[last[-1]] >= _LEAST_ALONG or math.prod(shape[d] for d in last) >= _LEAST:
        return last
    others = [d for d in dimensions if d not in last]
    return others if math.prod(shape[d] for d in others) >= _LEAST else ()


def _last_group(dimensions: Sequence[int]) -> list[int]:
    """The neighbouring dimensions that the last of ``dimensions`` is among."""
    first = len(dimensions) - 1
    while first > 0 and dimensions[first - 1] == dimensions[first] - 1:
        first -= 1
    return list(dimensions[max(first, 0) :])
