# SPDX-License-Identifier: Apache-2.0
"""Memory of devices and hosts: where it is, who holds it, and when it is given back."""

from __future__ import annotations

import enum
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from gristmill.errors import ClosedError, GristmillError, InputError
from gristmill.runtime import observer
from gristmill.runtime.events import Event

if TYPE_CHECKING:
    from gristmill.runtime.devices.base import Device


class MemorySpace(enum.Enum):
    """Where memory lies.

    ``DEVICE`` is the device's own, ``PINNED`` page-locked host memory that the device reaches by DMA,
    ``HOST`` ordinary host memory. On the host device all three are ordinary memory.
    """

    DEVICE = "device"
    PINNED = "pinned"
    HOST = "host"


def check_range(what: str, offset: int, nbytes: int, size: int) -> None:
    """Raise ``InputError`` unless ``0 <= offset``, ``0 <= nbytes`` and ``offset + nbytes <= size``.

    Python integers do not overflow; values no address can hold are refused by the last condition.
    """
    if type(offset) is type(nbytes) is int and 0 <= offset <= size - nbytes <= size:
        return
    for label, value in (("offset", offset), ("size", nbytes)):
        # bool is an int by inheritance only; numpy integers wrap around.
        if type(value) is not int:
            raise InputError(f"{what}: {label} must be an int, not {type(value).__name__}")
        if value < 0:
            raise InputError(f"{what}: {label} {value} is negative")
    raise InputError(
        f"{what}: bytes {offset}..{offset + nbytes} are outside the {size} bytes there are"
    )


class DeviceAllocation:
    """A range of memory: a device's, pinned, or the host's, with one owner at a time.

    It has a count of holders: the creator is the first, each slice and each copy in flight another.
    When the last lets go, ``release`` is called, once. Thread-safe.

    Args:
        device: the device that reaches it.
        space: where it lies.
        address: its first byte, as the device addresses it; 0 is allowed for ``nbytes == 0`` only.
        nbytes: its size.
        release: gives the memory back; None when someone else owns it.
        host_address: where the host sees the same bytes, or None.
        readonly: whether writing to it is refused.
        owner: kept alive as long as the allocation (a numpy array, a mapping, a driver object).
    """

    __slots__ = (
        "__weakref__", "_holders", "_lock", "_release", "address", "device", "host_address", "nbytes",
        "owner", "readonly", "space",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        space: MemorySpace,
        address: int,
        nbytes: int,
        release: Callable[[], None] | None = None,
        *,
        host_address: int | None = None,
        readonly: bool = False,
        owner: object = None,
    ) -> None:
        self.device = device
        self.space = space
        self.address = address
        self.nbytes = nbytes
        self.host_address = host_address
        self.readonly = readonly
        self.owner = owner
        self._release = release
        self._holders = 1
        self._lock = threading.RLock()
        for tool in observer.active:
            tool.allocated(self)

    @property
    def closed(self) -> bool:
        """Whether the memory was given back."""
        return self._holders == 0

    def hold(self) -> None:
        """Add a holder; raises ``ClosedError`` when the memory was given back already."""
        with self._lock:
            if self._holders == 0:
                raise ClosedError(f"{self!r} was closed; its memory may serve others by now")
            self._holders += 1

    def drop(self) -> None:
        """Remove a holder; the last one gives the memory back."""
        with self._lock:
            if self._holders == 0:
                raise ClosedError(f"{self!r} was closed more often than it was held")
            self._holders -= 1
            if self._holders:
                return
            release, self._release = self._release, None
        for tool in observer.active:
            tool.released(self)
        try:
            if release is not None:
                release()
        finally:
            self.owner = None

    def drop_after(self, event: Event) -> None:
        """Remove a holder when ``event`` is done; a failing release is a ``ResourceWarning`` then."""

        event.add_callback(self.let_go)

    def let_go(self, _: Event | None = None) -> None:
        """Remove a holder; a failing release is a ``ResourceWarning``."""
        try:
            self.drop()
        except GristmillError as error:
            warnings.warn(f"releasing {self!r} failed: {error}", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{self.nbytes} B {self.space.value} memory of {self.device} at {self.address:#x}>"
