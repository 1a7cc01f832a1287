# SPDX-License-Identifier: Apache-2.0
"""Kernel arguments as bytes: buffers by address, scalars by value.

**The argument ABI, version 1.** Arguments stand in the order of the kernel's parameters, in the byte order of
the machine, at offsets that grow from zero; bytes between them are zero.

    pointer   8 bytes, aligned to 8
    scalar    its unpacked size, aligned to it; complex numbers to their components. ``pred`` is one byte, 0
              or 1; types narrower than a byte take one, the value in its low bits, the others zero

Targets differ in two ways:

    host        every argument starts a slot of 8 bytes (16 for c128): a frame of 64-bit words. Signed integers
                are extended by their sign, the others by zeros, so that a word can be read whole
    cuda        the layout of a C struct, which is what PTX declares as ``.param``; at most 4096 bytes, or 32764
                with ``CUDA_LARGE`` (compute capability 7.0 and driver 12.1 or later)
    simulator   as cuda, without the limit

Launch functions take either the bytes (``address``, ``nbytes``) or an array of pointers to the arguments
(``pointers``), as ``cuLaunchKernel`` does.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.memory.host import aligned_empty
from gristmill.runtime.types import PrimitiveType

Array = np.ndarray[Any, Any]

#: Raised when the layout above changes.
ARGUMENT_ABI_VERSION = 1

POINTER_BYTES = 8


@dataclass(frozen=True)
class ArgumentAbi:
    """How one target wants its arguments.

    Attributes:
        name: the target.
        slot_bytes: what offsets and sizes are rounded up to; 1: natural alignment alone.
        max_bytes: the most that may be passed.
    """

    name: str
    slot_bytes: int
    max_bytes: int


HOST = ArgumentAbi("host", 8, 1 << 20)
CUDA = ArgumentAbi("cuda", 1, 4096)
CUDA_LARGE = ArgumentAbi("cuda", 1, 32764)
SIMULATOR = ArgumentAbi("simulator", 1, 1 << 20)


class Pointer:
    """The kind of an argument that is the address of a buffer."""

    def __repr__(self) -> str:
        return "pointer"


#: The one kind of pointers.
POINTER = Pointer()

ArgumentKind = Pointer | PrimitiveType


@dataclass(frozen=True)
class ArgumentLayout:
    """Where the arguments of a kernel go; made once for a kernel.

    Attributes:
        abi: the target's rules.
        kinds: of the arguments: :data:`POINTER`, or the type of a scalar.
        offsets: of the arguments, in bytes.
        nbytes: of all of them.
    """

    abi: ArgumentAbi
    kinds: tuple[ArgumentKind, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(kinds: Sequence[ArgumentKind], abi: ArgumentAbi) -> ArgumentLayout:
        """Lay arguments out. ``UnsupportedError`` for tokens and such, or for too many bytes."""
        offsets: list[int] = []
        cursor = 0
        for number, kind in enumerate(kinds):
            size, natural = _extent(kind, number)
            alignment = max(natural, abi.slot_bytes)
            cursor = -(-cursor // alignment) * alignment
            offsets.append(cursor)
            cursor += size
        end = -(-cursor // abi.slot_bytes) * abi.slot_bytes
        if end > abi.max_bytes:
            raise UnsupportedError(
                f"{len(kinds)} kernel arguments take {end} bytes; {abi.name} passes {abi.max_bytes} at most: "
                "pass scalars in a buffer"
            )
        return ArgumentLayout(abi, tuple(kinds), tuple(offsets), end)

    def pack(self, values: Sequence[Any]) -> PackedArguments:
        """The bytes of ``values``: addresses for pointers, numbers for scalars.

        Raises ``InputError`` naming the argument where a value is not exactly one of its kind. Floating-point
        scalars are rounded.
        """
        if len(values) != len(self.kinds):
            raise InputError(f"{len(values)} kernel arguments given, {len(self.kinds)} expected")
        packed = PackedArguments(self)
        for number, value in enumerate(values):
            packed.set(number, value)
        return packed


class PackedArguments:
    """The arguments of one launch, in memory that stays where it is; they can be changed for the next.

    Attributes:
        layout: where they are.
        data: the bytes, 64-byte aligned.
    """

    def __init__(self, layout: ArgumentLayout) -> None:
        self.layout = layout
        self.data = aligned_empty((layout.nbytes,), np.dtype(np.uint8))
        self.data[...] = 0
        base = self.address
        self._pointers = (ctypes.c_void_p * max(len(layout.kinds), 1))(
            *(base + offset for offset in layout.offsets)
        )

    @property
    def address(self) -> int:
        """Where the bytes are."""
        return self.data.ctypes.data

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return self.layout.nbytes

    @property
    def pointers(self) -> int:
        """The address of an array with a pointer to each argument."""
        return ctypes.addressof(self._pointers)

    def set(self, number: int, value: Any) -> None:
        """Change one argument; errors as :meth:`ArgumentLayout.pack`."""
        layout = self.layout
        if not 0 <= number < len(layout.kinds):
            raise InputError(f"there is no kernel argument {number}; there are {len(layout.kinds)}")
        kind, offset = layout.kinds[number], layout.offsets[number]
        if isinstance(kind, Pointer):
            data = _address_bytes(value, number)
        else:
            data = _scalar_bytes(value, kind, number)
            slot = layout.abi.slot_bytes
            if len(data) < slot and kind.bits >= 8:
                negative = kind.kind == "int" and int(np.frombuffer(data, kind.dtype)[0]) < 0
                data = _extend(data, slot, b"\xff" if negative else b"\0")
        self.data[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


def _extent(kind: ArgumentKind, number: int) -> tuple[int, int]:
    """Size and natural alignment."""
    if isinstance(kind, Pointer):
        return POINTER_BYTES, POINTER_BYTES
    if not kind.is_array:
        raise UnsupportedError(f"kernel argument {number}: a {kind} cannot be passed to a kernel")
    return kind.nbytes, kind.nbytes // 2 if kind.kind == "complex" else kind.nbytes


def _address_bytes(value: Any, number: int) -> bytes:
    if type(value) is not int:
        raise InputError(
            f"kernel argument {number}: an address must be an int, not {type(value).__name__}"
        )
    try:
        return value.to_bytes(POINTER_BYTES, sys.byteorder)
    except OverflowError:
        raise InputError(f"kernel argument {number}: {value:#x} is no address") from None


def _scalar_bytes(value: Any, kind: PrimitiveType, number: int) -> bytes:
    """The native bytes of exactly this value."""
    found = _number(value, kind)
    if found is None:
        raise InputError(f"kernel argument {number}: {value!r} is not a {kind}")
    data = found.tobytes()
    return data if kind.bits >= 8 else bytes([data[0] & ((1 << kind.bits) - 1)])


def _number(value: object, kind: PrimitiveType) -> Array | None:
    """``value`` as a rank-0 array of that type; None if it is not exactly one of its values."""
    dtype = kind.dtype
    if isinstance(value, np.generic | np.ndarray):
        found: Array = np.asarray(cast("Any", value))
        return found if found.dtype == dtype and found.shape == () else None
    if isinstance(value, bool) or kind.kind == "pred":
        return np.array(value, dtype) if isinstance(value, bool) and kind.kind == "pred" else None
    if isinstance(value, int) and kind.is_integer:
        low = -(1 << (kind.bits - 1)) if kind.kind == "int" else 0
        return np.array(value, dtype) if low <= value < low + (1 << kind.bits) else None
    wanted = (int, float) if kind.kind == "float" else (int, float, complex)
    return np.array(value, dtype) if isinstance(value, wanted) and not kind.is_integer else None


def _extend(data: bytes, size: int, fill: bytes) -> bytes:
    padding = fill * (size - len(data))
    return data + padding if sys.byteorder == "little" else padding + data
