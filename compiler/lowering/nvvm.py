# SPDX-License-Identifier: Apache-2.0
"""A ``gpu.module`` to the NVVM dialect, by upstream passes.

In: a module with one ``gpu.module`` of ``gpu.func`` launches and the ``func.func`` they call, as
``compiler/emitters/gpu`` makes it. Out: the same, in the LLVM and NVVM dialects; memref arguments are bare
pointers. ``math`` operations become LLVM intrinsics, which the NVPTX back end rounds correctly, not libdevice calls:
the accurate functions are ours (``compiler/emitters/math``), and only square roots, roundings and bit counts are left.
"""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.emitters.math import expand_exponentials
from gristmill.compiler.lowering.nvvm_mma import convert_products
from gristmill.compiler.lowering.pipeline import run_pipeline

#: Everything but the ``gpu`` and ``vector`` dialects.
_TO_LLVM: tuple[str, ...] = (
    "canonicalize",
    "cse",
    "loop-invariant-code-motion",
    "arith-expand{include-bf16=true}",
    "convert-nvgpu-to-nvvm",
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "convert-scf-to-cf",
    "convert-complex-to-llvm",
    "convert-math-to-llvm",
)

#: The ``gpu`` dialect and what is left, ``vector`` included: only here workgroup memory has an address space.
_TO_NVVM: tuple[str, ...] = (
    "convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=true}",
    "convert-ub-to-llvm",
    "convert-index-to-llvm",
    "reconcile-unrealized-casts",
    "canonicalize",
    "cse",
)

#: The lowering as two upstream pipelines; between them :func:`_call_intrinsics` runs.
NVVM_PIPELINES = tuple(
    f"builtin.module(gpu.module({','.join(passes)}))" for passes in (_TO_LLVM, _TO_NVVM)
)


#: Operations that ``convert-gpu-to-nvvm`` refuses, and the intrinsics they are.
_REFUSED = {
    f"llvm.intr.{name}": f"llvm.{intrinsic}"
    for name, intrinsic in {
        "fabs": "fabs",
        "sqrt": "sqrt",
        "copysign": "copysign",
        "floor": "floor",
        "ceil": "ceil",
        "roundeven": "roundeven",
        "fma": "fma",
    }.items()
}


def lower_to_nvvm(module: ir.Module) -> None:
    """Lower the module's ``gpu.module`` in place.

    Raises ``LoweringError`` naming the operation that failed; the module is then in an unspecified state.
    """
    with module.context:
        convert_products(module)
        expand_exponentials(module)
        for number, pipeline in enumerate(NVVM_PIPELINES):
            if number == 1:
                _call_intrinsics(module)
            run_pipeline(pipeline, module)


def _call_intrinsics(module: ir.Module) -> None:
    """Hide LLVM's mathematical intrinsics from ``convert-gpu-to-nvvm``, which would refuse them.

    It wants libdevice's functions instead; ``llvm.call_intrinsic`` means the same as the operations and passes.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _REFUSED:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in found:
        kind = op.results[0].type
        with ir.InsertionPoint(op), op.location:
            attributes = {
                "intrin": ir.StringAttr.get(_REFUSED[op.name]),
                "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(op.operands), 0]),
            }
            call = ir.Operation.create("llvm.call_intrinsic", [kind], list(op.operands), attributes)
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()
