# SPDX-License-Identifier: Apache-2.0
"""The largest and smallest floats of windows by one instruction an element, and what that instruction gets wrong.

The bare ``a > b ? a : b``, one instruction on x86, loses NaN and takes either of two zeros of different sign. So what
it may have got wrong is noted on the way: whether any element is NaN, two elements a comparison, and whether a result
is the zero that gives way to the other. What may be wrong is reduced again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

Combine = Callable[[ir.Value, ir.Value], ir.Value]


def bare(kind: str) -> Combine:
    """The larger or smaller of floats by one comparison; the second of two that are not ordered."""
    predicate = arith.CmpFPredicate.OGT if kind == "maximum" else arith.CmpFPredicate.OLT

    def pick(a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.SelectOp(arith.CmpFOp(predicate, a, b).result, a, b).result

    return pick


@dataclass(frozen=True)
class Watch:
    """Notes of values of one type, a float or a vector of floats, in which lanes all were fine.

    Attributes:
        kind: that type.
        masks: whether comparisons have registers of their own; else a note is all bits of a lane.
    """

    kind: ir.Type
    masks: bool

    def ordered(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Where neither is NaN."""
        return self._note(arith.CmpFOp(arith.CmpFPredicate.ORD, a, b).result)

    def look(self, seen: ir.Value, elements: Sequence[ir.Value]) -> ir.Value:
        """``seen`` where none of the elements is NaN."""
        for first in range(0, len(elements), 2):
            ordered = self.ordered(elements[first], elements[min(first + 1, len(elements) - 1)])
            seen = arith.AndIOp(seen, ordered).result
        return seen

    def doubt(self, seen: ir.Value, body: str, result: ir.Value) -> ir.Value:
        """``seen`` where ``result`` is not the zero that the other would replace: -0 of a ``maximum``, +0 of a
        ``minimum``.
        """
        width = ir.FloatType(_element(self.kind)).width
        bits = arith.BitcastOp(self._lanes, result).result
        zero = self._constant(-(1 << (width - 1)) if body == "maximum" else 0)
        certain = self._note(arith.CmpIOp(arith.CmpIPredicate.ne, bits, zero).result)
        return arith.AndIOp(seen, certain).result

    def mask(self, seen: ir.Value) -> ir.Value:
        """The note as a mask, or an ``i1``."""
        if self._is_mask:
            return seen
        return arith.CmpIOp(arith.CmpIPredicate.ne, seen, self._constant(0)).result

    def everywhere(self, seen: ir.Value) -> ir.Value:
        """Whether all was fine in all lanes."""
        mask = self.mask(seen)
        if not isinstance(self.kind, ir.VectorType):
            return mask
        truth = ir.IntegerType.get_signless(1)
        return vector.ReductionOp(truth, vector.CombiningKind.AND, mask).result

    @property
    def _is_mask(self) -> bool:
        return self.masks or not isinstance(self.kind, ir.VectorType)

    def _note(self, mask: ir.Value) -> ir.Value:
        return mask if self._is_mask else arith.ExtSIOp(self._lanes, mask).result

    @property
    def _lanes(self) -> ir.Type:
        integer = ir.IntegerType.get_signless(ir.FloatType(_element(self.kind)).width)
        if isinstance(self.kind, ir.VectorType):
            return ir.VectorType.get(self.kind.shape, integer)
        return integer

    def _constant(self, number: int) -> ir.Value:
        kind = self._lanes
        attribute: ir.Attribute = ir.IntegerAttr.get(_element(kind), number)
        if isinstance(kind, ir.VectorType):
            attribute = ir.DenseElementsAttr.get_splat(kind, attribute)
        return arith.ConstantOp(kind, attribute).result


def _element(kind: ir.Type) -> ir.Type:
    return kind.element_type if isinstance(kind, ir.VectorType) else kind
