# SPDX-License-Identifier: Apache-2.0
"""Writes docs/evidence.json: the operations and element types whose values are shown to be right on a target.

    python docs/evidence.py [--target CPU] [--minutes 10] [FOLDER…]

Two kinds of evidence: self-checking modules in the folders that pass (StableHLO's own value tests), counted for each
operation and element type; and random programs of test/fuzz that agree with the reference interpreter, of which the
seed of one is kept, so that a test can make it again. The table in docs/ops.md shows both; ``digest`` says for which
operations and types the file was made, so that a table with new ones asks for a new run.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test" / "fuzz"))

import probe
from fuzz_oracle import check
from fuzz_programs import RandomProgram, build
from fuzz_scope import Chooser
from jaxlib.mlir import ir

from gristmill.compiler.driver.check_command import find_modules
from gristmill.compiler.driver.check_workers import check_parallel
from gristmill.compiler.frontends.source import make_source_context, parse_bytes
from gristmill.compiler.frontends.views import operands, results, walk
from gristmill.runtime.types import ELEMENT_TYPES

FILE = Path(__file__).resolve().parent / "evidence.json"
#: Operations whose first operand does not have the type that the table speaks of.
BY_RESULT = ("rng_bit_generator", "select", "stablehlo.rng_bit_generator", "stablehlo.select")

Pair = tuple[str, str]


def digest() -> str:
    """Of the names of all operations and element types."""
    text = "\n".join([*probe.names(), *ELEMENT_TYPES])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pairs(module: ir.Operation) -> set[Pair]:
    """The operations of a module, each with its element type (empty for those that have none)."""
    return {(op.name.removeprefix("stablehlo."), _element(op)) for op in walk(module)}


def _element(op: ir.Operation) -> str:
    values = list(operands(op))
    if op.name in BY_RESULT or not values:
        values = list(results(op))[-1:]
    kind = values[0].type if values else None
    return str(kind.element_type) if isinstance(kind, ir.ShapedType) else ""


def program_pairs(program: RandomProgram) -> set[Pair]:
    """The pairs of a random program."""
    with make_source_context(), ir.Location.unknown():
        return pairs(ir.Module.parse(program.text()).operation)


def program(seed: int) -> RandomProgram:
    """The random program of a seed."""
    return build(Chooser(random.Random(seed).randint))


def passing_modules(folders: Sequence[Path], jobs: int) -> Iterator[set[Pair]]:
    """The pairs of every module that passes."""
    for outcome in check_parallel(find_modules(folders), jobs, timeout=300):
        if outcome.passed:
            path = Path(outcome.path)
            module = parse_bytes(path.read_bytes(), path.name)
            with module.context, ir.Location.unknown():
                yield pairs(module)


def agreeing_programs(seconds: float) -> Iterator[tuple[int, set[Pair]]]:
    """Seeds and pairs of the programs that agree with the interpreter; says which do not."""
    end = time.monotonic() + seconds
    for seed in itertools.count():
        if time.monotonic() > end:
            return
        candidate = program(seed)
        try:
            check(candidate)
        except Exception as error:  # a fault that is found is no evidence, and must not end the run
            print(f"seed {seed}: {error}", file=sys.stderr)
            continue
        yield seed, program_pairs(candidate)


def table(entries: dict[Pair, int]) -> dict[str, dict[str, int]]:
    """By operation, then by element type; operations that are not StableHLO's are left out."""
    known = set(probe.names())
    made: dict[str, dict[str, int]] = {}
    for (name, element), number in sorted(entries.items()):
        if name in known and element in ("", *ELEMENT_TYPES):
            made.setdefault(name, {})[element] = number
    return made


def load() -> dict[str, Any]:
    """The file, by target."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def main() -> None:
    """Write the entry of one target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folders", nargs="*", type=Path, help="of modules; without any only the programs are tried"
    )
    parser.add_argument("--target", default="CPU")
    parser.add_argument("--minutes", type=float, default=10, help="for random programs")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    args = parser.parse_args()
    counted: Counter[Pair] = Counter()
    modules = 0
    for found in passing_modules(args.folders, args.jobs) if args.folders else ():
        modules += 1
        if modules % 100 == 0:
            print(f"{modules} modules pass", file=sys.stderr)
        counted.update(found)
    seeds: dict[Pair, int] = {}
    for seed, found in agreeing_programs(60 * args.minutes):
        for pair in found:
            seeds.setdefault(pair, seed)
    entry = {
        "digest": digest(),
        "modules": modules,
        "value_tests": table(dict(counted)),
        "fuzzed": table(seeds),
    }
    if not args.folders:  # the value tests of an earlier run stay
        entry = {**load().get(args.target, {}), "digest": digest(), "fuzzed": table(seeds)}
    FILE.write_text(json.dumps({**load(), args.target: entry}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
