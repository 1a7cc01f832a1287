# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import ADD, assemble

from gristmill.errors import ResourceExhaustedError, ToolchainError
from gristmill.runtime import knobs
from gristmill.runtime.code import link
from gristmill.runtime.debug import jit
from gristmill.runtime.elf import summarize
from gristmill.runtime.memory.section_manager import ContiguousSectionMemoryManager
from gristmill.runtime.memory.slabs import PROCESS_POOL

ONE = "define i32 @one() { ret i32 1 }"
TWO = """
declare i32 @one()
@table = internal constant [2 x i32] [i32 40, i32 50]
@counter = internal global i32 0
define i32 @two(i64 %i) {
  %at = getelementptr [2 x i32], ptr @table, i64 0, i64 %i
  %v = load volatile i32, ptr %at
  %n = load volatile i32, ptr @counter
  %n1 = add i32 %n, 1
  store volatile i32 %n1, ptr @counter
  %o = call i32 @one()
  %s = add i32 %v, %o
  %r = add i32 %s, %n
  ret i32 %r
}
"""


def test_objects_refer_to_each_other_and_keep_constants_and_variables() -> None:
    with link([assemble(TWO), assemble(ONE)]) as code:
        two = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(code.address("two"))
        assert [two(0), two(1), two(0)] == [41, 52, 43]
        with pytest.raises(
            ToolchainError, match="no symbol three in linked code; it has: one, two"
        ):
            code.address("three")
    with pytest.raises(ToolchainError, match="cannot look up two: the code has been closed"):
        code.address("two")
    code.close()


def test_memory_is_sealed_after_the_last_object_is_relocated() -> None:
    """Objects that need each other: whichever is finished first, the rest still gets written."""
    count = 6
    texts: list[str] = []
    for i in range(count):
        others = [j for j in range(count) if j != i]
        declarations = "\n".join(f"declare i32 @leaf{j}()" for j in others)
        calls = "\n".join(f"%v{j} = call i32 @leaf{j}()" for j in others)
        sums = "\n".join(f"%s{n + 1} = add i32 %s{n}, %v{j}" for n, j in enumerate(others))
        texts.append(
            f"{declarations}\ndefine i32 @leaf{i}() noinline {{ ret i32 {1 << i} }}\n"
            f"define i32 @others{i}() {{\n%s0 = add i32 0, 0\n{calls}\n{sums}\n"
            f"ret i32 %s{len(others)}\n}}"
        )
    with link([assemble(text) for text in texts]) as code:
        for i in range(count):
            function = ctypes.CFUNCTYPE(ctypes.c_int)(code.address(f"others{i}"))
            assert function() == (1 << count) - 1 - (1 << i)


def test_given_symbols_and_the_c_library() -> None:
    text = """
    declare i32 @host(i32)
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    define i32 @f(ptr %p, i64 %n) {
      call void @llvm.memset.p0.i64(ptr %p, i8 7, i64 %n, i1 false)
      %r = call i32 @host(i32 20)
      ret i32 %r
    }
    """
    host = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)
    address = ctypes.cast(host, ctypes.c_void_p).value
    buffer = ctypes.create_string_buffer(5)
    with link([assemble(text)], {"host": address or 0}) as code:
        f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(code.address("f"))
        assert f(ctypes.addressof(buffer), 4) == 21
    assert buffer.raw == b"\7\7\7\7\0"


def test_missing_symbol_is_named_and_nothing_leaks() -> None:
    before = PROCESS_POOL.statistics().objects
    with pytest.raises(ToolchainError, match=r"nothing defines one; compiled code may call only"):
        link([assemble(TWO)])
    assert PROCESS_POOL.statistics().objects == before


def test_duplicate_symbol_is_named_and_the_linker_recovers() -> None:
    data = assemble(ONE)
    before = PROCESS_POOL.statistics().objects
    with pytest.raises(ToolchainError, match="duplicate definition of symbol 'one'"):
        link([data, data])
    assert PROCESS_POOL.statistics().objects == before
    with link([data]) as code:
        assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address("one"))() == 1


def test_failure_of_the_memory_manager_is_reported_not_fatal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> int:
        raise ResourceExhaustedError("no room for the section")

    monkeypatch.setattr(ContiguousSectionMemoryManager, "allocate_code", fail)
    with pytest.raises(ResourceExhaustedError, match="no room for the section"):
        link([assemble(ONE)])


def test_empty_and_malformed_objects() -> None:
    with pytest.raises(ToolchainError, match="define no global symbol"):
        link([])
    for data in (b"", b"not an object", assemble(ONE)[:200]):
        with pytest.raises(ToolchainError, match="malformed object file"):
            link([data])


@given(st.data())
def test_damaged_headers_never_crash(data: st.DataObject) -> None:
    damaged = bytearray(OBJECT)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ToolchainError):
        summarize(bytes(damaged))


def test_summary() -> None:
    summary = summarize(assemble(TWO))
    assert summary.undefined == {"one"}
    assert list(summary.defined) == ["two"]
    assert summary.defined["two"] > 10
    assert summary.read_only.size >= 8
    assert summary.read_write.size >= 4


def test_perf_map() -> None:
    with knobs.PERF_MAP.scope("1"), link([assemble(ONE)]) as code:
        address = code.address("one")
    text = Path(f"/tmp/perf-{os.getpid()}.map").read_text()
    start, size, name = text.splitlines()[-1].split()
    assert (int(start, 16), name) == (address, "one")
    assert 0 < int(size, 16) < 100


def test_symbol_file_reads_back_as_elf() -> None:
    functions = [jit.Function("f", 0x7000, 16), jit.Function("gg", 0x9000, 0)]
    data = jit.symbol_file(functions)
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    text, symbols, strings = sections[1], sections[2], sections[3]
    assert (text[3], text[5]) == (0x7000, 0x2001)
    found = {}
    for at in range(symbols[4] + 24, symbols[4] + symbols[5], 24):
        name, _, _, where, value, size = struct.unpack_from("<IBBHQQ", data, at)
        start = strings[4] + name
        found[data[start : data.index(b"\0", start)].decode()] = (where, value, size)
    assert found == {"f": (1, 0x7000, 16), "gg": (1, 0x9000, 1)}


def test_gdb_registration_is_undone_in_any_order() -> None:
    descriptor = jit.descriptor()
    data = assemble(ONE)
    with knobs.GDB_JIT.scope("1"):
        first, second, third = link([data]), link([data]), link([data])
    assert descriptor.first
    for code in (second, third, first):
        code.close()
    assert not descriptor.first


OBJECT = assemble(ADD.replace("COUNT", "8"))
