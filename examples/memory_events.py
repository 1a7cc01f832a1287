# SPDX-License-Identifier: Apache-2.0
"""Events and streams: order within a stream, events between them, errors that poison, asyncio."""

from __future__ import annotations

import asyncio

from gristmill.errors import DependencyError
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.events import Event, all_of


def fails() -> None:
    raise ValueError("no such row")


def main() -> None:
    order: list[str] = []
    with HostDevice() as device, device.create_stream("a") as a, device.create_stream("b") as b:
        gate = Event("gate")
        a.enqueue(lambda: order.append("first"), waits=[gate])
        second = a.enqueue(lambda: order.append("second"))
        b.wait_event(second)
        third = b.enqueue(lambda: order.append("third"))
        print("before the gate opens:", order, third.state.value)
        gate.complete()
        third.wait(10)
        print("after:", order)

        broken = a.enqueue(fails, name="select")
        consumer = b.enqueue(lambda: None, waits=[broken], name="sum")
        try:
            consumer.wait(10)
        except DependencyError as error:
            print("poisoned:", error)
        for stream in (a, b):
            stream.recover()

        async def both() -> None:
            await all_of([a.enqueue(lambda: None), b.enqueue(lambda: None)])
            print("awaited")

        asyncio.run(both())


if __name__ == "__main__":
    main()
