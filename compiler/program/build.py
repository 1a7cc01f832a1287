# SPDX-License-Identifier: Apache-2.0
"""From a fused module to an ``rt`` program: scheduling, buffer assignment, and the ``rt`` module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir

from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.compiler.module import HloModule
from gristmill.compiler.program.assign import assign, defined
from gristmill.compiler.program.check import check_plan
from gristmill.compiler.program.importer import Constant, import_module
from gristmill.compiler.program.plan import (
    Block,
    LaunchStep,
    Place,
    Plan,
    Step,
    Transfer,
    Value,
    WhileStep,
    reads,
)
from gristmill.compiler.program.schedule import schedule
from gristmill.compiler.target import Target
from gristmill.dialects import rt
from gristmill.runtime.program import ALIGNMENT, LARGE_SCRATCH, PAGE, Signature, align_up
from gristmill.runtime.types import ArrayType


@dataclass
class RtProgram:
    """What the host does, as an ``rt`` module, and what it needs to do it.

    Attributes:
        module: the ``rt`` module.
        name: the program's name.
        constants: the constant table, in the order of the entry function's ``constants``.
        inputs, outputs: the signature, in calling order.
        arena_bytes: shared temporary memory of one execution.
        scratch_bytes: private temporary memory of one thread.
        parallel: whether some phase is worth more than one thread.
        target: what it was built for.
        custom_calls: the kernels that are custom calls, in the order of the context's sites.
    """

    module: ir.Module
    name: str
    constants: list[Constant]
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    arena_bytes: int
    scratch_bytes: int
    parallel: bool
    target: Target
    custom_calls: tuple[KernelSpec, ...] = ()


def build_program(module: HloModule, specs: Mapping[str, KernelSpec], target: Target) -> RtProgram:
    """Schedule a fused module and give every value memory.

    ``specs`` maps each fused computation's symbol to its kernel. A program gets a parallel entry function when a
    phase is marked parallel and ``target`` has more than one thread. Raises ``LoweringError`` when the
    module holds ops that only the fuse pass may have left out.
    """
    plan, constants = import_module(module, specs)
    schedule(plan)
    assign(plan)
    check_plan(plan)
    kernels = {step.kernel.name: step.kernel for step in _launches(plan.main)}.values()
    worthwhile = any(p.parallel and p.tasks > 1 for k in kernels for p in k.phases)
    with module.context, ir.Location.unknown():
        rt_module = _Builder(plan, constants).build()
    scratch_bytes = max((k.scratch_bytes for k in kernels), default=0)
    alignment = PAGE if scratch_bytes >= LARGE_SCRATCH else ALIGNMENT
    program = RtProgram(
        rt_module,
        plan.name,
        constants,
        plan.inputs,
        plan.outputs,
        align_up(plan.arena_bytes, alignment),
        align_up(scratch_bytes, alignment),
        worthwhile and target.max_threads > 1,
        target,
        tuple(kernel for kernel in kernels if kernel.external is not None),
    )
    rt.verify(rt_module)
    return program


def _launches(block: Block) -> Iterable[LaunchStep]:
    for step in block.steps:
        if isinstance(step, LaunchStep):
            yield step
        elif isinstance(step, WhileStep):
            yield from _launches(step.cond)
            yield from _launches(step.body)
        else:
            for branch in step.branches:
                yield from _launches(branch)


#: A nested computation and the copies that end it.
_Part = tuple[Block, list[Transfer]]


class _Scope:
    """One rt function under construction: the buffers it can name."""

    def __init__(self, builder: _Builder):
        self.builder = builder
        self.buffers: dict[tuple[Place, str], ir.Value] = {}
        self.bases: dict[Place, ir.Value] = {}
        self.arena: ir.Value | None = None

    def own(self, place: Place, kind: str, buffer: ir.Value) -> None:
        """Make a buffer known under its place."""
        self.buffers.setdefault((place, kind), buffer)
        self.bases.setdefault(place, buffer)

    def buffer(self, value: Value, kind: ArrayType | None = None) -> ir.Value:
        """The buffer of a value, viewed as ``kind``; sliced out of its base at first use."""
        place, text = value.at(), str(kind or value.type)
        known = self.buffers.get((place, text))
        if known is not None:
            return known
        base = self.bases.get(place)
        offset = 0
        if base is None:
            if place.root == "constant":
                return self._constant(place, text)
            assert place.root == "arena", f"{place} is not an argument"
            assert self.arena is not None
            base, offset = self.arena, place.offset
        buffer = rt.slice_(base, offset, self.builder.memref(text))
        self.buffers[(place, text)] = buffer
        return buffer

    def _constant(self, place: Place, text: str) -> ir.Value:
        constant = self.builder.constants[place.index]
        own = str(constant.type)
        buffer = rt.constant(place.index, constant.name, self.builder.memref(own))
        self.own(place, own, buffer)
        if own == text:
            return buffer
        view = rt.slice_(buffer, 0, self.builder.memref(text))
        self.buffers[(place, text)] = view
        return view


class _Builder:
    """Emits the rt module of an assigned plan."""

    def __init__(self, plan: Plan, constants: Sequence[Constant]):
        self.plan = plan
        self.constants = constants
        self.module = ir.Module.create()
        self.memrefs: dict[str, ir.Type] = {}
        self.names: dict[str, int] = {}

    def memref(self, text: str) -> ir.Type:
        known = self.memrefs.get(text)
        if known is None:
            known = self.memrefs[text] = ir.Type.parse(f"memref<{text}>")
        return known

    def build(self) -> ir.Module:
        plan = self.plan
        values = [*plan.arguments, *plan.targets]
        names = [*(s.name for s in plan.inputs), *(s.name for s in plan.outputs)]
        function, scope = self.function("main", [(v.at(), str(v.type)) for v in values])
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_buffer_attributes(v, name) for v, name in zip(values, names, strict=True)]
        )
        with ir.InsertionPoint(function.regions[0].blocks[0]):
            if plan.arena_bytes:
                scope.arena = rt.allocate(plan.arena_bytes, ALIGNMENT)
            self.block(scope, plan.main)
            self.transfers(scope, plan.finish)
            ir.Operation.create("func.return")
        return self.module

    def function(
        self, name: str, parameters: Sequence[tuple[Place, str]]
    ) -> tuple[ir.Operation, _Scope]:
        """An empty function whose parameters are buffers at known places."""
        kinds = [self.memref(text) for _, text in parameters]
        attributes: dict[str, ir.Attribute] = {
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, [])),
        }
        if name != "main":
            attributes["sym_visibility"] = ir.StringAttr.get("private")
        with ir.InsertionPoint(self.module.body):
            function = ir.Operation.create("func.func", attributes=attributes, regions=1)
        entry = function.regions[0].blocks.append(*kinds)
        scope = _Scope(self)
        for (place, text), argument in zip(parameters, entry.arguments, strict=True):
            scope.own(place, text, argument)
        return function, scope

    def unique(self, name: str) -> str:
        """A function name: a computation instantiated twice becomes two functions."""
        count = self.names[name] = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def block(self, scope: _Scope, block: Block) -> None:
        for step in block.steps:
            self.step(scope, step)

    def step(self, scope: _Scope, step: Step) -> None:
        if isinstance(step, LaunchStep):
            computed = step.kernel.external is None
            if computed and all(result.type.size == 0 for result in step.results):
                return  # nothing to compute; a kernel of one task would write beyond the buffer
            spec = step.kernel
            operands = zip(step.operands, spec.arguments, strict=True)
            results = zip(step.results, spec.results, strict=True)
            rt.launch(
                spec.name,
                [scope.buffer(value, kind) for value, kind in operands],
                [scope.buffer(value, kind) for value, kind in results],
                None if step.workspace is None else scope.buffer(step.workspace),
            )
        elif isinstance(step, WhileStep):
            self.transfers(scope, step.enter)
            carried = {carried for _, carried, _ in step.variables()}
            parts: list[_Part] = [(step.cond, []), (step.body, step.repeat)]
            names, buffers = self.nested(scope, parts, step.predicate, carried | step.inner_reads())
            rt.while_(names[0], names[1], buffers)
        else:
            parts = list(zip(step.branches, step.leave, strict=True))
            touched = {*step.results, *reads(step)}
            names, buffers = self.nested(scope, parts, step.selector, touched)
            rt.conditional(names, buffers)

    def nested(
        self,
        scope: _Scope,
        parts: Sequence[_Part],
        selector: Value,
        outer: set[Value],
    ) -> tuple[list[str], list[ir.Value]]:
        """Build the functions of nested computations; returns their names and the operands.

        First the selector; then the values of ``outer`` (defined outside), and whatever the computations keep
        in an output; then the arena for their other temporaries.
        """
        inside = (value for block, _ in parts for value in defined(block))
        needed = outer | {value for value in inside if value.at().root == "output"}
        touched = {selector.at(): selector}  # by its own type: it may be a reshape of a vector
        for value in sorted(needed, key=lambda v: v.number):
            if value.root != "constant":
                touched.setdefault(value.at(), value)
        parameters = [(place, str(value.type)) for place, value in touched.items()]
        buffers = [scope.buffer(value) for value in touched.values()]
        if scope.arena is not None:
            buffers.append(scope.arena)
        names: list[str] = []
        for block, transfers in parts:
            name = self.unique(block.name)
            function, inner = self.function(name, parameters)
            entry = function.regions[0].blocks[0]
            if scope.arena is not None:
                inner.arena = entry.add_argument(scope.arena.type, ir.Location.unknown())
                kinds = [argument.type for argument in entry.arguments]
                function.attributes["function_type"] = ir.TypeAttr.get(
                    ir.FunctionType.get(kinds, [])
                )
            with ir.InsertionPoint(entry):
                self.block(inner, block)
                self.transfers(inner, transfers)
                ir.Operation.create("func.return")
            names.append(name)
        return names, buffers

    def transfers(self, scope: _Scope, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            kind = transfer.source.resolve().type
            source = scope.buffer(transfer.source, kind)
            rt.copy(source, scope.buffer(transfer.destination, kind))


def _buffer_attributes(value: Value, name: str) -> ir.Attribute:
    role = "rt.input" if value.root == "input" else "rt.output"
    return ir.DictAttr.get({role: ir.UnitAttr.get(), "gristmill.name": ir.StringAttr.get(name)})
