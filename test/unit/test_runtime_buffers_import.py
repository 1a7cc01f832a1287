# SPDX-License-Identifier: Apache-2.0
"""Foreign memory: when it is copied, when it is used in place, and who keeps it alive."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
from device_support import LIMIT, make_device, software_driver

from gristmill.errors import InputError
from gristmill.runtime import foreign
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.devices.host import HostDevice


def contents(buffer):
    out = np.zeros(buffer.nbytes, np.uint8)
    buffer.copy_to_host(out).wait(LIMIT)
    return out.tobytes()


def frozen(array):
    array.setflags(write=False)
    return array


class Exporter:
    """A numpy array behind an export protocol only."""

    def __init__(self, array, versioned=True):
        self.array = array
        if versioned:
            self.__class__ = VersionedExporter

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class VersionedExporter(Exporter):
    def __dlpack__(self, *, stream=None, max_version=None):
        return self.array.__dlpack__(stream=stream, max_version=max_version)


def test_the_default_is_a_copy(device):
    array = np.arange(8, dtype=np.uint8)
    with RawBuffer.from_host(device, array) as made:
        array[:] = 99  # allowed as soon as the call returns
        assert contents(made) == bytes(range(8))
        made.copy_from_host(b"x").wait(LIMIT)
    assert (array == 99).all()


def test_a_copy_that_does_not_block_defines_its_buffer_later(device):
    array = np.arange(1_000_000, dtype=np.int32)
    with RawBuffer.from_host(device, array, block=False) as made:
        assert contents(made) == array.tobytes()
        made.definition.wait(LIMIT)


def test_readonly_memory_may_be_used_in_place(device):
    array = frozen(np.arange(8, dtype=np.int32))
    with RawBuffer.from_host(device, array, alias=Alias.READONLY) as made:
        assert made.host_pointer() == array.ctypes.data
        assert made.readonly
        assert contents(made) == array.tobytes()
        with pytest.raises(InputError, match="read-only"):
            made.copy_from_host(b"x")
    with RawBuffer.from_host(device, b"some bytes", alias=Alias.READONLY) as made:
        assert contents(made) == b"some bytes"


def test_writable_memory_is_aliased_only_when_asked_for(device):
    array = np.zeros(8, np.uint8)
    with pytest.raises(InputError, match=r"data is writable.*alias=Alias.WRITABLE"):
        RawBuffer.from_host(device, array, alias=Alias.READONLY)
    with RawBuffer.from_host(device, array, alias=Alias.WRITABLE) as made:
        made.copy_from_host(b"abc").wait(LIMIT)
        assert array[:3].tobytes() == b"abc"
        array[0] = ord("z")
        assert contents(made)[:3] == b"zbc"
    with RawBuffer.from_host(device, frozen(array), alias=Alias.WRITABLE) as made:
        assert made.readonly


def test_misalignment_is_reported_and_never_a_silent_copy(device):
    memory = np.zeros(64, np.uint8)
    odd = frozen(memory[1:33].view(np.int32))
    assert odd.ctypes.data % 4
    with pytest.raises(InputError, match="is not aligned to 4 bytes and cannot be used in place"):
        RawBuffer.from_host(device, odd, alias=Alias.READONLY)
    with RawBuffer.from_host(device, odd) as made:
        assert contents(made) == odd.tobytes()
    bytes_at_odd_place = frozen(memory[1:33])
    with RawBuffer.from_host(device, bytes_at_odd_place, alias=Alias.READONLY) as made:
        assert made.nbytes == 32
    with pytest.raises(InputError, match="aligned to 64 bytes"):
        RawBuffer.from_host(device, bytes_at_odd_place, alias=Alias.READONLY, alignment=64)


def test_an_alias_keeps_its_owner_alive_and_lets_it_go(device):
    array = frozen(np.arange(100, dtype=np.int64))
    owner = weakref.ref(array)
    made = RawBuffer.from_host(device, array, alias=Alias.READONLY)
    part = made.slice(0, 8)
    del array
    made.close()
    gc.collect()
    assert owner() is not None
    assert contents(part) == bytes(8)
    part.close()
    device.synchronize(LIMIT)
    gc.collect()
    assert owner() is None


def test_memory_of_an_alias_can_be_aliased_again_later(device):
    array = frozen(np.zeros(4096, np.uint8))
    for _ in range(3):
        RawBuffer.from_host(device, array, alias=Alias.READONLY).close()


def test_empty_memory(device):
    for alias in (Alias.NEVER, Alias.WRITABLE):
        with RawBuffer.from_host(device, np.zeros((0, 3), np.float32), alias=alias) as made:
            assert made.nbytes == 0


# DLPack


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(device, versioned):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with RawBuffer.from_dlpack(device, Exporter(array, versioned)) as made:
        assert contents(made) == array.tobytes()
    with RawBuffer.from_dlpack(device, Exporter(array, versioned), alias=Alias.WRITABLE) as made:
        assert made.host_pointer() == array.ctypes.data
        made.copy_from_host(np.float32([9])).wait(LIMIT)
    assert array[0, 0] == 9


def test_many_threads_use_one_array_in_place(device):
    """Registered by the first of them, unregistered by the last, again and again."""
    array = np.zeros(1 << 14, np.uint8)
    array.setflags(write=False)
    errors = []

    def work():
        try:
            for _ in range(200):
                RawBuffer.from_host(device, array, alias=Alias.READONLY).close()
        except InputError as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_dlpack_says_what_is_readonly(device):
    array = frozen(np.arange(6, dtype=np.float32))
    with RawBuffer.from_dlpack(device, Exporter(array), alias=Alias.READONLY) as made:
        assert made.readonly
        assert made.host_pointer() == array.ctypes.data
    with pytest.raises(InputError, match="writable"):
        RawBuffer.from_dlpack(device, Exporter(array.copy()), alias=Alias.READONLY)


def test_a_dlpack_tensor_is_released_once(device):
    for alias in (Alias.NEVER, Alias.WRITABLE):
        array = np.zeros(64, np.uint8)
        gone = weakref.ref(array)
        capsule = array.__dlpack__()
        made = RawBuffer.from_dlpack(device, capsule, alias=alias)
        del array
        gc.collect()
        assert (gone() is None) == (alias is Alias.NEVER)
        with pytest.raises(InputError, match="consumed already"):
            RawBuffer.from_dlpack(device, capsule)
        made.close()
        device.synchronize(LIMIT)
        gc.collect()
        assert gone() is None


def test_a_refused_dlpack_tensor_is_released(device):
    array = np.zeros(64, np.uint8)
    gone = weakref.ref(array)
    with pytest.raises(InputError):
        RawBuffer.from_dlpack(device, array.__dlpack__(), alias=Alias.READONLY)
    del array
    gc.collect()
    assert gone() is None


def test_dlpack_of_other_things(device):
    with pytest.raises(InputError, match="int does not export DLPack"):
        RawBuffer.from_dlpack(device, 3)
    with pytest.raises(InputError, match="not C-contiguous"):
        RawBuffer.from_dlpack(device, Exporter(np.zeros((4, 4), np.float32).T))


def test_dlpack_of_a_device_that_is_not_this_one(device):
    """The capsule says ROCm, device 3."""
    array = np.zeros(4, np.float32)
    capsule = array.__dlpack__()
    pointer = foreign._get_pointer(capsule, b"dltensor")
    tensor = foreign._Managed.from_address(pointer).tensor
    tensor.device_type, tensor.device_id = 10, 3
    with pytest.raises(InputError, match="device type 10 number 3"):
        RawBuffer.from_dlpack(device, capsule)


def test_an_unknown_dlpack_version(device):
    array = np.zeros(4, np.float32)
    capsule = array.__dlpack__(max_version=(1, 0))
    managed = foreign._Versioned.from_address(foreign._get_pointer(capsule, b"dltensor_versioned"))
    managed.major = 2
    with pytest.raises(InputError, match=r"DLPack 2\.\d is unknown"):
        RawBuffer.from_dlpack(device, capsule)
    managed.major = 1


# CUDA array interface


class CudaArray:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def test_a_cuda_array_of_the_device(device):
    if device.kind != "cuda":
        with pytest.raises(InputError, match="cannot be reached"):
            RawBuffer.from_cuda_array(
                device, CudaArray(shape=(2,), typestr="<f4", data=(4096, False), version=3)
            )
        return
    with RawBuffer.from_host(device, np.arange(6, dtype=np.float32)) as origin:
        interface = {"shape": (2, 3), "typestr": "<f4", "version": 3, "strides": None}
        array = CudaArray(**interface, data=(origin.address, False))
        with RawBuffer.from_cuda_array(device, array, alias=Alias.WRITABLE) as made:
            assert made.address == origin.address
            made.copy_from_host(np.float32([7])).wait(LIMIT)
        fixed = CudaArray(**interface, data=(origin.address, True))
        with RawBuffer.from_cuda_array(device, fixed, alias=Alias.READONLY) as made:
            assert made.readonly
        with RawBuffer.from_cuda_array(device, fixed) as made:
            assert made.address != origin.address
            assert contents(made) == np.float32([7, 1, 2, 3, 4, 5]).tobytes()


@contextmanager
def being_written(device, buffer, stream):
    """Another library writes 1, 2, … 40 to every byte of ``buffer``, in the order of a driver's stream."""
    driver = software_driver()
    driver.delay(5000)
    try:
        with device.activate():
            for value in range(1, 41):
                device.driver.fill(buffer.address, value, 1, buffer.nbytes, stream)
        yield
    finally:
        driver.delay(0)


def test_a_cuda_array_is_used_after_the_work_of_its_stream():
    with (
        make_device("cuda") as device,
        device.create_stream() as stream,
        RawBuffer.from_host(device, bytes(4)) as origin,
        being_written(device, origin, stream.handle),
    ):
        where = {"data": (origin.address, True), "stream": stream.handle}
        array = CudaArray(shape=(4,), typestr="|u1", **where)
        with RawBuffer.from_cuda_array(device, array) as made:
            assert contents(made) == bytes([40] * 4)


class CudaTensor:
    """An exporter of CUDA memory that is written on the driver's default stream."""

    def __init__(self, buffer):
        self.array = np.zeros(buffer.nbytes, np.uint8)
        self.address = buffer.address
        self.streams = []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        pointer = foreign._get_pointer(capsule, b"dltensor")
        tensor = foreign._Managed.from_address(pointer).tensor
        tensor.device_type, tensor.device_id, tensor.data = 2, 0, self.address
        return capsule


@pytest.mark.parametrize("exported", [False, True])
def test_a_dlpack_tensor_is_used_after_the_work_of_the_default_stream(exported):
    with (
        make_device("cuda") as device,
        RawBuffer.from_host(device, bytes(4)) as origin,
        being_written(device, origin, 0),
    ):
        tensor = CudaTensor(origin)
        given = tensor.__dlpack__() if exported else tensor
        with RawBuffer.from_dlpack(device, given) as made:
            assert contents(made) == bytes([40] * 4)
        assert tensor.streams == ([None] if exported else [1])


def test_a_device_without_a_driver_waits_for_no_stream():
    with HostDevice() as device, pytest.raises(InputError, match="has no driver"):
        device.adopt(64, 4, readonly=True, owner=None, stream=7)


@pytest.mark.parametrize(
    ("interface", "message"),
    [
        ({}, "malformed"),
        ({"shape": (2,), "typestr": "nonsense", "data": (1, False)}, "malformed"),
        ({"shape": (2,), "typestr": "<f4", "data": (None, False)}, "malformed"),
        ({"shape": (2,), "typestr": "<f4", "data": (64, False), "mask": object()}, "masked"),
        ({"shape": (2, 2), "typestr": "<f4", "data": (64, False), "strides": (4, 8)}, "contiguous"),
    ],
)
def test_cuda_arrays_that_cannot_be_used(interface, message):
    with HostDevice() as device, pytest.raises(InputError, match=message):
        RawBuffer.from_cuda_array(device, CudaArray(**interface))
    with HostDevice() as device, pytest.raises(InputError, match="no __cuda_array_interface__"):
        RawBuffer.from_cuda_array(device, 3)


def test_cuda_array_strides_of_single_rows_do_not_matter():
    memory = foreign.cuda_array_memory(
        CudaArray(shape=(1, 4), typestr="<f4", data=(64, True), strides=(999, 4), stream=7)
    )
    assert (memory.nbytes, memory.readonly, memory.alignment, memory.stream) == (16, True, 4, 7)
    assert ctypes.sizeof(ctypes.c_float) == memory.alignment
