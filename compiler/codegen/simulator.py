# SPDX-License-Identifier: Apache-2.0
"""Native code of simulated kernels: the coroutine around each thread function, and the scheduler."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache

from mlir import ir

from gristmill.compiler.codegen.native import optimize, to_object, translate
from gristmill.compiler.lowering.kernels import lower_to_llvm_dialect
from gristmill.compiler.lowering.simulator import SimulatedKernel, thread_function, to_simulator
from gristmill.compiler.lowering.simulator_scheduler import (
    BLOCK,
    ENDED,
    FRAME_BYTES,
    RECORD_BYTES,
    REPORT,
    SCHEDULER,
    SHARED,
    THREAD,
)
from gristmill.compiler.target import Target
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine

#: A call of the waiting function: its arguments become the state, then the thread suspends.
_WAIT = re.compile(
    r"^(\s*)(?:tail )?call void @gristmill_sim_wait\(ptr ([^,]+), i64 ([^)]+)\)", re.M
)

_HEADER = """
declare token @llvm.coro.id.retcon(i32, i32, ptr, ptr, ptr, ptr)
declare ptr @llvm.coro.begin(token, ptr)
declare void @llvm.coro.end(ptr, i1, token)
declare i1 @llvm.coro.suspend.retcon.i1(...)
declare ptr @gristmill_sim_prototype(ptr, i1)
declare ptr @gristmill_sim_allocate(i32)
declare void @gristmill_sim_free(ptr)
declare i64 @gristmill_sim_launch(ptr, ptr, ptr, i64, i64, ptr)

define internal void @gristmill_sim_state(ptr %record, i64 %state) alwaysinline {
  %at = getelementptr i8, ptr %record, i64 8
  store i64 %state, ptr %at
  ret void
}
"""


def to_simulator_objects(module: ir.Module, target: Target, checks: bool = True) -> list[bytes]:
    """Objects for ``target``, a CPU, that define the native function of each kernel of a ``gpu.module``.

    With ``checks`` memory accesses are checked, at several times the cost. See
    :mod:`gristmill.compiler.lowering.simulator` for the functions' signature.
    """
    lowered, kernels = to_simulator(module, checks)
    machine = TargetMachine(target.triple, target.cpu, target.features)
    with Context() as context, machine, translate(lowered, context) as translated:
        text = _coroutines(str(translated), kernels)
        with Module.parse(text, context, "simulator") as llvm_ir:
            optimize(llvm_ir, target, machine)
            code = llvm_ir.emit(machine)
    return [code, _scheduler(target)]


@lru_cache(maxsize=4)
def _scheduler(target: Target) -> bytes:
    with ir.Context():
        module = ir.Module.parse(SCHEDULER)
        lower_to_llvm_dialect(module)
        return to_object(module, target)


def _coroutines(text: str, kernels: Sequence[SimulatedKernel]) -> str:
    """The module with suspension points in it and the functions that run its threads."""
    numbers = itertools.count()

    def suspend(match: re.Match[str]) -> str:
        indent, record, state = match.groups()
        return (
            f"{indent}call void @gristmill_sim_state(ptr {record}, i64 {state})"
            f"\n{indent}%gristmill.{next(numbers)} = call i1 (...) @llvm.coro.suspend.retcon.i1()"
        )

    body = _WAIT.sub(suspend, text).replace("declare void @gristmill_sim_wait(ptr, i64)", "")
    for kernel in kernels:
        body = re.sub(
            rf"define void @{kernel.name}_thread\(([^\n]*)\) ",
            rf"define internal void @{kernel.name}_thread(\1) alwaysinline ",
            body,
        )
    functions = [_suspending(k) if k.suspends else _independent(k) for k in kernels]
    return body + _HEADER + "\n".join(functions)


def _arguments(kernel: SimulatedKernel) -> tuple[str, list[str]]:
    """Code that loads a kernel's parameters and workgroup memory from ``%params`` and ``%shared``; the arguments."""
    lines: list[str] = []
    names: list[str] = []
    for number in range(kernel.parameters):
        lines += [
            f"  %where{number} = getelementptr ptr, ptr %params, i64 {number}",
            f"  %value{number} = load ptr, ptr %where{number}",
            f"  %parameter{number} = load ptr, ptr %value{number}",
        ]
        names.append(f"ptr %parameter{number}")
    for number, offset in enumerate(kernel.shared):
        lines.append(f"  %shared{number} = getelementptr i8, ptr %shared, i64 {offset}")
        names.append(f"ptr %shared{number}")
    return "\n".join(lines), names


_COORDINATES = ("%tx", "%ty", "%tz", "%bx", "%by", "%bz")


def _suspending(kernel: SimulatedKernel) -> str:
    loads, arguments = _arguments(kernel)
    coordinates = ", ".join(f"i64 {name}" for name in _COORDINATES)
    return f"""
define ptr @{kernel.name}_coroutine(ptr %frame, ptr %record, ptr %params, {coordinates}) presplitcoroutine noinline {{
  %id = call token @llvm.coro.id.retcon(i32 {FRAME_BYTES}, i32 16, ptr %frame, ptr @gristmill_sim_prototype,
                                        ptr @gristmill_sim_allocate, ptr @gristmill_sim_free)
  %handle = call ptr @llvm.coro.begin(token %id, ptr null)
  call i1 (...) @llvm.coro.suspend.retcon.i1()
  %where = getelementptr i8, ptr %record, i64 {SHARED}
  %shared = load ptr, ptr %where
{loads}
  call void @{thread_function(kernel.name)}({", ".join(arguments)}, ptr %record, {coordinates})
  call void @gristmill_sim_state(ptr %record, i64 {ENDED})
  call void @llvm.coro.end(ptr %handle, i1 0, token none)
  unreachable
}}

define i64 @{kernel.name}(ptr %params, ptr %dims, i64 %order, ptr %report) {{
  %code = call i64 @gristmill_sim_launch(ptr @{kernel.name}_coroutine, ptr %params, ptr %dims,
                                         i64 {kernel.shared_bytes}, i64 %order, ptr %report)
  ret i64 %code
}}
"""


def _independent(kernel: SimulatedKernel) -> str:
    """Threads that never wait run one after the other; their record tells only who they are."""
    loads, arguments = _arguments(kernel)
    names = ("bz", "by", "bx", "tz", "ty", "tx")
    extents = {"bx": 0, "by": 1, "bz": 2, "tx": 3, "ty": 4, "tz": 5}
    lines = [f"define i64 @{kernel.name}(ptr %params, ptr %dims, i64 %order, ptr %report) {{"]
    lines += ["entry:", loads]
    for name, axis in extents.items():
        lines += [
            f"  %at_{name} = getelementptr i32, ptr %dims, i64 {axis}",
            f"  %narrow_{name} = load i32, ptr %at_{name}",
            f"  %end_{name} = zext i32 %narrow_{name} to i64",
        ]
    lines += [
        f"  %record = alloca [{RECORD_BYTES} x i8], align 16",
        f"  %its_report = getelementptr i8, ptr %record, i64 {REPORT}",
        "  store ptr %report, ptr %its_report",
        f"  %its_thread = getelementptr i8, ptr %record, i64 {THREAD}",
        f"  %its_block = getelementptr i8, ptr %record, i64 {BLOCK}",
        "  br label %head_bz",
    ]
    before = "entry"
    for depth, name in enumerate(names):
        inner = f"head_{names[depth + 1]}" if depth + 1 < len(names) else "body"
        lines += [
            f"head_{name}:",
            f"  %{name} = phi i64 [ 0, %{before} ], [ %next_{name}, %latch_{name} ]",
            f"  br label %{inner}",
        ]
        before = f"head_{name}"
    coordinates = ", ".join(f"i64 {name}" for name in _COORDINATES)
    call = ", ".join([*arguments, "ptr %record", coordinates])
    lines += [
        "body:",
        *_linear("block", "b"),
        *_linear("thread", "t"),
        f"  call void @{thread_function(kernel.name)}({call})",
        "  br label %latch_tx",
    ]
    for depth in reversed(range(len(names))):
        name = names[depth]
        outer = f"latch_{names[depth - 1]}" if depth else "end"
        lines += [
            f"latch_{name}:",
            f"  %next_{name} = add nuw nsw i64 %{name}, 1",
            f"  %more_{name} = icmp ult i64 %next_{name}, %end_{name}",
            f"  br i1 %more_{name}, label %head_{name}, label %{outer}",
        ]
    lines += ["end:", "  %code = load i64, ptr %report", "  ret i64 %code", "}"]
    return "\n".join(lines)


def _linear(what: str, kind: str) -> list[str]:
    """Code that stores the number of the thread or block, x fastest, in the record."""
    return [
        f"  %{what}_z = mul i64 %{kind}z, %end_{kind}y",
        f"  %{what}_zy = add i64 %{what}_z, %{kind}y",
        f"  %{what}_row = mul i64 %{what}_zy, %end_{kind}x",
        f"  %{what}_number = add i64 %{what}_row, %{kind}x",
        f"  store i64 %{what}_number, ptr %its_{what}",
    ]
