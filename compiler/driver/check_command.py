# SPDX-License-Identifier: Apache-2.0
"""Run modules that check themselves, and report the failures by cause.

A self-checking module has a public @main without arguments that hands computed and wanted values
to custom calls:
  @check.expect_eq(%got, %want)         equal; NaN equals NaN, -0 equals +0
  @check.expect_close(%got, %want)      at most max_ulp_difference (3) units in the last place apart
  @check.expect_almost_eq(%got, %want)  within tolerance (1e-3), absolute or relative
The modules are compiled without constant folding, so that the generated code is what is tested.

The last line is "N passed, M failed". The exit code is 1 when any module failed, or, with
--require-passed, when fewer than that many passed.

examples:
  gristmill check tests/ops/add.mlir -v          one module, with its time
  gristmill check tests/ -j 4                    a folder, in 4 worker processes
  gristmill check tests/ --json > report.json    every outcome for a program to read
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.compiler.driver import custom_calls
from gristmill.compiler.driver.console import Progress, seconds, table
from gristmill.errors import InputError

if TYPE_CHECKING:
    from gristmill.compiler.driver.check_runner import Outcome

HELP = "run modules that check themselves"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a module, or a folder of .mlir files"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=0, metavar="N", help="worker processes (default: none)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="with -j, seconds that one module may take (default: 120)",
    )
    parser.add_argument(
        "--require-passed",
        type=int,
        metavar="N",
        help="succeed when at least N modules pass, whatever fails",
    )
    custom_calls.configure(parser)
    parser.add_argument(
        "--device", metavar="NAME", help="run on simulator, cuda or cuda:N (default: the CPU)"
    )
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every module and its time"
    )


def execute(args: argparse.Namespace) -> int:
    """Run the modules; returns the exit code."""
    from gristmill.compiler.driver.check_runner import check_file
    from gristmill.compiler.driver.check_workers import check_in_process, check_parallel

    paths = find_modules(args.paths)
    custom_calls.register(args.custom_calls)
    progress = Progress(len(paths))
    outcomes: list[Outcome] = []
    check = partial(check_file, device=args.device)
    stream = (
        check_parallel(paths, args.jobs, args.timeout, check, modules=args.custom_calls)
        if args.jobs
        else check_in_process(paths, check)
    )
    for outcome in stream:
        outcomes.append(outcome)
        failed = sum(not o.passed for o in outcomes)
        if args.verbose:
            progress.clear()
            print(_line(outcome), file=sys.stderr if args.json else sys.stdout, flush=True)
        progress.update(len(outcomes), f"{failed} failed; {Path(outcome.path).name}")
    progress.close()
    outcomes.sort(key=lambda outcome: outcome.path)
    passed = sum(outcome.passed for outcome in outcomes)
    summary = f"{passed} passed, {len(outcomes) - passed} failed"
    if args.json:
        print(json.dumps({"modules": [asdict(o) for o in outcomes], "summary": summary}, indent=1))
    else:
        print(report(outcomes), end="")
        print(summary)
    required = len(outcomes) if args.require_passed is None else args.require_passed
    if passed < required and args.require_passed is not None:
        print(f"gristmill: {passed} modules passed, {required} required", file=sys.stderr)
    return 0 if passed >= required else 1


def find_modules(paths: Sequence[Path]) -> list[Path]:
    """The files among ``paths`` and the ``.mlir`` files in its folders, sorted within each."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.mlir"))
            if not inside:
                raise InputError(f"folder {path} holds no .mlir files")
            found.extend(inside)
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"no such file or folder: {path}")
    return list(dict.fromkeys(found))


def report(outcomes: Sequence[Outcome]) -> str:
    """The failures as a table by cause, commonest first; empty when there are none."""
    by_cause: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for cause in outcome.causes:
            by_cause.setdefault(cause, []).append(outcome)
    if not by_cause:
        return ""
    ranked = sorted(by_cause.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [(str(len(group)), cause, _examples(group)) for cause, group in ranked]
    details = [
        f"{Path(o.path).name}: {o.detail}" for o in outcomes if any("wrong" in c for c in o.causes)
    ]
    shown = "\n".join(details[:20])
    more = f"\n... and {len(details) - 20} more wrong values" if len(details) > 20 else ""
    text = table(("modules", "cause", "for example"), rows) + "\n"
    return text + (f"\n{shown}{more}\n" if details else "") + "\n"


def _examples(group: Sequence[Outcome]) -> str:
    names = [Path(outcome.path).name for outcome in group[:2]]
    return ", ".join(names) + (", ..." if len(group) > 2 else "")


def _line(outcome: Outcome) -> str:
    status = "pass" if outcome.passed else "FAIL"
    detail = f"  {outcome.detail}" if outcome.detail else ""
    return f"{status} {seconds(outcome.seconds):>8}  {outcome.path}{detail}"
