# SPDX-License-Identifier: Apache-2.0
"""An NVVM ``gpu.module`` to PTX."""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.codegen.native import to_assembly
from gristmill.compiler.target import GpuTarget


def device_module(module: ir.Module) -> ir.Module:
    """The contents of the module's ``gpu.module`` as a module of their own, which translates to LLVM IR."""
    alone = ir.Module.create(loc=ir.Location.unknown(module.context))
    for view in module.body.operations:
        if view.operation.name == "gpu.module":
            for inner in view.operation.regions[0].blocks[0].operations:
                alone.body.append(inner.operation.clone())
    return alone


def to_ptx(module: ir.Module, target: GpuTarget) -> str:
    """The PTX text of an NVVM module, optimised for ``target``."""
    return to_assembly(device_module(module), target)
