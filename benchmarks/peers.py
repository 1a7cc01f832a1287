# SPDX-License-Identifier: Apache-2.0
"""What ``run.py`` times: each peer compiles a program from a folder and runs it, in a process of its own.

A folder holds ``module.mlir`` (StableHLO, entry ``@main``), ``in.npz`` and ``out.npz`` (arrays 0, 1, … and their types)
and ``work.json``. Peers that need the program's Python source find it by its name in ``cases.py`` or ``models.py``.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]


def write_arrays(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays of any element type; see :func:`read_arrays`."""
    content: dict[str, Array] = {"types": np.array([a.dtype.name for a in arrays])}
    for number, array in enumerate(arrays):
        content[str(number)] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        content[f"shape{number}"] = np.array(array.shape, np.int64)
    np.savez(path, **content)


def read_arrays(path: Path) -> list[Array]:
    """The arrays that :func:`write_arrays` wrote."""
    with np.load(path) as content:
        types = [np.dtype(getattr(ml_dtypes, str(name), str(name))) for name in content["types"]]
        return [
            content[str(number)].view(dtype).reshape(content[f"shape{number}"])
            for number, dtype in enumerate(types)
        ]


class MissingProgram(Exception):
    """A peer has nothing to run for a case; the comparison goes on without it there."""


class Peer(ABC):
    """A way to run programs. Made once in a process; then :meth:`load`, :meth:`compile`, :meth:`call` for each."""

    def __init__(self, threads: int):
        self.threads = threads

    def load(self, folder: Path, case: str) -> None:
        """Read what the program needs."""
        self.folder, self.case = folder, case
        self.inputs = read_arrays(folder / "in.npz")

    @abstractmethod
    def compile(self) -> float | None:
        """Compile afresh; seconds, None for what has no compiler. May raise :class:`MissingProgram`."""

    @abstractmethod
    def call(self) -> Any:
        """Run once to completion; the results stay where they are."""

    def results(self) -> list[Array]:
        """The results of one call on the host."""
        out = self.call()
        return [np.asarray(a) for a in (out if isinstance(out, list | tuple) else [out])]


class Gristmill(Peer):
    """This compiler, or another revision of it: whichever this process imports."""

    def __init__(self, threads: int):
        import gristmill

        super().__init__(threads)
        os.environ["GRISTMILL_CACHE"] = "0"  # the compiler is timed, not its cache
        self.gristmill = gristmill
        gristmill.compile(_WARM_UP)

    def compile(self) -> float:
        start = time.perf_counter()
        executable = self.gristmill.compile(self.folder / "module.mlir")
        seconds = time.perf_counter() - start
        inputs, threads = self.inputs, self.threads
        self._call = lambda: executable(*inputs, threads=threads)
        return seconds

    def call(self) -> Any:
        return self._call()


class Xla(Peer):
    """XLA:CPU through JAX."""

    def __init__(self, threads: int):
        import jax

        super().__init__(threads)
        self.jax = jax
        jax.jit(lambda x: x * 2)(1.0)

    def compile(self) -> float:
        from models import program

        jax = self.jax
        function = program(self.case).function
        jax.clear_caches()
        on_device = [jax.device_put(array) for array in self.inputs]
        jitted = jax.jit(function, keep_unused=True)
        lowered = jitted.lower(*on_device)
        start = time.perf_counter()
        lowered.compile()
        seconds = time.perf_counter() - start
        # Called through jit, whose dispatch is faster than that of the compiled object.
        self._call = lambda: jax.block_until_ready(jitted(*on_device))
        return seconds

    def call(self) -> Any:
        return self._call()


class Iree(Peer):
    """IREE's llvm-cpu backend on its local-task device, at its highest optimisation level."""

    FLAGS = (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-input-type=stablehlo",
        "--iree-opt-level=O3",
    )

    def __init__(self, threads: int):
        import iree.runtime as runtime
        from iree.compiler import api

        super().__init__(threads)
        runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        self.runtime, self.api = runtime, api
        self.device = runtime.get_device("local-task")
        self.instance = runtime.VmInstance()

    def compile(self) -> float:
        start = time.perf_counter()
        binary = self._build()
        seconds = time.perf_counter() - start
        runtime = self.runtime
        module = runtime.VmModule.copy_buffer(self.instance, binary)
        hal = runtime.create_hal_module(self.instance, self.device)
        context = runtime.VmContext(self.instance, [hal, module])
        function = module.lookup_function("main")
        arguments = runtime.VmVariantList(len(self.inputs))
        for array in self.inputs:
            on_device = runtime.asdevicearray(self.device, array)
            arguments.push_ref(on_device._buffer_view)

        def call() -> Any:
            results = runtime.VmVariantList(1)
            context.invoke(function, arguments, results)
            return results

        self._call = call
        return seconds

    def _build(self) -> bytes:
        api = self.api
        session = api.Session()
        session.set_flags(*self.FLAGS)
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        source = api.Source.open_file(session, str(self.folder / "module.mlir"))
        output = api.Output.open_membuffer()
        try:
            if not (invocation.parse_source(source) and invocation.execute()):
                raise RuntimeError("IREE cannot compile it")
            invocation.output_vm_bytecode(output)
            return bytes(output.map_memory())
        finally:
            for item in (output, invocation, source, session):
                item.close()

    def call(self) -> Any:
        return self._call()

    def results(self) -> list[Array]:
        from iree.runtime import DeviceArray, HalBufferView

        out = self.call()
        views = [out.get_as_object(number, HalBufferView) for number in range(len(out))]
        return [
            np.asarray(DeviceArray(self.device, view, implicit_host_transfer=True))
            for view in views
        ]


class Numpy(Peer):
    """The program written in numpy, where there is a fair way to."""

    def compile(self) -> None:
        from models import program

        reference = program(self.case).reference
        if reference is None:
            raise MissingProgram
        inputs = self.inputs
        self._call = lambda: reference(*inputs)

    def call(self) -> Any:
        return self._call()


class Limits:
    """Not a peer: the least time for the program's work on this machine, measured in the peers' turns."""

    def __init__(self, threads: int):
        from gristmill.compiler.driver.machine import Machine

        self.machine = Machine(threads)

    def load(self, folder: Path, case: str) -> None:
        self.work = json.loads((folder / "work.json").read_text())

    def bound(self) -> dict[str, float]:
        """Seconds of the traffic and of the flops, the best so far."""
        work = self.work
        self.machine.remeasure()
        return {
            "memory": self.machine.stream_seconds(work["read"], work["written"]),
            "flops": work["flops"] / self.machine.flops(work["double"]),
        }


PEERS: dict[str, type[Peer]] = {"gristmill": Gristmill, "xla": Xla, "iree": Iree, "numpy": Numpy}

_WARM_UP = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
