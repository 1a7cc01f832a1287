# SPDX-License-Identifier: Apache-2.0
"""Loading artifacts. Needs neither MLIR nor jaxlib, only numpy and LLVM to link, or cuda-python for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import InputError
from gristmill.runtime import artifact
from gristmill.runtime.executable import Executable
from gristmill.runtime.program import Program

if TYPE_CHECKING:
    from gristmill.runtime.device_executable import DeviceExecutable
    from gristmill.runtime.devices.launching import LaunchDevice


def load(
    path: str | Path, *, device: str | LaunchDevice | None = None
) -> Executable | DeviceExecutable:
    """The executable stored in an artifact.

    For a program compiled for a CPU that is an :class:`~gristmill.runtime.executable.Executable`, for one compiled
    for a GPU a :class:`~gristmill.runtime.device_executable.DeviceExecutable` on ``device``: ``cuda`` (the default),
    ``cuda:N``, ``simulator``, or an open device. One given by name is closed with the executable. Raises
    ``ArtifactError`` for anything wrong with the file.
    """
    program = artifact.load(path)
    if isinstance(program, Program):
        if device is not None:
            raise InputError(f"{path} was compiled for a CPU; it cannot run on {device}")
        return Executable(program)
    return _on_device(program, "cuda" if device is None else device)


def _on_device(program: artifact.DeviceProgram, device: str | LaunchDevice) -> DeviceExecutable:
    from gristmill.runtime.device_executable import DeviceExecutable
    from gristmill.runtime.devices.open import open_device

    owns = isinstance(device, str)
    opened = open_device(device) if isinstance(device, str) else device
    try:
        return DeviceExecutable(program, opened, owns_device=owns)
    except BaseException:
        if owns:
            opened.close()
        raise
