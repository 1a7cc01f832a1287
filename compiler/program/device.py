# SPDX-License-Identifier: Apache-2.0
"""From an ``rt`` program to a device program: launches, copies and control flow as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gristmill.compiler.emitters.kernel import KernelSpec, Phase
from gristmill.compiler.program.build import RtProgram
from gristmill.compiler.program.tree import Buffer, Copy, Launch, Loop, Node, read_module
from gristmill.compiler.target import GpuTarget
from gristmill.errors import LoweringError
from gristmill.runtime.device_program import (
    BufferRange,
    ConditionalStep,
    CopyStep,
    DeviceKernel,
    DeviceProgram,
    Images,
    LaunchStep,
    Step,
    WhileStep,
    check_program,
)

#: Limits of every chip: CUDA C++ Programming Guide, "Features and Technical Specifications".
MOST_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)

#: What a kernel without a workspace gets in its place: an address that it does not use.
_NOWHERE = BufferRange("arena", 0, 0, 0)


def build_device_program(
    rt: RtProgram, specs: Mapping[str, KernelSpec], images: Images
) -> DeviceProgram:
    """The program that a device with kernels runs; ``specs`` by kernel name.

    Raises ``LoweringError`` for a launch that no GPU takes.
    """
    assert isinstance(rt.target, GpuTarget), "a device program is for a GPU"
    aliases = {i: s.alias for i, s in enumerate(rt.inputs) if s.alias is not None}
    builder = _Builder(rt.target)
    steps = builder.steps(read_module(rt.module, specs, aliases))
    program = DeviceProgram(
        name=rt.name,
        chip=rt.target.cpu,
        inputs=rt.inputs,
        outputs=rt.outputs,
        constants=[constant.data for constant in rt.constants],
        arena_bytes=rt.arena_bytes,
        kernels=tuple(builder.kernels),
        steps=steps,
        images=images,
    )
    check_program(program)
    return program


class _Builder:
    def __init__(self, target: GpuTarget) -> None:
        self._target = target
        self.kernels: list[DeviceKernel] = []
        self._numbers: dict[str, int] = {}

    def steps(self, nodes: Sequence[Node]) -> tuple[Step, ...]:
        return tuple(step for node in nodes for step in self._node(node))

    def _node(self, node: Node) -> list[Step]:
        if isinstance(node, Launch):
            return [self._launch(node, phase) for phase in node.phases]
        if isinstance(node, Copy):
            return [CopyStep(_range(node.source), _range(node.destination))]
        if isinstance(node, Loop):
            cond, body = self.steps(node.cond), self.steps(node.body)
            return [WhileStep(_range(node.predicate), cond, body)]
        branches = tuple(self.steps(branch) for branch in node.branches)
        return [ConditionalStep(_range(node.selector), branches, node.boolean)]

    def _launch(self, node: Launch, phase: Phase) -> LaunchStep:
        workspace = _NOWHERE if node.workspace is None else _range(node.workspace)
        reads = tuple(map(_range, node.arguments))
        writes = (*map(_range, node.results), workspace)
        return LaunchStep(self._kernel(phase, len(reads) + len(writes)), reads, writes)

    def _kernel(self, phase: Phase, parameters: int) -> int:
        if phase.function not in self._numbers:
            launch = phase.launch
            assert launch is not None, f"{phase.function} is not a GPU phase"
            fits = all(g <= most for g, most in zip(launch.grid, _MOST_BLOCKS, strict=True))
            if math.prod(launch.block) > MOST_THREADS or not fits:
                raise LoweringError(
                    f"{phase.function}: a grid of {launch.grid} blocks of {launch.block} threads is more than a "
                    "GPU launches"
                )
            if launch.shared_bytes > self._target.shared_bytes:
                raise LoweringError(
                    f"{phase.function}: a block wants {launch.shared_bytes} bytes of workgroup memory, and "
                    f"{self._target.cpu} has {self._target.shared_bytes}"
                )
            self._numbers[phase.function] = len(self.kernels)
            self.kernels.append(
                DeviceKernel(
                    phase.function, launch.grid, launch.block, launch.shared_bytes, parameters
                )
            )
        return self._numbers[phase.function]


def _range(buffer: Buffer) -> BufferRange:
    assert buffer.root in ("input", "output", "constant", "arena")
    return BufferRange(buffer.root, buffer.index, buffer.offset, buffer.nbytes)
