# SPDX-License-Identifier: Apache-2.0
"""The debug tools: leaks by line, races between copies, a timeline for Perfetto, where time goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug import bottlenecks, leaks, races, timeline
from gristmill.runtime.devices.host import HostDevice


def main() -> None:
    data = np.zeros(1 << 20, np.uint8)
    with HostDevice() as device:
        with leaks.track() as tracker:
            forgotten = RawBuffer.allocate(device, 1000)
        print("leaks:")
        print(str(tracker.report).replace(str(Path(__file__).parent) + "/", ""))
        forgotten.close()

        with races.detect() as detector, RawBuffer.allocate(device, data.nbytes) as buffer:
            first = buffer.copy_from_host(data)
            second = buffer.copy_from_host(data)  # should wait for the first
            first.wait()
            second.wait()
        print(detector.report().replace(str(Path(__file__).parent) + "/", ""))

        with timeline.record() as recording, RawBuffer.allocate(device, data.nbytes) as buffer:
            up = buffer.copy_from_host(data)
            with recording.span("prepare"):
                data.copy()
            buffer.copy_to_host(data, waits=[up]).wait()
        with tempfile.TemporaryDirectory() as folder:
            recording.save(Path(folder) / "trace.json")  # open it at ui.perfetto.dev
        print(bottlenecks.analyse(recording.trace()))


if __name__ == "__main__":
    main()
