# SPDX-License-Identifier: Apache-2.0
"""Times Gristmill beside XLA:CPU, IREE and numpy on the programs of cases.py or models.py, in turns.

    python benchmarks/run.py [--models] [--only softmax,matmul] [--peers gristmill,xla,iree,numpy]
                             [--rounds 5] [--seconds 0.1] [--threads N]
                             [--json FILE] [--markdown FILE] [--chart FILE.svg]
    python benchmarks/run.py --compare REV          this tree beside another revision of it

Every peer is a process of its own, compiles each program, has its result compared with XLA's, and is
timed in short blocks that alternate between the peers, so that other load on the machine hits all of
them. A cell shows microseconds: the median over the blocks' medians and, in brackets, the fastest single
run. Ratios are medians of the rounds' own ratios, so they compare neighbours in time; `xla/gm` above 1
means that Gristmill is faster. `bound` is the least time for the bytes and flops of the program
(work.py) at the rates measured in the same turns. IREE joins where iree-base-compiler and
iree-base-runtime are installed. --threads pins the whole run, so that all peers have the same cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import report
from chart import chart
from peers import PEERS, write_arrays

from gristmill.compiler.driver.machine import OtherLoad

if TYPE_CHECKING:
    from cases import Case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

#: The name of the other revision among the peers.
OTHER = "other"

#: The package without which a peer is left out.
_NEEDS = {"xla": "jax", "iree": "iree.compiler"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", action="store_true", help="the whole models of models.py")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)} (default: those installed)")
    parser.add_argument("--compare", metavar="REV", help="a revision of this repository to beat")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each peer (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a block")
    parser.add_argument("--threads", type=int, help="cores to use (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw ratios and bounds")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0 or (args.threads or 1) < 1:
        parser.error("--rounds and --threads must be at least 1, --seconds above 0")
    return args


def main() -> int:
    """Run the benchmarks; 1 when a result of ours was wrong."""
    args = arguments()
    threads = args.threads or len(os.sched_getaffinity(0))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    names = chosen_peers(args)
    from models import CASES, MODELS

    wanted = [part for part in args.only.split(",") if part]
    programs = MODELS if args.models else CASES
    cases = [c for c in programs if not wanted or any(part in c.name for part in wanted)]
    rows: list[report.Row] = []
    load = OtherLoad()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {name: stack.enter_context(Process(name, threads)) for name in names}
        if args.compare:
            tree = stack.enter_context(worktree(args.compare))
            workers[OTHER] = stack.enter_context(Process("gristmill", threads, tree))
            found = workers[OTHER].ask({"do": "start"})
            if not found.get("package", "").startswith(str(tree)):
                sys.exit(f"--compare {args.compare}: cannot import it: {found}")
        limits = stack.enter_context(Process("limits", threads))
        columns = report.Columns(list(workers), {OTHER: args.compare or ""})
        print(report.line(columns.header()), flush=True)
        for case in cases:
            for size in case.sizes:
                row = measure(case, size, folder, workers, limits, args)
                rows.append(row)
                print(report.line(columns.cells(row)), flush=True)
        fixed = limits.ask({"do": "fixed"})
        if "error" in fixed:
            sys.exit(f"fixed costs: {fixed['error']}")
    run = report.Run(rows, columns, fixed, threads, load.share())  # the workers have ended
    print("\n" + report.summary(run))
    save(args, run)
    wrong = [row for row in rows if row.errors.get("gristmill")]
    for row in rows:
        for name, error in row.errors.items():
            print(f"{row.program}: {name}: {error}", file=sys.stderr)
    return 1 if wrong else 0


def chosen_peers(args: argparse.Namespace) -> list[str]:
    """The peers to time: those asked for, or those installed; ours alone beside another revision."""
    if args.peers is None and args.compare:
        return ["gristmill"]
    if args.peers is None:
        return [name for name in PEERS if _installed(name)]
    names = [name for name in args.peers.split(",") if name]
    for name in names:
        if name not in PEERS:
            sys.exit(f"there is no peer {name!r}; peers: {', '.join(PEERS)}")
        if not _installed(name):
            sys.exit(f"peer {name} needs the package {_NEEDS[name]}, which is not installed")
    return ["gristmill", *(name for name in names if name != "gristmill")]


def _installed(name: str) -> bool:
    package = _NEEDS.get(name, "numpy")
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A folder from which Python imports ``revision`` of the package, checked out for as long as it is needed."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        made = git("worktree", "add", "--detach", str(path), revision)
        if made.returncode:
            sys.exit(f"--compare {revision}: {made.stderr.strip().splitlines()[-1]}")
        packages = Path(folder) / "packages"
        packages.mkdir()
        # The alias by which type checkers see the package's parts in one place.
        (packages / "gristmill").symlink_to(path / "typings" / "gristmill")
        try:
            yield packages
        finally:
            git("worktree", "remove", "--force", str(path))


class Process:
    """A worker process; a context manager that ends it."""

    def __init__(self, name: str, threads: int, tree: Path | None = None):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "GRISTMILL_CACHE": "0",  # every compilation is timed
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
        }
        if tree is not None:
            environment["PYTHONPATH"] = str(tree)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; the answer, an error if the process has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process ended with status {self._process.wait()}"}
        return json.loads(line)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    case: Case,
    size: int,
    folder: Path,
    workers: dict[str, Process],
    limits: Process,
    args: argparse.Namespace,
) -> report.Row:
    """Compile, check and time one program at one size."""
    prepare(case, size, folder)
    request = {"folder": str(folder), "case": case.name, "tolerance": case.tolerance}
    row = report.Row(f"{case.name} {size}")
    timed: list[str] = []
    for name, worker in workers.items():
        answer = worker.ask({"do": "compile", **request})
        if answer.get("error"):
            row.errors[name] = answer["error"]
        elif not answer.get("missing"):
            row.compile[name] = answer["compile"]
            timed.append(name)
    for number in range(args.rounds):
        bound = limits.ask({"do": "bound", **request})
        row.bound = report.better(row.bound, bound)
        for name in _rotated(timed, number):
            answer = workers[name].ask({"do": "time", "seconds": args.seconds, **request})
            if "error" in answer:
                row.errors[name] = answer["error"]
            else:
                row.blocks.setdefault(name, []).append(answer)
    for name in timed:  # a peer that overwrites its inputs was right only the first time
        error = workers[name].ask({"do": "check", **request}).get("error")
        if error and name not in row.errors:
            row.errors[name] = f"after the first call: {error}"
    row.blocks = {n: b for n, b in row.blocks.items() if n not in row.errors}
    return row


def _rotated(names: Sequence[str], number: int) -> list[str]:
    """Another one first in each round, so that none always follows the same."""
    start = number % max(1, len(names))
    return [*names[start:], *names[:start]]


def prepare(case: Case, size: int, folder: Path) -> None:
    """Write a program, its inputs, XLA's results and its least work for the workers."""
    import jax
    from work import least_work

    inputs = case.make(np.random.default_rng(0), size)
    lowered = jax.jit(case.function, keep_unused=True).lower(*inputs)
    (folder / "module.mlir").write_text(lowered.as_text())
    results = jax.tree_util.tree_leaves(lowered.compile()(*inputs))
    write_arrays(folder / "in.npz", inputs)
    write_arrays(folder / "out.npz", [np.asarray(result) for result in results])
    work = least_work(case.function, inputs)
    (folder / "work.json").write_text(json.dumps(asdict(work)))


def save(args: argparse.Namespace, run: report.Run) -> None:
    """Write the files asked for."""
    if args.json is not None:
        args.json.write_text(json.dumps(report.as_json(run), indent=1) + "\n")
    if args.markdown is not None:
        args.markdown.write_text(report.markdown(run))
    if args.chart is not None:
        args.chart.write_text(chart(run))


if __name__ == "__main__":
    sys.exit(main())
