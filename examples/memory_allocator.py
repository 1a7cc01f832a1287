# SPDX-License-Identifier: Apache-2.0
"""Host memory for transfers: aligned, registered with a device, limited, and alive as long as it is used."""

from __future__ import annotations

from gristmill.errors import ResourceExhaustedError
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.memory.allocator import BasicHostMemoryAllocator, HostMemoryAllocator


def main() -> None:
    device = HostDevice()
    allocator = HostMemoryAllocator(
        "staging",
        alignment=4096,
        limit=16 << 20,
        map_range=lambda _, address, nbytes: print(
            "registered:", device.register_host(address, nbytes) == address
        ),
        unmap_range=lambda _, address: device.unregister_host(address),
    )
    with device, allocator:
        with allocator.allocate(1 << 20, device=0) as first:
            print("aligned:", first.address % 4096 == 0, "registered:", first.registered)
        with allocator.allocate(1 << 20, device=0) as again:
            print("notes:", again.notes or "all hints were honoured")
        view = allocator.allocate(100).view("f4", (25,))
        view[:] = 7  # the view keeps the memory, though its allocation is gone
        print("sum:", view.sum())
        try:
            allocator.allocate(1 << 30)
        except ResourceExhaustedError as error:
            print("refused:", error)
        statistics = allocator.statistics()
        print("cache hits:", statistics.cache_hits, "refused:", statistics.failures)
    with BasicHostMemoryAllocator() as basic, basic.allocate(1000, numa_node=0) as plain:
        print("basic:", plain.notes[0])


if __name__ == "__main__":
    main()
