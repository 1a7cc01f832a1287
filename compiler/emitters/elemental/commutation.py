# SPDX-License-Identifier: Apache-2.0
"""Whether the body of a reduction commutes, found by trying it.

StableHLO leaves the grouping of a reduction to the implementation but not the order of its elements. A body that gives
the same with its two sides exchanged may be applied in any order all the same. No proof of that is attempted: the body
is evaluated on sample arguments, small numbers that tie often, and NaN and infinities.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.compiler.graph import Graph, Node
from gristmill.compiler.module import inline_constant
from gristmill.compiler.passes.evaluate import evaluate
from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor

#: Pairs of arguments that a body is tried on.
SAMPLES = 512

Array = np.ndarray[Any, Any]


class Order(enum.Enum):
    """In which order elements may be combined."""

    ANY = "any"
    #: Any as long as no NaN is among them; if one is, the result is NaN where the elements had it.
    ANY_BUT_NAN = "any but NaN"
    GIVEN = "given"


def order_of(body: Graph, count: int) -> Order:
    """The order that a body of ``count`` accumulators needs.

    A body that is not evaluated exactly (one with a transcendental function, say) needs the given order.
    """
    if _commutes(body, count, _samples(body, 0.1)):
        return Order.ANY
    if _commutes(body, count, _samples(body, 0.0)) and _keeps_nan(body, count):
        return Order.ANY_BUT_NAN  # an argmax: of two NaN the first
    return Order.GIVEN


def _samples(body: Graph, rate: float) -> list[Array]:
    """Arguments for every parameter, with NaN at this rate."""
    random = np.random.default_rng(0)
    made: list[Array] = []
    for parameter in body.parameters:
        values: Array = random.integers(0, 5, SAMPLES)
        if _is_float(parameter):
            chance = random.random(SAMPLES)
            odd = random.choice([np.inf, -np.inf, 0.5], SAMPLES)
            values = np.where(chance < 0.2, odd, values - 2.0)
            values = np.where(chance < rate, np.nan, values)
        made.append(values.astype(parameter.type.element.dtype))
    return made


def _is_float(node: Node) -> bool:
    return node.type.element.kind == "float"


def _commutes(body: Graph, count: int, samples: Sequence[Array]) -> bool:
    swapped = [*samples[count : 2 * count], *samples[:count], *samples[2 * count :]]
    one, other = evaluated(body, samples), evaluated(body, swapped)
    if one is None or other is None:
        return False
    return all(
        np.array_equal(a, b, equal_nan=_is_float(node))
        for node, a, b in zip(body.results, one, other, strict=True)
    )


def _keeps_nan(body: Graph, count: int) -> bool:
    """Whether a NaN in an accumulator or element stays in the accumulator."""
    samples = _samples(body, 0.1)
    results = evaluated(body, samples)
    return results is not None and all(
        bool(np.isnan(result)[np.isnan(left) | np.isnan(right)].all())
        for node, left, right, result in zip(
            body.results, samples[:count], samples[count : 2 * count], results, strict=True
        )
        if _is_float(node)
    )


def evaluated(body: Graph, samples: Sequence[Array]) -> list[Array] | None:
    """The results of a body on many arguments at once; ``None`` when some operation is not evaluated."""
    known = dict(zip(body.parameters, samples, strict=True))
    for node in body.nodes[len(samples) :]:
        assert node.op is not None, "parameters come first"
        data: Array | None = None
        if node.kind == "constant":
            data = inline_constant(node.op)
        elif hlo.has_trait(node.op, "elementwise"):
            result = Tensor((), node.type.element.name)
            data = evaluate(node.op, result, [known[operand] for operand in node.operands])
        if data is None:
            return None
        known[node] = np.broadcast_to(data, samples[0].shape)
    return [known[node] for node in body.results]
