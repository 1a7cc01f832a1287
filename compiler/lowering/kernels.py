# SPDX-License-Identifier: Apache-2.0
"""Kernel-level MLIR (scf, memref, vector, arith, …) to the LLVM dialect, by upstream passes.

In: a module of ``func.func`` over statically shaped memrefs and ``index`` bounds, as
``compiler/emitters/kernel.py`` describes; LLVM-dialect operations may already appear. Out: the same
module in the LLVM dialect, memref arguments turned into bare pointers. Argument attributes such as
``llvm.noalias`` survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mlir import ir

from gristmill.compiler.emitters.math import expand_exponentials
from gristmill.compiler.lowering.pipeline import reproduction, run_pipeline
from gristmill.compiler.lowering.unrolling import limit_unrolling
from gristmill.compiler.target import Target
from gristmill.errors import LoweringError

_SIMPLIFY: tuple[str, ...] = (
    # bf16 conversions become integer arithmetic: the hardware instruction flushes subnormals. This comes first, as the
    # canonicaliser would make one conversion to bf16, which few CPUs have, of an integer's two steps.
    "arith-expand{include-bf16=true}",
    "canonicalize",
    "cse",
    "loop-invariant-code-motion",
    "convert-vector-to-scf",
)
_CONVERT: tuple[str, ...] = (
    "expand-strided-metadata",
    "lower-affine",
    "convert-scf-to-cf",
    # Reductions keep their written order unless the operation itself allows reassociation.
    "convert-vector-to-llvm{reassociate-fp-reductions=false}",
    "finalize-memref-to-llvm",
    "convert-complex-to-llvm",
    "convert-math-to-llvm",
    "convert-ub-to-llvm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    "convert-cf-to-llvm",
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=true}",
    "reconcile-unrealized-casts",
    "canonicalize",
    "cse",
)

#: The whole lowering as one upstream pipeline string; how loops may be unrolled is decided in its middle.
KERNEL_PIPELINE = f"builtin.module({','.join((*_SIMPLIFY, *_CONVERT))})"


def lower_to_llvm_dialect(module: ir.Module, target: Target | None = None) -> None:
    """Lower a kernel module to the LLVM dialect in place, for any CPU unless a ``target`` is given.

    Raises ``LoweringError`` naming the operation that failed, with the ``mlir-opt`` command that
    reproduces it. The module is then in an unspecified intermediate state.
    """
    with module.context:
        scaled = target is not None and "+avx512f" in target.features.split(",")
        narrow = target is not None and target.vector_registers <= 16
        expand_exponentials(module, scaled=scaled, split=narrow)
        _run(_SIMPLIFY, module)
        limit_unrolling(module)
        _run(_CONVERT, module)
        if _move_bf16_as_bits(module):
            _run(("canonicalize",), module)
    _check_lowered(module)
    _attach_loop_annotations(module)


def _run(passes: Sequence[str], module: ir.Module) -> None:
    run_pipeline(f"builtin.module({','.join(passes)})", module, KERNEL_PIPELINE)


def _move_bf16_as_bits(module: ir.Module) -> bool:
    """Let bf16 values that are only moved (loaded, stored, also masked, selected, passed to blocks) be integers.

    LLVM makes wide vectors of neighbouring moves, and its instruction selection asserts on some of bf16, which has
    vectors but hardly any operations on them; a chosen or carried scalar it keeps as an f32, and calls a function that
    nobody defines to round it back where the CPU has no instruction for that. Returns whether anything was changed.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _MOVES and "bf16" in str([x.type for x in (*op.operands, *op.results)]):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    blocks: dict[ir.Block, None] = {}
    for op in found:
        with ir.InsertionPoint(op), op.location:
            if op.name in _BRANCHES:
                blocks |= dict.fromkeys(op.successors)
                _pass_bits(op)
            else:
                _move_bits(op)
    for block in blocks:
        _take_bits(block)
    return bool(found)


_BRANCHES = ("llvm.br", "llvm.cond_br", "llvm.switch")
_MASKED = ("llvm.intr.masked.load", "llvm.intr.masked.store")
_MOVES = ("llvm.load", "llvm.store", "llvm.select", *_MASKED, *_BRANCHES)


def _bits_of(value: ir.Value) -> ir.Value:
    """A bf16 value's bits; any other value as it is."""
    return _bitcast(value, _as_bits(value.type)) if "bf16" in str(value.type) else value


def _move_bits(op: ir.Operation) -> None:
    attributes = {name: op.attributes[name] for name in cast("list[str]", list(op.attributes))}
    kinds = [_as_bits(x.type) for x in op.results]
    moved = ir.Operation.create(op.name, kinds, [_bits_of(x) for x in op.operands], attributes)
    for old, new in zip(op.results, moved.results, strict=True):
        old.replace_all_uses_with(_bitcast(new, old.type))
    op.erase()


def _pass_bits(branch: ir.Operation) -> None:
    for number, value in enumerate(list(branch.operands)):
        branch.operands[number] = _bits_of(value)


def _take_bits(block: ir.Block) -> None:
    """Make the block's arguments what its predecessors pass now."""
    for argument in block.arguments:
        kind = argument.type
        if "bf16" not in str(kind):
            continue
        argument.set_type(_as_bits(kind))
        with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
            value = _bitcast(argument, kind)
        argument.replace_all_uses_except(value, cast("ir.Operation", value.owner).operation)


def _as_bits(kind: ir.Type) -> ir.Type:
    return ir.Type.parse(str(kind).replace("bf16", "i16"))


def _bitcast(value: ir.Value, kind: ir.Type) -> ir.Value:
    return ir.Operation.create("llvm.bitcast", [kind], [value]).results[0]


def _attach_loop_annotations(module: ir.Module) -> None:
    """Make ``llvm.loop_annotation`` of an ``scf.for`` effective.

    Upstream carries it to the loop's back edge as a discardable attribute, which nothing translates.
    """

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "llvm.br" and "llvm.loop_annotation" in op.attributes:
            op.attributes["loop_annotation"] = op.attributes["llvm.loop_annotation"]
            del op.attributes["llvm.loop_annotation"]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)


def _check_lowered(module: ir.Module) -> None:
    """Refuse leftovers: an op outside the LLVM dialect would fail later and less clearly."""
    leftovers: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if not op.name.startswith("llvm.") and op.name != "builtin.module":
            leftovers.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    if leftovers:
        names = ", ".join(sorted({op.name for op in leftovers}))
        raise LoweringError(
            f"no lowering to LLVM for: {names}\n{reproduction(KERNEL_PIPELINE)}",
            location=str(leftovers[0].location),
            op=leftovers[0].name,
        )
