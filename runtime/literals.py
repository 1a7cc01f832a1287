# SPDX-License-Identifier: Apache-2.0
"""The bytes a device buffer holds for a host array."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime.layout import Shape, check_sizes, write_sizes
from gristmill.runtime.storage import encode

Array = np.ndarray[Any, Any]


def device_bytes(literal: Array, shape: Shape) -> Array:
    """``literal`` in the layout of ``shape``, with the metadata of a dynamic shape behind it.

    An array that is the buffer's bytes already is returned as it is, without a copy. Raises
    ``InputError`` for other element types or sizes.
    """
    if shape.is_dynamic:
        return _dynamic_bytes(literal, shape)
    if _is_in_place(literal, shape):
        return literal
    return encode(literal, shape)


def _is_in_place(literal: Array, shape: Shape) -> bool:
    return (
        literal.shape == shape.dims
        and literal.dtype == shape.primitive.dtype
        and literal.dtype.isnative
        and sys.byteorder == "little"
        and literal.flags.c_contiguous
        and shape.layout.is_row_major
        and not shape.is_packed
        and not shape.layout.tiles
    )


def _dynamic_bytes(literal: Array, shape: Shape) -> Array:
    """The payload at the bounds' strides, padded with zeros, and the actual sizes."""
    check_sizes(literal.shape, shape)
    if literal.dtype.newbyteorder("=") != shape.primitive.dtype:
        raise InputError(f"an array of {literal.dtype} does not fit {shape}")
    padded = np.zeros(shape.dims, literal.dtype)
    padded[tuple(slice(size) for size in literal.shape)] = literal
    data = np.zeros(shape.buffer_bytes, np.uint8)
    encode(padded, shape, data[: shape.nbytes])
    write_sizes(data, shape, literal.shape)
    return data
