# SPDX-License-Identifier: Apache-2.0
"""What the CUDA device has beyond other devices: kernels, graphs, registered memory, native order.

The behaviour that all devices share is tested in the suites over the ``device`` fixture. All of this
runs on a real device too (test/gpu), except where the software driver is told to do something.
"""

from __future__ import annotations

import threading
import time
import warnings

import ml_dtypes
import numpy as np
import pytest
from device_support import LIMIT, make_device, software_driver
from software_driver import PTX

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    DeviceError,
    InputError,
)
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.cuda_driver import CudaDeviceLostError, CudaError
from gristmill.runtime.devices.launching import encode_argument
from gristmill.runtime.events import Event
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager

COUNT = 5000
GRID, BLOCK = (-(-COUNT // 256),), (256,)


@pytest.fixture
def cuda():
    with make_device("cuda") as device:
        yield device
        device.synchronize(LIMIT)
        assert device.statistics().live_allocations == 0


@pytest.fixture
def stream(cuda):
    with cuda.create_stream("test") as made:
        yield made


@pytest.fixture
def module(cuda):
    with cuda.load_module(PTX) as made:
        yield made


@pytest.fixture
def block(cuda):
    """``COUNT`` int32 zeros on the device."""
    memory = cuda.allocate(4 * COUNT)
    cuda.fill(memory, 0, 4 * COUNT, 0).wait(LIMIT)
    yield memory
    memory.drop()


def download(cuda, memory, dtype=np.int32, **options):
    array = np.empty(memory.nbytes // np.dtype(dtype).itemsize, dtype)
    end = cuda.host_memory(array.ctypes.data, array.nbytes, owner=array)
    event = cuda.copy(end, 0, memory, 0, memory.nbytes, **options)
    end.drop()
    event.wait(LIMIT)
    return array


def upload(cuda, memory, array, **options):
    end = cuda.host_memory(array.ctypes.data, array.nbytes, owner=array)
    event = cuda.copy(memory, 0, end, 0, array.nbytes, **options)
    end.drop()
    return event


# The device


def test_what_the_device_says(cuda):
    assert str(cuda) == "cuda:0"
    assert cuda.name
    assert cuda.capability >= (5, 0)
    free, total = cuda.memory_info()
    assert 0 < free <= total


def test_there_is_no_such_device(cuda):
    for ordinal in (-1, 64):
        with pytest.raises(DeviceError, match=f"there is no CUDA device {ordinal}; there are"):
            CudaDevice(ordinal)


def test_two_of_one_device_share_its_context(cuda, block):
    with CudaDevice(0) as other:
        memory = other.allocate(64)
        other.fill(memory, 0, 64, 7).wait(LIMIT)
        assert (download(other, memory, np.uint8) == 7).all()
        memory.drop()
    assert not download(cuda, block).any()


# Kernels


def test_a_kernel_runs(cuda, stream, module, block):
    kernel = module.kernel("add_constant")
    assert kernel.parameters == ((0, 8), (8, 4), (12, 4))
    assert module.kernel("add_constant") is kernel
    for value in (5, -7, np.int32(1)):
        kernel.launch(stream, GRID, BLOCK, (block, COUNT, value))
    np.testing.assert_array_equal(download(cuda, block, stream=stream), np.full(COUNT, -1))


def test_floats_and_grids(cuda, stream, module):
    x, y = (np.linspace(a, b, COUNT, dtype=np.float32) for a, b in ((0, 1), (3, -2)))
    ends = [cuda.allocate(4 * COUNT) for _ in range(2)]
    events = [upload(cuda, end, array) for end, array in zip(ends, (y, x), strict=True)]
    saxpy = module.kernel("saxpy")
    saxpy.launch(stream, (1, 1, 1), (32,), (*ends, 0.5, 10), waits=events)
    got = download(cuda, ends[0], np.float32, stream=stream)
    # One rounding of the exact sum: what the kernel's fma does.
    exact = np.float64(0.5) * x[:10] + y[:10]
    np.testing.assert_array_equal(got[:10], exact.astype(np.float32))
    np.testing.assert_array_equal(got[10:], y[10:])
    for end in ends:
        end.drop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2), "takes 3 arguments, not 2"),
        ((1, 2, 1 << 32), "argument 2, 4294967296, does not fit 4 bytes"),
        ((1, 2, -(1 << 31) - 1), "does not fit 4 bytes"),
        ((1, 2, np.int64(1)), "argument 2 has 8 bytes, its parameter 4"),
        ((1, 2, b"12345"), "argument 2 has 5 bytes, its parameter 4"),
    ],
)
def test_arguments_are_checked(stream, module, arguments, message):
    with pytest.raises(InputError, match=message):
        module.kernel("add_constant").launch(stream, (1,), (1,), arguments)


def test_arguments_become_bytes():
    assert encode_argument("k", 0, 1.5, 4) == np.float32(1.5).tobytes()
    assert encode_argument("k", 0, 1.5, 8) == np.float64(1.5).tobytes()
    assert encode_argument("k", 0, True, 1) == b"\1"
    assert encode_argument("k", 0, 255, 1) == encode_argument("k", 0, -1, 1) == b"\xff"
    half = ml_dtypes.bfloat16(1.5)
    assert encode_argument("k", 0, np.asarray(half)[()], 2) == np.asarray(half).tobytes()
    with pytest.raises(InputError, match="give a numpy scalar of its type"):
        encode_argument("k", 0, 1.5, 2)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((0,), (1,)), ((1,), (-1,)), ((1, 1, 1, 1), (1,)), ((1,), (32, 32, 2)), ((1.0,), (1,))],
)
def test_extents_are_checked(stream, module, grid, block):
    with pytest.raises(InputError):
        module.kernel("spin").launch(stream, grid, block, (1,))


def test_what_is_no_module(cuda, module):
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_PTX"):
        cuda.load_module("no PTX")
    with pytest.raises(
        CudaError, match=r"cuModuleGetFunction failed with CUDA_ERROR_NOT_FOUND.*nobody"
    ):
        module.kernel("nobody")


def test_a_module_may_be_closed_while_its_kernel_runs(cuda, stream, block):
    module = cuda.load_module(PTX)
    kernel = module.kernel("spin")
    event = kernel.launch(stream, (1,), (1,), (20_000,))
    module.close()
    module.close()
    with pytest.raises(ClosedError, match="was closed"):
        kernel.launch(stream, (1,), (1,), (1,))
    event.wait(LIMIT)


def test_memory_lives_until_its_kernel_has_ended(cuda, stream, module):
    memory = cuda.allocate(4 * COUNT)
    module.kernel("spin").launch(stream, (1,), (1,), (20_000,))
    event = module.kernel("add_constant").launch(stream, GRID, BLOCK, (memory, COUNT, 1))
    memory.drop()
    assert cuda.statistics().live_allocations == 1
    event.wait(LIMIT)
    stream.synchronize(LIMIT)
    assert memory.closed


def test_a_kernel_waits_until_its_buffers_are_filled(cuda, stream, module):
    array = np.arange(COUNT, dtype=np.int32)
    with create_transfer_manager(cuda, [Shape.parse(f"s32[{COUNT}]")]) as manager:
        buffer = manager.retrieve_buffer(0)
        launched = module.kernel("add_constant").launch(stream, GRID, BLOCK, (buffer, COUNT, 2))
        with (
            pytest.raises(InputError, match="needs buffers that are defined"),
            cuda.record_graph() as recorder,
        ):
            recorder.launch(module.kernel("add_constant"), GRID, BLOCK, (buffer, COUNT, 2))
        assert not launched.done
        manager.transfer_raw(0, array)
        result = np.zeros_like(array)
        buffer.copy_to_host(result, waits=(launched,)).wait(LIMIT)
    np.testing.assert_array_equal(result, array + 2)
    buffer.close()


def test_a_kernel_is_not_run_on_a_buffer_that_failed(cuda, stream, module):
    with create_transfer_manager(cuda, [Shape.parse(f"s32[{COUNT}]")]) as manager:
        buffer = manager.retrieve_buffer(0)
        launched = module.kernel("add_constant").launch(stream, GRID, BLOCK, (buffer, COUNT, 2))
        manager.set_buffer_error(0, "no data")
    with pytest.raises(DependencyError, match=r"was not run.*no data"):
        launched.wait(LIMIT)
    stream.recover()
    buffer.close()


# Order


def test_a_launch_waits_for_any_event(cuda, stream, module, block):
    gate = Event("gate")
    launched = module.kernel("add_constant").launch(
        stream, GRID, BLOCK, (block, COUNT, 1), waits=(gate,)
    )
    copied = cuda.copy(block, 0, block, 2 * COUNT, 8, waits=(launched,))
    time.sleep(0.02)
    assert not launched.done
    gate.complete()
    copied.wait(LIMIT)
    assert (download(cuda, block) == 1).all()


def test_a_launch_is_not_run_when_what_it_waits_for_failed(cuda, stream, module, block):
    gate = Event("gate")
    launched = module.kernel("add_constant").launch(
        stream, GRID, BLOCK, (block, COUNT, 1), waits=(gate,)
    )
    gate.fail(ValueError("no"))
    with pytest.raises(DependencyError, match=r"launch add_constant was not run.*first: no"):
        launched.wait(LIMIT)
    later = module.kernel("add_constant").launch(stream, GRID, BLOCK, (block, COUNT, 1))
    with pytest.raises(DependencyError):
        later.wait(LIMIT)
    assert not download(cuda, block).any()
    stream.recover()
    module.kernel("add_constant").launch(stream, GRID, BLOCK, (block, COUNT, 1)).wait(LIMIT)
    assert (download(cuda, block) == 1).all()


def test_work_after_failing_host_work_is_not_run(cuda, stream, module, block):
    def fail():
        raise ValueError("host")

    failing = stream.enqueue(fail)
    launched = module.kernel("add_constant").launch(stream, GRID, BLOCK, (block, COUNT, 1))
    with pytest.raises(ValueError, match="host"):
        failing.wait(LIMIT)
    with pytest.raises(DependencyError):
        launched.wait(LIMIT)
    assert not download(cuda, block).any()
    stream.recover()


def test_streams_interleave_as_their_events_say(cuda, module, block):
    """Kernels on three streams in turn, each after the one before: none may be lost."""
    kernel = module.kernel("add_constant")
    streams = [cuda.create_stream(f"s{i}") for i in range(3)]
    event = None
    for turn in range(60):
        waits = () if event is None else (event,)
        event = kernel.launch(streams[turn % 3], GRID, BLOCK, (block, COUNT, 1), waits=waits)
    event.wait(LIMIT)
    assert (download(cuda, block) == 60).all()
    for stream in streams:
        stream.close()


def test_the_caller_does_not_wait_for_copies(cuda, stream, module):
    """A copy to ordinary host memory blocks in the driver: not on this thread."""
    memory = cuda.allocate(1 << 20)
    array = np.zeros(1 << 20, np.uint8)
    end = cuda.host_memory(array.ctypes.data, array.nbytes, owner=array)
    module.kernel("spin").launch(stream, (1,), (1,), (300_000,))
    begun = time.perf_counter()
    events = [cuda.copy(end, 0, memory, 0, 1 << 20, stream)]
    events.append(cuda.copy(memory, 0, end, 0, 1 << 20, stream))
    assert time.perf_counter() - begun < 0.2
    assert not events[0].done
    events[1].wait(LIMIT)
    memory.drop()
    end.drop()


def test_a_busy_stream_is_not_closed_too_early(cuda, module):
    stream = cuda.create_stream("busy")
    gate = Event("gate")
    event = stream.enqueue(lambda: None, waits=(gate,))
    with pytest.raises(DeadlineError, match="still has work after"):
        stream.close(timeout=0.02)
    assert not stream.closed
    gate.complete()
    stream.close(LIMIT)
    assert event.ok
    with pytest.raises(ClosedError):
        stream.record_event()


def test_the_thread_of_an_idle_stream_ends(cuda, stream):
    stream.enqueue(lambda: None).wait(LIMIT)
    name = f"gristmill {cuda} {stream.name}"
    deadline = time.monotonic() + LIMIT
    while any(thread.name == name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stream.enqueue(lambda: None).wait(LIMIT)


# Host memory


def test_registered_memory_is_used_in_place(cuda, stream, module):
    array = np.arange(COUNT, dtype=np.int32)
    address = cuda.register_host(array.ctypes.data, array.nbytes)
    with pytest.raises(InputError, match=r"cannot be registered: .*ALREADY_REGISTERED"):
        cuda.register_host(array.ctypes.data, array.nbytes)
    kernel = module.kernel("add_constant")
    kernel.launch(stream, GRID, BLOCK, (address, COUNT, 9)).wait(LIMIT)
    np.testing.assert_array_equal(array, np.arange(COUNT) + 9)
    cuda.unregister_host(array.ctypes.data)
    with pytest.raises(InputError, match="no host memory is registered"):
        cuda.unregister_host(array.ctypes.data)


def test_host_memory_that_cannot_be_registered(cuda):
    for address, nbytes in ((0, 10), (4096, 0)):
        with pytest.raises(InputError):
            cuda.register_host(address, nbytes)


def test_only_the_devices_memory_is_adopted(cuda, block):
    adopted = cuda.adopt(block.address + 8, 8, readonly=True, owner=block)
    assert adopted.address == block.address + 8
    adopted.drop()
    pinned = cuda.allocate(64, MemorySpace.PINNED)
    for address in (pinned.address, np.zeros(4).ctypes.data, 4096):
        with pytest.raises(InputError, match="is no device memory, so cuda:0 cannot use it"):
            cuda.adopt(address, 8, readonly=True, owner=None)
    pinned.drop()


def test_pinned_memory_is_the_hosts_and_the_devices(cuda, stream, module):
    memory = cuda.allocate(4 * COUNT, MemorySpace.PINNED)
    view = np.frombuffer(host_bytes(cuda, memory), np.int32)
    view[:] = 3
    kernel = module.kernel("add_constant")
    kernel.launch(stream, GRID, BLOCK, (memory, COUNT, 4)).wait(LIMIT)
    assert (view == 7).all()
    del view
    memory.drop()


def host_bytes(cuda, memory):
    import ctypes

    return (ctypes.c_uint8 * memory.nbytes).from_address(cuda.host_pointer(memory))


# Fills and graphs


def test_fills(cuda, block):
    cuda.fill(block, 4, 8, 1).wait(LIMIT)
    assert list(download(cuda, block)[:4]) == [0, 0x01010101, 0x01010101, 0]
    for offset, nbytes, value in ((0, 4 * COUNT + 1, 0), (-1, 1, 0), (0, 1, 256)):
        with pytest.raises(InputError):
            cuda.fill(block, offset, nbytes, value)


def test_a_graph_runs_again_and_again(cuda, stream, module, block):
    other = cuda.allocate(4 * COUNT, MemorySpace.PINNED)
    kernel = module.kernel("add_constant")
    with cuda.record_graph() as recorder:
        recorder.launch(kernel, GRID, BLOCK, (block, COUNT, 2))
        recorder.fill(block, 0, 4, 0)
        recorder.copy(other, 0, block, 0, 4 * COUNT)
    assert not download(cuda, block).any()  # recorded, not run
    graph = recorder.graph
    assert graph.nodes == 3
    for _ in range(10):
        event = graph.launch(stream)
    event.wait(LIMIT)
    expected = np.full(COUNT, 20)
    expected[0] = 0
    np.testing.assert_array_equal(np.frombuffer(host_bytes(cuda, other), np.int32), expected)
    gate = Event("gate")
    last = graph.launch(stream, waits=(gate,))
    graph.close()  # takes effect when the launch has ended
    other.drop()
    with pytest.raises(ClosedError):
        graph.launch(stream)
    gate.complete()
    last.wait(LIMIT)
    stream.synchronize(LIMIT)
    assert other.closed


def test_what_a_graph_refuses(cuda, block):
    array = np.zeros(8, np.uint8)
    end = cuda.host_memory(array.ctypes.data, 8, owner=array)
    recorder = cuda.record_graph()
    with pytest.raises(InputError, match="it is not page-locked"), recorder:
        recorder.copy(block, 0, end, 0, 8)
    with pytest.raises(InputError, match="recording has ended without an error"):
        _ = recorder.graph
    with pytest.raises(InputError, match="overlap"), cuda.record_graph() as again:
        again.copy(block, 0, block, 4, 8)
    end.drop()


def test_a_graph_that_is_not_closed_warns(cuda, block):
    with cuda.record_graph() as recorder:
        recorder.fill(block, 0, 4, 0)
    with pytest.warns(ResourceWarning, match="CUDA graph of cuda:0 was not closed"):
        recorder.graph.__del__()
    recorder.graph.close()


def test_a_lost_device_says_so_and_can_be_opened_again():
    device = make_device("cuda")
    module = device.load_module(PTX)
    stream = device.create_stream("s")
    memory = device.allocate(1000)
    with pytest.raises(CudaDeviceLostError, match=r"ILLEGAL_ADDRESS.*close the device and open it"):
        module.kernel("wild_store").launch(stream, (1,), (1,), ()).wait(LIMIT)
    assert isinstance(device.lost, CudaDeviceLostError)
    for use in (device.allocate, lambda n: device.register_host(1 << 20, n)):
        with pytest.raises(DeviceError, match="cuda:0 is lost; close it and open it again"):
            use(16)
    with pytest.raises(DeviceError):
        device.fill(memory, 0, 8, 0)
    memory.drop()
    module.close()
    stream.close()
    device.close()
    with make_device("cuda") as again:
        memory = again.allocate(1000)
        again.fill(memory, 0, 1000, 3).wait(LIMIT)
        assert (download(again, memory, np.uint8) == 3).all()
        memory.drop()


# With the software driver only: what it is told, and what it was asked


@pytest.mark.software
def test_order_within_the_device_is_native(cuda, stream, module, block):
    """A wait for another stream's work is the driver's, not the host's."""
    controls = software_driver()
    kernel = module.kernel("add_constant")
    spinning = cuda.create_stream("spinning")
    event = module.kernel("spin").launch(spinning, (1,), (1,), (100_000,))
    controls.reset()
    last = kernel.launch(stream, GRID, BLOCK, (block, COUNT, 1), waits=(event,))
    assert controls.calls("cuStreamWaitEvent") == controls.calls("cuLaunchKernel") == 1
    assert not last.done
    last.wait(LIMIT)
    spinning.close()


@pytest.mark.software
def test_memory_of_another_device_is_not_adopted():
    controls = software_driver()
    controls.set_devices(2)
    with CudaDevice(0) as first, CudaDevice(1) as second:
        memory = first.allocate(8)
        with pytest.raises(InputError, match="is memory of cuda:0, so cuda:1 cannot use it"):
            second.adopt(memory.address, 8, readonly=True, owner=memory)
        memory.drop()
    controls.set_devices(1)


@pytest.mark.software
def test_devices_order_each_other():
    controls = software_driver()
    controls.set_devices(2)
    with CudaDevice(0) as first, CudaDevice(1) as second, first.load_module(PTX) as module:
        memory = second.allocate(16)
        with first.create_stream() as stream:
            begun = time.perf_counter()
            spin = module.kernel("spin").launch(stream, (1,), (1,), (50_000,))
            second.fill(memory, 0, 16, 1, waits=(spin,)).wait(LIMIT)
            assert time.perf_counter() - begun >= 0.05
        memory.drop()
    controls.set_devices(1)
    assert controls.report() == ""


@pytest.mark.software
def test_many_threads_and_slow_operations():
    """Threads share streams while every operation takes a random time longer."""
    controls = software_driver()
    controls.reset()
    failures = []
    with CudaDevice(0) as cuda, cuda.load_module(PTX) as module:
        controls.delay(300)
        kernel = module.kernel("add_constant")
        streams = [cuda.create_stream(f"s{i}", chain_errors=i == 0) for i in range(3)]

        def work(seed):
            try:
                random = np.random.default_rng(seed)
                memory = cuda.allocate(4 * COUNT)
                array = random.integers(0, 1000, COUNT, dtype=np.int32)
                event, total = upload(cuda, memory, array), array.copy()
                for _ in range(20):
                    stream = streams[random.integers(3)]
                    if random.random() < 0.3:
                        array = random.integers(0, 1000, COUNT, dtype=np.int32)
                        event, total = (
                            upload(cuda, memory, array, stream=stream, waits=(event,)),
                            array,
                        )
                    else:
                        event = kernel.launch(
                            stream, GRID, BLOCK, (memory, COUNT, seed), waits=(event,)
                        )
                        total = total + seed
                np.testing.assert_array_equal(download(cuda, memory, waits=(event,)), total)
                memory.drop()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * LIMIT)
            assert not thread.is_alive()
        assert failures == []
        for stream in streams:
            stream.close(LIMIT)
    controls.reset()
    assert controls.report() == ""


@pytest.mark.software
def test_nothing_is_left():
    controls = software_driver()
    controls.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with CudaDevice(0) as cuda, cuda.load_module(PTX) as module:
            memory = cuda.allocate(64, MemorySpace.DEVICE)
            kernel = module.kernel("add_constant")
            with cuda.create_stream() as stream:
                kernel.launch(stream, (1,), (16,), (memory, 16, 1)).wait(LIMIT)
            memory.drop()
    assert controls.report() == ""
