# SPDX-License-Identifier: Apache-2.0
"""Which loops of a kernel LLVM may unroll: small ones, and those whose emitter says so.

LLVM unrolls a loop until its body has as many operations as the CPU's loop buffer holds, by its scheduling models
thousands on some CPUs, and loops of a known short count completely, also those that are short only since they take
vectors, and the loops around them. Where a turn is work enough by itself, as of a register tile or of an exponential
function, that makes nothing faster and takes most of the compile time: loop strength reduction, instruction selection
and register allocation then work on many times as much code.
"""

from __future__ import annotations

from mlir import ir

#: Operations in a turn from which on a loop is left as it is, by measurement: index arithmetic and all, vectors as one.
MOST_OPERATIONS = 16
#: Operations up to which a loop of a known count may become straight code; LLVM's own limit is about 300.
MOST_WRITTEN_OUT = 200

_ANNOTATION = "llvm.loop_annotation"


def limit_unrolling(module: ir.Module) -> None:
    """Keep LLVM from unrolling each ``scf.for`` that is not small, where its annotation does not speak of unrolling.

    For a module that was canonicalised, so that constants are few and what a loop repeats is out of it.
    """
    for view in module.body.operations:
        _count(view.operation)


def _count(op: ir.Operation) -> tuple[int, bool]:
    """Operations that the regions of ``op`` come to, with one turn of loops that stay; whether there are any such."""
    total, loops = 0, False
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                if inner.name == "arith.constant":
                    continue
                total += 1
                loops = loops or inner.name == "scf.while"
                if len(inner.regions):
                    count, stays = (_count_loop if inner.name == "scf.for" else _count)(inner)
                    total, loops = total + count, loops or stays
    return total, loops


def _count_loop(loop: ir.Operation) -> tuple[int, bool]:
    turn, loops = _count(loop)
    turns = _turns(loop)
    if turns is not None and turns * turn <= MOST_WRITTEN_OUT and not loops:
        return turns * turn, False
    if turn > MOST_OPERATIONS or loops:
        _leave_rolled(loop)
    return turn, True


def _turns(loop: ir.Operation) -> int | None:
    """The turns of a loop between constants."""
    known: list[int] = []
    for value in list(loop.operands)[:3]:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name != "arith.constant":
            return None
        known.append(ir.IntegerAttr(owner.attributes["value"]).value)
    low, high, step = known
    return max(0, -(-(high - low) // step))


def _leave_rolled(loop: ir.Operation) -> None:
    hints = ["unroll = <disable = true>"]
    if _ANNOTATION in loop.attributes:
        said = str(loop.attributes[_ANNOTATION])
        if "unroll" in said:
            return
        hints.append(said.removeprefix("#llvm.loop_annotation<").removesuffix(">"))
    attribute = f"#llvm.loop_annotation<{', '.join(hints)}>"
    loop.attributes[_ANNOTATION] = ir.Attribute.parse(attribute)
