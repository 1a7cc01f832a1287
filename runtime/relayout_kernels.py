# SPDX-License-Identifier: Apache-2.0
"""Native transposes for :mod:`gristmill.runtime.relayout`, compiled on first use.

One function per element size transposes a rectangle of rows and columns for every index of some outer
dimensions. It takes a *plan*, an array of 64-bit integers, and the number of outer indices:

    dst, src, rows, cols, dst_row, src_col, outer, (size, dst_step, src_step) × outer

Steps are in bytes and may be negative. Columns are contiguous in the destination, rows in the source, so
square tiles are transposed in registers. A tile is 16 bytes wide, which every target has registers for.
T × T elements are transposed by log2(T) rounds in which vectors 2k and 2k+1 become the low and the high
interleaving of vectors k and k + T/2.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from gristmill.runtime.code import LoadedCode, link
from gristmill.runtime.llvm.core import Context, Module
from gristmill.runtime.llvm.target import TargetMachine, default_triple

#: ``kernel(plan address, number of outer indices)``; releases the GIL.
Kernel = Callable[[int, int], None]

#: Element sizes in bytes there are kernels for.
SIZES = (1, 2, 4, 8, 16)

_TILE_BYTES = 16
#: A block of rows is one cache line of the source, which is so read once; the pages of a block of
#: columns fit the TLB. Collecting whole lines of the destination in a buffer first was no faster.
_BLOCK_BYTES = 64
_COLUMN_BLOCK = 512
_FIELDS = ("dst", "src", "rows", "cols", "dst_row", "src_col", "outer")


class _Text:
    """Writes one LLVM function with structured loops; O2 turns its variables into registers."""

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

    def mul(self, a: str, b: str) -> str:
        return self.value(f"mul i64 {a}, {b}")

    def minimum(self, a: str, b: str) -> str:
        return self.value(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def load(self, kind: str, address: str, align: int) -> str:
        return self.value(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: str, address: str, align: int = 1) -> None:
        self.body.append(f"store {kind} {value}, ptr {address}, align {align}")

    def at(self, base: str, offset: str) -> str:
        return self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

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
        more = self.value(f"icmp slt i64 {index}, {stop}")
        self.body += [f"br i1 {more}, label %{label}.body, label %{label}.end", f"{label}.body:"]
        yield index
        self.store("i64", self.add(index, str(step)), place, 8)
        self.body += [f"br label %{label}.test", f"{label}.end:"]


class _Piece:
    """Emits the copy of one rectangle: element (r, c) at ``r * row + c * col`` on either side."""

    def __init__(self, text: _Text, size: int, fields: dict[str, str], dst: str, src: str) -> None:
        self.text, self.size, self.fields, self.dst, self.src = text, size, fields, dst, src
        self.kind = f"i{size * 8}"

    def address(self, side: str, row: str, column: str) -> str:
        t = self.text
        offset = t.add(
            t.mul(row, self.fields[f"{side}_row"]), t.mul(column, self.fields[f"{side}_col"])
        )
        return t.at(self.dst if side == "dst" else self.src, offset)

    def element(self, row: str, column: str) -> None:
        value = self.text.load(self.kind, self.address("src", row, column), 1)
        self.text.store(self.kind, value, self.address("dst", row, column))

    def transpose(self) -> None:
        t, tile = self.text, _TILE_BYTES // self.size
        row_block = _BLOCK_BYTES // self.size
        rows, cols = self.fields["rows"], self.fields["cols"]
        with t.loop("0", cols, _COLUMN_BLOCK) as c0:
            c_end = t.minimum(t.add(c0, str(_COLUMN_BLOCK)), cols)
            c_full = self.whole_tiles(c0, c_end, tile)
            with t.loop("0", rows, row_block) as r0:
                r_end = t.minimum(t.add(r0, str(row_block)), rows)
                r_full = self.whole_tiles(r0, r_end, tile)
                with t.loop(c0, c_full, tile) as column, t.loop(r0, r_full, tile) as row:
                    self.tile(row, column, tile)
                with t.loop(r_full, r_end) as row, t.loop(c0, c_full) as column:
                    self.element(row, column)
                with t.loop(c_full, c_end) as column, t.loop(r0, r_end) as row:
                    self.element(row, column)

    def whole_tiles(self, start: str, stop: str, tile: int) -> str:
        t = self.text
        length = t.value(f"sub i64 {stop}, {start}")
        return t.add(start, t.value(f"and i64 {length}, {-tile}"))

    def tile(self, row: str, column: str, tile: int) -> None:
        t, vector = self.text, f"<{tile} x {self.kind}>"
        steps = [str(k) for k in range(tile)]
        vectors = [t.load(vector, self.address("src", row, t.add(column, k)), 1) for k in steps]
        low = [n for k in range(tile // 2) for n in (k, tile + k)]
        high = [n + tile // 2 for n in low]
        for _ in range(tile.bit_length() - 1):
            pairs = zip(vectors[: tile // 2], vectors[tile // 2 :], strict=True)
            vectors = [self.shuffle(vector, a, b, m) for a, b in pairs for m in (low, high)]
        for k, value in zip(steps, vectors, strict=True):
            t.store(vector, value, self.address("dst", t.add(row, k), column))

    def shuffle(self, vector: str, a: str, b: str, mask: Sequence[int]) -> str:
        picks = ", ".join(f"i32 {n}" for n in mask)
        return self.text.value(
            f"shufflevector {vector} {a}, {vector} {b}, <{len(mask)} x i32> <{picks}>"
        )


def _function(size: int) -> str:
    t = _Text()
    fields = {
        name: t.load("i64", t.at("%plan", str(8 * slot)), 8) for slot, name in enumerate(_FIELDS)
    }
    fields |= {"dst_col": str(size), "src_row": str(size)}
    with t.loop("0", "%count") as index:
        rest = t.variable("i64", index)
        places = [t.variable("i64", fields["dst"]), t.variable("i64", fields["src"])]
        with t.loop("0", fields["outer"]) as k:
            triple = t.at("%plan", t.add(t.mul(k, "24"), str(8 * len(_FIELDS))))
            extent = t.load("i64", triple, 8)
            left = t.load("i64", rest, 8)
            quotient = t.value(f"udiv i64 {left}, {extent}")
            position = t.value(f"sub i64 {left}, {t.mul(quotient, extent)}")
            t.store("i64", quotient, rest, 8)
            for number, place in enumerate(places):
                step = t.load("i64", t.at(triple, str(8 + 8 * number)), 8)
                t.store("i64", t.add(t.load("i64", place, 8), t.mul(position, step)), place, 8)
        dst, src = (t.value(f"inttoptr i64 {t.load('i64', place, 8)} to ptr") for place in places)
        _Piece(t, size, fields, dst, src).transpose()
    lines = "\n  ".join([*t.variables, *t.body, "ret void"])
    return f"define void @transpose_{size}(ptr %plan, i64 %count) nounwind {{\n  {lines}\n}}"


@lru_cache(maxsize=1)
def _load() -> tuple[LoadedCode, dict[int, Kernel]]:
    declarations = "declare i64 @llvm.smin.i64(i64, i64)"
    source = "\n".join([declarations, *map(_function, SIZES)])
    with (
        Context() as context,
        TargetMachine(default_triple(), "", "") as machine,
        Module.parse(source, context, "relayout") as module,
    ):
        module.set_target(machine)
        module.verify()
        module.run_passes("default<O2>", machine)
        code = link([module.emit(machine)])
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    return code, {size: prototype(code.address(f"transpose_{size}")) for size in SIZES}


def is_loaded() -> bool:
    """Whether the kernels have been compiled already in this process."""
    return _load.cache_info().currsize > 0


def kernel(size: int) -> Kernel:
    """The transpose of elements of ``size`` bytes, any alignment.

    The first call compiles all sizes, which takes a fraction of a second. Raises ``ToolchainError`` where
    LLVM is not installed.
    """
    return _load()[1][size]
