# SPDX-License-Identifier: Apache-2.0
"""Measure copies, launches and waits through the cuda device, and print a table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import source_tree

source_tree.use()

import numpy as np  # noqa: E402
from software_driver import PTX  # noqa: E402

from gristmill.runtime.devices.base import DeviceAllocation, MemorySpace  # noqa: E402
from gristmill.runtime.devices.cuda import CudaDevice  # noqa: E402

REPEATS = 5


def best(action: Callable[[], None]) -> float:
    """Seconds of the fastest of a few runs, after one to warm up."""
    action()
    times: list[float] = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return min(times)


def copies(device: CudaDevice, nbytes: int) -> None:
    """Print GB/s of each kind of copy of ``nbytes``."""
    array = np.ones(nbytes, np.uint8)
    registered = np.ones(nbytes, np.uint8)
    device.register_host(registered.ctypes.data, nbytes)
    one, two = device.allocate(nbytes), device.allocate(nbytes)
    pinned = device.allocate(nbytes, MemorySpace.PINNED)
    ends = {
        "pageable": device.host_memory(array.ctypes.data, nbytes, owner=array),
        "registered": device.host_memory(registered.ctypes.data, nbytes, owner=registered),
        "pinned": pinned,
    }

    def show(what: str, target: DeviceAllocation, source: DeviceAllocation) -> None:
        seconds = best(lambda: device.copy(target, 0, source, 0, nbytes).wait(60))
        print(f"{what:16} {nbytes / seconds / 1e9:8.2f} GB/s   {nbytes >> 20} MiB")

    for name, end in ends.items():
        show(f"h2d {name}", one, end)
        show(f"d2h {name}", end, one)
    show("d2d", two, one)
    for allocation in (one, two, *ends.values()):
        allocation.drop()
    device.unregister_host(registered.ctypes.data)


def small_things(device: CudaDevice) -> None:
    """Print microseconds of small operations."""
    count = 1000
    with (
        device.create_stream("small") as stream,
        device.load_module(PTX) as module,
    ):
        assert stream.device is device
        kernel = module.kernel("add_constant")
        memory = device.allocate(4096)
        with device.record_graph() as recorder:
            for _ in range(10):
                recorder.launch(kernel, (1,), (32,), (memory, 32, 1))

        def launches() -> None:
            for _ in range(count):
                event = kernel.launch(stream, (1,), (32,), (memory, 32, 1))
            event.wait(60)

        def graphs() -> None:
            for _ in range(count // 10):
                event = recorder.graph.launch(stream)
            event.wait(60)

        def round_trips() -> None:
            for _ in range(count // 10):
                kernel.launch(stream, (1,), (32,), (memory, 32, 1)).wait(60)

        def allocations() -> None:
            for _ in range(count // 10):
                device.allocate(1 << 20).drop()

        print(f"launch           {best(launches) / count * 1e6:8.2f} us")
        print(f"launch in graph  {best(graphs) / count * 1e6:8.2f} us   10 launches a graph")
        print(f"launch and wait  {best(round_trips) / (count // 10) * 1e6:8.2f} us")
        print(f"allocate, free   {best(allocations) / (count // 10) * 1e6:8.2f} us   1 MiB")
        recorder.graph.close()
        memory.drop()


def main() -> None:
    """Measure, on device 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=256 << 20, help="bytes of each copy")
    arguments = parser.parse_args()
    with CudaDevice(0) as device:
        print(device.name)
        copies(device, arguments.bytes)
        small_things(device)


if __name__ == "__main__":
    main()
