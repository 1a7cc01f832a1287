# SPDX-License-Identifier: Apache-2.0
"""The frame of a GPU kernel: its ``gpu.module``, the launches in it and the computation inside them.

A launch is one ``gpu.func`` with known grid and block sizes; a kernel that needs all blocks to have finished before it
goes on has several. Within one, threads of a block meet at :meth:`LaunchFrame.barrier` and share
:meth:`LaunchFrame.shared` memory; threads of a warp exchange values by :meth:`LaunchFrame.shuffle`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir
from mlir.dialects import arith, gpu

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.elemental import Elemental, buffer_source
from gristmill.compiler.emitters.kernel import (
    KernelDefinition,
    KernelSpec,
    LaunchDimensions,
    Phase,
)
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.types import ArrayType

#: Alignment of every buffer a kernel is given (the ABI in ``emitters/kernel.py``): one 16-byte access.
BUFFER_ALIGNMENT = 16

#: Threads of a warp.
WARP = 32

#: Name of the ``gpu.module`` that holds the launches.
GPU_MODULE = "kernels"

_AXES = ("x", "y", "z")


@dataclass
class LaunchFrame:
    """One launch being emitted.

    Attributes:
        arguments, results: memrefs of the kernel's operands and results.
        workspace: byte memref.
        grid, block: the launch's extents, x first.
        elemental: the fused computation over the arguments.
    """

    arguments: list[ir.Value]
    results: list[ir.Value]
    workspace: ir.Value
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    elemental: Elemental
    function: gpu.GPUFuncOp
    shared_bytes: int = 0
    _ids: dict[tuple[str, int], Index] = field(default_factory=dict[tuple[str, int], Index])

    def thread(self, axis: int = 0) -> Index:
        """The thread's number in its block along ``axis``; 0 where the block has one thread."""
        return self._id("thread", axis, self.block)

    def block_number(self, axis: int = 0) -> Index:
        """The block's number in the grid along ``axis``; 0 where the grid has one block."""
        return self._id("block", axis, self.grid)

    def _id(self, kind: str, axis: int, extents: tuple[int, int, int]) -> Index:
        if extents[axis] == 1:
            return 0
        if (kind, axis) not in self._ids:
            make = gpu.ThreadIdOp if kind == "thread" else gpu.BlockIdOp
            dimension = ir.Attribute.parse(f"#gpu<dim {_AXES[axis]}>")
            entry = self.function.entry_block
            with ir.InsertionPoint.at_block_begin(entry):
                self._ids[kind, axis] = make(dimension).result
        return self._ids[kind, axis]

    def lane(self) -> Index:
        """The thread's number in its warp."""
        return build.mod(self.thread(), WARP)

    def warp(self) -> Index:
        """The warp's number in its block."""
        return build.div(self.thread(), WARP)

    def global_thread(self) -> Index:
        """The thread's number in the grid, along x."""
        return build.add(build.mul(self.block_number(), self.block[0]), self.thread())

    def barrier(self) -> None:
        """Wait for every thread of the block; what they wrote to shared and global memory is seen after it."""
        gpu.BarrierOp()

    def shared(self, shape: Sequence[int], kind: ir.Type) -> ir.Value:
        """A memref in workgroup memory, one for each block, uninitialised, aligned like buffers."""
        space = ir.Attribute.parse("#gpu.address_space<workgroup>")
        memref = ir.MemRefType.get(list(shape), kind, memory_space=space)
        self.shared_bytes += math.prod(shape) * type_bytes(kind)
        attributes = self.function.attributes
        aligned = ir.Attribute.parse(f"{{llvm.align = {BUFFER_ALIGNMENT} : i64}}")
        before = (
            list(ir.ArrayAttr(attributes["workgroup_attrib_attrs"]))
            if "workgroup_attrib_attrs" in attributes
            else []
        )
        attributes["workgroup_attrib_attrs"] = ir.ArrayAttr.get([*before, aligned])
        i64 = ir.IntegerType.get_signless(64)
        attributes["workgroup_attributions"] = ir.IntegerAttr.get(i64, len(before) + 1)
        return self.function.entry_block.add_argument(memref, ir.Location.unknown())

    def reside(self, blocks: int) -> None:
        """Ask for code with so few registers that ``blocks`` blocks fit a multiprocessor, but with all of those.

        Without it the assembler guesses, and may spill registers for a residency that nobody needs.
        """
        i32 = ir.IntegerType.get_signless(32)
        self.function.attributes["nvvm.minctasm"] = ir.IntegerAttr.get(i32, blocks)

    def shuffle(
        self, value: ir.Value, offset: int, mode: str = "xor", width: int = WARP
    ) -> ir.Value:
        """``value`` (32 or 64 bits) of another lane.

        ``mode`` says which: ``xor`` lane ^ offset, ``down`` lane + offset, ``up`` lane - offset, ``idx`` offset.
        All lanes of the warp must take part.
        """
        i32 = ir.IntegerType.get_signless(32)
        lanes = [arith.ConstantOp(i32, number).result for number in (offset, width)]
        return gpu.ShuffleOp(
            value, *lanes, ir.Attribute.parse(f"#gpu<shuffle_mode {mode}>")
        ).results[0]

    def store(self, number: int, value: ir.Value, index: Sequence[Index], array: ArrayType) -> None:
        """Store one element of result ``number``."""
        build.store(value, self.results[number], index, array.element)


class GpuFrame:
    """Collects the launches of one kernel; use as the CPU's ``KernelFrame``.

    Buffers are marked ``noalias`` under the same rule for ``inplace`` pairs, and 16-byte aligned.
    """

    def __init__(self, source: FusionSource, workspace_bytes: int = 0, *, noalias: bool = True):
        assert isinstance(source.target, GpuTarget), "a GPU emitter needs a GPU target"
        self.source, self.workspace_bytes, self.noalias = source, workspace_bytes, noalias
        self._phases: list[Phase] = []
        self.module = ir.Module.create(loc=ir.Location.unknown())
        with ir.InsertionPoint(self.module.body):
            gpu_module = gpu.GPUModuleOp(GPU_MODULE)
        self.body = gpu_module.bodyRegion.blocks.append()

    def launch(
        self,
        body: Callable[[LaunchFrame], None],
        grid: Sequence[int] = (1,),
        block: Sequence[int] = (1,),
        copies: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a launch of ``grid`` blocks of ``block`` threads, whose code ``body`` emits.

        ``copies`` as in :class:`Phase`.
        """
        grid3, block3 = _extents(grid), _extents(block)
        suffix = f"_{len(self._phases)}" if self._phases else ""
        name = f"{self.source.name}{suffix}"
        arrays = [*self.source.arguments, *self.source.results]
        kinds: list[ir.Type] = [build.memref_type(a) for a in arrays]
        kinds.append(build.bytes_type(self.workspace_bytes))
        i64 = ir.IntegerType.get_signless(64)
        attributes: dict[str, ir.Attribute] = {
            "llvm.align": ir.IntegerAttr.get(i64, BUFFER_ALIGNMENT)
        }
        if self.noalias:
            attributes["llvm.noalias"] = ir.UnitAttr.get()
        with ir.InsertionPoint(self.body):
            function = gpu.GPUFuncOp(
                ir.FunctionType.get(kinds, []),
                name,
                arg_attrs=[attributes] * len(kinds),
                kernel=True,
                known_block_size=block3,
                known_grid_size=grid3,
            )
        entry = function.add_entry_block()
        values = list(entry.arguments)
        count = len(self.source.arguments)
        arguments, results, workspace = values[:count], values[count : len(arrays)], values[-1]
        sources = [
            buffer_source(buffer, array.element)
            for buffer, array in zip(arguments, self.source.arguments, strict=True)
        ]
        elemental = Elemental(self.source.graph, sources, self.source.functions)
        frame = LaunchFrame(arguments, results, workspace, grid3, block3, elemental, function)
        with ir.InsertionPoint(entry):
            body(frame)
            gpu.ReturnOp([])
        dimensions = LaunchDimensions(grid3, block3, frame.shared_bytes)
        self._phases.append(Phase(name, math.prod(grid3), True, tuple(copies), dimensions))

    def finish(
        self, kind: str, flops: int = 0, inplace: Sequence[tuple[int, int]] = ()
    ) -> KernelDefinition:
        """The finished kernel."""
        nbytes = sum(a.nbytes for a in (*self.source.arguments, *self.source.results))
        spec = KernelSpec(
            self.source.name,
            tuple(self._phases),
            self.source.arguments,
            self.source.results,
            self.workspace_bytes,
            0,
            flops,
            nbytes,
            tuple(inplace),
            kind,
        )
        return KernelDefinition(spec, self.module)


def _extents(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z


def type_bytes(kind: ir.Type) -> int:
    """Bytes of one value of ``kind`` in memory."""
    if isinstance(kind, ir.VectorType):
        return math.prod(kind.shape) * type_bytes(kind.element_type)
    if isinstance(kind, ir.ComplexType):
        return 2 * type_bytes(kind.element_type)
    if isinstance(kind, ir.IndexType):
        return 8
    if isinstance(kind, ir.IntegerType):
        return -(-kind.width // 8)
    return ir.FloatType(kind).width // 8
