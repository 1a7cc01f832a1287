# SPDX-License-Identifier: Apache-2.0
"""Kernel phases that apply one elementary function to arrays, for the tests of the math library."""

from __future__ import annotations

import numpy as np
from mlir import ir
from mlir.dialects import arith, func, memref, scf, vector

from gristmill.compiler.codegen.testing import run_phase
from gristmill.compiler.emitters import math


def math_module(name: str, dtype: np.dtype, size: int, lanes: int = 1) -> str:
    """Text of a module whose ``@phase`` stores function ``name`` of ``size`` elements, ``lanes`` at a time."""
    with ir.Context(), ir.Location.unknown():
        element = {4: ir.F32Type.get, 8: ir.F64Type.get}[dtype.itemsize]()
        index, byte = ir.IndexType.get(), ir.IntegerType.get_signless(8)
        count = math.FUNCTIONS[name] + 1
        buffer = ir.MemRefType.get([size], element)
        scratch = ir.MemRefType.get([64], byte)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            phase = func.FuncOp("phase", ([buffer] * count + [scratch] * 2 + [index] * 2, []))
            phase.arg_attrs = [ir.DictAttr.get({"llvm.noalias": ir.UnitAttr.get()})] * count + [
                ir.DictAttr.get({})
            ] * 4
            with ir.InsertionPoint(phase.add_entry_block()):
                *sources, target = phase.arguments[:count]
                bounds = [arith.constant(index, n) for n in (0, size, lanes)]
                loop = scf.ForOp(*bounds)
                with ir.InsertionPoint(loop.body):
                    at = [loop.induction_variable]
                    if lanes == 1:
                        result = math.emit(name, [memref.load(s, at) for s in sources])
                        memref.store(result, target, at)
                    else:
                        wide = ir.VectorType.get([lanes], element)
                        result = math.emit(name, [vector.load(wide, s, at) for s in sources])
                        vector.store(result, target, at)
                    scf.YieldOp([])
                func.ReturnOp([])
        module.operation.verify()
        return str(module)


def apply(name: str, *operands: np.ndarray, lanes: int = 1) -> np.ndarray:
    """Function ``name`` of one-dimensional arrays of one type, compiled for this machine."""
    arrays = [np.ascontiguousarray(operand) for operand in operands]
    size = arrays[0].size // lanes * lanes
    result = np.zeros_like(arrays[0])
    run_phase(math_module(name, result.dtype, size, lanes), "phase", [*arrays, result])
    return result[:size]
