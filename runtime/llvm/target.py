# SPDX-License-Identifier: Apache-2.0
"""Host detection and target machines."""

from __future__ import annotations

import ctypes
from typing import Self

from gristmill.errors import ToolchainError
from gristmill.runtime.llvm.library import llvm, take_message

_AGGRESSIVE = 3  # LLVMCodeGenLevelAggressive
_PIC = 2  # LLVMRelocPIC
_SMALL = 3  # LLVMCodeModelSmall


def default_triple() -> str:
    """The triple LLVM generates code for on this machine."""
    return take_message(llvm().LLVMGetDefaultTargetTriple())


def host_cpu() -> str:
    """LLVM's name of this machine's CPU, for example ``znver4``."""
    return take_message(llvm().LLVMGetHostCPUName())


def host_features() -> str:
    """This CPU's features in LLVM's notation, ``+avx2,-avx512f,…``."""
    return take_message(llvm().LLVMGetHostCPUFeatures())


class TargetMachine:
    """An ``LLVMTargetMachine``: position-independent code, small code model. A context manager.

    One machine must not be used by two threads at once.
    """

    def __init__(self, triple: str, cpu: str, features: str) -> None:
        library = llvm()
        target, message = ctypes.c_void_p(), ctypes.c_void_p()
        failed = library.LLVMGetTargetFromTriple(
            triple.encode(), ctypes.byref(target), ctypes.byref(message)
        )
        text = take_message(message.value)
        if failed:
            raise ToolchainError(f"this LLVM cannot generate code for {triple}: {text}")
        self.triple = triple
        self.handle: int | None = library.LLVMCreateTargetMachine(
            target, triple.encode(), cpu.encode(), features.encode(), _AGGRESSIVE, _PIC, _SMALL
        )
        if not self.handle:
            raise ToolchainError(f"LLVM refused the target {triple}, CPU {cpu}")

    def close(self) -> None:
        """Free the machine; idempotent."""
        handle, self.handle = self.handle, None
        if handle:
            llvm().LLVMDisposeTargetMachine(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
