# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from jaxlib import xla_client

from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.types import (
    ELEMENT_TYPES,
    PRIMITIVE_TYPES,
    ArrayType,
    PrimitiveType,
    element_type,
    element_type_of,
    primitive_type,
    primitive_type_of,
)

ARRAYS = [t for t in PRIMITIVE_TYPES.values() if t.is_array]

#: What XLA's Python client calls the types it knows; it lacks the one and two bit integers.
XLA = {
    name.removesuffix("_TYPE").lower(): kind
    for name, kind in xla_client.PrimitiveType.__members__.items()
    if name != "PRIMITIVE_TYPE_INVALID"
}


def test_every_xla_type_has_a_row() -> None:
    assert XLA.keys() | {"s1", "u1", "s2", "u2"} <= PRIMITIVE_TYPES.keys()


@pytest.mark.parametrize("kind", ARRAYS, ids=str)
def test_host_type_is_xlas(kind: PrimitiveType) -> None:
    assert kind.dtype.itemsize == kind.nbytes
    if kind.name in XLA:
        assert kind.dtype == xla_client.Shape.array_shape(XLA[kind.name], ()).numpy_dtype()


@pytest.mark.parametrize("kind", ARRAYS, ids=str)
def test_width_is_the_host_types(kind: PrimitiveType) -> None:
    dtype = kind.dtype
    match kind.kind:
        case "pred":
            bits = 1
        case "int" | "uint":
            bits = ml_dtypes.iinfo(dtype).bits
        case "float":
            bits = ml_dtypes.finfo(dtype).bits
        case _:
            bits = 8 * dtype.itemsize
    assert (kind.bits, kind.nbytes) == (bits, max(1, bits // 8))
    assert kind.is_packable == (bits in (1, 2, 4) and kind.kind != "pred")


@pytest.mark.parametrize("kind", ARRAYS, ids=str)
def test_lookups_are_inverse(kind: PrimitiveType) -> None:
    assert primitive_type(kind.name) is kind
    assert primitive_type_of(kind.dtype) is kind
    if kind.mlir:
        assert primitive_type(kind.mlir) is kind
    assert str(kind) == kind.name


def test_byte_order_does_not_matter_to_the_lookup() -> None:
    assert primitive_type_of(">f4").name == "f32"
    assert primitive_type_of("<c16").name == "c128"


@pytest.mark.parametrize("name", ["token", "tuple", "opaque"])
def test_types_without_numbers(name: str) -> None:
    kind = primitive_type(name)
    assert (kind.bits, kind.nbytes, kind.is_array, kind.is_packable) == (0, 0, False, False)
    with pytest.raises(UnsupportedError, match=f"type {name} has no numpy dtype: it holds no num"):
        _ = kind.dtype


def test_a_host_type_that_ml_dtypes_lacks() -> None:
    kind = PrimitiveType("s3", "", "int", 3, 1)
    with pytest.raises(UnsupportedError, match=r"s3 has no numpy dtype: .*upgrade ml_dtypes"):
        _ = kind.dtype


def test_unknown_types() -> None:
    with pytest.raises(InputError, match=r"'f7' is not known; known types: pred, s1"):
        primitive_type("f7")
    with pytest.raises(InputError, match="'' is not known"):
        primitive_type("")
    with pytest.raises(InputError, match=r"dtype datetime64.* has no primitive type"):
        primitive_type_of(np.dtype("M8[s]"))


def test_compilable_types_are_a_part_of_the_table() -> None:
    for name, element in ELEMENT_TYPES.items():
        kind = element.primitive
        assert kind.compilable
        assert (kind.mlir, kind.bits, kind.nbytes) == (name, element.bits, element.nbytes)
        assert element_type_of(kind.dtype) is element


@pytest.mark.parametrize("kind", PRIMITIVE_TYPES.values(), ids=str)
def test_types_that_cannot_be_compiled_are_no_element_types(kind: PrimitiveType) -> None:
    if kind.compilable:
        assert element_type(kind.mlir).primitive is kind
        return
    for name in (kind.mlir, kind.name):
        with pytest.raises(InputError, match="is not supported"):
            element_type(name)


def test_array_types() -> None:
    kind = ArrayType.parse("4x8xf32")
    assert (kind.shape, kind.size, kind.nbytes, kind.rank) == ((4, 8), 32, 128, 2)
    assert str(kind) == "4x8xf32"
    assert ArrayType.parse("i1").nbytes == 1
    for text in ("4xyxf32", "4x", ""):
        with pytest.raises(InputError):
            ArrayType.parse(text)
