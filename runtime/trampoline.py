# SPDX-License-Identifier: Apache-2.0
"""One native function between Python and entry functions: it checks arrays, finds their data, calls.

From Python each of these steps costs about 100 ns for every array and argument; natively they cost
nothing to speak of. Python fills a frame of 64-bit slots and passes its address:

    inputs, outputs, constants, arena, num_threads, entry, context    what the entry ABI wants
    arrays, count        addresses of ``count`` numpy array objects: the inputs, then the outputs
    expected, checked    what the first ``checked`` arrays must be, as (dtype object, rank, shape…)

``inputs`` and ``outputs`` point into one array of ``count`` pointers, which the function fills with
the data addresses of ``arrays``. It reads numpy's public array structure, whose layout is part of
numpy's C ABI; :func:`check_layout` makes sure of it once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill.errors import ToolchainError
from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple

#: Slots of a frame.
INPUTS, OUTPUTS, CONSTANTS, ARENA, NUM_THREADS, ENTRY, ARRAYS, COUNT, EXPECTED, CHECKED = range(10)
CONTEXT = 10
#: Number of slots.
FRAME_SLOTS = 11

#: ``PyArrayObject``: header, data, nd, dimensions, strides, base, descr, flags.
_HEADER = object.__basicsize__
_DATA, _RANK, _SHAPE, _DTYPE, _FLAGS = (_HEADER + offset for offset in (0, 8, 16, 40, 48))
_C_CONTIGUOUS_AND_ALIGNED = 0x101

_SOURCE = f"""
define i64 @gristmill_call(ptr %frame) nounwind {{
entry:
  %arrays.at = getelementptr i64, ptr %frame, i64 {ARRAYS}
  %count.at = getelementptr i64, ptr %frame, i64 {COUNT}
  %expected.at = getelementptr i64, ptr %frame, i64 {EXPECTED}
  %checked.at = getelementptr i64, ptr %frame, i64 {CHECKED}
  %arrays = load ptr, ptr %arrays.at
  %count = load i64, ptr %count.at
  %table = load ptr, ptr %expected.at
  %checked = load i64, ptr %checked.at
  %inputs = load ptr, ptr %frame
  br label %check

check:
  %i = phi i64 [0, %entry], [%i.next, %shape.done]
  %want = phi ptr [%table, %entry], [%want.next, %shape.done]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %checked
  br i1 %more, label %one, label %find

one:
  %array.at = getelementptr i64, ptr %arrays, i64 %i
  %array = load ptr, ptr %array.at
  %flags.at = getelementptr i8, ptr %array, i64 {_FLAGS}
  %flags = load i32, ptr %flags.at
  %flags.both = and i32 %flags, {_C_CONTIGUOUS_AND_ALIGNED}
  %flags.ok = icmp eq i32 %flags.both, {_C_CONTIGUOUS_AND_ALIGNED}
  %dtype.at = getelementptr i8, ptr %array, i64 {_DTYPE}
  %dtype = load i64, ptr %dtype.at
  %want.dtype = load i64, ptr %want
  %dtype.ok = icmp eq i64 %dtype, %want.dtype
  %rank.at = getelementptr i8, ptr %array, i64 {_RANK}
  %rank.int = load i32, ptr %rank.at
  %rank = sext i32 %rank.int to i64
  %want.rank.at = getelementptr i64, ptr %want, i64 1
  %want.rank = load i64, ptr %want.rank.at
  %rank.ok = icmp eq i64 %rank, %want.rank
  %both.ok = and i1 %flags.ok, %dtype.ok
  %all.ok = and i1 %both.ok, %rank.ok
  br i1 %all.ok, label %shape.start, label %misfit

shape.start:
  %shape.at = getelementptr i8, ptr %array, i64 {_SHAPE}
  %shape = load ptr, ptr %shape.at
  %want.shape = getelementptr i64, ptr %want, i64 2
  br label %shape.loop

shape.loop:
  %d = phi i64 [0, %shape.start], [%d.next, %shape.same]
  %d.more = icmp slt i64 %d, %rank
  br i1 %d.more, label %shape.one, label %shape.done

shape.one:
  %size.at = getelementptr i64, ptr %shape, i64 %d
  %size = load i64, ptr %size.at
  %want.size.at = getelementptr i64, ptr %want.shape, i64 %d
  %want.size = load i64, ptr %want.size.at
  %size.ok = icmp eq i64 %size, %want.size
  br i1 %size.ok, label %shape.same, label %misfit

shape.same:
  %d.next = add i64 %d, 1
  br label %shape.loop

shape.done:
  %want.next = getelementptr i64, ptr %want.shape, i64 %rank
  br label %check

misfit:
  ret i64 %i.next

find:
  %j = phi i64 [0, %check], [%j.next, %find.one]
  %find.more = icmp slt i64 %j, %count
  br i1 %find.more, label %find.one, label %call

find.one:
  %found.at = getelementptr i64, ptr %arrays, i64 %j
  %found = load ptr, ptr %found.at
  %data.at = getelementptr i8, ptr %found, i64 {_DATA}
  %data = load ptr, ptr %data.at
  %pointer.at = getelementptr i64, ptr %inputs, i64 %j
  store ptr %data, ptr %pointer.at
  %j.next = add i64 %j, 1
  br label %find

call:
  %outputs.at = getelementptr i64, ptr %frame, i64 {OUTPUTS}
  %constants.at = getelementptr i64, ptr %frame, i64 {CONSTANTS}
  %arena.at = getelementptr i64, ptr %frame, i64 {ARENA}
  %threads.at = getelementptr i64, ptr %frame, i64 {NUM_THREADS}
  %entry.at = getelementptr i64, ptr %frame, i64 {ENTRY}
  %context.at = getelementptr i64, ptr %frame, i64 {CONTEXT}
  %outputs = load ptr, ptr %outputs.at
  %constants = load ptr, ptr %constants.at
  %arena = load ptr, ptr %arena.at
  %threads = load i64, ptr %threads.at
  %function = load ptr, ptr %entry.at
  %context = load ptr, ptr %context.at
  call void %function(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, i64 %threads, ptr %context)
  %code = load i64, ptr %context
  ret i64 %code
}}
"""

#: The function's Python side: a frame's address in; 0, 1 + the number of the array that misfits, or the context's
#: negative code when a custom call failed.
Trampoline = Callable[[int], int]

_lock = threading.Lock()
_loaded: list[tuple[LoadedCode, Trampoline]] = []


def trampoline() -> Trampoline:
    """The function, made once per process. It releases the GIL while it runs.

    When it returns a positive number the entry function was not called.
    """
    with _lock:
        if not _loaded:
            check_layout()
            code = _build()
            prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
            _loaded.append((code, prototype(code.address("gristmill_call"))))
        return _loaded[0][1]


def expectation(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The entry of the expected table for one input; ``dtype`` must stay alive."""
    return (id(dtype), len(shape), *shape)


def check_layout() -> None:
    """Raise ``ToolchainError`` unless array objects look in memory as this module expects."""
    probe = np.zeros((3, 5), np.float32)[1:]
    start = id(probe)
    shape = ctypes.c_uint64.from_address(start + _SHAPE).value
    found = (
        ctypes.c_uint64.from_address(start + _DATA).value,
        ctypes.c_int32.from_address(start + _RANK).value,
        ctypes.c_uint64.from_address(start + _DTYPE).value,
        ctypes.c_int32.from_address(start + _FLAGS).value & _C_CONTIGUOUS_AND_ALIGNED,
    )
    expected = (probe.ctypes.data, 2, id(probe.dtype), _C_CONTIGUOUS_AND_ALIGNED)
    if found != expected or list((ctypes.c_int64 * 2).from_address(shape)) != [2, 5]:
        raise ToolchainError(
            "numpy's arrays have an unknown memory layout (a free-threaded Python?); "
            "use a standard CPython and numpy 2"
        )


def _build() -> LoadedCode:
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(_SOURCE, context, "trampoline") as module,
    ):
        module.set_target(machine)
        module.verify()
        # No passes: they take 10 ms of every process's start and make a call no faster.
        return link([module.emit(machine)])
