# SPDX-License-Identifier: Apache-2.0
"""The fixed part of every entry module: ``gristmill_main`` and the barrier."""

from __future__ import annotations

#: The symbol of the entry function.
ENTRY = "gristmill_main"

#: Polls of the barrier before a waiting thread offers its core to others, and polls between offers after that.
#: Few, because the thread waited for may need this very core: on a busy two-core machine a barrier takes about 1 µs
#: this way and 40 µs with 1000 polls; with both cores free it takes 0.2 µs either way.
_SPINS = 64
_SPINS_AFTER_YIELD = 16

_SERIAL_MAIN = f"""
llvm.func @{ENTRY}(%inputs: !llvm.ptr, %outputs: !llvm.ptr, %constants: !llvm.ptr,
                   %arena: !llvm.ptr, %threads: i64, %context: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  llvm.call @gristmill_body(%zero, %one, %inputs, %outputs, %constants, %arena, %arena, %context)
    : (i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
  llvm.return
}}
"""

# The barrier's state is two cache lines: the number of threads that have arrived, and the number of barriers
# passed. The region may get fewer threads than asked for, so its size is asked for inside.
_PARALLEL_MAIN = f"""
llvm.func @omp_get_thread_num() -> i32
llvm.func @omp_get_num_threads() -> i32

llvm.func @{ENTRY}(%inputs: !llvm.ptr, %outputs: !llvm.ptr, %constants: !llvm.ptr,
                   %arena: !llvm.ptr, %threads: i64, %context: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %size = llvm.mlir.constant(16 : i64) : i64
  %state = llvm.alloca %size x i64 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr
  %many = llvm.icmp "sgt" %threads, %one : i64
  llvm.cond_br %many, ^fork, ^alone
^fork:
  %generation = llvm.getelementptr %state[8] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %zero, %state : i64, !llvm.ptr
  llvm.store %zero, %generation : i64, !llvm.ptr
  %wanted = llvm.trunc %threads : i64 to i32
  omp.parallel num_threads(%wanted : i32) {{
    %thread32 = llvm.call @omp_get_thread_num() : () -> i32
    %count32 = llvm.call @omp_get_num_threads() : () -> i32
    %thread = llvm.zext %thread32 : i32 to i64
    %count = llvm.zext %count32 : i32 to i64
    llvm.call @gristmill_body(%thread, %count, %inputs, %outputs, %constants, %arena, %state, %context)
      : (i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
    omp.terminator
  }}
  llvm.return
^alone:
  llvm.call @gristmill_body(%zero, %one, %inputs, %outputs, %constants, %arena, %state, %context)
    : (i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()
  llvm.return
}}
"""

# The last thread to arrive resets the count and then opens the barrier. The generation is read before
# arriving: afterwards it may already have moved on.
_BARRIER = """
llvm.func @sched_yield() -> i32

llvm.func internal @gristmill_barrier(%state: !llvm.ptr, %threads: i64)
    attributes {{passthrough = ["noinline"]}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %first = llvm.mlir.constant({spins} : i64) : i64
  %later = llvm.mlir.constant({spins_after_yield} : i64) : i64
  %alone = llvm.icmp "eq" %threads, %one : i64
  llvm.cond_br %alone, ^done, ^meet
^meet:
  %generation = llvm.getelementptr %state[8] : (!llvm.ptr) -> !llvm.ptr, i64
  %now = llvm.load %generation atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %before = llvm.atomicrmw add %state, %one acq_rel : !llvm.ptr, i64
  %arrived = llvm.add %before, %one : i64
  %last = llvm.icmp "eq" %arrived, %threads : i64
  llvm.cond_br %last, ^open, ^wait(%first : i64)
^open:
  llvm.store %zero, %state atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  %next = llvm.add %now, %one : i64
  llvm.store %next, %generation atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.br ^done
^wait(%polls: i64):
  %seen = llvm.load %generation atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %waiting = llvm.icmp "eq" %seen, %now : i64
  llvm.cond_br %waiting, ^pause, ^done
^pause:
  {pause}
  %left = llvm.sub %polls, %one : i64
  %tired = llvm.icmp "eq" %left, %zero : i64
  llvm.cond_br %tired, ^yield, ^wait(%left : i64)
^yield:
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.br ^wait(%later : i64)
^done:
  llvm.return
}}
"""

_PAUSES = {
    "x86_64": 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()',
    # hint 1 is yield
    "aarch64": "%hint = llvm.mlir.constant(1 : i32) : i32\n"
    '  llvm.call_intrinsic "llvm.aarch64.hint"(%hint) : (i32) -> ()',
}

# Thread, threads, inputs, outputs, constants, arena, barrier state, context; replaced by the definition.
_BODY = """
llvm.func @gristmill_body(i64, i64, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr)
"""


def header(triple: str, parallel: bool, body: str = _BODY) -> str:
    """The text of the module for a target triple; ``body`` declares or defines ``gristmill_body``."""
    if not parallel:
        return _SERIAL_MAIN + body
    barrier = _BARRIER.format(
        spins=_SPINS,
        spins_after_yield=_SPINS_AFTER_YIELD,
        pause=_PAUSES.get(triple.partition("-")[0], ""),
    )
    return _PARALLEL_MAIN + barrier + body
