# SPDX-License-Identifier: Apache-2.0
"""From an ``rt`` program to its native entry function, in the LLVM and OpenMP dialects.

``gristmill_main`` (the ABI is in :mod:`gristmill.runtime.program`) calls ``gristmill_body`` once, or once per
thread of one OpenMP region; the body is the whole program: kernels are called directly, loops and branches are native
control flow, and threads meet at a spinning barrier of our own (see :mod:`gristmill.compiler.program.sync`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir

from gristmill.compiler.emitters.kernel import ExternalCall, KernelSpec, Phase
from gristmill.compiler.program.build import RtProgram
from gristmill.compiler.program.entry_header import ENTRY, header
from gristmill.compiler.program.llvm_builder import FunctionBuilder
from gristmill.compiler.program.profile import COPIES, FUNCTIONS, Profile, Recorder
from gristmill.compiler.program.sync import (
    copies_in_parallel,
    is_parallel,
    is_serial,
    place_barriers,
)
from gristmill.compiler.program.tree import (
    Branch,
    Buffer,
    Copy,
    Launch,
    Loop,
    Node,
    read_module,
)
from gristmill.runtime.program import ACKNOWLEDGED, CODE, MESSAGE, SITE_BYTES, SITES

__all__ = ["ENTRY", "lower_entry"]

#: Bodies with more kernel calls than this are not optimised: they are straight lines of calls, where LLVM's
#: passes cost seconds and gain nothing that can be measured.
_OPTIMIZE_LIMIT = 64

#: Parallel copies are split at multiples of this many bytes.
_COPY_BLOCK = 4096


def lower_entry(
    program: RtProgram, specs: Mapping[str, KernelSpec], profile: Profile | None = None
) -> ir.Module:
    """The LLVM-dialect module that defines :data:`ENTRY` and declares the kernels' phases.

    ``specs`` may be keyed by anything; kernels are found by ``KernelSpec.name``. With a ``profile`` the function
    records times in one more output. Raises ``VerifyError`` when a launch of the ``rt`` module does not fit its
    kernel or overwrites what it reads.
    """
    kernels = {spec.name: spec for spec in specs.values()}
    aliases = {i: s.alias for i, s in enumerate(program.inputs) if s.alias is not None}
    nodes = read_module(program.module, kernels, aliases)
    with program.module.context, ir.Location.unknown():
        text = header(program.target.triple, program.parallel)
        module = ir.Module.parse(text + FUNCTIONS if profile is not None else text)
        emitter = _Emitter(program, module, profile)
        if program.parallel:
            place_barriers(nodes)
        emitter.emit(nodes)
    return module


class _Emitter:
    """Emits ``gristmill_body``.

    In a parallel program the insertion point is either at a place that every thread passes, or inside a region
    guarded for thread 0 (``self.join`` is then the block after it).
    """

    def __init__(self, program: RtProgram, module: ir.Module, profile: Profile | None):
        self.program = program
        self.profile = profile
        self.recorder: Recorder | None = None
        self.parallel = program.parallel
        self.module = module
        self.build = FunctionBuilder(module)
        self.declared: set[str] = set()
        self.ranges: dict[int, tuple[ir.Value, ir.Value]] = {}
        self.join: ir.Block | None = None
        self.sites = {spec.name: number for number, spec in enumerate(program.custom_calls)}
        self.failed: ir.Block | None = None
        """Where every thread leaves after a failed custom call."""
        self.alone = not program.parallel
        """Whether only one thread passes the insertion point, whatever the guards."""

    def emit(self, nodes: Sequence[Node]) -> None:
        build = self.build
        kinds = [build.i64, build.i64, *([build.ptr] * 6)]
        large = _count_calls(nodes) > _OPTIMIZE_LIMIT
        arguments = build.function(
            "gristmill_body", kinds, ("noinline", "optnone") if large else ()
        )
        self.thread, self.threads = arguments[0], arguments[1]
        self.roots: dict[str, ir.Value] = dict(
            zip(("input", "output", "constant"), arguments[2:5], strict=True)
        )
        self.arena, self.state, self.context = arguments[5:8]
        self.scratch = self.arena
        if self.program.scratch_bytes:
            size = build.integer(self.program.scratch_bytes)
            private = build.binary("mul", self.thread, size)
            first = build.offset(self.arena, self.program.arena_bytes)
            self.scratch = build.dynamic_offset(first, private)
        if self.profile is not None:
            self.recorder = Recorder(build, self.profile, self.roots["output"], self.thread)
            self.recorder.start()
        if self.parallel:
            self.first = build.compare("eq", self.thread, build.integer(0))
            self.precompute_ranges(nodes)
        self.sequence(nodes)
        self.close()
        if self.recorder is not None:
            self.barrier(True)  # else the wait for the last kernel would fall outside
        build.create("llvm.return")
        if self.failed is not None:
            build.at(self.failed)
            build.create("llvm.return")

    def precompute_ranges(self, nodes: Sequence[Node]) -> None:
        """Every distinct split of tasks, computed once: it depends on the thread alone."""
        for node in nodes:
            if isinstance(node, Launch):
                for phase in node.phases:
                    if is_parallel(phase):
                        self.task_range(phase.tasks)
            elif isinstance(node, Copy):
                if copies_in_parallel(node):
                    self.task_range(_blocks(node))
            elif isinstance(node, Loop):
                self.precompute_ranges([*node.cond, *node.body])
            else:
                for branch in node.branches:
                    self.precompute_ranges(branch)

    def task_range(self, tasks: int) -> tuple[ir.Value, ir.Value]:
        """This thread's share of ``tasks``: contiguous, sizes differing by at most one."""
        known = self.ranges.get(tasks)
        if known is None:
            build = self.build
            total = build.integer(tasks)
            first = build.binary("mul", self.thread, total)
            last = build.binary("add", first, total)
            known = (
                build.binary("udiv", first, self.threads),
                build.binary("udiv", last, self.threads),
            )
            self.ranges[tasks] = known
        return known

    # Guards and barriers

    def serial(self) -> None:
        """Make sure that only thread 0 passes the insertion point."""
        if not self.alone and self.join is None:
            run, self.join = self.build.block(), self.build.block()
            self.build.branch_if(self.first, run, self.join)
            self.build.at(run)

    def close(self) -> None:
        """Make sure that every thread passes the insertion point."""
        if self.join is not None:
            self.build.branch(self.join)
            self.build.at(self.join)
            self.join = None

    def barrier(self, needed: bool) -> None:
        if needed and not self.alone:
            self.close()
            self.build.call("gristmill_barrier", [self.state, self.threads])
            if self.recorder is not None:
                self.recorder.waited()

    # Buffers

    def pointer(self, buffer: Buffer) -> ir.Value:
        if buffer.root == "arena":
            return self.build.offset(self.arena, buffer.offset)
        slot = self.build.offset(self.roots[buffer.root], 8 * buffer.index)
        return self.build.offset(self.build.load(slot, self.build.ptr), buffer.offset)

    # Nodes

    def sequence(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Launch):
                self.launch(node)
            elif isinstance(node, Copy):
                self.copy(node)
            elif self.parallel and is_serial(node):
                self.serial_control(node)
            else:
                self.control(node)

    def launch(self, node: Launch) -> None:
        barriers = node.barriers or [False] * len(node.phases)
        if node.spec.external is not None:
            self.external(node, node.spec.external, barriers[0])
            return
        for phase, barrier in zip(node.phases, barriers, strict=True):
            self.barrier(barrier)
            if self.alone or not is_parallel(phase):
                self.serial()
                self.phase(node, phase, self.build.integer(0), self.build.integer(phase.tasks))
            else:
                self.close()
                begin, end = self.task_range(phase.tasks)
                self.split(begin, end)
                self.phase(node, phase, begin, end)
                self.close()
            if self.recorder is not None:
                self.recorder.ran(node.spec.name, int(phase is node.phases[0]))

    def external(self, node: Launch, external: ExternalCall, barrier: bool) -> None:
        """Call a function outside the program, on thread 0; all threads leave if it fails."""
        build = self.build
        self.barrier(barrier)
        self.serial()
        buffers = [node.arguments[n] for n in external.arguments]
        buffers += [node.results[n] for n in external.results]
        table = self.arena if node.workspace is None else self.pointer(node.workspace)
        for number, buffer in enumerate(buffers):
            build.store(self.pointer(buffer), build.offset(table, 8 * number))
        site = self.sites[node.spec.name]
        row = build.offset(self.load_context(SITES, build.ptr), SITE_BYTES * site)
        function, data = (build.load(build.offset(row, at), build.ptr) for at in (0, 8))
        build.store(build.integer(0), build.offset(self.context, ACKNOWLEDGED))
        outputs = build.offset(table, 8 * len(external.arguments))
        operands = [data, table, outputs, build.offset(self.context, MESSAGE)]
        returned = build.call_pointer(function, operands, build.i32)
        wanted = build.load(build.offset(row, 16), build.i64)
        answered = build.compare("eq", self.load_context(ACKNOWLEDGED, build.i64), wanted)
        agreed = build.compare("eq", returned, build.constant(0, build.i32))
        done = build.binary("and", answered, agreed)
        code = build.select(done, build.integer(0), build.integer(-1 - site))
        build.store(code, build.offset(self.context, CODE))
        self.close()
        self.barrier(True)
        if self.failed is None:
            self.failed = build.block()
        after = build.block()
        fine = build.compare("eq", self.load_context(CODE, build.i64), build.integer(0))
        build.branch_if(fine, after, self.failed)
        build.at(after)
        if self.recorder is not None:
            self.recorder.ran(node.spec.name, 1)

    def load_context(self, offset: int, kind: ir.Type) -> ir.Value:
        return self.build.load(self.build.offset(self.context, offset), kind)

    def split(self, begin: ir.Value, end: ir.Value) -> None:
        """Guard what follows, up to the next :meth:`close`, by the thread having tasks."""
        run, self.join = self.build.block(), self.build.block()
        self.build.branch_if(self.build.compare("ult", begin, end), run, self.join)
        self.build.at(run)

    def phase(self, node: Launch, phase: Phase, begin: ir.Value, end: ir.Value) -> None:
        buffers = [*node.arguments, *node.results]
        pointers = [self.pointer(buffer) for buffer in buffers]
        # Never null: a kernel without a workspace gets the arena's address.
        pointers.append(self.arena if node.workspace is None else self.pointer(node.workspace))
        pointers.append(self.scratch)
        if phase.function not in self.declared:
            self.declared.add(phase.function)
            kinds = [self.build.ptr] * len(pointers) + [self.build.i64] * 2
            self.build.declare(phase.function, kinds)
        self.build.call(phase.function, [*pointers, begin, end])

    def copy(self, node: Copy) -> None:
        if node.source.nbytes == 0:
            return
        self.barrier(node.barrier)
        if self.alone or not copies_in_parallel(node):
            self.serial()
            size = self.build.integer(node.source.nbytes)
            source, target = self.pointer(node.source), self.pointer(node.destination)
            self.copy_bytes(source, target, size, node.guarded)
            self.copied()
            return
        self.close()
        begin, end = self.task_range(_blocks(node))
        self.split(begin, end)
        build = self.build
        block = build.integer(_COPY_BLOCK)
        first = build.binary("mul", begin, block)
        last = build.minimum(build.binary("mul", end, block), build.integer(node.source.nbytes))
        source = build.dynamic_offset(self.pointer(node.source), first)
        target = build.dynamic_offset(self.pointer(node.destination), first)
        self.copy_bytes(source, target, build.binary("sub", last, first), node.guarded)
        self.close()
        self.copied()

    def copied(self) -> None:
        if self.recorder is not None:
            self.recorder.ran(COPIES, 1)

    def copy_bytes(self, source: ir.Value, target: ir.Value, size: ir.Value, guarded: bool) -> None:
        """A memcpy; a guarded one does nothing when the two are the same memory."""
        if not guarded:
            self.build.memcpy(target, source, size)
            return
        run, after = self.build.block(), self.build.block()
        self.build.branch_if(self.build.compare("ne", source, target), run, after)
        self.build.at(run)
        self.build.memcpy(target, source, size)
        self.build.branch(after)
        self.build.at(after)

    def serial_control(self, node: Loop | Branch) -> None:
        """Control flow that thread 0 executes alone."""
        self.barrier(node.barrier)
        if self.alone:
            self.control(node)
            return
        self.serial()
        join, self.join, self.alone = self.join, None, True
        self.control(node)
        self.join, self.alone = join, False

    def control(self, node: Loop | Branch) -> None:
        self.close()
        if isinstance(node, Loop):
            self.loop(node)
        else:
            self.conditional(node)

    def loop(self, node: Loop) -> None:
        build = self.build
        head, body, after = build.block(), build.block(), build.block()
        build.branch(head)
        build.at(head)
        self.sequence(node.cond)
        self.close()
        self.barrier(node.barrier)
        build.branch_if(self.is_true(node.predicate), body, after)
        build.at(body)
        self.sequence(node.body)
        self.close()
        build.branch(head)
        build.at(after)

    def is_true(self, buffer: Buffer) -> ir.Value:
        value = self.build.load(self.pointer(buffer), self.build.i8)
        return self.build.compare("ne", value, self.build.constant(0, self.build.i8))

    def conditional(self, node: Branch) -> None:
        build = self.build
        self.barrier(node.barrier)
        blocks = [build.block() for _ in node.branches]
        after = build.block()
        if node.boolean:
            build.branch_if(self.is_true(node.selector), blocks[0], blocks[1])
        else:
            index = build.load(self.pointer(node.selector), build.i32)
            for number, block in enumerate(blocks[:-1]):
                following = build.block()
                chosen = build.compare("eq", index, build.constant(number, build.i32))
                build.branch_if(chosen, block, following)
                build.at(following)
            build.branch(blocks[-1])
        for block, branch in zip(blocks, node.branches, strict=True):
            build.at(block)
            self.sequence(branch)
            self.close()
            build.branch(after)
        build.at(after)


def _count_calls(nodes: Sequence[Node]) -> int:
    count = 0
    for node in nodes:
        if isinstance(node, Launch):
            count += len(node.phases)
        elif isinstance(node, Loop):
            count += _count_calls(node.cond) + _count_calls(node.body)
        elif isinstance(node, Branch):
            count += sum(map(_count_calls, node.branches))
    return count


def _blocks(node: Copy) -> int:
    return -(-node.source.nbytes // _COPY_BLOCK)
