# SPDX-License-Identifier: Apache-2.0
"""``HloModule``: an MLIR module together with its large constants.

Constants of :data:`INLINE_CONSTANT_BYTES` and more never become MLIR attributes with content: the op holds
``dense_resource<NAME>`` and the data stays in the numpy array :attr:`HloModule.constants` maps NAME to. So a
model with hundreds of megabytes of weights is imported without a copy through text or IR.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlir
import numpy as np
from mlir import ir

from gristmill.dialects import hlo, rt
from gristmill.runtime.types import ArrayType, ElementType, element_type

#: Constants of at least this many bytes live outside the IR.
INLINE_CONSTANT_BYTES = 1024


def make_context() -> ir.Context:
    """A fresh MLIR context with upstream dialects, ``hlo`` and ``rt`` registered."""
    context = ir.Context()
    hlo.register(context)
    rt.register(context)
    return context


@dataclass
class HloModule:
    """One program on its way through the pipeline.

    Attributes:
        module: the MLIR module (holds its context alive).
        constants: data of ``dense_resource<NAME>`` constants, by NAME; read-only arrays.
        name: the module's name, for file names and messages.
    """

    module: ir.Module
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, Any])
    name: str = "module"

    @property
    def context(self) -> ir.Context:
        """The module's MLIR context."""
        return self.module.context

    def function(self, name: str) -> ir.Operation:
        """The ``func.func`` called ``name``; raises ``KeyError`` when there is none."""
        for op in self.module.body.operations:
            if op.operation.name == "func.func" and symbol_name(op.operation) == name:
                return op.operation
        raise KeyError(name)

    def functions(self) -> dict[str, ir.Operation]:
        """Every ``func.func`` by name, in module order."""
        return {
            symbol_name(op.operation): op.operation
            for op in self.module.body.operations
            if op.operation.name == "func.func"
        }


def symbol_name(op: ir.Operation) -> str:
    """The ``sym_name`` of a symbol operation."""
    return ir.StringAttr(op.attributes["sym_name"]).value


@lru_cache(maxsize=4096)
def _array_type(text: str) -> ArrayType:
    return ArrayType.parse(text[len("tensor<") : -1])


def array_type(value: ir.Value | ir.Type) -> ArrayType:
    """The :class:`ArrayType` of a statically shaped tensor value or type."""
    kind = value if isinstance(value, ir.Type) else value.type
    return _array_type(str(kind))


class _MlirAttribute(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p),)


def mlir_c_function(name: str, *, holds_lock: bool = True) -> Any:
    """A function of MLIR's C API, called with Python's global lock held unless it ``holds_lock`` not.

    Without the lock no diagnostic handler of the bindings may be attached: they touch Python objects.
    """
    library = Path(mlir.__path__[0]) / "_mlir_libs" / "libMLIRPythonCAPI.so"
    return getattr((ctypes.PyDLL if holds_lock else ctypes.CDLL)(str(library)), name)


@lru_cache(maxsize=1)
def _raw_data() -> Any:
    """``mlirDenseElementsAttrGetRawData``: the binding's buffer protocol lacks bf16 and narrow types."""
    function = mlir_c_function("mlirDenseElementsAttrGetRawData")
    function.restype = ctypes.c_void_p
    function.argtypes = [_MlirAttribute]
    return function


@lru_cache(maxsize=1)
def _capsule_pointer() -> Any:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return function


def capsule_pointer(capsule: object, kind: str) -> int:
    """The C API's pointer behind a binding object's ``_CAPIPtr``; ``kind``: its class, as ``ir.Operation``."""
    return _capsule_pointer()(capsule, f"mlir.{kind}._CAPIPtr".encode())


def elements_to_numpy(attribute: ir.Attribute) -> np.ndarray[Any, Any]:
    """The content of a dense elements attribute as a fresh array of its shape and dtype."""
    array = array_type(ir.DenseElementsAttr(attribute).type)
    splat = ir.DenseElementsAttr(attribute).is_splat
    pointer = capsule_pointer(attribute._CAPIPtr, "ir.Attribute")
    address = _raw_data()(_MlirAttribute(pointer))
    count = 1 if splat else array.size
    element: ElementType = array.element
    if count == 0:
        return np.empty(array.shape, element.dtype)
    if element.name == "i1":  # bit-packed, eight to a byte, least significant first
        nbytes = (count + 7) // 8
        raw = np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)
        values = np.unpackbits(raw, bitorder="little")[:count].astype(np.bool_)
    else:
        values = np.frombuffer(ctypes.string_at(address, count * element.nbytes), element.dtype)
    return (np.full(array.shape, values[0]) if splat else values.reshape(array.shape)).astype(
        element.dtype
    )


def elements_from_numpy(data: np.ndarray[Any, Any], element: ElementType) -> ir.Attribute:
    """A dense elements attribute holding ``data`` (current context).

    Complex data becomes real data with a trailing dimension of 2, the real and imaginary parts: the bindings cannot
    hold complex elements attributes. :func:`inline_constant` is the inverse.
    """
    data = np.asarray(data, dtype=element.dtype, order="C")
    if element.kind == "complex":
        part = element_type(element.name[len("complex<") : -1])
        return elements_from_numpy(data.reshape(*data.shape, 1).view(part.dtype), part)
    kind = ir.RankedTensorType.get(list(data.shape), ir.Type.parse(element.name))
    if data.size == 0:
        return ir.Attribute.parse(f"dense<> : {kind}")
    if element.name == "i1":
        bits = np.packbits(data.reshape(-1), bitorder="little")
        if data.size == 1 or data.all() or not data.any():
            return ir.DenseElementsAttr.get_splat(kind, ir.BoolAttr.get(bool(data.flat[0])))
        return ir.DenseElementsAttr.get(bits, type=ir.Type.parse("i1"), shape=list(data.shape))
    raw = data
    if element.name == "bf16":
        raw = data.view(np.uint16)
    elif element.bits < 8 or (element.is_float and element.bits == 8):
        raw = data.view(np.uint8) & ((1 << element.bits) - 1)
    return ir.DenseElementsAttr.get(raw, type=ir.Type.parse(element.name), shape=list(data.shape))


def inline_constant(op: ir.Operation | ir.OpView) -> np.ndarray[Any, Any]:
    """The data of an ``hlo.constant`` whose value is not a resource."""
    data = elements_to_numpy(op.operation.attributes["value"])
    array = array_type(op.operation.results[0])
    return data.view(array.element.dtype).reshape(array.shape) if is_complex(array) else data


def is_complex(array: ArrayType) -> bool:
    """Whether the elements are complex numbers."""
    return array.element.kind == "complex"


def constant_value(
    op: ir.Operation | ir.OpView, constants: dict[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """The data of an ``hlo.constant``: decoded when inline, the shared array when a resource."""
    value = op.operation.attributes["value"]
    if is_resource(value):
        return constants[resource_name(value)]
    return inline_constant(op)


def is_resource(attribute: ir.Attribute) -> bool:
    """Whether a constant's value is ``dense_resource<NAME>``, whose data lives outside the IR."""
    return not isinstance(attribute, ir.DenseElementsAttr)  # the bindings downcast only these


def resource_name(attribute: ir.Attribute) -> str:
    """NAME of ``dense_resource<NAME>``."""
    return str(attribute).partition("<")[2].partition(">")[0]
