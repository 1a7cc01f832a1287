# SPDX-License-Identifier: Apache-2.0
"""Linked native code: object files in, callable addresses out. Used by JIT and artifact alike."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Self

from gristmill.errors import ToolchainError
from gristmill.runtime import half, lapack, observer
from gristmill.runtime.debug import jit
from gristmill.runtime.elf import SectionNeeds, summarize
from gristmill.runtime.llvm.orc import link_objects
from gristmill.runtime.memory.section_manager import ContiguousSectionMemoryManager, SectionRequest
from gristmill.runtime.threads import load_openmp

#: Functions of real numbers that LLVM's code generator calls for CPUs without an instruction: without FMA, without
#: SSE4.1. Those of ``float`` have names that end in f.
_REAL_FUNCTIONS = (
    "fmod",
    "fma",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "nearbyint",
    "round",
    "roundeven",
)

#: Functions compiled code may take from the C library, because LLVM's code generator or an emitter
#: calls them. Anything else that is missing is an error.
_C_FUNCTIONS = frozenset(
    {
        *("memcpy", "memmove", "memset", "memcmp", "sched_yield", "clock_gettime"),
        *_REAL_FUNCTIONS,
        *(f"{name}f" for name in _REAL_FUNCTIONS),
    }
)

#: Prefixes of the symbols that libomp provides.
_OPENMP_PREFIXES = ("__kmpc_", "omp_")


class LoadedCode:
    """Code linked into this process. A context manager; closing it unmaps the code.

    The caller makes sure that nothing runs in it when it is closed.
    """

    def __init__(
        self,
        memory: ContiguousSectionMemoryManager,
        addresses: Mapping[str, int],
        unregister: Callable[[], None],
        externals: frozenset[str] = frozenset(),
    ) -> None:
        self.memory = memory
        #: Names of the functions it calls that are not its own.
        self.externals = externals
        self._addresses = dict(addresses)
        self._unregister = unregister
        self._closed = False
        for tool in observer.active:
            tool.opened(self)

    def address(self, symbol: str) -> int:
        """The address of a global symbol; raises ``ToolchainError`` for an unknown one."""
        if self._closed:
            raise ToolchainError(f"cannot look up {symbol}: the code has been closed")
        try:
            return self._addresses[symbol]
        except KeyError:
            known = ", ".join(sorted(self._addresses)[:8])
            raise ToolchainError(f"no symbol {symbol} in linked code; it has: {known}") from None

    def close(self) -> None:
        """Release the memory; idempotent."""
        if not self._closed:
            self._closed = True
            for tool in observer.active:
                tool.closed(self)
            self._unregister()
            self.memory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def link(objects: Sequence[bytes], symbols: Mapping[str, int] | None = None) -> LoadedCode:
    """Link relocatable objects together and load them.

    Args:
        objects: ELF object files that may refer to each other.
        symbols: addresses of further functions they may call.

    Raises:
        ToolchainError: a malformed object, or a symbol that nothing provides or two objects define.
        ResourceExhaustedError: no memory or address space is left for the code.
    """
    summaries = [summarize(data) for data in objects]
    if any(half.NAMES & summary.undefined for summary in summaries):
        objects = [*objects, half.conversions()]
        summaries.append(summarize(objects[-1]))
    code, read_only, read_write = SectionNeeds(), SectionNeeds(), SectionNeeds()
    sizes: dict[str, int] = {}
    needed: set[str] = set()
    for summary in summaries:
        code.merge(summary.code)
        read_only.merge(summary.read_only)
        read_write.merge(summary.read_write)
        sizes.update(summary.defined)
        needed |= summary.undefined
    if not sizes:
        raise ToolchainError("linking failed: the objects define no global symbol")
    externals = _resolve(needed - sizes.keys(), symbols or {})
    memory = ContiguousSectionMemoryManager()
    try:
        memory.reserve(*map(_request, (code, read_only, read_write)))
        addresses = link_objects(objects, memory, externals, sorted(sizes))
        functions = [jit.Function(n, a, sizes[n]) for n, a in addresses.items()]
        return LoadedCode(memory, addresses, jit.register(functions), frozenset(externals))
    except BaseException:
        memory.release()
        raise


def _request(needs: SectionNeeds) -> SectionRequest:
    return SectionRequest(needs.size, needs.alignment)


def _resolve(needed: set[str], symbols: Mapping[str, int]) -> dict[str, int]:
    """Addresses of external symbols: the caller's first, then libomp's, LAPACK's and the C library's."""
    found: dict[str, int] = {}
    missing: list[str] = []
    for name in sorted(needed):
        if name in symbols:
            found[name] = symbols[name]
        elif name.startswith(_OPENMP_PREFIXES):
            found[name] = _address(load_openmp(), name)
        elif name.startswith(lapack.PREFIX):
            found[name] = lapack.address(name.removeprefix(lapack.PREFIX))
        elif name in _C_FUNCTIONS:
            found[name] = _address(_math_library(), name)
        else:
            missing.append(name)
    if missing:
        raise ToolchainError(
            f"linking failed: nothing defines {', '.join(missing)}; compiled code may call only "
            f"its own functions, OpenMP and {', '.join(sorted(_C_FUNCTIONS))}"
        )
    return found


@lru_cache(maxsize=1)
def _math_library() -> ctypes.CDLL:
    """libm; looking up in it finds the C library's symbols too, as it depends on it."""
    return ctypes.CDLL("libm.so.6")


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise ToolchainError(f"linking failed: {library} has no {name}") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0
