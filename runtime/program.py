# SPDX-License-Identifier: Apache-2.0
"""A compiled program as plain data: what the compiler hands to the runtime.

**The entry ABI, version 2.** A program has one native entry function

    void entry(void *const *inputs, void *const *outputs, void *const *constants,
               void *arena, int64_t num_threads, context *context)

``inputs`` and ``outputs`` are in signature order and point to dense row-major data aligned to at
least the element size (outputs made by the runtime are 64-byte aligned); ``constants[i]`` points to
the 64-byte aligned data of ``Program.constants[i]``; ``arena`` is 64-byte aligned and holds
``arena_bytes + num_threads * scratch_bytes`` bytes, thread ``t``'s scratch starting at
``arena + arena_bytes + t * scratch_bytes``. The function may be entered by several threads at once
with different outputs, arenas and contexts.

``context`` is for custom calls; a program without any never looks at it:

    struct context { int64_t code; const site *sites; int64_t acknowledged; char message[512]; }
    struct site { custom_call *function; const call *call; int64_t acknowledgement; }

``sites[k]`` is custom call ``Program.custom_calls[k]``, whose function is called as ``runtime/custom_call.h``
says, by the thread that entered. The call has succeeded when it returns 0 and ``acknowledged``, zero before the call,
is ``acknowledgement``. Otherwise ``code`` becomes ``-1 - k`` and the program ends at once, its results undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.runtime.types import ArrayType

#: Raised when the entry function's convention changes; stored in every artifact.
ENTRY_ABI_VERSION = 2

#: Layout of the entry function's context and of one site, in bytes.
CODE, SITES, ACKNOWLEDGED, MESSAGE = 0, 8, 16, 24
MESSAGE_BYTES = 512
CONTEXT_BYTES = MESSAGE + MESSAGE_BYTES
SITE_BYTES = 24

#: Alignment in bytes of arenas, constants and outputs, and of the offsets inside an arena.
ALIGNMENT = 64

#: Alignment of the scratch memory of a thread where that is :data:`LARGE_SCRATCH` or more. A load seems to depend on an
#: earlier store to the same place of another page: where scratch memory begins must not be left to chance.
PAGE, LARGE_SCRATCH = 4096, 2048


def align_up(value: int, alignment: int = ALIGNMENT) -> int:
    """``value`` rounded up to a multiple of ``alignment`` (a power of two)."""
    return (value + alignment - 1) & -alignment


@dataclass(frozen=True)
class Signature:
    """One input or output of a program.

    Attributes:
        name: the name shown to users and used as .npz key.
        type: shape and element type.
        donated: an input whose buffer the program may overwrite when the caller donates it.
        alias: for an output, the index of the donated input whose buffer it may take over; for an
            input, the index of that output. None when there is no such pair.
    """

    name: str
    type: ArrayType
    donated: bool = False
    alias: int | None = None


@dataclass(frozen=True)
class CustomCall:
    """A function outside the program that it calls.

    Attributes:
        target: the name it is registered under.
        inputs, outputs: the arrays it is given and fills; tokens are not among them.
        config: what the program configures the call with: JSON text of an object when ``typed``, else any text.
        typed: whether ``config`` holds named attributes.
    """

    target: str
    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    config: str = ""
    typed: bool = False


@dataclass
class Program:
    """Everything an :class:`~gristmill.runtime.executable.Executable` needs.

    Attributes:
        name: the program's name, shown in errors and profiles.
        inputs, outputs: the signature, in calling order.
        objects: relocatable object files; together they define ``entry``.
        constants: constant arrays in the order of the entry function's ``constants``; C-contiguous.
        arena_bytes: shared temporary memory of one execution, a multiple of 64.
        scratch_bytes: private temporary memory of one thread, a multiple of 64.
        entry: symbol name of the entry function.
        custom_calls: functions that the entry function calls, in the order of the context's sites.
        parallel: whether the entry function can use more than one thread (and needs OpenMP).
        target_triple, target_cpu, target_features: what the objects were compiled for.
    """

    name: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    objects: Sequence[bytes]
    constants: Sequence[np.ndarray[Any, Any]] = field(default_factory=list[np.ndarray[Any, Any]])
    arena_bytes: int = 0
    scratch_bytes: int = 0
    custom_calls: Sequence[CustomCall] = ()
    entry: str = "gristmill_main"
    parallel: bool = False
    target_triple: str = ""
    target_cpu: str = ""
    target_features: str = ""
