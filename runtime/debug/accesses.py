# SPDX-License-Identifier: Apache-2.0
"""How a program tells the debug tools what they cannot see: accesses outside the runtime's copies.

Both functions do nothing when no tool is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.runtime import foreign, observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.devices.base import DeviceAllocation
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event

#: A buffer, an allocation, or host data: an array or any object with the buffer protocol.
Memory = object


def access(memory: Memory) -> observer.Access:
    """The bytes of ``memory`` as tools see them."""
    if isinstance(memory, RawBuffer):
        return observer.Access(memory.address, memory.nbytes)
    if isinstance(memory, DeviceAllocation):
        return observer.Access(memory.address, memory.nbytes)
    found = foreign.host_memory(memory)
    return observer.Access(found.address, found.nbytes)


def touch(*, reads: Sequence[Memory] = (), writes: Sequence[Memory] = ()) -> None:
    """The calling thread reads and writes these memories itself, now: ``array += 1`` and the like."""
    if observer.active:
        read, written = tuple(map(access, reads)), tuple(map(access, writes))
        for tool in observer.active:
            tool.touched(read, written)


def declare(
    event: Event,
    stream: Stream | None = None,
    *,
    reads: Sequence[Memory] = (),
    writes: Sequence[Memory] = (),
) -> Event:
    """The work that completes ``event`` (host work given to ``stream``) touches these memories.

    Returns ``event``. To be called right after the work was enqueued.
    """
    if observer.active:
        operation = observer.Operation(
            event.name, stream, event, (), tuple(map(access, reads)), tuple(map(access, writes))
        )
        for tool in observer.active:
            tool.submitted(operation)
    return event
