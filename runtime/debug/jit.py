# SPDX-License-Identifier: Apache-2.0
"""Tells profilers and debuggers about linked code, when the user asks for it.

``GRISTMILL_PERF_MAP=1`` appends every function to ``/tmp/perf-PID.map``, the fixed place where ``perf report`` looks.
``GRISTMILL_GDB_JIT=1`` registers the functions through GDB's JIT interface, so that backtraces name
them; the interface's entry point is the one in ``libLLVM.so``.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.runtime import knobs
from gristmill.runtime.llvm.library import llvm

_REGISTER, _UNREGISTER = 1, 2
_EXECUTABLE = 2  # ET_EXEC: symbol values are addresses
_X86_64, _AARCH64 = 62, 183


@dataclass(frozen=True)
class Function:
    """A loaded function: name, address and size in bytes."""

    name: str
    address: int
    size: int


class _Entry(ctypes.Structure):
    """``struct jit_code_entry``."""


_Entry._fields_ = (
    ("next", ctypes.POINTER(_Entry)),
    ("previous", ctypes.POINTER(_Entry)),
    ("file", ctypes.c_void_p),
    ("size", ctypes.c_uint64),
)


class Descriptor(ctypes.Structure):
    """``struct jit_descriptor``."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("relevant", ctypes.POINTER(_Entry)),
        ("first", ctypes.POINTER(_Entry)),
    )


_lock = threading.Lock()


def register(functions: Sequence[Function]) -> Callable[[], None]:
    """Publish functions as the knobs ask; returns what to call before their memory goes."""
    if knobs.PERF_MAP.get():
        _append_perf_map(functions)
    if knobs.GDB_JIT.get():
        return _register_gdb(functions)
    return _nothing


def _nothing() -> None:
    """Nothing was registered."""


def _append_perf_map(functions: Sequence[Function]) -> None:
    lines = "".join(f"{f.address:x} {f.size:x} {f.name}\n" for f in functions)
    with _lock, Path(f"/tmp/perf-{os.getpid()}.map").open("a") as file:
        file.write(lines)


def descriptor() -> Descriptor:
    """The list of registered objects that GDB reads: ``__jit_debug_descriptor`` of libLLVM."""
    return Descriptor.in_dll(llvm(), "__jit_debug_descriptor")


def _register_gdb(functions: Sequence[Function]) -> Callable[[], None]:
    image = symbol_file(functions)
    buffer = ctypes.create_string_buffer(image, len(image))
    entry = _Entry(None, None, ctypes.addressof(buffer), len(image))
    head = descriptor()
    with _lock:
        if head.first:
            entry.next = head.first
            head.first.contents.previous = ctypes.pointer(entry)
        head.first = ctypes.pointer(entry)
        _notify(head, entry, _REGISTER)

    def unregister() -> None:
        with _lock:
            if entry.previous:
                entry.previous.contents.next = entry.next
            else:
                head.first = entry.next
            if entry.next:
                entry.next.contents.previous = entry.previous
            _notify(head, entry, _UNREGISTER)
            # The closure keeps the image alive until here; nothing may read it as ELF any more.
            ctypes.memset(buffer, 0, 4)

    return unregister


def _notify(head: Descriptor, entry: _Entry, action: int) -> None:
    head.action = action
    head.relevant = ctypes.pointer(entry)
    # GDB has a breakpoint in this function, whose body is empty.
    llvm().__getattr__("__jit_debug_register_code")()
    head.action = 0


def symbol_file(functions: Sequence[Function]) -> bytes:
    """An ELF file that holds nothing but ``functions`` as symbols of a code section in memory."""
    low = min(f.address for f in functions)
    high = max(f.address + max(f.size, 1) for f in functions)
    names = bytearray(b"\0")
    symbols = bytearray(struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0))
    for function in functions:
        # Global function (0x12) in section 1.
        symbols += struct.pack(
            "<IBBHQQ", len(names), 0x12, 0, 1, function.address, max(function.size, 1)
        )
        names += function.name.encode() + b"\0"
    section_names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    header_size, entry_size = 64, 64
    names_at = header_size + len(symbols)
    section_names_at = names_at + len(names)
    table_at = -(-(section_names_at + len(section_names)) // 8) * 8

    def section(name: bytes, kind: int, flags: int, *rest: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", section_names.index(name), kind, flags, *rest)

    sections = [
        bytes(entry_size),
        # .text: allocated and executable, without content in the file (NOBITS).
        section(b".text", 8, 6, low, 0, high - low, 0, 0, 16, 0),
        section(b".symtab", 2, 0, 0, header_size, len(symbols), 3, 1, 8, 24),
        section(b".strtab", 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
        section(b".shstrtab", 3, 0, 0, section_names_at, len(section_names), 0, 0, 1, 0),
    ]
    machine = _AARCH64 if os.uname().machine == "aarch64" else _X86_64
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(_EXECUTABLE, machine, 1, 0, 0, table_at, 0, header_size, 0, 0, entry_size),
        *(len(sections), 4),
    )
    content = (header + symbols + names + section_names).ljust(table_at, b"\0")
    return content + b"".join(sections)
