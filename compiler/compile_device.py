# SPDX-License-Identifier: Apache-2.0
"""Compile for a device and load the program there: which chip, and which form of the kernels, it takes."""

from __future__ import annotations

from dataclasses import replace

from gristmill.compiler.codegen.ptxas import find_ptxas
from gristmill.compiler.compile import compile_stages
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import GpuTarget, gpu_target, newest_chip
from gristmill.errors import UnsupportedError
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.launching import LaunchDevice
from gristmill.runtime.devices.open import open_device


def target_of(device: LaunchDevice) -> GpuTarget:
    """The GPU to compile for: the newest known one whose code ``device`` runs.

    Raises ``UnsupportedError`` for a CUDA device older than all of them.
    """
    if not isinstance(device, CudaDevice):
        return gpu_target()
    chip = newest_chip(device.capability)
    if chip is None:
        major, minor = device.capability
        raise UnsupportedError(f"{device.name} has compute capability {major}.{minor}, which is too old")
    return gpu_target(chip)


def options_for(device: LaunchDevice, options: CompileOptions | None = None) -> CompileOptions:
    """``options`` with the forms of the kernels that ``device`` runs, unless they say which."""
    options = options or CompileOptions()
    if options.images is not None:
        return options
    if not isinstance(device, CudaDevice):
        return replace(options, images=("simulator",))
    return replace(options, images=("ptx", "cubin") if find_ptxas() else ("ptx",))


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
        compilation = compile_stages(module, target or target_of(opened), options=chosen)
        return compilation.executable(opened, owns_device=owns)
    except BaseException:
        if owns:
            opened.close()
        raise
