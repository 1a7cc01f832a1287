# SPDX-License-Identifier: Apache-2.0
"""LLVM-dialect modules to optimised objects, assembly and LLVM IR for one CPU.

The MLIR module crosses into ``libLLVM.so`` as a handle, without passing through text: the MLIR
bindings and our LLVM wrapper share one library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from mlir import ir

from gristmill.compiler.module import capsule_pointer, mlir_c_function
from gristmill.compiler.target import Target
from gristmill.errors import ToolchainError
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine
from gristmill.runtime.threads import usable_cores

#: The LLVM pass pipeline every module goes through.
OPTIMIZATION_PIPELINE = "default<O3>"


class _MlirOperation(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p),)


@lru_cache(maxsize=1)
def _mlir_translate() -> Any:
    function = mlir_c_function("mlirTranslateModuleToLLVMIR")
    function.restype = ctypes.c_void_p
    function.argtypes = [_MlirOperation, ctypes.c_void_p]
    return function


def translate(module: ir.Module, context: Context) -> Module:
    """Translate an LLVM-dialect module to LLVM IR in ``context``; the source is left as it is.

    Raises ``ToolchainError`` with MLIR's diagnostics when an op has no translation.
    """
    pointer = capsule_pointer(module.operation._CAPIPtr, "ir.Operation")
    messages: list[str] = []

    def collect(diagnostic: ir.Diagnostic) -> bool:
        messages.append(f"{diagnostic.location}: {diagnostic.message}")
        return True

    handler = module.context.attach_diagnostic_handler(collect)
    try:
        handle = _mlir_translate()(_MlirOperation(pointer), context.handle)
    finally:
        handler.detach()  # pyright: ignore[reportAttributeAccessIssue]
    if not handle:
        raise ToolchainError(f"translation to LLVM IR failed: {'; '.join(messages)}")
    return Module(handle, context)


def optimize(module: Module, target: Target, machine: TargetMachine) -> None:
    """Set target attributes on every function and run :data:`OPTIMIZATION_PIPELINE`, in place."""
    _set_target(module, target, machine)
    module.run_passes(OPTIMIZATION_PIPELINE, machine)


def _set_target(module: Module, target: Target, machine: TargetMachine) -> None:
    module.set_target(machine)
    attributes = {
        "target-cpu": target.cpu,
        "target-features": target.features,
        # Some CPUs make LLVM prefer half-width registers; Target.vector_bytes decides instead.
        "prefer-vector-width": str(target.vector_bytes * 8),
    }
    module.set_function_attributes(attributes, ("nounwind",))


def _machine(target: Target) -> TargetMachine:
    return TargetMachine(target.triple, target.cpu, target.features)


def _with_module(module: ir.Module, target: Target, use: Callable[[Module, TargetMachine], Any]):
    with Context() as context, _machine(target) as machine, translate(module, context) as llvm_ir:
        return use(llvm_ir, machine)


def to_object(module: ir.Module, target: Target) -> bytes:
    """The optimised relocatable object of an LLVM-dialect module."""

    def emit(llvm_ir: Module, machine: TargetMachine) -> bytes:
        optimize(llvm_ir, target, machine)
        return llvm_ir.emit(machine)

    return _with_module(module, target, emit)


def to_assembly(module: ir.Module, target: Target) -> str:
    """The optimised assembly of an LLVM-dialect module."""

    def emit(llvm_ir: Module, machine: TargetMachine) -> str:
        optimize(llvm_ir, target, machine)
        return llvm_ir.emit(machine, assembly=True).decode()

    return _with_module(module, target, emit)


def to_llvm_ir(module: ir.Module, target: Target, *, optimized: bool = True) -> str:
    """The LLVM IR text of an LLVM-dialect module, after or before LLVM's optimiser."""

    def emit(llvm_ir: Module, machine: TargetMachine) -> str:
        if optimized:
            optimize(llvm_ir, target, machine)
        else:
            _set_target(llvm_ir, target, machine)
        return str(llvm_ir)

    return _with_module(module, target, emit)


def compile_many(
    modules: Iterable[ir.Module], target: Target, jobs: int | None = None
) -> list[bytes]:
    """The objects of several modules, in order, optimised and emitted by ``jobs`` threads.

    A module's translation runs on the calling thread (an MLIR context is shared), and so does what makes the next one,
    while other threads generate code of those before, each in its own LLVM context. The first failure is raised after
    all threads have stopped.
    """
    count = jobs or usable_cores()
    if count == 1:
        return [to_object(module, target) for module in modules]
    with ThreadPoolExecutor(count, thread_name_prefix="gristmill-codegen") as pool:
        pending = [pool.submit(_finish, _translate_alone(m), target) for m in modules]
    return [future.result() for future in pending]


def _translate_alone(module: ir.Module) -> Module:
    context = Context()
    try:
        return translate(module, context)
    except BaseException:
        context.close()
        raise


def _finish(module: Module, target: Target) -> bytes:
    with module.context, module, _machine(target) as machine:
        optimize(module, target, machine)
        return module.emit(machine)
