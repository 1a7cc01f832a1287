# SPDX-License-Identifier: Apache-2.0
"""Upstream pass pipelines run without Python's global lock, so that code is generated meanwhile by other threads.

The bindings' ``PassManager.run`` holds the lock, and their diagnostic handlers make Python objects before they take it:
passes run by MLIR's C API, with a handler of their own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mlir import ir
from mlir.passmanager import PassManager

from gristmill.compiler.diagnostics import MLIRError, diagnostics_text
from gristmill.compiler.module import capsule_pointer, mlir_c_function
from gristmill.errors import LoweringError

# MLIR passes its handles and string references by value: on the CPUs we know, as their members one by one.
_Handler = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p, ctypes.c_void_p)
_Print = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_ERROR = 0  # MlirDiagnosticError
_HANDLED = 1  # a successful MlirLogicalResult


def run_pipeline(pipeline: str, module: ir.Module, repro: str | None = None) -> None:
    """Run a pass pipeline on ``module``, in place.

    The module is verified before, and not again after each pass, which took 40 % of the time of the kernels' twenty.

    ``repro``: the pipeline that an error's reader should run instead, of which this is a part. Raises ``LoweringError``
    with MLIR's first error and the ``mlir-opt`` command; the module is then in an unspecified intermediate state.
    """
    manager = PassManager.parse(pipeline)
    manager.enable_verifier(False)
    errors: list[_Diagnostic] = []
    try:
        module.operation.verify()
    except MLIRError as error:
        raise LoweringError(f"malformed kernels: {diagnostics_text(error)}") from None

    def collect(diagnostic: int, _: int | None) -> int:
        if _function("mlirDiagnosticGetSeverity")(diagnostic) == _ERROR:
            errors.append(_Diagnostic.of(diagnostic))
        return _HANDLED

    context = capsule_pointer(module.context._CAPIPtr, "ir.Context")
    handler = _Handler(collect)
    number = _function("mlirContextAttachDiagnosticHandler")(context, handler, None, None)
    try:
        succeeded = _function("mlirPassManagerRunOnOp")(
            capsule_pointer(manager._CAPIPtr, "passmanager.PassManager"),
            capsule_pointer(module.operation._CAPIPtr, "ir.Operation"),
        )
    finally:
        _function("mlirContextDetachDiagnosticHandler")(context, number)
    if not succeeded:
        first = errors[0] if errors else _Diagnostic("a pass failed and did not say why", None)
        text = f"{first.text}\n{reproduction(repro or pipeline)}"
        raise LoweringError(text, location=first.location)


def reproduction(pipeline: str) -> str:
    """The command that runs ``pipeline`` on a kernel module."""
    return f"reproduce: mlir-opt --pass-pipeline='{pipeline}' kernels.mlir"


@dataclass(frozen=True)
class _Diagnostic:
    """What MLIR said, with its notes, and where."""

    text: str
    location: str | None

    @classmethod
    def of(cls, handle: int) -> _Diagnostic:
        printed = _function("mlirDiagnosticPrint")
        notes = [
            _function("mlirDiagnosticGetNote")(handle, i)
            for i in range(_function("mlirDiagnosticGetNumNotes")(handle))
        ]
        text = "; ".join(_text(printed, each) for each in (handle, *notes))
        location = _function("mlirDiagnosticGetLocation")(handle)
        return cls(text, _text(_function("mlirLocationPrint"), location))


def _text(printer: Callable[[int, Any, None], None], handle: int) -> str:
    parts: list[bytes] = []

    def take(data: int, size: int, _: int | None) -> None:
        parts.append(ctypes.string_at(data, size))

    printer(handle, _Print(take), None)
    return b"".join(parts).decode()


#: Result and arguments of the functions of MLIR's C API used here.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "mlirPassManagerRunOnOp": (ctypes.c_int8, ctypes.c_void_p, ctypes.c_void_p),
    "mlirContextAttachDiagnosticHandler": (
        ctypes.c_uint64,
        ctypes.c_void_p,
        _Handler,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ),
    "mlirContextDetachDiagnosticHandler": (None, ctypes.c_void_p, ctypes.c_uint64),
    "mlirDiagnosticGetSeverity": (ctypes.c_int, ctypes.c_void_p),
    "mlirDiagnosticGetNumNotes": (ctypes.c_ssize_t, ctypes.c_void_p),
    "mlirDiagnosticGetNote": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t),
    "mlirDiagnosticGetLocation": (ctypes.c_void_p, ctypes.c_void_p),
    "mlirDiagnosticPrint": (None, ctypes.c_void_p, _Print, ctypes.c_void_p),
    "mlirLocationPrint": (None, ctypes.c_void_p, _Print, ctypes.c_void_p),
}


@lru_cache(maxsize=16)
def _function(name: str) -> Any:
    function = mlir_c_function(name, holds_lock=False)
    function.restype, *function.argtypes = _SIGNATURES[name]
    return function
