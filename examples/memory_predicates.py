# SPDX-License-Identifier: Apache-2.0
"""A loop whose condition a device computes: each predicate comes to the host through a pinned slot."""

from __future__ import annotations

import ctypes

import numpy as np

from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.predicates import PredicateReader


def main() -> None:
    with (
        HostDevice() as device,
        device.create_stream("program") as stream,
        RawBuffer.from_host(device, np.ones(1, np.int32)) as value,
        RawBuffer.from_host(device, np.ones(1, np.bool_)) as small,
    ):
        # The host sees this device's memory, so a host function can stand for a kernel.
        number = ctypes.c_int32.from_address(value.address)
        flag = ctypes.c_bool.from_address(small.address)

        def body() -> None:
            number.value *= 3
            flag.value = number.value < 1000

        reader = PredicateReader(device)
        turns = 0
        while reader.read(small, stream=stream, timeout=10):
            stream.enqueue(body, name="body")
            turns += 1
        print("turns:", turns, "value:", reader.read_index(value, timeout=10))
        print("slots in use:", reader.pool.statistics().in_use)


if __name__ == "__main__":
    main()
