# SPDX-License-Identifier: Apache-2.0
"""A device that simulates a GPU on the CPU: the kernels of a program, thread by thread, as native code.

Its memory, streams, copies and events are the host's. A launch runs on a worker thread; launches of one loaded
program run one at a time. A kernel that breaks a rule of the GPU's programming model (see
:mod:`gristmill.runtime.simulator_report`) fails its launch with a :class:`SimulationError`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

from gristmill.errors import ClosedError, DeviceError, InputError
from gristmill.runtime.code import link
from gristmill.runtime.cpu import check_cpu
from gristmill.runtime.device_program import DeviceKernel, Extents, Images
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.devices.launching import Kernel, Kernels, LaunchDevice
from gristmill.runtime.devices.stream import Stream
from gristmill.runtime.events import Event
from gristmill.runtime.simulator_report import REPORT_WORDS, describe

#: int64 NAME(params, dims, order, report); see the compiler's ``lowering/simulator.py``.
_Function = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)


class SimulationError(DeviceError):
    """A simulated kernel broke a rule, so that it would not work on a GPU.

    Attributes:
        kernel: its name.
        code: which rule; a code of :mod:`gristmill.runtime.simulator_report`.
        block, thread: where, x fastest; the thread is 0 where it is a matter of the whole block.
    """

    def __init__(self, kernel: str, report: Sequence[int]):
        super().__init__(f"{kernel}: {describe(report)}")
        self.kernel = kernel
        self.code, self.block, self.thread = report[:3]


class SimulatorDevice(HostDevice, LaunchDevice):
    """The simulator.

    Args:
        ordinal: its number.
        order: permutes the threads of every block; a correct kernel gives the same results for all.
        workers, memory_limit: as of :class:`~gristmill.runtime.devices.host.HostDevice`.
    """

    kind = "simulator"

    def __init__(
        self,
        ordinal: int = 0,
        *,
        order: int = 0,
        workers: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        if order < 0:
            raise InputError(f"the order of threads is a number from 0 on, not {order}")
        super().__init__(ordinal, workers=workers, memory_limit=memory_limit)
        self.order = order

    def load_module(
        self, objects: Sequence[bytes], kernels: Sequence[DeviceKernel]
    ) -> SimulatorModule:
        """Link native code for ``kernels``; raises ``ToolchainError`` when it does not link."""
        self.check_open()
        return SimulatorModule(self, objects, kernels)

    def load_kernels(
        self, images: Images, chip: str, kernels: Sequence[DeviceKernel]
    ) -> SimulatorModule:
        """See ``LaunchDevice.load_kernels``."""
        if images.simulator is None:
            raise DeviceError(
                f"the program has {', '.join(images.kinds) or 'no code'} for {chip}, but nothing that the "
                "simulator runs; compile it with --device=simulator"
            )
        image = images.simulator
        check_cpu(image.triple, image.cpu, image.features)
        return self.load_module(image.objects, kernels)


class SimulatorModule(Kernels):
    """Kernels as native code. ``SimulatorDevice.load_module`` makes it."""

    def __init__(
        self, device: SimulatorDevice, objects: Sequence[bytes], kernels: Sequence[DeviceKernel]
    ) -> None:
        self._closed = True  # until there is something to close
        self._code = link(objects, _symbols()) if kernels else None
        self._known = {kernel.name: kernel for kernel in kernels}
        self._kernels: dict[str, SimulatorKernel] = {}
        #: Held while a launch runs: the code keeps track of its threads in globals.
        self.running = threading.Lock()
        super().__init__(device, f"simulated module of {device}", self._unload)
        self.order = device.order

    def _unload(self) -> None:
        if self._code is not None:
            self._code.close()

    def kernel(self, name: str) -> SimulatorKernel:
        """The kernel called ``name``; raises ``DeviceError`` when there is none."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self._what} was closed; load it anew")
            if name not in self._known or self._code is None:
                known = ", ".join(sorted(self._known)[:8]) or "none"
                raise DeviceError(f"there is no kernel {name!r}; the module has: {known}")
            if name not in self._kernels:
                parameters = self._known[name].parameters
                self._kernels[name] = SimulatorKernel(
                    self, name, parameters, self._code.address(name)
                )
            return self._kernels[name]


class SimulatorKernel(Kernel):
    """A simulated kernel."""

    module: SimulatorModule

    def __init__(self, module: SimulatorModule, name: str, parameters: int, address: int) -> None:
        super().__init__(module, name, [(8 * number, 8) for number in range(parameters)])
        self._function = _Function(address)

    def _enqueue(
        self, stream: Stream, submit: Callable[[int], None], waits: Sequence[Event], name: str
    ) -> Event:
        return stream.enqueue(lambda: submit(0), waits=waits, name=name)

    def _submission(
        self,
        grid: Extents,
        block: Extents,
        pointers: ctypes.Array[ctypes.c_void_p],
        shared_bytes: int,
    ) -> Callable[[int], None]:
        dimensions = (ctypes.c_uint32 * 6)(*grid, *block)

        def run(_: int) -> None:
            report = (ctypes.c_int64 * REPORT_WORDS)()
            with self.module.running:
                code = self._function(
                    ctypes.addressof(pointers),
                    ctypes.addressof(dimensions),
                    self.module.order,
                    ctypes.addressof(report),
                )
            if code:
                raise SimulationError(self.name, [code, *report[1:]])

        return run


@lru_cache(maxsize=1)
def _symbols() -> dict[str, int]:
    """Functions of the C library that simulated kernels call beside those of every compiled program."""
    library = ctypes.CDLL(None)
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in ("malloc", "free")
    }
