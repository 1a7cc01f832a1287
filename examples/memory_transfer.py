# SPDX-License-Identifier: Apache-2.0
"""A transfer manager: buffers that are used before they are filled, from chunks and files, in any order."""

from __future__ import annotations

import tempfile
import zlib

import numpy as np

from gristmill.errors import TransferCancelledError, TransferError
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.layout import Shape
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.uploads import UploadOptions


def main() -> None:
    weights = np.arange(1000, dtype=np.float32)
    shapes = [Shape.parse("f32[1000]"), Shape.parse("f32[10,100]"), Shape.parse("u8[5]")]
    upload = UploadOptions(chunk_bytes=1024, staging_bytes=4096, staged=True, verify=True)
    with (
        tempfile.NamedTemporaryFile() as file,
        HostDevice() as device,
        create_transfer_manager(device, shapes, upload=upload) as manager,
    ):
        file.write(weights.tobytes())
        file.flush()
        with manager.retrieve_buffer(0) as buffer:
            out = np.zeros(1000, np.float32)
            reader = buffer.copy_to_host(out)  # waits until the buffer is filled
            half = weights[500:]
            manager.transfer_chunk(0, half, 2000, checksum=zlib.crc32(half.tobytes()))
            print("filled:", reader.done, "missing:", manager.missing(0))
            manager.transfer_chunk(0, weights[:500])
            reader.wait()
            print("equal:", np.array_equal(out, weights))
        manager.transfer_file(1, file.name, on_done=lambda error: print("file:", error)).wait()
        try:
            manager.transfer_chunk(1, weights[:1])
        except TransferError as error:
            print("refused:", error)
        with manager.retrieve_buffer(2) as never:
            manager.cancel(2)
            try:
                never.definition.wait()
            except TransferCancelledError as error:
                print("cancelled:", error)
        print("in flight at most:", manager.uploader.statistics().peak_in_flight_bytes)


if __name__ == "__main__":
    main()
