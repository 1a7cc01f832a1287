# SPDX-License-Identifier: Apache-2.0
"""Between numpy arrays, in logical order, and the bytes of a buffer, in the order of its layout.

:func:`encode` and :func:`decode` transpose, tile (padding is zero), pack and change the byte order at once.
They make temporaries for packed and padded layouts only.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from gristmill.errors import InputError
from gristmill.runtime.layout import Shape
from gristmill.runtime.packing import NibbleOrder, pack, unpack
from gristmill.runtime.relayout import as_bits, copy_array, new_array

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ByteOrder = Literal["little", "big"]

_BYTE = np.dtype(np.uint8)


def encode(
    array: Array,
    shape: Shape,
    out: Bytes | None = None,
    *,
    nibble_order: NibbleOrder = "high",
    byte_order: ByteOrder = "little",
    threads: int | None = None,
) -> Bytes:
    """The payload of a buffer of ``shape`` that holds ``array``.

    Args:
        array: of the shape's bounds and element type; any strides, either byte order.
        shape: element type, sizes and layout.
        out: where to put the ``shape.nbytes`` bytes; default: a new, 64-byte aligned array.
        nibble_order: for packed layouts, see :mod:`gristmill.runtime.packing`.
        byte_order: of the numbers in the buffer.
        threads: how many to use at most; default: as many as executions use.

    Returns ``out``. The sizes of a dynamic shape are not written: see ``layout.write_sizes``. Raises
    ``InputError`` where the arguments do not fit.
    """
    _check_array(array, shape)
    if out is None:
        out = new_array((shape.nbytes,), _BYTE)
    _check_bytes(out, (shape.nbytes,), shape)
    storage, stored = _storage(out, shape, byte_order)
    view, stages = _in_storage_order(as_bits(array), shape)
    for padded, part in stages:
        copy_array(padded, part, threads=threads)
    copy_array(stored, view, threads=threads)
    if shape.is_packed:
        pack(storage, shape.layout.element_bits, nibble_order, out)
    return out


def decode(
    data: Bytes,
    shape: Shape,
    out: Array | None = None,
    *,
    nibble_order: NibbleOrder = "high",
    byte_order: ByteOrder = "little",
    threads: int | None = None,
) -> Array:
    """The array, at the shape's bounds, in a buffer's payload: the inverse of :func:`encode`.

    ``data`` may include the metadata of a dynamic shape. Returns ``out``, by default a new, C-contiguous and
    64-byte aligned array.
    """
    _check_bytes(data, (shape.nbytes, shape.buffer_bytes), shape)
    if out is None:
        out = new_array(shape.dims, shape.primitive.dtype)
    _check_array(out, shape)
    storage, stored = _storage(data[: shape.nbytes], shape, byte_order)
    if shape.is_packed:
        unpack(data[: shape.nbytes], storage.size, shape.layout.element_bits, nibble_order, storage)
    view, stages = _in_storage_order(as_bits(out), shape)
    copy_array(view, stored, threads=threads)
    for padded, part in reversed(stages):
        copy_array(part, padded, threads=threads)
    return out


def _storage(data: Bytes, shape: Shape, byte_order: ByteOrder) -> tuple[Bytes, Array]:
    """The unpacked bytes behind ``data``, and the same as an array of the storage dimensions."""
    if byte_order not in ("little", "big"):
        raise InputError(f"byte order {byte_order!r} is neither 'little' nor 'big'")
    if shape.is_packed:
        data = new_array((math.prod(shape.storage_dims),), _BYTE)
    elements = as_bits(data.view(shape.primitive.dtype))
    order = "<" if byte_order == "little" else ">"
    return data, elements.view(elements.dtype.newbyteorder(order)).reshape(shape.storage_dims)


def _in_storage_order(array: Array, shape: Shape) -> tuple[Array, list[tuple[Array, Array]]]:
    """``array`` seen in the storage dimensions.

    Where tiles are not full the view is of a padded temporary: its part that holds elements comes with the
    array these belong to, outermost first, to be copied one way or the other.
    """
    stages: list[tuple[Array, Array]] = []
    view = array.transpose(shape.layout.major_to_minor)
    for tile in shape.layout.tiles:
        view = view[(None,) * (len(tile) - view.ndim)]
        split = view.ndim - len(tile)
        counts = [-(-n // t) for n, t in zip(view.shape[split:], tile, strict=True)]
        sizes = (*view.shape[:split], *(c * t for c, t in zip(counts, tile, strict=True)))
        if sizes != view.shape:
            whole = np.zeros(sizes, view.dtype)
            stages.append((whole[tuple(map(slice, view.shape))], view))
            view = whole
        steps = view.strides[split:]
        view = np.lib.stride_tricks.as_strided(
            view,
            (*view.shape[:split], *counts, *tile),
            (
                *view.strides[:split],
                *(s * t for s, t in zip(steps, tile, strict=True)),
                *steps,
            ),
        )
    return view, stages


def _check_array(array: Array, shape: Shape) -> None:
    if array.dtype.newbyteorder("=") != shape.primitive.dtype:
        raise InputError(
            f"an array of {array.dtype} does not fit {shape}, whose elements are "
            f"{shape.primitive.dtype} on the host"
        )
    if array.shape != shape.dims:
        raise InputError(f"an array of shape {array.shape} does not fit {shape}")


def _check_bytes(data: Bytes, sizes: tuple[int, ...], shape: Shape) -> None:
    if data.dtype != _BYTE or data.ndim != 1 or not data.flags.c_contiguous:
        raise InputError("buffer bytes must be a one-dimensional, contiguous array of uint8")
    if data.size not in sizes:
        raise InputError(f"{shape} takes {sizes[0]} bytes, but {data.size} were given")
