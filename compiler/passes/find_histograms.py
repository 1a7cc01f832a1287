# SPDX-License-Identifier: Apache-2.0
"""The ``find-histograms`` pass: sums of indicators that are counted instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from gristmill.compiler.emitters.cpu.histogram_problem import histogram_of, is_worthwhile
from gristmill.compiler.graph import Graph, load_graph
from gristmill.compiler.module import HloModule
from gristmill.compiler.passes.base import Pass
from gristmill.compiler.passes.rewriting import snapshot
from gristmill.dialects import hlo


@dataclass(frozen=True)
class FindHistogramsPass(Pass):
    """Give the kind ``histogram`` to fusions of ``sum_n (ids[n] == k)`` for all classes ``k``: one-hot vectors summed.

    Requires: what ``fuse`` guarantees. Guarantees: as ``fuse``; computations are unchanged. Does not handle: sums of
    floats that would be rounded on the way, a few classes, with which vectors of ids are compared faster than they are
    counted, fusions with other results. Only CPUs have the emitter.
    """

    name: ClassVar[str] = "find-histograms"

    def run(self, module: HloModule) -> None:
        """Change the kinds in place."""
        functions = module.functions()
        graphs: dict[str, Graph] = {}
        with module.context:
            for function in functions.values():
                for op in snapshot(function):
                    if op.name == "hlov.fusion" and self._counts(op, functions, graphs):
                        op.attributes["kind"] = ir.StringAttr.get("histogram")

    def _counts(
        self, op: ir.Operation, functions: dict[str, ir.Operation], graphs: dict[str, Graph]
    ) -> bool:
        """Whether a fusion is a histogram worth counting."""
        if hlo.string(op, "kind") not in ("column", "row", "loop"):
            return False
        body = functions[hlo.symbol(op, "calls")]
        last = body.regions[0].blocks[0].operations
        returned = last[len(last) - 1].operation.operands
        if len(returned) != 1 or isinstance(returned[0].owner, ir.Block):
            return False
        reduce = returned[0].owner.operation
        if hlo.short_name(reduce) != "reduce":
            return False
        to_apply = hlo.symbol(reduce, "to_apply")
        graphs.setdefault(to_apply, load_graph(functions[to_apply]))
        histogram = histogram_of(load_graph(body), graphs)
        return histogram is not None and is_worthwhile(histogram)
