# SPDX-License-Identifier: Apache-2.0
"""Times the memory runtime beside what it replaces: malloc, memcpy, numpy. All as ratios of one run.

    python benchmarks/memory.py [--only pool,relayout] [--rounds 9] [--seconds 0.02] [--cpu] [--json FILE]

Ours and its peers take turns, in batches, so that other load on the machine hits all of them. A row shows
the median of the batches, and the peer's time divided by ours: above 1 ours is faster. `bar` is what we hold
ourselves to on an idle machine; `!` marks a row below it. ``--cpu`` counts processor time of all threads
instead of the time that passes: for small copies and debug tools on a machine that has other work.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import mmap
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from gristmill.runtime import observer
from gristmill.runtime.buffers import RawBuffer
from gristmill.runtime.debug.leaks import LeakTracker
from gristmill.runtime.debug.races import RaceDetector
from gristmill.runtime.debug.timeline import Recording
from gristmill.runtime.devices.host import HostDevice
from gristmill.runtime.layout import Shape
from gristmill.runtime.memory.allocator import HostMemoryAllocator
from gristmill.runtime.memory.host import aligned_empty
from gristmill.runtime.memory.pool import HostMemoryPool
from gristmill.runtime.packing import pack, unpack
from gristmill.runtime.relayout import contiguous, copy_array
from gristmill.runtime.threads import num_threads
from gristmill.runtime.transfers import create_transfer_manager
from gristmill.runtime.types import primitive_type

Call = Callable[[], object]
T = TypeVar("T")
MB = 1 << 20


@dataclass
class Case:
    """A comparison: ``ours`` and its peers by name; the ratio is to the first peer.

    Attributes:
        bar: the least ratio we want; 0: none.
        cleanup: frees what the calls use.
        before: what to call before each batch; by name, ours is ``""``.
    """

    name: str
    ours: Call
    peers: dict[str, Call]
    bar: float = 0
    cleanup: ExitStack = field(default_factory=ExitStack)
    before: dict[str, Call] = field(default_factory=dict[str, Call])


@dataclass
class Row:
    """Medians in microseconds."""

    name: str
    ours: float
    peers: dict[str, float]
    ratio: float
    bar: float


def c_library() -> Any:
    """libc's allocation and copying."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library


def pool_cases() -> Iterator[Case]:
    """Scalars from the pool, against the ways to get one from Python."""
    library = c_library()
    malloc, free = library.malloc, library.free
    cleanup = ExitStack()
    allocator = cleanup.enter_context(HostMemoryAllocator())
    pool = cleanup.enter_context(HostMemoryPool(allocator))
    pred = primitive_type("pred")
    peers: dict[str, Call] = {
        "malloc+free": lambda: free(malloc(64)),
        "numpy.empty": lambda: np.empty((), np.bool_),
    }
    yield Case("pool: acquire+close", lambda: pool.acquire(pred).close(), peers)
    tracking = cleanup.enter_context(HostMemoryPool(allocator, track=True))
    yield Case("pool: the same, tracked", lambda: tracking.acquire(pred).close(), peers)
    size = 8 * MB

    def fresh() -> None:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1

    def reused() -> None:
        with allocator.allocate(size) as memory:
            memory.view()[:: mmap.PAGESIZE] = 1

    def plain() -> None:
        np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 1

    yield Case(
        "allocator: 8 MB, touched", reused, {"mmap": fresh, "numpy.empty": plain}, 1, cleanup
    )


def copy_cases() -> Iterator[Case]:
    """Raw copies on the host device, against memcpy of the same bytes."""
    memcpy = c_library().memcpy
    for size, label in ((64, "64 B"), (4096, "4 KB"), (MB, "1 MB"), (64 * MB, "64 MB")):
        cleanup = ExitStack()
        device = cleanup.enter_context(HostDevice())
        buffer = cleanup.enter_context(RawBuffer.allocate(device, size))
        other = cleanup.enter_context(RawBuffer.allocate(device, size))
        host = aligned_empty((size,), np.dtype(np.uint8))
        host[...] = 1
        buffer.copy_from_host(host).wait()
        other.copy_from_host(host).wait()
        target, source = buffer.host_pointer(), host.ctypes.data
        between = other.host_pointer()
        bar = 0.9 if size == 64 * MB else 0
        calls: dict[str, tuple[Call, Call]] = {
            "h2d": (
                lambda: buffer.copy_from_host(host).wait(),  # noqa: B023 - used before the next turn
                lambda: memcpy(target, source, size),  # noqa: B023
            ),
            "d2h": (
                lambda: buffer.copy_to_host(host).wait(),  # noqa: B023
                lambda: memcpy(source, target, size),  # noqa: B023
            ),
            "d2d": (
                lambda: buffer.copy_to(other).wait(),  # noqa: B023
                lambda: memcpy(between, target, size),  # noqa: B023
            ),
        }
        for kind, (ours, peer) in calls.items():
            yield Case(f"copy: {kind} {label}", ours, {"memcpy": peer}, bar)
        cleanup.close()


def upload_cases() -> Iterator[Case]:
    """64 MB in chunks through the transfer manager, against one copy."""
    cleanup = ExitStack()
    device = cleanup.enter_context(HostDevice())
    shape = Shape.parse(f"u8[{64 * MB}]")
    host = np.ones(64 * MB, np.uint8)
    buffer = cleanup.enter_context(RawBuffer.allocate(device, host.nbytes))

    def upload(chunk: int) -> None:
        with create_transfer_manager(device, [shape], buffers=[buffer]) as manager:
            for start in range(0, host.nbytes, chunk):
                manager.transfer_chunk(0, host[start : start + chunk], start)
            with manager.retrieve_buffer(0) as filled:
                filled.definition.wait()

    peers: dict[str, Call] = {"one copy": lambda: buffer.copy_from_host(host).wait()}
    for chunk in (MB, 4 * MB, 16 * MB):
        last = cleanup if chunk == 16 * MB else ExitStack()
        name = f"upload: 64 MB by {chunk // MB} MB"
        yield Case(name, lambda chunk=chunk: upload(chunk), peers, 0, last)


#: Element type, shape, permutation.
RELAYOUTS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("float32", (2048, 2048), (1, 0)),
    ("uint8", (2048, 2048), (1, 0)),
    ("float64", (1500, 1100), (1, 0)),
    ("float32", (32, 64, 56, 56), (0, 2, 3, 1)),
    ("float32", (32, 56, 56, 64), (0, 3, 1, 2)),
    ("bfloat16", (32, 64, 56, 56), (0, 2, 3, 1)),
    ("float32", (16, 256, 16, 64), (0, 2, 1, 3)),
    ("float32", (16, 3, 224, 224), (0, 2, 3, 1)),
    ("float32", (32, 32, 64, 64), (3, 2, 1, 0)),
]


def relayout_cases() -> Iterator[Case]:
    """Transposes, against numpy.ascontiguousarray."""
    for name, shape, order in RELAYOUTS:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        data = np.random.default_rng(0).integers(0, 100, shape, np.int8).astype(dtype)
        view = data.transpose(order)
        label = f"relayout: {name}{list(shape)} by {','.join(map(str, order))}"
        peers: dict[str, Call] = {"ascontiguousarray": lambda view=view: np.ascontiguousarray(view)}
        for threads in sorted({1, num_threads()}):
            bar = 2.0 if len(shape) == 4 and threads > 1 else 1.0

            def ours(view: np.ndarray[Any, Any] = view, threads: int = threads) -> None:
                contiguous(view, threads=threads)

            yield Case(f"{label}, {threads} threads", ours, peers, bar)


def packing_cases() -> Iterator[Case]:
    """Packing of 4-bit elements, against the usual numpy expressions."""
    values = np.random.default_rng(0).integers(0, 16, 4 * MB).astype(np.uint8)
    packed = pack(values, 4, "high")

    def plain_unpack() -> np.ndarray[Any, Any]:
        out = np.empty(packed.size * 2, np.uint8)
        out[0::2], out[1::2] = packed >> 4, packed & 15
        return out

    yield Case(
        "packing: 4 M nibbles",
        lambda: pack(values, 4, "high"),
        {"numpy": lambda: (values[0::2] << 4) | (values[1::2] & 15)},
        1,
    )
    yield Case(
        "packing: and back",
        lambda: unpack(packed, values.size, 4, "high"),
        {"numpy": plain_unpack},
        1,
    )
    swapped = values.view(">u4")
    target = np.empty(swapped.shape, "<u4")
    yield Case(
        "packing: byte order, 4 MB",
        lambda: copy_array(target, swapped),
        {"numpy": lambda: swapped.astype("<u4")},
    )


class Switch:
    """Turns one debug tool on, a new one each time, or off."""

    def __init__(self, make: Callable[[], observer.Observer]) -> None:
        self._make = make
        self._tool: observer.Observer | None = None

    def on(self) -> None:
        """Off first, so that a batch never finds what the one before it has noted."""
        self.off()
        self._tool = self._make()
        observer.install(self._tool)

    def tool(self, kind: type[T]) -> T:
        """The tool that is on."""
        assert isinstance(self._tool, kind)
        return self._tool

    def off(self) -> None:
        """Does nothing when it is off."""
        if self._tool is not None:
            observer.uninstall(self._tool)
        self._tool = None


def debug_cases() -> Iterator[Case]:
    """Copies with a debug tool on, against the same copies with it off."""
    tools = {"leaks": LeakTracker, "timeline": Recording, "races": RaceDetector}
    for size, label in ((4096, "4 KB"), (64 << 10, "64 KB"), (MB, "1 MB"), (64 * MB, "64 MB")):
        for name, make in tools.items():
            cleanup = ExitStack()
            device = cleanup.enter_context(HostDevice())
            buffer = cleanup.enter_context(RawBuffer.allocate(device, size))
            host = aligned_empty((size,), np.dtype(np.uint8))
            host[...] = 1
            switch = Switch(make)
            cleanup.callback(switch.off)

            def copy(buffer: RawBuffer = buffer, host: Any = host) -> None:
                buffer.copy_from_host(host).wait()

            before: dict[str, Call] = {"": switch.on, "off": switch.off}
            last = name != "races"
            yield Case(
                f"debug: {name}, copy {label}", copy, {"off": copy}, 0.5,
                cleanup if last else ExitStack(), before,
            )  # fmt: skip
            if last:
                continue

            def and_check(copy: Call = copy, switch: Switch = switch) -> None:
                copy()
                switch.tool(RaceDetector).catch_up()

            yield Case(
                f"debug: {name}, copy {label}, worked out at once", and_check, {"off": copy}, 0,
                cleanup, before,
            )  # fmt: skip


SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "pool": pool_cases,
    "copy": copy_cases,
    "upload": upload_cases,
    "relayout": relayout_cases,
    "packing": packing_cases,
    "debug": debug_cases,
}


def measure(
    case: Case, rounds: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Row:
    """Time ours and its peers in turns."""
    timers = {
        name: timeit.Timer(call, case.before.get(name, "pass"), clock)
        for name, call in {"": case.ours, **case.peers}.items()
    }
    counts: dict[str, int] = {}
    for name, timer in timers.items():
        timer.timeit(1)
        one = max(timer.timeit(1), 1e-8)
        if one < seconds / 100:
            one = timer.timeit(100) / 100
        counts[name] = max(1, math.ceil(seconds / one))
    found: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer.timeit(counts[name]) / counts[name] * 1e6)
    medians = {name: statistics.median(times) for name, times in found.items()}
    ours = medians.pop("")
    # Each round's ratio is of neighbours in time, which other load changes least.
    first = next(iter(case.peers))
    ratio = statistics.median(p / o for p, o in zip(found[first], found[""], strict=True))
    return Row(case.name, ours, medians, ratio, case.bar)


def text(row: Row) -> str:
    """A line of the table."""
    peers = ", ".join(f"{name} {micro(value)}" for name, value in row.peers.items())
    bar = f"{row.bar:g}{'!' if row.ratio < row.bar else ''}" if row.bar else ""
    return f"{row.name:<58} {micro(row.ours):>10} {row.ratio:>7.2f} {bar:>5}   {peers}"


def micro(value: float) -> str:
    """Microseconds, or milliseconds where these are many."""
    return f"{value:.2f} us" if value < 1000 else f"{value / 1000:.2f} ms"


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"sections of {', '.join(SECTIONS)}, by commas")
    parser.add_argument("--rounds", type=int, default=9, help="batches of each (default: 9)")
    parser.add_argument("--seconds", type=float, default=0.02, help="length of a batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--cpu", action="store_true", help="count processor time")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    wanted = [name for name in args.only.split(",") if name] or list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"unknown sections {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    print(f"{'':<58} {'ours':>10} {'ratio':>7} {'bar':>5}   peers", flush=True)
    rows: list[Row] = []
    for name in wanted:
        for case in SECTIONS[name]():
            with case.cleanup:
                rows.append(measure(case, args.rounds, args.seconds, clock))
            print(text(rows[-1]), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
