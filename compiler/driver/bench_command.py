# SPDX-License-Identifier: Apache-2.0
"""Compile a model and show where its time goes, kernel by kernel, beside what this machine can do.

The model runs on random inputs (or --inputs) for about --seconds. A second entry function, compiled for
this, reads the clock between kernels while the whole program runs; the report says by how much that
slows the program down. `bound` is the least time a kernel could take: the larger of moving its bytes
at the bandwidth and doing its flops at the multiply-add rate that are measured in the same run with the
same number of threads. Bytes are those of a kernel's inputs and results, flops the compiler's estimate.
An artifact holds no table of its kernels: it is timed as a whole.

examples:
  gristmill bench model.mlir                          the slowest ten kernels
  gristmill bench model.mlir --threads 1 --top 0      all kernels, on one thread
  gristmill bench model.mlir --inputs in.npz --json times.json --chart roofline.svg
  gristmill bench model.mlir --shape x=8x128          dynamic shapes made concrete
  gristmill bench model.mlir --compare old.gmill      in turns with another program
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.compiler.driver import shapes
from gristmill.compiler.driver.console import write
from gristmill.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from gristmill.compiler.compile import Compilation
    from gristmill.compiler.driver.bench_report import Comparison, Report
    from gristmill.compiler.module import HloModule
    from gristmill.runtime.executable import Executable
    from gristmill.runtime.program import Program

    Array = np.ndarray[Any, Any]

HELP = "time a model's kernels beside what the machine can do"

#: Two programs run in turns for at least this often.
_TURNS_AT_LEAST = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the module or artifact to time")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--input",
        action="append",
        type=Path,
        metavar="X.npy",
        help="one input; give it once for each argument of @main, in order",
    )
    source.add_argument("--inputs", type=Path, metavar="X.npz", help="all inputs in one file")
    shapes.configure(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of random inputs (default: 0)")
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="threads to use (default: all cores)"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="how long to run each way (default: 1)",
    )
    parser.add_argument(
        "--top", type=_count, default=10, metavar="N", help="kernels to show; 0: all (default: 10)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    parser.add_argument(
        "--chart", type=Path, metavar="FILE.svg", help="draw the kernels under the machine's roof"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OTHER",
        help="time another module or artifact in turns, on the same inputs",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return value


def execute(args: argparse.Namespace) -> int:
    """Compile, run, and print the report; returns the exit code."""
    from gristmill.compiler.driver import bench_report, roofline
    from gristmill.runtime.threads import num_threads

    if args.chart is not None and args.chart.suffix != ".svg":
        raise InputError(f"cannot draw {args.chart}: the name must end in .svg")
    threads = args.threads or num_threads()
    with _prepare(args, args.model) as subject:
        inputs = _inputs(args, subject.executable)
        report = _measure(args, subject, inputs, threads)
        if args.compare is not None:
            with _prepare(args, args.compare) as other:
                report.comparison = _compare(args, subject, other, inputs, threads)
    print(bench_report.text(report, args.top))
    if args.json is not None:
        write(args.json, json.dumps(bench_report.as_json(report), indent=1) + "\n")
    if args.chart is not None:
        if not report.kernels:
            raise InputError(f"no chart: {args.model} is an artifact, which holds no kernel table")
        write(args.chart, roofline.svg(report.name, report.kernels, report.machine))
    return 0


@dataclass
class _Subject:
    """A program to time, and how it was made. ``compilation`` is None for an artifact."""

    path: Path
    executable: Executable
    program: Program
    ready_seconds: float
    compilation: Compilation | None = None
    module: HloModule | None = None

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *exception: object) -> None:
        self.executable.close()


def _prepare(args: argparse.Namespace, path: Path) -> _Subject:
    from gristmill.compiler.driver.run_command import is_artifact
    from gristmill.runtime import artifact
    from gristmill.runtime.executable import Executable
    from gristmill.runtime.program import Program

    if not path.is_file():
        raise InputError(f"no such file: {path}")
    start = time.perf_counter()
    if is_artifact(path):
        program = artifact.load(path)
        if not isinstance(program, Program):
            raise InputError(
                f"bench times programs for CPUs, and {path} was compiled for {program.chip}; "
                f"gristmill run {path} --random --device=cuda --repeat=100 times it as a whole"
            )
        executable = Executable(program)
        return _Subject(path, executable, program, time.perf_counter() - start)
    from gristmill.compiler.compile import compile_stages
    from gristmill.compiler.driver.compile_command import import_module

    module = import_module(args, path)
    compilation = compile_stages(module)
    executable = compilation.executable()
    seconds = time.perf_counter() - start
    return _Subject(path, executable, compilation.program(), seconds, compilation, module)


def _inputs(args: argparse.Namespace, executable: Executable) -> list[Array]:
    from gristmill.compiler.driver.run_command import given_inputs, random_inputs, wanted_by

    if args.input or args.inputs is not None:
        return given_inputs(args, wanted_by(executable))
    return random_inputs(executable, args.seed)


def _measure(
    args: argparse.Namespace, subject: _Subject, inputs: Sequence[Array], threads: int
) -> Report:
    from gristmill.compiler.driver.bench_report import Report
    from gristmill.compiler.driver.machine import Machine, OtherLoad
    from gristmill.compiler.driver.profiling import kernel_times

    load = OtherLoad()
    machine = Machine(threads)
    machine.flops()
    program = subject.program
    report = Report(
        name=subject.path.name,
        machine=machine,
        ready_seconds=subject.ready_seconds,
        times=_run(subject.executable, inputs, threads, args.seconds),
        arena_bytes=program.arena_bytes,
        scratch_bytes=program.scratch_bytes,
        constant_bytes=sum(c.nbytes for c in program.constants),
        input_bytes=sum(s.type.nbytes for s in program.inputs),
        output_bytes=sum(s.type.nbytes for s in program.outputs),
        code_bytes=sum(map(len, program.objects)),
        parallel=program.parallel,
    )
    if subject.compilation is not None and subject.module is not None:
        report.kernels, report.slowdown = kernel_times(
            subject.compilation, subject.module, inputs, machine, args.seconds
        )
    report.other_load = load.share()
    return report


def _run(
    executable: Executable, inputs: Sequence[Array], threads: int, seconds: float
) -> list[float]:
    """Seconds of each call; the first, with cold caches, is not counted."""
    from gristmill.compiler.driver.run_command import measure

    measure(partial(executable, threads=threads), inputs, 1)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _TURNS_AT_LEAST or time.perf_counter() < end:
        times += measure(partial(executable, threads=threads), inputs, 1)
    return times


def _compare(
    args: argparse.Namespace,
    subject: _Subject,
    other: _Subject,
    inputs: Sequence[Array],
    threads: int,
) -> Comparison:
    """Time the two in turns; raises ``InputError`` when their signatures differ."""
    from gristmill.compiler.driver.arrays import listed
    from gristmill.compiler.driver.bench_report import Comparison, largest_difference

    for what in ("inputs", "outputs"):
        ours, theirs = (
            [str(s.type) for s in getattr(s.executable, what)] for s in (subject, other)
        )
        if ours != theirs:
            raise InputError(
                f"{subject.path} and {other.path} cannot be compared: their {what} are "
                f"{', '.join(ours) or 'none'} and {', '.join(theirs) or 'none'}"
            )
    results = [listed(s.executable(*inputs, threads=threads)) for s in (subject, other)]
    turns: list[tuple[float, float]] = []
    end = time.perf_counter() + args.seconds
    while len(turns) < _TURNS_AT_LEAST or time.perf_counter() < end:
        # Whoever runs second finds the inputs in the caches: take turns at that too.
        first, second = (subject, other) if len(turns) % 2 == 0 else (other, subject)
        pair = [_block(s.executable, inputs, threads, args.seconds / 40) for s in (first, second)]
        turns.append((pair[0], pair[1]) if first is subject else (pair[1], pair[0]))
    return Comparison(other.path.name, turns, largest_difference(*results))


def _block(executable: Executable, inputs: Sequence[Array], threads: int, seconds: float) -> float:
    return statistics.median(_run_block(executable, inputs, threads, seconds))


def _run_block(
    executable: Executable, inputs: Sequence[Array], threads: int, seconds: float
) -> list[float]:
    from gristmill.compiler.driver.run_command import measure

    times = measure(partial(executable, threads=threads), inputs, 1)
    while sum(times) < seconds:
        times += measure(partial(executable, threads=threads), inputs, 1)
    return times
