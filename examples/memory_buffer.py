# SPDX-License-Identifier: Apache-2.0
"""Raw buffers: asynchronous copies of byte ranges, views, aliases of host memory, and errors that travel."""

from __future__ import annotations

import numpy as np

from gristmill.errors import DependencyError, InputError
from gristmill.runtime.buffers import Alias, RawBuffer
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.events import Event


def main() -> None:
    source = np.arange(16, dtype=np.int32)
    with HostDevice() as device, RawBuffer.allocate(device, 64) as buffer:
        up = buffer.copy_from_host(source)
        out = np.zeros(4, np.int32)
        with buffer.slice(32, 16) as part:
            part.copy_to_host(out, waits=[up]).wait()
        print("a slice:", out)
        try:
            buffer.copy_from_host(source, offset=8)
        except InputError as error:
            print("refused:", error)
        source.setflags(write=False)
        with RawBuffer.from_host(device, source, alias=Alias.READONLY) as alias:
            print("in place:", alias.host_pointer() == source.ctypes.data)
        definition = Event("filling")
        with RawBuffer.allocate(device, 4, definition=definition) as pending:
            reader = pending.copy_to_host(np.zeros(1, np.int32))
            definition.fail(OSError("the disk is gone"))
            try:
                reader.wait()
            except DependencyError as error:
                print("poisoned:", error)


if __name__ == "__main__":
    main()
