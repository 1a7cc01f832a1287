# SPDX-License-Identifier: Apache-2.0
"""The sort emitter: every row along the sorted dimension is one task.

Five ways, by what the comparator turns out to be (:mod:`.sort_keys`):

* *keys*: one operand whose integer key gives its value back. Keys are sorted by vector networks
  (:mod:`.sort_network`); zeros and NaNs that the comparator calls equal are put back in their order afterwards.
* *packed*: keys of up to 32 bits with any operands: the key and the position are packed into 64 bits, which
  makes the sort stable, and the operands are gathered by position.
* *selected*: as packed, but where only the first elements of a row are read, they are selected (:mod:`.sort_select`).
* *merged*: the same for keys of 64 bits: pairs of key and position are merged (:mod:`.sort_merge`).
* *general*: any other comparator: a stable merge sort of tuples.

A few long rows are sorted in blocks by all threads, and the blocks merged pairwise, one phase a level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import either
from gristmill.compiler.emitters.cpu.frame import (
    PARALLEL_THRESHOLD_NS,
    FusionSource,
    KernelFrame,
    PhaseFrame,
)
from gristmill.compiler.emitters.cpu.sort_keys import (
    I32,
    I64,
    SortKey,
    classify,
    find_key,
    from_integer,
    has_integer_order,
    loses_bits,
    to_integer,
)
from gristmill.compiler.emitters.cpu.sort_merge import MergeSorter
from gristmill.compiler.emitters.cpu.sort_network import VectorSorter
from gristmill.compiler.emitters.cpu.sort_select import Selection
from gristmill.compiler.emitters.elemental import Elemental, scalar_source
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.compiler.passes.limit_sorts import LEADING
from gristmill.runtime.types import ArrayType, ElementType, element_type

TaskBody = Callable[[PhaseFrame, ir.Value], None]

_PRED = element_type("i1")

#: Rows longer than this many blocks are sorted by all threads together where there are few of them.
_SHARED_BLOCKS = 4
#: Elements that one task of the last phase of a shared sort writes.
_STORE_CHUNK = 16384


@dataclass(frozen=True)
class Rows:
    """The rows of a sort: positions along ``dimension`` for every index of the other dimensions."""

    shape: tuple[int, ...]
    dimension: int

    @property
    def length(self) -> int:
        """Elements of one row."""
        return self.shape[self.dimension]

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(s for d, s in enumerate(self.shape) if d != self.dimension)

    def index(self, row: Index, position: Index) -> list[Index]:
        """The array index of ``position`` in ``row``."""
        others = [s for d, s in enumerate(self.shape) if d != self.dimension]
        result = build.delinearize(row, others)
        result.insert(self.dimension, position)
        return result


class SortEmitter:
    """Compiles one ``sort`` and the data movement fused into its operands."""

    def __init__(self, source: FusionSource):
        self.source = source
        self.node: Node = source.graph.results[0]
        count = len(self.node.siblings)
        self.inputs = self.node.operands[:count]
        self.captures = self.node.operands[count:]
        self.rows = Rows(self.inputs[0].shape, self.node.integer("dimension"))
        key = find_key(source.functions[self.node.symbol("comparator")])
        usable = key is not None and has_integer_order(key.element) and self.rows.length < 1 << 31
        self.key = key if usable else None

    def _is_plain(self, key: SortKey) -> bool:
        return (
            len(self.inputs) == 1
            and key.is_identity
            and (key.merges_zeros == key.merges_nans or not key.element.is_float)
        )

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        if self.node.type.size == 0:
            frame = KernelFrame(self.source)
            frame.phase(lambda phase: None)
            return frame.finish("sort")
        if self.key is None:
            return self._emit_general()
        selection = self._selection(self.key)
        if selection is not None:
            return self._emit_selected(self.key, selection)
        packed = not self._is_plain(self.key)
        if packed and self.key.element.bits > 32:
            return self._emit_merged(self.key)
        integer = I64 if packed else self.key.integer
        sorter = VectorSorter.of(integer, self.source.target)
        return _KeySort(self, self.key, sorter, packed).emit()

    def _selection(self, key: SortKey) -> Selection | None:
        """How to select the elements that are read, if that is better than sorting."""
        assert self.node.op is not None
        if key.element.bits > 32 or LEADING not in self.node.op.attributes:
            return None
        leading = self.node.integer(LEADING)
        return Selection.of(VectorSorter.of(I64, self.source.target), self.rows.length, leading)

    def _emit_selected(self, key: SortKey, selection: Selection) -> KernelDefinition:
        frame = KernelFrame(self.source, scratch_bytes=selection.scratch_bytes)

        def select_row(phase: PhaseFrame, row: ir.Value) -> None:
            def key_at(position: Index) -> ir.Value:
                with phase.elemental.scope():
                    value = self.key_value(phase, key, self.rows.index(row, position))
                    return to_integer(key, value)

            buffer = selection.emit(phase.scratch, key_at)

            def store(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                record = build.load(buffer, [position], I64)
                origin = arith.TruncIOp(build.register_type(I32), record).result
                self.gather(phase, row, position, origin)
                return []

            build.for_loop(0, selection.count, store)

        work = self.node.type.size
        frame.phase(
            lambda phase: phase.each_task(lambda row: select_row(phase, row)),
            self.rows.count,
            work >= PARALLEL_THRESHOLD_NS,
        )
        return frame.finish("sort", work)

    def work(self) -> int:
        """Rough work of the whole sort in nanoseconds."""
        levels = max(1, (self.rows.length - 1).bit_length())
        return self.node.type.size * levels * (1 if self.key is not None else 4)

    def _emit_general(self) -> KernelDefinition:
        types = [x.type.element for x in self.inputs]
        length = self.rows.length
        sorter = MergeSorter(types, length)
        frame = KernelFrame(self.source, scratch_bytes=sorter.scratch_bytes)

        def sort_row(phase: PhaseFrame, row: ir.Value) -> None:
            e = phase.elemental

            def before(lhs: list[ir.Value], rhs: list[ir.Value]) -> ir.Value:
                arguments = [v for pair in zip(lhs, rhs, strict=True) for v in pair]
                return e.call(self.node.symbol("comparator"), arguments, self.captures)[0]

            def read(position: Index) -> list[ir.Value]:
                with e.scope():
                    index = self.rows.index(row, position)
                    return [e.value(x, index) for x in self.inputs]

            def write(position: Index, values: list[ir.Value]) -> None:
                index = self.rows.index(row, position)
                for number, root in enumerate(self.source.graph.results):
                    phase.store(number, values[root.result], index, root.type)

            sorter.sort(phase.scratch, before, read, write)

        return self._finish(frame, sort_row)

    def _emit_merged(self, key: SortKey) -> KernelDefinition:
        """Merge pairs of a 64-bit key and a position, then gather the operands by position."""
        sorter = MergeSorter([I64, I32], self.rows.length)
        frame = KernelFrame(self.source, scratch_bytes=sorter.scratch_bytes)

        def before(lhs: list[ir.Value], rhs: list[ir.Value]) -> ir.Value:
            return arith.CmpIOp(arith.CmpIPredicate.slt, lhs[0], rhs[0]).result

        def sort_row(phase: PhaseFrame, row: ir.Value) -> None:
            def read(position: Index) -> list[ir.Value]:
                with phase.elemental.scope():
                    value = self.key_value(phase, key, self.rows.index(row, position))
                    narrow = arith.IndexCastOp(
                        build.register_type(I32), build.index_value(position)
                    ).result
                    return [to_integer(key, value), narrow]

            def write(position: Index, values: list[ir.Value]) -> None:
                self.gather(phase, row, position, values[1])

            sorter.sort(phase.scratch, before, read, write)

        return self._finish(frame, sort_row)

    def _finish(
        self, frame: KernelFrame, sort_row: Callable[[PhaseFrame, ir.Value], None]
    ) -> KernelDefinition:
        """One phase with a task a row."""
        frame.phase(
            lambda phase: phase.each_task(lambda row: sort_row(phase, row)),
            self.rows.count,
            self.work() >= PARALLEL_THRESHOLD_NS,
        )
        return frame.finish("sort", self.work())

    def key_value(self, phase: PhaseFrame, key: SortKey, index: list[Index]) -> ir.Value:
        """What the comparator orders the element at ``index`` by."""
        return key_value(phase.elemental, self.node, key, index)

    def gather(self, phase: PhaseFrame, row: Index, position: Index, origin: ir.Value) -> None:
        """Store at ``position`` what the operands have at ``origin`` (an ``i32``) of the row."""
        e = phase.elemental
        target = self.rows.index(row, position)
        with e.scope():
            index = self.rows.index(row, arith.IndexCastOp(ir.IndexType.get(), origin).result)
            for number, root in enumerate(self.source.graph.results):
                phase.store(number, e.value(self.inputs[root.result], index), target, root.type)


def key_value(e: Elemental, node: Node, key: SortKey, index: Sequence[Index]) -> ir.Value:
    """What the comparator of the sort ``node``, whose key is ``key``, orders the element at ``index`` by."""
    value = e.value(node.operands[key.operand], index)
    if key.is_identity:
        return value
    graph = e.functions[node.symbol("comparator")]
    sources = [scalar_source(value)] * len(graph.parameters)  # only the key's own is read
    return Elemental(graph, sources, e.functions).value(key.node, ())


@dataclass(frozen=True)
class _KeySort:
    """The *keys* and *packed* ways."""

    owner: SortEmitter
    key: SortKey
    sorter: VectorSorter
    packed: bool

    @property
    def _element(self) -> ElementType:
        return self.sorter.element

    @property
    def _block(self) -> int:
        """Elements of one block: a power of two."""
        length = self.owner.rows.length
        return min(self.sorter.block, self.sorter.padded(length))

    @property
    def _padded(self) -> int:
        return -(-self.owner.rows.length // self._block) * self._block

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        rows, blocks = self.owner.rows, self._padded // self._block
        threads = self.owner.source.target.max_threads
        if blocks > _SHARED_BLOCKS and rows.count < 2 * threads:
            return self._emit_shared()
        buffers = 1 if blocks == 1 else 2
        row_bytes = self._padded * self._element.nbytes
        frame = KernelFrame(self.owner.source, scratch_bytes=buffers * row_bytes)

        def sort_row(phase: PhaseFrame, row: ir.Value) -> None:
            source, target = (self._view(phase.scratch, i * row_bytes) for i in (0, buffers - 1))
            lost = self._read(phase, row, source, 0, 0, self._padded)
            self._sort_blocks(source, blocks)
            width = self._block
            while width < self._padded:
                self._merge_level(source, target, width)
                source, target, width = target, source, 2 * width
            self._write(phase, row, source, 0, 0, rows.length)
            self._restore(phase, row, lost)

        frame.phase(
            lambda phase: phase.each_task(lambda row: sort_row(phase, row)),
            rows.count,
            self.owner.work() >= PARALLEL_THRESHOLD_NS,
        )
        return frame.finish("sort", self.owner.work())

    def _view(self, area: ir.Value, offset: int, rows: int = 1) -> ir.Value:
        return build.view(area, offset, ArrayType((rows * self._padded,), self._element))

    def _sort_blocks(self, buffer: ir.Value, blocks: int) -> None:
        def step(block: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self.sorter.sort_block(buffer, build.mul(block, self._block), self._block)
            return []

        if blocks == 1:
            self.sorter.sort_block(buffer, 0, self._block)
        else:
            build.for_loop(0, blocks, step)

    def _merge_level(self, source: ir.Value, target: ir.Value, width: int) -> None:
        """Merge neighbouring runs of ``width`` elements of one row."""

        def step(start: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            self._merge_pair(source, target, 0, start, width)
            return []

        build.for_loop(0, self._padded, step, step=2 * width)

    def _merge_pair(
        self, source: ir.Value, target: ir.Value, base: Index, start: Index, width: int
    ) -> None:
        """Merge the runs at ``start`` of the row at ``base``; a run without a partner is copied."""
        padded, sorter = self._padded, self.sorter
        second = build.minimum(build.sub(padded, build.add(start, width)), width)
        at = build.add(base, start)
        if padded % (2 * width) == 0:
            sorter.merge(source, target, at, width, width)
            return
        alone = build.less(second, 1)
        with build.if_then(alone):
            sorter.copy(source, target, at, build.add(base, padded))
        with build.if_then(arith.XOrIOp(alone, build.constant(_PRED, True)).result):
            sorter.merge(source, target, at, width, second)

    def _read(
        self,
        phase: PhaseFrame,
        row: Index,
        buffer: ir.Value,
        base: Index,
        begin: Index,
        end: Index,
    ) -> ir.Value | None:
        """Write keys of positions ``begin <= p < end`` to ``buffer[base + p]``, padding past the row's end; returns
        whether some value cannot be told from its key (``None``: never)."""
        e, rows = phase.elemental, self.owner.rows
        restores = self._restores()
        initial = [build.constant(_PRED, False)] if restores else []

        def step(position: ir.Value, lost: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                index = rows.index(row, position)
                value = self.owner.key_value(phase, self.key, index)
                record = self._record(value, position)
                build.store(record, buffer, [build.add(base, position)], self._element)
                flag = loses_bits(self.key, value) if restores else None
                return [either(lost[0], flag)] if flag is not None else []

        def pad(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            largest = build.constant(self._element, (1 << (self._element.bits - 1)) - 1)
            build.store(largest, buffer, [build.add(base, position)], self._element)
            return []

        results = build.for_loop(begin, build.minimum(end, rows.length), step, initial)
        build.for_loop(build.maximum(begin, rows.length), end, pad)
        return results[0] if results else None

    def _restores(self) -> bool:
        merges = self.key.merges_zeros or self.key.merges_nans
        return not self.packed and self.key.element.is_float and merges

    def _record(self, value: ir.Value, position: ir.Value) -> ir.Value:
        integer = to_integer(self.key, value)
        if not self.packed:
            return integer
        wide = build.register_type(I64)
        high = arith.ShLIOp(arith.ExtSIOp(wide, integer).result, build.constant(I64, 32)).result
        return arith.OrIOp(high, arith.IndexCastOp(wide, position).result).result

    def _write(
        self,
        phase: PhaseFrame,
        row: Index,
        buffer: ir.Value,
        base: Index,
        begin: Index,
        end: Index,
    ) -> None:
        owner = self.owner

        def step(position: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            record = build.load(buffer, [build.add(base, position)], self._element)
            if self.packed:
                low = arith.TruncIOp(build.register_type(I32), record).result
                owner.gather(phase, row, position, low)
            else:
                value = from_integer(self.key, record)
                phase.store(0, value, owner.rows.index(row, position), owner.node.type)
            return []

        build.for_loop(begin, end, step)

    def _restore(self, phase: PhaseFrame, row: Index, lost: ir.Value | None) -> None:
        """Rewrite the zeros and NaNs of a sorted row in the order they had."""
        if lost is None:
            return
        owner, key, e = self.owner, self.key, phase.elemental
        length = owner.rows.length

        def value_at(position: ir.Value) -> ir.Value:
            return e.value(owner.inputs[0], owner.rows.index(row, position))

        def count(position: ir.Value, counts: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                found = classify(key, value_at(position))
                return [
                    _count(counts[0], found.before_zeros),
                    _count(counts[1], found.is_nan),
                ]

        def put(position: ir.Value, at: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                value = value_at(position)
                found = classify(key, value)
                for where, is_member in zip(at, (found.is_zero, found.is_nan), strict=True):
                    with build.if_then(is_member):
                        phase.store(0, value, owner.rows.index(row, where), owner.node.type)
                return [_count(at[0], found.is_zero), _count(at[1], found.is_nan)]

        with build.if_then(lost):
            zero = build.index_value(0)
            before, nans = build.for_loop(0, length, count, [zero, zero])
            if key.descending:
                starts = [build.index_value(build.add(before, nans)), zero]
            else:
                starts = [before, build.index_value(build.sub(length, nans))]
            build.for_loop(0, length, put, starts)

    def _emit_shared(self) -> KernelDefinition:
        """Sort blocks in parallel, then merge them level by level."""
        rows, block, padded = self.owner.rows, self._block, self._padded
        area = rows.count * padded * self._element.nbytes
        area = -(-area // 64) * 64
        frame = KernelFrame(self.owner.source, workspace_bytes=2 * area)
        blocks = padded // block

        def sort_block(phase: PhaseFrame, task: ir.Value) -> None:
            buffer = self._view(phase.workspace, 0, rows.count)
            row, number = build.div(task, blocks), build.mod(task, blocks)
            base, start = build.mul(row, padded), build.mul(number, block)
            self._read(phase, row, buffer, base, start, build.add(start, block))
            self.sorter.sort_block(buffer, build.add(base, start), block)

        self._tasks(frame, sort_block, rows.count * blocks)
        width, offsets = block, (0, area)
        while width < padded:
            self._shared_level(frame, width, offsets)
            width, offsets = 2 * width, (offsets[1], offsets[0])
        stores = -(-rows.length // _STORE_CHUNK)

        def store(phase: PhaseFrame, task: ir.Value) -> None:
            buffer = self._view(phase.workspace, offsets[0], rows.count)
            row, begin = build.div(task, stores), build.mul(build.mod(task, stores), _STORE_CHUNK)
            end = build.minimum(build.add(begin, _STORE_CHUNK), rows.length)
            self._write(phase, row, buffer, build.mul(row, padded), begin, end)

        self._tasks(frame, store, rows.count * stores)
        if self._restores():
            self._tasks(frame, self._restore_row, rows.count)
        return frame.finish("sort", self.owner.work())

    def _restore_row(self, phase: PhaseFrame, row: ir.Value) -> None:
        e, rows = phase.elemental, self.owner.rows

        def scan(position: ir.Value, lost: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                flag = loses_bits(
                    self.key, self.owner.key_value(phase, self.key, rows.index(row, position))
                )
                return [either(lost[0], flag)] if flag is not None else lost

        lost = build.for_loop(0, rows.length, scan, [build.constant(_PRED, False)])
        self._restore(phase, row, lost[0])

    def _shared_level(self, frame: KernelFrame, width: int, offsets: tuple[int, int]) -> None:
        rows, padded = self.owner.rows, self._padded
        pairs = -(-padded // (2 * width))

        def merge(phase: PhaseFrame, task: ir.Value) -> None:
            source, target = (self._view(phase.workspace, o, rows.count) for o in offsets)
            row, pair = build.div(task, pairs), build.mod(task, pairs)
            self._merge_pair(
                source, target, build.mul(row, padded), build.mul(pair, 2 * width), width
            )

        self._tasks(frame, merge, rows.count * pairs)

    def _tasks(self, frame: KernelFrame, body: TaskBody, tasks: int) -> None:
        frame.phase(lambda phase: phase.each_task(lambda task: body(phase, task)), tasks, True)


def _count(total: ir.Value, condition: ir.Value) -> ir.Value:
    return arith.AddIOp(total, arith.IndexCastUIOp(ir.IndexType.get(), condition).result).result
