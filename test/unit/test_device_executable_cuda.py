# SPDX-License-Identifier: Apache-2.0
"""Device executables end to end on the cuda path: the software driver, its launches run by simulated kernels."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from cuda_simulation import native_kernels
from device_programs import (
    CHOICE,
    DOUBLING,
    INCREMENT,
    PRODUCTS,
    ROWS,
    Array,
    device_program,
    random_array,
)
from device_support import software_driver

from gristmill.errors import DeviceError, GristmillError
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import races
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.device_program import DeviceProgram
from gristmill.runtime.devices.cuda import CudaDevice

pytestmark = pytest.mark.software

#: A body of several launches, so that it is worth a graph.
LOOP = """
func.func @main(%n: tensor<i32>, %x: tensor<40x40xf32>, %w: tensor<40x40xf32>) -> tensor<40x40xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<40x40xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.dot_general %s, %w, contracting_dims = [1] x [0]
      : (tensor<40x40xf32>, tensor<40x40xf32>) -> tensor<40x40xf32>
    %u = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0]
      : (tensor<40x40xf32>, tensor<40x40xf32>) -> tensor<40x40xf32>
    stablehlo.return %j, %u : tensor<i32>, tensor<40x40xf32>
  }
  return %r#1 : tensor<40x40xf32>
}
"""


@cache
def program(text: str) -> DeviceProgram:
    return device_program(text, ("ptx", "simulator"))


@contextmanager
def opened(text: str) -> Generator[DeviceExecutable]:
    """An executable on a new device; at the end nothing may be left in the driver."""
    driver = software_driver()
    driver.reset()
    with native_kernels(program(text)) as faults, CudaDevice(0) as device:
        with DeviceExecutable(program(text), device) as executable:
            yield executable
        assert device.statistics().live_bytes == 0
        assert device.statistics().streams <= 3, "the transfer streams only"
    assert faults == []
    assert driver.report() == ""


def check_rows(results: Any, a: Array, b: Array) -> None:
    full = np.tanh(a.astype(np.float64) + b)
    np.testing.assert_allclose(results[0], full, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[1], full.sum(1), rtol=1e-5, atol=1e-5)


def test_upload_launch_download() -> None:
    a, b = random_array(100, 64), random_array(64)
    with opened(ROWS) as executable:
        for _ in range(3):
            check_rows(executable(a, b), a, b)


@pytest.mark.parametrize(("index", "chosen"), [(0, 0), (1, 1), (7, 2)])
def test_a_branch(index: int, chosen: int) -> None:
    x = random_array(8)
    with opened(CHOICE) as executable:
        np.testing.assert_array_equal(executable(np.int32(index), x), [x + x, x * x, -x][chosen])


def test_a_loop_whose_body_becomes_a_graph() -> None:
    x, w = random_array(40, 40), np.linalg.qr(random_array(40, 40))[0]
    driver = software_driver()
    with opened(LOOP) as executable:
        got = executable(np.int32(6), x, w)
        assert driver.calls("cuGraphLaunch") >= 3
        assert driver.calls("cuGraphInstantiateWithFlags") + driver.calls("cuGraphInstantiate") >= 1
        again = executable(np.int32(6), x, w)
    wanted = x.astype(np.float64)
    for _ in range(12):
        wanted = wanted @ w
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(again, got)


def test_a_program_called_again_becomes_a_graph() -> None:
    driver = software_driver()
    with opened(PRODUCTS) as executable:
        for seed in range(5):
            x, w = random_array(16, 32, seed=seed), random_array(32, 32, seed=seed + 1)
            b, c = executable(x, w)
            np.testing.assert_allclose(b, x.astype(np.float64) @ w @ w, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(c, x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-4)
        assert driver.calls("cuGraphLaunch") == 3


def test_other_addresses_are_not_those_of_the_graph() -> None:
    """Buffers that move, between calls that would run the graph."""
    with opened(PRODUCTS) as executable:
        w = random_array(32, 32)
        for seed in range(6):
            x = random_array(16, 32, seed=seed)
            with RawBuffer.from_host(executable.device, x) as buffer:
                b, _ = executable(buffer if seed % 2 else x, w)
            np.testing.assert_allclose(b, x.astype(np.float64) @ w @ w, rtol=1e-4, atol=1e-4)


def test_donation_and_results_on_the_device() -> None:
    x = random_array(5000)
    with opened(INCREMENT) as executable:
        buffer = RawBuffer.from_host(executable.device, x)
        for _ in range(4):
            address = buffer.address
            buffer = executable(buffer, donate=True, results="device")
            assert buffer.address == address
        with buffer:
            out = np.zeros(5000, np.float32)
            buffer.copy_to_host(out).wait(20)
        np.testing.assert_array_equal(out, x + 1 + 1 + 1 + 1)


@pytest.mark.parametrize("offset", [0, 4])
def test_registered_memory_is_used_where_it_lies_if_aligned(offset: int) -> None:
    room = np.zeros(8000, np.uint8)
    start = -room.ctypes.data % 64 + offset
    a, b = random_array(100, 64), room[start : start + 256].view(np.float32)
    b[:] = random_array(64)
    with opened(ROWS) as executable:
        executable.device.register_host(room.ctypes.data, room.nbytes)
        check_rows(executable(a, b), a, b)
        uploader = executable._loaded.uploader
        assert uploader.last == ["copied", "copied" if offset else "in place"]
        executable.device.unregister_host(room.ctypes.data)


def test_slow_uploads_and_kernels_in_many_threads() -> None:
    failures: list[BaseException] = []
    with opened(DOUBLING) as executable:
        software_driver().delay(200)

        def work(seed: int) -> None:
            try:
                x = random_array(1000, seed=seed)
                for count in range(3):
                    np.testing.assert_array_equal(executable(np.int32(count), x), x * 2.0**count)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        software_driver().delay(0)
    assert not failures


def test_no_race_between_streams() -> None:
    x, w = random_array(16, 32), random_array(32, 32)
    with races.detect() as detector, opened(PRODUCTS) as executable:
        for _ in range(2):
            b, _ = executable(x, w)
    detector.check()
    np.testing.assert_allclose(b, x.astype(np.float64) @ w @ w, rtol=1e-4, atol=1e-4)


FAULTS = (
    *("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemAllocAsync"),
    *("cuStreamCreate", "cuEventRecord", "cuEventCreate", "cuStreamWaitEvent"),
    *("cuGraphLaunch", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuEventSynchronize"),
)


@pytest.mark.parametrize("function", FAULTS)
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_call_of_the_driver_that_fails(function: str, nth: int) -> None:
    """The call that meets it fails or gives the right results; later ones are right, or the device is lost."""
    driver = software_driver()
    driver.reset()
    x, w = random_array(40, 40), np.linalg.qr(random_array(40, 40))[0]
    count = np.int32(5)
    with native_kernels(program(LOOP)), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with CudaDevice(0) as device, DeviceExecutable(program(LOOP), device) as executable:
            good = executable(count, x, w)
            driver.fail(function, nth, 999)
            with suppress(GristmillError):
                np.testing.assert_array_equal(executable(count, x, w), good)
            driver.reset()
            if device.lost is None:
                for _ in range(2):
                    np.testing.assert_array_equal(executable(count, x, w), good)
                assert device.statistics().live_allocations < 12
        assert device.closed


def test_a_call_ends_though_its_memory_cannot_be_given_back() -> None:
    x = random_array(5000)
    driver = software_driver()
    driver.reset()
    got: list[Any] = []
    with native_kernels(program(INCREMENT)), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        device = CudaDevice(0)
        executable = DeviceExecutable(program(INCREMENT), device)
        donated = RawBuffer.from_host(device, x)
        driver.fail("cuMemFreeAsync", 1, 999)  # the call takes it over, and ends it
        thread = threading.Thread(
            target=lambda: got.append(executable(donated, donate=True)), daemon=True
        )
        thread.start()
        thread.join(20)
        assert got, "it hangs"
        executable.close()
        device.close()
    driver.reset()
    np.testing.assert_array_equal(got[0], x + 1)


@pytest.mark.parametrize("nth", [1, 3])
def test_a_kernel_that_breaks_the_device(nth: int) -> None:
    driver = software_driver()
    driver.reset()
    x, w = random_array(40, 40), random_array(40, 40)
    with native_kernels(program(LOOP)), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with CudaDevice(0) as device, DeviceExecutable(program(LOOP), device) as executable:
            driver.fail("kernel", nth, 700)
            with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
                executable(np.int32(3), x, w)
            with pytest.raises(DeviceError, match="is lost"):
                executable(np.int32(3), x, w)
        driver.reset()
        # The device can be opened anew.
        with CudaDevice(0) as device, DeviceExecutable(program(LOOP), device) as executable:
            assert np.isfinite(executable(np.int32(3), x, w)).all()
