# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from programs import add_program, arena_program, both_program, copy_program, spin_program

from gristmill.errors import InputError, ToolchainError
from gristmill.runtime.executable import Executable
from gristmill.runtime.memory.host import PROCESS_POOL as HOST_POOL
from gristmill.runtime.memory.slabs import PROCESS_POOL as CODE_POOL
from gristmill.runtime.threads import set_num_threads

X = np.arange(8, dtype=np.float32)
Y = np.full(8, 0.5, np.float32)


@pytest.fixture(scope="module")
def add() -> Executable:
    return Executable(add_program(alias=True))


def test_call(add: Executable) -> None:
    result = add(X, Y)
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, X + Y)
    assert repr(add) == "<Executable add(x: 8xf32, y: 8xf32) -> (r: 8xf32)>"


def test_inputs_are_used_in_place_whatever_their_alignment(add: Executable) -> None:
    storage = np.arange(12, dtype=np.float32)
    for start in range(4):
        np.testing.assert_array_equal(add(storage[start : start + 8], Y), storage[start:][:8] + Y)


def test_several_results_are_a_tuple() -> None:
    with Executable(arena_program()) as executable:
        total, threads = executable(np.float32(1), threads=1)
        assert (float(total), int(threads)) == (3.5, 1)


@pytest.mark.parametrize("name", ["bf16", "f16", "i1", "ui8", "i64", "f64"])
@pytest.mark.parametrize("shape", [(), (1, 3), (0, 4), (70, 70, 5)])
def test_types_and_shapes(name: str, shape: tuple[int, ...]) -> None:
    with Executable(copy_program(name, shape)) as executable:
        dtype = executable.inputs[0].type.element.dtype
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        result = executable(array)
        assert isinstance(result, np.ndarray)
        assert (result.dtype, result.shape) == (dtype, shape)
        np.testing.assert_array_equal(result, array)


def test_dlpack_and_array_protocols(add: Executable) -> None:
    class Exporter:
        """An object that speaks DLPack only."""

        def __dlpack__(self, **options: object) -> object:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return X.__dlpack_device__()

    class Refusing:
        """Like a bfloat16 array of another framework: DLPack fails, the array protocol works."""

        def __dlpack__(self, **options: object) -> object:
            raise BufferError("dtype not supported")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __array__(self, *arguments: object, **options: object) -> np.ndarray:
            return X

    np.testing.assert_array_equal(add(Exporter(), Y), X + Y)
    np.testing.assert_array_equal(add(Refusing(), Y), X + Y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), r"1 arguments given, 2 expected \(x: 8xf32, y: 8xf32\)"),
        ((X, Y, Y), r"3 arguments given, 2 expected"),
        (
            (X.astype(np.float64), Y),
            r"argument 0 \('x'\): dtype float64 does not fit 8xf32; .*astype",
        ),
        ((X, Y.astype(ml_dtypes.bfloat16)), r"argument 1 \('y'\): dtype bfloat16 does not fit"),
        ((X, X.astype(">f4")), r"argument 1 \('y'\): dtype >f4 does not fit"),
        ((X, Y[:4]), r"argument 1 \('y'\): shape \(4,\) does not fit 8xf32"),
        ((X, np.zeros(16, np.float32)[::2]), r"argument 1 \('y'\): .*not C-contiguous.*ascontig"),
        (([1.0] * 8, Y), r"argument 0 \('x'\): an array is needed, not list"),
        ((X, None), r"argument 1 \('y'\): an array is needed, not NoneType"),
    ],
)
def test_wrong_arguments(add: Executable, arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        add(*arguments)
    np.testing.assert_array_equal(add(X, Y), X + Y)


def test_misaligned_data_is_refused(add: Executable) -> None:
    raw = np.zeros(33, np.uint8)
    with pytest.raises(InputError, match="not aligned to its element size"):
        add(raw[1:].view(np.float32), Y)


def test_out(add: Executable) -> None:
    target = np.zeros(8, np.float32)
    assert add(X, Y, out=target) is target
    np.testing.assert_array_equal(target, X + Y)
    assert add(X, Y, out=[target]) is target
    fresh = add(X, Y, out=[None])
    assert fresh is not target
    np.testing.assert_array_equal(fresh, target)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros(7, np.float32), r"out 0 \('r'\): shape \(7,\) does not fit 8xf32"),
        (np.zeros(8), r"out 0 \('r'\): dtype float64"),
        ([np.zeros(8, np.float32)] * 2, r"2 out arrays given, 1 expected"),
        (["no"], r"out 0 \('r'\): a numpy array is needed, not str"),
        (np.broadcast_to(np.float32(0), 8), r"out 0 \('r'\)"),
    ],
)
def test_wrong_out(add: Executable, out: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        add(X, Y, out=out)


def test_read_only_out(add: Executable) -> None:
    target = np.zeros(8, np.float32)
    target.flags.writeable = False
    with pytest.raises(InputError, match=r"out 0 \('r'\): the array is read-only"):
        add(X, Y, out=target)


def test_out_that_overlaps_an_input_gets_the_right_numbers() -> None:
    with Executable(add_program()) as executable:
        storage = np.arange(9, dtype=np.float32)
        expected = storage[:8] + Y
        target = storage[1:]
        assert executable(storage[:8], Y, out=target) is target
        np.testing.assert_array_equal(target, expected)


def test_out_arrays_that_share_memory() -> None:
    with Executable(arena_program()) as executable:
        raw = np.zeros(8, np.uint8)
        with pytest.raises(InputError, match="two of the arrays share memory"):
            executable(
                np.float32(1),
                out=[raw[:4].view(np.float32).reshape(()), raw.view("i8").reshape(())],
            )


def test_donation(add: Executable) -> None:
    for donate in (True, [0], ["x"]):
        x = X.copy()
        assert add(x, Y, donate=donate) is x, "the result took over the donated memory"
        np.testing.assert_array_equal(x, X + Y)
    x = X.copy()
    np.testing.assert_array_equal(add(x, Y), X + Y)
    np.testing.assert_array_equal(x, X, "without donation the input is left alone")
    y = Y.copy()
    assert add(X, y, donate=["y"]) is not y, "y aliases no output"


def test_memory_donated_for_two_results_holds_one() -> None:
    with Executable(both_program()) as both:
        x = np.full(1, 5, np.float32)
        r, s = both(x, x, donate=True)
        assert (float(r[0]), float(s[0])) == (10, 15)
        x, y = np.full(1, 5, np.float32), np.full(1, 7, np.float32)
        r, s = both(x, y, out=[None, x], donate=["x"])
        assert (float(r[0]), float(s[0])) == (10, 21)
        assert s is x


def test_wrong_donation(add: Executable) -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match=r"argument 0 \('x'\): a donated array must be writeable"):
        add(frozen, Y, donate=True)
    for item in (5, "z"):
        with pytest.raises(InputError, match=f"donate: there is no input {item!r}"):
            add(X, Y, donate=[item])


@pytest.mark.parametrize("arena_bytes", [128, 1 << 20])
def test_arena_and_scratch_for_every_thread(arena_bytes: int) -> None:
    with Executable(arena_program(arena_bytes)) as executable:
        for threads in (1, 4, 2, 9):
            total, count = executable(np.float32(1), threads=threads)
            assert (float(total), int(count)) == (3.5, threads)
        set_num_threads(3)
        try:
            assert int(executable(np.float32(1))[1]) == 3
        finally:
            set_num_threads(None)
        with pytest.raises(InputError, match="threads must be at least 1, not 0"):
            executable(np.float32(1), threads=0)
    with pytest.raises(InputError, match="number of threads must be at least 1"):
        set_num_threads(0)


def test_large_results_are_recycled() -> None:
    with Executable(add_program(1 << 16)) as executable:
        big = np.ones(1 << 16, np.float32)
        first = executable(big, big)
        address = first.ctypes.data
        assert address % 64 == 0
        second = executable(big, big)
        assert second.ctypes.data != address
        used = HOST_POOL.statistics().used_bytes
        del first
        gc.collect()
        assert HOST_POOL.statistics().used_bytes == used - second.nbytes
        assert executable(big, big).ctypes.data == address
        np.testing.assert_array_equal(second, big + big)


def test_many_threads_at_once(add: Executable) -> None:
    faults: list[float] = []

    def work(seed: int) -> None:
        x = np.full(8, seed, np.float32)
        for _ in range(2000):
            if not (add(x, Y) == x + Y).all():
                faults.append(seed)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not faults


def test_a_long_run_does_not_hold_the_lock() -> None:
    flag = np.zeros(1, np.int32)
    with Executable(spin_program()) as executable:
        # The program spins until this thread, which needs the GIL for it, sets the flag.
        runner = threading.Thread(target=executable, args=(flag,))
        runner.start()
        time.sleep(0.02)
        assert runner.is_alive()
        flag[0] = 1
        runner.join(10)
        assert not runner.is_alive()


def test_closing_waits_for_running_calls() -> None:
    before = CODE_POOL.statistics().objects
    flag = np.zeros(1, np.int32)
    executable = Executable(spin_program())
    runner = threading.Thread(target=executable, args=(flag,))
    runner.start()
    time.sleep(0.02)
    executable.close()
    assert CODE_POOL.statistics().objects == before + 1, "the code stays while it runs"
    with pytest.raises(InputError, match="executable spin has been closed"):
        executable(flag)
    flag[0] = 1
    runner.join(10)
    assert CODE_POOL.statistics().objects == before
    executable.close()


def test_an_executable_that_is_dropped_frees_its_code() -> None:
    Executable(add_program()).close()
    before = CODE_POOL.statistics().objects
    executable = Executable(add_program())
    executable(X, Y)
    del executable
    gc.collect()
    assert CODE_POOL.statistics().objects == before


def test_a_program_without_its_entry_is_refused() -> None:
    program = add_program()
    program.entry = "other"
    with pytest.raises(ToolchainError, match="no symbol other in linked code; it has: gristmill_m"):
        Executable(program)


def test_constants_are_aligned() -> None:
    program = arena_program()
    storage = np.zeros(8, np.float32)
    program.constants = [storage[1:2].reshape(()), *program.constants[1:]]
    storage[1] = 4.0
    with Executable(program) as executable:
        assert float(executable(np.float32(1))[0]) == 5.0
