# SPDX-License-Identifier: Apache-2.0
"""In-place updates on a GPU: ``dynamic_update_slice`` and ``scatter``.

As on the CPU a first launch copies the operand, and does nothing where the result is the operand's own buffer. Then an
element of an update goes to each thread. Where several updates may meet at an element of a ``scatter``:

* *direct*: they do not (unique indices, or a single one): read, combine, write.
* *atomic*: the body is one integer operation of 32 or 64 bits, or a float sum, maximum or minimum: an atomic operation.
* *last*: the body keeps the update: an atomic maximum finds the last update of each element in row-major order, and
  in the next launch that one is written, so that results do not change from run to run.
* *serial*: anything else: a thread walks all the indices, one for each place in the dimensions along which windows do
  not move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, memref

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import FusionSource, element_cost
from gristmill.compiler.emitters.cpu.scatter_problem import ScatterProblem
from gristmill.compiler.emitters.cpu.update import read_only_by, same_buffer
from gristmill.compiler.emitters.elemental.contraction import loop_nest, simple_reducer
from gristmill.compiler.emitters.elemental.movement import clamped_starts
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import BUFFER_ALIGNMENT, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import where
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.dialects import hlo
from gristmill.runtime.types import ArrayType, ElementType, element_type

_I32, _I64, _PRED = map(element_type, ("i32", "i64", "i1"))


def copy_launch(frame: GpuFrame, pairs: Sequence[tuple[int, int]]) -> None:
    """Add the launch that copies argument to result, for each pair, unless they are one buffer."""
    arrays = [frame.source.results[result] for _, result in pairs]
    widths = [BUFFER_ALIGNMENT // max(1, array.element.nbytes) for array in arrays]
    items = max(-(-a.size // w) for a, w in zip(arrays, widths, strict=True))

    def copy(launch: LaunchFrame, item: Index) -> None:
        for (argument, result), array, width in zip(pairs, arrays, widths, strict=True):
            source, target = launch.arguments[argument], launch.results[result]
            true = build.constant(_PRED, True)
            different = arith.XOrIOp(same_buffer(source, target), true).result
            with where(different):
                _copy_unit(build.flatten(source), build.flatten(target), array, item, width)

    launch_items(frame, max(1, items), copy, pairs)


def _copy_unit(
    source: ir.Value, target: ir.Value, array: ArrayType, item: Index, width: int
) -> None:
    first = build.mul(item, width)
    whole = array.size // width

    def copy(lanes: int) -> None:
        places = [build.index_value(build.add(first, lane)) for lane in range(lanes)]
        values = [memref.LoadOp(source, [at]).result for at in places]
        for at, value in zip(places, values, strict=True):
            memref.StoreOp(value, target, [at])

    with where(build.less(item, whole)):
        copy(width)
    if array.size % width:
        with where(build.equal(item, whole)):
            copy(array.size % width)


class UpdateEmitter:
    """Compiles a fusion whose root is ``dynamic_update_slice``; its operand is a parameter."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        operand, update = self.node.operands[:2]
        pair = (operand.result, 0)
        frame = GpuFrame(self.source, noalias=False)
        copy_launch(frame, [pair])
        if update.type.size:
            launch_items(frame, update.type.size, self._write)
        inplace = [pair] if read_only_by(operand, self.node) else []
        cost = update.type.size * element_cost(self.source.graph)
        return frame.finish("update", cost, inplace)

    def _write(self, launch: LaunchFrame, item: Index) -> None:
        e = launch.elemental
        operand, update, *starts = self.node.operands
        begin = clamped_starts(e, starts, operand.shape, update.shape)
        index = build.delinearize(item, update.shape)
        at = [build.add(b, i) for b, i in zip(begin, index, strict=True)]
        launch.store(0, e.value(update, index), at, self.node.type)


def _atomic_kind(body: str | None, element: ElementType) -> str | None:
    """The ``memref.atomic_rmw`` kind that is ``body`` on ``element``, or ``None``."""
    if body is None or element.bits not in (32, 64) or element.kind == "complex":
        return None
    if element.is_float:
        kinds = {"add": "addf", "maximum": "maximumf", "minimum": "minimumf"}
    else:
        sign = "u" if element.is_unsigned else "s"
        kinds = {"add": "addi", "maximum": f"max{sign}", "minimum": f"min{sign}"}
        kinds |= {"and": "andi", "or": "ori"}
    return kinds.get(body)


class ScatterEmitter:
    """Compiles one ``scatter``; every operand is a parameter. See the module docstring."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        self.problem = ScatterProblem(self.node)
        self.shape = self.problem.updates[0].shape
        body = source.functions[self.node.symbol("to_apply")]
        count = self.problem.count
        self.atomic = None
        if count == 1 and not self.problem.captures:
            self.atomic = _atomic_kind(simple_reducer(body), self.node.type.element)
        #: The number of the last update of each element.
        number = _I32 if math.prod(self.shape) < 1 << 31 else _I64
        self.winners = ArrayType(self.problem.inputs[0].shape, number)
        self.keeps_update = body.results == body.parameters[count : 2 * count]

    def _is_direct(self) -> bool:
        assert self.node.op is not None
        unique = hlo.boolean(self.node.op, "unique_indices")
        return unique or math.prod(self._extents(self.problem.batch)) == 1

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        roots, inputs = self.source.graph.results, self.problem.inputs
        pairs = [(inputs[root.result].result, n) for n, root in enumerate(roots)]
        assert len(roots) == self.problem.count, "the fusion pass keeps every result of a scatter"
        updates, elements = math.prod(self.shape), inputs[0].type.size
        direct = self._is_direct()
        last = self.keeps_update and not direct and elements > 0
        frame = GpuFrame(self.source, self.winners.nbytes if last else 0, noalias=False)
        copy_launch(frame, pairs)
        if updates and elements:
            if last:
                launch_items(frame, elements, self._clear)
                launch_items(frame, updates, self._compete)
                launch_items(frame, updates, self._write_last)
            elif direct or self.atomic is not None:
                launch_items(frame, updates, self._apply)
            else:
                launch_items(frame, math.prod(self._extents(self.problem.apart)), self._walk)
        inplace = [p for p, x in zip(pairs, inputs, strict=True) if read_only_by(x, self.node)]
        return frame.finish("scatter", updates * 10, inplace)

    def _extents(self, dims: Sequence[int]) -> list[int]:
        return [self.shape[d] for d in dims]

    def _place(
        self, launch: LaunchFrame, batch: list[Index], window: list[Index]
    ) -> tuple[list[Index], ir.Value | None]:
        """Where an update's element goes, and whether that is inside (``None``: always)."""
        problem = self.problem
        at = problem.starts(launch.elemental, batch)
        for d, offset in zip(problem.window_dims(), window, strict=True):
            at[d] = build.add(at[d], offset)
        return at, problem.inside(at, range(len(at)))

    def _update_place(
        self, launch: LaunchFrame, item: Index
    ) -> tuple[list[Index], list[Index], ir.Value | None]:
        """The index in the updates of linear ``item``, and :meth:`_place` of it."""
        index = build.delinearize(item, self.shape)
        batch, window = (
            [index[d] for d in dims] for dims in (self.problem.batch, self.problem.window)
        )
        return index, *self._place(launch, batch, window)

    def _apply(self, launch: LaunchFrame, item: Index) -> None:
        index, at, inside = self._update_place(launch, item)
        with where(inside), launch.elemental.scope():
            if self._is_direct():
                self._combine(launch, at, index)
            else:
                self._combine_atomically(launch, at, index)

    def _combine(self, launch: LaunchFrame, at: list[Index], index: list[Index]) -> None:
        e, inputs = launch.elemental, self.problem.inputs
        old = [
            build.load(buffer, at, x.type.element)
            for buffer, x in zip(launch.results, inputs, strict=True)
        ]
        new = [e.value(x, index) for x in self.problem.updates]
        values = e.call(self.node.symbol("to_apply"), [*old, *new], self.problem.captures)
        for n, (value, x) in enumerate(zip(values, inputs, strict=True)):
            launch.store(n, value, at, x.type)

    def _combine_atomically(self, launch: LaunchFrame, at: list[Index], index: list[Index]) -> None:
        assert self.atomic is not None, "asked for only where there is one"
        value = launch.elemental.value(self.problem.updates[0], index)
        _atomic(self.atomic, value, launch.results[0], at)

    def _walk(self, launch: LaunchFrame, item: Index) -> None:
        """Apply the updates that may meet at one place, in order: every scatter index, and where windows move."""
        e, problem = launch.elemental, self.problem
        place = build.delinearize(item, self._extents(problem.apart))
        moving = [d for d in problem.window if d not in problem.apart]

        def update(turn: list[Index], _: list[ir.Value]) -> list[ir.Value]:
            component = dict(
                zip([*problem.apart, *problem.batch, *moving], [*place, *turn], strict=True)
            )
            batch, window = (
                [component[d] for d in dims] for dims in (problem.batch, problem.window)
            )
            at, inside = self._place(launch, batch, window)
            with where(inside), e.scope():
                self._combine(launch, at, problem.update_index(batch, window))
            return []

        loop_nest(e, self._extents([*problem.batch, *moving]), [], update)

    # The last update of each element.

    def _winners(self, launch: LaunchFrame) -> ir.Value:
        return build.view(launch.workspace, 0, self.winners)

    def _clear(self, launch: LaunchFrame, item: Index) -> None:
        number = self.winners.element
        nobody = build.constant(number, -1)
        build.store(nobody, build.flatten(self._winners(launch)), (item,), number)

    def _compete(self, launch: LaunchFrame, item: Index) -> None:
        _, at, inside = self._update_place(launch, item)
        with where(inside):
            _atomic("maxs", self._number(item), self._winners(launch), at)

    def _write_last(self, launch: LaunchFrame, item: Index) -> None:
        index, at, inside = self._update_place(launch, item)
        with where(inside), launch.elemental.scope():
            winner = build.load(self._winners(launch), at, self.winners.element)
            same = arith.CmpIOp(arith.CmpIPredicate.eq, winner, self._number(item)).result
            with where(same), launch.elemental.scope():
                values = [launch.elemental.value(x, index) for x in self.problem.updates]
                for n, (value, x) in enumerate(zip(values, self.problem.inputs, strict=True)):
                    launch.store(n, value, at, x.type)

    def _number(self, item: Index) -> ir.Value:
        kind = build.register_type(self.winners.element)
        return arith.IndexCastOp(kind, build.index_value(item)).result


def _atomic(kind: str, value: ir.Value, buffer: ir.Value, at: Sequence[Index]) -> None:
    indices = [build.index_value(i) for i in at]
    memref.AtomicRMWOp(arith.AtomicRMWKind[kind], value, buffer, indices)
