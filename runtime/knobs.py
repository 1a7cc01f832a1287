# SPDX-License-Identifier: Apache-2.0
"""Every environment variable Gristmill reads, with type, default and meaning.

Nothing else reads ``os.environ``. A knob is read when asked for, so tests may change it with
:meth:`Knob.scope`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gristmill.errors import InputError

T = TypeVar("T")

_SIZE = re.compile(r"(?P<number>[0-9]+)(?P<unit>[KMGT]?)")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One environment variable.

    Attributes:
        name: the variable.
        parse: turns its text into a value; raises ``ValueError`` for a bad one.
        default: the value when it is unset or empty.
        doc: one line for the documentation table.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    doc: str

    def get(self) -> T:
        """The current value; raises ``InputError`` naming the variable when it is malformed."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise InputError(f"environment variable {self.name}={text!r}: {error}") from None

    @contextmanager
    def scope(self, text: str) -> Generator[None]:
        """Set the variable to ``text`` inside a ``with`` block."""
        saved = os.environ.get(self.name)
        os.environ[self.name] = text
        try:
            yield
        finally:
            if saved is None:
                del os.environ[self.name]
            else:
                os.environ[self.name] = saved


def _flag(text: str) -> bool:
    if text in ("0", "1"):
        return text == "1"
    raise ValueError("write 0 or 1")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _milliseconds(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("must not be negative")
    return value


def parse_bytes(text: str) -> int:
    """A number of bytes, with an optional suffix K, M, G or T (powers of 1024); raises ``ValueError``."""
    parts = _SIZE.fullmatch(text.upper())
    if parts is None:
        raise ValueError("write a number, with a suffix K, M, G or T if you like")
    value = int(parts["number"]) << (10 * " KMGT".index(parts["unit"] or " "))
    if value < 1:
        raise ValueError("must be at least 1")
    return value


CPU = Knob(
    "GRISTMILL_CPU",
    str,
    "native",
    "CPU to compile for: native, generic, or x86-64, x86-64-v2, x86-64-v3, x86-64-v4",
)
NUM_THREADS = Knob(
    "GRISTMILL_NUM_THREADS", _count, 0, "threads of one execution; default: the usable cores"
)
SPIN_MS = Knob(
    "GRISTMILL_SPIN_MS",
    _milliseconds,
    1,
    "milliseconds idle worker threads spin before they sleep (KMP_BLOCKTIME)",
)
LAPACK_THREADS = Knob(
    "GRISTMILL_LAPACK_THREADS",
    _count,
    1,
    "threads that LAPACK may use for one matrix of a program; those of a batch are shared among the program's threads",
)
TRUST_INPUT = Knob(
    "GRISTMILL_TRUST_INPUT",
    _flag,
    False,
    "1: read binary modules at once, without a trial in a child process that catches crashes of the reader",
)
POOL_MB = Knob(
    "GRISTMILL_POOL_MB",
    _count,
    0,
    "megabytes of result and arena memory kept for reuse; default: 1024, at most 1/8 of the RAM",
)
HOST_MEMORY_LIMIT = Knob(
    "GRISTMILL_HOST_MEMORY_LIMIT",
    parse_bytes,
    0,
    "bytes (suffix K, M, G or T) that each host memory allocator may have in use; default: the RAM",
)
HOST_POOL_SLOTS = Knob(
    "GRISTMILL_HOST_POOL_SLOTS",
    _count,
    4096,
    "slots for each primitive type that a host memory pool may grow to",
)
CACHE = Knob(
    "GRISTMILL_CACHE",
    _flag,
    True,
    "0: compile without the cache on disk, where the options do not say otherwise",
)
CACHE_DIR = Knob(
    "GRISTMILL_CACHE_DIR",
    str,
    "",
    "directory of the cache on disk; default: gristmill in XDG_CACHE_HOME, else in ~/.cache",
)
CACHE_SIZE = Knob(
    "GRISTMILL_CACHE_SIZE",
    parse_bytes,
    1 << 30,
    "bytes (suffix K, M, G or T) that the cache on disk may take; default: 1G",
)
AUTOTUNE_SECONDS = Knob(
    "GRISTMILL_AUTOTUNE_SECONDS",
    _count,
    60,
    "seconds that autotuning one program may take, when it is asked for",
)
XDG_CACHE_HOME = Knob(
    "XDG_CACHE_HOME", str, "", "the user's cache directory, when it is an absolute path"
)
PERF_MAP = Knob(
    "GRISTMILL_PERF_MAP", _flag, False, "1: append JIT symbols to /tmp/perf-PID.map for perf"
)
GDB_JIT = Knob("GRISTMILL_GDB_JIT", _flag, False, "1: register JIT objects with GDB")

#: All knobs, in the order of the documentation table.
KNOBS = (
    CPU,
    NUM_THREADS,
    SPIN_MS,
    LAPACK_THREADS,
    POOL_MB,
    HOST_MEMORY_LIMIT,
    HOST_POOL_SLOTS,
    TRUST_INPUT,
    CACHE,
    CACHE_DIR,
    CACHE_SIZE,
    XDG_CACHE_HOME,
    AUTOTUNE_SECONDS,
    PERF_MAP,
    GDB_JIT,
)
