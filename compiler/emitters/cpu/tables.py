# SPDX-License-Identifier: Apache-2.0
"""Constant tables that belong to a kernel's code: read-only globals of its module."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import memref

from gristmill.compiler.emitters import build
from gristmill.runtime.types import ArrayType, element_type_of


class Tables:
    """Tables of one kernel, defined once each under ``prefix_N`` at the beginning of ``body``."""

    def __init__(self, body: ir.Block, prefix: str):
        self._body, self._prefix = body, prefix
        self._names: dict[str, tuple[str, ir.MemRefType]] = {}

    def define(self, key: str, data: np.ndarray[Any, Any]) -> None:
        """Define the table ``key``; a second definition is ignored."""
        if key in self._names:
            return
        data = np.ascontiguousarray(data)
        name = f"{self._prefix}_table_{len(self._names)}"
        kind = build.memref_type(ArrayType(data.shape, element_type_of(data.dtype)))
        self._names[key] = name, kind
        tensor = ir.RankedTensorType.get(list(data.shape), kind.element_type)
        with ir.InsertionPoint.at_block_begin(self._body):
            memref.GlobalOp(
                name,
                ir.TypeAttr.get(kind),
                sym_visibility="private",
                initial_value=ir.DenseElementsAttr.get(data, type=tensor),
                constant=True,
                alignment=64,
            )

    def get(self, key: str) -> ir.Value:
        """The table as a memref, at the current insertion point."""
        name, kind = self._names[key]
        return memref.GetGlobalOp(kind, name).result
