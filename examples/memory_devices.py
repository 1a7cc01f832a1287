# SPDX-License-Identifier: Apache-2.0
"""Devices: memory spaces, copies between devices, statistics; the same program on the host and on CUDA."""

from __future__ import annotations

import numpy as np

from gristmill.errors import ResourceExhaustedError
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import Device, MemorySpace
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.host import HostDevice


def program(device: Device) -> None:
    """Up, across memory spaces, and down."""
    data = np.arange(100_000, dtype=np.float64)
    out = np.zeros_like(data)
    with (
        RawBuffer.from_host(device, data) as here,
        RawBuffer.allocate(device, data.nbytes, MemorySpace.PINNED) as pinned,
    ):
        across = here.copy_to(pinned)
        pinned.copy_to_host(out, waits=[across]).wait()
        print(f"{device}: equal:", np.array_equal(out, data), device.statistics().copies)
    print(f"{device}: live bytes:", device.statistics().live_bytes)


def main() -> None:
    with HostDevice(memory_limit=2 << 20) as host:
        program(host)
        try:
            host.allocate(4 << 20)
        except ResourceExhaustedError as error:
            print("refused:", error)
    reason = CudaDevice.unavailable_reason()
    if reason is not None:
        print("no CUDA device:", reason)
        return
    with CudaDevice(0) as device:
        program(device)


if __name__ == "__main__":
    main()
