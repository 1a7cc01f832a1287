# SPDX-License-Identifier: Apache-2.0
"""LLVM contexts, modules and memory buffers as Python objects that own their handles."""

from __future__ import annotations

import ctypes
from typing import Self

from gristmill.errors import ToolchainError
from gristmill.runtime.llvm.library import DiagnosticCallback, check_error, llvm, take_message
from gristmill.runtime.llvm.target import TargetMachine

_SEVERITY_ERROR = 0
_RETURN_STATUS = 2  # LLVMReturnStatusAction
_FUNCTION_INDEX = 0xFFFFFFFF


class Context:
    """An ``LLVMContext``. Error diagnostics are collected, never printed.

    Use one per thread. A context manager; closing it frees it, after its modules.
    """

    def __init__(self) -> None:
        self.handle: int | None = llvm().LLVMContextCreate()
        self.errors: list[str] = []
        self._callback = DiagnosticCallback(self._diagnose)
        llvm().LLVMContextSetDiagnosticHandler(self.handle, self._callback, None)

    def _diagnose(self, info: int, _context: int) -> None:
        if llvm().LLVMGetDiagInfoSeverity(info) == _SEVERITY_ERROR:
            self.errors.append(take_message(llvm().LLVMGetDiagInfoDescription(info)))

    def check(self, what: str) -> None:
        """Raise ``ToolchainError`` if an error diagnostic was issued since the last check."""
        if self.errors:
            errors, self.errors = self.errors, []
            raise ToolchainError(f"{what}: {'; '.join(errors)}")

    def close(self) -> None:
        """Free the context; idempotent."""
        handle, self.handle = self.handle, None
        if handle:
            llvm().LLVMContextDispose(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Module:
    """An LLVM module; owns its handle. A context manager."""

    def __init__(self, handle: int, context: Context) -> None:
        self.handle: int | None = handle
        self.context = context

    @staticmethod
    def parse(text: str, context: Context, name: str = "module") -> Module:
        """Parse textual LLVM IR; raises ``ToolchainError`` with LLVM's message."""
        data = text.encode()
        library = llvm()
        buffer = library.LLVMCreateMemoryBufferWithMemoryRangeCopy(data, len(data), name.encode())
        module, message = ctypes.c_void_p(), ctypes.c_void_p()
        failed = library.LLVMParseIRInContext(
            context.handle, buffer, ctypes.byref(module), ctypes.byref(message)
        )
        error = take_message(message.value)
        if failed or not module.value:
            raise ToolchainError(f"cannot parse LLVM IR: {error}")
        return Module(module.value, context)

    def close(self) -> None:
        """Free the module; idempotent."""
        handle, self.handle = self.handle, None
        if handle:
            llvm().LLVMDisposeModule(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __str__(self) -> str:
        return take_message(llvm().LLVMPrintModuleToString(self.handle))

    def verify(self) -> None:
        """Raise ``ToolchainError`` when the module breaks LLVM's rules."""
        message = ctypes.c_void_p()
        broken = llvm().LLVMVerifyModule(self.handle, _RETURN_STATUS, ctypes.byref(message))
        text = take_message(message.value)
        if broken:
            raise ToolchainError(f"invalid LLVM IR: {text}")

    def set_target(self, machine: TargetMachine) -> None:
        """Set triple and data layout to the machine's."""
        library = llvm()
        library.LLVMSetTarget(self.handle, machine.triple.encode())
        layout = library.LLVMCreateTargetDataLayout(machine.handle)
        library.LLVMSetModuleDataLayout(self.handle, layout)
        library.LLVMDisposeTargetData(layout)

    def set_function_attributes(self, strings: dict[str, str], enums: tuple[str, ...] = ()) -> None:
        """Add string and enum attributes (by LLVM name) to every function defined here."""
        library = llvm()
        attributes = [
            library.LLVMCreateEnumAttribute(
                self.context.handle, library.LLVMGetEnumAttributeKindForName(n.encode(), len(n)), 0
            )
            for n in enums
        ]
        function = library.LLVMGetFirstFunction(self.handle)
        while function:
            if not library.LLVMIsDeclaration(function):
                for key, value in strings.items():
                    library.LLVMAddTargetDependentFunctionAttr(
                        function, key.encode(), value.encode()
                    )
                for attribute in attributes:
                    library.LLVMAddAttributeAtIndex(function, _FUNCTION_INDEX, attribute)
            function = library.LLVMGetNextFunction(function)

    def run_passes(self, pipeline: str, machine: TargetMachine) -> None:
        """Run a new-pass-manager pipeline, for example ``default<O3>``, in place."""
        library = llvm()
        options = library.LLVMCreatePassBuilderOptions()
        for name in ("LoopVectorization", "SLPVectorization", "LoopInterleaving", "LoopUnrolling"):
            getattr(library, f"LLVMPassBuilderOptionsSet{name}")(options, 1)
        try:
            error = library.LLVMRunPasses(self.handle, pipeline.encode(), machine.handle, options)
        finally:
            library.LLVMDisposePassBuilderOptions(options)
        check_error(error, f"LLVM pipeline {pipeline}")
        self.context.check(f"LLVM pipeline {pipeline}")

    def emit(self, machine: TargetMachine, *, assembly: bool = False) -> bytes:
        """Generate code: an object file, or assembly text when ``assembly``."""
        library = llvm()
        message, buffer = ctypes.c_void_p(), ctypes.c_void_p()
        failed = library.LLVMTargetMachineEmitToMemoryBuffer(
            machine.handle,
            self.handle,
            0 if assembly else 1,
            ctypes.byref(message),
            ctypes.byref(buffer),
        )
        text = take_message(message.value)
        if failed:
            raise ToolchainError(f"code generation failed: {text}")
        try:
            self.context.check("code generation")
            start = library.LLVMGetBufferStart(buffer)
            return ctypes.string_at(start, library.LLVMGetBufferSize(buffer))
        finally:
            library.LLVMDisposeMemoryBuffer(buffer)
