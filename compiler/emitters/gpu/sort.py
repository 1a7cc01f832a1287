# SPDX-License-Identifier: Apache-2.0
"""The sort emitter: bitonic networks in workgroup memory, merges by binary search beyond it.

What is sorted are *records* that end with the position in the row, which makes every order strict and every sort
stable: the integer key of a comparator that orders by one number (:mod:`~gristmill.compiler.emitters.cpu.sort_keys`),
or the operands' values. At the end keys are followed to the operands by their positions.

Blocks sort chunks of :data:`CHUNK` records, and short rows several at once. The network is the one whose comparisons
all put the smaller record first (a stage begins by comparing mirrored halves): what is beyond the end of a row is never
smaller, so it is not stored and its comparisons are left out. Runs of longer rows are merged pairwise, one launch a
level: a thread finds, by binary search, which records of its two runs precede its part of the output, and merges from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both, choose, either, while_loop
from gristmill.compiler.emitters.cpu.frame import FusionSource
from gristmill.compiler.emitters.cpu.sort import Rows, key_value
from gristmill.compiler.emitters.cpu.sort_keys import (
    SortKey,
    find_key,
    has_integer_order,
    to_integer,
)
from gristmill.compiler.emitters.elemental import Elemental
from gristmill.compiler.emitters.gpu.elements import launch_items
from gristmill.compiler.emitters.gpu.frame import WARP, GpuFrame, LaunchFrame
from gristmill.compiler.emitters.gpu.geometry import power_above, power_below, where
from gristmill.compiler.emitters.gpu.warp import put, take
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.compiler.target import GpuTarget
from gristmill.runtime.program import align_up
from gristmill.runtime.types import ArrayType, ElementType, element_type

_PRED, _I32, _I64 = map(element_type, ("i1", "i32", "i64"))

#: Records that a block sorts at most: two for each thread.
CHUNK = 2048

#: Threads of a block that sorts several rows.
SHORT_BLOCK = 128

#: Records that a thread merges.
MERGED = 8

Values = list[ir.Value]


@dataclass(frozen=True)
class _Records:
    """What is sorted.

    Attributes:
        node: the sort.
        rows: its rows.
        key: what the comparator orders by, as an integer; ``None`` if records hold the operands' values.
    """

    node: Node
    rows: Rows
    key: SortKey | None

    @property
    def inputs(self) -> list[Node]:
        """The operands that are sorted."""
        return self.node.operands[: len(self.node.siblings)]

    @property
    def elements(self) -> list[ElementType]:
        """Element types of a record."""
        values = [x.type.element for x in self.inputs] if self.key is None else [self.key.integer]
        return [*values, self.position]

    @property
    def position(self) -> ElementType:
        """The type of positions in a row."""
        return _I32 if self.rows.length < 1 << 31 else _I64

    def read(self, e: Elemental, row: Index, position: Index) -> Values:
        """The record at ``position`` of ``row`` of the operands."""
        index = self.rows.index(row, position)
        kind = build.register_type(self.position)
        here = arith.IndexCastOp(kind, build.index_value(position)).result
        if self.key is not None:
            return [to_integer(self.key, key_value(e, self.node, self.key, index)), here]
        return [*(e.value(x, index) for x in self.inputs), here]

    def before(self, e: Elemental, lhs: Values, rhs: Values) -> ir.Value:
        """Whether ``lhs`` comes first: a strict order."""
        *a, at_a = lhs
        *b, at_b = rhs
        earlier = _less(at_a, at_b)
        if self.key is not None:
            same = arith.CmpIOp(arith.CmpIPredicate.eq, a[0], b[0]).result
            return either(_less(a[0], b[0]), both(same, earlier))
        count = len(self.inputs)

        def compare(left: Values, right: Values) -> ir.Value:
            arguments = [v for pair in zip(left, right, strict=True) for v in pair]
            return e.call(self.node.symbol("comparator"), arguments, self.node.operands[count:])[0]

        smaller = compare(a, b)
        return either(smaller, both(earlier, _not(compare(b, a))))

    def values(self, e: Elemental, row: Index, record: Values) -> Values:
        """The operands' values that belong to a record."""
        if self.key is None:
            return record[:-1]
        position = arith.IndexCastOp(ir.IndexType.get(), record[-1]).result
        index = self.rows.index(row, position)
        return [e.value(x, index) for x in self.inputs]


def _less(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    return arith.CmpIOp(arith.CmpIPredicate.slt, lhs, rhs).result


def _not(condition: ir.Value) -> ir.Value:
    return arith.XOrIOp(condition, build.constant(_PRED, True)).result


class SortEmitter:
    """Compiles one ``sort`` and the data movement fused into its operands."""

    def __init__(self, source: FusionSource):
        assert isinstance(source.target, GpuTarget)
        self.source = source
        self.node: Node = source.graph.results[0]
        inputs = self.node.operands[: len(self.node.siblings)]
        self.rows = Rows(inputs[0].shape, self.node.integer("dimension"))
        key = find_key(source.functions[self.node.symbol("comparator")])
        usable = key is not None and has_integer_order(key.element)
        self.records = _Records(self.node, self.rows, key if usable else None)
        self.elements = self.records.elements
        self.length = self.rows.length
        nbytes = sum(x.nbytes for x in self.elements)
        most = min(CHUNK, power_below(max(2, source.target.shared_bytes // nbytes)))
        self.chunk = min(most, max(2, power_above(self.length)))
        self.chunks = -(-self.length // self.chunk)
        threads = self.chunk // 2
        #: Rows of one block: whole warps where rows are short.
        self.together = 1
        if self.chunks == 1 and threads < SHORT_BLOCK:
            enough = max(WARP // threads, min(SHORT_BLOCK // threads, power_above(self.rows.count)))
            fitting = power_below(max(1, source.target.shared_bytes // (nbytes * self.chunk)))
            self.together = max(1, min(enough, fitting))

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = GpuFrame(self.source, self._layout())
        self._launch_chunks(frame)
        width, source = self.chunk, 0
        while width < self.length:
            self._launch_merge(frame, width, source)
            width, source = 2 * width, 1 - source
        levels = max(1, (self.length - 1).bit_length())
        return frame.finish("sort", self.node.type.size * levels)

    def _layout(self) -> int:
        """Workspace: two sets of records, ``[rows, length]`` each, where a row has more than one chunk."""
        self._places: list[list[tuple[int, ArrayType]]] = []
        offset = 0
        for _ in range(0 if self.chunks == 1 else 2):
            places: list[tuple[int, ArrayType]] = []
            for element in self.elements:
                array = ArrayType((self.rows.count * self.length,), element)
                places.append((offset, array))
                offset += align_up(array.nbytes)
            self._places.append(places)
        return offset

    def _views(self, launch: LaunchFrame, which: int) -> list[ir.Value]:
        return [build.view(launch.workspace, at, array) for at, array in self._places[which]]

    def _store(self, launch: LaunchFrame, row: Index, position: Index, record: Values) -> None:
        """Store the results at ``position`` of ``row``."""
        values = self.records.values(launch.elemental, row, record)
        index = self.rows.index(row, position)
        for number, root in enumerate(self.source.graph.results):
            launch.store(number, values[root.result], index, root.type)

    # Chunks.

    def _launch_chunks(self, frame: GpuFrame) -> None:
        threads = self.chunk // 2
        grid = -(-self.rows.count // self.together) * self.chunks
        frame.launch(self._sort_chunk, (grid,), (threads * self.together,))

    def _sort_chunk(self, launch: LaunchFrame) -> None:
        threads, together = self.chunk // 2, self.together
        block, thread = launch.block_number(), launch.thread()
        row, chunk = build.div(block, self.chunks), build.mod(block, self.chunks)
        inside, base = None, 0
        if together > 1:
            place = build.div(thread, threads)
            row, thread = build.add(build.mul(row, together), place), build.mod(thread, threads)
            base = build.mul(place, self.chunk)
            if self.rows.count % together:
                inside = build.less(row, self.rows.count)
                row = build.minimum(row, self.rows.count - 1)
        first = build.mul(chunk, self.chunk)
        count = build.minimum(build.sub(self.length, first), self.chunk)
        kinds = [build.storage_type(element) for element in self.elements]
        buffers = [launch.shared((together * self.chunk,), kind) for kind in kinds]
        e = launch.elemental
        places = [thread, build.add(thread, threads)]

        def each(body: Callable[[Index], None]) -> None:
            for at in places:
                is_record = None if self.length % self.chunk == 0 else build.less(at, count)
                with where(inside, is_record), e.scope():
                    body(at)

        def read(at: Index) -> None:
            record = self.records.read(e, row, build.add(first, at))
            put(buffers, self.elements, record, (build.add(base, at),))

        def write(at: Index) -> None:
            record = take(buffers, self.elements, (build.add(base, at),))
            position = build.add(first, at)
            if self.chunks == 1:
                self._store(launch, row, position, record)
            else:
                position = build.add(build.mul(row, self.length), position)
                put(self._views(launch, 0), self.elements, record, (position,))

        each(read)
        launch.barrier()
        self._network(launch, buffers, (base, thread, count, inside))
        each(write)

    def _network(
        self,
        launch: LaunchFrame,
        buffers: Sequence[ir.Value],
        place: tuple[Index, Index, Index, ir.Value | None],
    ) -> None:
        """Sort the records at ``base`` of the buffers: stages of halves of 1, 2, 4, … records."""
        base, thread, count, inside = place
        one = build.index_value(1)

        def exchange(low: Index, high: Index) -> None:
            with where(inside, build.less(high, count)), launch.elemental.scope():
                places = [(build.add(base, at),) for at in (low, high)]
                a, b = (take(buffers, self.elements, at) for at in places)
                with where(self.records.before(launch.elemental, b, a)):
                    put(buffers, self.elements, b, places[0])
                    put(buffers, self.elements, a, places[1])
            launch.barrier()

        def start(shift: Index) -> tuple[ir.Value, Index, ir.Value]:
            """``2 ** shift``, where the thread's pair of runs of that length starts, and its place in a run."""
            half = arith.ShLIOp(one, build.index_value(shift)).result
            inner = arith.AndIOp(
                build.index_value(thread), build.index_value(build.sub(half, 1))
            ).result
            return half, build.mul(build.sub(thread, inner), 2), inner

        def stage(level: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            half, begin, inner = start(level)
            low = build.add(begin, inner)
            high = build.sub(build.add(begin, build.sub(build.mul(half, 2), 1)), inner)
            exchange(low, high)  # mirrored
            build.for_loop(0, level, lambda turn, _: step(level, turn))
            return []

        def step(level: ir.Value, turn: ir.Value) -> list[ir.Value]:
            half, begin, inner = start(build.sub(build.sub(level, turn), 1))
            low = build.add(begin, inner)
            exchange(low, build.add(low, half))
            return []

        build.for_loop(0, self.chunk.bit_length() - 1, stage)

    # Merges.

    def _launch_merge(self, frame: GpuFrame, width: int, source: int) -> None:
        """Merge neighbouring runs of ``width`` records of set ``source`` into the other, or the results."""
        per_row = -(-self.length // MERGED)
        is_last = 2 * width >= self.length

        def merge(launch: LaunchFrame, item: Index) -> None:
            row, part = build.div(item, per_row), build.mod(item, per_row)
            first = build.mul(part, MERGED)
            begin = build.mul(build.div(first, 2 * width), 2 * width)
            base = build.mul(row, self.length)
            middle = build.minimum(build.add(begin, width), self.length)
            end = build.minimum(build.add(begin, 2 * width), self.length)
            views = self._views(launch, source)

            def record(at: Index) -> Values:
                return take(views, self.elements, (build.add(base, at),))

            def store(at: Index, values: Values) -> None:
                if is_last:
                    self._store(launch, row, at, values)
                else:
                    target = self._views(launch, 1 - source)
                    put(target, self.elements, values, (build.add(base, at),))

            self._merge_part(launch, (begin, middle, end), first, record, store)

        launch_items(frame, self.rows.count * per_row, merge)

    def _merge_part(
        self,
        launch: LaunchFrame,
        runs: tuple[Index, Index, Index],
        first: Index,
        record: Callable[[Index], Values],
        store: Callable[[Index, Values], None],
    ) -> None:
        """Merge runs ``[begin, middle)`` and ``[middle, end)`` from output position ``first`` on."""
        begin, middle, end = (build.index_value(x) for x in runs)
        e = launch.elemental
        taken = build.sub(first, begin)  # records before the part
        low = build.maximum(build.sub(taken, build.sub(end, middle)), 0)
        high = build.minimum(taken, build.sub(middle, begin))

        def is_open(state: Values) -> ir.Value:
            return build.less(state[0], state[1])

        def halve(state: Values) -> Values:
            """Among the first ``taken`` records there are more than ``half`` of the left run, or not."""
            with e.scope():
                half = build.div(build.add(state[0], state[1]), 2)
                left = record(build.add(begin, half))
                right = record(build.sub(build.add(middle, build.sub(taken, half)), 1))
                more = self.records.before(e, left, right)
                up, here = build.index_value(build.add(half, 1)), build.index_value(half)
                return [choose(more, up, state[0]), choose(more, state[1], here)]

        bounds = [build.index_value(x) for x in (low, high)]
        from_left = while_loop(bounds, is_open, halve)[0]
        left = build.index_value(build.add(begin, from_left))
        right = build.index_value(build.add(middle, build.sub(taken, from_left)))

        def step(turn: ir.Value, state: Values) -> Values:
            with e.scope():
                left, right = state
                has_left, has_right = build.less(left, middle), build.less(right, end)
                a = record(build.minimum(left, build.sub(middle, 1)))
                b = record(build.minimum(right, build.sub(end, 1)))
                goes_left = either(_not(has_right), self.records.before(e, a, b))
                goes_left = both(has_left, goes_left)
                values = [choose(goes_left, x, y) for x, y in zip(a, b, strict=True)]
                store(build.add(first, turn), values)
                moved = [build.index_value(build.add(x, 1)) for x in state]
                return [choose(goes_left, moved[0], left), choose(goes_left, right, moved[1])]

        count = build.minimum(build.sub(end, first), MERGED)
        build.for_loop(0, count, step, [left, right])
