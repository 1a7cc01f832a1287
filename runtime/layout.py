# SPDX-License-Identifier: Apache-2.0
"""Shapes and their layouts in memory: strides, tiles, packing, byte sizes, dynamic-shape metadata.

A *dense* array is stored in the order its layout gives, most-minor dimension last. Text follows XLA:

    f32[2,3]                     row-major
    f32[2,3]{0,1}                column-major: dimension 0 is the most minor
    s4[5]{0:E(4)}                two elements a byte
    bf16[8,300]{1,0:T(8,128)}    tiles of 8 × 128 elements, padded to whole tiles
    f32[<=8,3]                   dimension 0 is dynamic, at most 8

**Dynamic shapes.** The payload is stored at the bounds' strides (not compacted). Behind it, at the next
multiple of four bytes, comes one little-endian int32 for every dimension, static ones included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.types import ArrayType, PrimitiveType, primitive_type

#: Byte sizes and offsets must fit a signed 64-bit integer.
MAX_BYTES = 2**63 - 1

_METADATA = np.dtype("<i4")
_SHAPE_TEXT = re.compile(r"(\w+)\[([^\]]*)\](?:\{(.*)\})?")
_LAYOUT_TEXT = re.compile(
    r"([\d,]*)(?::(?:T(?P<tiles>(?:\([\d,]*\))+))?(?:E\((?P<bits>\d+)\))?(?:S\((?P<space>\d+)\))?)?"
)


@dataclass(frozen=True)
class Layout:
    """How the elements of an array are ordered in memory.

    Attributes:
        minor_to_major: the dimensions from the fastest varying to the slowest.
        tiles: tile sizes, major to minor, each applied to what the one before produced.
        element_bits: stored width of a packed sub-byte element; 0: whole bytes.
        memory_space: a number whose meaning belongs to the device; 0 is its default memory.
    """

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    element_bits: int = 0
    memory_space: int = 0

    def __post_init__(self) -> None:
        if sorted(self.minor_to_major) != list(range(len(self.minor_to_major))):
            raise InputError(
                f"layout {self}: minor_to_major must be a permutation of "
                f"0..{len(self.minor_to_major) - 1}"
            )
        if any(not tile or min(tile) < 1 for tile in self.tiles):
            raise InputError(f"layout {self}: tile sizes must be at least 1")

    @staticmethod
    def row_major(rank: int) -> Layout:
        """The default layout: the last dimension varies fastest."""
        return Layout(tuple(reversed(range(rank))))

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """The dimensions from the slowest varying to the fastest."""
        return self.minor_to_major[::-1]

    @property
    def is_row_major(self) -> bool:
        """Whether elements are in C order, untiled (they may be packed)."""
        return not self.tiles and self.minor_to_major == tuple(reversed(range(self.rank)))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.minor_to_major)

    def __str__(self) -> str:
        tiles = "".join(f"({','.join(map(str, tile))})" for tile in self.tiles)
        extra = (
            (f"T{tiles}" if tiles else "")
            + (f"E({self.element_bits})" if self.element_bits else "")
            + (f"S({self.memory_space})" if self.memory_space else "")
        )
        return f"{{{','.join(map(str, self.minor_to_major))}{':' + extra if extra else ''}}}"

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of ``str``; ``UnsupportedError`` for attributes that have no meaning here."""
        match = _LAYOUT_TEXT.fullmatch(text.strip().removeprefix("{").removesuffix("}"))
        if match is None:
            raise UnsupportedError(
                f"layout {text!r} is malformed or has attributes other than tiles T(…), "
                "element bits E(…) and a memory space S(…)"
            )
        tiles = re.findall(r"\(([\d,]*)\)", match["tiles"] or "")
        return Layout(
            _numbers(match[1]),
            tuple(_numbers(tile) for tile in tiles),
            int(match["bits"] or 0),
            int(match["space"] or 0),
        )


@dataclass(frozen=True)
class Shape:
    """An array type with its layout in memory; checked when made.

    Attributes:
        primitive: the element type; tuples and opaque values are refused, a token is one empty value.
        dims: sizes; upper bounds for dynamic dimensions.
        layout: row-major where not given.
        dynamic: which dimensions are dynamic; none where not given.
    """

    primitive: PrimitiveType
    dims: tuple[int, ...]
    layout: Layout = field(default=Layout(()))
    dynamic: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.dims)
        if rank and not self.layout.rank:
            base = Layout.row_major(rank)
            layout = replace(self.layout, minor_to_major=base.minor_to_major)
            object.__setattr__(self, "layout", layout)
        if not self.dynamic:
            object.__setattr__(self, "dynamic", (False,) * rank)
        self._check()

    def _check(self) -> None:
        kind, rank = self.primitive, len(self.dims)
        if kind.kind in ("tuple", "opaque"):
            raise UnsupportedError(
                f"a {kind} has no array shape: pass the elements of a tuple one by one"
            )
        if kind.kind == "token" and rank:
            raise InputError(f"a token has no dimensions, but {self.dims} were given")
        if any(size < 0 for size in self.dims):
            raise InputError(f"shape {self}: sizes must not be negative")
        if self.layout.rank != rank or len(self.dynamic) != rank:
            raise InputError(
                f"shape {self}: {rank} dimensions, but the layout has {self.layout.rank} and "
                f"`dynamic` {len(self.dynamic)}"
            )
        bits = self.layout.element_bits
        if bits and not (kind.is_packable and bits == kind.bits):
            allowed = f"0 or {kind.bits}" if kind.is_packable else "0"
            raise InputError(f"shape {self}: {kind} elements have element bits {allowed}")
        if self.is_dynamic and max(self.dims) > np.iinfo(_METADATA).max:
            raise InputError(f"shape {self}: dynamic shapes are limited to int32 sizes")
        if self.buffer_bytes > MAX_BYTES:
            raise InputError(f"shape {self}: its size in bytes overflows a 64-bit integer")

    @staticmethod
    def of(kind: ArrayType) -> Shape:
        """The row-major shape of a compiled program's array type."""
        return Shape(kind.element.primitive, kind.shape)

    @staticmethod
    def parse(text: str) -> Shape:
        """Read XLA's notation, for example ``f32[2,<=3]{1,0:T(8,128)}`` (see the module's text)."""
        match = _SHAPE_TEXT.fullmatch(text.strip())
        parts = match[2].split(",") if match and match[2] else []
        if match is None or not all(re.fullmatch(r"(<=)?\d+", part.strip()) for part in parts):
            raise InputError(f"shape {text!r} is malformed; write for example f32[2,3]{{1,0}}")
        sizes = [part.strip() for part in parts]
        layout = Layout(()) if match[3] is None else Layout.parse(match[3])
        return Shape(
            primitive_type(match[1]),
            tuple(int(size.removeprefix("<=")) for size in sizes),
            layout,
            tuple(size.startswith("<=") for size in sizes),
        )

    def packed(self) -> Shape:
        """The same shape with elements packed into bytes where its type is narrower than one."""
        bits = self.primitive.bits if self.primitive.is_packable else 0
        return replace(self, layout=replace(self.layout, element_bits=bits))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def size(self) -> int:
        """Number of elements at the bounds."""
        return math.prod(self.dims)

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is dynamic, and so metadata is stored."""
        return any(self.dynamic)

    @property
    def is_packed(self) -> bool:
        """Whether elements share bytes."""
        return self.layout.element_bits > 0

    @property
    def storage_dims(self) -> tuple[int, ...]:
        """Sizes in memory, major to minor, after tiling; tiles are padded to their full size."""
        dims = [self.dims[d] for d in self.layout.major_to_minor]
        for tile in self.layout.tiles:
            dims = [1] * (len(tile) - len(dims)) + dims
            split = len(dims) - len(tile)
            counts = [-(-size // t) for size, t in zip(dims[split:], tile, strict=True)]
            dims = [*dims[:split], *counts, *tile]
        return tuple(dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the payload: elements and tile padding, without dynamic-shape metadata."""
        elements = math.prod(self.storage_dims)
        if self.is_packed:
            return -(-elements * self.layout.element_bits // 8)
        return elements * self.primitive.nbytes

    @property
    def metadata_offset(self) -> int:
        """Where the sizes of a dynamic shape are stored: the payload's end, rounded up to four."""
        return -(-self.nbytes // 4) * 4

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer of this shape, metadata included."""
        if not self.is_dynamic:
            return self.nbytes
        return self.metadata_offset + _METADATA.itemsize * self.rank

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, by dimension; ``UnsupportedError`` if tiled or packed."""
        if self.is_packed or self.layout.tiles:
            raise UnsupportedError(
                f"shape {self} is {_why_no_strides(self)}: it has no byte strides"
            )
        strides = [0] * self.rank
        step = self.primitive.nbytes
        for dim in self.layout.minor_to_major:
            strides[dim] = step
            step *= max(self.dims[dim], 1)
        return tuple(strides)

    def element_offset(self, index: Sequence[int]) -> int:
        """How many stored elements (padding included) come before the one at ``index``."""
        if len(index) != self.rank or any(
            not 0 <= i < n for i, n in zip(index, self.dims, strict=True)
        ):
            raise InputError(f"index {tuple(index)} is outside shape {self}")
        place = [index[d] for d in self.layout.major_to_minor]
        for tile in self.layout.tiles:
            place = [0] * (len(tile) - len(place)) + place
            split = len(place) - len(tile)
            pairs = [divmod(i, t) for i, t in zip(place[split:], tile, strict=True)]
            place = [*place[:split], *(q for q, _ in pairs), *(r for _, r in pairs)]
        offset = 0
        for i, n in zip(place, self.storage_dims, strict=True):
            offset = offset * n + i
        return offset

    def __str__(self) -> str:
        dynamic = self.dynamic or (False,) * self.rank
        sizes = (f"<={n}" if d else str(n) for n, d in zip(self.dims, dynamic, strict=False))
        plain = self.layout == Layout.row_major(self.rank)
        return f"{self.primitive}[{','.join(sizes)}]{'' if plain else self.layout}"


def _why_no_strides(shape: Shape) -> str:
    return "packed" if shape.is_packed else "tiled"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


# Strides that callers choose.


def byte_range(dims: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The bytes ``[low, high)`` that a strided array touches, relative to its first element.

    Negative strides make ``low`` negative. An array without elements touches nothing: ``(0, 0)``.
    """
    if len(dims) != len(byte_strides):
        raise InputError(f"{len(byte_strides)} byte strides for {len(dims)} dimensions")
    if any(size < 0 for size in dims):
        raise InputError(f"sizes {tuple(dims)} must not be negative")
    if 0 in dims:
        return 0, 0
    reach = [(size - 1) * stride for size, stride in zip(dims, byte_strides, strict=True)]
    low = sum(step for step in reach if step < 0)
    high = sum(step for step in reach if step > 0) + itemsize
    if low < -MAX_BYTES or high > MAX_BYTES:
        raise InputError(f"byte strides {tuple(byte_strides)} overflow a 64-bit integer")
    return low, high


def strided_view(
    data: Any,
    primitive: PrimitiveType,
    dims: Sequence[int],
    byte_strides: Sequence[int] | None = None,
    offset: int = 0,
) -> np.ndarray[Any, Any]:
    """A numpy view of caller memory, without a copy.

    Args:
        data: anything with a contiguous buffer.
        primitive: the element type; elements are unpacked.
        dims: sizes.
        byte_strides: by dimension, may be negative or zero; row-major where not given.
        offset: bytes from the start of ``data`` to the first element.

    Raises ``InputError`` unless every element lies inside ``data``.
    """
    memory = np.frombuffer(data, np.uint8)
    strides = (
        Shape(primitive, tuple(dims)).byte_strides if byte_strides is None else tuple(byte_strides)
    )
    low, high = byte_range(dims, strides, primitive.nbytes)
    if offset < 0 or offset + low < 0 or offset + high > memory.nbytes:
        raise InputError(
            f"{primitive}{list(dims)} with byte strides {strides} at offset {offset} touches bytes "
            f"{offset + low} to {offset + high} of a buffer of {memory.nbytes}"
        )
    return np.ndarray(tuple(dims), primitive.dtype, memory.data, offset, strides)


# Dynamic-shape metadata.


def read_sizes(data: Any, shape: Shape) -> tuple[int, ...]:
    """The actual sizes stored behind the payload of a buffer of a dynamic shape.

    Args:
        data: the buffer's bytes, ``shape.buffer_bytes`` or more, of any alignment.
        shape: the bounds.

    Raises ``InputError`` for a static shape, a short buffer, or sizes the bounds do not allow.
    """
    memory = _metadata_bytes(data, shape)
    sizes = tuple(int(size) for size in np.frombuffer(memory.tobytes(), _METADATA))
    check_sizes(sizes, shape)
    return sizes


def write_sizes(data: Any, shape: Shape, sizes: Sequence[int]) -> None:
    """Store the actual sizes in a writable buffer; errors as :func:`read_sizes`."""
    memory = _metadata_bytes(data, shape)
    check_sizes(sizes, shape)
    memory[...] = np.asarray(sizes, _METADATA).view(np.uint8)


def check_sizes(sizes: Sequence[int], shape: Shape) -> None:
    """Raise ``InputError`` unless ``sizes`` is an instance of ``shape``."""
    if len(sizes) != shape.rank:
        raise InputError(f"{len(sizes)} sizes for {shape}, which has {shape.rank} dimensions")
    for dim, (size, bound, free) in enumerate(zip(sizes, shape.dims, shape.dynamic, strict=True)):
        if size < 0 or size > bound or (size != bound and not free):
            wanted = f"at most {bound}" if free else f"exactly {bound}"
            raise InputError(
                f"sizes {tuple(sizes)} are incompatible with {shape}: "
                f"dimension {dim} must be {wanted} and not negative"
            )


def _metadata_bytes(data: Any, shape: Shape) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not shape.is_dynamic:
        raise InputError(f"shape {shape} is static: its buffers hold no dynamic-shape metadata")
    memory = np.frombuffer(data, np.uint8)
    if memory.nbytes < shape.buffer_bytes:
        raise InputError(
            f"a buffer of {memory.nbytes} bytes is too small for {shape}, which needs "
            f"{shape.buffer_bytes} with its dynamic-shape metadata"
        )
    return memory[shape.metadata_offset : shape.buffer_bytes]
