# SPDX-License-Identifier: Apache-2.0
"""Raw buffers: copies, views, definitions, dynamic shapes, life. The same on every device."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings

import ml_dtypes
import numpy as np
import pytest
from device_support import LIMIT, FaultyDevice, IslandDevice

from gristmill.errors import ClosedError, DependencyError, DeviceError, InputError
from gristmill.runtime import peer_copies
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.events import Event, failed
from gristmill.runtime.layout import Shape, write_sizes


def contents(buffer, **options):
    out = np.zeros(buffer.nbytes, np.uint8)
    buffer.copy_to_host(out, **options).wait(LIMIT)
    return out.tobytes()


def random_bytes(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@pytest.fixture
def buffer(device):
    """16 bytes: 0, 1, … 15."""
    with RawBuffer.allocate(device, 16) as made:
        made.copy_from_host(np.arange(16, dtype=np.uint8)).wait(LIMIT)
        yield made


# Copies


@pytest.mark.parametrize("nbytes", [1, 5, 4096, 300_001, 9_000_001])
def test_there_and_back(device, nbytes):
    data = random_bytes(nbytes)
    with RawBuffer.allocate(device, nbytes) as one, RawBuffer.allocate(device, nbytes) as two:
        up = one.copy_from_host(data)
        across = one.copy_to(two, waits=[up])
        assert contents(two, waits=[across]) == data.tobytes()


def test_parts_at_odd_offsets(buffer, device):
    buffer.copy_from_host(b"abcdefgh", 3, 2, source_offset=5).wait(LIMIT)
    assert contents(buffer) == bytes([0, 1, 2]) + b"fg" + bytes(range(5, 16))
    out = bytearray(b"........")
    buffer.copy_to_host(out, 2, 4, destination_offset=1).wait(LIMIT)
    assert out == b".\x02fg\x05..."
    with RawBuffer.allocate(device, 8) as other:
        other.copy_from_host(b"--------").wait(LIMIT)
        buffer.copy_to(other, 3, 2, destination_offset=6).wait(LIMIT)
        assert contents(other) == b"------fg"


def test_the_end_of_a_buffer_belongs_to_it(buffer):
    """Equality of offset plus size with the size is allowed, and so is nothing at the end."""
    buffer.copy_from_host(b"z", 15).wait(LIMIT)
    buffer.copy_from_host(b"", 16).wait(LIMIT)
    buffer.copy_to_host(bytearray(), 16).wait(LIMIT)
    assert contents(buffer)[-1:] == b"z"


def test_kinds_of_host_objects(device):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.arange(4).astype(ml_dtypes.int4),
        np.array(3.5),
        bytes(5),
        bytearray(b"hello"),
        memoryview(b"hello"),
        memoryview(np.arange(6, dtype=np.int16).reshape(2, 3)),
    ]
    for data in arrays:
        with RawBuffer.from_host(device, data) as made:
            expected = data.tobytes() if hasattr(data, "tobytes") else bytes(data)
            assert contents(made) == expected


def test_host_objects_that_cannot_be_used(buffer):
    strided = np.zeros((4, 4), np.uint8)[:, ::2]
    with pytest.raises(InputError, match=r"not C-contiguous; pass numpy\.ascontiguousarray"):
        buffer.copy_from_host(strided)
    with pytest.raises(InputError, match="not C-contiguous"):
        buffer.copy_to_host(memoryview(bytearray(8))[::2])
    with pytest.raises(InputError, match="Python objects"):
        buffer.copy_from_host(np.array([object()]))
    with pytest.raises(InputError, match="int is neither an array nor"):
        buffer.copy_from_host(3)
    with pytest.raises(InputError, match="destination is read-only"):
        buffer.copy_to_host(bytes(4))


BAD = [(-1, 4), (0, -4), (14, 4), (17, 0), (0, 17), (2**63, 1), (1, 2**64 - 1), (0, True), (0.0, 1)]


@pytest.mark.parametrize(("offset", "nbytes"), BAD)
def test_bad_ranges_move_nothing(buffer, device, offset, nbytes):
    before = contents(buffer)
    copies = device.statistics().copies
    host = np.full(64, 99, np.uint8)
    with RawBuffer.allocate(device, 64) as other:
        for action in (
            lambda: buffer.copy_from_host(host, offset, nbytes),
            lambda: buffer.copy_to_host(host, offset, nbytes),
            lambda: buffer.copy_to(other, offset, nbytes),
            lambda: other.copy_to(buffer, 0, nbytes, destination_offset=offset),
            lambda: buffer.slice(offset, nbytes),
            lambda: buffer.slices([(0, 4), (offset, nbytes)]),
        ):
            with pytest.raises(InputError):
                action()
    assert device.statistics().copies == copies
    assert (host == 99).all()
    assert contents(buffer) == before


def test_bad_ranges_of_the_host_side(buffer):
    for offset, nbytes in [(-1, 2), (3, 2), (5, 0)]:
        with pytest.raises(InputError):
            buffer.copy_from_host(b"abcd", 0, nbytes, source_offset=offset)
        with pytest.raises(InputError):
            buffer.copy_to_host(bytearray(4), 0, nbytes, destination_offset=offset)
    with pytest.raises(InputError, match="source and destination overlap"):
        buffer.copy_to(buffer, 0, 8, destination_offset=4)


def test_a_source_is_kept_alive(device):
    gate = Event()
    with RawBuffer.allocate(device, 1000) as made:
        event = made.copy_from_host(np.full(1000, 5, np.uint8), waits=[gate])
        gc.collect()
        gate.complete()
        event.wait(LIMIT)
        assert contents(made) == bytes([5]) * 1000


# Dependencies


def test_copies_wait_and_are_poisoned(buffer):
    first, second = Event(), Event("second")
    write = buffer.copy_from_host(b"x", 0, waits=[first, second])
    out = bytearray(16)
    read = buffer.copy_to_host(out, waits=[write])
    first.complete()
    assert not write.done
    assert not read.done
    second.fail(ValueError("root"))
    for event in (write, read):
        with pytest.raises(DependencyError, match="first: root"):
            event.wait(LIMIT)
    assert read.error.__cause__ is write.error
    assert out == bytes(16)
    assert contents(buffer) == bytes(range(16))


def test_copies_can_be_awaited(device):
    async def main():
        data = random_bytes(500_000)
        out = np.zeros_like(data)
        with RawBuffer.allocate(device, data.nbytes) as made:
            await made.copy_from_host(data)
            await made.copy_to_host(out)
            with pytest.raises(DependencyError):
                await made.copy_to_host(out, waits=[failed(ValueError())])
        assert np.array_equal(out, data)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_buffer_is_used_before_it_is_defined(device):
    definition = Event("filling")
    with RawBuffer.allocate(device, 4, definition=definition) as made, made.slice(1, 2) as part:
        out = bytearray(2)
        read = part.copy_to_host(out)
        write = made.copy_from_host(b"abcd")
        assert not read.done
        assert not write.done
        definition.complete()
        read.wait(LIMIT)
        write.wait(LIMIT)


def test_a_buffer_in_error_poisons_its_views_and_readers(device):
    with (
        RawBuffer.allocate(device, 4, definition=failed(ValueError("lost"), "filling")) as made,
        made.slice(1, 2) as part,
        RawBuffer.allocate(device, 4) as other,
    ):
        for event in (
            part.copy_to_host(bytearray(2)),
            made.copy_to(other),
            made.copy_from_host(b"1234"),
            other.copy_to(made),
        ):
            with pytest.raises(DependencyError, match="filling failed; first: lost"):
                event.wait(LIMIT)


def test_copies_in_the_order_of_a_stream(buffer, device):
    with device.create_stream() as stream:
        buffer.copy_from_host(b"a" * 16, stream=stream)
        buffer.copy_from_host(b"b" * 8, stream=stream)
        assert contents(buffer, stream=stream) == b"b" * 8 + b"a" * 8
        buffer.copy_from_host(b"c", waits=[failed(ValueError())], stream=stream)
        with pytest.raises(DependencyError):
            contents(buffer, stream=stream)
        stream.recover()


# Between devices


@pytest.mark.parametrize("nbytes", [0, 1, 100_000, 1_000_003])
@pytest.mark.parametrize("first", [HostDevice, IslandDevice])
@pytest.mark.parametrize("second", [HostDevice, IslandDevice])
def test_between_devices(first, second, nbytes, monkeypatch):
    monkeypatch.setattr(peer_copies, "STAGING_BYTES", 64 << 10)
    data = random_bytes(nbytes)
    with first(0) as here, second(1) as there:
        with RawBuffer.from_host(here, data) as one, RawBuffer.allocate(there, nbytes + 5) as two:
            moved = one.copy_to(two, destination_offset=5)
            assert contents(two, waits=[moved])[5:] == data.tobytes()
        assert here.statistics().live_bytes == there.statistics().live_bytes == 0


def test_staging_is_bounded(monkeypatch):
    monkeypatch.setattr(peer_copies, "STAGING_BYTES", 1000)
    with IslandDevice(0) as here, IslandDevice(1) as there:
        with RawBuffer.allocate(here, 50_000) as one, RawBuffer.allocate(there, 50_000) as two:
            one.copy_to(two).wait(LIMIT)
        assert here.statistics().peak_bytes == 50_000 + peer_copies.STAGING_PIECES * 1000


def test_a_staging_piece_is_used_again_only_when_it_is_up(monkeypatch):
    monkeypatch.setattr(peer_copies, "STAGING_BYTES", 1000)
    data = random_bytes(10_000)
    with (
        IslandDevice(0) as here,
        FaultyDevice() as there,
        RawBuffer.from_host(here, data) as one,
        RawBuffer.allocate(there, 10_000) as two,
    ):
        there.gate.clear()
        moved = one.copy_to(two)
        time.sleep(0.05)
        there.gate.set()
        assert contents(two, waits=[moved]) == data.tobytes()


@pytest.mark.parametrize("action", ["fail", "refuse"])
@pytest.mark.parametrize(("kind", "number"), [("d2h", 1), ("d2h", 7), ("h2d", 1), ("h2d", 6)])
def test_a_staged_copy_fails_at_any_step(monkeypatch, kind, number, action):
    """In XLA a second hop that cannot start dereferences a null error; here it is in the event."""
    monkeypatch.setattr(peer_copies, "STAGING_BYTES", 1000)
    with FaultyDevice() as here, FaultyDevice() as there:
        device = here if kind == "d2h" else there
        device.script[kind, number] = action
        with RawBuffer.allocate(here, 10_000) as one, RawBuffer.allocate(there, 10_000) as two:
            try:
                event = one.copy_to(two)
            except DeviceError:
                assert (kind, number, action) == ("d2h", 1, "refuse"), "nothing was enqueued"
            else:
                with pytest.raises(DeviceError, match=f"copy {number} of kind {kind}"):
                    event.wait(LIMIT)
        here.synchronize(LIMIT)
        there.synchronize(LIMIT)
        assert here.statistics().live_bytes == there.statistics().live_bytes == 0


def test_streams_do_not_order_staged_copies():
    with (
        IslandDevice(0) as here,
        IslandDevice(1) as there,
        RawBuffer.allocate(here, 8) as one,
        RawBuffer.allocate(there, 8) as two,
        here.create_stream() as stream,
        pytest.raises(InputError, match="give events"),
    ):
        one.copy_to(two, stream=stream)


# Views


def test_slices_share_memory(buffer):
    with buffer.slice(4, 8) as part, part.slice(2, 3) as inner:
        inner.copy_from_host(b"xyz").wait(LIMIT)
        assert contents(part) == bytes([4, 5]) + b"xyz" + bytes([9, 10, 11])
        assert inner.address == buffer.address + 6
        with pytest.raises(InputError):
            part.slice(2, 7)  # inside the buffer, outside the slice


def test_slices_at_once(buffer):
    parts = buffer.slices([(0, 4), (2, 4), (16, 0), (0, 16)])
    assert [contents(part) for part in parts] == [
        bytes(range(4)),
        bytes(range(2, 6)),
        b"",
        bytes(range(16)),
    ]
    for part in parts:
        part.close()
    assert buffer.slices([]) == []


def test_a_slice_outlives_its_buffer(device):
    made = RawBuffer.from_host(device, b"hello")
    part = made.slice(1, 3)
    made.close()
    assert device.statistics().live_allocations == 1
    assert contents(part) == b"ell"
    part.close()
    assert device.statistics().live_allocations == 0


def test_readonly_views(buffer, device):
    with buffer.readonly_view() as view, view.slice(0, 4) as part:
        assert view.readonly
        for refused in (view, part):
            with pytest.raises(InputError, match="read-only"):
                refused.copy_from_host(b"no", 0)
            with pytest.raises(InputError, match="read-only"):
                buffer.copy_to(refused, 8, 2)
        buffer.copy_from_host(b"yes").wait(LIMIT)
        assert contents(part)[:3] == b"yes"


def test_host_pointers(device):
    with RawBuffer.allocate(device, 8, MemorySpace.PINNED) as pinned, pinned.slice(3, 2) as part:
        assert pinned.host_pointer() is not None
        assert part.host_pointer() == pinned.host_pointer() + 3
        assert pinned.space is MemorySpace.PINNED
    with RawBuffer.allocate(device, 8) as own:
        assert (own.host_pointer() is not None) == (type(device) is HostDevice)


# Dynamic shapes


@pytest.mark.parametrize("text", ["f32[<=8,3]", "pred[<=3]", "u8[<=5,<=3]{0,1}"])
def test_dynamic_sizes(device, text):
    """``pred[<=3]`` has a payload of 3 bytes: its metadata is aligned to 4 all the same."""
    shape = Shape.parse(text)
    sizes = tuple(
        2 if free else bound for bound, free in zip(shape.dims, shape.dynamic, strict=True)
    )
    data = np.zeros(shape.buffer_bytes, np.uint8)
    write_sizes(data, shape, sizes)
    with RawBuffer.from_host(device, data) as made:
        assert made.read_dynamic_shape(shape, timeout=LIMIT) == sizes
        with made.remove_dynamic_shape_metadata(shape) as payload:
            assert payload.nbytes == shape.nbytes
        # An odd address in the buffer does not matter.
    with (
        RawBuffer.allocate(device, shape.buffer_bytes + 1) as made,
        made.slice(1, shape.buffer_bytes) as odd,
    ):
        odd.copy_from_host(data).wait(LIMIT)
        assert odd.read_dynamic_shape(shape, timeout=LIMIT) == sizes


def test_dynamic_sizes_are_validated(device):
    shape = Shape.parse("f32[<=8,3]")
    for sizes in [(9, 3), (2, 2), (-1, 3)]:
        data = np.zeros(shape.buffer_bytes, np.uint8)
        data[shape.metadata_offset :] = np.array(sizes, "<i4").view(np.uint8)
        with (
            RawBuffer.from_host(device, data) as made,
            pytest.raises(InputError, match="incompatib"),
        ):
            made.read_dynamic_shape(shape, timeout=LIMIT)
    with RawBuffer.allocate(device, shape.nbytes) as small:
        for action in (small.read_dynamic_shape, small.remove_dynamic_shape_metadata):
            with pytest.raises(InputError, match="too small"):
                action(shape)


def test_static_shapes_and_tokens_have_no_metadata(device):
    for text in ("f32[2,3]", "token[]"):
        shape = Shape.parse(text)
        with RawBuffer.allocate(device, shape.nbytes) as made:
            assert made.read_dynamic_shape(shape) == shape.dims
            with made.remove_dynamic_shape_metadata(shape) as same:
                assert same.nbytes == made.nbytes


def test_sizes_of_a_failed_buffer_are_its_error(device):
    shape = Shape.parse("f32[<=8]")
    definition = failed(ValueError("lost"))
    with (
        RawBuffer.allocate(device, shape.buffer_bytes, definition=definition) as made,
        pytest.raises(DependencyError, match="lost"),
    ):
        made.read_dynamic_shape(shape, timeout=LIMIT)


# Life


def test_closed_buffers_refuse_everything(device):
    made = RawBuffer.allocate(device, 8)
    made.close()
    made.close()
    assert made.closed
    with RawBuffer.allocate(device, 8) as other:
        for action in (
            lambda: made.copy_from_host(b"x"),
            lambda: made.copy_to_host(bytearray(1)),
            lambda: made.copy_to(other),
            lambda: other.copy_to(made),
            lambda: made.slice(0, 1),
            lambda: made.readonly_view(),
            lambda: made.address,
            lambda: made.storage,
            lambda: made.host_pointer(),
            lambda: made.read_dynamic_shape(Shape.parse("f32[2]")),
        ):
            with pytest.raises(ClosedError):
                action()


def test_closing_during_a_copy(device):
    gate = Event()
    out = bytearray(4)
    with RawBuffer.from_host(device, b"data") as made:
        event = made.copy_to_host(out, waits=[gate])
    assert device.statistics().live_allocations == 1
    gate.complete()
    event.wait(LIMIT)
    assert out == b"data"
    device.synchronize(LIMIT)


def test_closing_from_many_threads_closes_once(device):
    for _ in range(10):
        made = RawBuffer.allocate(device, 8)
        threads = [threading.Thread(target=made.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert device.statistics().live_allocations == 0


def test_a_forgotten_buffer_warns_and_does_nothing_else(device):
    held = [RawBuffer.allocate(device, 8)]
    allocation, _ = held[0].storage
    with pytest.warns(ResourceWarning, match="8 B buffer in device memory of .* was not closed"):
        held.clear()
    assert not allocation.closed
    allocation.drop()


def test_a_failed_constructor_leaves_nothing(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (-1, 1 << 55):
            with pytest.raises(Exception, match=r"negative|cannot|memory"):
                RawBuffer.allocate(device, size)
        gc.collect()
