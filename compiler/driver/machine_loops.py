# SPDX-License-Identifier: Apache-2.0
"""The loops that measure a machine, as bodies of an entry function in the LLVM dialect.

Each body takes a table of integers in place of the constants; the first is how often to repeat.
"""

from __future__ import annotations

from gristmill.compiler.target import Target

#: Vectors that one step of the stream loop reads or writes.
_VECTORS = 4

#: Independent chains of multiply-adds: at least latency times units on any CPU of today.
CHAINS = 12

_ARGUMENTS = (
    "%thread: i64, %threads: i64, %inputs: !llvm.ptr, %outputs: !llvm.ptr, %integers: !llvm.ptr, "
    "%arena: !llvm.ptr, %state: !llvm.ptr, %context: !llvm.ptr"
)
_HEAD = f"""
llvm.func internal @gristmill_body({_ARGUMENTS}) attributes {{passthrough = ["noinline"]}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %count = llvm.load %integers : !llvm.ptr -> i64
"""
EMPTY = _HEAD + "  llvm.return\n}\n"

BARRIERS = (
    _HEAD
    + """  llvm.br ^loop(%zero : i64)
^loop(%i: i64):
  llvm.call @gristmill_barrier(%state, %threads) : (!llvm.ptr, i64) -> ()
  %next = llvm.add %i, %one : i64
  %more = llvm.icmp "ult" %next, %count : i64
  llvm.cond_br %more, ^loop(%next : i64), ^done
^done:
  llvm.return
}
"""
)


def multiply_adds(kind: str, lanes: int) -> str:
    """``count`` steps of independent chains of multiply-adds in registers."""
    vector = f"vector<{lanes}x{kind}>"
    names = [f"%v{i}" for i in range(CHAINS)]
    kinds = ", ".join([vector] * CHAINS)
    arguments = ", ".join(f"{name}: {vector}" for name in names)
    starts = "\n".join(
        f"  %s{i} = llvm.mlir.constant(dense<{1.0 + i}> : {vector}) : {vector}"
        for i in range(CHAINS)
    )
    steps = "\n".join(
        f"  %n{i} = llvm.intr.fma(%v{i}, %factor, %term) : ({vector}, {vector}, {vector}) -> {vector}"
        for i in range(CHAINS)
    )
    sums = "\n".join(
        f"  %t{i + 1} = llvm.fadd {f'%t{i}' if i else '%v0'}, %v{i + 1} : {vector}"
        for i in range(CHAINS - 1)
    )
    first, following = (", ".join(f"%{letter}{i}" for i in range(CHAINS)) for letter in "sn")
    return (
        _HEAD
        + f"""{starts}
  %factor = llvm.mlir.constant(dense<0.9999> : {vector}) : {vector}
  %term = llvm.mlir.constant(dense<1.0e-4> : {vector}) : {vector}
  llvm.br ^loop(%zero, {first} : i64, {kinds})
^loop(%i: i64, {arguments}):
  %more = llvm.icmp "ult" %i, %count : i64
  llvm.cond_br %more, ^step, ^done
^step:
{steps}
  %next = llvm.add %i, %one : i64
  llvm.br ^loop(%next, {following} : i64, {kinds})
^done:
{sums}
  %line = llvm.mlir.constant(128 : i64) : i64
  %at = llvm.mul %thread, %line : i64
  %sinks = llvm.load %outputs : !llvm.ptr -> !llvm.ptr
  %sink = llvm.getelementptr %sinks[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %t{CHAINS - 1}, %sink {{alignment = 64 : i64}} : {vector}, !llvm.ptr
  llvm.return
}}
"""
    )


def stream(target: Target, nontemporal: bool) -> str:
    """``count`` times: read this thread's share of the input, write its share of the output.

    What is written is the exclusive or of all that was read, so that no read can be left out.
    """
    lanes = target.lanes(4)
    vector, nbytes = f"vector<{lanes}xi32>", 4 * lanes
    step = _VECTORS * nbytes
    start = f"""  %none = llvm.mlir.constant(dense<0> : {vector}) : {vector}
  %step = llvm.mlir.constant({step} : i64) : i64
{_SHARES}  llvm.br ^repeat(%zero, {", ".join(["%none"] * _VECTORS)} : i64, {_kinds(vector)})
"""
    end = f"""^done:
  %line = llvm.mlir.constant(128 : i64) : i64
  %at = llvm.mul %thread, %line : i64
  %sinks_at = llvm.getelementptr %outputs[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %sinks = llvm.load %sinks_at : !llvm.ptr -> !llvm.ptr
  %sink = llvm.getelementptr %sinks[%at] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %m1 = llvm.xor %r0, %r1 : {vector}
  %m2 = llvm.xor %r2, %r3 : {vector}
  %m3 = llvm.xor %m1, %m2 : {vector}
  llvm.store %m3, %sink {{alignment = {nbytes} : i64}} : {vector}, !llvm.ptr
  llvm.return
}}
"""
    return _HEAD + start + _stream_loops(vector, nbytes, nontemporal) + end + _share(step)


def _names(letter: str) -> str:
    return ", ".join(f"%{letter}{q}" for q in range(_VECTORS))


def _typed(letter: str, vector: str) -> str:
    return ", ".join(f"%{letter}{q}: {vector}" for q in range(_VECTORS))


def _kinds(vector: str) -> str:
    return ", ".join([vector] * _VECTORS)


def _stream_loops(vector: str, nbytes: int, nontemporal: bool) -> str:
    kinds, hint = _kinds(vector), "nontemporal, " if nontemporal else ""

    def pointers(base: str) -> str:
        return "\n".join(
            f"  %{base}{q} = llvm.getelementptr %{base}[{q * nbytes}] : (!llvm.ptr) -> !llvm.ptr, i8"
            for q in range(_VECTORS)
        )

    loads = "\n".join(
        f"  %x{q} = llvm.load %from{q} {{alignment = {nbytes} : i64}} : !llvm.ptr -> {vector}\n"
        f"  %y{q} = llvm.xor %a{q}, %x{q} : {vector}"
        for q in range(_VECTORS)
    )
    stores = "\n".join(
        f"  llvm.store %c{q}, %to{q} {{{hint}alignment = {nbytes} : i64}} : {vector}, !llvm.ptr"
        for q in range(_VECTORS)
    )
    return f"""^repeat(%i: i64, {_typed("r", vector)}):
  %more = llvm.icmp "ult" %i, %count : i64
  llvm.cond_br %more, ^read(%read_begin, {_names("r")} : i64, {kinds}), ^done
^read(%p: i64, {_typed("a", vector)}):
  %reading = llvm.icmp "ult" %p, %read_end : i64
  llvm.cond_br %reading, ^load, ^write(%written_begin, {_names("a")} : i64, {kinds})
^load:
  %from = llvm.getelementptr %source[%p] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{pointers("from")}
{loads}
  %p_next = llvm.add %p, %step : i64
  llvm.br ^read(%p_next, {_names("y")} : i64, {kinds})
^write(%w: i64, {_typed("c", vector)}):
  %writing = llvm.icmp "ult" %w, %written_end : i64
  llvm.cond_br %writing, ^store, ^next
^store:
  %to = llvm.getelementptr %target[%w] : (!llvm.ptr, i64) -> !llvm.ptr, i8
{pointers("to")}
{stores}
  %w_next = llvm.add %w, %step : i64
  llvm.br ^write(%w_next, {_names("c")} : i64, {kinds})
^next:
  %following = llvm.add %i, %one : i64
  llvm.br ^repeat(%following, {_names("c")} : i64, {kinds})
"""


#: Each thread's part of the input and the output, whose sizes are the second and third integer.
_SHARES = """  %read_at = llvm.getelementptr %integers[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %written_at = llvm.getelementptr %integers[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %read = llvm.load %read_at : !llvm.ptr -> i64
  %written = llvm.load %written_at : !llvm.ptr -> i64
  %read_begin = llvm.call @share(%thread, %threads, %read) : (i64, i64, i64) -> i64
  %written_begin = llvm.call @share(%thread, %threads, %written) : (i64, i64, i64) -> i64
  %after = llvm.add %thread, %one : i64
  %read_end = llvm.call @share(%after, %threads, %read) : (i64, i64, i64) -> i64
  %written_end = llvm.call @share(%after, %threads, %written) : (i64, i64, i64) -> i64
  %source = llvm.load %inputs : !llvm.ptr -> !llvm.ptr
  %target = llvm.load %outputs : !llvm.ptr -> !llvm.ptr
"""


def _share(step: int) -> str:
    """Where a thread's part of so many bytes starts; in whole steps."""
    return f"""
llvm.func internal @share(%thread: i64, %threads: i64, %bytes: i64) -> i64 {{
  %size = llvm.mlir.constant({step} : i64) : i64
  %steps = llvm.udiv %bytes, %size : i64
  %product = llvm.mul %steps, %thread : i64
  %first = llvm.udiv %product, %threads : i64
  %start = llvm.mul %first, %size : i64
  llvm.return %start : i64
}}
"""
