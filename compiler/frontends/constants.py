# SPDX-License-Identifier: Apache-2.0
"""Constants: from jaxlib's attributes to inline attributes or to arrays beside the module.

In: the ``value`` attribute of a ``stablehlo.constant``. Out: a :class:`Constant`. Small ones are inline
attributes; large ones that repeat one value are a scalar to broadcast; all other large ones are read-only
numpy arrays over jaxlib's own memory (which the array keeps alive), so no byte is copied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxlib.mlir import ir as source_ir
from mlir import ir

from gristmill.compiler.module import INLINE_CONSTANT_BYTES, elements_from_numpy, elements_to_numpy
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ArrayType, ElementType

if TYPE_CHECKING:
    from typing_extensions import Buffer

Array = np.ndarray[Any, Any]

_RESOURCE_NAME = re.compile(r'dense_resource<("(?:[^"\\]|\\.)*"|[^>]*)>')
_HEXADECIMAL = re.compile(r'"0x([0-9A-Fa-f]*)"')
_DENSE = re.compile(r"\bdense<(.*)> : tensor<[^>]*>>", re.DOTALL)
_PAIR = re.compile(r"\(([^(),]+),([^(),]+)\)")
_BYTECODE_VERSION = 1  # the oldest with dense data as bytes, so that any MLIR release reads it
_RESOURCE_ALIGNMENT_BYTES = 4  # a printed blob starts with its alignment


@dataclass(frozen=True)
class Constant:
    """A converted constant: ``value`` is the attribute of an ``hlo.constant``.

    When ``splat`` is set the attribute is a scalar to broadcast to the constant's shape.
    """

    value: ir.Attribute
    splat: bool = False


class ConstantImporter:
    """Converts constants of one module; equal attributes share one entry of :attr:`arrays`."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._converted: dict[source_ir.Attribute, Constant] = {}
        self._resources: dict[str, bytes] | None = None

    def convert(
        self, value: source_ir.Attribute, array: ArrayType, module: source_ir.Operation
    ) -> Constant:
        """Convert ``value``, an array of type ``array``, into the current target context.

        ``module`` is the source module operation, whose text holds the data of ``dense_resource``
        attributes. Raises ``UnsupportedError`` for attributes that hold no dense data.
        """
        known = self._converted.get(value)
        if known is None:
            known = self._convert(value, array, module)
            self._converted[value] = known
        return known

    def convert_complex(
        self, op: source_ir.Operation, array: ArrayType, module: source_ir.Operation
    ) -> Constant:
        """Convert the value of ``op``, a constant of complex type.

        It is read from the op's text: the bindings raise an error for complex elements attributes.
        """
        match = _DENSE.search(str(op.get_asm(print_generic_op_form=True)))
        if match is None:
            return self.convert(op.attributes["value"], array, module)
        data = _complex_data(match.group(1), array)
        if array.nbytes < INLINE_CONSTANT_BYTES:
            return Constant(elements_from_numpy(data, array.element))
        if data.tobytes() == data.reshape(-1)[:1].tobytes() * array.size:
            return Constant(elements_from_numpy(data.reshape(-1)[0], array.element), splat=True)
        return self._resource(data, array)

    def _convert(
        self, value: source_ir.Attribute, array: ArrayType, module: source_ir.Operation
    ) -> Constant:
        if not isinstance(value, source_ir.DenseElementsAttr):
            data = self._read_resource(value, array, module)
            if array.nbytes < INLINE_CONSTANT_BYTES:
                return Constant(elements_from_numpy(data, array.element))
            return self._resource(data, array)
        if array.nbytes < INLINE_CONSTANT_BYTES:
            return Constant(_inline(value, array))
        if value.is_splat:
            element = source_ir.RankedTensorType(value.type).element_type
            with value.context, source_ir.Location.unknown():
                scalar_type = source_ir.RankedTensorType.get([], element)
                scalar = source_ir.DenseElementsAttr.get_splat(scalar_type, value.get_splat_value())
            return Constant(ir.Attribute.parse(str(scalar)), splat=True)
        return self._resource(_data(value, array), array)

    def _resource(self, data: Array, array: ArrayType) -> Constant:
        name = f"const{len(self.arrays)}"
        data.flags.writeable = False
        self.arrays[name] = data
        return Constant(ir.Attribute.parse(f"dense_resource<{name}> : tensor<{array}>"))

    def _read_resource(
        self, value: source_ir.Attribute, array: ArrayType, module: source_ir.Operation
    ) -> Array:
        match = _RESOURCE_NAME.match(str(value))
        if match is None:
            raise UnsupportedError(f"constant of kind {type(value).__name__} is not supported yet")
        if self._resources is None:
            self._resources = _printed_resources(str(module))
        raw = self._resources.get(match.group(1))
        if raw is None:
            raise UnsupportedError(f"the module does not hold the data of {match.group(0)}")
        return _from_raw(raw, array, match.group(0))


def _complex_data(text: str, array: ArrayType) -> Array:
    """The data of a complex ``dense<TEXT>``: hexadecimal bytes, or pairs of numbers."""
    if text.startswith('"0x'):
        values = np.frombuffer(bytes.fromhex(text[3:-1]), array.element.dtype)
    else:
        part = np.dtype(np.float32 if array.element.nbytes == 8 else np.float64)
        numbers = [_number(t, part) for pair in _PAIR.findall(text) for t in pair]
        values = np.array(numbers, part).view(array.element.dtype)
    if values.size == 1 != array.size:
        return np.full(array.shape, values[0])
    return values.reshape(array.shape).copy()


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    """A number as MLIR prints it: decimal, or its bits where that would not be exact (NaN, infinity)."""
    if text.strip().startswith("0x"):
        return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype)
    return dtype.type(text)


def _inline(value: source_ir.DenseElementsAttr, array: ArrayType) -> ir.Attribute:
    if array.size == 0:
        return ir.Attribute.parse(f"dense<> : tensor<{array}>")
    if array.element.name == "i1" and not value.is_splat:
        # Printed as hexadecimal when long, and releases of MLIR differ in how they pack it.
        return elements_from_numpy(_data(value, array), array.element)
    return ir.Attribute.parse(str(value))


def _data(value: source_ir.DenseElementsAttr, array: ArrayType) -> Array:
    element = array.element
    if element.bits <= 8 and element.dtype.kind not in "biu":
        return _data_through_text(value, array)
    if element.name == "bf16":
        return _data_through_bytecode(value)
    view = memoryview(cast("Buffer", value))  # the stubs omit the buffer protocol
    return np.frombuffer(view, array.element.dtype).reshape(array.shape)


def _data_through_text(value: source_ir.DenseElementsAttr, array: ArrayType) -> Array:
    """The data of a large constant of a narrow type: releases of MLIR differ in their bytecode for some."""
    digits = _HEXADECIMAL.search(str(value))
    assert digits is not None, "more than 100 elements are printed as hexadecimal bytes"
    return _from_raw(bytes.fromhex(digits.group(1)), array, str(value.type))


def _data_through_bytecode(value: source_ir.DenseElementsAttr) -> Array:
    """One copy of the data of a type that jaxlib's buffer protocol does not know (bf16)."""
    stream = BytesIO()
    with value.context, source_ir.Location.unknown():
        carrier = source_ir.Module.create()
        carrier.operation.attributes["gristmill.value"] = value
        carrier.operation.write_bytecode(stream, desired_version=_BYTECODE_VERSION)
    # A context of its own, so that its copy of the data is freed on return.
    with ir.Context():
        module = ir.Module.parse(stream.getvalue())
        return elements_to_numpy(module.operation.attributes["gristmill.value"])


def _printed_resources(text: str) -> dict[str, bytes]:
    """Data of the resources in a module's printed form (the bindings give no other access)."""
    section = text.partition("{-#")[2]
    entry = re.compile(r'("(?:[^"\\]|\\.)*"|[\w.$-]+):\s*"0x([0-9A-Fa-f]*)"')
    return {
        name: bytes.fromhex(digits)[_RESOURCE_ALIGNMENT_BYTES:]
        for name, digits in entry.findall(section)
    }


def _from_raw(raw: bytes, array: ArrayType, what: str) -> Array:
    element: ElementType = array.element
    if element.name == "i1" and len(raw) == (array.size + 7) // 8 != array.size:
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
        return bits[: array.size].astype(np.bool_).reshape(array.shape)
    if len(raw) != array.nbytes:
        raise UnsupportedError(
            f"{what} holds {len(raw)} bytes; tensor<{array}> needs {array.nbytes}"
        )
    return np.frombuffer(raw, element.dtype).reshape(array.shape)
