# SPDX-License-Identifier: Apache-2.0
"""Compile a model: save an artifact, or show what any stage of the pipeline makes of it.

stages, in the order a program passes through them:
  hlo       the module as imported: StableHLO's operations, regions outlined into functions
  fused     after the passes: what will become one kernel is one fusion
  rt        what runs in which order, and where each buffer lies
  kernels   each kernel as MLIR loops
  llvm      the kernels in the LLVM dialect
  ll        LLVM IR, optimised
  asm       assembly
  obj       a relocatable object file
  artifact  everything needed to run, in one file

stages of a GPU (--target=cuda), after rt:
  gpu       the kernels as a gpu.module
  nvvm      the kernels in the NVVM dialect
  ptx       PTX
  cubin     machine code, by ptxas
  simulator the kernels as CPU code that simulates them
  artifact  as above

examples:
  gristmill compile model.mlir -o model.gmill    an artifact for `gristmill run` and gristmill.load
  gristmill compile model.mlir --emit=fused      print the fused module
  gristmill compile model.mlir --emit=asm -o model.s
  gristmill compile model.mlir -v                time each stage
  gristmill compile model.mlir --dump-dir ir/    every stage in a file of its own
  gristmill compile model.mlir --target=cuda:sm_90 -o model.gmill    for a GPU; -v shows registers and spills
  gristmill compile model.mlir --target=cuda --device=simulator -o model.gmill    for the simulator too
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.compiler.driver import custom_calls, shapes
from gristmill.compiler.driver.console import Progress, seconds, table, write
from gristmill.errors import InputError

if TYPE_CHECKING:
    from gristmill.compiler.compile_base import StagedCompilation
    from gristmill.compiler.module import HloModule
    from gristmill.compiler.options import CompileOptions

HELP = "compile a model, or show it at any stage"

#: Stage names and the file suffix of what they emit.
STAGES = {
    "hlo": ".hlo.mlir",
    "fused": ".fused.mlir",
    "rt": ".rt.mlir",
    "kernels": ".kernels.mlir",
    "llvm": ".llvm.mlir",
    "ll": ".ll",
    "asm": ".s",
    "obj": ".o",
    "gpu": ".gpu.mlir",
    "nvvm": ".nvvm.mlir",
    "ptx": ".ptx",
    "cubin": ".cubin",
    "simulator": ".sim.o",
    "artifact": ".gmill",
}
_BINARY = ("obj", "cubin", "simulator", "artifact")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the module to compile")
    parser.add_argument(
        "--emit",
        choices=tuple(STAGES),
        metavar="STAGE",
        help="stop after this stage and print its result: " + ", ".join(STAGES),
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write here; - is stdout")
    shapes.configure(parser)
    custom_calls.configure(parser)
    parser.add_argument("--dump-dir", type=Path, metavar="DIR", help="write every stage into DIR")
    parser.add_argument(
        "--target", default="cpu", metavar="NAME", help="cpu (the default), cuda or cuda:CHIP"
    )
    parser.add_argument(
        "--device",
        choices=("simulator", "cuda"),
        help="for a GPU, make what this device runs (both when the target is given too)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show the time of each stage, and for a GPU what the kernels take of it",
    )


def execute(args: argparse.Namespace) -> int:
    """Compile and write what was asked for; returns the exit code."""
    stage = args.emit or "artifact"
    if not args.model.is_file():
        raise InputError(f"no such file: {args.model}")
    custom_calls.register(args.custom_calls)
    if stage in _BINARY and args.output is None and args.emit is not None and sys.stdout.isatty():
        raise InputError(f"{stage} is binary; give -o FILE")
    compilation = _compile(args, stage)
    if args.dump_dir is not None:
        dump(compilation, args.dump_dir, args.model.name.partition(".")[0], stage)
    if args.emit is not None or args.output is not None:
        emit(compilation.emit(stage), args.output)
    if args.verbose:
        print(timing_table(compilation.timings), file=sys.stderr)
        print(_kernel_table(compilation), end="", file=sys.stderr)
    return 0


def _compile(args: argparse.Namespace, stage: str) -> StagedCompilation:
    from gristmill.compiler.compile import compile_stages
    from gristmill.compiler.compile_gpu import compile_gpu_stages
    from gristmill.compiler.target import GpuTarget, gpu_target, parse_target

    target = parse_target(args.target)
    if target is None and args.device is not None:
        target = gpu_target()
    progress = Progress(len(STAGES))
    order = list(STAGES)

    def observe(name: str) -> None:
        progress.update(order.index(name) if name in order else 0, name)

    keep = args.emit is not None or args.dump_dir is not None
    try:
        start = time.perf_counter()
        module = import_module(args, args.model)
        imported = time.perf_counter() - start
        if isinstance(target, GpuTarget):
            compilation = compile_gpu_stages(
                module,
                target,
                options=_gpu_options(args),
                stop_after=stage,
                observer=observe,
                keep_stages=keep,
            )
        else:
            compilation = compile_stages(
                module, stop_after=stage, observer=observe, keep_stages=keep
            )
    finally:
        progress.close()
    compilation.timings.insert(0, ("import", imported))
    return compilation


def _gpu_options(args: argparse.Namespace) -> CompileOptions:
    """What ``--device`` and ``--target`` ask for of the kernels' forms."""
    from gristmill.compiler.codegen.ptxas import find_ptxas
    from gristmill.compiler.options import CompileOptions

    images = ("ptx", "cubin") if find_ptxas() is not None else ("ptx",)
    if args.device == "simulator":
        images = ("simulator",) if args.target == "cpu" else (*images, "simulator")
    return CompileOptions(images=images)


def import_module(args: argparse.Namespace, path: Path) -> HloModule:
    """The module at ``path``; one with dynamic shapes is made concrete by ``--shape``."""
    import numpy as np

    from gristmill.compiler.compile import import_program
    from gristmill.compiler.module import HloModule

    program = import_program(path)
    if isinstance(program, HloModule):
        return program
    values = shapes.values(args, program.inputs)
    arrays = {
        index: np.asarray(values[index], item.element.dtype)
        for index, item in enumerate(program.inputs)
        if index in values
    }
    return program.specialise(shapes.shapes(args, program.inputs), arrays)


def dump(compilation: StagedCompilation, folder: Path, stem: str, last: str) -> None:
    """Write every stage up to ``last`` to a file of its own, numbered in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(compilation.STAGES):
        if compilation.reached(stage):
            write(folder / f"{stem}.{number}{STAGES[stage]}", compilation.emit(stage))
        if stage == last:
            break


def emit(content: str | bytes, output: Path | None) -> None:
    """Write a stage's result to ``output``, or to stdout for ``None`` and ``-``."""
    if output is not None and str(output) != "-":
        write(output, content)
    elif isinstance(content, bytes):
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content if content.endswith("\n") else content + "\n")


def timing_table(timings: list[tuple[str, float]]) -> str:
    """Stages with their time and share, and the total."""
    total = sum(value for _, value in timings)
    rows = [(name, seconds(value), f"{value / total:.0%}") for name, value in timings if total]
    return table(("stage", "time", "share"), [*rows, ("total", seconds(total), "100%")])


def _kernel_table(compilation: StagedCompilation) -> str:
    """What the kernels of a GPU take of it, as ptxas says; nothing for others."""
    from gristmill.compiler.compile_gpu import GpuCompilation

    if not isinstance(compilation, GpuCompilation) or not compilation.resources:
        return ""
    rows = [
        (r.name, str(r.registers), str(r.shared_bytes), str(r.stack_bytes), str(r.spill_bytes))
        for r in compilation.resources
    ]
    titles = ("kernel", "registers", "shared bytes", "stack bytes", "spill bytes")
    return "\n" + table(titles, rows) + "\n"
