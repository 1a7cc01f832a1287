# SPDX-License-Identifier: Apache-2.0
"""The kernels of one program: emitted once per content, shared by every fusion with that content."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mlir import ir

from gristmill.compiler.emitters.blocking import DEFAULT, Blocking
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.kernel import (
    KernelDefinition,
    KernelEmitter,
    KernelSpec,
    cache_key,
)
from gristmill.compiler.emitters.registry import EMITTERS
from gristmill.compiler.graph import Graph, Node, load_graph
from gristmill.compiler.module import HloModule, array_type, symbol_name
from gristmill.compiler.target import GpuTarget, Target
from gristmill.compiler.text import body_text
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError

#: Operations in one code-generation unit: below it, splitting costs more than the second core gains.
UNIT_OPERATIONS = 300
#: Code-generation units of a program: more than two cores take, as code of one is generated while the next is lowered.
UNITS = 4


@dataclass
class KernelLibrary:
    """Kernels of one program.

    Attributes:
        kernels: by content key.
        specs: the kernel of each fused computation, by the computation's symbol.
    """

    kernels: dict[str, KernelDefinition] = field(default_factory=dict[str, KernelDefinition])
    specs: dict[str, KernelSpec] = field(default_factory=dict[str, KernelSpec])


@dataclass(frozen=True)
class Fusion:
    """One ``fusion`` operation.

    Attributes:
        op: the operation.
        computation: the symbol of what it computes.
        kind: the kind of emitter that compiles it.
        key: a digest of everything that determines the kernel's code, names aside.
        streamed: results that leave the program and are larger than the caches hold.
    """

    op: ir.Operation
    computation: str
    kind: str
    key: str
    streamed: frozenset[int]


class Emission:
    """What emitting the fusions of one fused module needs: its functions, their texts and graphs."""

    def __init__(self, module: HloModule, target: Target) -> None:
        self.target = target
        self._functions = module.functions()
        self._graphs: dict[str, Graph] = {}
        self._texts = {name: body_text(name, op) for name, op in self._functions.items()}

    def fusions(self) -> Iterator[Fusion]:
        """Every fusion, in module order."""
        leaving = self._streamed()
        keys: dict[str, str] = {}
        for function in self._functions.values():
            for view in function.regions[0].blocks[0].operations:
                op = view.operation
                if op.name != "hlov.fusion":
                    continue
                computation, kind = hlo.symbol(op, "calls"), hlo.string(op, "kind")
                streamed = leaving.get(computation, frozenset())
                if computation not in keys:
                    keys[computation] = self._key(computation, f"{kind} {sorted(streamed)}")
                yield Fusion(op, computation, kind, keys[computation], streamed)

    def _graph(self, computation: str) -> Graph:
        _load_graphs(computation, self._functions, self._graphs)
        return self._graphs[computation]

    def _streamed(self) -> dict[str, frozenset[int]]:
        """By computation, the large results of its fusions that the program returns.

        Only of fusions that touch more than the last-level cache keeps from one run to the next. A computation that is
        called twice is streamed only as far as all its calls agree.
        """
        leaving: dict[str, frozenset[int]] = {}
        main = self._functions["main"].regions[0].blocks[0].operations
        returned = set(main[len(main) - 1].operation.operands)
        for function in self._functions.values():
            for view in function.regions[0].blocks[0].operations:
                if view.operation.name == "hlov.fusion":
                    found = self._leaving(view.operation, returned)
                    name = hlo.symbol(view.operation, "calls")
                    leaving[name] = leaving.get(name, found) & found
        return leaving

    def _leaving(self, op: ir.Operation, returned: set[ir.Value]) -> frozenset[int]:
        """The results of one fusion that go past the caches."""
        sizes = [array_type(result).nbytes for result in op.results]
        found = frozenset(
            number
            for number, (result, size) in enumerate(zip(op.results, sizes, strict=True))
            if result in returned and size >= 2 * self.target.l2_bytes
        )
        # A transpose stores to lines here and there: they are dearer to fetch from a cache that many cores share.
        scatters = hlo.string(op, "kind") == "transpose" and self.target.shares_l3
        least = 0 if scatters else self.target.kept_bytes
        if not found or sum(sizes) + sum(array_type(x).nbytes for x in op.operands) < least:
            return frozenset()
        return found if _touched(self._graph(hlo.symbol(op, "calls"))) >= least else frozenset()

    def _key(self, computation: str, kind: str) -> str:
        return _content_key(computation, kind, self._functions, self._texts, self.target)

    def emit(self, fusion: Fusion, name: str, blocking: Blocking = DEFAULT) -> KernelDefinition:
        """The kernel of ``fusion``, called ``name``."""
        graph = self._graph(fusion.computation)
        source = FusionSource(name, graph, self._graphs, self.target, fusion.streamed, blocking)
        return _emit(source, fusion.kind, fusion.op.location)

    def functions_of(self, fusion: Fusion) -> list[ir.Operation]:
        """Every function that ``fusion`` refers to, directly or not."""
        found = _callees(fusion.computation, self._functions, self._texts)
        return [self._functions[name] for name in found]


def emit_kernels(
    module: HloModule, target: Target, blockings: Mapping[str, Blocking] | None = None
) -> KernelLibrary:
    """Emit a kernel for every ``fusion`` of a fused module.

    ``blockings``: how the kernels of some keys are cut into blocks; default: as the emitters' models say.
    """
    library = KernelLibrary()
    emission = Emission(module, target)
    for fusion in emission.fusions():
        if fusion.key not in library.kernels:
            name = f"kernel_{len(library.kernels)}_{fusion.kind}"
            blocking = (blockings or {}).get(fusion.key, DEFAULT)
            library.kernels[fusion.key] = emission.emit(fusion, name, blocking)
        library.specs[fusion.computation] = library.kernels[fusion.key].spec
    return library


def _emit(source: FusionSource, kind: str, location: ir.Location) -> KernelDefinition:
    with location:
        emitter, where = _emitter(source, kind)
        if emitter is None:
            raise UnsupportedError(
                f"{kind} is not supported on {where} yet", op=kind, location=str(location)
            )
        return emitter.emit()


def _emitter(source: FusionSource, kind: str) -> tuple[KernelEmitter | None, str]:
    """The emitter of a fusion, if there is one, and what it is for."""
    if isinstance(source.target, GpuTarget):
        from gristmill.compiler.emitters.gpu.registry import gpu_emitter

        return gpu_emitter(kind, source), "the GPU"
    make = EMITTERS.get(kind)
    return make and make(source), "the CPU"


def _touched(graph: Graph) -> int:
    """Bytes that a computation reads and writes, at most; of what it gathers or slices from, only what it takes."""
    elements = dict.fromkeys(graph.nodes, 0)
    for root in graph.results:
        elements[root] = root.type.size
    for node in reversed(graph.nodes):
        if not elements[node]:
            continue
        for place, operand in enumerate(node.operands):
            size = operand.type.size
            part = _SELECTS.get(node.kind) == place or _is_elementwise(node)
            elements[operand] = min(size, elements[operand] + (elements[node] if part else size))
    read = sum(elements[p] * p.type.element.nbytes for p in graph.parameters)
    return read + sum(root.type.nbytes for root in graph.results)


#: Operations that read of an operand, of which number, no more elements than they result in.
_SELECTS = {"slice": 0, "dynamic_slice": 0, "gather": 0}


def _is_elementwise(node: Node) -> bool:
    return node.op is not None and hlo.has_trait(node.op, "elementwise")


def _load_graphs(name: str, functions: dict[str, ir.Operation], graphs: dict[str, Graph]) -> None:
    """Load ``name`` and every function it refers to."""
    if name in graphs:
        return
    graphs[name] = load_graph(functions[name])
    for node in graphs[name].nodes:
        if node.op is not None and node.result == 0:
            for callee in hlo.computations(node.op):
                _load_graphs(callee, functions, graphs)


def _content_key(
    name: str, kind: str, functions: dict[str, ir.Operation], texts: dict[str, str], target: Target
) -> str:
    """A digest of everything that determines the kernel's code, names of computations aside."""
    order = _callees(name, functions, texts)
    numbers = {computation: str(n) for n, computation in enumerate(order)}
    parts = [
        re.sub(r"@([\w.$-]+)", lambda m: f"@{numbers.get(m.group(1), m.group(1))}", texts[c])
        for c in order
    ]
    return cache_key([kind, target.cpu, target.features, str(target), *parts])


def _callees(name: str, functions: dict[str, ir.Operation], texts: dict[str, str]) -> list[str]:
    """``name`` and every function it refers to, in the order of first reference."""
    order: list[str] = []

    def visit(computation: str) -> None:
        if computation in order:
            return
        order.append(computation)
        for callee in re.findall(r"@([\w.$-]+)", texts[computation]):
            if callee in functions:
                visit(callee)

    visit(name)
    return order


def partition(library: KernelLibrary, units: int = UNITS) -> list[ir.Module]:
    """Move the kernels into at most ``units`` modules of similar size, to be compiled side by side."""
    sizes = {key: _operation_count(k.source) for key, k in library.kernels.items()}
    total = sum(sizes.values())
    units = max(1, min(units, total // UNIT_OPERATIONS))
    modules = [ir.Module.create() for _ in range(units)] if sizes else []
    loads = [0] * units
    declared = [set[str]() for _ in range(units)]
    for key in sorted(sizes, key=lambda k: -sizes[k]):
        lightest = loads.index(min(loads))
        loads[lightest] += sizes[key]
        for view in list(library.kernels[key].source.body.operations):
            op = view.operation
            if op.name == "llvm.func":  # an external function, which several kernels may call
                name = symbol_name(op)
                if name in declared[lightest]:
                    continue
                declared[lightest].add(name)
            op.detach_from_parent()
            modules[lightest].body.append(op)
    return modules


def gpu_module(library: KernelLibrary) -> ir.Module:
    """Move the kernels of a library for a GPU into one module with one ``gpu.module``."""
    from mlir.dialects import gpu

    from gristmill.compiler.emitters.gpu.frame import GPU_MODULE

    module = ir.Module.create(loc=ir.Location.unknown())
    module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()
    with ir.InsertionPoint(module.body):
        body = gpu.GPUModuleOp(GPU_MODULE).bodyRegion.blocks.append()
    for definition in library.kernels.values():
        for holder in definition.source.body.operations:
            for view in list(holder.operation.regions[0].blocks[0].operations):
                view.operation.detach_from_parent()
                body.append(view.operation)
    return module


def _operation_count(module: ir.Module) -> int:
    count = 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return count
