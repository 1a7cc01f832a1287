# SPDX-License-Identifier: Apache-2.0
"""The ``rt`` dialect: what the host does to execute a program.

A buffer is a ``memref`` of the element type that the ``hlo`` value had (``memref<4x8xui8>``), dense and
row-major. ``@main`` takes the input buffers, then the output buffers; nested computations are private
functions whose arguments are exactly the operands of the operation that refers to them. An operation reads
and writes buffers in program order; nothing is returned.

==================  ==================================================  =====================================
operation           operands                                            meaning
==================  ==================================================  =====================================
``rt.allocate``     —                                                   the arena: ``bytes`` at ``alignment``
``rt.slice``        a buffer                                            the buffer of the result's type that
                                                                        starts ``offset`` bytes into it
``rt.constant``     —                                                   constant number ``index``; read-only
``rtv.launch``      ``num_arguments`` arguments, ``num_results``        run ``kernel``
                    results, then at most one workspace
``rt.copy``         source, destination                                 copy all bytes (equal sizes; the
                                                                        buffers are disjoint or the same)
``rtv.while``       predicate, then what the two functions touch        run ``cond``; while the predicate is
                                                                        true run ``body``, then ``cond``
``rtv.conditional`` selector, then what the branches touch              run one of ``branches``: an ``i1``
                                                                        selector is true for the first; an
                                                                        ``i32`` one is clamped to the last
``rt.wait``         —                                                   wait for the stream ``stream``; used
                                                                        by devices, never on the CPU
==================  ==================================================  =====================================

As in :mod:`gristmill.dialects.hlo`, operations with operands of differing types cannot be described in IRDL and
live in the ``rtv`` namespace; :func:`verify` checks both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mlir import ir
from mlir.dialects import irdl

from gristmill.dialects import hlo
from gristmill.dialects.hlo import AttributeValue, OpDef
from gristmill.dialects.locations import location_text
from gristmill.dialects.types import Tensor
from gristmill.errors import VerifyError

#: The dialect: operation name (without the prefix) to its definition.
OPS: dict[str, OpDef] = {
    "allocate": OpDef((), 1, {"bytes": "i64", "alignment": "i64"}),
    "slice": OpDef(("source",), 1, {"offset": "i64"}),
    "constant": OpDef((), 1, {"index": "i64", "name": "string"}),
    "copy": OpDef(("source", "destination"), 0),
    "wait": OpDef((), 0, {"stream": "i64"}),
    "launch": OpDef(
        ("*buffers",), 0, {"kernel": "symbol", "num_arguments": "i64", "num_results": "i64"}
    ),
    "while": OpDef(("*buffers",), 0, {"cond": "symbol", "body": "symbol"}),
    "conditional": OpDef(("*buffers",), 0, {"branches": "symbols"}),
}

_MIXED = ("launch", "while", "conditional")

_MEMREF = re.compile(r"memref<((?:\d+x)*)((?:complex<)?[a-z]+\d\w*>?)>")


def full_name(name: str) -> str:
    """The MLIR name of a table operation: ``rt.slice``, ``rtv.launch``."""
    return f"rtv.{name}" if name in _MIXED else f"rt.{name}"


def short_name(op: ir.Operation) -> str:
    """``slice`` for ``rt.slice``; the full name for an op of another dialect."""
    prefix, _, rest = op.name.partition(".")
    return rest if prefix in ("rt", "rtv") else op.name


def irdl_text() -> str:
    """The IRDL definition of the ``rt`` namespace, derived from :data:`OPS`."""
    body = "\n".join(hlo.irdl_operation(n, d) for n, d in OPS.items() if n not in _MIXED)
    return f"irdl.dialect @rt {{\n{body}\n}}\n"


def register(context: ir.Context) -> None:
    """Load the dialect into ``context``; every ``rt`` op is verified against it from then on."""
    context.allow_unregistered_dialects = True  # for the rtv namespace
    with context:
        irdl.load_dialects(ir.Module.parse(irdl_text()))


@lru_cache(maxsize=4096)
def _nbytes(text: str) -> int:
    match = _MEMREF.fullmatch(text)
    if match is None:
        raise VerifyError(f"type {text} is not a dense, statically shaped buffer")
    dims, element = match.groups()
    count = math.prod(int(d) for d in dims.split("x") if d)
    return count * _element_bytes(element)


def _element_bytes(element: str) -> int:
    return (Tensor((), element).bits + 7) // 8


def nbytes(buffer: ir.Value | ir.Type) -> int:
    """Bytes of a buffer; raises ``VerifyError`` for a type that is not a dense, static memref."""
    return _nbytes(str(buffer if isinstance(buffer, ir.Type) else buffer.type))


def build(
    name: str,
    results: Sequence[ir.Type],
    operands: Sequence[ir.Value] = (),
    /,
    **attributes: AttributeValue,
) -> ir.Operation:
    """Create operation ``name`` at the current insertion point; see :func:`hlo.build`."""
    kinds = OPS[name].attributes
    return ir.Operation.create(
        full_name(name),
        results=list(results),
        operands=list(operands),
        attributes={key: hlo.attribute(kinds[key], value) for key, value in attributes.items()},
    )


def allocate(size: int, alignment: int) -> ir.Value:
    """The arena: ``size`` bytes at ``alignment``, a ``memref<SIZExi8>``."""
    kind = ir.Type.parse(f"memref<{size}xi8>")
    return build("allocate", [kind], bytes=size, alignment=alignment).results[0]


def slice_(source: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
    """The buffer of type ``kind`` that starts ``offset`` bytes into ``source``."""
    return build("slice", [kind], [source], offset=offset).results[0]


def constant(index: int, name: str, kind: ir.Type) -> ir.Value:
    """Constant number ``index`` of the program."""
    return build("constant", [kind], index=index, name=name).results[0]


def launch(
    kernel: str,
    arguments: Sequence[ir.Value],
    results: Sequence[ir.Value],
    workspace: ir.Value | None = None,
) -> ir.Operation:
    """Run ``kernel`` on ``arguments``, writing ``results``."""
    extra = [] if workspace is None else [workspace]
    return build(
        "launch",
        [],
        [*arguments, *results, *extra],
        kernel=kernel,
        num_arguments=len(arguments),
        num_results=len(results),
    )


def copy(source: ir.Value, destination: ir.Value) -> ir.Operation:
    """Copy all bytes of ``source`` to ``destination``."""
    return build("copy", [], [source, destination])


def while_(cond: str, body: str, buffers: Sequence[ir.Value]) -> ir.Operation:
    """Run ``cond`` and ``body`` while ``buffers[0]`` holds true."""
    return build("while", [], buffers, cond=cond, body=body)


def conditional(branches: Sequence[str], buffers: Sequence[ir.Value]) -> ir.Operation:
    """Run the branch that ``buffers[0]`` selects."""
    return build("conditional", [], buffers, branches=branches)


@dataclass(frozen=True)
class Launch:
    """The operands of a ``launch``, sorted out."""

    kernel: str
    arguments: list[ir.Value]
    results: list[ir.Value]
    workspace: ir.Value | None


def launch_operands(op: ir.Operation) -> Launch:
    """Split a launch's operands; raises ``VerifyError`` when the counts do not fit."""
    operands = list(op.operands)
    first = hlo.integer(op, "num_arguments")
    last = first + hlo.integer(op, "num_results")
    if first < 0 or last < first or len(operands) not in (last, last + 1):
        raise _error(
            op,
            f"{len(operands)} operands do not fit {first} arguments, {last - first} results"
            " and at most one workspace",
        )
    workspace = operands[last] if len(operands) > last else None
    return Launch(hlo.symbol(op, "kernel"), operands[:first], operands[first:last], workspace)


def verify(module: ir.Module) -> None:
    """Check every rule of the table above that one operation and its callees can break.

    Raises ``VerifyError`` naming the op: slices inside their source and aligned to their element size, copies
    of equal sizes, launches with consistent counts, nested functions that exist and take the op's operands.
    """
    functions: dict[str, list[ir.Type]] = {}
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.func":
            name = ir.StringAttr(op.attributes["sym_name"]).value
            functions[name] = [a.type for a in op.regions[0].blocks[0].arguments]
        elif op.name.startswith(("rt.", "rtv.")):
            ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in ops:
        _verify_op(op, functions)


def _verify_op(op: ir.Operation, functions: dict[str, list[ir.Type]]) -> None:
    name = short_name(op)
    definition = OPS.get(name)
    if definition is None:
        raise _error(op, "there is no such operation in the rt dialect")
    missing = [a for a in definition.attributes if a not in op.attributes]
    if missing:
        raise _error(op, f"attribute {missing[0]!r} is missing")
    if name == "allocate":
        _verify_allocate(op)
    elif name == "slice":
        _verify_slice(op)
    elif name == "copy":
        source, destination = (nbytes(operand) for operand in op.operands)
        if source != destination:
            raise _error(op, f"copies {source} bytes to a buffer of {destination}")
    elif name == "launch":
        launch_operands(op)
    elif name == "while":
        _verify_calls(op, [hlo.symbol(op, "cond"), hlo.symbol(op, "body")], functions, ("i1",))
    elif name == "conditional":
        branches = hlo.symbols(op, "branches")
        _verify_calls(op, branches, functions, ("i1", "i32"))
        if str(op.operands[0].type) == "memref<i1>" and len(branches) != 2:
            raise _error(op, f"an i1 selector needs 2 branches, not {len(branches)}")


def _verify_allocate(op: ir.Operation) -> None:
    size, alignment = hlo.integer(op, "bytes"), hlo.integer(op, "alignment")
    if alignment <= 0 or alignment & (alignment - 1):
        raise _error(op, f"alignment {alignment} is not a power of two")
    if nbytes(op.results[0]) != size:
        raise _error(op, f"bytes = {size} does not fit the result type {op.results[0].type}")


def _verify_slice(op: ir.Operation) -> None:
    offset = hlo.integer(op, "offset")
    size, available = nbytes(op.results[0]), nbytes(op.operands[0])
    if offset < 0 or offset + size > available:
        raise _error(
            op, f"bytes {offset} to {offset + size} are outside the {available} of its source"
        )
    match = _MEMREF.fullmatch(str(op.results[0].type))
    element = _element_bytes(match.group(2)) if match else 1
    if offset % element:
        raise _error(op, f"offset {offset} is not a multiple of the element size {element}")


def _verify_calls(
    op: ir.Operation,
    callees: Sequence[str],
    functions: dict[str, list[ir.Type]],
    selectors: tuple[str, ...],
) -> None:
    kinds = [operand.type for operand in op.operands]
    if not kinds or str(kinds[0]) not in [f"memref<{s}>" for s in selectors]:
        raise _error(
            op, f"the first operand must be a memref of rank 0 of {' or '.join(selectors)}"
        )
    if not callees:
        raise _error(op, "it has no branches")
    for callee in callees:
        if callee not in functions:
            raise _error(op, f"function @{callee} does not exist")
        if functions[callee] != kinds:
            raise _error(op, f"@{callee} does not take the types of the operands")


def _error(op: ir.Operation, message: str) -> VerifyError:
    return VerifyError(message, location=location_text(op.location), op=op.name)
