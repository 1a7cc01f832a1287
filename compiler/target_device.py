# SPDX-License-Identifier: Apache-2.0
"""What to compile for a device: which chip, and which forms of the kernels. Loads no MLIR."""

from __future__ import annotations

from dataclasses import replace

from gristmill.compiler.codegen.ptxas import find_ptxas
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import GpuTarget, gpu_target, newest_chip
from gristmill.errors import UnsupportedError
from gristmill.runtime.devices.cuda import CudaDevice
from gristmill.runtime.devices.launching import LaunchDevice


def target_of(device: LaunchDevice) -> GpuTarget:
    """The GPU to compile for: the newest known one whose code ``device`` runs.

    Raises ``UnsupportedError`` for a CUDA device older than all of them.
    """
    if not isinstance(device, CudaDevice):
        return gpu_target()
    chip = newest_chip(device.capability)
    if chip is None:
        major, minor = device.capability
        raise UnsupportedError(
            f"{device.name} has compute capability {major}.{minor}, which is too old"
        )
    return gpu_target(chip)


def options_for(device: LaunchDevice, options: CompileOptions | None = None) -> CompileOptions:
    """``options`` with the forms of the kernels that ``device`` runs, unless they say which."""
    options = options or CompileOptions()
    if options.images is not None:
        return options
    if not isinstance(device, CudaDevice):
        return replace(options, images=("simulator",))
    return replace(options, images=("ptx", "cubin") if find_ptxas() else ("ptx",))
