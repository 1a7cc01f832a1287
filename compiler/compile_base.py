# SPDX-License-Identifier: Apache-2.0
"""What compilations for all targets share: the stages that they go through, and those up to ``rt``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from mlir import ir

from gristmill.compiler.emitters.blocking import Tuned
from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.compiler.emitters.library import KernelLibrary, emit_kernels
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.passes.pipeline import RunOptions
from gristmill.compiler.program import RtProgram, build_program
from gristmill.compiler.target import Target
from gristmill.errors import InputError
from gristmill.runtime import artifact

#: Called with each stage's name when it starts.
Observer = Callable[[str], None]
#: Does the work of one stage.
StageFunction = Callable[[HloModule, CompileOptions], None]


@dataclass
class StagedCompilation:
    """A program being compiled: its stages so far and their times.

    Attributes:
        STAGES: what :meth:`emit` can give, in order.
        target: what it is compiled for.
        keeps_stages: whether every stage's IR is kept for :meth:`emit`.
        timings: (stage, seconds), in order.
        observer: called with each stage's name, and with each kernel that is tuned, when it starts.
        tuned: what autotuning found; empty without it.
    """

    STAGES: ClassVar[tuple[str, ...]] = ("hlo", "fused", "rt")

    target: Target
    keeps_stages: bool = False
    timings: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    observer: Observer | None = None
    tuned: Tuned = field(default_factory=Tuned)
    _snapshots: dict[str, ir.Operation] = field(default_factory=dict[str, ir.Operation])
    _library: KernelLibrary | None = None
    _rt: RtProgram | None = None

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the time of the ``with`` to that of ``stage``, without what is recorded of others inside it."""
        start, before = time.perf_counter(), self._recorded()
        yield
        spent = time.perf_counter() - start - (self._recorded() - before)
        names = [name for name, _ in self.timings]
        if stage in names:
            number = names.index(stage)
            self.timings[number] = (stage, self.timings[number][1] + spent)
        else:
            self.timings.append((stage, spent))

    def _recorded(self) -> float:
        return sum(seconds for _, seconds in self.timings)

    def emit(self, stage: str) -> str | bytes:
        """The result of ``stage`` as text, or bytes for binary ones.

        Raises ``InputError`` for a stage that is unknown, was not reached, or was not kept.
        """
        if stage not in self.STAGES:
            raise InputError(f"there is no stage {stage!r}; stages: {', '.join(self.STAGES)}")
        if stage in self._snapshots:
            return _print(self._snapshots[stage])
        made = self._emitted(stage)
        if made is None:
            raise InputError(
                f"stage {stage!r} was not reached or not kept (keep_stages=True keeps them)"
            )
        return made

    def reached(self, stage: str) -> bool:
        """Whether :meth:`emit` has something for ``stage``."""
        return stage in self._snapshots or self._emitted(stage) is not None

    def _emitted(self, stage: str) -> str | bytes | None:
        """The result of a stage that is not IR kept as such; None when it was not reached."""
        return None

    @property
    def kernels(self) -> list[KernelSpec]:
        """The program's kernels, once ``rt`` was reached."""
        assert self._library is not None, "kernels were not emitted"
        return [kernel.spec for kernel in self._library.kernels.values()]

    def kernel_of(self, computation: str) -> KernelSpec | None:
        """The kernel that was made of a fused computation, by its symbol."""
        assert self._library is not None, "kernels were not emitted"
        return self._library.specs.get(computation)

    def run(self, stage: str, module: HloModule, options: CompileOptions) -> None:
        """Do the work of one stage; stages run in order."""
        step = self._steps().get(stage)
        if step is not None:  # the others are made when asked for
            step(module, options)

    def _steps(self) -> Mapping[str, StageFunction]:
        """The work of each stage."""
        return {"hlo": self._run_hlo, "fused": self._run_passes, "rt": self._run_program}

    def _keep(self, stage: str, operation: ir.Operation) -> None:
        if self.keeps_stages:
            self._snapshots[stage] = operation.clone()

    def _run_hlo(self, module: HloModule, options: CompileOptions) -> None:
        self._keep("hlo", module.module.operation)

    def _run_passes(self, module: HloModule, options: CompileOptions) -> None:
        pipeline = options.build_pipeline()
        report = pipeline.run(module, options=RunOptions(verify=options.verify, keep_repro=False))
        self.timings += [(f"pass {name}", seconds) for name, seconds in report.timings]
        self._prepare(module)
        self._keep("fused", module.module.operation)

    def _prepare(self, module: HloModule) -> None:
        """What the target's kernels want changed in the fused module."""

    def _tune(self, module: HloModule, options: CompileOptions) -> Tuned:
        """Choose how kernels are cut into blocks, by timing them."""
        raise InputError("autotune is for programs that run on this machine's CPU")

    def _run_program(self, module: HloModule, options: CompileOptions) -> None:
        if options.autotune:
            with self.timed("tune"):
                self.tuned = self._tune(module, options)
        with self.timed("emit kernels"):
            self._library = emit_kernels(module, self.target, self.tuned.blockings)
        with self.timed("build program"):
            self._rt = build_program(module, self._library.specs, self.target)
        self._snapshots["rt"] = self._rt.module.operation


def run_stages(
    compilation: StagedCompilation,
    module: HloModule,
    options: CompileOptions | None,
    stop_after: str | None,
    observer: Observer | None,
) -> None:
    """Run the stages of ``compilation`` up to ``stop_after``; None for all."""
    stages = compilation.STAGES
    if stop_after is not None and stop_after not in stages:
        raise InputError(f"there is no stage {stop_after!r}; stages: {', '.join(stages)}")
    last = stages.index(stop_after) if stop_after is not None else len(stages) - 1
    compilation.observer = observer
    with module.context, ir.Location.unknown():
        for stage in stages[: last + 1]:
            if observer is not None:
                observer(stage)
            compilation.run(stage, module, options or CompileOptions())


def _print(operation: ir.Operation) -> str:
    """IR as text, large constants elided."""
    return str(operation.get_asm(large_elements_limit=64, large_resource_limit=64))


def artifact_bytes(program: artifact.AnyProgram) -> bytes:
    """The artifact of a program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.gmill"
        artifact.save(program, path)
        return path.read_bytes()
