# SPDX-License-Identifier: Apache-2.0
"""One native function that calls an entry function with arguments taken from memory.

A foreign call from Python costs about 100 ns for each argument. So the arguments of the entry ABI
live in a frame that is filled once, and Python passes a single pointer:

    struct Frame { inputs, outputs, constants, arena, num_threads, entry };
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple

#: Slots of a frame, each 8 bytes.
INPUTS, OUTPUTS, CONSTANTS, ARENA, NUM_THREADS, ENTRY = range(6)
#: Number of slots.
FRAME_SLOTS = 6

_SOURCE = """
define void @gristmill_call(ptr %frame) nounwind {
  %outputs.at = getelementptr i64, ptr %frame, i64 1
  %constants.at = getelementptr i64, ptr %frame, i64 2
  %arena.at = getelementptr i64, ptr %frame, i64 3
  %threads.at = getelementptr i64, ptr %frame, i64 4
  %entry.at = getelementptr i64, ptr %frame, i64 5
  %inputs = load ptr, ptr %frame
  %outputs = load ptr, ptr %outputs.at
  %constants = load ptr, ptr %constants.at
  %arena = load ptr, ptr %arena.at
  %threads = load i64, ptr %threads.at
  %entry = load ptr, ptr %entry.at
  tail call void %entry(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, i64 %threads)
  ret void
}
"""

_lock = threading.Lock()
_loaded: list[tuple[LoadedCode, Callable[[int], None]]] = []


def trampoline() -> Callable[[int], None]:
    """The function, taking a frame's address; made once per process. It releases the GIL."""
    with _lock:
        if not _loaded:
            code = _build()
            prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
            _loaded.append((code, prototype(code.address("gristmill_call"))))
        return _loaded[0][1]


def _build() -> LoadedCode:
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(_SOURCE, context, "trampoline") as module,
    ):
        module.set_target(machine)
        return link([module.emit(machine)])
