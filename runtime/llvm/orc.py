# SPDX-License-Identifier: Apache-2.0
"""Linking object files in this process: LLVM relocates, a :class:`SectionMemory` owns the memory.

One ORC session serves the process. Each link runs alone (under a lock) in a clean symbol table;
when it is done, ORC forgets the objects and only the section memory lives on, so an executable's
lifetime does not depend on LLVM.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from gristmill.errors import GristmillError, ToolchainError
from gristmill.runtime.llvm.library import (
    AllocateCodeCallback,
    AllocateDataCallback,
    CreateContextCallback,
    CreateLayerCallback,
    DestroyCallback,
    FinalizeCallback,
    LookupResultCallback,
    OrcFlags,
    OrcLookup,
    OrcSearch,
    OrcSymbol,
    ReportErrorCallback,
    check_error,
    llvm,
)

_EXPORTED = 1  # LLVMJITSymbolGenericFlagsExported


class SectionMemory(Protocol):
    """Where the sections of one link go. The methods are called in this order, on one thread."""

    def allocate_code(self, size: int, alignment: int, name: str) -> int:
        """Address of ``size`` bytes that become executable."""
        ...

    def allocate_data(self, size: int, alignment: int, name: str, read_only: bool) -> int:
        """Address of ``size`` bytes that become read-only or stay writable."""
        ...

    def seal(self) -> None:
        """Apply the final protections; relocations have been written."""
        ...


def _make_context(_context: int) -> int:
    return 1  # Any value but null: links are serialised, so the session knows whose memory it is.


def _ignore(_opaque: int) -> None:
    """The memory outlives ORC's interest in it."""


class _Session:
    """The process-wide LLJIT instance and the callbacks of its object layer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.memory: SectionMemory | None = None
        self.failure: BaseException | None = None
        self.reports: list[str] = []
        self._scrap: list[ctypes.Array[ctypes.c_char]] = []
        self._names = itertools.count()
        # ctypes callbacks must stay referenced as long as LLVM may call them.
        self._callbacks = (
            CreateContextCallback(_make_context),
            DestroyCallback(_ignore),
            AllocateCodeCallback(self._allocate_code),
            AllocateDataCallback(self._allocate_data),
            FinalizeCallback(self._finalize),
            DestroyCallback(_ignore),
        )
        self._create_layer_callback = CreateLayerCallback(self._create_layer)
        self._report_callback = ReportErrorCallback(self._report)
        self.jit = self._create()
        self.session = llvm().LLVMOrcLLJITGetExecutionSession(self.jit)
        llvm().LLVMOrcExecutionSessionSetErrorReporter(self.session, self._report_callback, None)
        self.dylib: int | None = None

    def _create(self) -> int:
        library = llvm()
        builder = library.LLVMOrcCreateLLJITBuilder()
        library.LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator(
            builder, self._create_layer_callback, None
        )
        jit = ctypes.c_void_p()
        error = library.LLVMOrcCreateLLJIT(ctypes.byref(jit), builder)
        check_error(error, "cannot start LLVM's linker")
        assert jit.value
        return jit.value

    def _create_layer(self, _context: int, session: int, _triple: bytes) -> int:
        create = llvm().LLVMOrcCreateRTDyldObjectLinkingLayerWithMCJITMemoryManagerLikeCallbacks
        return create(session, None, *self._callbacks)

    def _report(self, _context: int, error: int) -> None:
        try:
            check_error(error, "link")
        except ToolchainError as failure:
            self.reports.append(failure.message.removeprefix("link: "))

    def _allocate_code(self, _opaque: int, size: int, alignment: int, _id: int, name: bytes) -> int:
        try:
            assert self.memory is not None
            return self.memory.allocate_code(size, alignment, name.decode())
        except BaseException as error:
            return self._rescue(size, alignment, error)

    def _allocate_data(
        self, _opaque: int, size: int, alignment: int, _id: int, name: bytes, read_only: int
    ) -> int:
        try:
            assert self.memory is not None
            return self.memory.allocate_data(size, alignment, name.decode(), bool(read_only))
        except BaseException as error:
            return self._rescue(size, alignment, error)

    def _rescue(self, size: int, alignment: int, error: BaseException) -> int:
        """Scratch memory for a failed request: LLVM aborts the process when it gets null.

        The link goes on into memory that is thrown away and fails when it is finalised.
        """
        self.failure = self.failure or error
        scrap = ctypes.create_string_buffer(size + alignment)
        self._scrap.append(scrap)
        return -(-ctypes.addressof(scrap) // max(alignment, 1)) * max(alignment, 1)

    def _finalize(self, _opaque: int, message: ctypes.Array[ctypes.c_void_p]) -> int:
        # Called once per object; the memory they share is sealed when all of them are in place.
        if self.failure is None:
            return 0
        message[0] = llvm().LLVMCreateMessage(str(self.failure).encode())
        return 1

    def begin(self, memory: SectionMemory) -> int:
        self.memory, self.failure = memory, None
        self.reports.clear()
        if self.dylib is None:
            name = f"gristmill{next(self._names)}".encode()
            self.dylib = llvm().LLVMOrcExecutionSessionCreateBareJITDylib(self.session, name)
        assert self.dylib
        return self.dylib

    def end(self) -> None:
        """Forget everything the link defined; the section memory is not touched."""
        library = llvm()
        dylib, self.dylib = self.dylib, None
        check_error(library.LLVMOrcJITDylibClear(dylib), "clear the linker's symbols")
        self.dylib = dylib
        pool = library.LLVMOrcExecutionSessionGetSymbolStringPool(self.session)
        library.LLVMOrcSymbolStringPoolClearDeadEntries(pool)
        self.memory = None
        self._scrap.clear()


_sessions: list[_Session] = []
_sessions_lock = threading.Lock()


def _session() -> _Session:
    with _sessions_lock:
        if not _sessions:
            _sessions.append(_Session())
        return _sessions[0]


def link_objects(
    objects: Sequence[bytes],
    memory: SectionMemory,
    externals: Mapping[str, int],
    wanted: Sequence[str],
) -> dict[str, int]:
    """Link ``objects`` into ``memory`` and return the addresses of the ``wanted`` symbols.

    Args:
        objects: relocatable ELF objects; they may refer to each other.
        memory: receives the sections and is sealed before this returns.
        externals: addresses of symbols the objects do not define.
        wanted: at least one symbol the objects define; linking is driven by looking them up.

    Raises:
        ToolchainError: LLVM refused an object, or a symbol is missing or defined twice.
        GristmillError: whatever ``memory`` raised.
    """
    session = _session()
    with session.lock:
        dylib = session.begin(memory)
        try:
            _define(session, dylib, externals)
            for number, data in enumerate(objects):
                _add_object(session, dylib, data, f"object {number}")
            addresses = _lookup(session, dylib, wanted)
            memory.seal()
            return addresses
        except ToolchainError as error:
            raise _cause(session, error) from None
        finally:
            session.end()


def _cause(session: _Session, error: ToolchainError) -> BaseException:
    """The most telling error: what our memory raised, else what ORC reported on the side."""
    if session.failure is not None:
        failure = session.failure
        if isinstance(failure, GristmillError):
            return failure
        return ToolchainError(f"linking failed: {failure!r}")
    details = [text for text in session.reports if text not in error.message]
    return ToolchainError("; ".join([error.message, *details]))


def _define(session: _Session, dylib: int, symbols: Mapping[str, int]) -> None:
    if not symbols:
        return
    library = llvm()
    pairs = (OrcSymbol * len(symbols))()
    for pair, (name, address) in zip(pairs, symbols.items(), strict=True):
        pair.name = library.LLVMOrcLLJITMangleAndIntern(session.jit, name.encode())
        pair.address = address
        pair.flags = OrcFlags(_EXPORTED, 0)
    unit = library.LLVMOrcAbsoluteSymbols(pairs, len(symbols))
    error = library.LLVMOrcJITDylibDefine(dylib, unit)
    if error:
        library.LLVMOrcDisposeMaterializationUnit(unit)
        check_error(error, "cannot define external symbols")


def _add_object(session: _Session, dylib: int, data: bytes, name: str) -> None:
    library = llvm()
    buffer = library.LLVMCreateMemoryBufferWithMemoryRangeCopy(data, len(data), name.encode())
    error = library.LLVMOrcLLJITAddObjectFile(session.jit, dylib, buffer)
    check_error(error, f"cannot link {name}")


def _lookup(session: _Session, dylib: int, names: Sequence[str]) -> dict[str, int]:
    library = llvm()
    found: dict[str, int] = {}
    failures: list[ToolchainError] = []
    finished = threading.Event()

    def handle(error: int, result: ctypes.Array[OrcSymbol], count: int, _context: int) -> None:
        try:
            check_error(error, "linking failed")
            for index in range(count):
                text = library.LLVMOrcSymbolStringPoolEntryStr(result[index].name)
                found[ctypes.string_at(text).decode()] = result[index].address
        except ToolchainError as failure:
            failures.append(failure)
        finally:
            finished.set()

    callback = LookupResultCallback(handle)
    search = (OrcSearch * 1)(OrcSearch(dylib, 0))
    lookups = (OrcLookup * len(names))()
    for lookup, name in zip(lookups, names, strict=True):
        lookup.name = library.LLVMOrcLLJITMangleAndIntern(session.jit, name.encode())
    library.LLVMOrcExecutionSessionLookup(
        session.session, 0, search, 1, lookups, len(names), callback, None
    )
    finished.wait()
    if failures:
        raise failures[0]
    return found
