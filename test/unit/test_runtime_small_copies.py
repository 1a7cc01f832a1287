# SPDX-License-Identifier: Apache-2.0
"""Small copies that are over when the call returns: the same rules as for all others, and no thread."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from device_support import LIMIT

from gristmill.errors import ClosedError, DependencyError, InputError
from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace
from gristmill.runtime.devices.host import INLINE_BYTES, HostDevice
from gristmill.runtime.events import Event, EventState, failed, ready
from gristmill.runtime.memory.host import data_address


@pytest.fixture
def host():
    with HostDevice() as made:
        yield made
        assert made.statistics().live_bytes == 0


def threads_of(device):
    return len(device._pool._threads)


def test_no_thread_and_no_stream_is_needed(host):
    data = np.arange(1000, dtype=np.int32)
    out = np.zeros_like(data)
    with RawBuffer.allocate(host, 4000) as one, RawBuffer.allocate(host, 4000) as two:
        for event in (one.copy_from_host(data), one.copy_to(two), two.copy_to_host(out)):
            assert event.state is EventState.READY
            assert event.name.endswith(" 4000 B")
        np.testing.assert_array_equal(out, data)
    assert threads_of(host) == 0
    found = host.statistics()
    assert found.copies == {"h2d": 1, "d2d": 1, "d2h": 1}
    assert found.copied_bytes == {"h2d": 4000, "d2d": 4000, "d2h": 4000}
    assert found.streams == 0


def test_each_copy_has_an_event_of_its_own(host):
    with RawBuffer.allocate(host, 4) as buffer:
        events = [buffer.copy_from_host(bytes(4)) for _ in range(3)]
    assert len(set(events)) == 3
    seen = []
    for event in events:
        assert not event.complete()
        assert not event.fail(ValueError())
        event.add_callback(seen.append)
        event.remove_callback(seen.append)
        weakref.ref(event)
        assert (event.error, event.started_ns, event.completed_ns) == (None, None, None)
    assert seen == events


def test_large_copies_take_a_thread(host):
    data = np.zeros(INLINE_BYTES + 1, np.uint8)
    with RawBuffer.allocate(host, data.nbytes) as buffer:
        buffer.copy_from_host(data).wait(LIMIT)
    assert threads_of(host) > 0


def test_pending_and_failed_waits_are_honoured(host):
    gate = Event("gate")
    with RawBuffer.from_host(host, bytes(8)) as buffer:
        late = buffer.copy_from_host(b"\1" * 8, waits=[ready(), gate])
        out = np.zeros(8, np.uint8)
        buffer.copy_to_host(out).wait(LIMIT)
        assert not late.done
        assert not out.any()
        gate.complete()
        late.wait(LIMIT)
        poisoned = buffer.copy_from_host(b"\2" * 8, waits=[failed(ValueError("lost"))])
        with pytest.raises(DependencyError, match="lost"):
            poisoned.wait(LIMIT)
        buffer.copy_to_host(out).wait(LIMIT)
        assert bytes(out) == b"\1" * 8
    assert host.statistics().failures == 1


def test_an_undefined_buffer_is_waited_for(host):
    definition = Event("definition")
    with (
        RawBuffer.allocate(host, 8, definition=definition) as buffer,
        RawBuffer.allocate(host, 8) as other,
    ):
        out = np.zeros(8, np.uint8)
        events = [buffer.copy_to_host(out), buffer.copy_to(other), other.copy_to(buffer)]
        assert not any(event.done for event in events)
        definition.fail(ValueError("never filled"))
        for event in events:
            with pytest.raises(DependencyError, match="never filled"):
                event.wait(LIMIT)


def test_streams_keep_their_order(host):
    """Copies and host functions take turns; what a copy reads is what the function before it wrote."""
    count = 300
    with (
        host.create_stream() as stream,
        RawBuffer.allocate(host, 4 * count) as results,
        RawBuffer.allocate(host, 4) as cell,
    ):
        source = np.zeros(1, np.int32)
        events = []
        for turn in range(count):
            stream.enqueue(lambda turn=turn: source.fill(turn))
            events.append(cell.copy_from_host(source, stream=stream))
            events.append(cell.copy_to(results, destination_offset=4 * turn, stream=stream))
            if turn % 7 == 0:
                events[-1].wait(LIMIT)  # the stream is idle now and then
        out = np.zeros(count, np.int32)
        results.copy_to_host(out, stream=stream).wait(LIMIT)
        np.testing.assert_array_equal(out, np.arange(count))


def test_a_busy_stream_is_waited_for(host):
    gate = threading.Event()
    with host.create_stream() as stream, RawBuffer.from_host(host, bytes(4)) as buffer:
        stream.enqueue(lambda: gate.wait(LIMIT))
        event = buffer.copy_from_host(b"\1" * 4, stream=stream)
        assert not event.done
        gate.set()
        event.wait(LIMIT)


def test_streams_that_failed_closed_or_are_of_others(host):
    with RawBuffer.allocate(host, 4) as buffer:
        with host.create_stream("strict") as stream:
            stream.enqueue(lambda: 1 / 0).block(LIMIT)
            with pytest.raises(DependencyError, match="failed before"):
                buffer.copy_from_host(bytes(4), stream=stream).wait(LIMIT)
            stream.recover()
            buffer.copy_from_host(bytes(4), stream=stream).wait(LIMIT)
        with pytest.raises(ClosedError):
            buffer.copy_from_host(bytes(4), stream=stream)
        with HostDevice(1) as other, other.create_stream() as theirs:
            with pytest.raises(InputError, match="not a stream of"):
                buffer.copy_from_host(bytes(4), stream=theirs)
            assert theirs.idle


def test_what_is_wrong_is_refused_as_for_large_copies(host):
    array = np.zeros(16, np.uint8)
    frozen = np.zeros(8, np.uint8)
    frozen.setflags(write=False)
    with RawBuffer.allocate(host, 16) as buffer, buffer.slice(4, 8) as part:
        for offset, nbytes in ((-1, 4), (0, -4), (12, 5), (np.int64(0), 4), (1 << 63, 1 << 63)):
            with pytest.raises(InputError):
                buffer.copy_from_host(array, offset, nbytes)
            with pytest.raises(InputError):
                buffer.copy_to_host(array, offset, nbytes)
        with pytest.raises(InputError, match="overlap"):
            buffer.copy_to(part, 0, 8)
        with pytest.raises(InputError, match="read-only"):
            buffer.copy_to_host(frozen)
        with buffer.readonly_view() as view, pytest.raises(InputError, match="read-only"):
            view.copy_from_host(array)
        buffer.copy_from_host(frozen).wait(LIMIT)
    for call in (buffer.copy_from_host, buffer.copy_to_host):
        with pytest.raises(ClosedError):
            call(array)
    host.close()
    with pytest.raises(ClosedError):
        host.copy(
            host.host_memory(data_address(array), 4), 0, host.host_memory(1, 4), 0, 4
        )  # fmt: skip


def test_memory_stays_while_it_is_copied(host):
    """Buffers are closed by other threads while copies run; what they held is released once, after."""
    released = []
    stop = threading.Event()
    data = np.ones(1 << 16, np.uint8)

    def copy(buffers):
        while not stop.is_set():
            for buffer in list(buffers):
                try:
                    buffer.copy_from_host(data).wait(LIMIT)
                except ClosedError:
                    continue

    buffers = []
    workers = [threading.Thread(target=copy, args=(buffers,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for turn in range(200):
        owner = np.zeros(1 << 16, np.uint8)
        allocation = DeviceAllocation(
            host, MemorySpace.DEVICE, data_address(owner), owner.nbytes,
            lambda turn=turn: released.append(turn), host_address=data_address(owner), owner=owner,
        )  # fmt: skip
        buffers.append(RawBuffer(allocation, 0, owner.nbytes))
        if len(buffers) > 3:
            buffers.pop(0).close()
    stop.set()
    for worker in workers:
        worker.join(LIMIT)
    for buffer in buffers:
        buffer.close()
    assert sorted(released) == list(range(200))


def test_debug_tools_see_them(host):
    class Watcher(observer.Observer):
        def __init__(self):
            self.names = []

        def submitted(self, operation):
            self.names.append((operation.name, operation.completion.state))

    watcher = Watcher()
    observer.install(watcher)
    try:
        with RawBuffer.allocate(host, 16) as buffer:
            buffer.copy_from_host(bytes(16)).wait(LIMIT)
    finally:
        observer.uninstall(watcher)
    assert [name for name, _ in watcher.names] == ["copy h2d 16 B"]


def test_addresses_of_arrays():
    base = np.arange(60, dtype=np.int16).reshape(3, 20)
    fixed = np.frombuffer(b"abcd", np.uint8)
    for array in (base, base[1:, 3:], base.T, np.empty((0, 4)), np.array(3.0), fixed):
        assert data_address(array) == array.ctypes.data
