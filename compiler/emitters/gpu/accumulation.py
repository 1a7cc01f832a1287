# SPDX-License-Identifier: Apache-2.0
"""One ``reduce`` accumulated by many threads: partial values that merge in any grouping.

Threads start from the initial value where that is the body's identity (0 for a sum, say). Where it is not known to be,
the initial value takes part exactly once, at the end: until then a flag among the partial values says whether a
thread has met an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.elemental.contraction import (
    reduce_operands,
    reducer_of,
    simple_reducer,
)
from gristmill.compiler.graph import Node, is_uniform
from gristmill.runtime.types import ElementType, element_type

_PRED = element_type("i1")


class Accumulation:
    """A ``reduce`` or ``reduce_window`` node's partial values; see the module docstring.

    Attributes:
        node: the reduction.
        elements: element types of the partial values.
        ordered: whether the body may not commute, so that merges must keep their order.
    """

    def __init__(self, e: Elemental, node: Node):
        self._e, self.node = e, node
        self._reducer = reducer_of(e, node)
        self._inputs, self._initial, _ = reduce_operands(node)
        self._tracked = not _starts_from_identity(e, node)
        self.elements: list[ElementType] = list(self._reducer.accumulators)
        if self._tracked:
            self.elements.append(_PRED)
        self.ordered = simple_reducer(e.functions[node.symbol("to_apply")]) is None

    def _first(self) -> list[ir.Value]:
        return self._reducer.enter([self._e.value(x, ()) for x in self._initial])

    def start(self) -> list[ir.Value]:
        """Partial values of no elements."""
        return [*self._first(), *self._flag(False)]

    def _flag(self, value: bool) -> list[ir.Value]:
        return [build.constant(_PRED, value)] if self._tracked else []

    def of(self, index: Sequence[Index]) -> list[ir.Value]:
        """Partial values of the one element at ``index`` of the inputs."""
        values = self._reducer.enter([self._e.value(x, index) for x in self._inputs])
        return [*values, *self._flag(True)]

    def add(
        self, values: list[ir.Value], index: Sequence[Index], valid: ir.Value | None = None
    ) -> list[ir.Value]:
        """``values`` and the element at ``index``, unless ``valid`` is false."""
        merged = self.merge(values, self.of(index))
        return merged if valid is None else _choose(valid, merged, values)

    def merge(self, left: list[ir.Value], right: list[ir.Value]) -> list[ir.Value]:
        """The partial values of both."""
        if not self._tracked:
            return self._reducer.combine(left, right)
        *a, has_left = left
        *b, has_right = right
        merged = _choose(has_left, _choose(has_right, self._reducer.combine(a, b), a), b)
        return [*merged, arith.OrIOp(has_left, has_right).result]

    def finish(self, values: list[ir.Value]) -> list[ir.Value]:
        """The results, as values of the inputs' element types."""
        if self._tracked:
            *partial, has_some = values
            first = self._first()
            values = _choose(has_some, self._reducer.combine(first, partial), first)
        return self._reducer.leave(values)


def _choose(
    condition: ir.Value, then: Sequence[ir.Value], otherwise: Sequence[ir.Value]
) -> list[ir.Value]:
    return [arith.SelectOp(condition, a, b).result for a, b in zip(then, otherwise, strict=True)]


def _starts_from_identity(e: Elemental, node: Node) -> bool:
    """Whether the initial value is known to change nothing, however often it is merged."""
    body = simple_reducer(e.functions[node.symbol("to_apply")])
    _, initial, _ = reduce_operands(node)
    data = initial[0].constant
    if body is None or data is None or not is_uniform(data):
        return False
    return bool(_is_identity(body, initial[0].type.element, data.reshape(-1)[0]))


def _is_identity(body: str, element: ElementType, value: Any) -> bool:
    number = complex(value) if element.kind == "complex" else float(value)
    if body in ("add", "multiply"):
        return number == (0 if body == "add" else 1)
    if element.kind == "complex":
        return False
    if element.is_float:
        return {"maximum": -np.inf, "minimum": np.inf}.get(body) == number
    ones = (1 << element.bits) - 1
    smallest = 0 if element.is_unsigned else 1 << (element.bits - 1)
    wanted = {"or": 0, "and": ones, "maximum": smallest, "minimum": ones ^ smallest}
    return wanted.get(body) == int(value) & ones
