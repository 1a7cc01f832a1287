# SPDX-License-Identifier: Apache-2.0
"""The ``hoist-products`` pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import Rewriter, erase_unreferenced, fresh_name, snapshot
from gristmill.compiler.passes.simplify_loops import copy_op, declare
from gristmill.dialects import hlo


@dataclass(frozen=True)
class HoistProductsPass(Pass):
    """Multiply all slices of a scanned array by a loop-invariant matrix at once, before the loop.

    A recurrent network computes ``x[t] @ w`` in step ``t``: one large product over all steps runs at full speed
    and on several threads, where the small ones do not.
    Requires: ``simplify-loops``. Guarantees: in a ``while`` that counts from 0 to N by 1, a ``dot_general``
    without batch dimensions whose left operand is slice ``t`` of an invariant array with N slices, and whose
    right operand is invariant, becomes slice ``t`` of a product computed before the loop. Does not handle:
    sliced right operands, other counters.
    """

    name: ClassVar[str] = "hoist-products"

    def run(self, module: HloModule) -> None:
        """Hoist, in every function."""
        functions = module.functions()
        with ir.Location.unknown():
            for name in list(functions):
                while True:  # rebuilding a loop invalidates what was read of its function
                    rewriter = Rewriter(module, functions[name])
                    loops = [op for op in rewriter.ops if hlo.short_name(op) == "while"]
                    if not any(_Loop(rewriter, op, functions).hoist() for op in loops):
                        break
        erase_unreferenced(module)


@dataclass(frozen=True)
class _Product:
    """A product to hoist: the ``dot_general``, and the numbers of the carried values it multiplies."""

    dot: ir.Operation
    sliced: int
    matrix: int


class _Loop:
    """One ``while`` and its two functions."""

    def __init__(self, rewriter: Rewriter, op: ir.Operation, functions: dict[str, ir.Operation]):
        self._rewriter, self._op, self._functions = rewriter, op, functions
        self._condition = functions[hlo.symbol(op, "cond")]
        self._body = functions[hlo.symbol(op, "body")]
        self._inner = Rewriter(rewriter.module, self._body)
        self._arguments = list(self._body.regions[0].blocks[0].arguments)
        returned = list(self._inner.ops[-1].operands)
        self._number: dict[ir.Value, int] = {a: n for n, a in enumerate(self._arguments)}
        self._invariant = {n for n, a in enumerate(self._arguments) if a == returned[n]}
        self._returned = returned

    def hoist(self) -> bool:
        """Hoist one product, rebuilding the loop; whether there was one."""
        counter = self._counter()
        if counter is None:
            return False
        for op in self._inner.ops:
            product = self._match(op, *counter)
            if product is not None:
                self._rebuild(product, counter[0])
                return True
        return False

    def _counter(self) -> tuple[int, int] | None:
        """(number of the carried counter, trip count) of a loop that counts from 0 by 1."""
        condition = Rewriter(self._rewriter.module, self._condition)
        test = condition.producer(condition.ops[-1].operands[0], "compare")
        if test is None or hlo.string(test, "direction") != "LT":
            return None
        arguments = list(self._condition.regions[0].blocks[0].arguments)
        bound = condition.splat(test.operands[1])
        numbers = [n for n, a in enumerate(arguments) if a == test.operands[0]]
        if bound is None or len(numbers) != 1:
            return None
        number = numbers[0]
        step = self._inner.producer(self._returned[number], "add")
        start = self._rewriter.splat(self._op.operands[number])
        if step is None or start is None or int(start) != 0:
            return None
        lhs, rhs = step.operands[0], step.operands[1]
        increment = self._inner.splat(rhs if lhs == self._arguments[number] else lhs)
        if self._arguments[number] not in (lhs, rhs) or increment is None or int(increment) != 1:
            return None
        return number, int(bound)

    def _match(self, op: ir.Operation, counter: int, trips: int) -> _Product | None:
        if hlo.short_name(op) != "dot_general" or hlo.dims(op, "lhs_batching_dimensions"):
            return None
        matrix = self._number.get(op.operands[1])
        reshape = self._inner.operand(op, 0, "reshape")
        cut = self._inner.operand(reshape, 0, "dynamic_slice") if reshape is not None else None
        if matrix is None or matrix not in self._invariant or cut is None:
            return None
        sliced = self._number.get(cut.operands[0])
        if sliced is None or sliced not in self._invariant:
            return None
        whole = self._inner.type(cut.operands[0]).shape
        starts = [self._inner.splat(start) for start in list(cut.operands)[2:]]
        fits = (
            whole[0] == trips
            and cut.operands[1] == self._arguments[counter]
            and all(start is not None and int(start) == 0 for start in starts)
            and tuple(hlo.dims(cut, "slice_sizes")) == (1, *whole[1:])
            and self._inner.type(op.operands[0]).shape == tuple(whole[1:])
        )
        return _Product(op, sliced, matrix) if fits else None

    def _rebuild(self, product: _Product, counter: int) -> None:
        """Compute the product before the loop and carry it."""
        op, dot = self._op, product.dot
        shape = self._inner.type(self._arguments[product.sliced]).shape
        result = ir.RankedTensorType(dot.results[0].type)
        kind = ir.RankedTensorType.get([shape[0], *result.shape], result.element_type)
        contracting = [d + 1 for d in hlo.dims(dot, "lhs_contracting_dimensions")]
        attributes = {
            name: dot.attributes[name]
            for name in ("precision", "algorithm")
            if name in dot.attributes
        }
        hoisted = hlo.build(
            "dot_general",
            [kind],
            [op.operands[product.sliced], op.operands[product.matrix]],
            lhs_batching_dimensions=[],
            rhs_batching_dimensions=[],
            lhs_contracting_dimensions=contracting,
            rhs_contracting_dimensions=hlo.dims(dot, "rhs_contracting_dimensions"),
            **attributes,
            loc=dot.location,
            ip=ir.InsertionPoint(op),
        )
        loop = hlo.build(
            "while",
            [*(r.type for r in op.results), kind],
            [*op.operands, hoisted.results[0]],
            cond=self._copy(self._condition, kind, None, counter),
            body=self._copy(self._body, kind, dot, counter),
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        self._rewriter.replace(op, list(loop.results)[:-1])

    def _copy(
        self, function: ir.Operation, kind: ir.Type, dot: ir.Operation | None, counter: int
    ) -> str:
        """A copy with one more parameter; with ``dot``, which becomes its slice, the parameter is returned too."""
        arguments = list(function.regions[0].blocks[0].arguments)
        ops = snapshot(function)
        results = [value.type for value in ops[-1].operands]
        base = ir.StringAttr(function.attributes["sym_name"]).value
        name = fresh_name(self._functions, base)
        extra = [kind] if dot is not None else []
        copy = declare(function, name, [*(a.type for a in arguments), kind], [*results, *extra])
        self._functions[name] = copy
        block = copy.regions[0].blocks[0]
        parameters = list(block.arguments)
        mapping: dict[ir.Value, ir.Value] = {}
        mapping.update(zip(arguments, parameters[:-1], strict=True))
        point = ir.InsertionPoint(block)
        for op in ops[:-1]:
            if dot is not None and op == dot:
                mapping[op.results[0]] = _slice(parameters[-1], parameters[counter], op, point)
            else:
                copy_op(op, mapping, point)
        returned = [mapping[value] for value in ops[-1].operands]
        ir.Operation.create(
            "func.return",
            operands=[*returned, *([parameters[-1]] if dot is not None else [])],
            loc=ops[-1].location,
            ip=point,
        )
        return name


def _slice(
    whole: ir.Value, step: ir.Value, dot: ir.Operation, point: ir.InsertionPoint
) -> ir.Value:
    """Slice ``step`` of the hoisted product, in the place of ``dot``."""
    kind = ir.RankedTensorType(whole.type)
    sizes = [1, *list(kind.shape)[1:]]
    element = ir.RankedTensorType(step.type).element_type
    zero_type = ir.RankedTensorType.get([], element)
    zero = hlo.build(
        "constant",
        [zero_type],
        value=ir.DenseElementsAttr.get_splat(zero_type, ir.IntegerAttr.get(element, 0)),
        loc=dot.location,
        ip=point,
    ).results[0]
    cut = hlo.build(
        "dynamic_slice",
        [ir.RankedTensorType.get(sizes, kind.element_type)],
        [whole, step, *[zero] * (len(sizes) - 1)],
        slice_sizes=sizes,
        loc=dot.location,
        ip=point,
    )
    return hlo.build(
        "reshape", [dot.results[0].type], [cut.results[0]], loc=dot.location, ip=point
    ).results[0]
