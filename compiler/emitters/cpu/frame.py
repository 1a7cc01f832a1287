# SPDX-License-Identifier: Apache-2.0
"""The frame of a CPU kernel: its module, its phase functions and the computation inside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import func

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.blocking import DEFAULT, Blocking
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import Elemental, buffer_source
from gristmill.compiler.emitters.kernel import KernelDefinition, KernelSpec, Phase
from gristmill.compiler.graph import Graph, Node
from gristmill.compiler.target import Target
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType

#: Work (in roughly nanoseconds of one core) below which a phase is not worth splitting over threads.
PARALLEL_THRESHOLD_NS = 15_000


@dataclass(frozen=True)
class FusionSource:
    """What an emitter compiles: a fused computation and everything it refers to.

    Attributes:
        name: kernel name, a C identifier.
        graph: the fused computation.
        functions: graphs of every function it refers to.
        target: the CPU.
        streamed: results that leave the program and are larger than the caches hold.
        blocking: how a product or convolution is cut into blocks.
    """

    name: str
    graph: Graph
    functions: Mapping[str, Graph]
    target: Target
    streamed: frozenset[int] = frozenset()
    blocking: Blocking = DEFAULT

    @property
    def arguments(self) -> tuple[ArrayType, ...]:
        """Types of the parameters."""
        return tuple(p.type for p in self.graph.parameters)

    @property
    def results(self) -> tuple[ArrayType, ...]:
        """Types of the results."""
        return tuple(r.type for r in self.graph.results)


@dataclass
class PhaseFrame:
    """One phase function being emitted.

    Attributes:
        arguments, results: memrefs of the kernel's operands and results.
        workspace, scratch: byte memrefs.
        begin, end: the task range.
        elemental: the fused computation over the arguments.
    """

    arguments: list[ir.Value]
    results: list[ir.Value]
    workspace: ir.Value
    scratch: ir.Value
    begin: ir.Value
    end: ir.Value
    elemental: Elemental

    def store(self, number: int, value: ir.Value, index: Sequence[Index], array: ArrayType) -> None:
        """Store one element of result ``number``."""
        build.store(value, self.results[number], index, array.element)

    def each_task(self, body: Callable[[ir.Value], None]) -> None:
        """Run ``body`` for each task of the range; what it computes is not known to the next."""

        def step(task: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            with self.elemental.scope():
                body(task)
            return []

        build.for_loop(self.begin, self.end, step)


class KernelFrame:
    """Collects the phases of one kernel.

    Buffers are marked ``noalias``, without which LLVM guards every vector loop by overlap checks that an in-place call
    fails (equal pointers), or gives up on a kernel with many buffers. So a kernel may offer an ``inplace`` pair only
    when nothing but that result depends on the argument: then the value stored at an address always depends on what was
    loaded from it, and no reordering can break that. Phases that compare their pointers pass ``noalias=False``.

    Use: ``frame = KernelFrame(source)``, ``frame.phase(...)`` for each phase, ``frame.finish(...)``.
    """

    def __init__(
        self,
        source: FusionSource,
        workspace_bytes: int = 0,
        scratch_bytes: int = 0,
    ):
        self.source = source
        self.workspace_bytes, self.scratch_bytes = workspace_bytes, scratch_bytes
        self._phases: list[Phase] = []
        self.module = ir.Module.create(loc=ir.Location.unknown())

    def phase(
        self,
        body: Callable[[PhaseFrame], None],
        tasks: int = 1,
        parallel: bool = False,
        copies: Sequence[tuple[int, int]] = (),
        *,
        noalias: bool = True,
    ) -> None:
        """Add a phase whose code ``body`` emits; ``copies`` as in :class:`Phase`, ``noalias`` as above."""
        suffix = f"_{len(self._phases)}" if self._phases else ""
        name = f"{self.source.name}{suffix}"
        arrays = [*self.source.arguments, *self.source.results]
        index = ir.IndexType.get()
        kinds: list[ir.Type] = [build.memref_type(a) for a in arrays]
        kinds += [build.bytes_type(self.workspace_bytes), build.bytes_type(self.scratch_bytes)]
        kinds += [index, index]
        with ir.InsertionPoint(self.module.body):
            function = func.FuncOp(name, (kinds, []))
        if noalias:
            buffers = len(kinds) - 2
            marked = ir.DictAttr.get({"llvm.noalias": ir.UnitAttr.get()})
            function.arg_attrs = [marked] * buffers + [ir.DictAttr.get({})] * 2
        block = function.add_entry_block()
        values = list(block.arguments)
        count = len(self.source.arguments)
        arguments, results = values[:count], values[count : len(arrays)]
        workspace, scratch, begin, end = values[len(arrays) :]
        sources = [
            buffer_source(buffer, array.element)
            for buffer, array in zip(arguments, self.source.arguments, strict=True)
        ]
        elemental = Elemental(self.source.graph, sources, self.source.functions)
        with ir.InsertionPoint(block):
            body(PhaseFrame(arguments, results, workspace, scratch, begin, end, elemental))
            func.ReturnOp([])
        self._phases.append(Phase(name, tasks, parallel and tasks > 1, tuple(copies)))

    def finish(
        self, kind: str, flops: int = 0, inplace: Sequence[tuple[int, int]] = ()
    ) -> KernelDefinition:
        """The finished kernel."""
        nbytes = sum(a.nbytes for a in (*self.source.arguments, *self.source.results))
        spec = KernelSpec(
            self.source.name,
            tuple(self._phases),
            self.source.arguments,
            self.source.results,
            self.workspace_bytes,
            self.scratch_bytes,
            flops,
            nbytes,
            tuple(inplace),
            kind,
        )
        return KernelDefinition(spec, self.module)


#: Rough cost of one element in tenths of a nanosecond on one core, by op kind; 1 for the rest.
_COST = {
    "exponential": 8,
    "exponential_minus_one": 12,
    "log": 10,
    "log_plus_one": 12,
    "logistic": 12,
    "tanh": 12,
    "erf": 20,
    "erfc": 20,
    "sine": 20,
    "cosine": 20,
    "tan": 30,
    "atan2": 30,
    "power": 40,
    "cbrt": 20,
    "rsqrt": 4,
    "sqrt": 4,
    "divide": 4,
    "remainder": 20,
    "gather": 4,
}


#: The same of an operation on complex numbers; 2 for the rest.
_COMPLEX_COST = {
    "abs": 8,
    "divide": 24,
    "exponential": 40,
    "exponential_minus_one": 120,
    "log": 60,
    "log_plus_one": 60,
    "sine": 80,
    "cosine": 80,
    "tan": 120,
    "tanh": 120,
    "logistic": 120,
    "power": 120,
    "atan2": 120,
    "sqrt": 16,
    "rsqrt": 24,
    "cbrt": 80,
    "sign": 24,
}


def reachable(roots: Sequence[Node]) -> list[Node]:
    """Every node that ``roots`` depend on, roots included, in program order."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.operands)
    return sorted(seen, key=lambda n: n.order)


def argument_of(node: Node) -> Node | None:
    """The parameter that has the elements of ``node``."""
    while node.kind == "reshape":
        node = node.operands[0]
    return node if node.kind == "parameter" else None


def reached_in_place(parameter: Node, through: frozenset[str] = frozenset()) -> set[Node] | None:
    """Values that depend on ``parameter``, or ``None`` when some path to one reads it at another index.

    Paths are elementwise on the parameter's shape; operations of the kinds ``through`` end a path harmlessly.
    """
    stack, seen = [parameter], {parameter}
    while stack:
        for user in stack.pop().users:
            if user in seen:
                continue
            seen.add(user)
            if user.kind in through:
                continue
            if user.shape != parameter.shape or user.op is None:
                return None
            if not hlo.has_trait(user.op, "elementwise"):
                return None
            stack.append(user)
    return seen


def node_cost(node: Node) -> int:
    """Rough cost of one element of ``node`` alone, in tenths of a nanosecond."""
    if node.kind in ("parameter", "constant"):
        return 0
    if node.operands and node.operands[0].type.element.kind == "complex":
        return _COMPLEX_COST.get(node.kind, 2)
    return _COST.get(node.kind, 1)


def element_cost(graph: Graph) -> int:
    """Rough cost of one element of the graph's widest value, in tenths of a nanosecond."""
    return max(2, sum(node_cost(n) for n in reachable(graph.results)))


def run_together(graph: Graph, shape: tuple[int, ...]) -> bool:
    """Whether one loop may run over the last two dimensions of ``shape``: no value of that size tells them apart."""
    last = {len(shape) - 2, len(shape) - 1}
    full = [node for node in reachable(graph.results) if node.type.size == math.prod(shape)]
    return all(node.shape == shape and _keeps_together(node, last) for node in full)


def _keeps_together(node: Node, dimensions: set[int]) -> bool:
    """Whether ``node`` needs nothing at an index that some, but not all of its ``dimensions`` tell."""
    if node.kind == "broadcast_in_dim":
        places = zip(node.dims("dimensions"), node.operands[0].shape, strict=True)
        read = dimensions.intersection(place for place, size in places if size != 1)
        return not read or read == dimensions
    return node.kind in ("parameter", "constant") or (
        node.op is not None and hlo.has_trait(node.op, "elementwise")
    )


def interleaving(graph: Graph, length: int, target: Target) -> int:
    """How many vectors a loop over ``length`` elements of ``graph`` should work on side by side.

    LLVM does so for short bodies and for reductions only, and trusts the processor to overlap the rest. But a chain of
    hundreds of cycles, an exponential and a division after it or the rounds of a random number generator, fills its
    schedulers with instructions that wait, long before there are enough of them for all units. 1 leaves it to LLVM.
    Eight vectors need more than 16 registers: with those a random number generator takes a third longer than four do,
    and a sine, which keeps many values of its own, takes as much longer with four than with two.
    """
    cost = element_cost(graph)
    few = target.vector_registers <= 16
    most = 4 if few else 8
    if any(_is_complex_function(x) or (few and _is_broad(x)) for x in graph.nodes):
        most //= 2
    count = 1 if cost < _LONG[0] else min(4, most) if cost < _LONG[1] else most
    while count > 1 and count * len(graph.nodes) > _MOST_NODES:
        count //= 2
    step = target.lanes(min(result.type.element.nbytes for result in graph.results))
    while count > 1 and length < 4 * count * step and length % (count * step):
        count //= 2
    return count


def side_by_side(vectors: int) -> int:
    """The most of up to four ``vectors`` that a short loop works on side by side without any left over."""
    return next(count for count in (4, 3, 2, 1) if vectors % count == 0)


def _is_complex_function(node: Node) -> bool:
    """Whether ``node`` is a quotient or another function of complex numbers, of two parts with many values each."""
    return node.type.element.kind == "complex" and node_cost(node) >= _COMPLEX_COST["divide"]


def _is_broad(node: Node) -> bool:
    """Whether a real function has a dozen values or more in registers at a time, and work enough for one element."""
    element = node.type.element
    long = element.is_float and element.bits == 64 and node.kind in ("erf", "erfc")
    return long or node.kind in ("sine", "cosine", "tan", "power")


#: Cost of an element from which 4 and 8 vectors are computed side by side, and operations of all of them at most.
_LONG, _MOST_NODES = (8, 24), 4096


def worth_splitting(elements: int, cost: int) -> bool:
    """Whether ``elements`` of ``cost`` tenths of a nanosecond each should be split over threads."""
    return elements * cost // 10 >= PARALLEL_THRESHOLD_NS
