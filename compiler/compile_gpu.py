# SPDX-License-Identifier: Apache-2.0
"""Compilation for a GPU: from ``rt`` and kernels to a device program.

    rt ─┬─gpu_module→ gpu ─lower_to_nvvm→ nvvm ─to_ptx→ ptx ─ptxas→ cubin ─┐
        │              └─to_simulator_objects→ simulator ───────────────────┤
        └─build_device_program──────────────────────────────────────────────┴→ DeviceProgram

Which of the three forms of the kernels are made is ``CompileOptions.images``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.ptx import to_ptx
from gristmill.compiler.codegen.ptxas import KernelResources, assemble, find_ptxas
from gristmill.compiler.codegen.simulator import to_simulator_objects
from gristmill.compiler.compile_base import (
    Observer,
    StagedCompilation,
    StageFunction,
    artifact_bytes,
    run_stages,
)
from gristmill.compiler.emitters.library import gpu_module
from gristmill.compiler.lowering.nvvm import lower_to_nvvm
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.program.device import build_device_program
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.device_executable import DeviceExecutable
from gristmill.runtime.device_program import DeviceProgram, Images, SimulatorImage
from gristmill.runtime.devices.launching import LaunchDevice


@dataclass
class GpuCompilation(StagedCompilation):
    """A program being compiled for a GPU.

    Attributes:
        resources: what each kernel takes of a multiprocessor, once ``cubin`` was reached.
    """

    STAGES: ClassVar[tuple[str, ...]] = (
        *("hlo", "fused", "rt", "gpu", "nvvm", "ptx", "cubin", "simulator", "artifact"),
    )

    resources: list[KernelResources] = field(default_factory=list[KernelResources])
    stop_after: str | None = None
    _module: ir.Module | None = None
    _nvvm: ir.Module | None = None
    _ptx: str | None = None
    _cubin: bytes | None = None
    _simulator: SimulatorImage | None = None

    def program(self) -> DeviceProgram:
        """The compiled program as plain data."""
        assert self._rt is not None, "the program was not built"
        specs = {spec.name: spec for spec in self.kernels}
        images = Images(self._ptx, self._cubin, self._simulator)
        return build_device_program(self._rt, specs, images)

    def executable(self, device: LaunchDevice, *, owns_device: bool = False) -> DeviceExecutable:
        """Load the program on ``device``."""
        return DeviceExecutable(self.program(), device, owns_device=owns_device)

    def _emitted(self, stage: str) -> str | bytes | None:
        if stage == "artifact" and self._module is not None:
            return artifact_bytes(self.program())
        if stage == "simulator" and self._simulator is not None:
            return self._simulator.objects[0]
        return {"ptx": self._ptx, "cubin": self._cubin}.get(stage)

    def _steps(self) -> Mapping[str, StageFunction]:
        return {
            **super()._steps(),
            "gpu": self._run_gpu,
            "nvvm": self._run_nvvm,
            "ptx": self._run_ptx,
            "cubin": self._run_cubin,
            "simulator": self._run_simulator,
        }

    def _wants(self, image: str, options: CompileOptions) -> bool:
        """Whether a form of the kernels is to be made."""
        if self.stop_after == image:
            return True
        if options.images is not None:
            return image in options.images
        return image == "ptx" or (image == "cubin" and find_ptxas() is not None)

    def _wants_ptx(self, options: CompileOptions) -> bool:
        wanted = any(self._wants(image, options) for image in ("ptx", "cubin"))
        return wanted or self.stop_after == "nvvm"

    def _run_gpu(self, module: HloModule, options: CompileOptions) -> None:
        assert self._library is not None, "rt comes before gpu"
        self._module = gpu_module(self._library)
        self._snapshots["gpu"] = self._module.operation

    def _run_nvvm(self, module: HloModule, options: CompileOptions) -> None:
        if not self._wants_ptx(options):
            return
        assert self._module is not None, "gpu comes before nvvm"
        with self.timed("lower kernels"):
            copy = ir.Module.parse(str(self._module), self._module.context)
            lower_to_nvvm(copy)
        self._nvvm = copy
        self._snapshots["nvvm"] = copy.operation

    def _run_ptx(self, module: HloModule, options: CompileOptions) -> None:
        if self._nvvm is not None:
            assert isinstance(self.target, GpuTarget)
            with self.timed("generate PTX"):
                self._ptx = to_ptx(self._nvvm, self.target)

    def _run_cubin(self, module: HloModule, options: CompileOptions) -> None:
        if self._wants("cubin", options) and self.kernels:
            assert self._ptx is not None, "ptx comes before cubin"
            with self.timed("ptxas"):
                self._cubin, self.resources = assemble(self._ptx, self.target.cpu)

    def _run_simulator(self, module: HloModule, options: CompileOptions) -> None:
        if not self._wants("simulator", options):
            return
        assert self._module is not None, "gpu comes before simulator"
        here = host_target()
        with self.timed("generate simulator code"):
            objects = to_simulator_objects(self._module, here)
        self._simulator = SimulatorImage(tuple(objects), here.triple, here.cpu, here.features)


def compile_gpu_stages(
    module: HloModule,
    target: GpuTarget,
    *,
    options: CompileOptions | None = None,
    stop_after: str | None = None,
    observer: Observer | None = None,
    keep_stages: bool = False,
) -> GpuCompilation:
    """As :func:`~gristmill.compiler.compile.compile_stages`, for a GPU; see ``GpuCompilation.STAGES``."""
    compilation = GpuCompilation(target, keeps_stages=keep_stages, stop_after=stop_after)
    run_stages(compilation, module, options, stop_after, observer)
    return compilation
