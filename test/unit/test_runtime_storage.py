# SPDX-License-Identifier: Apache-2.0
"""Packing, and the conversion between arrays and buffers of any layout."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import InputError
from gristmill.runtime import packing
from gristmill.runtime.layout import Shape, strided_view
from gristmill.runtime.packing import NibbleOrder, pack, packed_bytes, unpack
from gristmill.runtime.storage import decode, encode
from gristmill.runtime.types import PRIMITIVE_TYPES, primitive_type

Array = np.ndarray[Any, Any]


def packed_by_hand(values: list[int], bits: int, order: str) -> bytes:
    """One bit at a time."""
    data = bytearray(packed_bytes(len(values), bits))
    for k, value in enumerate(values):
        byte, place = divmod(k * bits, 8)
        shift = 8 - bits - place if order == "high" else place
        data[byte] |= (value & ((1 << bits) - 1)) << shift
    return bytes(data)


def test_order_of_nibbles() -> None:
    values = np.array([1, 2, 3], np.uint8)
    assert pack(values, 4, "high").tobytes() == b"\x12\x30"  # XLA: the first is most significant
    assert pack(values, 4, "low").tobytes() == b"\x21\x03"
    assert pack(values, 2, "high").tobytes() == b"\x6c"
    assert pack(values, 2, "low").tobytes() == b"\x39"
    assert pack(values, 1, "high").tobytes() == b"\xa0"
    assert pack(values, 1, "low").tobytes() == b"\x05"


@given(
    st.lists(st.integers(0, 255), max_size=40),
    st.sampled_from(packing.WIDTHS),
    st.sampled_from(["high", "low"]),
    st.sampled_from([1, 3, 1000]),
)
def test_packing_is_what_it_is_by_hand(
    values: list[int], bits: int, order: NibbleOrder, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BLOCK", block)
        elements = np.array(values, np.uint8)
        packed = pack(elements, bits, order)
        assert packed.tobytes() == packed_by_hand(values, bits, order)
        back = unpack(packed, len(values), bits, order)
        np.testing.assert_array_equal(back, elements & ((1 << bits) - 1))
        out = np.full(len(values), 255, np.uint8)
        assert unpack(packed, len(values), bits, order, out) is out
        np.testing.assert_array_equal(out, back)


@pytest.mark.parametrize("name", ["s1", "u1", "s2", "u2", "s4", "u4", "f4e2m1fn"])
@pytest.mark.parametrize("order", ["high", "low"])
def test_every_value_of_every_narrow_type(name: str, order: NibbleOrder) -> None:
    kind = primitive_type(name)
    shape = Shape(kind, (1 << kind.bits,)).packed()
    codes = np.arange(1 << kind.bits, dtype=np.uint8)
    # Dirty high bits, as a signed value leaves them, change nothing.
    for fill in (0, 0xFF << kind.bits & 0xFF):
        values = (codes | fill).astype(np.uint8).view(kind.dtype)
        data = encode(values, shape, nibble_order=order)
        assert data.tobytes() == packed_by_hand(codes.tolist(), kind.bits, order)
    clean = codes.view(kind.dtype)
    back = decode(data, shape, nibble_order=order)
    assert back.dtype == kind.dtype
    np.testing.assert_array_equal(back.astype(np.float32), clean.astype(np.float32))


def test_signed_values_survive() -> None:
    values = np.array([-8, 7, -1, 0, 3], ml_dtypes.int4)
    shape = Shape.parse("s4[5]{0:E(4)}")
    assert encode(values, shape).tobytes() == b"\x87\xf0\x30"
    np.testing.assert_array_equal(decode(encode(values, shape), shape), values)


def test_wrong_packing_requests() -> None:
    bytes_ = np.zeros(4, np.uint8)
    for bits in (0, 3, 6, 8):
        with pytest.raises(InputError, match=f"elements of {bits} bits are not packed"):
            pack(bytes_, bits, "high")
    with pytest.raises(InputError, match="nibble order 'first'"):
        pack(bytes_, 4, "first")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="contiguous arrays of uint8"):
        pack(bytes_[::2], 4, "high")
    with pytest.raises(InputError, match="contiguous arrays of uint8"):
        pack(bytes_.view(np.int8), 4, "high")  # type: ignore[arg-type]
    for count in (9, 6, -1):
        with pytest.raises(InputError, match="but 4 were given"):
            unpack(bytes_, count, 4, "high")
    with pytest.raises(InputError, match="contiguous array of 2 uint8"):
        pack(bytes_, 4, "high", np.zeros(3, np.uint8))
    readonly = np.zeros(2, np.uint8)
    readonly.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        pack(bytes_, 4, "high", readonly)


LAYOUTS = [
    "{name}[]",
    "{name}[0,3]",
    "{name}[7]",
    "{name}[3,5]",
    "{name}[3,5]{{0,1}}",
    "{name}[2,3,4]{{1,2,0}}",
    "{name}[4,6]{{1,0:T(2,3)}}",
    "{name}[3,5]{{0,1:T(2,2)}}",
    "{name}[9,13]{{1,0:T(8,4)(2,1)}}",
    "{name}[2,3,5]{{0,2,1:T(4,4)}}",
    "{name}[5,7]{{1,0:T(3,4)(2,3)}}",
    "{name}[5]{{0:T(2,4)}}",
    "{name}[3,<=5]{{0,1}}",
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["u8", "bf16", "c64", "s4", "u1"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_element_is_where_the_layout_says(layout: str, name: str, packed: bool) -> None:
    shape = Shape.parse(layout.format(name=name))
    shape = shape.packed() if packed else shape
    kind = shape.primitive
    raw = np.random.default_rng(0).integers(0, 1 << min(kind.bits, 8), (shape.size, kind.nbytes))
    array = raw.astype(np.uint8).reshape(-1).view(kind.dtype).reshape(shape.dims)
    data = encode(array, shape)
    assert not data.size or data.ctypes.data % 64 == 0
    assert data.nbytes == shape.nbytes

    cells = 8 // kind.bits if shape.is_packed else 1
    stored = unpack(data, data.size * cells, kind.bits, "high") if shape.is_packed else data
    elements = stored.reshape(-1, kind.nbytes)
    used = np.zeros(len(elements), bool)
    for index in np.ndindex(shape.dims):
        place = shape.element_offset(index)
        assert elements[place].tobytes() == array[index].tobytes()
        used[place] = True
    assert not elements[~used].any(), "padding is zero"

    back = decode(data, shape)
    assert back.tobytes() == array.tobytes()
    # Into a strided array, with metadata behind the payload.
    if array.ndim:
        wide = np.zeros((*array.shape, 2), array.dtype)[..., 0]
        buffer = np.zeros(shape.buffer_bytes, np.uint8)
        buffer[: shape.nbytes] = data
        assert decode(buffer, shape, wide) is wide
        assert wide.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", [t.name for t in PRIMITIVE_TYPES.values() if t.is_array])
def test_byte_order_is_explicit(name: str) -> None:
    kind = primitive_type(name)
    shape = Shape(kind, (3, 2))
    raw = np.arange(6 * kind.nbytes, dtype=np.uint8) & ((1 << min(kind.bits, 8)) - 1)
    array = raw.view(kind.dtype).reshape(3, 2)
    little, big = encode(array, shape), encode(array, shape, byte_order="big")
    assert little.tobytes() == array.tobytes()
    parts = kind.nbytes // 2 if kind.kind == "complex" else kind.nbytes
    swapped = [little.tobytes()[k : k + parts][::-1] for k in range(0, little.size, parts)]
    assert big.tobytes() == b"".join(swapped)
    assert decode(big, shape, byte_order="big").tobytes() == array.tobytes()


def test_arrays_of_the_other_byte_order() -> None:
    shape = Shape.parse("f32[2,3]{0,1}")
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.testing.assert_array_equal(encode(array, shape).view("<f4"), [0, 3, 1, 4, 2, 5])
    out = np.empty((2, 3), ">f4")
    np.testing.assert_array_equal(decode(encode(array, shape), shape, out), array)


def test_negative_strides() -> None:
    memory = np.arange(6, dtype=np.float32)
    view = strided_view(memory, primitive_type("f32"), (2, 3), (-12, -4), 20)
    data = encode(view, Shape.parse("f32[2,3]{0,1}"))
    np.testing.assert_array_equal(data.view("f4"), [5, 2, 4, 1, 3, 0])


def test_large_arrays() -> None:
    array = np.arange(2048 * 1100, dtype=np.float32).reshape(2048, 1100)
    shape = Shape.parse("f32[2048,1100]{0,1}")
    data = encode(array, shape, threads=2)
    np.testing.assert_array_equal(data.view("f4").reshape(1100, 2048), array.T)
    np.testing.assert_array_equal(decode(data, shape, threads=2), array)


def test_what_does_not_fit_is_refused() -> None:
    shape = Shape.parse("f32[2,3]")
    good = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match="float64 does not fit"):
        encode(good.astype(np.float64), shape)
    with pytest.raises(InputError, match=r"shape \(3, 2\) does not fit"):
        encode(good.reshape(3, 2), shape)
    with pytest.raises(InputError, match="takes 24 bytes, but 25 were given"):
        encode(good, shape, np.zeros(25, np.uint8))
    with pytest.raises(InputError, match="takes 24 bytes, but 23 were given"):
        decode(np.zeros(23, np.uint8), shape)
    with pytest.raises(InputError, match="must be a one-dimensional"):
        decode(np.zeros(48, np.uint8)[::2], shape)
    with pytest.raises(InputError, match="byte order 'middle'"):
        encode(good, shape, byte_order="middle")  # type: ignore[arg-type]
    readonly = np.zeros(24, np.uint8)
    readonly.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        encode(good, shape, readonly)
    assert (decode(readonly, shape) == 0).all()
