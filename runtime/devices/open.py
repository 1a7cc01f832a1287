# SPDX-License-Identifier: Apache-2.0
"""Devices by name: ``simulator``, ``cuda``, ``cuda:1``."""

from __future__ import annotations

from gristmill.errors import DeviceError, InputError
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.launching import LaunchDevice
from gristmill.runtime.devices.simulator import SimulatorDevice

#: What a name may begin with.
DEVICE_KINDS = ("simulator", "cuda")


def open_device(name: str) -> LaunchDevice:
    """Open the device called ``name``, which the caller closes.

    Raises ``InputError`` for a name that is none, ``DeviceError`` when there is no such device.
    """
    kind, colon, number = name.partition(":")
    if kind not in DEVICE_KINDS or (colon and not number.isdecimal()):
        raise InputError(f"device {name!r} is not known; give simulator, cuda or cuda:N")
    ordinal = int(number or "0")
    if kind == "simulator":
        return SimulatorDevice(ordinal)
    try:
        return CudaDevice(ordinal)
    except DeviceError as error:
        raise DeviceError(
            f"{name} cannot be opened: {error.message}; without a GPU, device 'simulator' runs the program"
        ) from error
