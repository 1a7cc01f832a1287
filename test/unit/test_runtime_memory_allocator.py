# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_support import device_kinds, make_device

from gristmill.errors import ClosedError, DeviceError, InputError, ResourceExhaustedError
from gristmill.runtime import knobs
from gristmill.runtime.memory import allocator as module
from gristmill.runtime.memory import numa
from gristmill.runtime.memory.allocator import (
    BasicHostMemoryAllocator,
    HostAllocation,
    HostAllocatorBase,
    HostMemoryAllocator,
)
from gristmill.runtime.memory.registration import RegisteredRanges

PAGE = mmap.PAGESIZE


class Driver:
    """A device that keeps a strict book of registered ranges."""

    def __init__(self) -> None:
        self.mapped: dict[tuple[int | None, int], int] = {}
        self.log: list[str] = []
        self.refuse_map: Exception | None = None
        self.refuse_unmap: Exception | None = None

    def map(self, device: int | None, address: int, nbytes: int) -> None:
        if self.refuse_map:
            raise self.refuse_map
        for (other, start), size in self.mapped.items():
            apart = start + size <= address or address + nbytes <= start
            assert other != device or apart, "registered twice"
        self.mapped[device, address] = nbytes
        self.log.append("map")

    def unmap(self, device: int | None, address: int) -> None:
        if self.refuse_unmap:
            # A new one each time, as the traceback keeps what was in use when it was raised.
            raise type(self.refuse_unmap)(*self.refuse_unmap.args)
        del self.mapped[device, address]
        self.log.append("unmap")


@pytest.fixture
def driver() -> Driver:
    return Driver()


def mapped_allocator(driver: Driver, **options: Any) -> HostMemoryAllocator:
    return HostMemoryAllocator("staging", map_range=driver.map, unmap_range=driver.unmap, **options)


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return True
    return False


ALLOCATORS = [HostMemoryAllocator, BasicHostMemoryAllocator]
Make = Callable[..., HostAllocatorBase]


@pytest.fixture(params=[*ALLOCATORS, *device_kinds()], ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes allocators of a class, or of memory registered with a device."""
    if not isinstance(request.param, str):
        yield request.param
        return
    with make_device(request.param) as device:
        yield partial(HostMemoryAllocator.for_device, device)


class TestEveryAllocator:
    @pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16])
    def test_alignment(self, kind: Make, alignment: int) -> None:
        allocator = kind(alignment=alignment)
        for nbytes in (1, 100, 5000, 70000):
            with allocator.allocate(nbytes) as memory:
                assert memory.address % alignment == 0
                memory.view()[...] = 255
                assert memory.view().nbytes == memory.nbytes == nbytes

    @pytest.mark.parametrize("alignment", [0, 3, -64, 96, 1 << 31])
    def test_wrong_alignment(self, kind: Make, alignment: int) -> None:
        with pytest.raises(InputError, match=f"alignment {alignment} is not a power of two"):
            kind(alignment=alignment)

    def test_wrong_limit(self, kind: Make) -> None:
        with pytest.raises(InputError, match="a limit of 0 bytes allows nothing"):
            kind(limit=0)

    def test_zero_size(self, kind: Make) -> None:
        allocator = kind()
        with allocator.allocate(0) as memory:
            assert (memory.address, memory.nbytes, memory.view().size) == (0, 0, 0)
        assert allocator.statistics().allocations == 0
        with pytest.raises(InputError, match="allocations of 0 bytes are refused"):
            kind(zero_size="error").allocate(0)

    @pytest.mark.parametrize("nbytes", [-1, 1 << 63, True, 1.0, np.int64(4)])
    def test_wrong_sizes(self, kind: Make, nbytes: Any) -> None:
        with pytest.raises(InputError, match=r"out of range|must be an int"):
            kind().allocate(nbytes)

    def test_wrong_node(self, kind: Make) -> None:
        with pytest.raises(InputError, match="no NUMA node -1; None means any"):
            kind().allocate(8, numa_node=-1)

    def test_limit(self, kind: Make) -> None:
        allocator = kind(name="mine", limit=40000)
        first = allocator.allocate(30000)
        with pytest.raises(
            ResourceExhaustedError,
            match=r"host memory allocator 'mine' cannot allocate 20000 bytes of host memory: .*"
            r"over the limit; \d+ of at most 40000 bytes are in use; .*GRISTMILL_HOST_MEMORY_LIMIT",
        ):
            allocator.allocate(20000)
        assert allocator.statistics().failures == 1
        first.close()
        allocator.allocate(20000).close()
        assert allocator.statistics().live_bytes == 0

    def test_the_limit_is_a_setting(self, kind: Make) -> None:
        with knobs.HOST_MEMORY_LIMIT.scope("64K"):
            assert kind().limit == 65536
            with pytest.raises(ResourceExhaustedError, match="at most 65536 bytes"):
                kind().allocate(70000)
            assert kind(limit=7).limit == 7
        assert kind().limit > 1 << 28
        for text in ("x", "0", "-1G", "K"):
            with knobs.HOST_MEMORY_LIMIT.scope(text), pytest.raises(InputError, match="_LIMIT="):
                _ = kind().limit

    def test_the_system_refuses(self, kind: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise MemoryError("Cannot allocate memory")

        monkeypatch.setattr(module, "_map_pages", fail)
        monkeypatch.setattr(module.np, "empty", fail)
        allocator = kind(name="mine")
        with pytest.raises(
            ResourceExhaustedError,
            match=r"'mine' cannot allocate 100 bytes of host memory: the system refused: Cannot",
        ):
            allocator.allocate(100)
        found = allocator.statistics()
        assert (found.live_bytes, found.live_allocations, found.failures) == (0, 0, 1)

    def test_memory_outlives_allocation_and_allocator(self, kind: Make) -> None:
        allocator = kind()
        memory = allocator.allocate(1 << 16)
        view = memory.view(np.int32)
        view[...] = np.arange(1 << 14)
        part = view[100:200]
        allocator.close()
        memory.close()
        gone = weakref.ref(allocator)
        del view, memory, allocator
        gc.collect()
        np.testing.assert_array_equal(part, np.arange(100, 200))
        assert gone() is not None, "kept for its books"
        del part
        gc.collect()
        assert gone() is None

    def test_live_memory_is_not_handed_out_again(self, kind: Make) -> None:
        allocator = kind()
        memories = [allocator.allocate(3000) for _ in range(20)]
        for number, memory in enumerate(memories):
            memory.view()[...] = number
        views = [memory.view() for memory in memories]
        for memory in memories[::2]:
            memory.close()
        others = [allocator.allocate(3000) for _ in range(20)]
        for memory in others:
            memory.view()[...] = 255
        for number, view in enumerate(views):
            assert (view == number).all()

    def test_statistics(self, kind: Make) -> None:
        allocator = kind()
        one, two = allocator.allocate(PAGE, device=0), allocator.allocate(PAGE, device=1)
        found = allocator.statistics()
        assert found.live_allocations == found.allocations == 2
        assert found.device_bytes.keys() == {0, 1}
        assert sum(found.device_bytes.values()) == found.live_bytes >= 2 * PAGE
        one.close()
        two.close()
        found = allocator.statistics()
        assert (found.live_bytes, found.live_allocations, found.device_bytes) == (0, 0, {})
        assert found.peak_bytes >= 2 * PAGE

    def test_views(self, kind: Make) -> None:
        with kind().allocate(100) as memory:
            assert memory.view(np.float32).shape == (25,)
            assert memory.view(np.int16, (2, 5)).shape == (2, 5)
            assert memory.view().ctypes.data == memory.address
            for shape in ((26,), (-1,), (2**40, 2**40)):
                with pytest.raises(InputError, match="of an allocation of 100"):
                    memory.view(np.float32, shape)

    def test_closed(self, kind: Make) -> None:
        allocator = kind(name="mine")
        memory = allocator.allocate(100)
        memory.close()
        memory.close()
        assert memory.closed
        assert "closed" in repr(memory)
        with pytest.raises(ClosedError, match="an allocation of 100 bytes of mine was closed"):
            _ = memory.address
        with pytest.raises(ClosedError, match="was closed"):
            memory.view()
        with allocator:
            pass
        with pytest.raises(ClosedError, match="mine was closed"):
            allocator.allocate(1)

    def test_threads(self, kind: Make) -> None:
        allocator = kind()
        wrong: list[int] = []

        def work(number: int) -> None:
            for size in range(200):
                with allocator.allocate(1000 + 40 * size) as memory:
                    view = memory.view()
                    view[...] = number
                    if (view != number).any():
                        wrong.append(number)
                    del view

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert allocator.statistics().live_bytes == 0
        assert allocator.statistics().allocations == 1200


def test_basic_allocator_says_what_it_does_not_do() -> None:
    memory = BasicHostMemoryAllocator().allocate(8, device=2, numa_node=0)
    assert memory.notes == (
        "NUMA node 0: this allocator does not place memory",
        "device 2: this allocator does not register memory",
    )
    assert memory.numa_node is None
    assert not memory.registered


SCRIPT = """
import resource
from gristmill.errors import ResourceExhaustedError
from gristmill.runtime.memory.allocator import BasicHostMemoryAllocator, HostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool

allocators = [HostMemoryAllocator("pages"), BasicHostMemoryAllocator("basic")]
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for allocator in allocators:
    try:
        allocator.allocate(1 << 30)
    except ResourceExhaustedError as error:
        print(error)
    with allocator.allocate(1 << 20) as memory:
        memory.view()[...] = 1
"""


def test_the_system_really_has_no_more() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    pages, basic = result.stdout.splitlines()
    assert "'pages' cannot allocate 1073741824 bytes of host memory: the system refused" in pages
    assert "'basic' cannot allocate 1073741824 bytes of host memory: the system refused" in basic


# NUMA and huge pages.


def test_memory_is_bound_to_its_node() -> None:
    for node in numa.online_nodes():
        with HostMemoryAllocator().allocate(1 << 16, numa_node=node) as memory:
            memory.view()[...] = 1
            if memory.notes:  # a container that forbids the system call
                assert memory.notes[0].endswith(("not permitted", "not implemented"))
                assert memory.numa_node is None
            else:
                assert memory.numa_node == node
                assert numa.node_of(memory.address) in (node, None)


def test_a_node_that_is_not_there_is_reported() -> None:
    allocator = HostMemoryAllocator()
    memory = allocator.allocate(100, numa_node=999)
    assert memory.numa_node is None
    assert memory.notes[0].startswith("NUMA node 999: this machine's nodes are")
    address = memory.address
    memory.close()
    assert allocator.allocate(100, numa_node=0).address != address
    again = allocator.allocate(100, numa_node=999)
    assert (again.address, len(again.notes)) == (address, 1)


def test_the_system_call_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemoryAllocator().allocate(PAGE)
    assert "mbind" in numa.bind(memory.address + 1, PAGE, 0)  # not a page
    assert "end at 1023" in numa.bind(memory.address, PAGE, 5000)
    monkeypatch.setattr(numa.platform, "machine", lambda: "m68k")
    assert "m68k" in numa.bind(memory.address, PAGE, 0)
    assert numa.node_of(memory.address) is None


@pytest.mark.parametrize(
    ("text", "nodes"), [("0\n", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2-3,8", (0, 2, 3, 8))]
)
def test_node_lists(text: str, nodes: tuple[int, ...]) -> None:
    assert numa.parse_nodes(text) == nodes


def test_huge_pages() -> None:
    assert HostMemoryAllocator().allocate(8 << 20).huge_pages
    assert not HostMemoryAllocator().allocate(8 << 10).huge_pages
    assert not HostMemoryAllocator(huge_pages=False).allocate(8 << 20).huge_pages


# Registration.


def test_memory_is_registered_for_its_device(driver: Driver) -> None:
    allocator = mapped_allocator(driver)
    memory = allocator.allocate(5000, device=3)
    assert memory.registered
    ((device, address), nbytes) = next(iter(driver.mapped.items()))
    assert device == 3
    assert address <= memory.address
    assert memory.address + 5000 <= address + nbytes
    assert allocator.ranges is not None
    assert allocator.ranges.is_registered(3, memory.address, 5000)
    assert not allocator.ranges.is_registered(None, memory.address, 5000)


def test_returned_memory_stays_registered_for_reuse(driver: Driver) -> None:
    allocator = mapped_allocator(driver)
    allocator.allocate(5000, device=0).close()
    allocator.allocate(8192, device=0).close()  # more of the same pages
    assert driver.log == ["map"]
    assert allocator.statistics().cache_hits == 1
    allocator.allocate(5000, device=1).close()  # another device's is not taken
    assert driver.log == ["map", "map"]
    assert allocator.statistics().cached_bytes > 0
    assert allocator.trim() == 16384
    assert driver.mapped == {}
    assert allocator.statistics().cached_bytes == 0


def test_the_cache_is_bounded(driver: Driver) -> None:
    allocator = mapped_allocator(driver, cache_bytes=10000)
    memories = [allocator.allocate(PAGE) for _ in range(4)]
    for memory in memories:
        memory.close()
    assert allocator.statistics().cached_bytes == 2 * PAGE
    assert len(driver.mapped) == 2


def test_the_cache_gives_way_to_the_limit(driver: Driver) -> None:
    allocator = mapped_allocator(driver, limit=10 * PAGE)
    allocator.allocate(8 * PAGE).close()
    with allocator.allocate(4 * PAGE):
        assert allocator.statistics().cached_bytes == 0


def test_an_allocation_may_end_in_a_thread_that_is_in_the_device() -> None:
    """As the garbage collector does it; another thread gives way to the limit at that moment."""
    in_device, over = threading.Event(), threading.Event()
    held: list[HostAllocation] = []

    def map_range(device: int | None, address: int, nbytes: int) -> None:
        if threading.current_thread() is registering:
            in_device.set()
            time.sleep(0.1)  # the other thread wants the device now
            held.pop().close()
            over.set()

    allocator = HostMemoryAllocator(
        limit=20 * PAGE, map_range=map_range, unmap_range=lambda device, address: None
    )
    registering = threading.Thread(target=lambda: allocator.allocate(PAGE).close(), daemon=True)
    held.append(allocator.allocate(2 * PAGE))
    allocator.allocate(12 * PAGE).close()
    registering.start()
    assert in_device.wait(5)
    trimming = threading.Thread(target=lambda: allocator.allocate(10 * PAGE), daemon=True)
    trimming.start()
    assert over.wait(5), "both threads wait for each other"
    trimming.join(5)


def test_closing_with_live_memory_unregisters_it_in_the_end(driver: Driver) -> None:
    allocator = mapped_allocator(driver)
    memory = allocator.allocate(100)
    allocator.close()
    assert len(driver.mapped) == 1
    memory.close()
    assert driver.mapped == {}


@pytest.mark.parametrize("error", [RuntimeError("code 2"), DeviceError("code 2")])
def test_a_device_that_refuses_to_map(driver: Driver, error: Exception) -> None:
    allocator = mapped_allocator(driver)
    driver.refuse_map = error
    with pytest.raises(DeviceError, match="code 2"):
        allocator.allocate(100)
    assert allocator.statistics().live_bytes == 0
    driver.refuse_map = None
    allocator.allocate(100).close()


def test_a_device_that_refuses_to_unmap(driver: Driver) -> None:
    allocator = mapped_allocator(driver, cache_bytes=0)
    memory = allocator.allocate(100)
    address = memory.address
    assert is_mapped(address)
    driver.refuse_unmap = RuntimeError("code 2")
    with pytest.warns(ResourceWarning, match="4096 bytes are leaked, .* code 2"):
        memory.close()
    found = allocator.statistics()
    assert (found.release_failures, found.live_bytes) == (1, 0)
    assert is_mapped(address), "the device may still write to it"


def test_memory_is_unmapped_in_the_end() -> None:
    allocator = HostMemoryAllocator(cache_bytes=0)
    memory = allocator.allocate(64 << 20)
    address = memory.address
    assert is_mapped(address)
    memory.close()
    assert not is_mapped(address)


def test_callbacks_come_in_pairs(driver: Driver) -> None:
    with pytest.raises(InputError, match="come together"):
        HostMemoryAllocator(map_range=driver.map)
    with pytest.raises(InputError, match="cache_bytes must not"):
        HostMemoryAllocator(cache_bytes=-1)


def test_ranges_are_registered_once(driver: Driver) -> None:
    ranges = RegisteredRanges(driver.map, driver.unmap)
    whole = ranges.register(0, 1000, 100)
    same, inside = ranges.register(0, 1000, 100), ranges.register(0, 1050, 50)
    elsewhere = ranges.register(1, 1000, 100)
    assert driver.log == ["map", "map"]
    assert (ranges.statistics().ranges, ranges.statistics().nbytes) == (2, 200)
    assert (ranges.statistics().maps, ranges.statistics().hits) == (2, 2)
    whole.close()
    whole.close()
    same.close()
    assert len(driver.mapped) == 2
    with inside:
        assert not inside.closed
    assert list(driver.mapped) == [(1, 1000)]
    elsewhere.close()
    assert driver.mapped == {}


@pytest.mark.parametrize("span", [(950, 100), (1050, 100), (900, 1000), (1099, 2)])
def test_ranges_must_not_overlap_in_part(driver: Driver, span: tuple[int, int]) -> None:
    ranges = RegisteredRanges(driver.map, driver.unmap)
    with ranges.register(0, 1000, 100):
        with pytest.raises(InputError, match=r"for device 0: they overlap 100 registered ones"):
            ranges.register(0, *span)
        with ranges.register(0, 900, 100), ranges.register(0, 1100, 100):
            assert not ranges.is_registered(0, 1050, 100)


def test_wrong_ranges(driver: Driver) -> None:
    ranges = RegisteredRanges(driver.map, driver.unmap)
    for address, nbytes in ((0, 100), (1000, 0), (1000, -5)):
        with pytest.raises(InputError, match="cannot register"):
            ranges.register(None, address, nbytes)
    driver.refuse_map = DeviceError("no")
    with pytest.raises(DeviceError):
        ranges.register(None, 1000, 100)
    assert ranges.statistics().ranges == 0


def test_a_dropped_registration_is_ended_and_reported(driver: Driver) -> None:
    ranges = RegisteredRanges(driver.map, driver.unmap)
    registration = ranges.register(0, 1000, 100)
    with pytest.warns(ResourceWarning, match="without close"):
        del registration
    assert driver.mapped == {}
