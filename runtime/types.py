# SPDX-License-Identifier: Apache-2.0
"""Element types and array types: the one table of XLA's primitive types, their widths and numpy types.

:data:`PRIMITIVE_TYPES` has every type a buffer can hold, under XLA's spelling (``pred``, ``s4``,
``f8e4m3fn``). :data:`ELEMENT_TYPES` is the part of it that can be compiled, under MLIR's spelling in
``tensor<...>`` types: ``i1``, ``i2`` … ``i64`` (signed or signless integers), ``ui2`` … ``ui64``
(unsigned), ``f4E2M1FN`` … ``f64``, ``complex<f32>``, ``complex<f64>``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gristmill.errors import InputError, UnsupportedError


@dataclass(frozen=True)
class PrimitiveType:
    """One of XLA's primitive types.

    Attributes:
        name: XLA's spelling, for example ``s4``.
        mlir: the spelling inside ``tensor<...>``, for example ``i4``; empty where there is none.
        kind: ``pred``, ``int``, ``uint``, ``float``, ``complex``, ``token``, ``tuple`` or ``opaque``.
        bits: width of the value in bits; 0 for tokens, tuples and opaque values.
        nbytes: bytes of one *unpacked* element: ``pred`` and the sub-byte types take one, the value
            in the low bits; 0 for tokens, tuples and opaque values.
        compilable: whether programs over it can be compiled; buffers hold all of them.
        host: numpy's type, or the name of ml_dtypes'; None where there are no numbers.
    """

    name: str
    mlir: str
    kind: str
    bits: int
    nbytes: int
    compilable: bool = False
    host: type | str | None = None

    @property
    def is_array(self) -> bool:
        """Whether arrays of it exist: false for tokens, tuples and opaque values."""
        return self.nbytes > 0

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type (not ``pred``)."""
        return self.kind in ("int", "uint")

    @property
    def is_packable(self) -> bool:
        """Whether several elements may share a byte: 1, 2 and 4 bit types; ``pred`` never does."""
        return self.bits in (1, 2, 4) and self.kind != "pred"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of unpacked host arrays; raises ``UnsupportedError`` where there is none."""
        found = _host_dtype(self.host)
        if found is None:
            why = (
                "the installed ml_dtypes lacks it; upgrade ml_dtypes"
                if self.is_array
                else "it holds no numbers"
            )
            raise UnsupportedError(f"primitive type {self.name} has no numpy dtype: {why}")
        return found

    def __str__(self) -> str:
        return self.name


@lru_cache(maxsize=64)
def _host_dtype(host: type | str | None) -> np.dtype[Any] | None:
    """The dtype of a host type; None for a name that this release of ml_dtypes does not have."""
    if isinstance(host, str):
        import ml_dtypes  # half a second in some releases, and most programs do without it

        host = getattr(ml_dtypes, host, None)
    return np.dtype(host) if isinstance(host, type) else None


#: XLA name, MLIR name, kind, bits, host type (ml_dtypes types by name), whether it can be compiled.
_ROWS: list[tuple[str, str, str, int, Any, bool]] = [
    ("pred", "i1", "pred", 1, np.bool_, True),
    ("s1", "", "int", 1, "int1", False),
    ("s2", "i2", "int", 2, "int2", True),
    ("s4", "i4", "int", 4, "int4", True),
    ("s8", "i8", "int", 8, np.int8, True),
    ("s16", "i16", "int", 16, np.int16, True),
    ("s32", "i32", "int", 32, np.int32, True),
    ("s64", "i64", "int", 64, np.int64, True),
    ("u1", "ui1", "uint", 1, "uint1", False),
    ("u2", "ui2", "uint", 2, "uint2", True),
    ("u4", "ui4", "uint", 4, "uint4", True),
    ("u8", "ui8", "uint", 8, np.uint8, True),
    ("u16", "ui16", "uint", 16, np.uint16, True),
    ("u32", "ui32", "uint", 32, np.uint32, True),
    ("u64", "ui64", "uint", 64, np.uint64, True),
    ("f4e2m1fn", "f4E2M1FN", "float", 4, "float4_e2m1fn", True),
    ("f6e2m3fn", "f6E2M3FN", "float", 6, "float6_e2m3fn", True),
    ("f6e3m2fn", "f6E3M2FN", "float", 6, "float6_e3m2fn", True),
    ("f8e3m4", "f8E3M4", "float", 8, "float8_e3m4", True),
    ("f8e4m3", "f8E4M3", "float", 8, "float8_e4m3", True),
    ("f8e4m3fn", "f8E4M3FN", "float", 8, "float8_e4m3fn", True),
    ("f8e4m3b11fnuz", "f8E4M3B11FNUZ", "float", 8, "float8_e4m3b11fnuz", True),
    ("f8e4m3fnuz", "f8E4M3FNUZ", "float", 8, "float8_e4m3fnuz", True),
    ("f8e5m2", "f8E5M2", "float", 8, "float8_e5m2", True),
    ("f8e5m2fnuz", "f8E5M2FNUZ", "float", 8, "float8_e5m2fnuz", True),
    ("f8e8m0fnu", "f8E8M0FNU", "float", 8, "float8_e8m0fnu", True),
    ("bf16", "bf16", "float", 16, "bfloat16", True),
    ("f16", "f16", "float", 16, np.float16, True),
    ("f32", "f32", "float", 32, np.float32, True),
    ("f64", "f64", "float", 64, np.float64, True),
    ("c64", "complex<f32>", "complex", 64, np.complex64, True),
    ("c128", "complex<f64>", "complex", 128, np.complex128, True),
    ("token", "!stablehlo.token", "token", 0, None, False),
    ("tuple", "", "tuple", 0, None, False),
    ("opaque", "", "opaque", 0, None, False),
]


def _primitive(
    name: str, mlir: str, kind: str, bits: int, host: Any, compilable: bool
) -> PrimitiveType:
    return PrimitiveType(name, mlir, kind, bits, -(-bits // 8), compilable, host)


#: Every primitive type by XLA's spelling.
PRIMITIVE_TYPES: dict[str, PrimitiveType] = {row[0]: _primitive(*row) for row in _ROWS}

_PRIMITIVE_BY_MLIR = {t.mlir: t for t in PRIMITIVE_TYPES.values() if t.mlir}
_NUMPYS = {np.dtype(t.host): t for t in PRIMITIVE_TYPES.values() if isinstance(t.host, type)}


@lru_cache(maxsize=1)
def _ml_dtypes() -> dict[np.dtype[Any], PrimitiveType]:
    named = [t for t in PRIMITIVE_TYPES.values() if isinstance(t.host, str)]
    found = {_host_dtype(t.host): t for t in named}
    return {dtype: t for dtype, t in found.items() if dtype is not None}


def _of_dtype(dtype: np.dtype[Any]) -> PrimitiveType | None:
    return _NUMPYS.get(dtype) or _ml_dtypes().get(dtype)


def primitive_type(name: str) -> PrimitiveType:
    """The primitive type that XLA or MLIR spells ``name``; ``InputError`` for an unknown one."""
    found = PRIMITIVE_TYPES.get(name) or _PRIMITIVE_BY_MLIR.get(name)
    if found is None:
        known = ", ".join(PRIMITIVE_TYPES)
        raise InputError(f"primitive type {name!r} is not known; known types: {known}")
    return found


def primitive_type_of(dtype: Any) -> PrimitiveType:
    """The primitive type of a numpy dtype of either byte order; ``InputError`` if it has none."""
    native = np.dtype(dtype).newbyteorder("=")
    found = _of_dtype(native)
    if found is None:
        raise InputError(f"numpy dtype {native} has no primitive type here")
    return found


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
        name: the MLIR spelling, for example ``ui8``.
        kind: ``pred``, ``int``, ``uint``, ``float`` or ``complex``.
        bits: width of the value in bits.
        nbytes: storage bytes of one element in a buffer (``i1`` is stored as one byte, 0 or 1).
    """

    name: str
    kind: str
    bits: int
    nbytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of host arrays; ``UnsupportedError`` where this release of ml_dtypes has none."""
        return self.primitive.dtype

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type (not ``i1``)."""
        return self.kind in ("int", "uint")

    @property
    def is_unsigned(self) -> bool:
        """Whether arithmetic treats values as unsigned (``i1`` included)."""
        return self.kind in ("uint", "pred")

    @property
    def primitive(self) -> PrimitiveType:
        """Its row in the table of primitive types."""
        return _PRIMITIVE_BY_MLIR[self.name]


#: The types programs can be compiled for, by MLIR spelling.
ELEMENT_TYPES: dict[str, ElementType] = {
    t.mlir: ElementType(t.mlir, t.kind, t.bits, t.nbytes)
    for t in PRIMITIVE_TYPES.values()
    if t.compilable
}


def element_type(name: str) -> ElementType:
    """The element type spelled ``name``; raises ``InputError`` for an unknown one."""
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        known = ", ".join(ELEMENT_TYPES)
        raise InputError(f"element type {name!r} is not supported; known types: {known}") from None


def element_type_of(dtype: np.dtype[Any]) -> ElementType:
    """The element type of a numpy dtype; raises ``InputError`` for one that has none."""
    found = _of_dtype(np.dtype(dtype))
    if found is None or not found.compilable:
        raise InputError(f"numpy dtype {dtype} has no element type here")
    return ELEMENT_TYPES[found.mlir]


_ARRAY = re.compile(r"((?:\d+x)*)([^\dx-]\S*)")


@dataclass(frozen=True)
class ArrayType:
    """A dense, row-major, statically shaped array: ``shape`` in elements and an element type."""

    shape: tuple[int, ...]
    element: ElementType

    @property
    def size(self) -> int:
        """Number of elements (1 for rank 0)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Storage bytes."""
        return self.size * self.element.nbytes

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.element.name])

    @staticmethod
    def parse(text: str) -> ArrayType:
        """The inverse of ``str``: ``"4x8xf32"`` or ``"f32"`` (rank 0)."""
        match = _ARRAY.fullmatch(text)
        if match is None:
            raise InputError(f"array type {text!r} is malformed; write for example 4x8xf32")
        dims, name = match.groups()
        return ArrayType(tuple(int(d) for d in dims.split("x")[:-1]), element_type(name))
