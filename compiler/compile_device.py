# SPDX-License-Identifier: Apache-2.0
"""Compile for a device and load the program there."""

from __future__ import annotations

from gristmill.compiler.compile_gpu import compile_gpu_stages
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import GpuTarget
from gristmill.compiler.target_device import options_for, target_of
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.devices.launching import LaunchDevice
from gristmill.runtime.devices.open import open_device


def compile_for_device(
    module: HloModule,
    device: str | LaunchDevice,
    target: GpuTarget | None = None,
    *,
    options: CompileOptions | None = None,
) -> DeviceExecutable:
    """Compile ``module``, which is consumed, for ``device`` and load it there.

    A device given by name is opened, and closed with the executable. ``target`` is by default what
    :func:`target_of` says.
    """
    opened = open_device(device) if isinstance(device, str) else device
    owns = isinstance(device, str)
    try:
        chosen = options_for(opened, options)
        compilation = compile_gpu_stages(module, target or target_of(opened), options=chosen)
        return compilation.executable(opened, owns_device=owns)
    except BaseException:
        if owns:
            opened.close()
        raise
