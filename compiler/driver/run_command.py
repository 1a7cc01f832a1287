# SPDX-License-Identifier: Apache-2.0
"""Compile a model and run it once (or load an artifact and run it).

Inputs come from .npy files in the order of @main's arguments, from one .npz file (by the arguments'
names, or arg0, arg1, ... or arr_0, arr_1, ...), or are random: floats from a standard normal
distribution, integers from 0 to 9 (or their largest value), booleans fair coins. bfloat16 and the
narrow types are stored as unsigned integers of their size. Without --output the results are printed.
--expect finds the wanted results by their names, or as out0, out1, ... or arr_0, arr_1, ....

examples:
  gristmill run model.mlir --random --seed 7
  gristmill run model.mlir --random --shape x=8x128    dynamic shapes made concrete
  gristmill run model.mlir --input x.npy --input y.npy --print
  gristmill run model.mlir --inputs in.npz --output out.npz
  gristmill run model.gmill --inputs in.npz --repeat 200 --threads 1
  gristmill run model.mlir --inputs in.npz --expect out.npz --tolerance 1e-5
  gristmill run model.mlir --inputs in.npz --device=simulator    a GPU's kernels, simulated and checked
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.compiler.driver import custom_calls, shapes
from gristmill.compiler.driver.console import Progress, seconds
from gristmill.errors import GristmillError, InputError

if TYPE_CHECKING:
    import numpy as np

    from gristmill.compiler.polymorphic import AnyExecutable, PolymorphicExecutable

    Array = np.ndarray[Any, Any]

HELP = "compile a model and run it"


#: The steps of a compilation, for its progress; tuning is a part of ``rt``.
_STEPS = ("hlo", "fused", "rt", "kernels", "llvm", "ll", "asm", "obj", "artifact")


class MismatchError(GristmillError):
    """The results are not what ``--expect`` says."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the module or artifact to run")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--input",
        action="append",
        type=Path,
        metavar="X.npy",
        help="one input; give it once for each argument of @main, in order",
    )
    source.add_argument("--inputs", type=Path, metavar="X.npz", help="all inputs in one file")
    source.add_argument("--random", action="store_true", help="make random inputs")
    shapes.configure(parser)
    custom_calls.configure(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of --random (default: 0)")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="save the results as .npz, or a single one as .npy",
    )
    parser.add_argument("--print", action="store_true", help="print the results even when saved")
    parser.add_argument(
        "--expect", type=Path, metavar="X.npz", help="compare the results with these"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        help="largest difference --expect accepts, absolute or relative (default: 1e-4)",
    )
    parser.add_argument(
        "--repeat", type=int, default=0, metavar="N", help="run N more times and show the timing"
    )
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="time matrix products and convolutions to choose their blocking; results are kept in the cache",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="compile, even if the cache on disk has the program"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="run on simulator, cuda or cuda:N (default: the CPU)"
    )
    parser.add_argument(
        "--target", metavar="NAME", help="compile for cpu, cuda or cuda:CHIP (default: --device's)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads to use (default: all cores)"
    )


def execute(args: argparse.Namespace) -> int:
    """Compile or load, run, then print, save and compare; returns the exit code."""
    import gristmill

    if not args.model.is_file():
        raise InputError(f"no such file: {args.model}")
    custom_calls.register(args.custom_calls)
    start = time.perf_counter()
    found = is_artifact(args.model)
    program = gristmill.load(args.model, device=args.device) if found else _compile(args)
    with program:
        return _run(args, program, start)


def _run(
    args: argparse.Namespace, program: AnyExecutable | PolymorphicExecutable, start: float
) -> int:
    from gristmill.compiler.driver.arrays import listed, names, save

    executable, inputs = _bind(args, program)
    call = _caller(executable, args.threads)
    ready = time.perf_counter() - start
    outputs = listed(call(*inputs))
    if args.output is not None:
        save(args.output, names(executable.outputs), outputs)
    if args.print or (args.output is None and args.expect is None and not args.repeat):
        _show(executable, outputs)
    if args.expect is not None:
        _compare(executable, outputs, args.expect, args.tolerance)
    if args.repeat:
        times = measure(call, inputs, args.repeat)
        print(
            f"ready in {seconds(ready)}; {args.repeat} runs: min {seconds(min(times))}, "
            f"median {seconds(statistics.median(times))}"
        )
    return 0


def _compile(args: argparse.Namespace) -> AnyExecutable | PolymorphicExecutable:
    import gristmill

    options = gristmill.CompileOptions(
        cache=False if args.no_cache else None, autotune=args.autotune
    )
    progress = Progress(len(_STEPS))

    def observe(step: str) -> None:
        progress.update(_STEPS.index(step if step in _STEPS else "rt"), step)

    try:
        return gristmill.compile(
            args.model, target=args.target, device=args.device, options=options, observer=observe
        )
    finally:
        progress.close()


def is_artifact(path: Path) -> bool:
    """Whether the file is a zip archive, as artifacts are."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _bind(
    args: argparse.Namespace, program: AnyExecutable | PolymorphicExecutable
) -> tuple[AnyExecutable, list[Array]]:
    """What runs, and its inputs; a program with dynamic shapes is compiled for those of its inputs."""
    from gristmill.compiler.polymorphic import PolymorphicExecutable

    if not isinstance(program, PolymorphicExecutable):
        if args.random:
            return program, random_inputs(program, args.seed)
        return program, given_inputs(args, wanted_by(program))
    if args.random:
        known = shapes.shapes(args, program.inputs)
        executable = program.specialise(*known, values=shapes.values(args, program.inputs))
        return executable, random_inputs(executable, args.seed)
    wanted = [Wanted(item.name, item.element.dtype, str(item)) for item in program.inputs]
    inputs = given_inputs(args, wanted)
    return program.specialised_for(*inputs), inputs


class Wanted(NamedTuple):
    """An input of the program: name, dtype, and its type as text."""

    name: str
    dtype: np.dtype[Any]
    text: str


def wanted_by(executable: AnyExecutable) -> list[Wanted]:
    """The inputs of an executable."""
    return [Wanted(i.name, i.type.element.dtype, str(i.type)) for i in executable.inputs]


def given_inputs(args: argparse.Namespace, wanted: list[Wanted]) -> list[Array]:
    """The inputs from the files that the command line names."""
    from gristmill.compiler.driver.arrays import as_dtype, distinct, read_array, read_arrays, select

    if not wanted:
        return []
    if args.input:
        arrays = [read_array(path) for path in args.input]
    elif args.inputs is not None:
        names = distinct([item.name for item in wanted])
        arrays = select(read_arrays(args.inputs), names, "arg", args.inputs)
    else:
        needed = ", ".join(f"{item.name}: {item.text}" for item in wanted[:8])
        more = f", ... ({len(wanted)} in all)" if len(wanted) > 8 else ""
        raise InputError(
            f"the model needs inputs ({needed}{more}); give --input, --inputs or --random"
        )
    if len(arrays) != len(wanted):
        raise InputError(f"the model takes {len(wanted)} inputs, {len(arrays)} given")
    return [as_dtype(array, item.dtype) for array, item in zip(arrays, wanted, strict=True)]


def random_inputs(executable: AnyExecutable, seed: int) -> list[Array]:
    """Random arrays for every input, the same for the same seed."""
    import numpy as np

    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for item in executable.inputs:
        element, shape = item.type.element, item.type.shape
        if element.kind in ("float", "complex"):
            values: Array = np.asarray(generator.standard_normal(shape))
            if element.kind == "complex":
                values = values + 1j * generator.standard_normal(shape)
        else:
            largest = (1 << (element.bits - (element.kind == "int"))) - 1
            values = np.asarray(generator.integers(0, min(9, largest), shape, endpoint=True))
        arrays.append(values.astype(element.dtype))
    return arrays


def _show(executable: AnyExecutable, outputs: Sequence[Array]) -> None:
    import numpy as np

    from gristmill.compiler.driver.arrays import names

    with np.printoptions(threshold=40, edgeitems=3, linewidth=100):
        for name, item, output in zip(
            names(executable.outputs), executable.outputs, outputs, strict=True
        ):
            print(f"{name}: {item.type}\n{output}")


def _compare(
    executable: AnyExecutable, outputs: Sequence[Array], path: Path, tolerance: float
) -> None:
    from gristmill.compiler.driver.arrays import as_dtype, names, read_arrays, select
    from gristmill.compiler.driver.checks import compare

    wanted = select(read_arrays(path), names(executable.outputs), "out", path)
    problems: list[str] = []
    for item, output, want in zip(executable.outputs, outputs, wanted, strict=True):
        text = compare(output, as_dtype(want, output.dtype), "almost_eq", tolerance)
        if text is not None:
            problems.append(f"{item.name}: {text}")
    if problems:
        raise MismatchError(f"results differ from {path}: " + "; ".join(problems))
    print(f"{len(outputs)} results agree with {path} within {tolerance:g}", file=sys.stdout)


def _caller(executable: AnyExecutable, threads: int | None) -> Callable[..., Any]:
    """What runs the executable on so many threads."""
    from gristmill.runtime.executable import Executable

    if isinstance(executable, Executable):
        return partial(executable, threads=threads)
    if threads is not None:
        raise InputError(f"--threads is for the CPU; {executable.device} has its own")
    return executable


def measure(call: Callable[..., Any], inputs: Sequence[Array], count: int) -> list[float]:
    """Seconds of each of ``count`` runs."""
    times: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        call(*inputs)
        times.append(time.perf_counter() - start)
    return times
