# SPDX-License-Identifier: Apache-2.0
"""The software CUDA driver keeps the driver's rules, and every driver call is checked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from device_support import LIMIT, software_driver
from software_driver import PTX, build

from gristmill.errors import DeviceError, ResourceExhaustedError
from gristmill.runtime.devices import cuda_driver
from gristmill.runtime.devices.cuda_driver import CudaDeviceLostError, CudaError

KB = 1024


@pytest.fixture
def sim():
    controls = software_driver()
    controls.reset()
    yield controls
    controls.reset()
    assert controls.report() == ""


@pytest.fixture
def driver(sim):
    loaded = cuda_driver.load()
    device = loaded.device(0)
    with loaded.activate(loaded.retain_primary_context(device)):
        yield loaded
    loaded.release_primary_context(device)


@pytest.fixture
def stream(driver):
    handle = driver.stream_create()
    yield handle
    discard(driver.stream_destroy, handle)


@pytest.fixture
def block(driver):
    """One kilobyte of device memory."""
    address = driver.mem_alloc(KB)
    yield address
    discard(driver.mem_free, address)


def discard(release, handle):
    """Release something that a test may have left in a broken context."""
    with contextlib.suppress(CudaDeviceLostError):
        release(handle)


def pinned(driver, nbytes):
    address = driver.host_alloc(nbytes, cuda_driver.HOST_PORTABLE)
    return address, np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def code_of(function, *arguments):
    with pytest.raises((CudaError, ResourceExhaustedError)) as caught:
        function(*arguments)
    return caught.value.code_name if isinstance(caught.value, CudaError) else "out of memory"


# How it is found


def in_a_new_process(program, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "CUDA_HOME")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=kept | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


ASK = """
from gristmill.runtime.devices.cuda import CudaDevice
print(CudaDevice.available(), CudaDevice.unavailable_reason())
"""


def test_it_is_found_through_the_library_path():
    result = in_a_new_process(ASK, LD_LIBRARY_PATH=str(build().parent))
    assert (result.returncode, result.stdout) == (0, "True None\n"), result.stderr


def test_without_devices_there_is_a_reason():
    path = str(build().parent)
    result = in_a_new_process(ASK, LD_LIBRARY_PATH=path, GM_SIM_DEVICES="0")
    assert result.stdout.startswith("False cuInit failed with CUDA_ERROR_NO_DEVICE"), result.stderr


def test_without_cuda_python_there_is_a_reason():
    result = in_a_new_process("import sys; sys.modules['cuda'] = None\n" + ASK)
    assert result.stdout.startswith("False the cuda device needs cuda-python"), result.stderr


def test_importing_the_device_imports_no_cuda_python():
    program = "import sys, gristmill.runtime.devices.cuda; print('cuda' in sys.modules)"
    assert in_a_new_process(program).stdout == "False\n"


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_missing_driver_is_a_device_error(kind):
    """cuda-python's ways of saying so, by its version."""

    class Missing:
        @staticmethod
        def cuInit(flags):
            raise kind("libcuda.so.1: cannot open shared object file")

    with pytest.raises(DeviceError, match=r"there is no CUDA driver .*libcuda\.so\.1"):
        cuda_driver.initialise(cuda_driver.CudaDriver(Missing))


def test_leaks_are_reported_at_exit():
    program = """
from gristmill.runtime.devices import cuda_driver
d = cuda_driver.load()
d.push_context(d.retain_primary_context(0))
d.stream_create(), d.mem_alloc(10), d.mem_alloc(10)
"""
    path = str(build().parent)
    result = in_a_new_process(program, LD_LIBRARY_PATH=path, GM_SIM_REPORT="1")
    assert result.returncode == 0
    assert "still alive at exit: 1 context, 1 stream, 2 device memory" in result.stderr


def test_faults_may_come_from_the_environment():
    program = ASK + "cuda = CudaDevice(0)"
    path = str(build().parent)
    fault = "cuDeviceGetName:1:999,cuDeviceGetCount:99:1"
    result = in_a_new_process(program, LD_LIBRARY_PATH=path, GM_SIM_FAIL=fault)
    assert "cuDeviceGetName failed with CUDA_ERROR_UNKNOWN" in result.stderr


# Errors


def test_an_error_tells_function_name_meaning_and_remedy(driver, sim):
    sim.fail("cuStreamCreateWithPriority", code=801)
    with pytest.raises(CudaError) as caught:
        driver.stream_create()
    error = caught.value
    assert (error.function, error.code) == ("cuStreamCreateWithPriority", 801)
    assert error.message == (
        "cuStreamCreateWithPriority failed with CUDA_ERROR_NOT_SUPPORTED: the device or driver does not "
        "support this; use another device or driver"
    )


def test_kinds_of_errors(driver):
    assert isinstance(driver.error("cuX", 2), ResourceExhaustedError)
    assert isinstance(driver.error("cuX", 700), CudaDeviceLostError)
    assert type(driver.error("cuX", 1)) is CudaError
    assert "error 123456" in str(driver.error("cuX", 123456))


def test_a_missing_function_is_a_device_error(driver):
    with pytest.raises(CudaError, match="the CUDA driver has no cuMemAllocManaged; update"):
        driver.call("cuMemAllocManaged", 10, 1)


def test_the_nth_call_fails_and_only_that(driver, sim):
    sim.fail("cuEventCreate", nth=2)
    first = driver.event_create(0)
    assert code_of(driver.event_create, 0) == "CUDA_ERROR_UNKNOWN"
    second = driver.event_create(0)
    assert sim.pending_faults == 0
    driver.event_destroy(first)
    driver.event_destroy(second)


# Memory


def test_memory_limits(driver, sim):
    sim.limit_memory(device=2 * KB, pinned=KB)
    address = driver.mem_alloc(2 * KB)
    assert code_of(driver.mem_alloc, 1) == "out of memory"
    assert driver.memory_info() == (0, 2 * KB)
    driver.mem_free(address)
    assert code_of(driver.host_alloc, KB + 1, 0) == "out of memory"


def test_misuse_of_device_memory(driver, block):
    assert code_of(driver.mem_free, block + 1) == "CUDA_ERROR_INVALID_VALUE"
    assert code_of(driver.host_free, block) == "CUDA_ERROR_INVALID_VALUE"
    gone = driver.mem_alloc(16)
    driver.mem_free(gone)
    assert code_of(driver.mem_free, gone) == "CUDA_ERROR_INVALID_VALUE"
    assert code_of(driver.mem_alloc, 0) == "CUDA_ERROR_INVALID_VALUE"


def test_copies_are_checked(driver, stream, block):
    data = np.zeros(2 * KB, np.uint8)
    for target, size in ((block, KB + 1), (block + 1, KB), (data.ctypes.data, 1)):
        assert code_of(driver.copy_h2d, target, data.ctypes.data, size, stream).endswith("VALUE")
    assert code_of(driver.copy_h2d, block, block, 8, stream) == "CUDA_ERROR_INVALID_VALUE"
    driver.copy_h2d(block, data.ctypes.data, 0, stream)


def test_registered_memory(driver, stream, block):
    data = np.arange(KB, dtype=np.uint8)
    start = data.ctypes.data
    assert code_of(driver.host_device_address, start) == "CUDA_ERROR_INVALID_VALUE"
    assert code_of(driver.host_unregister, start).endswith("HOST_MEMORY_NOT_REGISTERED")
    driver.host_register(start, KB, 0)
    assert driver.host_device_address(start + 8) == start + 8
    for where, size in ((start, KB), (start + 100, 1), (start - 8, 16), (start + KB - 1, 8)):
        assert code_of(driver.host_register, where, size, 0).endswith("ALREADY_REGISTERED")
    assert code_of(driver.host_unregister, start + 1).endswith("NOT_REGISTERED")
    driver.copy_h2d(block, start, KB, stream)
    driver.stream_synchronize(stream)
    driver.host_unregister(start)
    assert code_of(driver.host_unregister, start).endswith("NOT_REGISTERED")


def test_released_memory_is_not_written(driver, stream):
    """A copy that comes after its memory went breaks the context, and nothing else."""
    address, _ = pinned(driver, KB)
    block = driver.mem_alloc_async(KB, stream)
    other = driver.stream_create()
    gate, _ = gate_on(driver, other)
    driver.copy_h2d(block, address, KB, other)
    driver.mem_free_async(block, stream)  # not ordered after the copy
    driver.stream_synchronize(stream)
    gate.set()
    assert code_of(driver.stream_synchronize, other) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    discard(driver.stream_destroy, other)
    discard(driver.host_free, address)


# Order


def test_page_locked_copies_are_asynchronous_and_pageable_ones_are_not(driver, stream, block, sim):
    address, view = pinned(driver, KB)
    gate, called = gate_on(driver, stream)
    view[:] = 1
    driver.copy_h2d(block, address, KB, stream)
    view[:] = 2  # before the copy has begun
    data = np.full(KB, 3, np.uint8)
    other = driver.mem_alloc(KB)
    driver.copy_h2d(other, data.ctypes.data, KB, stream)
    data[:] = 4  # was taken when the call returned
    gate.set()
    driver.stream_synchronize(stream)
    assert called
    driver.copy_d2h(data.ctypes.data, block, KB, stream)  # returns when it has ended
    assert (data == 2).all()
    driver.copy_d2h(data.ctypes.data, other, KB, stream)
    assert (data == 3).all()
    driver.mem_free(other)
    driver.host_free(address)


_callbacks = []


def gate_on(driver, stream):
    """Hold the stream until the returned event is set; the list says whether it was passed."""
    gate, called = threading.Event(), []

    def wait(_):
        called.append(gate.wait(LIMIT))

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wait)
    _callbacks.append(callback)
    driver.call("cuLaunchHostFunc", stream, ctypes.cast(callback, ctypes.c_void_p).value, 0)
    return gate, called


def test_events_order_streams(driver, stream):
    other = driver.stream_create()
    event, later = driver.event_create(0), driver.event_create(0)
    gate, called = gate_on(driver, stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(other, event)
    driver.event_record(later, other)
    assert code_of(driver.call, "cuEventQuery", later) == "CUDA_ERROR_NOT_READY"
    driver.event_record(event, other)  # the wait was for the recording before
    gate.set()
    driver.event_synchronize(later)
    assert called
    assert driver.elapsed_ms(later, event) >= 0
    for handle in (event, later):
        driver.event_destroy(handle)
    assert code_of(driver.event_synchronize, event) == "CUDA_ERROR_INVALID_HANDLE"
    driver.stream_destroy(other)


def test_the_null_stream_orders_blocking_streams_only(driver, stream, block):
    blocking = driver.stream_create(flags=0)
    gate, called = gate_on(driver, blocking)
    free = driver.event_create(0)
    driver.event_record(free, stream)
    driver.event_synchronize(free)  # the other stream is not held up
    threading.Timer(0.02, gate.set).start()
    driver.call("cuMemsetD8", block, 1, KB)
    assert called
    driver.event_destroy(free)
    driver.stream_destroy(blocking)


def test_a_fault_breaks_the_context(driver, stream):
    module = driver.module_load(PTX.encode())
    kernel = driver.module_function(module, "wild_store")
    called = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    _callbacks.append(callback)
    gate, _ = gate_on(driver, stream)
    driver.launch(kernel, (1, 1, 1), (1, 1, 1), 0, stream, 0)
    driver.call("cuLaunchHostFunc", stream, ctypes.cast(callback, ctypes.c_void_p).value, 0)
    gate.set()
    assert code_of(driver.stream_synchronize, stream) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert not called  # as the real driver: host functions are not called any more
    assert code_of(driver.mem_alloc, 16) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    discard(driver.module_unload, module)


def test_a_reset_gives_a_context_that_works(sim):
    driver = cuda_driver.load()
    with driver.activate(driver.retain_primary_context(0)):
        driver.stream_create()
        module = driver.module_load(PTX.encode())
        kernel = driver.module_function(module, "wild_store")
        driver.launch(kernel, (1, 1, 1), (1, 1, 1), 0, 0, 0)
        assert code_of(driver.stream_synchronize, 0) == "CUDA_ERROR_ILLEGAL_ADDRESS"
        driver.reset_primary_context(0)
        assert code_of(driver.mem_alloc, 16) == "CUDA_ERROR_INVALID_CONTEXT"
    assert sim.report() == ""
    with driver.activate(driver.retain_primary_context(0)):
        driver.mem_free(driver.mem_alloc(16))
        driver.stream_create()
    driver.release_primary_context(0)
    driver.release_primary_context(0)
    assert sim.report() == "1 stream"  # was alive when the context went
    sim.reset()
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        driver.release_primary_context(0)


# Modules and graphs


def test_modules(driver):
    module = driver.module_load(PTX.encode())
    saxpy = driver.module_function(module, "saxpy")
    assert driver.function_parameters(saxpy) == [(0, 8), (8, 8), (16, 4), (20, 4)]
    assert code_of(driver.module_function, module, "saxp").endswith("NOT_FOUND")
    assert code_of(driver.launch, saxpy, (1, 1, 1), (1025, 1, 1), 0, 0, 0).endswith("VALUE")
    assert code_of(driver.launch, saxpy, (0, 1, 1), (1, 1, 1), 0, 0, 0).endswith("VALUE")
    driver.module_unload(module)
    assert code_of(driver.module_unload, module) == "CUDA_ERROR_INVALID_HANDLE"


@pytest.mark.parametrize(
    "text", ["", "garbage", ".version 7.0\n.entry k(.param .u64", ".entry k()"]
)
def test_bad_text_is_refused_with_a_log(driver, text):
    with pytest.raises(CudaError, match=r"CUDA_ERROR_INVALID_PTX[^\n]*\nptxas fatal"):
        driver.module_load(text.encode() + b"\0")


def cubin(kernels):
    """A minimal cubin: an ELF file with the sections .text.NAME and .nv.info.NAME of each kernel.

    ``kernels``: by name, offset and size of each parameter.
    """
    bodies = [("", b""), (".shstrtab", b"")]
    for kernel, parameters in kernels.items():
        info = b"\x04\x37\x04\x00\x82\x00\x00\x00"  # some other attribute first
        for ordinal, (offset, size) in enumerate(parameters):
            info += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        bodies += [(f".text.{kernel}", b"code"), (f".nv.info.{kernel}", info)]
    names = b"".join(name.encode() + b"\0" for name, _ in bodies)
    bodies[1] = (".shstrtab", names)
    content, table, at = b"", b"", 0
    for name, body in bodies:
        where = 64 + len(content)
        table += struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, where, len(body), 0, 0, 1, 0)
        content += body
        at += len(name) + 1
    content += bytes(-len(content) % 8)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(content), 0, 64, 0, 0, 64, len(bodies), 1
    )
    return ident + header + content + table


def test_cubins(driver):
    module = driver.module_load(cubin({"spin": [(0, 4)], "other": [(0, 8), (8, 4), (16, 16)]}))
    spin, other = (driver.module_function(module, name) for name in ("spin", "other"))
    assert driver.function_parameters(spin) == [(0, 4)]
    assert [offset for offset, _ in driver.function_parameters(other)] == [0, 8, 16]
    assert code_of(driver.module_function, module, "third").endswith("NOT_FOUND")
    driver.module_unload(module)


def test_capture(driver, stream, block):
    fork = driver.stream_create()
    event, back = driver.event_create(0), driver.event_create(0)
    driver.begin_capture(stream)
    driver.fill(block, 5, 1, KB, stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(fork, event)
    driver.fill(block, 6, 1, KB // 2, fork)
    driver.event_record(back, fork)
    driver.stream_wait_event(stream, back)
    graph = driver.end_capture(stream)
    executable = driver.graph_instantiate(graph)
    driver.graph_destroy(graph)
    data = np.zeros(KB, np.uint8)
    for _ in range(2):
        driver.fill(block, 0, 1, KB, stream)
        driver.graph_launch(executable, stream)
        driver.copy_d2h(data.ctypes.data, block, KB, stream)
        assert (data[: KB // 2] == 6).all()
        assert (data[KB // 2 :] == 5).all()
    driver.graph_exec_destroy(executable)
    for handle in (event, back):
        driver.event_destroy(handle)
    driver.stream_destroy(fork)


def test_what_a_capture_refuses(driver, stream, block):
    data = np.zeros(KB, np.uint8)
    driver.begin_capture(stream)
    assert code_of(driver.copy_h2d, block, data.ctypes.data, KB, stream).endswith("UNSUPPORTED")
    assert code_of(driver.mem_alloc_async, 16, stream).endswith("CAPTURE_UNSUPPORTED")
    assert code_of(driver.stream_synchronize, stream).endswith("CAPTURE_UNSUPPORTED")
    assert code_of(driver.end_capture, stream).endswith("CAPTURE_INVALIDATED")
    fork = driver.stream_create()
    event = driver.event_create(0)
    driver.begin_capture(stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(fork, event)
    driver.fill(block, 1, 1, 8, fork)
    assert code_of(driver.end_capture, stream).endswith("CAPTURE_UNJOINED")
    driver.event_destroy(event)
    driver.stream_destroy(fork)


def test_misuse_ends_nothing(driver, sim):
    """Wild handles are error codes."""
    for wild in (3, 0xDEADBEEF0, 1 << 47):
        for function in (
            driver.stream_destroy, driver.stream_synchronize, driver.event_destroy,
            driver.module_unload, driver.graph_destroy, driver.graph_exec_destroy,
        ):  # fmt: skip
            assert code_of(function, wild) == "CUDA_ERROR_INVALID_HANDLE"
    with pytest.raises(CudaError):
        driver.push_context(12345)


def test_streams_run_at_the_same_time(driver, stream):
    """Each of two streams waits for the other to have begun."""
    other = driver.stream_create()
    first, first_passed = gate_on(driver, stream)
    second, second_passed = gate_on(driver, other)
    for opens in (second, first):
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _, gate=opens: gate.set())
        _callbacks.append(callback)
        handle = driver.stream_create()
        driver.call("cuLaunchHostFunc", handle, ctypes.cast(callback, ctypes.c_void_p).value, 0)
        driver.stream_destroy(handle)  # takes effect when its work has ended
    driver.stream_synchronize(stream)
    driver.stream_synchronize(other)
    assert first_passed == second_passed == [True]
    driver.stream_destroy(other)
