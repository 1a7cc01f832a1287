# SPDX-License-Identifier: Apache-2.0
"""Device executables on the simulator: results, memory, failures, threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
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

from gristmill.errors import (
    ClosedError,
    DependencyError,
    DeviceError,
    InputError,
    ResourceExhaustedError,
    UnsupportedError,
)
from gristmill.runtime import custom_calls, device_executable
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import leaks, races
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.device_program import DeviceProgram, Images
from gristmill.runtime.devices.simulator import SimulationError, SimulatorDevice
from gristmill.runtime.events import Event

program = lru_cache(maxsize=None)(device_program)


@pytest.fixture
def simulator() -> Iterator[SimulatorDevice]:
    with leaks.track() as tracker, SimulatorDevice(workers=2) as device:
        yield device
    tracker.report.check()


def rows_expected(a: Array, b: Array) -> tuple[Array, Array]:
    full = np.tanh(a.astype(np.float64) + b)
    return full, full.sum(1)


def check_rows(results: Any, a: Array, b: Array) -> None:
    for got, want in zip(results, rows_expected(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_arrays_in_and_out_again_and_again(simulator: SimulatorDevice) -> None:
    with DeviceExecutable(program(ROWS), simulator) as executable:
        for seed in range(3):
            a, b = random_array(100, 64, seed=seed), random_array(64, seed=seed + 9)
            check_rows(executable(a, b), a, b)
        live = simulator.statistics().live_bytes
        executable(a, b)
        assert simulator.statistics().live_bytes == live, "a frame serves the next call"
    assert simulator.statistics().live_bytes == 0


def test_results_in_given_arrays(simulator: SimulatorDevice) -> None:
    a, b = random_array(100, 64), random_array(64)
    sums = np.zeros(100, np.float32)
    with DeviceExecutable(program(ROWS), simulator) as executable:
        results = executable(a, b, out=[None, sums])
        assert results[1] is sums
        check_rows(results, a, b)
        # Over an input: results are computed before they are written there.
        results = executable(a.copy(), b, out=[a, None])
        assert results[0] is a


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_loop_by_the_devices_predicate(simulator: SimulatorDevice, count: int) -> None:
    x = random_array(1000)
    with DeviceExecutable(program(DOUBLING), simulator) as executable:
        np.testing.assert_array_equal(executable(np.int32(count), x), x * 2.0**count)


@pytest.mark.parametrize(("index", "chosen"), [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2)])
def test_a_branch_by_index(simulator: SimulatorDevice, index: int, chosen: int) -> None:
    x = random_array(8)
    wanted = [x + x, x * x, -x][chosen]
    with DeviceExecutable(program(CHOICE), simulator) as executable:
        np.testing.assert_array_equal(executable(np.int32(index), x), wanted)


def test_results_stay_on_the_device(simulator: SimulatorDevice) -> None:
    a, b = random_array(100, 64), random_array(64)
    with DeviceExecutable(program(ROWS), simulator) as executable:
        first, sums = executable(a, b, results="device")
        with first, sums:
            again, others = executable(first, b, results="device")
            with again, others:
                out = np.zeros((100, 64), np.float32)
                again.copy_to_host(out).wait(20)
                wanted = np.tanh(np.tanh(a.astype(np.float64) + b) + b)
                np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_a_result_may_be_closed_before_it_is_there(simulator: SimulatorDevice) -> None:
    with DeviceExecutable(program(DOUBLING), simulator) as executable:
        for _ in range(5):
            executable(np.int32(3), random_array(1000), results="device").close()


def test_a_donated_buffer_becomes_the_result(simulator: SimulatorDevice) -> None:
    x = random_array(5000)
    with DeviceExecutable(program(INCREMENT), simulator) as executable:
        kept = RawBuffer.from_host(simulator, x)
        donated = RawBuffer.from_host(simulator, x)
        with kept:
            address = donated.address
            with executable(donated, donate=[0], results="device") as result:
                assert donated.closed
                assert result.address == address
                with executable(kept, results="device") as other:
                    assert other.address != kept.address
                    for buffer, want in ((result, x + 1), (other, x + 1), (kept, x)):
                        out = np.zeros(5000, np.float32)
                        buffer.copy_to_host(out).wait(20)
                        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(executable(x, donate=True), x + 1)
        with pytest.raises(InputError, match="there is no input 'q'"):
            executable(x, donate=["q"])


def test_a_donated_buffer_must_be_free(simulator: SimulatorDevice) -> None:
    text = INCREMENT.replace(
        "%x: tensor<5000xf32> {tf.aliasing_output = 0 : i32}",
        "%x: tensor<5000xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<5000xf32>",
    ).replace("add %x, %one", "add %x, %y")
    with (
        DeviceExecutable(program(text), simulator) as executable,
        RawBuffer.from_host(simulator, random_array(5000)) as buffer,
    ):
        with pytest.raises(InputError, match="shares memory with argument 1"):
            executable(buffer, buffer, donate=[0])
        with (
            buffer.readonly_view() as view,
            pytest.raises(InputError, match="must be writeable"),
        ):
            executable(view, random_array(5000), donate=[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((100, 64), np.float32),), r"1 arguments given, 2 expected"),
        (
            (np.zeros((100, 64)), np.zeros(64, np.float32)),
            r"argument 0 \('input0'\): dtype float64",
        ),
        ((np.zeros((99, 64), np.float32), np.zeros(64, np.float32)), r"'input0'.*shape \(99, 64\)"),
        ((object(), np.zeros(64, np.float32)), r"'input0'.*an array is needed, not object"),
    ],
)
def test_wrong_arguments(
    simulator: SimulatorDevice, arguments: tuple[object, ...], message: str
) -> None:
    with DeviceExecutable(program(ROWS), simulator) as executable:
        with pytest.raises(InputError, match=message):
            executable(*arguments)
        with pytest.raises(InputError, match="neither 'host' nor 'device'"):
            executable(random_array(100, 64), random_array(64), results="moon")  # type: ignore[call-overload]


def test_wrong_buffers(simulator: SimulatorDevice) -> None:
    b = random_array(64)
    with (
        DeviceExecutable(program(ROWS), simulator) as executable,
        SimulatorDevice(1, workers=1) as elsewhere,
        RawBuffer.allocate(elsewhere, 25600) as foreign,
        RawBuffer.allocate(simulator, 25608) as large,
        large.slice(8, 25600) as odd,
    ):
        for buffer, message in (
            (foreign, "is not on simulator:0"),
            (large, "a buffer of 25608 bytes does not fit"),
            (odd, "is not aligned to 16 bytes"),
        ):
            with pytest.raises(InputError, match=message):
                executable(buffer, b)


def test_an_input_that_fails_poisons_that_call_alone(simulator: SimulatorDevice) -> None:
    a, b = random_array(100, 64), random_array(64)
    with DeviceExecutable(program(ROWS), simulator) as executable:
        definition = Event("the producer")
        with RawBuffer.allocate(simulator, 25600, definition=definition) as pending:
            definition.fail(DeviceError("it broke"))
            with pytest.raises(DeviceError, match="it broke") as caught:
                executable(pending, b)
            assert not isinstance(caught.value, DependencyError), "the first failure is shown"
        check_rows(executable(a, b), a, b)


BARRIER = """
module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @kernel_0_loop(%x: memref<5000xf32>, %c: memref<5000xf32>, %r: memref<5000xf32>, %w: memref<0xi8>)
        kernel attributes {known_block_size = array<i32: 64, 1, 1>, known_grid_size = array<i32: 2, 1, 1>} {
      %t = gpu.thread_id x
      %limit = arith.constant 5 : index
      %some = arith.cmpi ult, %t, %limit : index
      scf.if %some {
        gpu.barrier
      }
      gpu.return
    }
  }
}
"""


def broken_program() -> DeviceProgram:
    """A kernel with a barrier that not all threads reach."""
    from mlir import ir

    from gristmill.compiler.codegen.host import host_target
    from gristmill.compiler.codegen.simulator import to_simulator_objects

    good = program(INCREMENT)
    (kernel,) = good.kernels
    image = good.images.simulator
    assert image is not None
    text = BARRIER.replace("kernel_0_loop", kernel.name)
    if kernel.parameters == 3:  # without the constant
        text = text.replace("%c: memref<5000xf32>, ", "")
    with ir.Context(), ir.Location.unknown():
        objects = tuple(to_simulator_objects(ir.Module.parse(text), host_target()))
    return replace(
        good,
        kernels=(replace(kernel, grid=(2, 1, 1), block=(64, 1, 1)),),
        images=Images(simulator=replace(image, objects=objects)),
    )


def test_a_kernel_that_breaks_a_rule_is_named(simulator: SimulatorDevice) -> None:
    with DeviceExecutable(broken_program(), simulator) as executable:
        for _ in range(2):
            with pytest.raises(
                SimulationError, match=r"kernel_0_loop: block 0: a barrier"
            ) as caught:
                executable(random_array(5000))
            assert (caught.value.block, caught.value.code) == (0, 1)
        with (
            executable(random_array(5000), results="device") as result,
            pytest.raises(SimulationError),
        ):
            result.definition.wait(20)


def test_many_threads_share_an_executable(simulator: SimulatorDevice) -> None:
    failures: list[BaseException] = []
    with DeviceExecutable(program(DOUBLING), simulator) as executable:

        def work(seed: int) -> None:
            try:
                x = random_array(1000, seed=seed)
                for count in range(4):
                    got = executable(np.int32(count), x)
                    np.testing.assert_array_equal(got, x * 2.0**count)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures


def test_no_race_between_the_streams(simulator: SimulatorDevice) -> None:
    x, w = random_array(16, 32), random_array(32, 32)
    with races.detect() as detector, DeviceExecutable(program(PRODUCTS), simulator) as executable:
        b, c = executable(x, w)
    detector.check()
    np.testing.assert_allclose(b, x.astype(np.float64) @ w @ w, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(c, x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-4)


def test_closing(simulator: SimulatorDevice) -> None:
    executable = DeviceExecutable(program(ROWS), simulator)
    executable.close()
    executable.close()
    assert executable.closed
    with pytest.raises(InputError, match="has been closed"):
        executable(random_array(100, 64), random_array(64))
    owned = SimulatorDevice(1)
    with DeviceExecutable(program(ROWS), owned, owns_device=True):
        pass
    assert owned.closed
    with pytest.raises(ClosedError):
        DeviceExecutable(program(ROWS), owned)


@pytest.mark.parametrize("where", ["Call", "Frame"])
def test_an_interrupted_call_does_not_keep_it_from_closing(
    simulator: SimulatorDevice, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    a, b = random_array(100, 64), random_array(64)
    executable = DeviceExecutable(program(ROWS), simulator)
    with monkeypatch.context() as patch:
        patch.setattr(device_executable, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            executable(a, b)
    check_rows(executable(a, b), a, b)
    closing = threading.Thread(target=executable.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_an_executable_that_nobody_closed_is_reported() -> None:
    with SimulatorDevice(workers=1) as device, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lost = DeviceExecutable(program(ROWS), device)
        parts = lost._parts
        del lost
        parts.close()
    assert any("was not closed: its memory stays on simulator:0" in str(w.message) for w in seen)


def test_memory_that_is_not_there() -> None:
    with (
        SimulatorDevice(memory_limit=1 << 10) as small,
        DeviceExecutable(program(ROWS), small) as executable,
    ):
        with pytest.raises(ResourceExhaustedError, match="memory_limit"):
            executable(random_array(100, 64), random_array(64))
        assert small.statistics().live_bytes <= 1 << 10


CALL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = stablehlo.custom_call @device_test_twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def test_functions_of_the_host_are_refused_by_name() -> None:
    with (
        custom_calls.register_custom_call("device_test_twice", lambda x: 2 * x),
        pytest.raises(UnsupportedError, match="custom_call is not supported on the GPU"),
    ):
        device_program(CALL)


def test_an_image_that_is_not_there(simulator: SimulatorDevice) -> None:
    bare = replace(program(ROWS), images=Images(ptx="// nothing"))
    with pytest.raises(DeviceError, match=r"has ptx for sm_80.*compile it with --device=simulator"):
        DeviceExecutable(bare, simulator)
