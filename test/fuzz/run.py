# SPDX-License-Identifier: Apache-2.0
"""Differential fuzzing for as long as you like: random programs by gristmill and by the reference interpreter.

What the interpreter does not evaluate, XLA's CPU client does (see :mod:`fuzz_oracle`).

    python test/fuzz/run.py --minutes 20 --seed 1
    python test/fuzz/run.py --minutes 20 --device simulator    a GPU's kernels, simulated and checked

Every failure is shrunk and its module and inputs are printed; the last lines count the programs, how many of them have
each operation, and the failures. The exit code is 1 when there were failures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_oracle import check
from fuzz_programs import RandomProgram, programs
from fuzz_reducer import smaller

ROUND = 40


class Fuzzer:
    """Runs rounds of programs and keeps count.

    Attributes:
        tried: programs compared, those of shrinking excluded.
        operations: lines of their main functions.
        having: how many of them have each operation.
        failures: shrunk programs and what was wrong.
    """

    def __init__(self, log: Path | None, shrink_seconds: float, device: str | None) -> None:
        self.shrink_seconds, self.device = shrink_seconds, device
        self.tried = 0
        self.operations = 0
        self.having: Counter[str] = Counter()
        self.failures: list[str] = []
        self.log = log

    def fails(self, program: RandomProgram) -> bool:
        """Whether the two disagree."""
        try:
            check(program, self.device)
        except Exception:  # whatever goes wrong is a finding
            return True
        return False

    def round(self, number: int, size: int) -> None:
        """Try ``size`` programs; a failure ends the round."""
        smallest: list[RandomProgram] = []
        started = 0.0

        @settings(
            max_examples=size,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @seed(number)
        @given(programs())
        def one(program: RandomProgram) -> None:
            nonlocal started
            if not smallest:
                self.tried += 1
                self.operations += len(program.lines)
                self.having.update(program.operations())
            elif (
                time.monotonic() > started + self.shrink_seconds
                and program.text() != smallest[0].text()
            ):
                return  # enough of shrinking
            if self.log is not None:  # what to look at when the process dies
                self.log.write_text(program.text())
            try:
                check(program, self.device)
            except Exception:
                started = started or time.monotonic()
                smallest[:] = [program]
                raise

        try:
            one()
        except Exception as error:  # whatever goes wrong is a finding
            text = f"{type(error).__name__}: {error}"
            if smallest:
                least = smaller(smallest[0], self.fails)
                inputs = "\n".join(
                    f"// {v.name}: {a.tolist()}"
                    for v, a in zip(least.arguments, least.inputs, strict=True)
                )
                text += f"\n{least.text()}{inputs}"
            self.failures.append(text)
            print(f"seed {number}: {text}\n", flush=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=int, default=ROUND, help="programs of one seed")
    parser.add_argument(
        "--shrink", type=float, default=20, metavar="S", help="seconds to shrink one failure"
    )
    parser.add_argument(
        "--device", help="where gristmill's side runs, like simulator; default: the CPU"
    )
    parser.add_argument("--log", type=Path, help="where to write each module before it runs")
    args = parser.parse_args()
    fuzzer = Fuzzer(args.log, args.shrink, args.device)
    end = time.monotonic() + 60 * args.minutes
    number = args.seed
    while time.monotonic() < end:
        fuzzer.round(number, args.round)
        number += 1
    counts = sorted(fuzzer.having.items(), key=lambda item: (item[1], item[0]))
    print(f"programs with each operation: {', '.join(f'{name} {n}' for name, n in counts)}")
    print(
        f"{fuzzer.tried} programs ({fuzzer.operations} operations), {len(fuzzer.failures)} differences, "
        f"seeds {args.seed} to {number - 1}"
    )
    return 1 if fuzzer.failures else 0


if __name__ == "__main__":
    sys.exit(main())
