# SPDX-License-Identifier: Apache-2.0
"""Whatever driver call fails: a typed error or a warning, no leak, no hang, and the process goes on."""

from __future__ import annotations

import contextlib
import threading
import warnings

import numpy as np
import pytest
from device_support import LIMIT, software_driver
from software_driver import PTX

from gristmill.errors import DeviceError, GristmillError, ResourceExhaustedError
from gristmill.runtime.debug import leaks
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import Uploader, UploadOptions

COUNT = 20_000  # 80 kB: more than the driver stages
UNKNOWN, OUT_OF_MEMORY, LAUNCH_FAILED, INVALID_VALUE = 999, 2, 719, 1


@pytest.fixture
def sim():
    controls = software_driver()
    controls.reset()
    yield controls
    controls.reset()
    assert controls.report() == ""


def program():
    """Upload, launch, a graph, download: pageable, page-locked and registered; raises what goes wrong."""
    data = np.arange(COUNT, dtype=np.int32)
    result = np.zeros_like(data)
    kept = np.zeros_like(data)
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(CudaDevice(0))
        stream = stack.enter_context(device.create_stream("program"))
        module = stack.enter_context(device.load_module(PTX))
        kernel = module.kernel("add_constant")

        def memory(space, where=None):
            made = device.allocate(data.nbytes, space, where)
            stack.callback(made.drop)
            return made

        def host(array):
            made = device.host_memory(array.ctypes.data, array.nbytes, owner=array)
            stack.callback(made.drop)
            return made

        block, other = memory(MemorySpace.DEVICE), memory(MemorySpace.DEVICE, stream)
        pinned = memory(MemorySpace.PINNED)
        address = device.register_host(kept.ctypes.data, kept.nbytes)
        stack.callback(device.unregister_host, address)
        events = [device.copy(block, 0, host(data), 0, data.nbytes)]
        grid = (-(-COUNT // 256),)
        events.append(kernel.launch(stream, grid, (256,), (block, COUNT, 5), waits=events[:1]))
        events.append(device.copy(other, 0, block, 0, data.nbytes, stream))
        with device.record_graph() as recorder:
            recorder.launch(kernel, grid, (256,), (other, COUNT, 1))
            recorder.copy(pinned, 0, other, 0, data.nbytes)
        stack.enter_context(recorder.graph)
        events.append(recorder.graph.launch(stream))
        events.append(device.fill(block, 0, 4, 0, waits=events[-1:]))
        events.append(device.copy(host(kept), 0, pinned, 0, data.nbytes, stream))
        events.append(device.copy(host(result), 0, other, 0, data.nbytes, waits=events[-1:]))
        events.append(stream.record_event())
        for event in events:
            event.wait(LIMIT)
        device.synchronize(LIMIT)
    np.testing.assert_array_equal(result, data + 6)
    np.testing.assert_array_equal(kept, data + 6)


def managed_program():
    """The same by the transfer manager and buffers: staged uploads in pieces, a launch, a download."""
    data = np.arange(COUNT, dtype=np.int32)
    result = np.zeros_like(data)
    options = UploadOptions(chunk_bytes=1 << 15, staging_bytes=1 << 16)
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(CudaDevice(0))
        stream = stack.enter_context(device.create_stream("program"))
        module = stack.enter_context(device.load_module(PTX))
        uploader = stack.enter_context(Uploader(device, options))
        shapes = [Shape.parse(f"s32[{COUNT}]")]
        manager = create_transfer_manager(device, shapes, uploader=uploader)
        with manager, manager.retrieve_buffer(0) as buffer:
            grid = (-(-COUNT // 256),)
            kernel = module.kernel("add_constant")
            launched = kernel.launch(stream, grid, (256,), (buffer, COUNT, 6))
            manager.transfer_raw(0, data)
            buffer.copy_to_host(result, waits=(launched,)).wait(LIMIT)
    np.testing.assert_array_equal(result, data + 6)


def outcome(program=program):
    """The error of the program, or its warnings; fails when it does not end, or leaks."""
    found = []

    def run():
        try:
            program()
        except GristmillError as error:
            found.append(error)
        except BaseException as error:  # not typed: the test is to see it
            found.append(error)

    with warnings.catch_warnings(record=True) as caught, leaks.track(raises=True):
        warnings.simplefilter("always")
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(3 * LIMIT)
        assert not thread.is_alive(), "the program hangs"
    return found, [warning.message for warning in caught]


def places(sim, program):
    """Each call of each function that the program makes."""
    sim.reset()
    program()
    names = sim.names()
    return [(name, nth) for name in sorted(set(names)) for nth in range(1, names.count(name) + 1)]


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY, LAUNCH_FAILED])
@pytest.mark.parametrize("program", [program, managed_program])
def test_every_call_may_fail(sim, program, code):
    assert outcome(program) == ([], [])
    calls = places(sim, program)
    functions = {name for name, _ in calls}
    assert {"cuMemAllocAsync", "cuMemHostRegister", "cuLaunchKernel", "cuEventRecord"} <= functions
    struck = 0
    for function, nth in calls:
        sim.reset()
        sim.fail(function, nth, code)
        errors, told = outcome(program)
        if sim.pending_faults:  # the threads' number of calls differs from run to run
            continue
        struck += 1
        where = f"{function} {nth}: {errors} {told}"
        assert sim.report() == "", where
        if (function, code) == ("cuMemAllocAsync", OUT_OF_MEMORY):
            assert not errors, where  # is tried again when what was released is free
            continue
        assert errors or told, f"{where}: nobody heard of it"
        assert all(isinstance(error, GristmillError) for error in errors), where
        assert all(isinstance(w, ResourceWarning | RuntimeWarning) for w in told), where
        text = " ".join(map(str, [*errors, *told]))
        assert function.removesuffix("WithFlags") in text, where
    assert struck > 0.9 * len(calls)
    sim.reset()
    assert outcome(program) == ([], [])


def test_a_kernel_that_fails_loses_the_device(sim):
    for nth in (1, 2):
        sim.reset()
        sim.fail("kernel", nth, LAUNCH_FAILED)
        (error,), _ = outcome()
        assert isinstance(error, DeviceError)
        assert "LAUNCH_FAILED" in str(error)
        assert sim.report() == ""
    sim.reset()
    assert outcome() == ([], [])


def test_memory_runs_out(sim):
    sim.limit_memory(device=1 << 20, pinned=1 << 16)
    with CudaDevice(0) as device:
        first = device.allocate(1 << 19)
        with pytest.raises(
            ResourceExhaustedError, match=r"cuda:0 .* 1048576 bytes of device memory"
        ) as e:
            device.allocate(1 << 20)
        assert "524288 of its 1048576 bytes are free, 524288 bytes are in use" in str(e.value)
        with pytest.raises(ResourceExhaustedError, match=r"page-locked host memory.*ulimit -l"):
            device.allocate(1 << 17, MemorySpace.PINNED)
        assert device.statistics().live_allocations == 1
        first.drop()
        device.allocate(1 << 20).drop()  # what was released counts as free at once
        assert device.statistics().live_bytes == 0


def test_page_locked_memory_for_staging_runs_out(sim):
    with CudaDevice(0) as device:
        sim.fail("cuMemHostRegister", 1, OUT_OF_MEMORY)
        with pytest.raises(ResourceExhaustedError, match=r"page-locked host memory.*ulimit -l"):
            device.allocate_staging(1 << 17)
        device.allocate_staging(1 << 17).drop()
        assert device.host_allocator.statistics().live_bytes == 0


def test_nothing_stays_registered_after_its_device(sim):
    """The primary context may live on, as other libraries of the process hold it too."""
    array = np.zeros(4096, np.uint8)
    with CudaDevice(0) as other:
        device = CudaDevice(0)
        device.register_host(array.ctypes.data, array.nbytes)
        slot = device.host_pool.acquire("pred")
        device.close()
        device.unregister_host(array.ctypes.data)  # over already
        other.register_host(array.ctypes.data, array.nbytes)
        other.unregister_host(array.ctypes.data)
        slot.close()
        assert "registered" not in sim.report()


def test_a_device_on_no_numa_node(sim):
    for code in (UNKNOWN, INVALID_VALUE):
        sim.reset()
        CudaDevice(0).close()
        sim.fail("cuDeviceGetAttribute", sim.calls("cuDeviceGetAttribute"), code)
        if code == INVALID_VALUE:  # the driver is older than the attribute
            with CudaDevice(0) as device:
                assert device.numa_node is None
                assert device.allocate_staging(100).drop() is None
        else:
            with pytest.raises(DeviceError, match="cuDeviceGetAttribute"):
                CudaDevice(0)


def test_what_is_held_survives_the_device(sim):
    device = CudaDevice(0)
    pinned = device.allocate(4096, MemorySpace.PINNED)
    with pytest.warns(ResourceWarning, match="1 allocations are still held; its context stays"):
        device.close()
    assert "1 pinned memory" in sim.report()
    pinned.drop()
    assert "memory" not in sim.report()
    device.driver.reset_primary_context(0)
    device.driver.release_primary_context(0)
    sim.reset()


def test_a_device_that_is_not_closed_warns():
    software_driver().reset()
    device = CudaDevice(0)
    with pytest.warns(ResourceWarning, match="cuda:0 was not closed"):
        device.__del__()
    device.close()
