# SPDX-License-Identifier: Apache-2.0
"""Transfer managers when something goes wrong: errors, cancelling, ends, limits, retries."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from device_support import LIMIT, FaultyDevice, bytes_shape, contents, random_bytes

from gristmill.errors import (
    ClosedError,
    DeadlineError,
    DependencyError,
    DeviceError,
    InputError,
    TransferCancelledError,
    TransferError,
)
from gristmill.runtime import uploads
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import leaks
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace
from gristmill.runtime.transfers import TransferOptions, create_transfer_manager
from gristmill.runtime.uploads import Uploader, UploadOptions

SMALL = UploadOptions(chunk_bytes=64, staging_bytes=128)


@pytest.fixture
def faulty():
    with FaultyDevice() as made:
        yield made
        made.gate.set()
        made.synchronize(LIMIT)
        assert made.statistics().live_bytes == 0


# Errors set by the user


def test_set_buffer_error_poisons_who_waits(device):
    shapes = [bytes_shape(8), bytes_shape(8)]
    with create_transfer_manager(device, shapes) as manager:
        with manager.retrieve_buffer(0) as buffer, buffer.slice(2, 2) as part:
            read = part.copy_to_host(bytearray(2))
            assert manager.set_buffer_error(0, ValueError("the file is damaged"))
            with pytest.raises(DependencyError, match="first: the file is damaged"):
                read.wait(LIMIT)
            with pytest.raises(ValueError, match="the file is damaged"):
                buffer.definition.wait(LIMIT)
        manager.transfer_raw(1, b"01234567")
        assert contents(manager, 1) == b"01234567", "other buffers are as before"


def test_set_buffer_error_is_idempotent(device):
    """In XLA the second call, or any transfer after the first, aborts the process."""
    with create_transfer_manager(device, [bytes_shape(8), bytes_shape(8)]) as manager:
        assert manager.set_buffer_error(0, "first")
        assert not manager.set_buffer_error(0, "second")
        for _ in range(2):
            with pytest.raises(TransferError, match="has failed before: first"):
                manager.transfer_chunk(0, b"x")
        manager.transfer_raw(1, bytes(8)).wait(LIMIT)
        assert not manager.set_buffer_error(1, "too late")
        assert contents(manager, 1) == bytes(8)
        with pytest.raises(InputError):
            manager.set_buffer_error(2, "no such buffer")


# Errors of the device


@pytest.mark.parametrize("action", ["fail", "refuse"])
def test_a_failing_chunk_poisons_its_buffer_only(faulty, action):
    faulty.script["h2d", 3] = action
    done = []
    with create_transfer_manager(
        faulty, [bytes_shape(640), bytes_shape(640)], upload=SMALL
    ) as manager:
        with manager.retrieve_buffer(0) as buffer:
            event = manager.transfer_raw(0, bytes(640), on_done=done.append)
            for waiting in (event, buffer.definition):
                with pytest.raises(DeviceError, match="copy 3 of kind h2d"):
                    waiting.wait(LIMIT)
            manager.wait(LIMIT)
            assert done == [event.error]
            with pytest.raises(TransferError, match="has failed before"):
                manager.transfer_chunk(0, b"x")
        manager.transfer_raw(1, random_bytes(640)).wait(LIMIT)
        assert contents(manager, 1) == random_bytes(640).tobytes()


@pytest.mark.parametrize("action", ["fail", "refuse"])
def test_chunks_are_tried_again(faulty, action):
    faulty.script["h2d", 2] = faulty.script["h2d", 5] = action
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, retries=2)
    with create_transfer_manager(faulty, [bytes_shape(640)], upload=options) as manager:
        manager.transfer_raw(0, random_bytes(640)).wait(LIMIT)
        assert contents(manager) == random_bytes(640).tobytes()
        assert manager.uploader.statistics().retries == 2
        assert manager.progress.done_bytes == 640


def test_tries_end(faulty):
    for count in range(1, 10):
        faulty.script["h2d", count] = "fail"
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, retries=3)
    with (
        create_transfer_manager(faulty, [bytes_shape(64)], upload=options) as manager,
        pytest.raises(DeviceError, match="copy 4 of kind h2d failed"),
    ):
        manager.transfer_raw(0, bytes(64)).wait(LIMIT)


@pytest.mark.parametrize("retries", [0, 1])
def test_verification_finds_damage(faulty, retries):
    faulty.script["h2d", 4] = "corrupt"
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, verify=True, retries=retries)
    with create_transfer_manager(faulty, [bytes_shape(640)], upload=options) as manager:
        event = manager.transfer_raw(0, random_bytes(640))
        if retries:
            event.wait(LIMIT)
            assert contents(manager) == random_bytes(640).tobytes()
        else:
            with pytest.raises(TransferError, match=r"64 bytes at offset \d+ arrived with CRC-32"):
                event.wait(LIMIT)


def test_a_failing_read_back_is_an_error(faulty):
    faulty.script["d2h", 2] = "fail"
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, verify=True)
    with (
        create_transfer_manager(faulty, [bytes_shape(640)], upload=options) as manager,
        pytest.raises(DeviceError, match="copy 2 of kind d2h failed"),
    ):
        manager.transfer_raw(0, bytes(640)).wait(LIMIT)


def test_no_ring_is_an_error(faulty, monkeypatch):
    monkeypatch.setattr(faulty, "memory_limit", 200)
    done = []
    with create_transfer_manager(faulty, [bytes_shape(150)], upload=SMALL) as manager:
        event = manager.transfer_raw(0, bytes(150), on_done=done.append)
        with pytest.raises(Exception, match="memory_limit of 200 bytes"):
            event.wait(LIMIT)
        manager.wait(LIMIT)
        assert done == [event.error]


# Cancelling and ends


def test_cancelling_drops_what_is_queued(faulty):
    faulty.gate.clear()
    done = []
    with create_transfer_manager(
        faulty, [bytes_shape(640), bytes_shape(640)], upload=SMALL
    ) as manager:
        events = [manager.transfer_raw(i, bytes(640), on_done=done.append) for i in range(2)]
        manager.cancel(1)
        with pytest.raises(TransferCancelledError, match="buffer 1 was cancelled"):
            events[1].wait(LIMIT)
        assert [type(error) for error in done] == [TransferCancelledError]
        manager.cancel()
        assert not events[0].done, "its source is still read"
        faulty.gate.set()
        with pytest.raises(TransferCancelledError, match="buffer 0 was cancelled"):
            events[0].wait(LIMIT)
        manager.wait(LIMIT)
        assert len(done) == 2
        assert faulty.seen["h2d"] <= 4, "two pieces in flight, two at most beside them"


def test_an_exception_cancels(faulty):
    faulty.gate.clear()
    done, buffers = [], []

    def interrupted():
        with create_transfer_manager(faulty, [bytes_shape(640)], upload=SMALL) as manager:
            buffers.append(manager.retrieve_buffer(0))
            manager.transfer_raw(0, bytes(640), on_done=done.append)
            threading.Timer(0.05, faulty.gate.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    buffer = buffers[0]
    assert [type(error) for error in done] == [TransferCancelledError]
    assert isinstance(buffer.definition.error, TransferCancelledError)
    buffer.close()


def test_closing_waits_and_poisons_what_is_unfinished(device):
    manager = create_transfer_manager(device, [bytes_shape(8), bytes_shape(8)], upload=SMALL)
    buffers = [manager.retrieve_buffer(index) for index in range(2)]
    manager.transfer_raw(0, b"01234567")
    manager.transfer_chunk(1, b"half")
    manager.close()
    manager.close()
    buffers[0].definition.wait(0)
    with pytest.raises(TransferError, match="closed before the buffer was complete"):
        buffers[1].definition.wait(0)
    with pytest.raises(ClosedError):
        manager.transfer_chunk(1, b"rest", 4)
    with pytest.raises(ClosedError):
        manager.retrieve_buffer(0)
    for buffer in buffers:
        buffer.close()


def test_a_manager_ends_though_its_memory_cannot_be_given_back(device):
    released = []

    def refuse():
        released.append(len(released))
        if len(released) == 1:
            raise DeviceError("the driver does not let go")

    memory = np.zeros((3, 8), np.uint8)
    buffers = []
    with leaks.track(raises=True, settle=0.1):
        for row in memory:
            allocation = DeviceAllocation(
                device, MemorySpace.PINNED, row.ctypes.data, 8, refuse,
                host_address=row.ctypes.data, owner=memory,
            )  # fmt: skip
            buffers.append(RawBuffer(allocation, 0, 8))
        manager = create_transfer_manager(device, [bytes_shape(8)] * 3, buffers=buffers)
        for buffer in buffers:
            buffer.close()
        with pytest.raises(DeviceError, match="does not let go"):
            manager.close()
    assert released == [0, 1, 2]
    assert manager.closed
    assert manager.uploader._closed


def test_a_transfer_ends_though_its_memory_cannot_be_given_back(faulty):
    """Its manager is closed in a callback, so that it may hold the memory last: which of them does is a race."""

    def refuse():
        raise DeviceError("the driver does not let go")

    memory = np.zeros(8, np.uint8)
    allocation = DeviceAllocation(
        faulty, MemorySpace.PINNED, memory.ctypes.data, 8, refuse, owner=memory
    )
    faulty.gate.clear()
    with RawBuffer(allocation, 0, 8) as given, RawBuffer.allocate(faulty, 8) as other:
        manager = create_transfer_manager(faulty, [bytes_shape(8)] * 2, buffers=[other, given])
    ends = []
    manager.transfer_raw(0, bytes(8), on_done=lambda error: manager.close())
    event = manager.transfer_raw(1, bytes(8), on_done=ends.append)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # from the transfer, if it is the last
        faulty.gate.set()
        event.wait(LIMIT)
        assert manager.uploader.wait_idle(lambda: manager._state.running == 0, LIMIT)
    assert ends == [None]
    assert allocation.closed


def test_a_callback_may_close_another_manager(faulty):
    """One with an uploader of its own, whose pieces need the thread that the callback is on."""
    managers = [create_transfer_manager(faulty, [bytes_shape(8)]) for _ in range(2)]
    closed = threading.Event()

    def close_other(error):
        managers[1].close()
        closed.set()

    faulty.gate.clear()
    managers[0].transfer_raw(0, bytes(8), on_done=close_other)
    managers[1].transfer_raw(0, bytes(8))
    time.sleep(0.05)  # both are on the device's stream
    faulty.gate.set()
    assert closed.wait(5)
    managers[0].close(LIMIT)


def test_an_uploader_closed_too_early_sends_what_is_queued_and_keeps_no_ring(faulty):
    uploader = Uploader(faulty, SMALL)
    data = random_bytes(1000)
    with create_transfer_manager(faulty, [bytes_shape(1000)], uploader=uploader) as manager:
        faulty.gate.clear()
        manager.transfer_raw(0, data)
        closing = threading.Thread(target=uploader.close)
        closing.start()
        time.sleep(0.05)
        faulty.gate.set()
        closing.join(LIMIT)
        assert contents(manager) == data.tobytes()
    assert uploader._ring is None


def test_an_interrupt_does_not_stop_an_uploader(device, monkeypatch):
    """A signal handled on the main thread just when it starts pieces."""

    def interrupt(queue):
        raise KeyboardInterrupt

    with create_transfer_manager(device, [bytes_shape(8)] * 2, upload=SMALL) as manager:
        with monkeypatch.context() as patch:
            patch.setattr(uploads.heapq, "heappop", interrupt)
            with pytest.raises(KeyboardInterrupt):
                manager.transfer_raw(0, bytes(8))
        manager.transfer_raw(1, bytes(8)).wait(LIMIT)
        manager.wait(LIMIT)


def test_a_manager_dropped_elsewhere_while_the_ring_is_made_is_swept(device, monkeypatch):
    """By a thread in a lock of the device, which making the ring needs too."""
    allocate = device.allocate_staging
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, staged=True)

    def sweep_elsewhere(nbytes):
        sweeping = threading.Thread(target=uploader.sweep, daemon=True)
        sweeping.start()
        sweeping.join(LIMIT)
        assert not sweeping.is_alive(), "it waits for the uploader, and that for the device"
        return allocate(nbytes)

    monkeypatch.setattr(device, "allocate_staging", sweep_elsewhere)
    with (
        Uploader(device, options) as uploader,
        create_transfer_manager(device, [bytes_shape(8)], uploader=uploader) as manager,
    ):
        manager.transfer_raw(0, bytes(8)).wait(LIMIT)


def test_closing_has_a_deadline(faulty):
    faulty.gate.clear()
    manager = create_transfer_manager(faulty, [bytes_shape(640)], upload=SMALL)
    manager.transfer_raw(0, bytes(640))
    with pytest.raises(DeadlineError, match=r"1 transfers still run after 0\.02 s"):
        manager.close(0.02)
    assert not manager.closed
    faulty.gate.set()
    manager.close(LIMIT)


def test_a_deleted_manager_poisons_what_is_unfinished(faulty):
    """Nothing hangs, ``on_done`` runs, memory comes back."""
    faulty.gate.clear()
    done = []
    held = [create_transfer_manager(faulty, [bytes_shape(640), bytes_shape(8)], upload=SMALL)]
    buffers = [held[0].retrieve_buffer(index) for index in range(2)]
    event = held[0].transfer_raw(0, bytes(640), on_done=done.append)
    read = buffers[1].copy_to_host(bytearray(8))
    with pytest.warns(ResourceWarning, match=r"was not closed; unfinished buffers: \[0, 1\]"):
        held.clear()
    for buffer in buffers:
        with pytest.raises(TransferError, match="deleted before the buffer was complete"):
            buffer.definition.wait(0)
    with pytest.raises(DependencyError):
        read.wait(LIMIT)
    faulty.gate.set()
    with pytest.raises(TransferError):
        event.wait(LIMIT)
    assert len(done) == 1
    for buffer in buffers:
        buffer.close()


def test_on_done_is_called_once_and_always(faulty):
    """Every way a transfer ends: done, failed, cancelled, poisoned, checksum, closed."""
    faulty.script["h2d", 4] = "fail"
    seen = []
    shapes = [bytes_shape(192)] * 4
    with create_transfer_manager(faulty, shapes, upload=SMALL) as manager:
        for index in range(4):
            bad = {"checksum": 1} if index == 2 else {}

            def note(error, index=index):
                seen.append((index, type(error)))

            manager.transfer_raw(index, bytes(192), on_done=note, **bad)
            if index == 3:
                manager.set_buffer_error(3, KeyError("poisoned"))
            manager.wait(LIMIT)
    kinds = dict(seen)
    assert len(seen) == 4
    assert kinds[0] is type(None)
    assert kinds[1] is DeviceError
    assert kinds[2] is TransferError
    assert kinds[3] in (KeyError, type(None)), "it may have been faster than the error"


# Order and limits


def test_higher_priority_goes_first(faulty):
    faulty.gate.clear()
    with create_transfer_manager(
        faulty, [bytes_shape(1024), bytes_shape(1024)], upload=SMALL
    ) as manager:
        low = manager.transfer_raw(0, bytes(1024))
        high = manager.transfer_raw(1, bytes(1024), priority=1)
        order = []
        low.add_callback(lambda event: order.append("low"))
        high.add_callback(lambda event: order.append("high"))
        faulty.gate.set()
        manager.wait(LIMIT)
    assert order == ["high", "low"]


def test_equal_priority_is_first_come_first_served(faulty):
    options = UploadOptions(chunk_bytes=64, staging_bytes=64)
    with create_transfer_manager(faulty, [bytes_shape(640)], upload=options) as manager:
        manager.transfer_raw(0, bytes(640)).wait(LIMIT)
    assert faulty.order == list(range(0, 640, 64))


def test_bytes_in_flight_are_bounded(device):
    for staged in (None, True):
        options = UploadOptions(chunk_bytes=100, staging_bytes=350, staged=staged)
        with create_transfer_manager(device, [bytes_shape(5000)], upload=options) as manager:
            manager.transfer_raw(0, random_bytes(5000)).wait(LIMIT)
            assert contents(manager) == random_bytes(5000).tobytes()
            assert manager.uploader.statistics().peak_in_flight_bytes <= 300


def test_callers_wait_while_too_much_is_queued(faulty):
    faulty.gate.clear()
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, pending_bytes=1000)
    with create_transfer_manager(faulty, [bytes_shape(4000)], upload=options) as manager:
        manager.transfer_chunk(0, bytes(900))
        with pytest.raises(DeadlineError, match="pending_bytes is 1000"):
            manager.transfer_chunk(0, bytes(200), 900, timeout=0.02)
        assert manager.missing(0) == [(900, 4000)], "it took nothing"
        threading.Timer(0.05, faulty.gate.set).start()
        manager.transfer_chunk(0, bytes(3100), 900, timeout=LIMIT).wait(
            LIMIT
        )  # larger than allowed, alone
        manager.wait(LIMIT)


def test_a_rejected_chunk_gives_its_place_back(faulty):
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, pending_bytes=100)
    with create_transfer_manager(faulty, [bytes_shape(300)], upload=options) as manager:
        for _ in range(5):
            with pytest.raises(InputError):
                manager.transfer_chunk(0, bytes(90), 299, timeout=1)
        manager.transfer_chunk(0, bytes(90), timeout=1).wait(LIMIT)


def test_callbacks_may_send_more_than_the_limit(device):
    """The thread that would make room does not wait for it."""
    options = UploadOptions(chunk_bytes=64, staging_bytes=128, pending_bytes=64)
    with create_transfer_manager(device, [bytes_shape(640)], upload=options) as manager:

        def send(offset):
            if offset < 640:
                manager.transfer_chunk(
                    0, bytes(64), offset, on_done=lambda error: send(offset + 64), timeout=1
                )

        send(0)
        assert contents(manager) == bytes(640)
        manager.wait(LIMIT)


def test_sources_are_let_go_when_done(device):
    with create_transfer_manager(device, [bytes_shape(1000)], upload=SMALL) as manager:
        data = random_bytes(1000)
        gone = weakref.ref(data)
        event = manager.transfer_raw(0, data)
        del data
        event.wait(LIMIT)
        manager.wait(LIMIT)
        device.synchronize(LIMIT)
        for _ in range(100):
            gc.collect()
            if gone() is None:
                break
            threading.Event().wait(0.01)
        assert gone() is None


def test_many_managers_and_threads(device):
    """Six threads, each with managers of its own on one uploader: nothing is mixed up."""
    with Uploader(device, UploadOptions(chunk_bytes=100, staging_bytes=500, threads=3)) as uploader:
        failures = []

        def work(seed):
            try:
                for turn in range(5):
                    data = random_bytes(1000, seed * 100 + turn)
                    cuts = [0, 1, 333, 334, 800, 1000]
                    with create_transfer_manager(
                        device, [bytes_shape(1000)], uploader=uploader
                    ) as manager:
                        for low, high in itertools.pairwise(cuts):
                            manager.transfer_chunk(0, data[low:high], low, priority=seed % 3)
                        assert contents(manager) == data.tobytes()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert failures == []


def test_a_label_names_the_upload(device):
    options = TransferOptions(label="checkpoint 7")
    with (
        create_transfer_manager(device, [bytes_shape(4)], options=options) as manager,
        pytest.raises(TransferError, match=r"^checkpoint 7: buffer 0: the last"),
    ):
        manager.transfer_chunk(0, b"a", last=True)


def test_a_fault_in_the_book_keeping_is_reported_and_stops_nothing(device, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(kind))
    with Uploader(device, SMALL) as uploader:
        shapes = [bytes_shape(640)] * 2
        with create_transfer_manager(device, shapes, uploader=uploader) as manager:
            with monkeypatch.context() as patch:
                patch.setattr(manager._state.meter, "add", lambda nbytes: 1 / 0)
                manager.transfer_raw(0, bytes(640)).wait(LIMIT)
                manager.wait(LIMIT)
            manager.transfer_raw(1, bytes(640)).wait(LIMIT)
    assert reported
    assert set(reported) == {ZeroDivisionError}


# Memory


STREAM = """
import resource, sys
from device_support import SinkDevice
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import UploadOptions

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

path, size = sys.argv[1], int(sys.argv[2])
options = UploadOptions(chunk_bytes=1 << 20, staging_bytes=8 << 20)
with SinkDevice() as device:
    before = peak()
    with create_transfer_manager(device, [Shape.parse(f"u8[{size}]")], upload=options) as manager:
        manager.transfer_file(0, path).wait(100)
        assert manager.progress.done_bytes == size
        assert manager.uploader.statistics().peak_in_flight_bytes <= 8 << 20
    assert device.received == size
    print(peak() - before)
"""


@pytest.mark.parametrize(
    "size", [256 << 20, pytest.param(2 << 30, marks=pytest.mark.slow)], ids=["256MB", "2GB"]
)
def test_a_large_file_needs_no_more_host_memory_than_the_ring(tmp_path, size):
    path = tmp_path / "tensors"
    with path.open("wb") as file:
        file.truncate(size)  # sparse: it takes no room on the disk
    result = subprocess.run(
        [sys.executable, "-c", STREAM, str(path), str(size)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    grown = int(result.stdout)
    assert grown < (8 << 20) + (12 << 20), "the ring, and some room for threads"
