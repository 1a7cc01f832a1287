# SPDX-License-Identifier: Apache-2.0
"""Hand-written programs for the runtime's tests: kernels and entry functions as LLVM IR text."""

from __future__ import annotations

import numpy as np

from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple, host_cpu, host_features
from gristmill.runtime.program import Program, Signature
from gristmill.runtime.types import ArrayType, element_type

ADD = """
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
entry:
  %b.at = getelementptr ptr, ptr %in, i64 1
  %a = load ptr, ptr %in
  %b = load ptr, ptr %b.at
  %r = load ptr, ptr %out
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %x.at = getelementptr float, ptr %a, i64 %i
  %y.at = getelementptr float, ptr %b, i64 %i
  %r.at = getelementptr float, ptr %r, i64 %i
  %x = load float, ptr %x.at
  %y = load float, ptr %y.at
  %s = fadd float %x, %y
  store float %s, ptr %r.at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, COUNT
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

#: result[0] = 2 input 0, result[1] = 3 input 1.
BOTH = """
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
  %y.at = getelementptr ptr, ptr %in, i64 1
  %s.at = getelementptr ptr, ptr %out, i64 1
  %x.p = load ptr, ptr %in
  %y.p = load ptr, ptr %y.at
  %r.p = load ptr, ptr %out
  %s.p = load ptr, ptr %s.at
  %x = load float, ptr %x.p
  %y = load float, ptr %y.p
  %r = fmul float %x, 2.0
  %s = fmul float %y, 3.0
  store float %r, ptr %r.p
  store float %s, ptr %s.p
  ret void
}
"""

#: result[0] = sum of constant 0 and input 0, through the arena; result[1] = thread count.
ARENA = """
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
  %a = load ptr, ptr %in
  %c = load ptr, ptr %constants
  %r = load ptr, ptr %out
  %n.at = getelementptr ptr, ptr %out, i64 1
  %n = load ptr, ptr %n.at
  %last = getelementptr i8, ptr %arena, i64 ARENA_LAST
  %scratch.base = getelementptr i8, ptr %arena, i64 ARENA_BYTES
  %t = sub i64 %threads, 1
  %scratch.offset = mul i64 %t, 64
  %scratch = getelementptr i8, ptr %scratch.base, i64 %scratch.offset
  %x = load float, ptr %a
  %y = load float, ptr %c
  store float %x, ptr %last
  store float %y, ptr %scratch
  %x2 = load float, ptr %last
  %y2 = load float, ptr %scratch
  %s = fadd float %x2, %y2
  store float %s, ptr %r
  store i64 %threads, ptr %n
  ret void
}
"""


def assemble(text: str) -> bytes:
    """The optimised object of LLVM IR text."""
    with (
        Context() as context,
        TargetMachine(default_triple(), host_cpu(), host_features()) as machine,
        Module.parse(text, context) as module,
    ):
        module.set_target(machine)
        module.verify()
        module.run_passes("default<O2>", machine)
        return module.emit(machine)


def _program(name: str, objects: list[bytes], **fields: object) -> Program:
    return Program(
        name=name,
        objects=objects,
        target_triple=default_triple(),
        target_cpu=host_cpu(),
        target_features=host_features(),
        **fields,
    )


def add_program(count: int = 8, *, alias: bool = False) -> Program:
    """``r = x + y`` over f32 vectors; with ``alias``, x's memory may become the result's."""
    kind = ArrayType.parse(f"{count}xf32")
    return _program(
        "add",
        [assemble(ADD.replace("COUNT", str(count)))],
        inputs=(
            Signature("x", kind, donated=alias, alias=0 if alias else None),
            Signature("y", kind),
        ),
        outputs=(Signature("r", kind, alias=0 if alias else None),),
    )


def both_program() -> Program:
    """``r = 2 x`` and ``s = 3 y`` of one element each; results may take over their inputs' memory."""
    kind = ArrayType.parse("1xf32")
    return _program(
        "both",
        [assemble(BOTH)],
        inputs=(Signature("x", kind, True, 0), Signature("y", kind, True, 1)),
        outputs=(Signature("r", kind, alias=0), Signature("s", kind, alias=1)),
    )


def arena_program(arena_bytes: int = 128) -> Program:
    """Uses a constant, the end of the arena, the last thread's scratch and the thread count."""
    text = ARENA.replace("ARENA_LAST", str(arena_bytes - 4)).replace(
        "ARENA_BYTES", str(arena_bytes)
    )
    return _program(
        "arena",
        [assemble(text)],
        inputs=(Signature("x", ArrayType.parse("f32")),),
        outputs=(
            Signature("sum", ArrayType.parse("f32")),
            Signature("threads", ArrayType.parse("i64")),
        ),
        constants=[np.array(2.5, np.float32), np.arange(100, dtype=np.int16)],
        arena_bytes=arena_bytes,
        scratch_bytes=64,
        parallel=True,
    )


COPY = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
  %a = load ptr, ptr %in
  %r = load ptr, ptr %out
  call void @llvm.memcpy.p0.p0.i64(ptr %r, ptr %a, i64 BYTES, i1 false)
  ret void
}
"""

SPIN = """
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
  %a = load ptr, ptr %in
  br label %loop
loop:
  %x = load atomic volatile i32, ptr %a seq_cst, align 4
  %zero = icmp eq i32 %x, 0
  br i1 %zero, label %loop, label %done
done:
  ret void
}
"""


def copy_program(element: str, shape: tuple[int, ...]) -> Program:
    """The identity on one array."""
    kind = ArrayType(shape, element_type(element))
    return _program(
        "copy",
        [assemble(COPY.replace("BYTES", str(kind.nbytes)))],
        inputs=(Signature("x", kind),),
        outputs=(Signature("r", kind),),
    )


def spin_program() -> Program:
    """Runs until its input, an i32, becomes nonzero; no results."""
    return _program(
        "spin",
        [assemble(SPIN)],
        inputs=(Signature("flag", ArrayType.parse("1xi32")),),
        outputs=(),
    )


# __kmpc_fork_call(location, argument count, microtask, arguments…): every thread t of the team writes
# t + 1 to result[t]. The location is libomp's ident_t, with the KMPC flag set.
PARALLEL = """
@text = private constant [5 x i8] c";;;;\\00"
@location = private constant { i32, i32, i32, i32, ptr } { i32 0, i32 2, i32 0, i32 5, ptr @text }
declare void @__kmpc_push_num_threads(ptr, i32, i32)
declare i32 @__kmpc_global_thread_num(ptr)
declare void @__kmpc_fork_call(ptr, i32, ptr, ...)
define internal void @body(ptr %global, ptr %local, ptr %r) {
  %t = load i32, ptr %local
  %n = add i32 %t, 1
  %at = getelementptr i32, ptr %r, i32 %t
  store i32 %n, ptr %at
  ret void
}
define void @gristmill_main(ptr %in, ptr %out, ptr %constants, ptr %arena, i64 %threads) {
  %r = load ptr, ptr %out
  %n = trunc i64 %threads to i32
  %self = call i32 @__kmpc_global_thread_num(ptr @location)
  call void @__kmpc_push_num_threads(ptr @location, i32 %self, i32 %n)
  call void (ptr, i32, ptr, ...) @__kmpc_fork_call(ptr @location, i32 1, ptr @body, ptr %r)
  ret void
}
"""


def parallel_program() -> Program:
    """Forks a team; thread ``t`` writes ``t + 1`` to ``r[t]``."""
    return _program(
        "parallel",
        [assemble(PARALLEL)],
        inputs=(Signature("x", ArrayType.parse("1xf32")),),
        outputs=(Signature("r", ArrayType.parse("16xi32")),),
        parallel=True,
    )
