# SPDX-License-Identifier: Apache-2.0
"""Random sequences of buffer and transfer operations against a model of plain bytes.

The rules issue operations without waiting for them; each waits, by events, for the operations before it
that touch the same memory, as a correct program does. So results depend on the runtime keeping order,
places and lives, and on nothing else. Bytes are compared whenever a read ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from device_support import LIMIT, device_kinds, make_device
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gristmill.errors import ClosedError, InputError, TransferError
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.devices.base import MemorySpace
from gristmill.runtime.events import Event, all_of, ready
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import Uploader, UploadOptions

SIZES = st.integers(0, 200)
PLACES = st.integers(-2, 210)
DATA = st.binary(max_size=40)
UPLOADS = st.sampled_from(
    [
        UploadOptions(chunk_bytes=16, staging_bytes=48),
        UploadOptions(chunk_bytes=64, staging_bytes=64, staged=True),
        UploadOptions(chunk_bytes=7, staging_bytes=100, verify=True),
    ]
)


@dataclass(eq=False)
class Memory:
    """The model of one allocation: its bytes, and the last operation that touched it."""

    data: bytearray
    last: Event = field(default_factory=ready)


@dataclass(eq=False)
class View:
    """A buffer and its place in the model."""

    buffer: RawBuffer
    memory: Memory
    start: int
    size: int
    readonly: bool = False

    def legal(self, offset, nbytes):
        return offset >= 0 and nbytes >= 0 and offset + nbytes <= self.size

    def bytes(self, offset, nbytes):
        place = self.start + offset
        return bytes(self.memory.data[place : place + nbytes])

    def store(self, offset, data):
        place = self.start + offset
        self.memory.data[place : place + len(data)] = data


class Machine(RuleBasedStateMachine):
    """The rules; ``kind`` is set by subclasses."""

    kind = "host"
    views = Bundle("views")
    managers = Bundle("managers")

    def __init__(self):
        super().__init__()
        self.device = make_device(self.kind)
        self.stream = self.device.create_stream(chain_errors=False)
        self.reads = []
        self.open = []
        self.live_managers = []

    # Buffers

    def add(self, view):
        self.open.append(view)
        return view

    @rule(target=views, size=SIZES, pinned=st.booleans())
    def allocate(self, size, pinned):
        space = MemorySpace.PINNED if pinned else MemorySpace.DEVICE
        buffer = RawBuffer.allocate(self.device, size, space)
        memory = Memory(bytearray(size))
        memory.last = buffer.copy_from_host(bytes(size))  # defined contents, as in the model
        return self.add(View(buffer, memory, 0, size))

    @rule(target=views, data=DATA, block=st.booleans())
    def import_copy(self, data, block):
        buffer = RawBuffer.from_host(self.device, data, block=block)
        return self.add(View(buffer, Memory(bytearray(data)), 0, len(data)))

    @rule(target=views, data=st.binary(min_size=1, max_size=40), writable=st.booleans())
    def import_alias(self, data, writable):
        array = np.frombuffer(bytearray(data), np.uint8).copy()
        array.setflags(write=writable)
        buffer = RawBuffer.from_host(self.device, array, alias=Alias.WRITABLE)
        return self.add(View(buffer, Memory(bytearray(data)), 0, len(data), readonly=not writable))

    @rule(target=views, view=views, offset=PLACES, nbytes=PLACES)
    def slice(self, view, offset, nbytes):
        if view.buffer.closed or not view.legal(offset, nbytes):
            with pytest.raises((InputError, ClosedError)):
                view.buffer.slice(offset, nbytes)
            return multiple()
        buffer = view.buffer.slice(offset, nbytes)
        return self.add(View(buffer, view.memory, view.start + offset, nbytes, view.readonly))

    @rule(target=views, view=views)
    def readonly_view(self, view):
        if view.buffer.closed:
            return multiple()
        return self.add(
            View(view.buffer.readonly_view(), view.memory, view.start, view.size, readonly=True)
        )

    @rule(view=views)
    def close(self, view):
        view.buffer.close()

    # Copies

    def options(self, on_stream, *memories):
        return {
            "waits": [memory.last for memory in memories],
            "stream": self.stream if on_stream else None,
        }

    @rule(view=views, offset=PLACES, data=DATA, on_stream=st.booleans())
    def copy_from_host(self, view, offset, data, on_stream):
        options = self.options(on_stream, view.memory)
        if view.buffer.closed or view.readonly or not view.legal(offset, len(data)):
            with pytest.raises((InputError, ClosedError)):
                view.buffer.copy_from_host(data, offset, **options)
            return
        view.memory.last = view.buffer.copy_from_host(data, offset, **options)
        view.store(offset, data)

    @rule(view=views, offset=PLACES, nbytes=PLACES, on_stream=st.booleans())
    def copy_to_host(self, view, offset, nbytes, on_stream):
        options = self.options(on_stream, view.memory)
        out = np.full(max(nbytes, 0) + 2, 0xEE, np.uint8)
        if view.buffer.closed or not view.legal(offset, nbytes):
            with pytest.raises((InputError, ClosedError)):
                view.buffer.copy_to_host(out, offset, nbytes, **options)
            assert (out == 0xEE).all()
            return
        event = view.buffer.copy_to_host(out, offset, nbytes, destination_offset=1, **options)
        view.memory.last = all_of([view.memory.last, event])
        self.reads.append((event, out, b"\xee" + view.bytes(offset, nbytes) + b"\xee"))

    @rule(one=views, two=views, at=PLACES, to=PLACES, nbytes=PLACES, on_stream=st.booleans())
    def copy_to(self, one, two, at, to, nbytes, on_stream):
        options = self.options(on_stream, one.memory, two.memory)
        source, target = range(one.start + at, one.start + at + nbytes), two.start + to
        overlaps = (
            one.memory is two.memory
            and target < source.stop
            and source.start < target + nbytes
            and nbytes > 0
        )
        closed = one.buffer.closed or two.buffer.closed
        legal = one.legal(at, nbytes) and two.legal(to, nbytes)
        if closed or two.readonly or not legal or overlaps:
            with pytest.raises((InputError, ClosedError)):
                one.buffer.copy_to(two.buffer, at, nbytes, destination_offset=to, **options)
            return
        event = one.buffer.copy_to(two.buffer, at, nbytes, destination_offset=to, **options)
        one.memory.last = two.memory.last = event
        two.store(to, one.bytes(at, nbytes))

    # Transfers

    @rule(target=managers, sizes=st.lists(SIZES, max_size=3), upload=UPLOADS)
    def make_manager(self, sizes, upload):
        shapes = [Shape.parse(f"u8[{size}]") for size in sizes]
        uploader = Uploader(self.device, upload)
        manager = create_transfer_manager(self.device, shapes, uploader=uploader)
        self.live_managers.append((manager, uploader))
        buffers = [manager.retrieve_buffer(index) for index in range(len(shapes))]
        memories = [
            Memory(bytearray(size), buffer.definition)
            for size, buffer in zip(sizes, buffers, strict=True)
        ]
        views = [
            self.add(View(buffer, memory, 0, buffer.nbytes))
            for buffer, memory in zip(buffers, memories, strict=True)
        ]
        return (manager, views, [set() for _ in sizes])

    @rule(manager=managers, index=st.integers(0, 2), offset=PLACES, data=DATA, priority=SIZES)
    def transfer_chunk(self, manager, index, offset, data, priority):
        made, views, given = manager
        place = set(range(offset, offset + len(data)))
        if index < len(views) and views[index].legal(offset, len(data)):
            taken = place & given[index]
            full = given[index] == set(range(views[index].size)) and views[index].size > 0
            if not taken and not full:
                made.transfer_chunk(index, data, offset, priority=priority)
                given[index] |= place
                views[index].store(offset, data)
                return
        with pytest.raises((InputError, TransferError)):
            made.transfer_chunk(index, data, offset, priority=priority)

    @rule(manager=managers, index=st.integers(0, 2), byte=st.integers(0, 255))
    def transfer_the_rest(self, manager, index, byte):
        made, views, given = manager
        if index >= len(views):
            return
        for low, high in made.missing(index):
            data = bytes([byte]) * (high - low)
            made.transfer_chunk(index, data, low)
            given[index] |= set(range(low, high))
            views[index].store(low, data)

    @rule(target=views, manager=consumes(managers))
    def finish_manager(self, manager):
        """Complete and close it; its buffers stay. Returns one more view of each."""
        made, views, _ = manager
        for index in range(len(views)):
            self.transfer_the_rest(manager, index, 0)
        new = [made.retrieve_buffer(index) for index in range(len(views))]
        made.close(LIMIT)
        return multiple(
            *(
                self.add(View(buffer, view.memory, 0, buffer.nbytes))
                for buffer, view in zip(new, views, strict=True)
            )
        )

    # Comparing

    @rule()
    def compare_reads(self):
        for event, out, expected in self.reads:
            if self.fills_pending(event):
                continue
            event.wait(LIMIT)
            assert out.tobytes() == expected
        self.reads = [read for read in self.reads if not read[0].done]

    def fills_pending(self, event):
        """Whether it may wait for a manager that nothing has completed yet."""
        return not event.done and any(not manager.closed for manager, _ in self.live_managers)

    def teardown(self):
        for manager, uploader in self.live_managers:
            if not manager.closed:
                for index in range(manager.buffer_count):
                    for low, high in manager.missing(index):
                        manager.transfer_chunk(index, bytes(high - low), low)
                manager.close(LIMIT)
            uploader.close()
        for event, out, expected in self.reads:
            event.wait(LIMIT)
            if not event.error:
                assert out.tobytes() == expected
        for view in self.open:
            view.buffer.close()
        self.stream.close(LIMIT)
        self.device.synchronize(LIMIT)
        # What a copy held is given back just after its event is done, by the thread that completes it.
        deadline = time.monotonic() + LIMIT
        while self.device.statistics().live_bytes and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.device.statistics().live_bytes == 0
        self.device.close()


#: 200 sequences by default; 10,000 with the marker ``slow``.
COUNTS = [200, pytest.param(10_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", device_kinds())
def test_random_operations(kind, count):
    machine = type(f"{kind.title()}Machine", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
