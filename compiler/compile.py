# SPDX-License-Identifier: Apache-2.0
"""The whole compiler in one place: from a source to an executable, stage by stage.

    source ─import_source→ hlo ─passes→ fused ─┬─emit_kernels→ kernels ─┐
                                               └─build_program→ rt ─────┴─lower→ llvm ─codegen→ obj → Executable

:func:`compile_stages` does it, stops where asked and keeps every stage's IR; :func:`gristmill.compiler.cache.compile`
is what users call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from mlir import ir

from gristmill.compiler import frontends
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.native import compile_many, to_assembly, to_llvm_ir, to_object
from gristmill.compiler.compile_base import (
    Observer,
    StagedCompilation,
    StageFunction,
    artifact_bytes,
    run_stages,
)
from gristmill.compiler.emitters.blocking import Blocking, Tuned
from gristmill.compiler.emitters.library import partition
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.module import HloModule, symbol_name
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.passes.find_histograms import FindHistogramsPass
from gristmill.compiler.passes.fuse_attention import FuseAttentionPass
from gristmill.compiler.program import Profile, lower_entry
from gristmill.compiler.target import GpuTarget, Target
from gristmill.errors import CacheError, InputError
from gristmill.runtime import knobs
from gristmill.runtime.executable import Executable
from gristmill.runtime.program import Program

if TYPE_CHECKING:
    from gristmill.compiler.frontends.polymorphic import PolymorphicModule

#: What :meth:`Compilation.emit` can give, in order.
STAGES = ("hlo", "fused", "rt", "kernels", "llvm", "ll", "asm", "obj", "artifact")


@dataclass
class Compilation(StagedCompilation):
    """A program being compiled for a CPU."""

    STAGES: ClassVar[tuple[str, ...]] = STAGES

    #: Modules of kernels that are still to be lowered, and modules in the LLVM dialect, the entry function first.
    _kernels: list[ir.Module] = field(default_factory=list[ir.Module])
    _lowered: list[ir.Module] = field(default_factory=list[ir.Module])
    _objects: list[bytes] = field(default_factory=list[bytes])

    def _emitted(self, stage: str) -> str | bytes | None:
        if stage in ("ll", "asm") and self._lowered:
            emit = to_llvm_ir if stage == "ll" else to_assembly
            return "\n".join(emit(module, self.target) for module in self._lower())
        if stage == "obj" and len(self._objects) == 1:
            return self._objects[0]
        if stage == "artifact" and self._objects:
            return artifact_bytes(self.program())
        return None

    def program(self) -> Program:
        """The compiled program as plain data, once ``obj`` was reached."""
        rt = self._rt
        assert rt is not None, "the program was not built"
        assert self._objects, "code was not generated"
        return Program(
            name=rt.name,
            inputs=rt.inputs,
            outputs=rt.outputs,
            objects=self._objects,
            constants=[constant.data for constant in rt.constants],
            custom_calls=[spec.external.call for spec in rt.custom_calls if spec.external],
            arena_bytes=rt.arena_bytes,
            scratch_bytes=rt.scratch_bytes,
            parallel=rt.parallel,
            target_triple=self.target.triple,
            target_cpu=self.target.cpu,
            target_features=self.target.features,
        )

    def executable(self) -> Executable:
        """Load the program into this process."""
        return Executable(self.program())

    def profiled(self, threads: int) -> tuple[Program, Profile]:
        """The program with an entry function that times each kernel, for at most ``threads`` threads.

        The kernels are those of :meth:`program`; the times are in one more output. Not for a compilation
        that keeps its stages.
        """
        assert self._rt is not None, "the program was not built"
        assert not self.keeps_stages, "the entry function has no object of its own"
        program = self.program()
        names = tuple(spec.name for spec in self.kernels)
        profile = Profile(names, threads, len(program.outputs))
        with self._rt.module.context, ir.Location.unknown():
            entry = to_object(
                lower_entry(self._rt, {spec.name: spec for spec in self.kernels}, profile),
                self.target,
            )
        program.outputs = (*program.outputs, profile.signature)
        program.objects = [entry, *self._objects[1:]]
        return program, profile

    def _prepare(self, module: HloModule) -> None:
        with self.timed("pass fuse-attention"):
            FuseAttentionPass().run(module)
        with self.timed("pass find-histograms"):
            FindHistogramsPass().run(module)
        if not module.constants:
            return
        with self.timed("pack constants"):
            from gristmill.compiler.emitters.prepack import pack_constants  # loads the dot emitter

            pack_constants(module, self.target)

    def _steps(self) -> Mapping[str, StageFunction]:
        return {
            **super()._steps(),
            "kernels": self._run_kernels,
            "llvm": self._run_lowering,
            "obj": self._run_codegen,
        }

    def _tune(self, module: HloModule, options: CompileOptions) -> Tuned:
        from gristmill.compiler.cache import cache_of, fingerprint
        from gristmill.compiler.tuning import tune

        if self.target != host_target():
            raise InputError("autotune times kernels, so it takes the target of this machine only")
        try:
            records = cache_of(options)
        except CacheError:  # gristmill.compile has said so
            records = None

        def build(program: HloModule, blockings: Mapping[str, Blocking]) -> Executable:
            trial = Compilation(self.target, tuned=Tuned(blockings))
            for stage in STAGES[STAGES.index("rt") :]:
                trial.run(stage, program, replace(options, autotune=False))
            return trial.executable()

        return tune(
            module,
            self.target,
            build,
            budget=knobs.AUTOTUNE_SECONDS.get(),
            cache=records,
            compiler=fingerprint().decode(),
            observer=self.observer,
        )

    def _run_kernels(self, module: HloModule, options: CompileOptions) -> None:
        assert self._library is not None, "rt comes before kernels"
        assert self._rt is not None, "rt comes before kernels"
        with self.timed("lower entry"):
            entry = lower_entry(self._rt, self._library.specs)
        self._kernels, self._lowered = partition(self._library), [entry]
        if self.keeps_stages:
            self._snapshots["kernels"] = _merge(self._kernels).operation

    def _run_lowering(self, module: HloModule, options: CompileOptions) -> None:
        if self.keeps_stages:  # one module, so that ll, asm and obj are one file each
            entry, *kernels = self._lower()
            merged = _merge([*kernels, entry])
            self._lowered = [merged]
            self._snapshots["llvm"] = merged.operation

    def _run_codegen(self, module: HloModule, options: CompileOptions) -> None:
        with self.timed("generate code"):
            self._objects = compile_many(self._lower(), self.target, options.jobs)

    def _lower(self) -> Iterator[ir.Module]:
        """The program's modules in the LLVM dialect; kernels are lowered when asked for, while others' code is made."""
        yield from self._lowered
        while self._kernels:
            with self.timed("lower kernels"):
                lower_to_llvm_dialect(self._kernels[0], self.target)
            self._lowered.append(self._kernels.pop(0))
            yield self._lowered[-1]


def import_source(source: Any) -> HloModule:
    """Read a source of static shapes into the ``hlo`` dialect.

    ``source`` is a path (``str`` naming a file, or ``Path``), StableHLO or HLO text, bytes (bytecode, a portable
    artifact), a JAX ``Lowered`` or ``Exported``, or an :class:`HloModule`, which is returned as it is. Raises
    ``UnsupportedError`` for a program with dynamic shapes.
    """
    return frontends.require_static(import_program(source))


def import_program(source: Any) -> HloModule | PolymorphicModule:
    """As :func:`import_source`; a program with dynamic shapes gives a :class:`PolymorphicModule`."""
    if isinstance(source, HloModule):
        return source
    content = frontends.content_of(source)
    if content is not None:
        return frontends.import_bytes(*content)
    if hasattr(source, "compiler_ir"):
        return frontends.import_lowered(source)
    raise InputError(
        f"cannot compile a {type(source).__name__}; give a path, text, bytes, a jax Lowered or Exported, or an "
        "HloModule"
    )


def compile_stages(
    source: Any,
    target: Target | None = None,
    *,
    options: CompileOptions | None = None,
    stop_after: str | None = None,
    observer: Observer | None = None,
    keep_stages: bool = False,
) -> Compilation:
    """Compile ``source`` up to ``stop_after``.

    Args:
        source: a program of static shapes, as for :func:`import_source`; an :class:`HloModule` is consumed.
        target: the CPU; default: this machine. :func:`~gristmill.compiler.compile_gpu.compile_gpu_stages` is for GPUs.
        options: see :class:`CompileOptions`.
        stop_after: one of :data:`STAGES`; default: everything.
        observer: called with each stage's name when it starts.
        keep_stages: keep every stage's IR, for :meth:`Compilation.emit`.
    """
    if isinstance(target, GpuTarget):
        raise InputError(
            f"compile_stages compiles for CPUs, not for {target.cpu}; compile_gpu_stages does"
        )
    compilation = Compilation(target or host_target(), keeps_stages=keep_stages)
    run_stages(compilation, import_source(source), options, stop_after, observer)
    return compilation


def _merge(modules: Sequence[ir.Module]) -> ir.Module:
    """One module with copies of all functions; declarations give way to definitions."""
    merged = ir.Module.create()
    operations = [view.operation for module in modules for view in module.body.operations]
    defined = {symbol_name(op) for op in operations if _is_definition(op)}
    declared: set[str] = set()
    for op in operations:
        if "sym_name" in op.attributes and not _is_definition(op):
            name = symbol_name(op)
            if name in defined or name in declared:
                continue
            declared.add(name)
        merged.body.append(op.clone())
    return merged


def _is_definition(op: ir.Operation) -> bool:
    return "sym_name" in op.attributes and len(op.regions) > 0 and len(op.regions[0].blocks) > 0
