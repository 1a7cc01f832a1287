# SPDX-License-Identifier: Apache-2.0
"""Transfer managers: coverage, order, layouts, callbacks, definitions. The same on every device."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import sys
import threading
import zlib

import ml_dtypes
import numpy as np
import pytest
from device_support import LIMIT, SinkDevice, bytes_shape, contents, random_bytes

from gristmill.errors import ClosedError, InputError, TransferError, UnsupportedError
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.layout import Layout, Shape
from gristmill.runtime.progress import Progress, ProgressBar
from gristmill.runtime.storage import decode
from gristmill.runtime.transfers import TransferOptions, create_transfer_manager
from gristmill.runtime.types import ArrayType
from gristmill.runtime.uploads import Uploader, UploadOptions

SMALL = UploadOptions(chunk_bytes=64, staging_bytes=256)
STAGED = UploadOptions(chunk_bytes=64, staging_bytes=256, staged=True)
VERIFIED = UploadOptions(chunk_bytes=64, staging_bytes=256, verify=True)


@pytest.fixture(params=[SMALL, STAGED, VERIFIED], ids=["small", "staged", "verified"])
def upload(request):
    return request.param


# What it makes


def test_buffers_of_shapes(device):
    shapes = [Shape.parse("f32[4,2]"), ArrayType.parse("3xbf16"), Shape.parse("s4[5]").packed()]
    shapes += [Shape.parse("token[]"), Shape.parse("f32[<=3]")]
    with create_transfer_manager(device, shapes) as manager:
        assert manager.buffer_count == 5
        assert [manager.buffer_size(i) for i in range(5)] == [32, 6, 3, 0, 16]
        assert manager.device is device
        assert manager.shape(1) == Shape.parse("bf16[3]")
        for index in (-1, 5, True, "0"):
            with pytest.raises(InputError, match="there is no buffer"):
                manager.retrieve_buffer(index)
        for index in range(5):
            with manager.retrieve_buffer(index) as one, manager.retrieve_buffer(index) as two:
                assert one.nbytes == manager.buffer_size(index)
                assert one.address == two.address, "retrieving twice is no error"
                assert one.definition.done == (index == 3)
    assert device.statistics().live_allocations == 0


def test_layouts_replace_those_of_the_shapes(device):
    shapes = [Shape.parse("f32[4,2]")] * 2
    layouts = [Layout.parse("{0,1}"), None]
    with create_transfer_manager(device, shapes, layouts=layouts) as manager:
        assert str(manager.shape(0).layout) != str(manager.shape(1).layout)
    with pytest.raises(InputError, match="1 layouts were given for 2 shapes"):
        create_transfer_manager(device, shapes, layouts=[None])


def test_tuples_have_no_buffer():
    with pytest.raises(UnsupportedError):
        Shape.parse("tuple[]")


def test_the_memory_space_is_chosen(device):
    manager = create_transfer_manager(device, [bytes_shape(100)], space=MemorySpace.PINNED)
    with manager, manager.retrieve_buffer(0) as buffer:
        assert buffer.space is MemorySpace.PINNED
        manager.transfer_raw(0, random_bytes(100)).wait(LIMIT)
        assert contents(manager) == random_bytes(100).tobytes()


def test_given_buffers_are_filled(device):
    shape = bytes_shape(10)
    with RawBuffer.allocate(device, 10) as mine, RawBuffer.allocate(device, 9) as short:
        with create_transfer_manager(device, [shape], buffers=[mine]) as manager:
            manager.transfer_raw(0, b"0123456789").wait(LIMIT)
            assert contents(manager) == b"0123456789"
        out = bytearray(10)
        mine.copy_to_host(out).wait(LIMIT)
        assert out == b"0123456789"
        with pytest.raises(InputError, match="2 buffers were given for 1 shapes"):
            create_transfer_manager(device, [shape], buffers=[mine, short])
        with pytest.raises(InputError, match="buffer 0 has 9 bytes"):
            create_transfer_manager(device, [shape], buffers=[short])
        with mine.readonly_view() as view, pytest.raises(InputError, match="read-only"):
            create_transfer_manager(device, [shape], buffers=[view])
        with HostDevice(9) as other, pytest.raises(InputError, match="not on host:9"):
            create_transfer_manager(other, [shape], buffers=[mine])


def test_a_failed_factory_leaves_nothing(device):
    with pytest.raises(Exception, match=r"cannot|memory"):
        create_transfer_manager(device, [bytes_shape(10), bytes_shape(1 << 55)])
    assert device.statistics().live_allocations == 0


def test_bad_options():
    for options in ({"chunk_bytes": 0}, {"staging_bytes": 1}, {"retries": -1}, {"threads": 0}):
        with pytest.raises(InputError):
            UploadOptions(**options)


# Chunks


def test_raw_data(device, upload):
    data = random_bytes(1000)
    with create_transfer_manager(device, [bytes_shape(1000)], upload=upload) as manager:
        event = manager.transfer_raw(0, data)
        assert contents(manager) == data.tobytes()
        event.wait(LIMIT)
        for size in (999, 1001):
            with pytest.raises(InputError, match=f"has 1000 bytes, but {size} were given"):
                manager.transfer_raw(0, bytes(size))


def test_two_parts_at_an_odd_offset(device, upload):
    with create_transfer_manager(device, [bytes_shape(5)], upload=upload) as manager:
        manager.transfer_chunk(0, b"abcd").wait(LIMIT)
        with manager.retrieve_buffer(0) as buffer:
            assert not buffer.definition.done, "a part is missing"
            assert manager.missing(0) == [(4, 5)]
            manager.transfer_chunk(0, b"e", 4, last=True)
            buffer.definition.wait(LIMIT)
        assert contents(manager) == b"abcde"


def test_chunks_in_any_order_and_size_from_any_thread(device, upload):
    size = 5000
    data = random_bytes(size)
    generator = random.Random(1)
    cuts = sorted({0, size, *(generator.randrange(size) for _ in range(30))})
    parts = list(itertools.pairwise(cuts))
    generator.shuffle(parts)
    done = []
    with create_transfer_manager(device, [bytes_shape(size)], upload=upload) as manager:

        def send(mine):
            for low, high in mine:
                manager.transfer_chunk(0, data[low:high], low, on_done=done.append)

        threads = [threading.Thread(target=send, args=(parts[k::4],)) for k in range(4)]
        for thread in threads:
            thread.start()
        assert contents(manager) == data.tobytes()
        for thread in threads:
            thread.join(LIMIT)
        manager.wait(LIMIT)
        assert manager.missing(0) == []
    assert done == [None] * len(parts)


def test_overlaps_are_rejected(device):
    with create_transfer_manager(device, [bytes_shape(10)]) as manager:
        manager.transfer_chunk(0, b"cdef", 2)
        for offset, data in [(0, b"abc"), (2, b"cdef"), (5, b"f"), (3, b"x"), (0, b"0123456789")]:
            with pytest.raises(TransferError, match=r"bytes \d\.\.\d were given already"):
                manager.transfer_chunk(0, data, offset)
        manager.transfer_chunk(0, b"ab", 0)
        manager.transfer_chunk(0, b"ghij", 6)
        for data, offset in [(b"x", 0), (b"", 10)]:  # whether or not all has arrived
            with pytest.raises(TransferError, match="given completely already"):
                manager.transfer_chunk(0, data, offset)
        assert contents(manager) == b"abcdefghij"
        with pytest.raises(TransferError, match="given completely already"):
            manager.transfer_chunk(0, b"x", 0)


def test_gaps_are_rejected(device):
    with create_transfer_manager(device, [bytes_shape(10)]) as manager:
        manager.transfer_chunk(0, b"b", 1)
        with pytest.raises(TransferError, match=r"leaves bytes 0\.\.1, 2\.\.5, 6\.\.10 unwritten"):
            manager.transfer_chunk(0, b"f", 5, last=True)
        with manager.retrieve_buffer(0) as buffer:
            assert not buffer.definition.done
        manager.transfer_chunk(0, b"a")
        manager.transfer_chunk(0, b"cdefghij", 2, last=True)
        assert contents(manager) == b"abcdefghij"


def test_gaps_and_overlaps_may_be_allowed(device):
    allow = TransferOptions(gaps="allow", overlaps="allow")
    with create_transfer_manager(device, [bytes_shape(4)], options=allow) as manager:
        manager.transfer_chunk(0, b"xx", 1).wait(LIMIT)
        manager.transfer_chunk(0, b"abcd").wait(LIMIT)
        with manager.retrieve_buffer(0) as buffer:
            assert not buffer.definition.done, "only last=True ends it"
            manager.transfer_chunk(0, b"z", 3, last=True)
            assert contents(manager) == b"abcz"
        with pytest.raises(TransferError, match="given completely already"):
            manager.transfer_chunk(0, b"z")
    with create_transfer_manager(device, [bytes_shape(4)], options=allow) as manager:
        manager.transfer_chunk(0, b"bc", 1, last=True)
        assert contents(manager)[1:3] == b"bc"


def test_bad_chunks_leave_the_buffer_as_it_was(device, upload):
    """In XLA a bad offset loses the buffer, and a retry aborts the process."""
    done = []
    with create_transfer_manager(device, [bytes_shape(8)], upload=upload) as manager:
        for offset, data in [(-1, b"a"), (8, b"a"), (0, bytes(9)), (2**63, b"a"), (True, b"a")]:
            for last in (False, True):
                with pytest.raises(InputError):
                    manager.transfer_chunk(0, data, offset, last=last, on_done=done.append)
        with pytest.raises(InputError):
            manager.transfer_chunk(0, np.zeros((4, 4), np.uint8)[:, 0], 0)
        for short in (b"", bytes(7)):
            with pytest.raises(InputError, match=f"has 8 bytes, but {len(short)} were given"):
                manager.transfer_raw(0, short, on_done=done.append)
        assert done == [], "nothing was accepted"
        manager.transfer_chunk(0, b"abcdefgh", on_done=done.append)
        assert contents(manager) == b"abcdefgh"
        manager.wait(LIMIT)
    assert done == [None]


def test_empty_transfers(device):
    done = []
    with create_transfer_manager(device, [bytes_shape(4), Shape.parse("token[]")]) as manager:
        manager.transfer_chunk(0, b"", 4, on_done=done.append).wait(0)
        manager.transfer_raw(1, b"", on_done=done.append).wait(0)
        manager.transfer_raw(1, b"", on_done=done.append).wait(0)
        assert done == [None] * 3
        manager.transfer_chunk(0, b"abcd").wait(LIMIT)


def test_many_buffers(device):
    shapes = [bytes_shape(size) for size in (1, 200, 0, 3000)]
    with create_transfer_manager(device, shapes, upload=SMALL) as manager:
        for index in (3, 0, 2, 1):
            manager.transfer_raw(index, random_bytes(shapes[index].nbytes, index))
        for index in range(4):
            assert contents(manager, index) == random_bytes(shapes[index].nbytes, index).tobytes()
        assert manager.progress.fraction == 1


# Literals


LITERALS = [
    ("f32[3,5]", np.float32),
    ("f32[3,5]{0,1}", np.float32),
    ("bf16[20,30]{1,0:T(8,128)}", ml_dtypes.bfloat16),
    ("s4[7,3]{1,0:E(4)}", ml_dtypes.int4),
    ("c64[2,3,4]{0,2,1}", np.complex64),
    ("f32[]", np.float32),
    ("pred[0,3]", np.bool_),
]


@pytest.mark.parametrize(("text", "dtype"), LITERALS)
def test_literals_are_brought_to_the_layout(device, text, dtype):
    shape = Shape.parse(text)
    literal = np.random.default_rng(3).integers(-7, 7, shape.dims).astype(dtype)
    with create_transfer_manager(device, [shape], upload=SMALL) as manager:
        manager.transfer_literal(0, literal).wait(LIMIT)
        data = np.frombuffer(contents(manager), np.uint8)
        found = decode(data, shape)
    assert found.tobytes() == literal.tobytes()


def test_the_nibble_order_of_packed_literals(device):
    """The first element is in the high half of its byte; the last byte is padded with zeros."""
    literal = np.array([1, 2, 3]).astype(ml_dtypes.int4)
    with create_transfer_manager(device, [Shape.parse("s4[3]").packed()]) as manager:
        manager.transfer_literal(0, literal)
        assert contents(manager) == b"\x12\x30"


def test_literals_of_any_strides_and_byte_order(device):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for literal in (base.T, base.T[::-1], base.T.astype(">f4")):
        with create_transfer_manager(device, [Shape.parse("f32[6,4]")]) as manager:
            manager.transfer_literal(0, literal)
            assert contents(manager) == np.ascontiguousarray(literal, np.float32).tobytes()


def test_dynamic_literals_carry_their_sizes(device):
    shape = Shape.parse("f32[<=4,3]")
    with create_transfer_manager(device, [shape]) as manager:
        manager.transfer_literal(0, np.ones((2, 3), np.float32))
        with manager.retrieve_buffer(0) as buffer:
            assert buffer.read_dynamic_shape(shape, timeout=LIMIT) == (2, 3)
            with buffer.remove_dynamic_shape_metadata(shape) as payload:
                out = np.zeros((4, 3), np.float32)
                payload.copy_to_host(out).wait(LIMIT)
        assert out.tolist() == [[1] * 3] * 2 + [[0] * 3] * 2


def test_literals_that_do_not_fit(device):
    with create_transfer_manager(
        device, [Shape.parse("f32[4]"), Shape.parse("f32[<=4]")]
    ) as manager:
        for literal in (
            np.zeros(5, np.float32),
            np.zeros(4, np.int32),
            np.zeros((2, 2), np.float32),
        ):
            with pytest.raises(InputError):
                manager.transfer_literal(0, literal)
        for literal in (np.zeros(5, np.float32), np.zeros(4, np.int32)):
            with pytest.raises(InputError):
                manager.transfer_literal(1, literal)


# Callbacks and progress


def test_on_done_runs_before_those_who_wait(device, upload):
    order = []
    with (
        create_transfer_manager(device, [bytes_shape(1000)], upload=upload) as manager,
        manager.retrieve_buffer(0) as buffer,
    ):
        buffer.definition.add_callback(lambda event: order.append("defined"))
        half = manager.transfer_chunk(
            0, bytes(500), on_done=lambda error: order.append(("half", error))
        )
        half.wait(LIMIT)
        manager.transfer_chunk(
            0, bytes(500), 500, on_done=lambda error: order.append(("rest", error))
        )
        buffer.definition.wait(LIMIT)
        manager.wait(LIMIT)
    assert order == [("half", None), ("rest", None), "defined"]


def test_on_done_may_close_the_manager(device, upload):
    """The last transfer completes its buffer even then."""
    manager = create_transfer_manager(device, [bytes_shape(500), bytes_shape(8)], upload=upload)
    buffers = [manager.retrieve_buffer(index) for index in range(2)]
    manager.transfer_raw(0, bytes(500), on_done=lambda error: manager.close()).wait(LIMIT)
    buffers[0].definition.wait(LIMIT)
    with pytest.raises(TransferError, match="closed before the buffer was complete"):
        buffers[1].definition.wait(LIMIT)
    assert manager.closed
    for buffer in buffers:
        buffer.close()
    device.synchronize(LIMIT)


def test_a_failing_callback_harms_nobody(device, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(kind))

    def broken(_):
        raise KeyError("user code")

    options = TransferOptions(progress=broken)
    with create_transfer_manager(device, [bytes_shape(100)], options=options) as manager:
        manager.transfer_raw(0, bytes(100), on_done=broken).wait(LIMIT)
        assert contents(manager) == bytes(100)
    assert reported == [KeyError, KeyError]


def test_progress_rises_to_the_end(device, upload):
    seen = []
    options = TransferOptions(progress=seen.append)
    shapes = [bytes_shape(1000), bytes_shape(500)]
    with create_transfer_manager(device, shapes, options=options, upload=upload) as manager:
        for index, shape in enumerate(shapes):
            manager.transfer_raw(index, bytes(shape.nbytes))
        manager.wait(LIMIT)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total_bytes == 1500
    assert len(done) == 16 + 8  # pieces of 64 bytes
    assert seen[-1].fraction == 1


def test_the_bar():
    terminal = io.StringIO()
    bar = ProgressBar("weights", terminal)
    bar(Progress(0, 4_000_000, 0.0))
    bar(Progress(1_000_000, 4_000_000, 0.1))  # too soon to draw again
    bar(Progress(4_000_000, 4_000_000, 2.0))
    bar.close()
    first, last = terminal.getvalue().split("\r")[1:]
    assert first == f"weights [{'-' * 30}] 0/4 MB 0 MB/s"
    assert last == f"weights [{'#' * 30}] 4/4 MB 2 MB/s\n"


def test_the_bar_of_a_manager(device, capsys):
    options = TransferOptions(bar=True, label="weights")
    with create_transfer_manager(device, [bytes_shape(100)], options=options) as manager:
        manager.transfer_chunk(0, bytes(40)).wait(LIMIT)
        manager.cancel()
    text = capsys.readouterr().err
    assert text.startswith("\rweights [############---")
    assert text.endswith("\n"), "a bar that stops early ends its line"
    assert Progress(0, 0, 0.0).fraction == 1


def test_transfers_can_be_awaited(device):
    async def main():
        with (
            create_transfer_manager(device, [bytes_shape(1000)], upload=SMALL) as manager,
            manager.retrieve_buffer(0) as buffer,
        ):
            await manager.transfer_raw(0, bytes(1000))
            await buffer.definition

    asyncio.run(asyncio.wait_for(main(), LIMIT))


# Checksums and files


def test_checksums(device, upload):
    data = random_bytes(1000)
    for offset, good in [(0, True), (1, False)]:
        with create_transfer_manager(device, [bytes_shape(1000)], upload=upload) as manager:
            event = manager.transfer_raw(0, data, checksum=zlib.crc32(data) + offset)
            with manager.retrieve_buffer(0) as buffer:
                if good:
                    event.wait(LIMIT)
                    buffer.definition.wait(LIMIT)
                else:
                    for waiting in (event, buffer.definition):
                        with pytest.raises(TransferError, match="does not have the CRC-32"):
                            waiting.wait(LIMIT)


@pytest.mark.parametrize("as_descriptor", [False, True])
def test_files(device, upload, tmp_path, as_descriptor):
    data = random_bytes(1000)
    path = tmp_path / "tensors"
    path.write_bytes(data)
    with path.open("rb") as file:
        source = file.fileno() if as_descriptor else path
        with create_transfer_manager(device, [bytes_shape(700)], upload=upload) as manager:
            checksum = zlib.crc32(data[300:800])
            manager.transfer_file(0, source, file_offset=300, offset=200, checksum=checksum)
            manager.transfer_file(0, source, file_offset=800, nbytes=200)
            expected = data[800:].tobytes() + data[300:800].tobytes()
            assert contents(manager) == expected
            manager.wait(LIMIT)
        file.seek(0)
        assert file.read(1) == data[:1].tobytes(), "a borrowed descriptor stays open"


def test_bad_files(device, tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    with create_transfer_manager(device, [bytes_shape(8)]) as manager:
        with pytest.raises(InputError, match="cannot be read: No such file"):
            manager.transfer_file(0, tmp_path / "absent")
        with pytest.raises(InputError, match="outside the 3 bytes"):
            manager.transfer_file(0, path)
        with pytest.raises(InputError, match="negative"):
            manager.transfer_file(0, path, file_offset=-1, nbytes=1)
        with pytest.raises(InputError, match="outside the 8 bytes"):
            manager.transfer_file(0, path, nbytes=9)
        manager.transfer_file(0, path, nbytes=3)
        manager.transfer_chunk(0, b"defgh", 3)
        assert contents(manager) == b"abcdefgh"


def test_a_file_that_shrinks_is_an_error(device, upload, tmp_path):
    path = tmp_path / "shrinking"
    path.write_bytes(bytes(1000))
    with (
        create_transfer_manager(device, [bytes_shape(1000)], upload=upload) as manager,
        path.open("r+b") as file,
    ):
        uploader = manager.uploader
        with uploader._lock:
            uploader._slots, slots = [], uploader._slots  # nothing starts yet
        event = manager.transfer_file(0, file.fileno())
        file.truncate(500)
        with uploader._lock:
            uploader._slots = slots
        uploader._pump()
        with pytest.raises(TransferError, match=r"ends at byte \d+, before all was read"):
            event.wait(LIMIT)
        manager.wait(LIMIT)


def test_files_need_the_ring_where_the_host_does_not_see_the_device(tmp_path):
    path = tmp_path / "tensors"
    path.write_bytes(bytes(8))
    direct = UploadOptions(staged=False)
    with (
        SinkDevice() as device,
        create_transfer_manager(device, [bytes_shape(8)], upload=direct) as manager,
        pytest.raises(InputError, match="files need staged=True"),
    ):
        manager.transfer_file(0, path).wait(LIMIT)


# Sharing


def test_managers_share_an_uploader(device):
    with Uploader(device, SMALL) as uploader:
        for _ in range(2):
            with create_transfer_manager(device, [bytes_shape(300)], uploader=uploader) as manager:
                manager.transfer_raw(0, random_bytes(300))
                assert contents(manager) == random_bytes(300).tobytes()
        assert uploader.statistics().nbytes == 600
        with pytest.raises(InputError, match="shared uploader"):
            create_transfer_manager(device, [], uploader=uploader, upload=SMALL)
    manager = create_transfer_manager(device, [bytes_shape(4)], uploader=uploader)
    with pytest.raises(ClosedError, match=r"uploader .* was closed"):
        manager.transfer_raw(0, bytes(4)).wait(LIMIT)
    manager.close()
