# SPDX-License-Identifier: Apache-2.0
"""Autotuning: the blocking of matrix products and convolutions, chosen by timing them on this machine.

Each product or convolution of a fused program is compiled as a program of its own, once as the emitter's model says and
once for each candidate that comes out different, and called on random arrays of its shapes. The most expensive come
first, until the time budget ends. The model's choice stands unless a candidate is faster by a clear margin, in nearly
every round and again in a second measurement: timing the same code twice must not change what is compiled.

A result is a record in the cache on disk, keyed by the compiler, the target with its cache sizes and threads, and the
kernel's content, and is used again by later compilations that tune.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import func

from gristmill.compiler.emitters.blocking import CANDIDATES, DEFAULT, Blocking, Tuned
from gristmill.compiler.emitters.library import Emission, Fusion
from gristmill.compiler.module import HloModule, array_type
from gristmill.compiler.target import Target
from gristmill.errors import CacheError
from gristmill.runtime.atomic import replacing
from gristmill.runtime.disk_cache import DiskCache
from gristmill.runtime.executable import Executable
from gristmill.runtime.types import ArrayType

Array = np.ndarray[Any, Any]
#: Compiles a fused program whose kernels are cut as the mapping says, by key.
Build = Callable[[HloModule, Mapping[str, Blocking]], Executable]

#: The ending of a record's file name in the cache.
SUFFIX = ".tuning"

#: What a candidate must gain over the model's choice to be taken.
MARGIN = 0.05

#: Rounds of one measurement, and in how many of them the candidate must be ahead.
ROUNDS, AHEAD = 7, 6

#: Seconds of calls that are timed together, at least.
_BLOCK_SECONDS = 1e-3

#: Products and convolutions of fewer floating-point operations than this are not tuned.
_LEAST_FLOPS = 1e6


@dataclass(frozen=True)
class Record:
    """What is known of one kernel: the best blocking, and the median seconds of the model's choice and of it."""

    blocking: Blocking
    model_seconds: float
    best_seconds: float

    def render(self) -> bytes:
        """The record as text, its SHA-256 in front."""
        content = json.dumps(dataclasses.asdict(self)).encode()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    @staticmethod
    def parse(data: bytes) -> Record:
        """What :meth:`render` wrote; raises ``ValueError`` for anything else."""
        digest, _, content = data.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise ValueError("the record's checksum does not match")
        fields = json.loads(content)
        return Record(Blocking(**fields.pop("blocking")), **fields)


def tune(
    module: HloModule,
    target: Target,
    build: Build,
    *,
    budget: float,
    cache: DiskCache | None = None,
    compiler: str = "",
    observer: Callable[[str], None] | None = None,
) -> Tuned:
    """Choose the blockings of a fused module, which is left as it is.

    Args:
        module: the program after ``fuse``.
        target: the CPU, which must be this machine's.
        build: compiles and loads the small programs that are timed.
        budget: seconds; what does not fit stays as the model says.
        cache: where records are kept.
        compiler: identifies the compiler in the records' keys.
        observer: is told what is being timed.
    """
    deadline = time.monotonic() + budget
    emission, is_complete = Emission(module, target), True
    blockings: dict[str, Blocking] = {}
    notes: list[str] = []
    fusions = _by_cost(emission)
    for number, fusion in enumerate(fusions):
        name = _record_name(compiler, target, fusion.key)
        record = _load(cache, name)
        if record is None:
            if time.monotonic() >= deadline:
                is_complete = False
                continue
            if observer is not None:
                observer(f"tuning {fusion.kind} {number + 1} of {len(fusions)}")
            record = _tune_one(emission, module, fusion, build, deadline)
            if record is None:
                is_complete = False
                continue
            _store(cache, name, record)
        gain = 1 - record.best_seconds / record.model_seconds
        notes.append(f"{fusion.computation}: {record.blocking}, {gain:.0%} faster")
        if record.blocking != DEFAULT:
            blockings[fusion.key] = record.blocking
    return Tuned(blockings, is_complete, tuple(notes))


def _by_cost(emission: Emission) -> list[Fusion]:
    """The fusions that can be tuned, one for each key, those with the most work in the program first."""
    uses: Counter[str] = Counter()
    first: dict[str, Fusion] = {}
    for fusion in emission.fusions():
        if fusion.kind in CANDIDATES:
            uses[fusion.key] += 1
            first.setdefault(fusion.key, fusion)
    flops = {key: emission.emit(fusion, "probe").spec.flops for key, fusion in first.items()}
    worth = [key for key in first if flops[key] >= _LEAST_FLOPS]
    return [first[key] for key in sorted(worth, key=lambda key: -flops[key] * uses[key])]


def _tune_one(
    emission: Emission, module: HloModule, fusion: Fusion, build: Build, deadline: float
) -> Record | None:
    """Time the candidates; ``None`` when the time is up before all of them were tried."""
    choices = _distinct(emission, fusion)
    if len(choices) == 1:
        return Record(DEFAULT, 1.0, 1.0)
    executables: list[Executable] = []
    try:
        for blocking in choices:
            if time.monotonic() >= deadline:
                return None
            program = _alone(emission, module, fusion)
            keys = [found.key for found in Emission(program, emission.target).fusions()]
            executables.append(build(program, dict.fromkeys(keys, blocking)))
        inputs = [_random(value) for value in map(array_type, fusion.op.operands)]
        times = measure([_call(e, inputs) for e in executables])
        best = choose(times)
        if best:
            confirmed = measure([_call(executables[i], inputs) for i in (0, best)])
            best = best if choose(confirmed) else 0
    finally:
        for executable in executables:
            executable.close()
    medians = [statistics.median(t) for t in times]
    return Record(choices[best], medians[0], medians[best])


def _distinct(emission: Emission, fusion: Fusion) -> list[Blocking]:
    """The model's choice, then the candidates that give other code."""
    found: dict[str, Blocking] = {}
    for blocking in (DEFAULT, *CANDIDATES[fusion.kind]):
        kernel = emission.emit(fusion, "probe", blocking)
        found.setdefault(str(kernel.source), blocking)
    return list(found.values())


def _alone(emission: Emission, module: HloModule, fusion: Fusion) -> HloModule:
    """A fused module whose ``@main`` is the one fusion."""
    alone = ir.Module.create(loc=ir.Location.unknown())
    for function in emission.functions_of(fusion):
        alone.body.append(function.clone())
    kinds = [operand.type for operand in fusion.op.operands]
    results = [result.type for result in fusion.op.results]
    with ir.InsertionPoint(alone.body), ir.Location.unknown():
        main = func.FuncOp("main", (kinds, results))
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            op = fusion.op.clone().operation
            for index, argument in enumerate(block.arguments):
                op.operands[index] = argument
            func.ReturnOp(list(op.results))
    return HloModule(alone, module.constants, "tuning")


def _random(kind: ArrayType) -> Array:
    """An array of ``kind``: small numbers, so that sums neither overflow nor slow down."""
    values = np.random.default_rng(0).integers(0, 3, kind.shape)
    return values.astype(kind.element.dtype)


def _call(executable: Executable, inputs: Sequence[Array]) -> Callable[[], object]:
    return lambda: executable(*inputs)


def measure(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Seconds a call, of each of ``calls`` in each of :data:`ROUNDS` rounds, in which they take turns."""
    counts: list[int] = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        counts.append(max(1, int(_BLOCK_SECONDS / (time.perf_counter() - start))))
    count = max(counts)
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            found.append((time.perf_counter() - start) / count)
    return times


def choose(times: Sequence[Sequence[float]]) -> int:
    """The index of the fastest, if it is clearly faster than the first; else 0."""
    medians = [statistics.median(t) for t in times]
    best = medians.index(min(medians))
    ahead = sum(a < b for a, b in zip(times[best], times[0], strict=True))
    return best if medians[best] <= (1 - MARGIN) * medians[0] and ahead >= AHEAD else 0


def _record_name(compiler: str, target: Target, key: str) -> str:
    parts = (compiler, repr(target), key)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + SUFFIX


def read_record(path: Path) -> Record:
    """The record in a file; raises ``ValueError`` when it is damaged."""
    try:
        return Record.parse(path.read_bytes())
    except (TypeError, KeyError, AttributeError, OSError) as error:
        raise ValueError(f"not a tuning record: {error}") from None


def _load(cache: DiskCache | None, name: str) -> Record | None:
    path = cache.find(name) if cache is not None else None
    if cache is None or path is None:
        return None
    try:
        return read_record(path)
    except ValueError:
        cache.discard(name)
        return None


def _store(cache: DiskCache | None, name: str, record: Record) -> None:
    def write(path: Path) -> None:
        with replacing(path, durable=False) as file:
            file.write(record.render())

    if cache is not None:
        with suppress(CacheError):  # storing the program will fail too, and say so
            cache.store(name, write)
