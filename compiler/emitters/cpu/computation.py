# SPDX-License-Identifier: Apache-2.0
"""The computation emitter: a call, loop or branch and all its nested computations as one native kernel.

For computations over small values, where dispatching one kernel an operation would cost more than the work: every value
of one element lives in a register, larger ones in a *buffer table*, an area of the workspace laid out before
emission; a ``while`` is a native loop, an ``if`` a native branch. One thread runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mlir import ir
from mlir.dialects import scf

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.carried import Carried
from gristmill.compiler.emitters.cpu.frame import FusionSource, KernelFrame, PhaseFrame
from gristmill.compiler.emitters.elemental import Elemental, Source, buffer_source, scalar_source
from gristmill.compiler.emitters.elemental.movement import clamped_starts
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Graph, Node, is_uniform
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType


def _padded(array: ArrayType) -> int:
    return -(-array.nbytes // 64) * 64


def buffer_table_bytes(
    graph: Graph, functions: Mapping[str, Graph], in_place: frozenset[Node] = frozenset()
) -> int:
    """Workspace that emitting ``graph`` takes: every value of more than one element, nested computations included.

    Those ``in_place`` are stored where the operand that they replace a part of is.
    """
    total = 0
    for node in graph.nodes:
        if node.op is None or node.result != 0 or node in in_place:
            continue
        if node.kind == "while":
            total += _while_bytes(node, functions)
            continue
        total += sum(_padded(value.type) for value in node.siblings if value.type.size != 1)
        if node.kind in ("if", "case", "func.call"):
            total += sum(buffer_table_bytes(functions[c], functions) for c in _callees(node))
    return total


def _while_bytes(node: Node, functions: Mapping[str, Graph]) -> int:
    cond, body = functions[node.symbol("cond")], functions[node.symbol("body")]
    carried = Carried.of(cond, body)
    total = buffer_table_bytes(cond, functions)
    total += buffer_table_bytes(
        body, functions, frozenset(body.results[n] for n in carried.updated)
    )
    for number, value in enumerate(node.siblings):
        if value.type.size != 1 and number not in carried.kept:
            # A loop keeps a carried value and the body's next one apart, unless that is made in place.
            total += _padded(value.type) * (1 if number in carried.updated else 2)
    return total


def _callees(node: Node) -> list[str]:
    assert node.op is not None
    return [node.symbol("callee")] if node.kind == "func.call" else list(hlo.computations(node.op))


class ComputationEmitter:
    """Compiles a fusion that is one control-flow operation; see the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self._offset = 0
        #: Where updates are stored that a loop's body makes in place.
        self._in_place: dict[Node, ir.Value] = {}
        #: Results of the kernel by the values that they are, and those that a loop has stored.
        self._outputs: dict[Node, ir.Value] = {}
        self._stored: list[ir.Value] = []

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        table = buffer_table_bytes(self.source.graph, self.source.functions)
        frame = KernelFrame(self.source, workspace_bytes=table)
        frame.phase(self._body)
        return frame.finish("computation")

    def _body(self, phase: PhaseFrame) -> None:
        graph = self.source.graph
        sources = [
            self._read_once(buffer_source(buffer, p.type.element), p.type)
            for buffer, p in zip(phase.arguments, graph.parameters, strict=True)
        ]
        self._outputs = dict(zip(graph.results, phase.results, strict=True))
        results = self._evaluate(phase, graph, sources)
        for root, output, source in zip(graph.results, phase.results, results, strict=True):
            if output not in self._stored:
                _fill(output, root.type, source)

    def _read_once(self, source: Source, array: ArrayType) -> Source:
        return scalar_source(source((0,) * array.rank)) if array.size == 1 else source

    def _evaluate(self, phase: PhaseFrame, graph: Graph, sources: Sequence[Source]) -> list[Source]:
        """Compute every value of ``graph`` in order; returns its results as sources."""
        e = Elemental(graph, sources, self.source.functions)
        for node in graph.nodes:
            if node.op is None or node.result != 0:
                continue
            if node.kind == "while":
                self._while(phase, e, node)
            elif node.kind in ("if", "case"):
                self._branch(phase, e, node)
            elif node.kind == "func.call":
                inner = [e.source_of(x) for x in node.operands]
                callee = self.source.functions[node.symbol("callee")]
                self._bind(e, node, self._evaluate(phase, callee, inner))
            elif node in self._in_place:
                self._update(e, node, self._in_place[node])
            else:
                self._compute(phase, e, node)
        return [e.source_of(result) for result in graph.results]

    def _bind(self, e: Elemental, node: Node, sources: Sequence[Source]) -> None:
        for sibling, source in zip(node.siblings, sources, strict=True):
            e.bind(sibling, source)

    def _compute(self, phase: PhaseFrame, e: Elemental, node: Node) -> None:
        data = node.constant
        if data is not None and data.size > 1 and not is_uniform(data):
            self._constant(phase, e, node, data)
            return
        sources: list[Source] = []
        for value in node.siblings:
            if value.type.size == 1:
                sources.append(scalar_source(e.value(value, (0,) * value.type.rank)))
            else:
                buffer = self._allocate(phase, value.type)
                _fill(buffer, value.type, lambda index, v=value: _scoped(e, v, index))
                sources.append(buffer_source(buffer, value.type.element))
        self._bind(e, node, sources)

    def _constant(self, phase: PhaseFrame, e: Elemental, node: Node, data: np.ndarray) -> None:
        buffer = build.flatten(self._allocate(phase, node.type))
        for position, value in enumerate(data.reshape(-1)):
            scalar = build.constant(node.type.element, value)
            build.store(scalar, buffer, (position,), node.type.element)
        shape, element = node.type.shape, node.type.element
        e.bind(node, lambda index: build.load(buffer, (build.linearize(index, shape),), element))

    def _allocate(self, phase: PhaseFrame, array: ArrayType) -> ir.Value:
        offset, self._offset = self._offset, self._offset + _padded(array)
        return build.view(phase.workspace, offset, array)

    def _update(self, e: Elemental, node: Node, buffer: ir.Value) -> None:
        """Store what a ``dynamic_update_slice`` replaces into the array that it replaces a part of."""
        operand, update, *starts = node.operands
        begin = clamped_starts(e, starts, operand.shape, update.shape)
        element = node.type.element

        def store(index: list[Index]) -> None:
            place = [build.add(b, i) for b, i in zip(begin, index, strict=True)]
            build.store(_scoped(e, update, index), buffer, place, element)

        _each_index(update.type, store)
        e.bind(node, buffer_source(buffer, element))

    def _while(self, phase: PhaseFrame, e: Elemental, node: Node) -> None:
        functions = self.source.functions
        cond, body = functions[node.symbol("cond")], functions[node.symbol("body")]
        passed = Carried.of(cond, body)
        types = [x.type for x in node.operands]
        #: Of each value: its source if the loop keeps it, else the buffer it is in if it has several elements.
        kept = {n: e.source_of(node.operands[n]) for n in passed.kept}
        buffers: dict[int, ir.Value] = {}
        initial: list[ir.Value] = []
        for number, operand in enumerate(node.operands):
            if number in kept:
                continue
            if operand.type.size == 1:
                initial.append(e.value(operand, (0,) * operand.type.rank))
            else:
                output = self._outputs.get(node.siblings[number])
                if output is None or number not in passed.updated:
                    buffers[number] = self._allocate(phase, operand.type)
                else:
                    buffers[number] = output
                    self._stored.append(output)
                _fill(buffers[number], operand.type, e.source_of(operand))
        kinds = [value.type for value in initial]
        in_place = {body.results[n]: buffers[n] for n in passed.updated if n in buffers}
        self._in_place |= in_place

        def carried(values: Sequence[ir.Value]) -> list[Source]:
            scalars = iter(values)
            sources: list[Source] = []
            for number, array in enumerate(types):
                if number in kept:
                    sources.append(kept[number])
                elif number in buffers:
                    sources.append(buffer_source(buffers[number], array.element))
                else:
                    sources.append(scalar_source(next(scalars)))
            return sources

        loop = scf.WhileOp(kinds, initial)
        locations = [ir.Location.unknown()] * len(kinds)
        before = loop.before.blocks.append(*kinds, arg_locs=locations)
        after = loop.after.blocks.append(*kinds, arg_locs=locations)
        with ir.InsertionPoint(before):
            values = list(before.arguments)
            condition = self._evaluate(phase, cond, carried(values))
            scf.ConditionOp(condition[0](()), values)
        with ir.InsertionPoint(after):
            sources = carried(list(after.arguments))
            results = self._evaluate(phase, body, sources)
            made = [
                n for n in range(len(types)) if n not in kept and body.results[n] not in in_place
            ]
            scf.YieldOp(
                self._next(
                    phase,
                    [results[n] for n in made],
                    [types[n] for n in made],
                    [buffers.get(n) for n in made],
                )
            )
        for updated in in_place:  # elsewhere the body's operations are as any others
            del self._in_place[updated]
        self._bind(e, node, carried(list(loop.results)))

    def _next(
        self,
        phase: PhaseFrame,
        results: Sequence[Source],
        types: Sequence[ArrayType],
        buffers: Sequence[ir.Value | None],
    ) -> list[ir.Value]:
        """Carry the body's results: all are computed before any carried buffer is overwritten."""
        staged: list[tuple[ir.Value, ir.Value, ArrayType]] = []
        scalars: list[ir.Value] = []
        for result, array, buffer in zip(results, types, buffers, strict=True):
            if buffer is None:
                scalars.append(result((0,) * array.rank))
            else:
                stage = self._allocate(phase, array)
                _fill(stage, array, result)
                staged.append((stage, buffer, array))
        for stage, buffer, array in staged:
            _fill(buffer, array, buffer_source(stage, array.element))
        return scalars

    def _branch(self, phase: PhaseFrame, e: Elemental, node: Node) -> None:
        assert node.op is not None
        selector, *arguments = node.operands
        names = hlo.symbols(node.op, "branches")
        types = [s.type for s in node.siblings]
        buffers = [None if t.size == 1 else self._allocate(phase, t) for t in types]
        kinds = [build.register_type(t.element) for t in types if t.size == 1]
        chosen = e.value(selector, ())

        def run(name: str) -> list[ir.Value]:
            with e.scope():
                inner = [e.source_of(x) for x in arguments]
                results = self._evaluate(phase, self.source.functions[name], inner)
                scalars: list[ir.Value] = []
                for result, array, buffer in zip(results, types, buffers, strict=True):
                    if buffer is None:
                        scalars.append(result((0,) * array.rank))
                    else:
                        _fill(buffer, array, result)
                return scalars

        def choose(number: int) -> list[ir.Value]:
            if number == len(names) - 1:
                return run(names[number])
            condition = chosen if node.kind == "if" else _equals(selector, chosen, number)
            return build.if_else(
                condition, kinds, lambda: run(names[number]), lambda: choose(number + 1)
            )

        scalars = iter(choose(0))
        sources = [
            scalar_source(next(scalars)) if b is None else buffer_source(b, t.element)
            for b, t in zip(buffers, types, strict=True)
        ]
        self._bind(e, node, sources)


def _equals(selector: Node, value: ir.Value, number: int) -> ir.Value:
    from gristmill.compiler.emitters.elemental import arithmetic

    element = selector.type.element
    return arithmetic.compare("EQ", "", element, value, build.constant(element, number))


def _scoped(e: Elemental, node: Node, index: Sequence[Index]) -> ir.Value:
    with e.scope():
        return e.value(node, index)


def _fill(buffer: ir.Value, array: ArrayType, source: Source) -> None:
    """Store every element of ``source`` into ``buffer``."""
    _each_index(array, lambda index: build.store(source(index), buffer, index, array.element))


def _each_index(array: ArrayType, body: Callable[[list[Index]], None]) -> None:
    """``body`` for every index of ``array``, in loops."""

    def level(index: list[Index]) -> None:
        dimension = len(index)
        if dimension == array.rank:
            body(index)
        elif array.shape[dimension] == 1:
            level([*index, 0])
        else:
            build.for_loop(0, array.shape[dimension], _loop_body(level, index))

    if array.size:  # upstream's canonicalizer may assert on loops without a turn
        level([])


def _loop_body(level: Callable[[list[Index]], None], index: list[Index]):
    def body(iv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        level([*index, iv])
        return []

    return body
