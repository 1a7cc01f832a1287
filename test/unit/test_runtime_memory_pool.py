# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_support import device_kinds, make_device

from gristmill.errors import ClosedError, InputError, ResourceExhaustedError, UnsupportedError
from gristmill.runtime import knobs, observer
from gristmill.runtime.memory.allocator import BasicHostMemoryAllocator, HostMemoryAllocator
from gristmill.runtime.memory.pool import FIRST_CHUNK, HostMemoryPool, SlotHandle
from gristmill.runtime.types import PRIMITIVE_TYPES, primitive_type

PRED = primitive_type("pred")
LONG = 30.0  # no test waits this long


@pytest.fixture(params=["plain", *device_kinds()])
def pool(request: pytest.FixtureRequest) -> Iterator[HostMemoryPool]:
    """A pool of plain memory, and one of the memory registered with each kind of device."""
    if request.param == "plain":
        yield HostMemoryPool(BasicHostMemoryAllocator(), cap=8)
        return
    with make_device(request.param) as device:
        yield HostMemoryPool(device.host_allocator, cap=8)


def start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("name", [t.name for t in PRIMITIVE_TYPES.values() if t.is_array])
def test_every_type_has_slots(pool: HostMemoryPool, name: str) -> None:
    kind = primitive_type(name)
    with pool.acquire(name) as slot:
        assert slot.primitive is kind
        assert slot.array.dtype == kind.dtype
        assert slot.array.shape == ()
        assert slot.array.ctypes.data == slot.address
        assert slot.array.tobytes() == bytes(kind.nbytes)
        slot.value = 1
        assert slot.value == kind.dtype.type(1)
        assert type(slot.value) is kind.dtype.type


@pytest.mark.parametrize("name", ["token", "tuple", "opaque"])
def test_types_without_storage_have_none(pool: HostMemoryPool, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"a {name} has no storage"):
        pool.acquire(name)


def test_unknown_types(pool: HostMemoryPool) -> None:
    with pytest.raises(InputError, match="'bool' is not known"):
        pool.acquire("bool")


def test_slots_fill_a_cache_line_each() -> None:
    pool = HostMemoryPool(HostMemoryAllocator(), cap=200)
    handles = [pool.acquire(name) for name in ("pred", "s32") for _ in range(200)]
    lines = {handle.address // 64 for handle in handles}
    assert len(lines) == 400
    assert all(handle.address % 64 == 0 for handle in handles)
    assert pool.statistics().nbytes == 400 * 64


def test_the_hottest_slot_comes_next(pool: HostMemoryPool) -> None:
    first, second = pool.acquire(PRED), pool.acquire(PRED)
    address, other = first.address, second.address
    second.close()
    first.close()
    with pool.acquire(PRED) as third, pool.acquire(PRED) as fourth:
        assert (third.address, fourth.address) == (address, other)


def test_slots_are_cleared(pool: HostMemoryPool) -> None:
    with pool.acquire("c128") as slot:
        slot.value = 3 + 4j
        address = slot.address
    with pool.acquire("c128") as slot:
        assert slot.address == address
        assert slot.value == 0


def test_a_device_writes_through_the_address(pool: HostMemoryPool) -> None:
    import ctypes

    with pool.acquire("bf16") as slot:
        ctypes.memmove(slot.address, np.array(1.5, ml_dtypes.bfloat16).tobytes(), 2)
        assert slot.value == 1.5


def test_growth_up_to_the_cap() -> None:
    cap = 3 * FIRST_CHUNK
    pool = HostMemoryPool(BasicHostMemoryAllocator(), cap=cap)
    handles = [pool.acquire(PRED)]
    assert pool.statistics().slots == FIRST_CHUNK
    handles += [pool.acquire(PRED) for _ in range(cap - 1)]
    assert len({handle.address for handle in handles}) == pool.statistics().slots == cap
    with pytest.raises(ResourceExhaustedError):
        pool.acquire(PRED)
    pool.acquire("s32")  # a class of its own
    handles.pop().close()
    pool.acquire(PRED)


def test_the_error_names_cap_and_setting(pool: HostMemoryPool) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    start_time = time.monotonic()
    for timeout in (None, 0, 0.0):
        with pytest.raises(
            ResourceExhaustedError,
            match=r"host memory pool: all 8 pred slots are in use; close handles, wait with timeout=, "
            r"or raise the cap of 8 slots with GRISTMILL_HOST_POOL_SLOTS \(or cap= of this pool\)",
        ):
            pool.acquire(PRED, timeout)
    assert time.monotonic() - start_time < LONG
    assert pool.statistics().exhausted == 3
    assert len(handles) == pool.statistics().in_use


def test_the_cap_is_a_setting() -> None:
    with knobs.HOST_POOL_SLOTS.scope("5"):
        assert HostMemoryPool(BasicHostMemoryAllocator()).cap == 5
    assert HostMemoryPool(BasicHostMemoryAllocator()).cap == 4096
    with pytest.raises(InputError, match="a cap of 0 slots allows nothing"):
        HostMemoryPool(BasicHostMemoryAllocator(), cap=0)


def test_a_timeout_that_passes(pool: HostMemoryPool) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    begin = time.monotonic()
    with pytest.raises(ResourceExhaustedError, match=r"in use after 0\.05 s"):
        pool.acquire(PRED, timeout=0.05)
    assert time.monotonic() - begin >= 0.05
    assert pool.statistics().waiting == 0
    handles.pop().close()
    pool.acquire(PRED)  # who gave up got nothing


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
def test_wrong_timeouts(pool: HostMemoryPool, timeout: float) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    with pytest.raises(InputError, match="is negative"):
        pool.acquire(PRED, timeout)
    assert len(handles) == 8


@pytest.mark.parametrize("timeout", [LONG, math.inf])
def test_waiting_until_one_is_returned(pool: HostMemoryPool, timeout: float) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    address = handles[3].address
    got: list[SlotHandle] = []
    thread = start(lambda: got.append(pool.acquire(PRED, timeout)))
    until(lambda: pool.statistics().waiting == 1)
    assert not got
    handles[3].close()
    thread.join(LONG)
    assert got[0].address == address
    assert pool.statistics().in_use == 8


def test_who_waits_longest_is_served_first_and_nobody_overtakes(pool: HostMemoryPool) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    served: list[int] = []
    kept: list[SlotHandle] = []

    def work(number: int) -> None:
        kept.append(pool.acquire(PRED, LONG))
        served.append(number)

    threads: list[threading.Thread] = []
    for number in range(5):
        threads.append(start(lambda number=number: work(number)))
        until(lambda: pool.statistics().waiting == len(threads))
    for number in range(5):
        handles.pop().close()
        # One that does not wait must not get what was returned for those who do.
        with pytest.raises(ResourceExhaustedError):
            pool.acquire(PRED)
        until(lambda number=number: len(served) == number + 1)
    assert served == [0, 1, 2, 3, 4]
    assert pool.statistics().in_use == 8


def test_an_interrupted_wait_leaves_nothing_behind(
    pool: HostMemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]

    class Interrupted:
        def __init__(self, before: Callable[[], None]) -> None:
            self.before = before

        def acquire(self, timeout: float = 0) -> bool:
            if timeout:
                self.before()
                raise KeyboardInterrupt
            return True

        def release(self) -> None:
            pass

    from gristmill.runtime.memory import pool as module

    for before in (lambda: None, lambda: handles.pop().close()):
        monkeypatch.setattr(module.threading, "Lock", lambda before=before: Interrupted(before))
        with pytest.raises(KeyboardInterrupt):
            pool.acquire(PRED, LONG)
        found = pool.statistics()
        assert (found.waiting, found.in_use) == (0, len(handles))
    pool.acquire(PRED)


# Finalisers, which the garbage collector may run in any thread, and with any lock held.


def test_a_handle_dropped_elsewhere_while_the_pool_grows_is_taken_back() -> None:
    """By a thread in a lock of the allocator, which growing needs too."""

    class Allocator(BasicHostMemoryAllocator):
        def allocate(self, *arguments: Any, **options: Any) -> Any:
            if held:
                dropping = start(held.pop().close)
                dropping.join(LONG)
                assert not dropping.is_alive(), (
                    "it waits for the pool, and the pool for the allocator"
                )
            return super().allocate(*arguments, **options)

    held: list[SlotHandle] = []
    pool = HostMemoryPool(Allocator())
    handles = [pool.acquire(PRED) for _ in range(FIRST_CHUNK)]
    held.append(handles.pop())
    with pool.acquire("s32"):  # a class of its own, which has to grow
        assert not held
        assert pool.statistics().in_use == FIRST_CHUNK


def test_a_slot_returned_just_before_waiting_is_had_at_once(
    pool: HostMemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]

    from gristmill.runtime.memory import pool as module

    class Waiter(module._Waiter):
        def __init__(self) -> None:
            super().__init__()
            if handles:
                handles.pop().close()

    monkeypatch.setattr(module, "_Waiter", Waiter)
    began = time.monotonic()
    with pool.acquire(PRED, LONG):
        assert time.monotonic() - began < LONG / 2
    assert pool.statistics().waiting == 0


# Handles.


def test_stale_use_raises(pool: HostMemoryPool) -> None:
    slot = pool.acquire(PRED)
    with slot:
        pass
    assert slot.closed
    with pool.acquire(PRED) as newer:
        newer.value = True
        uses: list[Callable[[], Any]] = [
            lambda: slot.value,
            lambda: slot.array,
            lambda: slot.address,
            lambda: setattr(slot, "value", False),
        ]
        for use in uses:
            with pytest.raises(ClosedError, match="pred slot handle was used after it was closed"):
                use()
        slot.close()  # the same slot, but no longer this handle's
        assert newer.value
        assert not newer.closed
        assert newer.generation == slot.generation + 1
        assert "closed" in repr(slot)
        assert f"generation {newer.generation}" in repr(newer)


def test_a_handle_closed_by_many_threads_is_returned_once(pool: HostMemoryPool) -> None:
    for _ in range(50):
        slot = pool.acquire(PRED)
        barrier = threading.Barrier(4)

        def close(slot: SlotHandle = slot, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(LONG)
            slot.close()

        threads = [start(close) for _ in range(4)]
        for thread in threads:
            thread.join(LONG)
    assert pool.statistics().in_use == 0
    assert len({pool.acquire(PRED).address for _ in range(1)}) == 1
    handles = [pool.acquire(PRED) for _ in range(8)]
    assert len({handle.address for handle in handles}) == 8


def test_handles_survive_the_pool() -> None:
    allocator = HostMemoryAllocator()
    pool = HostMemoryPool(allocator)
    slot = pool.acquire("s64")
    slot.value = 42
    pool.close()
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    others = [HostMemoryAllocator().allocate(4096) for _ in range(20)]
    for other in others:
        other.view()[...] = 255
    assert slot.value == 42
    assert allocator.statistics().live_allocations == 1
    slot.close()
    del slot
    gc.collect()
    assert gone() is None
    assert allocator.statistics().live_allocations == 0


def test_a_closed_pool_refuses(pool: HostMemoryPool) -> None:
    handles = [pool.acquire(PRED) for _ in range(8)]
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            pool.acquire(PRED, math.inf)
        except ClosedError as error:
            errors.append(error)

    thread = start(wait)
    until(lambda: pool.statistics().waiting == 1)
    with pool:
        pass
    thread.join(LONG)
    assert "closed while waiting" in str(errors[0])
    with pytest.raises(ClosedError, match="host memory pool was closed"):
        pool.acquire(PRED)
    pool.close()
    for handle in handles:
        handle.close()


def test_memory_runs_out() -> None:
    allocator = BasicHostMemoryAllocator("tiny", limit=5000)
    pool = HostMemoryPool(allocator)
    handles = [pool.acquire(PRED) for _ in range(FIRST_CHUNK)]
    with pytest.raises(ResourceExhaustedError, match=r"'tiny' .* GRISTMILL_HOST_MEMORY_LIMIT"):
        pool.acquire(PRED)
    with pytest.raises(ResourceExhaustedError, match="'tiny'"):
        pool.acquire("s32", LONG)  # nothing that could be returned
    got: list[SlotHandle] = []
    thread = start(lambda: got.append(pool.acquire(PRED, LONG)))
    until(lambda: pool.statistics().waiting == 1)
    handles.pop().close()
    thread.join(LONG)
    assert len(got) == 1


def test_slots_come_from_the_pools_device() -> None:
    mapped: list[int | None] = []
    allocator = HostMemoryAllocator(
        map_range=lambda device, address, nbytes: mapped.append(device),
        unmap_range=lambda device, address: None,
    )
    HostMemoryPool(allocator, device=3).acquire(PRED).close()
    assert mapped == [3]


# Leaks.


def test_leaks_name_their_holders() -> None:
    pool = HostMemoryPool(BasicHostMemoryAllocator(), cap=2, track=True)
    here = __file__
    first = pool.acquire(PRED)
    second = pool.acquire(PRED)
    holders = pool.leaks()
    assert [holder.primitive for holder in holders] == ["pred", "pred"]
    line = first.__class__ and test_leaks_name_their_holders.__code__.co_firstlineno + 3
    assert [holder.site for holder in holders] == [f"{here}:{line}", f"{here}:{line + 1}"]
    assert holders[0].seconds >= holders[1].seconds >= 0
    with pytest.raises(ResourceExhaustedError, match=f"holders: pred held for .* by .*:{line}; "):
        pool.acquire(PRED)
    first.close()
    assert [holder.site for holder in pool.leaks()] == [f"{here}:{line + 1}"]
    second.close()
    assert pool.leaks() == []
    with pytest.raises(ClosedError, match=f"acquired by .*:{line}$"):
        _ = first.value


def test_leaks_are_not_tracked_unless_asked(pool: HostMemoryPool) -> None:
    with pool.acquire(PRED):
        assert pool.leaks() == []


@pytest.mark.parametrize("track", [False, True])
def test_a_dropped_handle_is_returned_and_reported(track: bool) -> None:
    pool = HostMemoryPool(BasicHostMemoryAllocator(), track=track)
    slot = pool.acquire(PRED)
    site = r", acquired by .*test_runtime_memory_pool.py:\d+" if track else ""
    with pytest.warns(ResourceWarning, match=f"pred slot handle was dropped without close{site}$"):
        del slot
    found = pool.statistics()
    assert (found.in_use, found.dropped) == (0, 1)
    assert pool.leaks() == []


class Watcher(observer.Observer):
    """Notes what lives."""

    def __init__(self) -> None:
        self.live: set[int] = set()

    def opened(self, resource: object) -> None:
        assert id(resource) not in self.live
        self.live.add(id(resource))

    def closed(self, resource: object) -> None:
        self.live.discard(id(resource))  # older ones may die meanwhile


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_debug_tools_see_handles_and_allocations() -> None:
    watcher = Watcher()
    observer.install(watcher)
    try:
        with HostMemoryAllocator() as allocator, HostMemoryPool(allocator) as pool:
            slot = pool.acquire(PRED)
            assert id(slot) in watcher.live
            assert len(watcher.live) == 2  # and the chunk
            slot.close()
            slot.close()
            with pool.acquire(PRED):
                assert len(watcher.live) == 2
            pool.acquire(PRED)  # dropped
            allocator.allocate(100)  # dropped
            assert len(watcher.live) == 1
        assert watcher.live == set()
    finally:
        observer.uninstall(watcher)


def test_statistics(pool: HostMemoryPool) -> None:
    with pool.acquire(PRED), pool.acquire("s32"):
        found = pool.statistics()
        assert (found.cap, found.in_use, found.acquired, found.slots) == (8, 2, 2, 16)
    found = pool.statistics()
    assert (found.in_use, found.peak_in_use, found.acquired) == (0, 2, 2)


# Stress.


def stress(threads: int, rounds: int, cap: int) -> None:
    """Each holder writes its own mark, lets others run, and must find it again."""
    pool = HostMemoryPool(HostMemoryAllocator(), cap=cap)
    faults: list[str] = []
    held: set[int] = set()

    def work(number: int) -> None:
        try:
            for turn in range(rounds):
                with pool.acquire("u64", math.inf) as slot:
                    address, mark = slot.address, number * rounds + turn
                    if address in held:
                        faults.append(f"slot {address:#x} was handed out twice")
                    held.add(address)
                    if slot.value != 0:
                        faults.append("not cleared")
                    slot.value = mark
                    if turn % 64 == 0:
                        time.sleep(0)
                    if slot.value != mark:
                        faults.append("overwritten by another holder")
                    held.discard(address)
        except BaseException as error:
            faults.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5 if rounds < 10_000 else interval)
    try:
        workers = [start(lambda n=n: work(n)) for n in range(threads)]
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert faults == []
    found = pool.statistics()
    assert (found.in_use, found.waiting, found.dropped) == (0, 0, 0)
    assert found.acquired == threads * rounds
    assert found.peak_in_use <= found.slots <= cap


@pytest.mark.parametrize("cap", [3, 64])
def test_no_slot_is_handed_out_twice(cap: int) -> None:
    stress(8, 2_000, cap)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [60, 64])
def test_no_slot_is_handed_out_twice_under_stress(cap: int) -> None:
    stress(64, 100_000, cap)
