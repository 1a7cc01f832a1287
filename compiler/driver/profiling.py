# SPDX-License-Identifier: Apache-2.0
"""Where an execution's time goes: each kernel's time, traffic and flops beside what the machine can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.compiler.compile import Compilation
from gristmill.compiler.driver.machine import Machine
from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.compiler.graph import Graph, Node, load_graph
from gristmill.compiler.module import HloModule
from gristmill.compiler.program.profile import COPIES, START, Profile, SlotTimes
from gristmill.dialects import hlo
from gristmill.runtime.executable import Executable
from gristmill.runtime.types import ArrayType

Array = np.ndarray[Any, Any]

#: What is not a kernel's: copies of loop variables and outputs, and entering the program.
OUTSIDE = "copies and control"

#: Operations that read a part of their first operand, as large as their result.
_PARTIAL_READS = ("gather", "dynamic_slice", "slice")
#: Operations that write a part of their first operand, by the position of what is written.
_PARTIAL_WRITES = {"dynamic_update_slice": 1, "scatter": 2}

#: Operations that compute nothing; a kernel of these alone has no flops, whatever its emitter estimates.
_MOVEMENTS = frozenset(
    {
        *("slice", "dynamic_slice", "dynamic_update_slice", "gather", "transpose", "reverse"),
        *("concatenate", "pad", "reshape", "broadcast_in_dim", "constant", "iota"),
        *("copy", "bitcast_convert"),
    }
)

_RUNS_AT_LEAST = 3
_RUNS_AT_MOST = 2000


@dataclass(frozen=True)
class Work:
    """What one launch of a kernel has to do at least.

    Attributes:
        read, written: bytes of its operands and results; of a table that is only looked up in, the rows taken, of
            an array updated in place the part written.
        flops: the emitter's estimate: 2 for a multiply-add, for a function like exp what its polynomial costs.
        double: whether it computes with 64-bit floats.
        operations: names of the operations fused into it.
    """

    read: int
    written: int
    flops: int
    double: bool
    operations: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    def bound_seconds(self, machine: Machine) -> float:
        """The larger of moving the bytes and doing the flops, as measured on this machine."""
        moving = machine.stream_seconds(self.read, self.written)
        return max(moving, self.flops / machine.flops(self.double))


@dataclass(frozen=True)
class KernelTime:
    """One kernel's share of an execution.

    Attributes:
        name: the kernel's symbol; :data:`OUTSIDE` for what is no kernel's.
        kind: the emitter that made it.
        launches: in one execution.
        seconds: in one execution, on the thread that entered: running and waiting for the others.
        cores: threads busy in it, on average.
        work: of one launch.
        bound_seconds: the least time for all launches, as measured.
    """

    name: str
    kind: str
    launches: int
    seconds: float
    cores: float
    work: Work
    bound_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Achieved traffic."""
        return self.launches * self.work.bytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """Achieved arithmetic."""
        return self.launches * self.work.flops / self.seconds if self.seconds else 0.0

    @property
    def share_of_bound(self) -> float:
        """Bound over time: 1 is as fast as the machine allows."""
        return self.bound_seconds / self.seconds if self.seconds else 0.0


def kernel_times(
    compilation: Compilation,
    module: HloModule,
    inputs: Sequence[Array],
    machine: Machine,
    seconds: float,
) -> tuple[list[KernelTime], float]:
    """Times of every kernel, the slowest first, and by how much timing them slowed the program down.

    The program runs for about ``seconds`` with an entry function that reads the clock between kernels, in turns with
    the one that does not. ``module`` is the fused module that ``compilation`` was made of.
    """
    program, profile = compilation.profiled(machine.threads)
    with Executable(program) as timed, compilation.executable() as plain:
        recorded, slowdown = _run_in_turns(timed, plain, profile, inputs, machine.threads, seconds)
    works = works_of(compilation, module)
    for work in works.values():
        work.bound_seconds(machine)
    machine.remeasure()
    rows = [
        _kernel_time(spec, recorded[spec.name], works[spec.name], machine)
        for spec in compilation.kernels
        if spec.name in works
    ]
    rows = sorted((r for r in rows if r.launches), key=lambda row: -row.seconds)
    return [*rows, _outside(recorded, machine)], slowdown


@dataclass
class _Recorded:
    """Medians over the runs, in seconds."""

    seconds: float
    running: float
    launches: int


def _run_in_turns(
    timed: Executable,
    plain: Executable,
    profile: Profile,
    inputs: Sequence[Array],
    threads: int,
    seconds: float,
) -> tuple[dict[str, _Recorded], float]:
    record = np.zeros(profile.type.shape, np.uint64)
    outputs = [np.empty(s.type.shape, s.type.element.dtype) for s in plain.outputs]
    runs: list[list[dict[str, SlotTimes]]] = []
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(runs) < _RUNS_AT_LEAST or (time.perf_counter() < end and len(runs) < _RUNS_AT_MOST):
        record[...] = 0
        times[0].append(_timed(lambda: timed(*inputs, out=[*outputs, record], threads=threads)))
        runs.append(profile.read(record))
        times[1].append(_timed(lambda: plain(*inputs, out=outputs, threads=threads)))
    # The first run meets cold caches and fresh pages.
    slowdown = statistics.median(a / b for a, b in zip(times[0][1:], times[1][1:], strict=True))
    return {slot: _summarise(slot, runs[1:]) for slot in profile.slots}, slowdown - 1


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _summarise(slot: str, runs: Sequence[Sequence[dict[str, SlotTimes]]]) -> _Recorded:
    first = [rows[0][slot] for rows in runs]
    return _Recorded(
        statistics.median(t.running + t.waiting for t in first) * 1e-9,
        statistics.median(sum(row[slot].running for row in rows) for rows in runs) * 1e-9,
        max(row[slot].launches for row in runs[-1]),
    )


def _kernel_time(spec: KernelSpec, times: _Recorded, work: Work, machine: Machine) -> KernelTime:
    # Without a barrier the last thread may still run when the next kernel's time begins.
    cores = min(times.running / times.seconds, machine.threads) if times.seconds else 0.0
    bound = times.launches * work.bound_seconds(machine)
    return KernelTime(spec.name, spec.kind, times.launches, times.seconds, cores, work, bound)


def _outside(recorded: dict[str, _Recorded], machine: Machine) -> KernelTime:
    parts = [recorded[START], recorded[COPIES]]
    seconds = sum(part.seconds for part in parts)
    cores = sum(part.running for part in parts) / seconds if seconds else 0.0
    work = Work(0, 0, 0, False, ())
    return KernelTime(OUTSIDE, "", recorded[COPIES].launches, seconds, cores, work, 0.0)


def works_of(compilation: Compilation, module: HloModule) -> dict[str, Work]:
    """The work of each kernel, by its name."""
    found: dict[str, Work] = {}
    functions = module.functions()
    for symbol, function in functions.items():
        spec = compilation.kernel_of(symbol)
        if spec is not None and spec.name not in found:
            found[spec.name] = _work(spec, load_graph(function), functions)
    return found


def _work(spec: KernelSpec, graph: Graph, functions: dict[str, Any]) -> Work:
    read = sum(_read_bytes(node) for node in graph.parameters)
    written = sum(_written_bytes(node) for node in graph.results)
    types: Sequence[ArrayType] = (*spec.arguments, *spec.results)
    double = any(t.element.name in ("f64", "complex<f64>") for t in types)
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.op is not None and node.kind not in ("constant", "reshape", "broadcast_in_dim"):
            inner = [load_graph(functions[c]).results[0].kind for c in hlo.computations(node.op)]
            names["/".join([node.kind, *inner]) if node.kind == "reduce" else node.kind] = None
    moves_only = all(node.op is None or node.kind in _MOVEMENTS for node in graph.nodes)
    return Work(read, written, 0 if moves_only else spec.flops, double, tuple(names))


def _read_bytes(parameter: Node) -> int:
    """Bytes of a parameter that are read at least."""
    needed = 0
    for user in parameter.users:
        if user.operands[0] is not parameter or user.operands.count(parameter) != 1:
            return parameter.type.nbytes
        if user.kind in _PARTIAL_READS:
            needed += user.type.nbytes
        elif user.kind not in _PARTIAL_WRITES:
            return parameter.type.nbytes
    return min(needed, parameter.type.nbytes)


def _written_bytes(result: Node) -> int:
    """Bytes of a result that are written at least."""
    position = _PARTIAL_WRITES.get(result.kind)
    if position is None or result.operands[0].kind != "parameter":
        return result.type.nbytes
    return min(result.operands[position].type.nbytes, result.type.nbytes)
