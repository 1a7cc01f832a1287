# SPDX-License-Identifier: Apache-2.0
"""Kernels for the software CUDA driver: launches by name run the simulator's native code of the same kernels."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager

from device_support import software_driver

from gristmill.runtime.code import link
from gristmill.runtime.device_program import DeviceProgram
from gristmill.runtime.devices.simulator import _symbols
from gristmill.runtime.simulator_report import REPORT_WORDS, describe

_LAUNCH_FAILED = 719
_Native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_Simulated = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)


@contextmanager
def native_kernels(program: DeviceProgram) -> Generator[list[str]]:
    """Inside, the driver runs the kernels of ``program``; the list is of the faults that they report."""
    driver = software_driver()
    image = program.images.simulator
    assert image is not None, "compile it with the simulator image"
    faults: list[str] = []
    running = threading.Lock()  # the code keeps its threads in globals
    register = driver._library.gm_sim_register_kernel
    with link(image.objects, _symbols()) as code:
        functions = {k.name: _Simulated(code.address(k.name)) for k in program.kernels}

        def adapter(name: str) -> ctypes._FuncPointer:
            def run(parameters: int, dimensions: int, shared: int) -> int:
                report = (ctypes.c_int64 * REPORT_WORDS)()
                with running:
                    code = functions[name](parameters, dimensions, 0, ctypes.addressof(report))
                if code:
                    faults.append(f"{name}: {describe(list(report))}")
                return _LAUNCH_FAILED if code else 0

            return _Native(run)

        adapters = {name: adapter(name) for name in functions}
        for name, native in adapters.items():
            assert register(name.encode(), native) == 0
        try:
            yield faults
        finally:
            for name in adapters:
                register(name.encode(), None)
