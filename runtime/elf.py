# SPDX-License-Identifier: Apache-2.0
"""The few facts about a relocatable ELF64 object that linking needs before LLVM sees it.

In: the bytes of a little-endian ELF64 ``.o``. Out: upper bounds for the memory its sections take
and the names it defines and needs. Every offset is checked: a corrupt object gives a typed error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from gristmill.errors import ToolchainError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_RELOCATABLE = 1
_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_COMMON = 0, 0xFFF2

#: ``e_machine`` by the architecture of a target triple.
MACHINES = {"x86_64": 62, "aarch64": 183}

# What LLVM's RuntimeDyld may add to a section: one stub per relocation (x86-64: 16 bytes, AArch64:
# 20, rounded up), a terminator for .eh_frame, and a global offset table entry per relocation.
_STUB_BYTES = 32
_SLACK_BYTES = 64
_GOT_ENTRY_BYTES = 8


@dataclass
class SectionNeeds:
    """Upper bounds of one kind of memory: total bytes and the largest alignment asked for."""

    size: int = 0
    alignment: int = 1

    def add(self, size: int, alignment: int) -> None:
        """Make room for a section, whatever comes before it."""
        self.size += size + alignment - 1
        self.alignment = max(self.alignment, alignment)

    def merge(self, other: SectionNeeds) -> None:
        """Make room for everything ``other`` has."""
        if other.size:
            self.add(other.size, other.alignment)


@dataclass
class ObjectSummary:
    """What one object file needs and offers.

    Attributes:
        code, read_only, read_write: memory bounds.
        defined: its global symbols and their sizes in bytes.
        undefined: names it expects from elsewhere.
    """

    code: SectionNeeds = field(default_factory=SectionNeeds)
    read_only: SectionNeeds = field(default_factory=SectionNeeds)
    read_write: SectionNeeds = field(default_factory=SectionNeeds)
    defined: dict[str, int] = field(default_factory=dict[str, int])
    undefined: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def summarize(data: bytes) -> ObjectSummary:
    """Read an object's headers; raises ``ToolchainError`` when it is not a sound ELF64 object."""
    try:
        return _summarize(data)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ToolchainError(f"malformed object file: {error}") from None


def _summarize(data: bytes) -> ObjectSummary:
    header = _HEADER.unpack_from(data, 0)
    ident, kind = header[0], header[1]
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE:
        raise ValueError("not a little-endian ELF64 relocatable object")
    sections = list(_sections(data, header))
    relocations = [0] * len(sections)
    for section in sections:
        if section.kind in (_SHT_REL, _SHT_RELA):
            relocations[section.info] += section.size // max(section.entry_size, 1)
    summary = ObjectSummary()
    for section, count in zip(sections, relocations, strict=True):
        _count_section(summary, section, count)
    for section in sections:
        if section.kind == _SHT_SYMTAB:
            _read_symbols(data, section, sections[section.link], summary)
    return summary


def _sections(data: bytes, header: tuple[int, ...]) -> Iterator[_Section]:
    table, entry_size, count = header[6], header[11], header[12]
    if entry_size != _SECTION.size:
        raise ValueError(f"section headers of {entry_size} bytes")
    for index in range(count):
        fields = _SECTION.unpack_from(data, table + index * entry_size)
        _, kind, flags, _, offset, size, link, info, alignment, entry = fields
        if kind != _SHT_NOBITS and offset + size > len(data):
            raise ValueError(f"section {index} reaches beyond the end of the file")
        if alignment & (alignment - 1):
            raise ValueError(f"section {index} has alignment {alignment}")
        yield _Section(kind, flags, offset, size, link, info, max(alignment, 1), entry)


def _count_section(summary: ObjectSummary, section: _Section, relocations: int) -> None:
    if not section.flags & _SHF_ALLOC:
        return
    if section.flags & _SHF_TLS:
        raise ValueError("thread-local sections are not supported")
    if section.flags & _SHF_EXEC:
        needs = summary.code
    elif section.flags & _SHF_WRITE:
        needs = summary.read_write
    else:
        needs = summary.read_only
    # An empty section takes one byte in RuntimeDyld; its stubs are 16-byte aligned.
    size = section.size + relocations * _STUB_BYTES + _SLACK_BYTES
    needs.add(size, max(section.alignment, 16))
    if relocations:
        summary.read_write.add(relocations * _GOT_ENTRY_BYTES, _GOT_ENTRY_BYTES)


def _read_symbols(data: bytes, table: _Section, strings: _Section, summary: ObjectSummary) -> None:
    # sh_info is the index of the first global symbol.
    for index in range(table.info, table.size // _SYMBOL.size):
        name_offset, _, _, where, value, size = _SYMBOL.unpack_from(
            data, table.offset + index * _SYMBOL.size
        )
        start = strings.offset + name_offset
        name = data[start : data.index(b"\0", start)].decode()
        if where == _SHN_UNDEF:
            summary.undefined.add(name)
        else:
            summary.defined[name] = size
        if where == _SHN_COMMON:
            summary.read_write.add(size, max(value, 1))
