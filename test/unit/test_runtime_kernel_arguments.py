# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import InputError, UnsupportedError
from gristmill.runtime.kernel_arguments import (
    CUDA,
    CUDA_LARGE,
    HOST,
    POINTER,
    SIMULATOR,
    ArgumentAbi,
    ArgumentKind,
    ArgumentLayout,
)
from gristmill.runtime.types import PRIMITIVE_TYPES, primitive_type

#: A C type for each kind, and a value of it.
C_TYPES: dict[str, tuple[Any, Any]] = {
    "pointer": (ctypes.c_void_p, 0x7FFF_1234_5678_9AB0),
    "pred": (ctypes.c_bool, True),
    "s8": (ctypes.c_int8, -5),
    "u16": (ctypes.c_uint16, 65000),
    "s32": (ctypes.c_int32, -(2**31)),
    "u64": (ctypes.c_uint64, 2**64 - 1),
    "f32": (ctypes.c_float, 1.5),
    "f64": (ctypes.c_double, -2.25),
}


def kind(name: str) -> ArgumentKind:
    return POINTER if name == "pointer" else primitive_type(name)


@given(st.lists(st.sampled_from(list(C_TYPES)), max_size=12))
def test_cuda_arguments_are_a_c_struct(names: list[str]) -> None:
    fields = [(f"f{k}", C_TYPES[name][0]) for k, name in enumerate(names)]
    oracle = type("Oracle", (ctypes.Structure,), {"_fields_": fields})
    values = [C_TYPES[name][1] for name in names]
    expected = bytes(oracle(*values))
    for abi in (CUDA, SIMULATOR):
        layout = ArgumentLayout.of([kind(name) for name in names], abi)
        assert layout.offsets == tuple(getattr(oracle, f).offset for f, _ in fields)
        packed = layout.pack(values)
        # A struct is padded at its end, parameters are not.
        assert packed.data.tobytes() == expected[: layout.nbytes]
        assert expected[layout.nbytes :].strip(b"\0") == b""


def test_pointers_lead_to_each_argument() -> None:
    packed = ArgumentLayout.of([kind("s8"), POINTER, kind("f32")], CUDA).pack([7, 4096, 1.5])
    assert packed.address % 64 == 0
    table = (ctypes.c_void_p * 3).from_address(packed.pointers)
    assert ctypes.c_int8.from_address(table[0] or 0).value == 7
    assert ctypes.c_uint64.from_address(table[1] or 0).value == 4096
    assert ctypes.c_float.from_address(table[2] or 0).value == 1.5
    assert packed.nbytes == 20


def test_host_arguments_are_words() -> None:
    names = ["s8", "u8", "pred", "f32", "s32", "pointer", "u64", "s16", "bf16"]
    values = [-2, 254, True, 1.0, -3, 4096, 2**63, 5, 1.0]
    packed = ArgumentLayout.of([kind(name) for name in names], HOST).pack(values)
    expected = struct.pack("<qQQQqQQqQ", -2, 254, 1, 0x3F800000, -3, 4096, 2**63, 5, 0x3F80)
    assert packed.data.tobytes() == expected


def test_complex_numbers() -> None:
    layout = ArgumentLayout.of([kind("s8"), kind("c64"), kind("c128"), kind("s8")], CUDA)
    assert layout.offsets == (0, 4, 16, 32)
    packed = layout.pack([1, 1 + 2j, 3 - 4j, 2])
    assert packed.data.tobytes() == struct.pack("<b3x2f4x2db", 1, 1, 2, 3, -4, 2)
    layout = ArgumentLayout.of([kind("c128"), kind("s8")], HOST)
    assert (layout.offsets, layout.nbytes) == ((0, 16), 24)


@pytest.mark.parametrize(
    ("name", "value", "byte"),
    [
        ("s4", -8, 0x08),
        ("s4", -1, 0x0F),
        ("u4", 15, 0x0F),
        ("s2", -2, 0x02),
        ("u1", 1, 0x01),
        ("f4e2m1fn", -1.0, 0x0A),
        ("f8e4m3fn", 1.0, 0x38),
        ("pred", False, 0),
    ],
)
def test_narrow_scalars(name: str, value: Any, byte: int) -> None:
    for abi in (CUDA, HOST):
        packed = ArgumentLayout.of([kind(name)], abi).pack([value])
        assert packed.data[0] == byte
        assert not packed.data[1:].any()


@pytest.mark.parametrize("name", [t.name for t in PRIMITIVE_TYPES.values() if t.is_array])
def test_numpy_scalars_of_every_type(name: str) -> None:
    dtype = primitive_type(name).dtype
    value = np.ones((), dtype)
    for scalar in (value, value[()]):
        packed = ArgumentLayout.of([kind(name)], CUDA).pack([scalar])
        assert packed.data.tobytes() == value.tobytes()


def test_arguments_can_be_changed() -> None:
    packed = ArgumentLayout.of([kind("s16"), kind("s64")], HOST).pack([-1, 2])
    address, pointers = packed.address, packed.pointers
    packed.set(0, 3)
    assert packed.data.tobytes() == struct.pack("<qq", 3, 2)
    assert (packed.address, packed.pointers) == (address, pointers)
    for number in (-1, 2):
        with pytest.raises(InputError, match=f"no kernel argument {number}; there are 2"):
            packed.set(number, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s8", 128),
        ("s8", -129),
        ("u8", -1),
        ("s4", 8),
        ("u2", 4),
        ("s32", 1.0),
        ("s32", True),
        ("s32", np.int64(1)),
        ("s32", np.zeros(1, np.int32)),
        ("s32", "1"),
        ("s32", None),
        ("f32", 1j),
        ("f32", np.float64(1)),
        ("bf16", np.float32(1)),
        ("pred", 1),
        ("u64", 2**64),
    ],
)
def test_values_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"kernel argument 1: .* is not a {name}"):
        ArgumentLayout.of([POINTER, kind(name)], CUDA).pack([0, value])


@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True, None, np.uint64(5)])
def test_what_is_no_address(value: Any) -> None:
    with pytest.raises(InputError, match=r"kernel argument 0: .*(is no address|must be an int)"):
        ArgumentLayout.of([POINTER], CUDA).pack([value])


def test_wrong_counts() -> None:
    with pytest.raises(InputError, match="1 kernel arguments given, 2 expected"):
        ArgumentLayout.of([POINTER, POINTER], CUDA).pack([1])
    assert ArgumentLayout.of([], HOST).pack([]).nbytes == 0


@pytest.mark.parametrize("name", ["token", "tuple", "opaque"])
def test_kinds_that_cannot_be_passed(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"argument 0: a {name} cannot be passed"):
        ArgumentLayout.of([kind(name)], CUDA)


@pytest.mark.parametrize(("abi", "most"), [(CUDA, 512), (CUDA_LARGE, 4095)])
def test_the_targets_limit(abi: ArgumentAbi, most: int) -> None:
    assert ArgumentLayout.of([POINTER] * most, abi).nbytes == 8 * most
    with pytest.raises(
        UnsupportedError, match=f"cuda passes {abi.max_bytes} at most: pass scalars in"
    ):
        ArgumentLayout.of([POINTER] * (most + 1), abi)


def test_rounding() -> None:
    packed = ArgumentLayout.of([kind("bf16")], CUDA).pack([0.1])
    assert packed.data.view(ml_dtypes.bfloat16)[0] == ml_dtypes.bfloat16(0.1)
