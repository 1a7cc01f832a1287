# SPDX-License-Identifier: Apache-2.0
"""Pinned scalars from a pool: typed slots, a cap, handles that know when they are stale, and who holds what."""

from __future__ import annotations

import threading

from gristmill.errors import ClosedError, ResourceExhaustedError
from gristmill.runtime.memory.allocator import BasicHostMemoryAllocator
from gristmill.runtime.memory.pool import HostMemoryPool


def main() -> None:
    with HostMemoryPool(BasicHostMemoryAllocator(), cap=2, track=True) as pool:
        with pool.acquire("pred") as predicate:
            predicate.value = True
            print("predicate:", bool(predicate.value))
        first, second = pool.acquire("s32"), pool.acquire("s32")
        try:
            pool.acquire("s32")
        except ResourceExhaustedError as error:
            print("refused:", error)
        for holder in pool.leaks():
            print("held:", str(holder).rpartition("/")[2])
        threading.Timer(0.01, first.close).start()
        third = pool.acquire("s32", timeout=10)
        print("waited for a slot; the same memory, generation", third.generation)
        try:
            first.value = 1
        except ClosedError as error:
            print("refused:", str(error).partition(";")[0])
        second.close()
        third.close()
        print("peak:", pool.statistics().peak_in_use, "now:", pool.statistics().in_use)


if __name__ == "__main__":
    main()
