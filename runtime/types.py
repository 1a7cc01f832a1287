# SPDX-License-Identifier: Apache-2.0
"""Element types and array types: the one table that maps MLIR spellings to numpy.

Element types are named as MLIR spells them in ``tensor<...>`` types: ``i1``, ``i8`` … ``i64`` (signed
or signless integers), ``ui8`` … ``ui64`` (unsigned), ``bf16``, ``f16``, ``f32``, ``f64``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from gristmill.errors import InputError


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
        name: the MLIR spelling, for example ``ui8``.
        kind: ``pred``, ``int``, ``uint``, ``float`` or ``complex``.
        bits: width of the value in bits.
        nbytes: storage bytes of one element in a buffer (``i1`` is stored as one byte, 0 or 1).
        dtype: the numpy dtype of host arrays.
    """

    name: str
    kind: str
    bits: int
    nbytes: int
    dtype: np.dtype[Any]

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


def _table() -> dict[str, ElementType]:
    rows: list[tuple[str, str, int, Any]] = [
        ("i1", "pred", 1, np.bool_),
        ("i8", "int", 8, np.int8),
        ("i16", "int", 16, np.int16),
        ("i32", "int", 32, np.int32),
        ("i64", "int", 64, np.int64),
        ("ui8", "uint", 8, np.uint8),
        ("ui16", "uint", 16, np.uint16),
        ("ui32", "uint", 32, np.uint32),
        ("ui64", "uint", 64, np.uint64),
        ("bf16", "float", 16, ml_dtypes.bfloat16),
        ("f16", "float", 16, np.float16),
        ("f32", "float", 32, np.float32),
        ("f64", "float", 64, np.float64),
    ]
    return {
        name: ElementType(name, kind, bits, max(1, bits // 8), np.dtype(dtype))
        for name, kind, bits, dtype in rows
    }


#: Element types by MLIR spelling.
ELEMENT_TYPES: dict[str, ElementType] = _table()

_BY_DTYPE: dict[np.dtype[Any], ElementType] = {t.dtype: t for t in ELEMENT_TYPES.values()}


def element_type(name: str) -> ElementType:
    """The element type spelled ``name``; raises ``InputError`` for an unknown one."""
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        known = ", ".join(ELEMENT_TYPES)
        raise InputError(f"element type {name!r} is not supported; known types: {known}") from None


def element_type_of(dtype: np.dtype[Any]) -> ElementType:
    """The element type of a numpy dtype; raises ``InputError`` for one that has none."""
    try:
        return _BY_DTYPE[np.dtype(dtype)]
    except KeyError:
        raise InputError(f"numpy dtype {dtype} has no element type here") from None


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
        *dims, name = text.split("x")
        try:
            shape = tuple(int(d) for d in dims)
        except ValueError:
            raise InputError(
                f"array type {text!r} is malformed; write for example 4x8xf32"
            ) from None
        return ArrayType(shape, element_type(name))
