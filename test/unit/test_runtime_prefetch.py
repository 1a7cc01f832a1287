# SPDX-License-Identifier: Apache-2.0
"""Inputs on their way to a device: order, overlap, use in place, errors. The same on every device."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from device_support import LIMIT, FaultyDevice, make_device, software_driver
from software_driver import PTX

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    DeviceError,
    InputError,
    ResourceExhaustedError,
    TransferCancelledError,
)
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.cuda_driver import INVALID_VALUE
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.prefetch import InputUploader, PrefetchOptions
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType
from gristmill.runtime.uploads import UploadOptions

LARGE = 20_000
COPIES = PrefetchOptions(
    in_place=False, small_bytes=1024, upload=UploadOptions(chunk_bytes=4096, staging_bytes=4096)
)


def signature(name, text, **more):
    return Signature(name, ArrayType.parse(text), **more)


VECTORS = (signature("x", "8xf32"), signature("w", f"{LARGE}xi32"))


def vectors(seed=0):
    random = np.random.default_rng(seed)
    return [
        random.standard_normal(8).astype(np.float32),
        random.integers(0, 1000, LARGE, np.int32),
    ]


def contents(buffer, like):
    out = np.zeros_like(like)
    buffer.copy_to_host(out).wait(LIMIT)
    return out


def check_and_close(buffers, arrays):
    for buffer, array in zip(buffers, arrays, strict=True):
        np.testing.assert_array_equal(contents(buffer, array), array)
        buffer.close()


class Gate:
    """Holds up the copies to a device from the first one of ``nbytes`` on, until it is opened."""

    def __init__(self, device, nbytes, monkeypatch):
        self.event = threading.Event()
        self.reached = threading.Event()
        plain = device._copy

        def copy(destination, at, source, start, count, stream, waits, name):
            if count == nbytes and name.split()[1] == "h2d" and not self.reached.is_set():
                self.reached.set()
                stream.enqueue(lambda: self.event.wait(LIMIT), name="gate")
            return plain(destination, at, source, start, count, stream, waits, name)

        monkeypatch.setattr(device, "_copy", copy)
        monkeypatch.setattr(device, "move_now", lambda *_: None)  # else small copies pass by


@pytest.fixture
def gate(device, monkeypatch):
    made = Gate(device, 4096, monkeypatch)
    yield made
    made.event.set()


@pytest.fixture
def registered(device):
    """A function that registers an array with the device until the end of the test."""
    known = []

    def register(array):
        device.register_host(array.ctypes.data, array.nbytes)
        known.append(array)
        return array

    yield register
    for array in known:
        device.unregister_host(array.ctypes.data)


# Copies


def test_inputs_arrive(device):
    arrays = vectors()
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        buffers = uploader.upload(arrays)
        assert uploader.last == ["copied", "copied"]
        assert [buffer.nbytes for buffer in buffers] == [32, 4 * LARGE]
        check_and_close(buffers, arrays)
    assert uploader.closed


def test_every_kind_of_input(device):
    kinds = ("f64", "i1", "bf16", "4xi4", "0x3xf32", "2x3xcomplex<f32>")
    signatures = [signature(f"a{i}", text) for i, text in enumerate(kinds)]
    arrays = [np.ones(s.type.shape, s.type.element.dtype) for s in signatures]
    for options in (COPIES, None):
        with InputUploader(device, signatures, options=options) as uploader:
            given = [arrays[0][()], *arrays[1:]]  # a numpy scalar
            check_and_close(uploader.upload(given), arrays)


def test_no_inputs(device):
    with InputUploader(device, ()) as uploader:
        assert uploader.upload([]) == []
        assert uploader.last == []


def test_uploads_may_run_at_once_and_outlive_their_uploader(device):
    rounds = [vectors(seed) for seed in range(5)]
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        made = [uploader.upload(arrays) for arrays in rounds]
    for buffers, arrays in zip(made, rounds, strict=True):
        assert all(buffer.definition.ok for buffer in buffers)
        check_and_close(buffers, arrays)


def test_an_input_is_used_while_the_next_one_is_on_its_way(device, gate):
    arrays = vectors()
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        buffers = uploader.upload(arrays)
        np.testing.assert_array_equal(contents(buffers[0], arrays[0]), arrays[0])
        assert not buffers[1].definition.done
        early = np.zeros_like(arrays[1])
        late = buffers[1].copy_to_host(early)
        assert gate.reached.wait(LIMIT)
        assert not late.done
        gate.event.set()
        late.wait(LIMIT)
        np.testing.assert_array_equal(early, arrays[1])
        check_and_close(buffers, arrays)


def test_small_inputs_go_first_then_signature_order(device, gate):
    """There is one slot for pieces, so the order of completions is that of priorities."""
    names = ("large", "small", "larger", "scalar")
    counts = (3000, 10, 4000, 1)
    signatures = [signature(n, f"{c}xi32") for n, c in zip(names, counts, strict=True)]
    arrays = [np.full(count, count, np.int32) for count in counts]
    order = []
    with InputUploader(device, signatures, options=COPIES) as uploader:
        buffers = []
        for _ in range(2):
            found = uploader.upload(arrays)
            for at, buffer in enumerate(found, len(buffers)):
                buffer.definition.add_callback(lambda _, at=at: order.append(at))
            buffers += found
            assert not found[0].definition.done
        for at in (1, 3):
            buffers[at].definition.wait(LIMIT)  # while the first large one is held up
        gate.event.set()
    assert order == [1, 3, 0, 2, 5, 7, 4, 6]
    check_and_close(buffers, arrays * 2)


def test_a_launch_begins_before_later_inputs_are_there(monkeypatch):
    with make_device("cuda") as cuda, cuda.load_module(PTX) as module:
        gate = Gate(cuda, 4096, monkeypatch)
        first, second = np.arange(64, dtype=np.int32), np.arange(LARGE, dtype=np.int32)
        signatures = (signature("a", "64xi32"), signature("b", f"{LARGE}xi32"))
        add = module.kernel("add_constant")
        with (
            cuda.create_stream("one") as one,
            cuda.create_stream("two") as two,
            InputUploader(cuda, signatures, options=COPIES) as uploader,
        ):
            a, b = uploader.upload([first, second])
            late = add.launch(two, (-(-LARGE // 256),), (256,), (b, LARGE, 5))
            add.launch(one, (1,), (64,), (a, 64, 3)).wait(LIMIT)
            assert not late.done
            gate.event.set()
            late.wait(LIMIT)
            check_and_close([a, b], [first + 3, second + 5])


def test_slow_copies_of_the_software_driver_arrive_in_order():
    arrays = vectors()
    with make_device("cuda") as cuda:
        software_driver().delay(500)
        try:
            order = []
            with InputUploader(cuda, VECTORS[::-1], options=COPIES) as uploader:
                buffers = uploader.upload(arrays[::-1])
                for name, buffer in zip("wx", buffers, strict=True):
                    buffer.definition.add_callback(lambda _, name=name: order.append(name))
        finally:
            software_driver().reset()
        assert order == ["x", "w"]
        check_and_close(buffers, arrays[::-1])
        cuda.synchronize(LIMIT)
        assert cuda.statistics().live_allocations == 0


# In place


def test_the_host_device_uses_every_array_in_place():
    arrays = vectors()
    with HostDevice(workers=2) as device, InputUploader(device, VECTORS) as uploader:
        buffers = uploader.upload(arrays)
        assert uploader.last == ["in place", "in place"]
        assert [b.host_pointer() for b in buffers] == [a.ctypes.data for a in arrays]
        assert device.statistics().allocations == 0
        assert all(a.flags.writeable for a in arrays), "the caller's arrays are as they were"
        check_and_close(buffers, arrays)


def test_registered_memory_is_used_in_place(device, registered):
    arrays = vectors()
    registered(arrays[1])
    with InputUploader(device, VECTORS, options=PrefetchOptions(small_bytes=0)) as uploader:
        for _ in range(2):
            buffers = uploader.upload(arrays)
            assert uploader.last[1] == "in place"
            assert buffers[1].definition.done
            assert buffers[1].host_pointer() == arrays[1].ctypes.data
            assert buffers[1].readonly
            with pytest.raises(InputError, match="read-only"):
                buffers[1].copy_from_host(b"x")
            check_and_close(buffers, arrays)
    other = [arrays[0], arrays[1].copy()]
    if device.kind == "cuda":
        with InputUploader(device, VECTORS) as uploader:
            buffers = uploader.upload(other)
            assert uploader.last == ["copied", "copied"], "it is not registered for that alone"
            check_and_close(buffers, other)


def test_a_part_of_registered_memory_is_used_in_place_and_more_than_it_is_not(device, registered):
    whole = np.arange(LARGE + 100, dtype=np.int32)
    registered(whole[50 : LARGE + 50])
    cut = signature("cut", f"{LARGE - 10}xi32")
    with InputUploader(device, [cut]) as uploader:
        for start, way in ((50, "in place"), (60, "in place"), (40, "copied"), (61, "copied")):
            part = whole[start : start + LARGE - 10]
            buffers = uploader.upload([part])
            expected = "in place" if type(device) is HostDevice else way
            assert uploader.last == [expected], start
            check_and_close(buffers, [part])


def test_page_locked_memory_is_used_in_place():
    with (
        make_device("cuda") as cuda,
        RawBuffer.allocate(cuda, 4 * LARGE, MemorySpace.PINNED) as pinned,
        InputUploader(cuda, VECTORS) as uploader,
    ):
        memory = (ctypes.c_int32 * LARGE).from_address(pinned.host_pointer())
        array = np.ctypeslib.as_array(memory)
        array[:] = np.arange(LARGE)
        arrays = [np.ones(8, np.float32), array]
        buffers = uploader.upload(arrays)
        assert uploader.last == ["copied", "in place"]
        assert buffers[1].address == pinned.address
        check_and_close(buffers, arrays)


def test_memory_registered_for_an_alias_stays_so_until_the_last_one_ends(device):
    arrays = vectors()
    with InputUploader(device, VECTORS) as uploader:
        alias = RawBuffer.from_host(device, arrays[1], alias=Alias.WRITABLE)
        buffers = uploader.upload(arrays)
        assert uploader.last[1] == "in place"
        alias.close()
        again = uploader.upload(arrays)
        assert uploader.last[1] == "in place"
        check_and_close(buffers, arrays)
        check_and_close(again, arrays)
        last = uploader.upload(arrays)
        assert uploader.last[1] == ("in place" if type(device) is HostDevice else "copied")
        check_and_close(last, arrays)


def test_a_launch_reads_registered_memory_in_place():
    array = np.arange(LARGE, dtype=np.int32)
    with make_device("cuda") as cuda, cuda.load_module(PTX) as module:
        cuda.register_host(array.ctypes.data, array.nbytes)
        with (
            cuda.create_stream("test") as stream,
            InputUploader(cuda, [signature("w", f"{LARGE}xi32")]) as uploader,
            RawBuffer.allocate(cuda, array.nbytes) as out,
        ):
            (buffer,) = uploader.upload([array])
            assert uploader.last == ["in place"]
            copied = buffer.copy_to(out)
            add = module.kernel("add_constant")
            done = add.launch(stream, (-(-LARGE // 256),), (256,), (out, LARGE, 7), waits=(copied,))
            done.wait(LIMIT)
            np.testing.assert_array_equal(contents(out, array), array + 7)
            buffer.close()
            cuda.synchronize(LIMIT)
        cuda.unregister_host(array.ctypes.data)
        assert set(cuda.statistics().copies) == {"h2d", "d2h"}, "pinned memory counts as the host's"


def test_donated_and_misaligned_inputs_are_copied():
    array = np.zeros(65, np.float32)
    odd = array[1:] if array.ctypes.data % 64 == 0 else array[:64]
    with HostDevice(workers=2) as device:
        for options, donated in ((PrefetchOptions(alignment=64), False), (None, True)):
            wanted = [signature("x", "64xf32", donated=donated)]
            with InputUploader(device, wanted, options=options) as uploader:
                (buffer,) = uploader.upload([odd])
                assert uploader.last == ["copied"]
                buffer.definition.wait(LIMIT)
                buffer.copy_from_host(np.ones(64, np.float32)).wait(LIMIT)
                assert not odd.any(), "the program may write to its input, the array stays"
                buffer.close()


# Life


def test_arrays_live_as_long_as_they_are_needed(device, gate):
    class Mine(np.ndarray):
        pass

    arrays = [array.view(Mine) for array in vectors()]
    gone = weakref.ref(arrays[1])
    expected = vectors()
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        buffers = uploader.upload(arrays)
        del arrays
        gc.collect()
        assert gone() is not None
        gate.event.set()
        check_and_close(buffers, expected)
    device.synchronize(LIMIT)
    gc.collect()
    assert gone() is None


def test_an_array_in_place_lives_as_long_as_its_buffer():
    with HostDevice(workers=2) as device, InputUploader(device, VECTORS) as uploader:
        arrays = vectors()
        gone = weakref.ref(arrays[1])
        buffers = uploader.upload(arrays)
        del arrays
        np.testing.assert_array_equal(contents(buffers[1], vectors()[1]), vectors()[1])
        assert gone() is not None
        for buffer in buffers:
            buffer.close()
        del buffer, buffers
        gc.collect()
        assert gone() is None


def test_buffers_may_be_closed_before_they_are_filled(device, gate):
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        for buffer in uploader.upload(vectors()):
            buffer.close()
        gate.event.set()


def test_a_closed_uploader_refuses(device):
    uploader = InputUploader(device, VECTORS)
    uploader.close()
    uploader.close()
    with pytest.raises(ClosedError, match=r"the input uploader of .* was closed"):
        uploader.upload(vectors())


def test_closing_waits_only_so_long(device, gate):
    uploader = InputUploader(device, VECTORS, options=COPIES)
    arrays = vectors()
    buffers = uploader.upload(arrays)
    with pytest.raises(DeadlineError, match=r"inputs x, w: .* transfers still run"):
        uploader.close(0.01)
    with pytest.raises(ClosedError):
        uploader.upload(arrays)
    gate.event.set()
    uploader.close(LIMIT)
    check_and_close(buffers, arrays)


def test_an_exception_cancels(device, gate):
    opener = threading.Timer(0.05, gate.event.set)
    buffers = []

    def interrupted():
        with InputUploader(device, VECTORS, options=COPIES) as uploader:
            buffers.extend(uploader.upload(vectors()))
            assert gate.reached.wait(LIMIT)
            opener.start()  # what runs already is waited for
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    opener.join()
    with pytest.raises(TransferCancelledError, match="inputs x, w: buffer 1 was cancelled"):
        buffers[1].definition.wait(LIMIT)
    for buffer in buffers:
        buffer.close()


def test_a_forgotten_uploader_is_reported_and_ends_its_uploads(device, gate):
    arrays = vectors()
    made = [InputUploader(device, VECTORS, options=COPIES)]
    engine = made[0]._uploader
    buffers = made[0].upload(arrays)
    with pytest.warns(ResourceWarning, match=r"the input uploader of .*:0 was not closed"):
        made.clear()
    assert not engine._closed
    gate.event.set()
    check_and_close(buffers, arrays)
    deadline = time.monotonic() + LIMIT
    while not engine._closed:
        assert time.monotonic() < deadline
        time.sleep(0.001)


# What goes wrong


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, np.zeros(8), r"argument 0 \('x'\): dtype float64 does not fit"),
        (1, np.zeros(7, np.int32), r"argument 1 \('w'\): shape \(7,\) does not fit"),
        (1, np.zeros(2 * LARGE, np.int32)[::2], r"argument 1 \('w'\): .* not C-contiguous"),
        (0, "text", r"argument 0 \('x'\): an array is needed, not str"),
    ],
)
def test_wrong_inputs_are_named_and_nothing_moves(device, index, value, message):
    arrays = vectors()
    with InputUploader(device, VECTORS) as uploader:
        buffers = uploader.upload(arrays)
        before = uploader.last
        with pytest.raises(InputError, match=message):
            uploader.upload([value if at == index else arrays[at] for at in range(2)])
        with pytest.raises(InputError, match="1 arguments given, 2 expected"):
            uploader.upload(arrays[:1])
        assert uploader.last == before
        check_and_close(buffers, arrays)


def test_a_failed_upload_reaches_who_waits_with_its_cause():
    with FaultyDevice() as device:
        device.script["h2d", 3] = "fail"  # the second piece of the second input
        arrays = vectors()
        with InputUploader(device, VECTORS, options=COPIES) as uploader:
            buffers = uploader.upload(arrays)
            np.testing.assert_array_equal(contents(buffers[0], arrays[0]), arrays[0])
            read = buffers[1].copy_to_host(np.zeros_like(arrays[1]))
            with pytest.raises(DependencyError) as caught:
                read.wait(LIMIT)
            assert isinstance(caught.value.__cause__, DeviceError)
            assert "copy 3 of kind h2d failed" in str(caught.value.__cause__)
            for buffer in buffers:
                buffer.close()
            check_and_close(uploader.upload(arrays), arrays)  # the next one is as before
        device.synchronize(LIMIT)
        assert device.statistics().live_allocations == 0


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_failed_copy_of_the_driver_reaches_who_waits(nth):
    driver = software_driver()
    arrays = vectors()
    with make_device("cuda") as cuda:
        with InputUploader(cuda, VECTORS, options=COPIES) as uploader:
            driver.fail("cuMemcpyHtoDAsync", nth, INVALID_VALUE)
            buffers = uploader.upload(arrays)
            failed = buffers[0 if nth == 1 else 1]
            with pytest.raises(DependencyError) as caught:
                failed.copy_to_host(np.zeros(failed.nbytes, np.uint8)).wait(LIMIT)
            assert isinstance(caught.value.__cause__, DeviceError)
            assert driver.pending_faults == 0
            for buffer in buffers:
                buffer.close()
            check_and_close(uploader.upload(arrays), arrays)
        cuda.synchronize(LIMIT)
        assert cuda.statistics().live_allocations == 0


@pytest.mark.parametrize(("nth", "code"), [(1, 801), (2, 801), (5, 801), (1, INVALID_VALUE)])
def test_a_driver_that_cannot_say_where_memory_is(nth, code):
    driver = software_driver()
    arrays = vectors()
    with make_device("cuda") as cuda:
        cuda.register_host(arrays[1].ctypes.data, arrays[1].nbytes)
        with InputUploader(cuda, VECTORS) as uploader:
            driver.fail("cuPointerGetAttribute", nth, code)
            if code == INVALID_VALUE:  # not known to the driver, so it is copied
                check_and_close(uploader.upload(arrays), arrays)
            else:
                with pytest.raises(DeviceError):
                    uploader.upload(arrays)
                assert cuda.statistics().live_allocations == 0
            assert driver.pending_faults == 0
            check_and_close(uploader.upload(arrays), arrays)
            assert uploader.last == ["copied", "in place"]
        cuda.unregister_host(arrays[1].ctypes.data)
        cuda.synchronize(LIMIT)
        assert cuda.statistics().live_allocations == 0


def test_a_call_without_memory_leaves_nothing():
    device = HostDevice(workers=2, memory_limit=1000)
    signatures = [signature("a", "8xf32"), signature("b", "8xf32", donated=True)]
    signatures.append(signature("w", f"{LARGE}xi32", donated=True))
    arrays = [np.zeros(8, np.float32), *vectors()]
    with device, InputUploader(device, signatures) as uploader:
        with pytest.raises(ResourceExhaustedError):
            uploader.upload(arrays)
        assert device.statistics().live_allocations == 0
        assert uploader.last == []


def test_a_refused_transfer_leaves_nothing(device, monkeypatch):
    with InputUploader(device, VECTORS, options=COPIES) as uploader:
        refused = uploader._uploader.admit

        def admit(source, timeout):
            if source.nbytes > 1000:
                raise DeadlineError("no room")
            refused(source, timeout)

        monkeypatch.setattr(uploader._uploader, "admit", admit)
        with pytest.raises(DeadlineError, match="no room"):
            uploader.upload(vectors())
        monkeypatch.undo()
        arrays = vectors()
        check_and_close(uploader.upload(arrays), arrays)
