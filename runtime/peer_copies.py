# SPDX-License-Identifier: Apache-2.0
"""Copies between two devices: direct where the host sees one side, else in pieces through pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.errors import GristmillError, InputError
from gristmill.runtime.devices.base import Device, DeviceAllocation, MemorySpace
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event, all_of, failed

#: Copies between devices that cannot reach each other go through this many staging pieces of this size.
STAGING_PIECES = 4
STAGING_BYTES = 4 << 20


def copy_between(
    target: DeviceAllocation,
    target_at: int,
    source: DeviceAllocation,
    source_at: int,
    nbytes: int,
    stream: Stream | None,
    waits: Sequence[Event],
) -> Event:
    """Copy from the memory of one device to that of another; the arguments are checked.

    ``stream`` must belong to the device that copies, or be None.
    """
    ends = (target, target_at, source, source_at, nbytes)
    if source.host_address is not None:
        return _HostView(target.device, source).copy(target.device, *ends, stream, waits)
    if target.host_address is not None:
        return _HostView(source.device, target).copy(source.device, *ends, stream, waits)
    return _copy_staged(*ends, stream, waits)


class _HostView:
    """An allocation that the host sees, as host memory for another device's copy."""

    def __init__(self, device: Device, allocation: DeviceAllocation) -> None:
        assert allocation.host_address is not None
        allocation.hold()
        self._allocation = allocation
        self._view = DeviceAllocation(
            device, MemorySpace.HOST, allocation.host_address, allocation.nbytes, allocation.drop,
            host_address=allocation.host_address, readonly=allocation.readonly,
        )  # fmt: skip

    def copy(
        self,
        device: Device,
        target: DeviceAllocation,
        target_at: int,
        source: DeviceAllocation,
        source_at: int,
        nbytes: int,
        stream: Stream | None,
        waits: Sequence[Event],
    ) -> Event:
        """``device.copy`` with the view in the place of its allocation; ends the view after it."""
        target = self._view if target is self._allocation else target
        source = self._view if source is self._allocation else source
        try:
            return device.copy(target, target_at, source, source_at, nbytes, stream, waits)
        finally:
            self._view.drop()


def _copy_staged(
    target: DeviceAllocation,
    target_at: int,
    source: DeviceAllocation,
    source_at: int,
    nbytes: int,
    stream: Stream | None,
    waits: Sequence[Event],
) -> Event:
    """Copy between devices that cannot reach each other: down and up, piece by piece, overlapped."""
    if stream is not None:
        raise InputError(f"{stream} cannot order a copy between two devices; give events instead")
    piece = min(STAGING_BYTES, max(nbytes, 1))
    pieces = min(STAGING_PIECES, max(-(-nbytes // piece), 1))
    staging = source.device.allocate_staging(piece * pieces)
    ups: list[Event] = []
    try:
        for index, start in enumerate(range(0, max(nbytes, 1), piece)):
            size = min(piece, nbytes - start)
            slot = index % pieces * piece
            # The slot is free when the copy that used it before is up; if that failed, so does this.
            free = [ups[index - pieces]] if index >= pieces else []
            down = source.device.copy(
                staging, slot, source, source_at + start, size, None, [*waits, *free]
            )
            try:
                ups.append(
                    target.device.copy(target, target_at + start, staging, slot, size, None, [down])
                )
            except GristmillError as error:
                ups.append(failed(error))
                ups.append(down)
                break
    except GristmillError as error:
        if not ups:
            raise
        ups.append(failed(error))
    finally:
        staging.drop()
    return all_of(ups, f"copy {nbytes} B from {source.device} to {target.device}")
