# SPDX-License-Identifier: Apache-2.0
"""Native copies for :mod:`gristmill.runtime.relayout`, compiled on first use for this machine's CPU.

One function per element size transposes a rectangle of rows and columns for every index of some outer
dimensions; one more copies a run of bytes for each. They take a *plan*, an array of 64-bit integers, and
the number of outer indices:

    dst, src, rows, cols, dst_row, src_col, staged, line, outer, (size, dst_step, src_step) × outer

Steps are in bytes and may be negative; the first outer index varies fastest. Columns are contiguous in the
destination, rows in the source, so square tiles are transposed in registers: T × T elements take log2(T)
rounds in which vectors 2k and 2k+1 become the low and the high interleaving of vectors k and k + T/2. (A
copy of runs has one row, of ``cols`` bytes.)

Without ``staged`` tiles go from the source to the destination, which is best while both are in the caches.
With it, blocks of rows and columns pass through two buffers:

1. Each column's part, contiguous in the source, is copied to the first. Lines are read whole and once, and
   do not evict each other where the step is a power of two.
2. Tiles are transposed into the second.
3. Rows are written from there, in whole lines. Blocks follow each other along the row, and the bytes of a
   line that is not full yet are carried to the next.

With ``line`` 63 instead of 0 (only where staged) lines are written past the caches. An ordinary store reads a
line of the destination before it changes it, and leaves it where it evicts others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import (
    TargetMachine,
    default_triple,
    host_cpu,
    host_features,
)

#: ``kernel(plan address, number of outer indices)``; releases the GIL.
Kernel = Callable[[int, int], None]

#: Element sizes in bytes there are transposes for.
SIZES = (1, 2, 4, 8, 16)
#: Bytes of a cache line.
LINE = 64

#: Rows and columns of a staged block by element size: runs of two to four lines, in buffers the size of an
#: L1 cache.
_BLOCKS = {1: (128, 128), 2: (64, 128), 4: (64, 64), 8: (32, 32), 16: (16, 16)}
#: Vectors of a staged tile; every target has as many registers.
_MAX_TILE = 16
#: Vectors of a direct tile by element size: few, so that small rectangles have some. A block of their rows
#: is one line of the source, which is so read once; the pages of a block of columns fit the TLB.
DIRECT_TILES = {1: 16, 2: 8, 4: 4, 8: 4, 16: 2}
_DIRECT_COLUMNS = 512
#: Rows of a block where there are too few columns for a tile: its destination stays in the L1 cache.
_DIRECT_ROWS = 256
_FIELDS = ("dst", "src", "rows", "cols", "dst_row", "src_col", "staged", "line", "outer")
_LINE_TYPE = f"<{LINE} x i8>"


class _Text:
    """Writes one LLVM function with structured control flow; O2 turns its variables into registers."""

    def __init__(self) -> None:
        self.variables: list[str] = []
        self.body: list[str] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def value(self, code: str) -> str:
        result = self.name()
        self.body.append(f"{result} = {code}")
        return result

    def add(self, a: str, b: str) -> str:
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.value(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.value(f"mul i64 {a}, {b}")

    def minimum(self, a: str, b: str) -> str:
        return self.value(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def test(self, predicate: str, a: str, b: str) -> str:
        return self.value(f"icmp {predicate} i64 {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.value(f"select i1 {condition}, i64 {a}, i64 {b}")

    def load(self, kind: str, address: str, align: int) -> str:
        return self.value(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: str, address: str, align: int = 1, flags: str = "") -> None:
        self.body.append(f"store {kind} {value}, ptr {address}, align {align}{flags}")

    def copy(self, target: str, source: str, nbytes: str) -> None:
        self.body.append(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)"
        )

    def prefetch(self, address: str) -> None:
        """Towards the second-level cache; any address will do."""
        self.body.append(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 2, i32 1)")

    def shuffle(self, vector: str, a: str, b: str, mask: Sequence[int]) -> str:
        picks = ", ".join(f"i32 {n}" for n in mask)
        return self.value(
            f"shufflevector {vector} {a}, {vector} {b}, <{len(mask)} x i32> <{picks}>"
        )

    def at(self, base: str, offset: str) -> str:
        return self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def buffer(self, nbytes: int) -> str:
        place = self.name()
        self.variables.append(f"{place} = alloca [{nbytes} x i8], align {LINE}")
        return place

    def variable(self, kind: str, value: str) -> str:
        place = self.name()
        self.variables.append(f"{place} = alloca {kind}")
        self.store(kind, value, place, 8)
        return place

    @contextmanager
    def loop(self, start: str, stop: str, step: int = 1) -> Generator[str]:
        """``for i in range(start, stop, step)``; yields ``i``."""
        place = self.variable("i64", start)
        label = self.name()[1:]
        self.body += [f"br label %{label}.test", f"{label}.test:"]
        index = self.load("i64", place, 8)
        more = self.test("slt", index, stop)
        self.body += [f"br i1 {more}, label %{label}.body, label %{label}.end", f"{label}.body:"]
        yield index
        self.store("i64", self.add(index, str(step)), place, 8)
        self.body += [f"br label %{label}.test", f"{label}.end:"]

    @contextmanager
    def branch(self, condition: str) -> Generator[Callable[[], None]]:
        """``if condition``; what is yielded begins its ``else``."""
        label = self.name()[1:]
        has_else = False
        self.body += [
            f"br i1 {condition}, label %{label}.then, label %{label}.else",
            f"{label}.then:",
        ]

        def otherwise() -> None:
            nonlocal has_else
            has_else = True
            self.body += [f"br label %{label}.end", f"{label}.else:"]

        yield otherwise
        if not has_else:
            otherwise()
        self.body += [f"br label %{label}.end", f"{label}.end:"]


class _Piece:
    """Emits the copy of one rectangle: element (r, c) at ``r * row + c * col`` on either side."""

    def __init__(
        self, text: _Text, size: int, tile: int, fields: dict[str, str], dst: str, src: str
    ) -> None:
        self.text, self.size, self.fields, self.dst, self.src = text, size, fields, dst, src
        self.kind, self.wide_tile = f"i{size * 8}", tile
        self.block = _BLOCKS[size]
        rows, columns = self.block
        #: Steps of the buffers. One line more than a run keeps columns off each other's cache sets; in the
        #: second it is where a row's carried bytes are.
        self.staged_col, self.result_row = rows * size + LINE, columns * size + LINE
        self.staged = text.buffer(self.staged_col * columns)
        self.result = text.buffer(self.result_row * rows)

    def address(self, side: str, row: str, column: str) -> str:
        t = self.text
        offset = t.add(
            t.mul(row, self.fields[f"{side}_row"]), t.mul(column, self.fields[f"{side}_col"])
        )
        return t.at(self.dst if side == "dst" else self.src, offset)

    def transpose(self) -> None:
        """All of it, through the buffers or directly."""
        t = self.text
        with t.branch(t.test("ne", self.fields["staged"], "0")) as otherwise:
            self.through_buffers()
            otherwise()
            self.directly()

    def directly(self) -> None:
        """From the source to the destination, in tiles; by elements where there are too few for one."""
        t, tile = self.text, DIRECT_TILES[self.size]
        rows, cols = self.fields["rows"], self.fields["cols"]
        with t.branch(t.test("slt", cols, str(tile))) as otherwise:
            with t.loop("0", rows, _DIRECT_ROWS) as start, t.loop("0", cols) as column:
                end = t.minimum(t.add(start, str(_DIRECT_ROWS)), rows)
                with t.loop(start, end) as row:
                    self.element(row, column)
            otherwise()
            with t.branch(t.test("slt", rows, str(tile))) as otherwise:
                with t.loop("0", rows) as row, t.loop("0", cols) as column:
                    self.element(row, column)
                otherwise()
                self.direct_tiles(tile)

    def direct_tiles(self, tile: int) -> None:
        """The last tile of rows and of columns overlaps the one before it, where they are no multiple."""
        t, height = self.text, LINE // self.size
        rows, cols = self.fields["rows"], self.fields["cols"]
        last_row, last_column = (t.sub(n, str(tile)) for n in (rows, cols))
        with t.loop("0", cols, _DIRECT_COLUMNS) as c0, t.loop("0", rows, height) as r0:
            c_end = t.minimum(t.add(c0, str(_DIRECT_COLUMNS)), cols)
            r_end = t.minimum(t.add(r0, str(height)), rows)
            with t.loop(c0, c_end, tile) as c, t.loop(r0, r_end, tile) as r:
                row, column = t.minimum(r, last_row), t.minimum(c, last_column)
                self.tile(tile, self.place("src", row, column), self.place("dst", row, column))

    def element(self, row: str, column: str) -> None:
        value = self.text.load(self.kind, self.address("src", row, column), 1)
        self.text.store(self.kind, value, self.address("dst", row, column))

    def through_buffers(self) -> None:
        t, (block_rows, block_cols) = self.text, self.block
        rows, cols = self.fields["rows"], self.fields["cols"]
        with t.loop("0", rows, block_rows) as row, t.loop("0", cols, block_cols) as column:
            height = t.minimum(str(block_rows), t.sub(rows, row))
            width = t.minimum(str(block_cols), t.sub(cols, column))
            self.stage((row, column), self.following(row, column), height, width)
            self.transpose_staged(height, width)
            self.write(row, column, height, width)

    def following(self, row: str, column: str) -> tuple[str, str]:
        """Where the next block begins."""
        t = self.text
        next_row, next_column = (
            t.add(n, str(s)) for n, s in zip((row, column), self.block, strict=True)
        )
        ends = t.test("sge", next_column, self.fields["cols"])
        return t.select(ends, next_row, row), t.select(ends, "0", next_column)

    def stage(
        self, block: tuple[str, str], following: tuple[str, str], rows: str, columns: str
    ) -> None:
        """A block's columns to the first buffer, and those of the next towards the second-level cache."""
        t, run = self.text, self.block[0] * self.size
        nbytes = t.mul(rows, str(self.size))
        with t.loop("0", columns) as c:
            to = t.at(self.staged, t.mul(c, str(self.staged_col)))
            fro, ahead = (
                self.address("src", row, t.add(column, c)) for row, column in (block, following)
            )
            with t.branch(t.test("eq", nbytes, str(run))) as otherwise:
                for k in range(0, run, LINE):
                    value = t.load(_LINE_TYPE, t.at(fro, str(k)), 1)
                    t.store(_LINE_TYPE, value, t.at(to, str(k)), LINE)
                    t.prefetch(t.at(ahead, str(k)))
                otherwise()
                t.copy(to, fro, nbytes)

    def transpose_staged(self, rows: str, columns: str) -> None:
        """The first buffer to the second, in whole tiles."""
        t, size, tile = self.text, self.size, self.wide_tile
        with t.loop("0", rows, tile) as r, t.loop("0", columns, tile) as c:
            row, column = t.mul(r, str(size)), t.mul(c, str(size))
            fro = t.at(self.staged, t.add(t.mul(c, str(self.staged_col)), row))
            to = t.at(self.result, t.add(t.mul(r, str(self.result_row)), column))
            self.tile(
                tile,
                lambda k: t.at(fro, str(k * self.staged_col)),
                lambda k: t.at(to, str(k * self.result_row + LINE)),
                size * tile,
            )

    def place(self, side: str, row: str, column: str) -> Callable[[int], str]:
        """Address of vector ``k`` of the tile at ``row`` and ``column``: a part of a column or of a row."""
        t = self.text
        if side == "src":
            return lambda k: self.address("src", row, t.add(column, str(k)))
        return lambda k: self.address("dst", t.add(row, str(k)), column)

    def tile(
        self, tile: int, source: Callable[[int], str], target: Callable[[int], str], align: int = 1
    ) -> None:
        """Transpose ``tile`` vectors of as many elements in registers."""
        t, vector = self.text, f"<{tile} x {self.kind}>"
        vectors = [t.load(vector, source(k), align) for k in range(tile)]
        low = [n for k in range(tile // 2) for n in (k, tile + k)]
        high = [n + tile // 2 for n in low]
        for _ in range(tile.bit_length() - 1):
            pairs = zip(vectors[: tile // 2], vectors[tile // 2 :], strict=True)
            vectors = [t.shuffle(vector, a, b, m) for a, b in pairs for m in (low, high)]
        for k, value in enumerate(vectors):
            t.store(vector, value, target(k), align)

    def write(self, row: str, column: str, rows: str, columns: str) -> None:
        """Rows of the second buffer to the destination."""
        t = self.text
        nbytes = t.mul(columns, str(self.size))
        first = t.test("eq", column, "0")
        last = t.test("eq", t.add(column, columns), self.fields["cols"])
        with t.loop("0", rows) as r:
            kept = t.at(self.result, t.mul(r, str(self.result_row)))
            target = self.address("dst", t.add(row, r), column)
            _write_run(t, target, t.at(kept, str(LINE)), nbytes, self.fields["line"], first, last)
            # Only needed where blocks follow, that is after a full one.
            carried = t.load(_LINE_TYPE, t.at(kept, str(self.block[1] * self.size)), LINE)
            t.store(_LINE_TYPE, carried, kept, LINE)


def _write_run(
    t: _Text, target: str, source: str, nbytes: str, line: str, first: str, last: str
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
    done = t.value(f"call i64 @llvm.smax.i64(i64 {begin}, i64 {whole})")
    with t.branch(t.value(f"and i1 {last}, {t.test('slt', done, end)}")):
        t.copy(t.at(to, done), t.at(fro, done), t.sub(end, done))


def _function(
    name: str, fence: str, emit: Callable[[_Text, dict[str, str], str, str], None]
) -> str:
    """A function that does what ``emit`` writes, for fields and two addresses, for every outer index."""
    t = _Text()
    fields = {
        name: t.load("i64", t.at("%plan", str(8 * slot)), 8) for slot, name in enumerate(_FIELDS)
    }
    with t.loop("0", "%count") as index:
        rest = t.variable("i64", index)
        places = [t.variable("i64", fields["dst"]), t.variable("i64", fields["src"])]
        with t.loop("0", fields["outer"]) as k:
            triple = t.at("%plan", t.add(t.mul(k, "24"), str(8 * len(_FIELDS))))
            extent = t.load("i64", triple, 8)
            left = t.load("i64", rest, 8)
            quotient = t.value(f"udiv i64 {left}, {extent}")
            position = t.sub(left, t.mul(quotient, extent))
            t.store("i64", quotient, rest, 8)
            for number, place in enumerate(places):
                step = t.load("i64", t.at(triple, str(8 + 8 * number)), 8)
                t.store("i64", t.add(t.load("i64", place, 8), t.mul(position, step)), place, 8)
        dst, src = (t.value(f"inttoptr i64 {t.load('i64', place, 8)} to ptr") for place in places)
        emit(t, fields, dst, src)
    lines = "\n  ".join([*t.variables, *t.body, fence, "ret void"])
    return f"define void @{name}(ptr %plan, i64 %count) nounwind {{\n  {lines}\n}}"


def _transpose(size: int, vector_bytes: int, fence: str) -> str:
    tile = min(_MAX_TILE, vector_bytes // size)

    def emit(t: _Text, fields: dict[str, str], dst: str, src: str) -> None:
        own = {"dst_col": str(size), "src_row": str(size)}
        _Piece(t, size, tile, fields | own, dst, src).transpose()

    return _function(f"transpose_{size}", fence, emit)


def _runs(fence: str) -> str:
    def emit(t: _Text, fields: dict[str, str], dst: str, src: str) -> None:
        _write_run(t, dst, src, fields["cols"], fields["line"], "true", "true")

    return _function("runs", fence, emit)


@lru_cache(maxsize=1)
def _load() -> tuple[LoadedCode, dict[int, Kernel]]:
    triple, features = default_triple(), set(host_features().split(","))
    vector_bytes = 64 if "+avx512f" in features else 32 if "+avx2" in features else 16
    declarations = [
        *(f"declare i64 @llvm.{name}.i64(i64, i64)" for name in ("smin", "smax")),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        "!0 = !{i32 1}",
    ]
    # Before another thread is told that the copy is done, stores past the caches must have arrived.
    fence = ""
    if triple.startswith("x86_64"):
        declarations.append("declare void @llvm.x86.sse.sfence()")
        fence = "call void @llvm.x86.sse.sfence()"
    source = "\n".join(
        [*declarations, *(_transpose(size, vector_bytes, fence) for size in SIZES), _runs(fence)]
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
