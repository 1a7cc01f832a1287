# SPDX-License-Identifier: Apache-2.0
"""Compile one kernel phase and call it on numpy arrays: for emitter tests and experiments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import to_object
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.target import Target
from gristmill.runtime.code import link

_ALIGNMENT = 64


def run_phase(
    module: ir.Module | str,
    function: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    begin: int = 0,
    end: int = 1,
    *,
    workspace: int = 64,
    scratch: int = 64,
    target: Target | None = None,
) -> None:
    """Lower, compile, link and call one phase function of a kernel module.

    Args:
        module: kernel-level MLIR, as a module (which is left unchanged) or text.
        function: the phase's symbol name.
        arrays: C-contiguous arrays for the arguments and then the results, which are written in
            place; pass bool or uint8 for ``i1`` buffers.
        begin, end: the range of tasks to run.
        workspace, scratch: bytes of temporary memory to pass.
        target: CPU to compile for; default: this machine.
    """
    text = module if isinstance(module, str) else str(module)
    for array in arrays:
        assert array.flags.c_contiguous, "run_phase takes C-contiguous arrays"
    target = target or host_target()
    with ir.Context():
        lowered = ir.Module.parse(text)
        lower_to_llvm_dialect(lowered, target)
        data = to_object(lowered, target)
    temporaries = [_aligned(workspace), _aligned(scratch)]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in [*arrays, *temporaries]]
    with link([data]) as code:
        signature = [*[ctypes.c_void_p] * len(pointers), ctypes.c_int64, ctypes.c_int64]
        phase = ctypes.CFUNCTYPE(None, *signature)(code.address(function))
        phase(*pointers, begin, end)


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]
