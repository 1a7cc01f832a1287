# SPDX-License-Identifier: Apache-2.0
"""Native copies for :mod:`gristmill.runtime.relayout`, compiled on first use for this machine's CPU.

One function per element size transposes a rectangle of rows and columns for every index of some outer
dimensions; one more copies a run of bytes for each. They take a *plan*, an array of 64-bit integers:

    next, done, items, grain, dst, src, rows, cols, dst_row, src_col, strip_rows, strip_cols, past, staged,
    line, back, kept, outer, (size, dst_step, src_step) x outer

Steps are in bytes and may be negative; the first outer index varies fastest. Columns are contiguous in the
destination, rows in the source. (A copy of runs has one row, of ``cols`` bytes.)

The work is a number of *items*: strips of the rectangle, for each outer index. Threads that call a function with
the same plan share them: each takes ``grain`` items at a time from ``next`` and counts them in ``done`` when they
have arrived in memory. So a thread that starts late leaves more to the others, and none waits long at the end.

Without ``staged`` square tiles go from the source to the destination, which is best while both are in the caches.
With it, a block of columns is done in groups of one line of the source:

1. Tiles of a group are transposed in registers to rows of a stage in the L1 cache.
2. These are written as runs while the next group is transposed: the one waits for memory, the other for the core.

Groups begin where lines of the source do, ``past`` elements before its first one, so lines are read once: where
``src_col`` is a power of two they have left the L1 cache before a second read. Lines of later groups are asked for
ahead.

With ``line`` 63 instead of 0 (only where staged, or for runs) whole lines are written past the caches. An ordinary
store reads a line of the destination before it changes it, and leaves it where it evicts others. Where blocks end
within lines, each begins with the last ``back`` columns of the one before, and writes what that has left. Of runs,
those whose number has no bit of ``kept`` are written through the caches all the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import (
    TargetMachine,
    default_triple,
    host_cpu,
    host_features,
)
from gristmill.runtime.llvm.text import FunctionText

#: ``kernel(plan address, spins)``: does a share of the items, then waits until others have done theirs, at most for
#: so many pauses of the processor; releases the GIL.
Kernel = Callable[[int, int], None]

#: Element sizes in bytes there are transposes for.
SIZES = (1, 2, 4, 8, 16)
#: Bytes of a cache line.
LINE = 64

#: Columns of a staged block by element size: with their lines, two stages fill most of an L1 cache.
BLOCK_COLUMNS = {1: 128, 2: 128, 4: 128, 8: 64, 16: 32}
#: Groups that lines of the source are asked for ahead.
_AHEAD = 4
#: Vectors of a direct tile by element size: few, so that small rectangles have some. A block of their rows
#: is one line of the source, which is so read once; the pages of a block of columns fit the TLB.
DIRECT_TILES = {1: 16, 2: 8, 4: 4, 8: 4, 16: 2}
_DIRECT_COLUMNS = 512
#: Rows of a block where there are too few columns for a tile: its destination stays in the L1 cache.
_DIRECT_ROWS = 256
#: Numbers of columns, if fewer than a tile's, whose rows are interleaved in vectors where they follow each other.
_CHANNELS = (2, 3, 4)
#: Slots of a plan before the outer dimensions.
FIELDS = (
    *("next", "done", "items", "grain"),
    *("dst", "src", "rows", "cols", "dst_row", "src_col"),
    *("strip_rows", "strip_cols", "past", "staged", "line", "back", "kept", "outer"),
)
_LINE_TYPE = f"<{LINE} x i8>"


class _Registers:
    """Transposes tiles of elements of ``size`` bytes in vectors of ``nbytes``.

    A tile has as many rows as a vector has elements, and ``columns``. Pieces of 16 bytes are transposed within
    themselves first, as shuffles across them take longer on x86; then the pieces of vectors are joined to runs
    of ``run`` bytes, as far as 16 registers do.
    """

    def __init__(self, text: FunctionText, size: int, nbytes: int) -> None:
        self.text, self.size, self.nbytes = text, size, nbytes
        self.lanes, self.piece = nbytes // size, 16 // size
        self.sets = min(size, nbytes // 16)
        self.columns, self.run = self.piece * self.sets, 16 * self.sets
        self.vector = f"<{self.lanes} x i{8 * size}>"

    def transpose(self, source: Callable[[int], str], target: Callable[[int], str]) -> None:
        """Loads part ``k`` of each column from ``source(k)``, stores that of each row to ``target(k)``."""
        t = self.text
        vectors = [t.load(self.vector, source(k), 1) for k in range(self.columns)]
        sets = [
            self._riffle(vectors[k : k + self.piece], self.piece, 1)
            for k in range(0, self.columns, self.piece)
        ]
        for k, parts in enumerate(zip(*sets, strict=True)):
            for number, run in enumerate(self._joined(parts)):
                t.store(
                    f"<{self.run // self.size} x i{8 * self.size}>",
                    run,
                    target(k + self.piece * number),
                )

    def _riffle(self, vectors: Sequence[str], group: int, unit: int) -> list[str]:
        """Within each ``group`` lanes: as many rounds that interleave units of the vectors' halves as sort them."""
        half = len(vectors) // 2
        starts = [s for g in range(0, self.lanes, group) for s in range(g, g + group // 2, unit)]
        low = [s + x for s in starts for s in (s, s + self.lanes) for x in range(unit)]
        high = [x + group // 2 for x in low]
        vectors = list(vectors)
        for _ in range(half.bit_length()):
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [
                self.text.shuffle(self.vector, a, b, m) for a, b in pairs for m in (low, high)
            ]
        return vectors

    def _joined(self, vectors: Sequence[str]) -> list[str]:
        """Runs of the first, the second, … piece of all vectors."""
        t, count, piece = self.text, self.nbytes // 16, self.piece
        found = list(vectors)
        if len(found) == count:
            for _ in range(count.bit_length() - 1):
                parts: list[list[str]] = []
                for first in (0, 1):  # the even pieces of both, and the odd
                    mask = [p * piece + x for p in range(first, 2 * count, 2) for x in range(piece)]
                    pairs = zip(found[::2], found[1::2], strict=True)
                    parts.append([t.shuffle(self.vector, a, b, mask) for a, b in pairs])
                found = [*parts[0], *parts[1]]
            return found
        found = self._riffle(found, self.lanes, piece)
        length = self.run // self.size
        picks = [range(k, k + length) for k in range(0, self.lanes, length)]
        return [t.shuffle(self.vector, v, v, pick) for v in found for pick in picks]


class _Strip:
    """Emits the copy of rows ``first`` to ``end`` of a rectangle.

    Element (r, c) is at ``r * row + c * col`` on either side.
    ``low`` is where the rows' first group begins, which may be before ``first``.
    """

    def __init__(self, text: FunctionText, size: int, nbytes: int, fields: dict[str, str]) -> None:
        self.text, self.size, self.fields = text, size, fields
        self.kind, self.width = f"i{size * 8}", LINE // size
        self.small = _Registers(text, size, DIRECT_TILES[size] * size)
        self.wide = _Registers(text, size, nbytes)
        #: From a row of a stage to the next. Before each is a line's space for columns of the block before.
        self.pitch = BLOCK_COLUMNS[size] * size + LINE
        self.stages = text.buffer(2 * self.width * self.pitch, LINE)

    def address(self, side: str, row: str, column: str) -> str:
        t = self.text
        row, column = (
            t.mul(n, self.fields[f"{side}_{step}"]) for n, step in ((row, "row"), (column, "col"))
        )
        return t.at(self.fields[side], t.add(row, column))

    def transpose(self) -> None:
        """All of it, by way of stages or directly."""
        t, fields = self.text, self.fields
        enough = [t.test("ne", fields["staged"], "0")]
        enough.append(t.test("sge", fields["rows"], str(self.width)))
        enough.append(t.test("sge", fields["cols"], str(self.wide.columns)))
        both = t.value(f"and i1 {enough[0]}, {enough[1]}")
        with t.branch(t.value(f"and i1 {both}, {enough[2]}")) as otherwise:
            self.staged()
            otherwise()
            self.directly()

    def directly(self) -> None:
        """From the source to the destination, in tiles; by elements where there are too few for one."""
        t, tile = self.text, str(self.small.columns)
        first, end, cols = (self.fields[n] for n in ("first", "end", "cols"))
        with t.branch(t.test("slt", cols, tile)) as otherwise:
            done = t.variable("i64", first)
            dense = t.test("eq", self.fields["dst_row"], t.mul(cols, str(self.size)))
            for count in _CHANNELS:
                with t.branch(t.value(f"and i1 {dense}, {t.test('eq', cols, str(count))}")):
                    self.interleave(count, done)
            with (
                t.loop(t.load("i64", done, 8), end, _DIRECT_ROWS) as start,
                t.loop("0", cols) as column,
            ):
                stop = t.minimum(t.add(start, str(_DIRECT_ROWS)), end)
                with t.loop(start, stop) as row:
                    self.element(row, column)
            otherwise()
            with t.branch(t.test("slt", t.sub(end, first), tile)) as otherwise:
                with t.loop(first, end) as row, t.loop("0", cols) as column:
                    self.element(row, column)
                otherwise()
                self.direct_tiles()

    def interleave(self, count: int, done: str) -> None:
        """Rows of ``count`` columns that lie side by side, as many at a time as a vector has elements.

        ``done`` is a variable with the first row, and gets the first that is left.
        """
        t, lanes, end = self.text, self.wide.lanes, self.fields["end"]
        vector = f"<{lanes} x {self.kind}>"
        first = t.load("i64", done, 8)
        whole = t.sub(end, t.value(f"urem i64 {t.sub(end, first)}, {lanes}"))
        with t.loop(first, whole, lanes) as row:
            columns = [t.load(vector, self.address("src", row, str(c)), 1) for c in range(count)]
            target = self.address("dst", row, "0")
            for k in range(count):
                places = [divmod(k * lanes + x, count) for x in range(lanes)]
                found = columns[0]
                for c in range(1, count):  # keep what is there, or take this column's
                    picks = [
                        lanes + at if of == c else x if c > 1 else at
                        for x, (at, of) in enumerate(places)
                    ]
                    found = t.shuffle(vector, found, columns[c], picks)
                t.store(vector, found, t.at(target, str(k * self.wide.nbytes)))
        t.store("i64", whole, done, 8)

    def direct_tiles(self) -> None:
        """The last tile of rows and of columns overlaps the one before it, where they are no multiple."""
        t, tile = self.text, self.small.columns
        first, end, cols = (self.fields[n] for n in ("first", "end", "cols"))
        last_row, last_column = (t.sub(n, str(tile)) for n in (end, cols))
        with t.loop("0", cols, _DIRECT_COLUMNS) as c0, t.loop(first, end, self.width) as r0:
            c_end = t.minimum(t.add(c0, str(_DIRECT_COLUMNS)), cols)
            r_end = t.minimum(t.add(r0, str(self.width)), end)
            with t.loop(c0, c_end, tile) as c, t.loop(r0, r_end, tile) as r:
                row, column = t.minimum(r, last_row), t.minimum(c, last_column)
                self.small.transpose(
                    lambda k: self.address("src", row, t.add(column, str(k))),
                    lambda k: self.address("dst", t.add(row, str(k)), column),
                )

    def element(self, row: str, column: str) -> None:
        value = self.text.load(self.kind, self.address("src", row, column), 1)
        self.text.store(self.kind, value, self.address("dst", row, column))

    def staged(self) -> None:
        """Blocks of columns, each in groups of ``width`` rows."""
        t, fields, block = self.text, self.fields, BLOCK_COLUMNS[self.size]
        extent = t.sub(fields["end"], fields["low"])
        groups = t.divide(t.add(extent, str(self.width - 1)), str(self.width))
        with t.loop("0", fields["cols"], block) as c0:
            c1 = t.minimum(t.add(c0, str(block)), fields["cols"])
            back = t.select(t.test("eq", c0, "0"), "0", fields["back"])
            start = t.sub(c0, back)
            columns = str(self.wide.columns)
            tiles = t.divide(t.add(t.sub(c1, start), str(self.wide.columns - 1)), columns)
            with t.loop("0", t.add(groups, "1")) as group:
                before = t.sub(group, "1")
                ahead = self.ahead(group, groups)
                with t.loop("0", tiles) as tile:
                    column = t.add(start, t.mul(tile, columns))
                    with t.branch(t.test("slt", group, groups)):
                        self.tile(group, c0, column)
                        self.prefetch(*ahead, column)
                    with t.branch(t.test("sgt", group, "0")):
                        share = [
                            t.divide(t.mul(n, str(self.width)), tiles)
                            for n in (tile, t.add(tile, "1"))
                        ]
                        self.write(before, c0, c1, share[0], share[1])

    def ahead(self, group: str, groups: str) -> tuple[str, str]:
        """Row and number of columns further on where the group ``_AHEAD`` later begins, maybe in a later block."""
        t = self.text
        later = t.add(group, str(_AHEAD))
        blocks = t.divide(later, groups)
        row = t.add(self.fields["low"], t.mul(t.sub(later, t.mul(blocks, groups)), str(self.width)))
        return row, t.mul(blocks, str(BLOCK_COLUMNS[self.size]))

    def prefetch(self, row: str, further: str, column: str) -> None:
        """Ask for the lines at ``row`` of a tile's columns, ``further`` on."""
        t = self.text
        at = self.address("src", row, t.add(column, further))
        for k in range(self.wide.columns):
            t.prefetch(t.at(at, t.mul(str(k), self.fields["src_col"])))

    def stage_row(self, group: str, row: str) -> str:
        """Address of a row of a group's stage; it is not the stage of the group before."""
        t = self.text
        number = t.add(t.mul(t.value(f"and i64 {group}, 1"), str(self.width)), row)
        return t.at(self.stages, t.add(t.mul(number, str(self.pitch)), str(LINE)))

    def tile(self, group: str, c0: str, column: str) -> None:
        """Transpose a tile into a group's stage: columns from ``column`` on, or the rectangle's last ones."""
        t, fields, wide = self.text, self.fields, self.wide
        row = t.add(fields["low"], t.mul(group, str(self.width)))
        row = t.maximum(t.minimum(row, t.sub(fields["rows"], str(self.width))), "0")
        column = t.minimum(column, t.sub(fields["cols"], str(wide.columns)))
        fro = self.address("src", row, column)
        to = t.at(self.stage_row(group, "0"), t.mul(t.sub(column, c0), str(self.size)))
        for h in range(0, self.width, wide.lanes):
            wide.transpose(
                lambda k: t.at(fro, t.add(t.mul(str(k), fields["src_col"]), str(h * self.size))),  # noqa: B023
                lambda k: t.at(to, str((h + k) * self.pitch)),  # noqa: B023
            )

    def write(self, group: str, c0: str, c1: str, low: str, high: str) -> None:
        """Write columns ``c0`` to ``c1`` of rows ``low`` to ``high`` of a group, as far as they are the strip's."""
        t, fields, size = self.text, self.fields, str(self.size)
        start = t.add(fields["low"], t.mul(group, str(self.width)))
        # Where the group's tiles have been moved inside the rectangle, so has its stage.
        placed = t.maximum(t.minimum(start, t.sub(fields["rows"], str(self.width))), "0")
        begin = t.maximum(t.add(start, low), fields["first"])
        end = t.minimum(t.add(start, high), fields["end"])
        nbytes = t.mul(t.sub(c1, c0), size)
        first, last = t.test("eq", c0, "0"), t.test("eq", c1, fields["cols"])
        with t.loop(begin, end) as row:
            kept = self.stage_row(group, t.sub(row, placed))
            target = self.address("dst", row, c0)
            _write_run(t, target, kept, nbytes, fields["line"], first, last)


def _write_run(
    t: FunctionText, target: str, source: str, nbytes: str, line: str, first: str, last: str
) -> None:
    """Write bytes, in whole lines of the target where ``line`` is 63.

    The lines begin before ``target`` where that is inside of one, with bytes from before ``source``. In the
    ``first`` part of a run these are not its own; after the ``last`` no other part ends its last line.
    """
    before = t.value(f"and i64 {t.value(f'ptrtoint ptr {target} to i64')}, {line}")
    back = t.sub("0", before)
    to, fro, end = t.at(target, back), t.at(source, back), t.add(before, nbytes)
    start = t.variable("i64", "0")
    with t.branch(t.value(f"and i1 {first}, {t.test('ne', before, '0')}")):
        t.copy(target, source, t.minimum(nbytes, t.sub(str(LINE), before)))
        t.store("i64", str(LINE), start, 8)
    begin, whole = t.load("i64", start, 8), t.value(f"and i64 {end}, {-LINE}")
    with t.branch(t.test("ne", line, "0")) as otherwise:
        with t.loop(begin, whole, LINE) as k:
            value = t.load(_LINE_TYPE, t.at(fro, k), 1)
            t.store(_LINE_TYPE, value, t.at(to, k), LINE, ", !nontemporal !0")
        otherwise()
        with t.loop(begin, whole, LINE) as k:
            t.store(_LINE_TYPE, t.load(_LINE_TYPE, t.at(fro, k), 1), t.at(to, k))
    done = t.maximum(begin, whole)
    with t.branch(t.value(f"and i1 {last}, {t.test('slt', done, end)}")):
        t.copy(t.at(to, done), t.at(fro, done), t.sub(end, done))


#: Writes what is done for an item, whose number is among the plan's fields.
_Emit = Callable[[FunctionText, dict[str, str]], None]


def _function(name: str, x86: bool, begin: Callable[[FunctionText, dict[str, str]], _Emit]) -> str:
    """A function that does a share of the items of a plan, with ``begin``'s result, and waits for the others."""
    t = FunctionText()
    slots = {name: t.at("%plan", str(8 * slot)) for slot, name in enumerate(FIELDS)}
    shared = {name: slots.pop(name) for name in ("next", "done")}
    fields = {name: t.load("i64", slot, 8) for name, slot in slots.items()}
    emit = begin(t, fields)
    items = fields["items"]
    with t.repeat() as leave:
        start = t.fetch_add(shared["next"], fields["grain"])
        leave(t.test("sge", start, items))
        stop = t.minimum(t.add(start, fields["grain"]), items)
        with t.loop(start, stop) as item:
            emit(t, fields | {"item": item})
        if x86:  # stores past the caches are not ordered otherwise
            t.body.append("call void @llvm.x86.sse.sfence()")
        t.fetch_add(shared["done"], t.sub(stop, start))
    spins = t.variable("i64", "0")
    with t.repeat() as leave:
        done = t.value(f"load atomic i64, ptr {shared['done']} acquire, align 8")
        leave(t.test("sge", done, items))
        count = t.load("i64", spins, 8)
        leave(t.test("sge", count, "%spins"))
        t.store("i64", t.add(count, "1"), spins, 8)
        if x86:
            t.body.append("call void @llvm.x86.sse2.pause()")
    lines = "\n  ".join([*t.variables, *t.body, "ret void"])
    return f"define void @{name}(ptr %plan, i64 %spins) nounwind {{\n  {lines}\n}}"


def _placed(t: FunctionText, fields: dict[str, str], outer: str) -> dict[str, str]:
    """The addresses of an outer index."""
    rest = t.variable("i64", outer)
    places = {side: t.variable("i64", fields[side]) for side in ("dst", "src")}
    with t.loop("0", fields["outer"]) as k:
        triple = t.at("%plan", t.add(t.mul(k, "24"), str(8 * len(FIELDS))))
        extent = t.load("i64", triple, 8)
        left = t.load("i64", rest, 8)
        quotient = t.divide(left, extent)
        position = t.sub(left, t.mul(quotient, extent))
        t.store("i64", quotient, rest, 8)
        for number, place in enumerate(places.values()):
            step = t.load("i64", t.at(triple, str(8 + 8 * number)), 8)
            t.store("i64", t.add(t.load("i64", place, 8), t.mul(position, step)), place, 8)
    return {
        side: t.value(f"inttoptr i64 {t.load('i64', place, 8)} to ptr")
        for side, place in places.items()
    }


def _transpose(size: int, vector_bytes: int, x86: bool) -> str:
    def begin(t: FunctionText, fields: dict[str, str]) -> _Emit:
        rows, cols = fields["rows"], fields["cols"]
        strips = {
            "rows": _strips(t, t.add(rows, fields["past"]), fields["strip_rows"]),
            "cols": _strips(t, cols, fields["strip_cols"]),
        }

        def emit(t: FunctionText, fields: dict[str, str]) -> None:
            rest, down = _split(t, fields["item"], strips["rows"])
            outer, across = _split(t, rest, strips["cols"])
            own = fields | _placed(t, fields, outer) | {"dst_col": str(size), "src_row": str(size)}
            low = t.sub(t.mul(down, fields["strip_rows"]), fields["past"])
            column = t.mul(across, fields["strip_cols"])
            own["low"], own["first"] = low, t.maximum(low, "0")
            own["end"] = t.minimum(t.add(low, fields["strip_rows"]), rows)
            own["cols"] = t.minimum(fields["strip_cols"], t.sub(cols, column))
            own["dst"] = t.at(own["dst"], t.mul(column, str(size)))
            own["src"] = t.at(own["src"], t.mul(column, fields["src_col"]))
            _Strip(t, size, vector_bytes, own).transpose()

        return emit

    return _function(f"transpose_{size}", x86, begin)


def _strips(t: FunctionText, extent: str, strip: str) -> str:
    """Number of strips."""
    return t.divide(t.sub(t.add(extent, strip), "1"), strip)


def _split(t: FunctionText, number: str, extent: str) -> tuple[str, str]:
    """Quotient and remainder."""
    quotient = t.divide(number, extent)
    return quotient, t.sub(number, t.mul(quotient, extent))


def _runs(x86: bool) -> str:
    def emit(t: FunctionText, fields: dict[str, str]) -> None:
        own = _placed(t, fields, fields["item"])
        through = t.test("eq", t.value(f"and i64 {fields['item']}, {fields['kept']}"), "0")
        line = t.select(through, "0", fields["line"])
        _write_run(t, own["dst"], own["src"], fields["cols"], line, "true", "true")

    return _function("runs", x86, lambda t, fields: emit)


@lru_cache(maxsize=1)
def _load() -> tuple[LoadedCode, dict[int, Kernel]]:
    triple, features = default_triple(), set(host_features().split(","))
    vector_bytes = 64 if "+avx512f" in features else 32 if "+avx2" in features else 16
    x86 = triple.startswith("x86_64")
    declarations = [
        *(f"declare i64 @llvm.{name}.i64(i64, i64)" for name in ("smin", "smax")),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        "!0 = !{i32 1}",
    ]
    if x86:
        names = ("sse.sfence", "sse2.pause")
        declarations += [f"declare void @llvm.x86.{name}()" for name in names]
    source = "\n".join(
        [*declarations, *(_transpose(size, vector_bytes, x86) for size in SIZES), _runs(x86)]
    )
    with (
        Context() as context,
        TargetMachine(triple, host_cpu(), host_features()) as machine,
        Module.parse(source, context, "relayout") as module,
    ):
        module.set_target(machine)
        module.verify()
        module.run_passes("default<O2>", machine)
        code = link([module.emit(machine)])
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    kernels = {size: prototype(code.address(f"transpose_{size}")) for size in SIZES}
    return code, kernels | {0: prototype(code.address("runs"))}


def is_loaded() -> bool:
    """Whether the kernels have been compiled already in this process."""
    return _load.cache_info().currsize > 0


def kernel(size: int) -> Kernel:
    """The transpose of elements of ``size`` bytes, any alignment; 0: the copy of runs.

    The first call compiles all of them, which takes a fraction of a second. Raises ``ToolchainError`` where
    LLVM is not installed.
    """
    return _load()[1][size]
