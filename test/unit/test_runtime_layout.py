# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib import xla_client

from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.layout import (
    Layout,
    Shape,
    byte_range,
    check_sizes,
    read_sizes,
    strided_view,
    write_sizes,
)
from gristmill.runtime.types import ArrayType, primitive_type

F32 = primitive_type("f32")


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "pred[0,3]",
        "f32[2,3]",
        "f32[2,3]{0,1}",
        "bf16[8,300]{1,0:T(8,128)(2,1)}",
        "s4[5,7]{1,0:E(4)}",
        "f32[<=8,3]",
        "f32[<=8,<=3]{0,1:S(5)}",
        "u2[3,9]{1,0:T(8,128)E(2)S(1)}",
        "token[]",
    ],
)
def test_text_round_trip(text: str) -> None:
    shape = Shape.parse(text)
    assert str(shape) == text
    assert Shape.parse(str(shape)) == shape


def test_defaults_are_row_major_and_static() -> None:
    assert Shape(F32, (2, 3)) == Shape.parse("f32[2,3]{1,0}")
    assert Shape.of(ArrayType.parse("2x3xf32")) == Shape(F32, (2, 3))
    assert Shape.parse("f32[2,3]{1,0}").layout.is_row_major
    assert not Shape.parse("f32[2,3]{0,1}").layout.is_row_major


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("pred[3]", 3),
        ("s1[9]", 9),
        ("u1[9]{0:E(1)}", 2),
        ("s2[9]{0:E(2)}", 3),
        ("s4[9]{0:E(4)}", 5),
        ("f4e2m1fn[3]{0:E(4)}", 2),
        ("f8e8m0fnu[3]", 3),
        ("bf16[3]", 6),
        ("c128[3,0]", 0),
        ("c128[3,2]", 96),
        ("token[]", 0),
        ("f32[]", 4),
        # Tiles are padded to whole ones.
        ("f32[3,5]{1,0:T(2,2)}", 4 * 6 * 4),
        ("f32[3,5]{0,1:T(2,2)}", 6 * 4 * 4),
        ("bf16[9,129]{1,0:T(8,128)(2,1)}", 16 * 256 * 2),
        ("f32[5]{0:T(2,4)}", 2 * 8 * 4),
        ("s4[3]{0:T(8)E(4)}", 4),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert Shape.parse(text).nbytes == nbytes


@pytest.mark.parametrize("dims", [(), (5,), (2, 3), (0, 2), (4, 1, 3)])
@pytest.mark.parametrize("name", ["pred", "s4", "bf16", "c128"])
def test_strides_are_numpys_and_xlas(dims: tuple[int, ...], name: str) -> None:
    kind = primitive_type(name)
    for order in itertools.permutations(range(len(dims))):
        shape = Shape(kind, dims, Layout(order))
        xla = xla_client.Shape.array_shape(kind.dtype, dims, order)
        assert xla.layout().minor_to_major() == shape.layout.minor_to_major
        if 0 not in dims:
            transposed = np.zeros([dims[d] for d in order[::-1]], kind.dtype)
            assert shape.byte_strides == transposed.transpose(np.argsort(order[::-1])).strides


@pytest.mark.parametrize("text", ["s4[4]{0:E(4)}", "f32[4]{0:T(2)}"])
def test_no_strides_where_there_are_none(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"is (packed|tiled): it has no byte strides"):
        _ = Shape.parse(text).byte_strides


def test_element_offset_of_the_tiling_example() -> None:
    # The example of XLA's description of tiled layouts: element (2, 3) of F32[3,5] in 2 × 2 tiles.
    assert Shape.parse("f32[3,5]{1,0:T(2,2)}").element_offset((2, 3)) == 17


@pytest.mark.parametrize(
    "text",
    ["u8[3,5]{1,0:T(2,2)}", "u8[6,7]{0,1:T(4,4)(2,1)}", "u8[5]{0:T(2,4)}", "u8[2,3,4]{1,2,0}"],
)
def test_element_offsets_are_distinct_places(text: str) -> None:
    shape = Shape.parse(text)
    offsets = [shape.element_offset(index) for index in np.ndindex(shape.dims)]
    assert len(set(offsets)) == shape.size
    assert min(offsets) >= 0
    assert max(offsets) < shape.nbytes
    for index in [(-1,) * shape.rank, shape.dims, ()]:
        with pytest.raises(InputError, match="is outside shape"):
            shape.element_offset(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32[2", "malformed"),
        ("f32[-1]", "malformed"),
        ("f32[2,,3]", "malformed"),
        ("f32[2]{0:L(4)}", "attributes other than"),
        ("f32[2]{0:T()}", "tile sizes must be at least 1"),
        ("f32[2]{0:T(0)}", "tile sizes must be at least 1"),
        ("f32[2,3]{0,0}", "permutation"),
        ("f32[2,3]{0}", "2 dimensions, but the layout has 1"),
        ("f32[2]{0:E(4)}", "f32 elements have element bits 0"),
        ("pred[2]{0:E(1)}", "pred elements have element bits 0"),
        ("s4[2]{0:E(2)}", "s4 elements have element bits 0 or 4"),
        ("tuple[2]", "pass the elements of a tuple one by one"),
        ("opaque[]", "opaque has no array shape"),
        ("token[2]", "token has no dimensions"),
        ("nope[2]", "'nope' is not known"),
        ("f32[4611686018427387904]", "overflows a 64-bit integer"),
        ("f32[4294967296,4294967296]", "overflows a 64-bit integer"),
        ("u8[<=2147483648]", "limited to int32"),
    ],
)
def test_wrong_shapes_are_refused(text: str, message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        Shape.parse(text)


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(InputError, match="must not be negative"):
        Shape(F32, (2, -1))
    with pytest.raises(InputError, match="`dynamic` 1"):
        Shape(F32, (2, 3), dynamic=(True,))


def test_packed() -> None:
    assert str(Shape.parse("s4[3]").packed()) == "s4[3]{0:E(4)}"
    assert Shape.parse("pred[3]").packed() == Shape.parse("pred[3]")
    assert Shape.parse("f32[3]").packed() == Shape.parse("f32[3]")


# Strides that callers choose.


def test_negative_strides() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = strided_view(data, F32, (3, 4), (-16, -4), 44)
    np.testing.assert_array_equal(view, data[::-1, ::-1])
    assert np.shares_memory(view, data)


def test_default_strides_need_no_saying_even_for_narrow_types() -> None:
    data = np.array([1, 2, 15, 8], np.uint8)
    view = strided_view(data, primitive_type("s4"), (2, 2))
    np.testing.assert_array_equal(view.astype(np.int32), [[1, 2], [-1, -8]])


@given(st.data())
def test_byte_range_is_what_numpy_touches(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 3))
    dims = data.draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    strides = data.draw(st.lists(st.integers(-50, 50), min_size=rank, max_size=rank))
    places = [
        sum(i * s for i, s in zip(index, strides, strict=True)) + b
        for index in np.ndindex(*dims)
        for b in range(4)
    ]
    expected = (min(places), max(places) + 1) if places else (0, 0)
    assert byte_range(dims, strides, 4) == expected


@pytest.mark.parametrize(
    ("dims", "strides", "offset"),
    [
        ((3, 4), None, 4),
        ((3, 4), (-16, 4), 28),
        ((4, 4), None, 0),
        ((3,), (4,), -4),
        ((2,), (48,), 0),
    ],
)
def test_views_outside_the_buffer_are_refused(
    dims: tuple[int, ...], strides: tuple[int, ...] | None, offset: int
) -> None:
    with pytest.raises(InputError, match="of a buffer of 48"):
        strided_view(bytes(48), F32, dims, strides, offset)


def test_strides_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="1 byte strides for 2 dimensions"):
        byte_range((2, 2), (4,), 4)
    with pytest.raises(InputError, match="must not be negative"):
        byte_range((-2,), (4,), 4)
    with pytest.raises(InputError, match="overflow"):
        byte_range((2**40,), (2**40,), 4)


def test_views_of_read_only_memory_are_read_only() -> None:
    assert not strided_view(bytes(8), F32, (2,)).flags.writeable
    assert strided_view(bytearray(8), F32, (2,)).flags.writeable
    assert strided_view(b"", F32, (0,)).shape == (0,)


# Dynamic-shape metadata.


@pytest.mark.parametrize(
    ("text", "offset", "total"),
    [
        ("f32[<=8,3]", 96, 104),
        ("pred[<=3]", 4, 8),
        ("bf16[<=3,1]", 8, 16),
        ("s4[<=3]{0:E(4)}", 4, 8),
        ("f32[8,3]", 96, 96),
    ],
)
def test_metadata_is_aligned(text: str, offset: int, total: int) -> None:
    shape = Shape.parse(text)
    assert (shape.metadata_offset, shape.buffer_bytes) == (offset, total)


def test_metadata_has_one_little_endian_int32_per_dimension() -> None:
    shape = Shape.parse("pred[<=3,2]")
    data = bytearray(b"\xff" * shape.buffer_bytes)
    write_sizes(data, shape, (1, 2))
    assert data == b"\xff" * 8 + struct.pack("<ii", 1, 2)
    assert read_sizes(bytes(data), shape) == (1, 2)


def test_metadata_of_an_unaligned_buffer() -> None:
    shape = Shape.parse("f32[<=3]")
    memory = memoryview(bytearray(shape.buffer_bytes + 1))[1:]
    write_sizes(memory, shape, (3,))
    assert read_sizes(memory, shape) == (3,)


def test_a_larger_buffer_will_do() -> None:
    shape = Shape.parse("f32[<=3]")
    data = bytearray(64)
    write_sizes(data, shape, (2,))
    assert read_sizes(data, shape) == (2,)


@pytest.mark.parametrize("sizes", [(9, 3), (-1, 3), (8, 2), (8, 4), (2**31 - 1, 3)])
def test_sizes_the_bounds_do_not_allow(sizes: tuple[int, ...]) -> None:
    shape = Shape.parse("f32[<=8,3]")
    with pytest.raises(InputError, match=r"incompatible with f32\[<=8,3\]"):
        check_sizes(sizes, shape)
    data = bytearray(shape.buffer_bytes)
    data[96:] = struct.pack("<ii", *sizes)
    with pytest.raises(InputError, match="incompatible"):
        read_sizes(data, shape)
    with pytest.raises(InputError, match="incompatible"):
        write_sizes(data, shape, sizes)


@pytest.mark.parametrize("sizes", [(0, 3), (8, 3)])
def test_sizes_at_the_bounds(sizes: tuple[int, ...]) -> None:
    check_sizes(sizes, Shape.parse("f32[<=8,3]"))


def test_wrong_metadata_requests() -> None:
    with pytest.raises(InputError, match="is static"):
        read_sizes(bytes(100), Shape.parse("f32[8,3]"))
    with pytest.raises(InputError, match=r"103 bytes is too small .* needs 104"):
        read_sizes(bytes(103), Shape.parse("f32[<=8,3]"))
    with pytest.raises(InputError, match="1 sizes for"):
        check_sizes((3,), Shape.parse("f32[<=8,3]"))
