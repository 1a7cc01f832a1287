# SPDX-License-Identifier: Apache-2.0
"""Compile a program for a GPU and run its kernels on the simulator, step by step, without the runtime's executor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.codegen.ptx import to_ptx
from gristmill.compiler.codegen.simulator import to_simulator_objects
from gristmill.compiler.compile import CompileOptions, import_source
from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.compiler.emitters.library import emit_kernels, gpu_module
from gristmill.compiler.lowering.nvvm import lower_to_nvvm
from gristmill.compiler.passes.pipeline import RunOptions
from gristmill.compiler.program import RtProgram, build_program
from gristmill.compiler.program.tree import Buffer, Copy, Launch, Loop, Node, read_module
from gristmill.compiler.target import GpuTarget, gpu_target
from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.simulator_report import describe

Array = np.ndarray[Any, Any]

_LIBC = ctypes.CDLL(None)
_SYMBOLS = {
    n: ctypes.cast(getattr(_LIBC, n), ctypes.c_void_p).value or 0 for n in ("malloc", "free")
}


@dataclass
class GpuProgram:
    """A program compiled for a GPU.

    Attributes:
        rt: the program.
        specs: its kernels, by name.
        module: the module with its ``gpu.module``, as the emitters made it.
    """

    rt: RtProgram
    specs: dict[str, KernelSpec]
    module: ir.Module
    target: GpuTarget

    def ptx(self) -> str:
        """The PTX of all kernels."""
        with self.module.context, ir.Location.unknown():
            copy = ir.Module.parse(str(self.module))
            lower_to_nvvm(copy)
            return to_ptx(copy, self.target)

    @cached_property
    def _objects(self) -> list[bytes]:
        with self.module.context:
            return to_simulator_objects(self.module, host_target())

    def run(self, *inputs: Array, order: int = 0) -> list[Array]:
        """The results, computed by simulated kernels whose threads run in the permutation ``order``."""
        aliases = {i: s.alias for i, s in enumerate(self.rt.inputs) if s.alias is not None}
        nodes = read_module(self.rt.module, self.specs, aliases)
        with link(self._objects, _SYMBOLS) as code:
            return _Run(self.rt, code, inputs, order).go(nodes)


def compile_for_gpu(text: str, chip: str = "sm_80", **options: Any) -> GpuProgram:
    """Compile StableHLO text."""
    module, target = import_source(text), gpu_target(chip)
    with module.context, ir.Location.unknown():
        pipeline = CompileOptions(**options).build_pipeline()
        pipeline.run(module, options=RunOptions(verify=False, keep_repro=False))
        library = emit_kernels(module, target)
        rt = build_program(module, library.specs, target)
        specs = {spec.name: spec for spec in library.specs.values()}
        return GpuProgram(rt, specs, gpu_module(library), target)


def run_on_simulator(text: str, *inputs: Array, chip: str = "sm_80", order: int = 0) -> list[Array]:
    """The results of a StableHLO program on the simulator."""
    return compile_for_gpu(text, chip).run(*inputs, order=order)


class _Run:
    def __init__(self, rt: RtProgram, code: LoadedCode, inputs: Sequence[Array], order: int):
        self.code, self.order = code, order
        self.results = [np.zeros(s.type.shape, s.type.element.dtype) for s in rt.outputs]
        own = [np.array(x, s.type.element.dtype) for x, s in zip(inputs, rt.inputs, strict=True)]
        constants = [np.ascontiguousarray(c.data) for c in rt.constants]
        self.memory: dict[tuple[str, int], Array] = {("arena", 0): _aligned(rt.arena_bytes)}
        for root, arrays in (("input", own), ("constant", constants)):
            for index, array in enumerate(arrays):
                self.memory[root, index] = _aligned(array.nbytes)
                self.memory[root, index][: array.nbytes] = _bytes(array)
        for index, array in enumerate(self.results):
            self.memory["output", index] = _aligned(array.nbytes)

    def go(self, nodes: Sequence[Node]) -> list[Array]:
        self.nodes(nodes)
        for index, array in enumerate(self.results):
            _bytes(array)[:] = self.memory["output", index][: array.nbytes]
        return self.results

    def at(self, buffer: Buffer) -> Array:
        memory = self.memory[buffer.root, buffer.index]
        return memory[buffer.offset : buffer.offset + buffer.nbytes]

    def nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Launch):
                self.launch(node)
            elif isinstance(node, Copy):
                self.at(node.destination)[:] = self.at(node.source)
            elif isinstance(node, Loop):
                self.nodes(node.cond)
                while self.at(node.predicate)[0]:
                    self.nodes(node.body)
                    self.nodes(node.cond)
            else:
                raw = self.at(node.selector)
                count = len(node.branches)
                chosen = 1 - int(raw[0]) if node.boolean else int(raw.view(np.int32)[0])
                self.nodes(node.branches[chosen if 0 <= chosen < count else count - 1])

    def launch(self, node: Launch) -> None:
        workspace = [node.workspace] if node.workspace else []
        addresses = [self.at(b).ctypes.data for b in [*node.arguments, *node.results, *workspace]]
        if not workspace:
            addresses.append(self.memory["arena", 0].ctypes.data)
        for phase in node.phases:
            assert phase.launch is not None
            extents = (*phase.launch.grid, *phase.launch.block)
            _call(self.code, phase.function, addresses, extents, self.order)


def simulate(
    text: str,
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    *arrays: Array,
    order: int = 0,
) -> None:
    """Run a kernel of a hand-written ``gpu.module`` on the simulator; ``arrays`` are what it reads and writes."""
    with ir.Context(), ir.Location.unknown():
        objects = to_simulator_objects(ir.Module.parse(text), host_target())
    with link(objects, _SYMBOLS) as code:
        _call(code, kernel, [array.ctypes.data for array in arrays], (*grid, *block), order)


def _call(
    code: LoadedCode, name: str, addresses: Sequence[int], extents: Sequence[int], order: int
) -> None:
    """Call a simulated kernel; raises ``RuntimeError`` with its report."""
    values = (ctypes.c_uint64 * len(addresses))(*addresses)
    base = ctypes.addressof(values)
    pointers = (ctypes.c_uint64 * len(addresses))(*(base + 8 * i for i in range(len(addresses))))
    report = (ctypes.c_int64 * 8)()
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    )
    result = kind(code.address(name))(pointers, (ctypes.c_uint32 * 6)(*extents), order, report)
    if result:
        raise RuntimeError(f"{name}: {describe(report)}")


def _aligned(nbytes: int) -> Array:
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes + 64]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
