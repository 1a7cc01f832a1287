# SPDX-License-Identifier: Apache-2.0
"""Elements narrower than a byte: one in each byte on the host, several in each byte on a device.

An unpacked element lies in the low bits of its byte; the others are ignored when packing and zero after
unpacking (there is no sign extension; ml_dtypes' narrow types read the low bits alone). The order of the
elements in a packed byte must always be said, as it differs between systems:

    high    the first element is in the most significant bits: XLA
    low     the first element is in the least significant bits: most file formats (GGUF, numpy packbits "little")

The last byte is filled up with zero bits.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gristmill.errors import InputError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
NibbleOrder = Literal["high", "low"]

WIDTHS = (1, 2, 4)

#: Packed bytes handled at a time: temporaries stay in the second-level cache.
_BLOCK = 32 << 10


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that ``count`` elements of ``bits`` bits take."""
    return -(-count * bits // 8)


def pack(elements: Bytes, bits: int, order: NibbleOrder, out: Bytes | None = None) -> Bytes:
    """Pack one-byte elements.

    Args:
        elements: one-dimensional, contiguous, one element a byte.
        bits: width of an element: 1, 2 or 4.
        order: which end of a byte is filled first.
        out: where to put the ``packed_bytes(len(elements), bits)`` bytes; default: a new array.

    Returns ``out``. Raises ``InputError`` for another width, order or size.
    """
    size = packed_bytes(elements.size, bits)
    out = _check(elements, out, size, bits, order)
    per = 8 // bits
    whole = elements.size // per
    for start in range(0, whole, _BLOCK):
        stop = min(start + _BLOCK, whole)
        _pack_block(elements[start * per : stop * per], out[start:stop], bits, order)
    if whole < size:
        rest = np.zeros(per, np.uint8)
        rest[: elements.size - whole * per] = elements[whole * per :]
        _pack_block(rest, out[whole:size], bits, order)
    return out


def unpack(
    packed: Bytes, count: int, bits: int, order: NibbleOrder, out: Bytes | None = None
) -> Bytes:
    """The inverse of :func:`pack`: ``count`` one-byte elements, their high bits zero."""
    if count < 0 or packed.size != packed_bytes(count, bits):
        raise InputError(
            f"{count} elements of {bits} bits are packed in {packed_bytes(max(count, 0), bits)} "
            f"bytes, but {packed.size} were given"
        )
    out = _check(packed, out, count, bits, order)
    per = 8 // bits
    whole = count // per
    for start in range(0, whole, _BLOCK):
        stop = min(start + _BLOCK, whole)
        _unpack_block(packed[start:stop], out[start * per : stop * per], bits, order)
    if whole * per < count:
        rest = np.empty(per, np.uint8)
        _unpack_block(packed[whole:], rest, bits, order)
        out[whole * per :] = rest[: count - whole * per]
    return out


def _check(data: Bytes, out: Bytes | None, size: int, bits: int, order: str) -> Bytes:
    if bits not in WIDTHS:
        raise InputError(f"elements of {bits} bits are not packed; widths are {WIDTHS}")
    if order not in ("high", "low"):
        raise InputError(f"nibble order {order!r} is neither 'high' nor 'low'")
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise InputError("packing works on one-dimensional, contiguous arrays of uint8")
    if out is None:
        return np.empty(size, np.uint8)
    if out.dtype != np.uint8 or out.shape != (size,) or not out.flags.c_contiguous:
        raise InputError(
            f"`out` must be a contiguous array of {size} uint8, not {out.dtype}{out.shape}"
        )
    if not out.flags.writeable:
        raise InputError("`out` is read-only")
    return out


def _pack_block(elements: Bytes, out: Bytes, bits: int, order: NibbleOrder) -> None:
    if bits == 1:
        bit_order = "big" if order == "high" else "little"
        out[...] = np.packbits(elements & np.uint8(1), bitorder=bit_order)
        return
    word, places = _word(bits, order)
    # The elements of one byte as one integer, the first in its lowest byte.
    words = elements.view(word) & _low_bits(word, bits)
    # Afterwards that byte has each element in its place, and those above it rubbish.
    packed = _gather(words, [place - 8 * k for k, place in enumerate(places)])
    np.copyto(out, packed, casting="unsafe")


def _unpack_block(packed: Bytes, out: Bytes, bits: int, order: NibbleOrder) -> None:
    if bits == 1:
        out[...] = np.unpackbits(packed, bitorder="big" if order == "high" else "little")
        return
    word, places = _word(bits, order)
    words = packed.astype(word)
    # Each element comes to its byte with others above it in that byte or the one below.
    spread = _gather(words, [8 * k - place for k, place in enumerate(places)])
    np.bitwise_and(spread, _low_bits(word, bits), out=out.view(word))


def _gather(words: np.ndarray[Any, Any], shifts: list[int]) -> np.ndarray[Any, Any]:
    """The union of ``words`` shifted left by each number of bits; right where it is negative."""
    union, term = np.empty_like(words), np.empty_like(words)
    for number, shift in enumerate(shifts):
        move = np.left_shift if shift >= 0 else np.right_shift
        move(words, words.dtype.type(abs(shift)), out=term if number else union)
        if number:
            np.bitwise_or(union, term, out=union)
    return union


def _low_bits(word: np.dtype[Any], bits: int) -> Any:
    """The low ``bits`` of every byte of a word."""
    return word.type(sum(((1 << bits) - 1) << (8 * k) for k in range(word.itemsize)))


def _word(bits: int, order: NibbleOrder) -> tuple[np.dtype[Any], list[int]]:
    """An integer with a byte for each element of a packed byte, and the elements' places in that byte."""
    places = list(range(0, 8, bits))
    return np.dtype(f"<u{8 // bits}"), places[::-1] if order == "high" else places
