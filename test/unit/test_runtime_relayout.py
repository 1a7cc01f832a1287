# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, ToolchainError
from gristmill.runtime import relayout, relayout_kernels
from gristmill.runtime.llvm.target import host_features
from gristmill.runtime.relayout import (
    CopyPlan,
    Dimension,
    contiguous,
    copy_array,
    copy_blocked,
    native_job,
)

Array = np.ndarray[Any, Any]
MB = 1 << 20
DTYPES = ["u1", "<u2", ">f4", "<f4", "<i8", ">c8", "<c16", "?"]


@pytest.fixture(autouse=True)
def fresh() -> Generator[None]:
    """Plans are kept; what a test changes must not live in them."""
    relayout._planned.cache_clear()
    yield
    relayout._planned.cache_clear()
    relayout._native.cache_clear()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays take the paths of large ones."""
    relayout_kernels.kernel(1)
    monkeypatch.setattr(relayout, "_SMALL", 0)
    monkeypatch.setattr(relayout, "_THREAD_BYTES", 256)


#: Settings that lead every copy down one path, whatever its size.
PATHS: dict[str, dict[str, int]] = {
    "direct": {"_WAYS": 1 << 20},
    "staged": {"_WAYS": 0},
    "streamed": {"_STREAM_BYTES": 0, "_LONG_RUN": 0},
}


@pytest.fixture(params=[*PATHS, "numpy"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, eager: None) -> str:
    """Every native path, and without LLVM."""
    name: str = request.param
    for setting, value in PATHS.get(name, {}).items():
        monkeypatch.setattr(relayout, setting, value)
    if name == "numpy":

        def missing() -> None:
            raise ToolchainError("no LLVM")

        missing.cache_info = relayout_kernels._load.cache_info  # type: ignore[attr-defined]
        monkeypatch.setattr(relayout_kernels, "_load", missing)
        monkeypatch.setattr(relayout, "_BLOCK", (8, 4))
    relayout._native.cache_clear()
    return name


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """Distinct values as far as the type has them."""
    count = int(np.prod(shape))
    return np.asarray((np.arange(count) * 37 % 251).astype(dtype)).reshape(shape)


@st.composite
def strided(draw: st.DrawFn) -> tuple[Array, Array]:
    """A target and a source of one shape, with any permutation, steps and direction of strides."""
    rank = draw(st.integers(0, 4))
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16, 17, 33])
    shape = tuple(draw(st.lists(sizes, min_size=rank, max_size=rank)))
    kind, other = draw(st.sampled_from(DTYPES)), draw(st.booleans())

    def view(dtype: str) -> Array:
        order = draw(st.permutations(range(rank)))
        steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in range(rank)]
        base = numbers(tuple(shape[d] * abs(steps[d]) for d in order), dtype)
        array = base.transpose(np.argsort(order)) if rank else base
        return array[tuple(slice(None, None, s) for s in steps)] if rank else array

    source = view(kind)
    swapped = np.dtype(kind).newbyteorder().str if other else kind
    return view(swapped), source


@st.composite
def placed(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """A target of 2 or 3 dimensions at any address in a frame of bytes, that frame, and a source."""
    dtype = np.dtype(draw(st.sampled_from(["u1", "u2", "u4", "u8", "c16"])))
    shape = tuple(draw(st.lists(st.integers(1, 300), min_size=2, max_size=2)))
    order = draw(st.sampled_from([(1, 0), (2, 1, 0), (1, 2, 0), (1, 0, 2)]))
    if len(order) == 3:
        shape = (draw(st.integers(1, 3)), *shape)

    def place(shape: tuple[int, ...]) -> tuple[Array, Array]:
        shift, gap = draw(st.integers(0, 127)), draw(st.integers(0, 3))
        flips = tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape)
        width = (*shape[:-1], shape[-1] + gap)
        frame = np.random.default_rng(0).integers(
            0, 256, shift + int(np.prod(width)) * dtype.itemsize + 64, np.uint8
        )
        whole: Array = np.ndarray(width, dtype, frame, shift)
        return whole[..., : shape[-1]][flips], frame

    source = place(shape)[0].transpose(order)
    return (*place(source.shape), source)


@pytest.mark.usefixtures("backend")
class TestCopy:
    @settings(
        deadline=None, max_examples=60, suppress_health_check=list(settings().suppress_health_check)
    )
    @given(placed())
    def test_any_place(self, places: tuple[Array, Array, Array]) -> None:
        target, frame, source = places
        expected = frame.copy()
        offset = target.ctypes.data - frame.ctypes.data
        # What lies beside the target must stay.
        np.ndarray(target.shape, target.dtype, expected, offset, target.strides)[...] = source
        copy_array(target, source, threads=1)
        np.testing.assert_array_equal(frame, expected)

    # The fixture changes nothing between examples.
    @settings(
        deadline=None, max_examples=60, suppress_health_check=list(settings().suppress_health_check)
    )
    @given(strided(), st.integers(1, 3))
    def test_any_strides(self, pair: tuple[Array, Array], threads: int) -> None:
        target, source = pair
        before = source.copy()
        target[...] = 0
        copy_array(target, source, threads=threads)
        np.testing.assert_array_equal(target, before)
        np.testing.assert_array_equal(source, before)

    @pytest.mark.parametrize("size", relayout_kernels.SIZES)
    @pytest.mark.parametrize(
        "shape", [(1, 1), (15, 17), (64, 64), (100, 531), (513, 33), (2, 99), (3, 700), (4, 130)]
    )
    def test_transposes(self, size: int, shape: tuple[int, int]) -> None:
        raw = np.random.default_rng(0).integers(0, 256, (*shape, size), np.uint8)
        dtype = {1: "u1", 2: "u2", 4: "f4", 8: "c8", 16: "c16"}[size]
        source = raw.view(dtype)[..., 0].T
        # What lies beside the target must stay: one more column, and a row where columns follow each other.
        frame = np.zeros((shape[1], shape[0] + 1), dtype)
        copy_array(frame[:, :-1], source)
        assert frame[:, :-1].tobytes() == raw.swapaxes(0, 1).tobytes()
        assert not frame[:, -1].any()
        frame = np.zeros((shape[1] + 1, shape[0]), dtype)
        copy_array(frame[:-1], source)
        assert frame[:-1].tobytes() == raw.swapaxes(0, 1).tobytes()
        assert not frame[-1].any()

    @pytest.mark.parametrize("shift", [0, 4, 60])
    def test_plans_are_used_again_at_other_places(self, shift: int) -> None:
        for first in (0, 64, 128):
            memory = np.zeros((90 * 80 + 64) * 4, np.uint8)
            start = (-memory.ctypes.data) % 64 + first + shift
            source = np.ndarray((90, 80), "f4", memory, start)
            source[...] = numbers((90, 80), "f4") + first
            target = np.zeros((80, 90), "f4")
            copy_array(target, source.T)
            np.testing.assert_array_equal(target, numbers((90, 80), "f4").T + first)

    @pytest.mark.parametrize("shape", [(2500, 40), (40, 2500), (5, 3000), (300, 700)])
    def test_strips_for_threads(self, shape: tuple[int, int]) -> None:
        source = numbers(shape, "f4").T
        for threads in (2, 3, 16):
            target = np.zeros(source.shape, "f4")
            copy_array(target, source, threads=threads)
            np.testing.assert_array_equal(target, source)

    def test_runs_on_threads(self) -> None:
        source = numbers((6, 40, 5, 72), "f4").transpose(0, 2, 1, 3)
        for threads in (1, 3):
            target = np.zeros(source.shape, "f4")
            copy_array(target, source, threads=threads)
            np.testing.assert_array_equal(target, source)

    def test_four_dimensions_on_threads(self) -> None:
        source = numbers((6, 10, 17, 24), "f4").transpose(0, 2, 3, 1)
        for threads in (1, 2, 5):
            target = np.zeros(source.shape, "f4")
            copy_array(target, source, threads=threads)
            np.testing.assert_array_equal(target, source)

    @pytest.mark.parametrize("name", ["bfloat16", "int4", "float8_e5m2", "float4_e2m1fn"])
    def test_narrow_types(self, name: str) -> None:
        dtype = np.dtype(getattr(ml_dtypes, name))
        source = numbers((40, 50), "u1" if dtype.itemsize == 1 else "u2").view(dtype).T
        target = np.empty(source.shape, dtype)
        copy_array(target, source)
        assert target.tobytes() == source.tobytes()

    def test_unaligned_data(self) -> None:
        source = np.frombuffer(b"x" + numbers((40, 50), "f4").tobytes(), "f4", offset=1)
        target = np.zeros(4 * 2000 + 1, np.uint8)[1:].view("f4").reshape(50, 40)
        copy_array(target, source.reshape(40, 50).T)
        np.testing.assert_array_equal(target, numbers((40, 50), "f4").T)

    @pytest.mark.parametrize("shift", [0, 1])
    def test_overlap(self, shift: int) -> None:
        memory = numbers((65, 64), "f4")
        source, target = memory[:64], memory[shift : 64 + shift].T
        expected = source.copy()
        copy_array(target, source)
        np.testing.assert_array_equal(target, expected)


def test_many_threads_copy_at_once(eager: None) -> None:
    source = numbers((100, 120), "f4").T
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(30):
            target = np.zeros(source.shape, "f4")
            copy_array(target, source, threads=3)
            if not np.array_equal(target, source):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_failure_on_a_worker_reaches_the_caller(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = threading.current_thread()

    def fail(target: Array, source: Array) -> None:
        if threading.current_thread() is not caller:
            raise MemoryError("worker")

    monkeypatch.setattr(relayout, "copy_blocked", fail)
    with pytest.raises(MemoryError, match="worker"):
        copy_array(np.empty((64, 64)), np.empty((64, 64)), threads=4)


class Workers:
    """Stands for the pool: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[Callable[[], None]] = []

    def submit(self, function: Callable[[], None]) -> None:
        self.given.append(function)


def test_threads_that_come_late_leave_the_work_to_others(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers()
    monkeypatch.setattr(relayout, "_workers", [workers])
    source = numbers((900, 700), "f4").T
    target = np.zeros(source.shape, "f4")
    copy_array(target, source, threads=3)
    np.testing.assert_array_equal(target, source)
    target[...] = 0
    assert len(workers.given) == 2
    for function in workers.given:
        function()
    assert not target.any()  # the memory is the caller's again


def test_the_caller_waits_for_what_others_have_taken(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = numbers((900, 700), "f4").T
    target = np.zeros(source.shape, "f4")
    job = native_job(target, source, 2)
    assert job is not None
    slots = {name: relayout_kernels.FIELDS.index(name) for name in ("next", "done")}
    grain = job.field("grain")
    assert job.field("items") > grain
    timers: list[threading.Timer] = []

    class Slow(Workers):
        """Takes the first items before the caller does, and is done with them after it has gone to sleep."""

        def submit(self, function: Callable[[], None]) -> None:
            job.plan[slots["next"]] += grain

            def finish() -> None:
                np.copyto(target, source)
                job.plan[slots["done"]] += grain
                function()

            timers.append(threading.Timer(0.2, finish))
            timers[0].start()

    monkeypatch.setattr(relayout, "_workers", [Slow()])
    job.run()
    np.testing.assert_array_equal(target, source)
    timers[0].join()


@pytest.mark.parametrize(("megabytes", "threads", "kept"), [(8, 2, 3), (8, 1, -1), (32, 2, -1)])
def test_some_runs_stay_in_the_caches(
    monkeypatch: pytest.MonkeyPatch, megabytes: int, threads: int, kept: int
) -> None:
    monkeypatch.setattr(relayout, "cache_sizes", lambda: {"L3": 32 * MB})
    source = numbers((megabytes, 256, 16, 64), "f4").transpose(0, 2, 1, 3)
    target = relayout.new_array(source.shape, source.dtype)
    job = native_job(target, source, threads)
    assert job is not None
    assert job.field("kept") == kept
    job.run()
    np.testing.assert_array_equal(target, source)


FORK = """
import os
import numpy as np
from gristmill.runtime.relayout import copy_array

source = np.arange(6_000_000, dtype=np.float32).reshape(2000, 3000).T
target = np.empty(source.shape, np.float32)
copy_array(target, source, threads=3)
child = os.fork()
if not child:
    target[...] = 0
    copy_array(target, source, threads=3)
    os._exit(0 if (target == source).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "0\n"


def test_the_native_path_is_taken(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(target: Array, source: Array) -> None:
        raise AssertionError("numpy copied")

    monkeypatch.setattr(relayout, "copy_blocked", fail)
    source = numbers((64, 48), "f4")
    target = np.empty((48, 64), "f4")
    copy_array(target, source.T)
    np.testing.assert_array_equal(target, source.T)
    with pytest.raises(AssertionError, match="numpy copied"):
        copy_array(target, source.reshape(48, 64))


@pytest.mark.parametrize(
    "features",
    [
        "",
        pytest.param(
            "+avx2",
            marks=pytest.mark.skipif(
                "+avx2" not in host_features().split(","), reason="needs a processor with AVX2"
            ),
        ),
    ],
)
def test_kernels_of_older_processors(
    monkeypatch: pytest.MonkeyPatch, eager: None, features: str
) -> None:
    load = relayout_kernels._load.__wrapped__
    monkeypatch.setattr(relayout_kernels, "host_cpu", lambda: "")
    monkeypatch.setattr(relayout_kernels, "host_features", lambda: features)
    code, kernels = load()
    monkeypatch.setattr(relayout_kernels, "kernel", kernels.__getitem__)
    for changes in PATHS.values():
        with monkeypatch.context() as patch:
            relayout._planned.cache_clear()
            for setting, value in changes.items():
                patch.setattr(relayout, setting, value)
            for dtype in ("u1", "u2", "u4", "u8", "c16"):
                source = numbers((3, 150, 131), dtype).transpose(0, 2, 1)
                target = np.zeros(source.shape, dtype)
                copy_array(target, source, threads=1)
                np.testing.assert_array_equal(target, source)
    code.close()


def path(target: Array, source: Array) -> str:
    """How a copy would be done."""
    job = native_job(target, source)
    if job is None:
        return "numpy"
    if job.kernel == relayout_kernels.kernel(0):
        return "runs"
    return "streamed" if job.field("line") else "staged" if job.field("staged") else "direct"


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((700, 500), (1, 0), "direct"),  # fits the caches
        ((1024, 1024), (1, 0), "staged"),  # lines collide
        ((2048, 2048), (1, 0), "streamed"),
        ((2000, 1999), (1, 0), "streamed"),  # no row begins with a line, but rows are long
        ((20000, 20, 12), (0, 2, 1), "direct"),  # rows are no whole lines
        ((16, 256, 16, 64), (0, 2, 1, 3), "runs"),
        ((40000, 7, 9, 3), (0, 2, 1, 3), "numpy"),  # runs are no whole lines
        ((4, 256, 16, 64), (0, 2, 1, 3), "numpy"),  # runs, in the caches
    ],
)
def test_how_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: tuple[int, ...], expected: str
) -> None:
    monkeypatch.setattr(relayout, "cache_sizes", lambda: {"L3": 32 * MB})
    relayout_kernels.kernel(1)
    source = np.zeros(shape, "f4").transpose(order)
    target = relayout.new_array(source.shape, source.dtype)
    assert path(target, source) == expected


@pytest.mark.parametrize(("pitch", "shift", "past"), [(2048, 16, 4), (2048, 0, 0), (2044, 16, 0)])
def test_groups_begin_where_lines_do(pitch: int, shift: int, past: int) -> None:
    relayout_kernels.kernel(1)
    memory = np.zeros(2048 * 2048 * 4 + 128, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    source = np.ndarray((2048, 2044), "f4", memory, start, (4 * pitch, 4)).T
    job = native_job(np.empty(source.shape, "f4"), source)
    assert job is not None
    assert (
        job.field("past") == past
    )  # with other pitches lines of different rows begin at different places


def test_a_small_last_cache_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayout, "cache_sizes", lambda: {"L3": 4 * MB})
    relayout_kernels.kernel(1)
    source = np.zeros((600, 500), "f4").T
    target = relayout.new_array(source.shape, source.dtype)
    assert path(target, source) == "streamed"


def test_blocks() -> None:
    source = numbers((3, 300, 200), "f4")
    target = np.empty((200, 3, 300), "f4")
    copy_blocked(target, source.transpose(2, 0, 1))
    np.testing.assert_array_equal(target, source.transpose(2, 0, 1))


def plan_of(target: Array, source: Array) -> CopyPlan:
    """The normal form of a copy."""
    places = target.ctypes.data, source.ctypes.data
    return CopyPlan.of(target.shape, target.strides, source.strides, target.itemsize, *places)


def test_plans_are_merged_and_widened() -> None:
    source = np.empty((2, 3, 4, 1, 5), "f4")
    assert plan_of(np.empty_like(source), source).dims == (Dimension(120, 4, 4),)
    pairs = np.empty((6, 7, 2), "f4")
    plan = plan_of(np.empty((7, 6, 2), "f4"), pairs.transpose(1, 0, 2))
    assert plan.size == 8
    assert plan.dims == (Dimension(7, 48, 8), Dimension(6, 8, 56))
    assert plan.row == 0


def test_reversed_dimensions_are_merged() -> None:
    source = np.empty((6, 7), "f4")
    plan = plan_of(np.empty_like(source)[::-1, ::-1], source[::-1, ::-1])
    assert plan.dims == (Dimension(42, 4, 4),)
    assert plan.source == source.ctypes.data


@pytest.mark.parametrize("dtype", ["<u2", "<f4", "<f8", "<c8", "<c16"])
@pytest.mark.parametrize("gap", [0, 1])
def test_transposes_to_the_other_byte_order(eager: None, dtype: str, gap: int) -> None:
    source = numbers((70, 50), dtype)
    target = np.zeros((50, 70 + gap), np.dtype(dtype).newbyteorder())[:, :70]
    assert plan_of(target, source.T).row is not None
    copy_array(target, source.T)
    np.testing.assert_array_equal(target, source.T)


def test_contiguous() -> None:
    array = numbers((30, 20), "f4")
    assert contiguous(array) is array
    copy = contiguous(array.T)
    assert copy.flags.c_contiguous
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, array.T)
    native = contiguous(array.astype(">f4"))
    assert native.dtype.isnative
    np.testing.assert_array_equal(native, array)


def readonly(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        (np.empty(3), np.empty(4), r"shape \(4,\) to one of \(3,\)"),
        (np.empty(3), np.empty(3, "f4"), "float32 elements to float64: convert"),
        (np.empty(3, object), np.empty(3, object), "arrays of object cannot"),
        (np.empty(3, "S3"), np.empty(3, "S3"), "elements have 1 to 16 bytes"),
        (readonly(np.empty(3)), np.empty(3), "read-only"),
        (np.lib.stride_tricks.as_strided(np.empty(1), (3,), (0,)), np.empty(3), "is a broadcast"),
    ],
)
def test_wrong_arrays_are_refused(target: Array, source: Array, message: str) -> None:
    with pytest.raises(InputError, match=message):
        copy_array(target, source)


def test_a_broadcast_source_is_fine(eager: None) -> None:
    target = np.empty((64, 32), "f4")
    copy_array(target, np.broadcast_to(np.float32(3), (64, 32)))
    assert (target == 3).all()
