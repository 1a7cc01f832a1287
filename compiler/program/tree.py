# SPDX-License-Identifier: Apache-2.0
"""An ``rt`` module read back as a tree: nested functions in place, every buffer resolved to bytes of a root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mlir import ir

from gristmill.compiler.emitters.kernel import KernelSpec, Phase
from gristmill.dialects import hlo, rt
from gristmill.dialects.locations import location_text
from gristmill.errors import VerifyError
from gristmill.runtime.program import ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """Bytes ``offset`` to ``offset + nbytes`` of a root.

    Attributes:
        root: ``input``, ``output``, ``constant`` or ``arena``.
        index: which one.
        memory: the root and index whose memory this is; a donated input may be its output's.
    """

    root: str
    index: int
    offset: int
    nbytes: int
    memory: tuple[str, int]

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share a byte."""
        return (
            self.memory == other.memory
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


@dataclass(eq=False)
class Launch:
    """A kernel launch; ``barriers[i]`` says whether threads meet before ``phases[i]``."""

    spec: KernelSpec
    arguments: list[Buffer]
    results: list[Buffer]
    workspace: Buffer | None
    barriers: list[bool] = field(default_factory=list[bool])

    @property
    def phases(self) -> list[Phase]:
        """The phases to run: those that would copy a buffer to itself are left out."""
        return [phase for phase in self.spec.phases if not self._in_place(phase)]

    def _in_place(self, phase: Phase) -> bool:
        return bool(phase.copies) and all(
            self.arguments[argument] == self.results[result] for argument, result in phase.copies
        )


@dataclass(eq=False)
class Copy:
    """A copy; a source that may be the destination itself is checked at run time."""

    source: Buffer
    destination: Buffer
    barrier: bool = False

    @property
    def guarded(self) -> bool:
        """Whether source and destination may be the same memory."""
        return self.source.memory == self.destination.memory


@dataclass(eq=False)
class Loop:
    """A ``while``; ``barrier``: whether threads meet before they read the predicate."""

    predicate: Buffer
    cond: list[Node]
    body: list[Node]
    barrier: bool = False


@dataclass(eq=False)
class Branch:
    """A conditional; ``barrier``: whether threads meet before they read the selector.

    ``boolean`` selectors are one byte, true for the first branch; others are 32-bit indices.
    """

    selector: Buffer
    branches: list[list[Node]]
    boolean: bool
    barrier: bool = False


Node = Launch | Copy | Loop | Branch


def read_module(
    module: ir.Module, specs: Mapping[str, KernelSpec], aliases: Mapping[int, int]
) -> list[Node]:
    """The tree of ``@main``.

    ``specs`` maps kernel names to specs; ``aliases`` input numbers to the outputs they may be donated
    to. Raises ``VerifyError`` for a launch that does not fit its kernel or overwrites what it reads.
    """
    functions: dict[str, ir.Operation] = {}
    for view in module.body.operations:
        functions[ir.StringAttr(view.operation.attributes["sym_name"]).value] = view.operation
    main = functions["main"]
    arguments: list[Buffer] = []
    roles = [ir.DictAttr(item) for item in ir.ArrayAttr(main.attributes["arg_attrs"])]
    inputs = sum("rt.input" in role for role in roles)
    for number, value in enumerate(main.regions[0].blocks[0].arguments):
        root, index = ("input", number) if number < inputs else ("output", number - inputs)
        memory = (root, index)
        if root == "input" and index in aliases:
            memory = ("output", aliases[index])
        arguments.append(Buffer(root, index, 0, rt.nbytes(value), memory))
    return _Reader(functions, specs).function("main", arguments)


class _Reader:
    def __init__(self, functions: dict[str, ir.Operation], specs: Mapping[str, KernelSpec]):
        self.functions = functions
        self.specs = specs

    def function(self, name: str, arguments: list[Buffer]) -> list[Node]:
        function = self.functions[name]
        parameters = function.regions[0].blocks[0].arguments
        buffers: dict[ir.Value, Buffer] = dict(zip(parameters, arguments, strict=True))
        ops: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith(("rt.", "rtv.")):
                ops.append(op)
            return ir.WalkResult.ADVANCE

        function.walk(visit, ir.WalkOrder.PRE_ORDER)
        return [node for op in ops for node in self.operation(op, buffers)]

    def operation(self, op: ir.Operation, buffers: dict[ir.Value, Buffer]) -> Iterator[Node]:
        """The node of an op that does something; ops that name a buffer extend ``buffers``."""
        name = rt.short_name(op)
        if name == "launch":
            yield self.launch(op, buffers)
        elif name == "slice":
            base, result = buffers[op.operands[0]], op.results[0]
            offset = base.offset + hlo.integer(op, "offset")
            buffers[result] = Buffer(base.root, base.index, offset, rt.nbytes(result), base.memory)
        elif name == "copy":
            yield Copy(buffers[op.operands[0]], buffers[op.operands[1]])
        elif name in ("allocate", "constant"):
            root = "arena" if name == "allocate" else "constant"
            index = 0 if name == "allocate" else hlo.integer(op, "index")
            result = op.results[0]
            buffers[result] = Buffer(root, index, 0, rt.nbytes(result), (root, index))
        elif name in ("while", "conditional"):
            yield self.control(op, [buffers[operand] for operand in op.operands])

    def control(self, op: ir.Operation, operands: list[Buffer]) -> Node:
        if rt.short_name(op) == "while":
            cond = self.function(hlo.symbol(op, "cond"), operands)
            return Loop(operands[0], cond, self.function(hlo.symbol(op, "body"), operands))
        branches = [self.function(name, operands) for name in hlo.symbols(op, "branches")]
        return Branch(operands[0], branches, str(op.operands[0].type) == "memref<i1>")

    def launch(self, op: ir.Operation, buffers: dict[ir.Value, Buffer]) -> Launch:
        parts = rt.launch_operands(op)
        spec = self.specs.get(parts.kernel)
        if spec is None:
            raise _error(op, f"kernel @{parts.kernel} does not exist")
        node = Launch(
            spec,
            [buffers[value] for value in parts.arguments],
            [buffers[value] for value in parts.results],
            None if parts.workspace is None else buffers[parts.workspace],
        )
        types = [str(value.type) for value in (*parts.arguments, *parts.results)]
        wanted = [f"memref<{kind}>" for kind in (*spec.arguments, *spec.results)]
        if types != wanted or len(parts.arguments) != len(spec.arguments):
            raise _error(op, f"the buffers do not have the types of kernel @{spec.name}: {wanted}")
        used = [*node.arguments, *node.results, *([node.workspace] if node.workspace else [])]
        if any(buffer.offset % ALIGNMENT for buffer in used):
            raise _error(op, f"a buffer does not start at a multiple of {ALIGNMENT} bytes")
        if (0 if node.workspace is None else node.workspace.nbytes) < spec.workspace_bytes:
            raise _error(op, f"kernel @{spec.name} needs {spec.workspace_bytes} bytes of workspace")
        _check_overlap(op, node)
        return node


def _check_overlap(op: ir.Operation, node: Launch) -> None:
    """What a launch writes may overlap nothing else it touches but declared in-place arguments."""
    written = [*node.results, *([] if node.workspace is None else [node.workspace])]
    for number, result in enumerate(written):
        if result.root in ("input", "constant"):
            raise _error(op, f"operand writes to {result.root} {result.index}, which is read-only")
        for other in written[:number]:
            if result.overlaps(other):
                raise _error(op, "results overlap one another")
        for position, argument in enumerate(node.arguments):
            in_place = (position, number) in node.spec.inplace
            if result.overlaps(argument) and not (in_place and result.offset == argument.offset):
                raise _error(op, f"result {number} overlaps argument {position}")


def _error(op: ir.Operation, message: str) -> VerifyError:
    return VerifyError(message, location=location_text(op.location), op=op.name)
