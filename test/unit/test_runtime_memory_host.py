# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ResourceExhaustedError
from gristmill.runtime.memory import host
from gristmill.runtime.memory.host import HostPool, aligned_copy, aligned_empty, size_class

F32 = np.dtype(np.float32)


@given(st.integers(0, 1 << 40))
def test_size_class_wastes_little(nbytes: int) -> None:
    capacity = size_class(nbytes)
    assert capacity >= max(nbytes, 1)
    assert capacity % 4096 == 0
    assert capacity <= max(nbytes * 9 / 8, nbytes + 4096)
    assert size_class(capacity) == capacity


@pytest.mark.parametrize("shape", [(), (3, 5), (1000,)])
def test_aligned_empty(shape: tuple[int, ...]) -> None:
    array = aligned_empty(shape, F32)
    assert (array.shape, array.dtype) == (shape, F32)
    assert array.flags.c_contiguous
    assert array.ctypes.data % 64 == 0


def test_aligned_copy_copies_only_when_it_must() -> None:
    aligned = aligned_empty((64,), F32)
    aligned[:] = np.arange(64)
    assert aligned_copy(aligned) is aligned
    shifted = aligned_copy(aligned[1:])
    assert shifted.ctypes.data % 64 == 0
    np.testing.assert_array_equal(shifted, np.arange(1, 64))
    np.testing.assert_array_equal(aligned_copy(aligned.reshape(8, 8).T), aligned.reshape(8, 8).T)


def test_memory_comes_back_when_the_last_view_dies() -> None:
    pool = HostPool(1 << 20)
    array = pool.empty((100, 100), F32)
    address = array.ctypes.data
    assert address % 64 == 0
    view = array[10:, ::2]
    del array
    gc.collect()
    assert pool.statistics().used_bytes == size_class(40000)
    view[...] = 1
    del view
    assert pool.statistics().used_bytes == 0
    assert pool.statistics().cached_bytes == size_class(40000)
    assert pool.empty((100, 100), F32).ctypes.data == address


def test_live_arrays_are_disjoint() -> None:
    pool = HostPool(1 << 20)
    arrays = [pool.empty((5000,), F32) for _ in range(10)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [int(a.sum()) for a in arrays] == [n * 5000 for n in range(10)]


def test_the_cache_is_bounded_and_can_be_trimmed() -> None:
    pool = HostPool(10000)
    blocks = [pool.acquire(4096) for _ in range(4)]
    for block in blocks:
        pool.release(block)
    assert pool.statistics().cached_bytes == 8192
    pool.trim()
    assert pool.statistics().cached_bytes == 0
    assert pool.acquire(4096).capacity == 4096


def test_exhausted_memory_names_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = HostPool(1 << 20)

    def fail(capacity: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(host, "_anonymous", fail)
    with pytest.raises(ResourceExhaustedError, match="host memory pool cannot get 1048576 bytes"):
        pool.acquire(1 << 20)
    assert pool.statistics().used_bytes == 0


def test_threads_share_a_pool() -> None:
    pool = HostPool(1 << 22)
    faults: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            array = pool.empty((3000,), F32)
            array[:] = number
            if array.min() != number or array.max() != number:
                faults.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert pool.statistics().used_bytes == 0
