# SPDX-License-Identifier: Apache-2.0
"""An entry function that times itself: how long each kernel ran in place, between its neighbours.

Every thread keeps a row of one extra output of the program. What passes between two clock readings is added to one
cell: after a kernel (or a copy) to its running time, after a barrier to the time waited for the kernel that ran
before it. So the cells of a row add up to the time its thread spent in the program, with no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.program.llvm_builder import FunctionBuilder
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType

#: Words of 8 bytes at the start of a row: last reading, a timespec, where waiting is counted.
_HEAD_WORDS = 4

#: Words of a slot: nanoseconds running, nanoseconds waiting, launches.
_SLOT_WORDS = 3

#: Rows are padded to whole cache lines, as each belongs to one thread.
_LINE_WORDS = 8

#: Slots before those of the kernels.
START, COPIES = "start", "copies"

_CLOCK_MONOTONIC = 1

#: The functions that record; each takes the thread's row.
FUNCTIONS = f"""
llvm.func @clock_gettime(i32, !llvm.ptr) -> i32

llvm.func internal @gristmill_lap(%row: !llvm.ptr, %cell: !llvm.ptr)
    attributes {{passthrough = ["noinline"]}} {{
  %clock = llvm.mlir.constant({_CLOCK_MONOTONIC} : i32) : i32
  %billion = llvm.mlir.constant(1000000000 : i64) : i64
  %second_at = llvm.getelementptr %row[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %nanosecond_at = llvm.getelementptr %row[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %ignored = llvm.call @clock_gettime(%clock, %second_at) : (i32, !llvm.ptr) -> i32
  %second = llvm.load %second_at : !llvm.ptr -> i64
  %nanosecond = llvm.load %nanosecond_at : !llvm.ptr -> i64
  %scaled = llvm.mul %second, %billion : i64
  %now = llvm.add %scaled, %nanosecond : i64
  %last = llvm.load %row : !llvm.ptr -> i64
  %passed = llvm.sub %now, %last : i64
  %before = llvm.load %cell : !llvm.ptr -> i64
  %after = llvm.add %before, %passed : i64
  llvm.store %after, %cell : i64, !llvm.ptr
  llvm.store %now, %row : i64, !llvm.ptr
  llvm.return
}}

llvm.func internal @gristmill_ran(%row: !llvm.ptr, %slot: !llvm.ptr, %launches: i64) {{
  %wait_at = llvm.getelementptr %slot[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %count_at = llvm.getelementptr %slot[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %current_at = llvm.getelementptr %row[24] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %wait_at, %current_at : !llvm.ptr, !llvm.ptr
  %before = llvm.load %count_at : !llvm.ptr -> i64
  %after = llvm.add %before, %launches : i64
  llvm.store %after, %count_at : i64, !llvm.ptr
  llvm.call @gristmill_lap(%row, %slot) : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return
}}

llvm.func internal @gristmill_waited(%row: !llvm.ptr) {{
  %current_at = llvm.getelementptr %row[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %cell = llvm.load %current_at : !llvm.ptr -> !llvm.ptr
  llvm.call @gristmill_lap(%row, %cell) : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return
}}

llvm.func internal @gristmill_start(%row: !llvm.ptr, %slot: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  llvm.call @gristmill_ran(%row, %slot, %zero) : (!llvm.ptr, !llvm.ptr, i64) -> ()
  llvm.store %zero, %slot : i64, !llvm.ptr
  llvm.return
}}
"""


@dataclass(frozen=True)
class SlotTimes:
    """What one thread recorded of one kernel in one run.

    Attributes:
        running: nanoseconds inside the kernel's phases.
        waiting: nanoseconds at barriers after them, for other threads.
        launches: how often the thread passed the kernel's first phase; of a serial one only thread 0 does.
    """

    running: int
    waiting: int
    launches: int


@dataclass(frozen=True)
class Profile:
    """The layout of the extra output.

    Attributes:
        kernels: names of the kernels, in the order of their slots.
        threads: rows; the program must not run with more threads.
        output: the index of the extra output.
    """

    kernels: tuple[str, ...]
    threads: int
    output: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of all slots."""
        return (START, COPIES, *self.kernels)

    @property
    def row_words(self) -> int:
        """Words of 8 bytes of a row."""
        words = _HEAD_WORDS + _SLOT_WORDS * len(self.slots)
        return -(-words // _LINE_WORDS) * _LINE_WORDS

    @property
    def type(self) -> ArrayType:
        """The type of the extra output. It must be zero when a run starts."""
        return ArrayType.parse(f"{self.threads}x{self.row_words}xui64")

    @property
    def signature(self) -> Signature:
        """The extra output."""
        return Signature("profile", self.type)

    def slot_offset(self, slot: str) -> int:
        """Bytes from the start of a row to a slot."""
        return 8 * (_HEAD_WORDS + _SLOT_WORDS * self.slots.index(slot))

    def read(self, recorded: np.ndarray[Any, Any]) -> list[dict[str, SlotTimes]]:
        """What each thread recorded, by slot."""
        rows: list[dict[str, SlotTimes]] = []
        for row in recorded:
            cells = row[_HEAD_WORDS : _HEAD_WORDS + _SLOT_WORDS * len(self.slots)]
            times = (SlotTimes(*map(int, cell)) for cell in cells.reshape(-1, _SLOT_WORDS))
            rows.append(dict(zip(self.slots, times, strict=True)))
        return rows


class Recorder:
    """Emits the recording calls of ``gristmill_body``."""

    def __init__(
        self, build: FunctionBuilder, profile: Profile, outputs: ir.Value, thread: ir.Value
    ):
        self._build = build
        self._profile = profile
        slot = build.offset(outputs, 8 * profile.output)
        row = build.binary("mul", thread, build.integer(8 * profile.row_words))
        self._row = build.dynamic_offset(build.load(slot, build.ptr), row)

    def start(self) -> None:
        """The thread enters the program."""
        self._build.call("gristmill_start", [self._row, self._slot(START)])

    def ran(self, slot: str, launches: int) -> None:
        """The thread has finished its part of a phase; ``launches`` is 1 for a kernel's first."""
        count = self._build.integer(launches)
        self._build.call("gristmill_ran", [self._row, self._slot(slot), count])

    def waited(self) -> None:
        """The thread has passed a barrier."""
        self._build.call("gristmill_waited", [self._row])

    def _slot(self, name: str) -> ir.Value:
        return self._build.offset(self._row, self._profile.slot_offset(name))
