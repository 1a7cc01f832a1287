# SPDX-License-Identifier: Apache-2.0
"""From the formats that programs come in to an :class:`~gristmill.compiler.module.HloModule`.

In: StableHLO text, MLIR bytecode, StableHLO portable artifacts (what ``jax.export`` serialises, also inside
its own container file), HLO text (``HloModule …``), and JAX's lowered objects. Out: a module whose entry is
the public ``func.func @main``, with ``hlo`` operations only, every region outlined (see
:mod:`gristmill.dialects.hlo`) and every function reachable from ``@main``.

Attributes of the entry function, for the signature of the compiled executable:

==========================  ========  =======================================================================
attribute                   on        meaning
==========================  ========  =======================================================================
``gristmill.name`` string   argument  the name the producer gave it, for example ``params['w']``
``gristmill.donated`` unit  argument  the caller gives up the buffer: the program may overwrite it
``gristmill.alias`` i64     argument  index of the result that may reuse this (donated) argument's buffer
``gristmill.name`` string   result    the name the producer gave it, for example ``result[0]``
==========================  ========  =======================================================================

Operations keep their source locations. Malformed input raises ``ParseError``; a valid program with
operations or types that are not implemented raises one ``UnsupportedError`` that lists them all.

A program whose shapes are not known before it is called is a
:class:`~gristmill.compiler.frontends.polymorphic.PolymorphicModule`: :func:`import_bytes` and
:func:`import_lowered` give one, the ``load`` functions and :func:`from_lowered` refuse it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.errors import ParseError, UnsupportedError

if TYPE_CHECKING:
    from gristmill.compiler.frontends.polymorphic import PolymorphicModule
    from gristmill.compiler.frontends.source import Lowered
    from gristmill.compiler.module import HloModule

__all__ = [
    "Content",
    "content_of",
    "from_lowered",
    "import_bytes",
    "import_lowered",
    "load_bytes",
    "load_file",
    "load_text",
    "read_file",
    "require_static",
]


class Content(NamedTuple):
    """A program's bytes in any of the formats, and what stands for the file name in locations and messages."""

    data: bytes
    name: str


def content_of(source: Any) -> Content | None:
    """The content of a path (``str`` naming a file, or ``Path``), text, bytes, or a JAX ``Exported``.

    ``None`` for a source of another kind. Raises ``ParseError`` when a file cannot be read.
    """
    if isinstance(source, Content):
        return source
    if isinstance(source, str):
        if "\n" in source or source.lstrip().startswith(("module", "func", "HloModule")):
            return Content(source.encode(), "<text>")
        source = Path(source)
    if isinstance(source, Path):
        name = (
            str(source).encode(errors="backslashreplace").decode()
        )  # names need not be UTF-8; locations must
        return Content(read_file(source), name)
    if isinstance(source, bytes | bytearray):
        return Content(bytes(source), "<bytes>")
    if hasattr(source, "mlir_module_serialized"):
        return Content(source.mlir_module_serialized, source.fun_name)
    return None


#: In the errors of nanobind, through which MLIR's strings come.
_NOT_UTF8 = "str_from_cstr"


def read_file(path: str | Path) -> bytes:
    """The content of the file ``path``; raises ``ParseError`` when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a null byte in the name is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise ParseError(f"cannot read the file: {why}", location=str(path)) from None


def import_bytes(data: bytes, name: str = "module") -> HloModule | PolymorphicModule:
    """Import a program from bytes, of static or dynamic shapes. Otherwise as :func:`load_bytes`."""
    from gristmill.compiler.frontends.guard import require_survival
    from gristmill.compiler.frontends.polymorphic import load
    from gristmill.compiler.frontends.source import is_binary, parse_bytes

    if is_binary(data):
        require_survival(lambda: load(parse_bytes(data, name), name), len(data), name)
    try:
        return load(parse_bytes(data, name), name)
    except RuntimeError as error:
        if _NOT_UTF8 not in str(error):
            raise
        reason = "a name or message in the module is not UTF-8: the file is damaged"
        raise ParseError(reason, location=name) from None


def import_lowered(lowered: Lowered) -> HloModule | PolymorphicModule:
    """As :func:`from_lowered`, of static or dynamic shapes."""
    from gristmill.compiler.frontends.polymorphic import load
    from gristmill.compiler.frontends.source import module_of_lowered

    return load(module_of_lowered(lowered), "jax")


def require_static(program: HloModule | PolymorphicModule) -> HloModule:
    """``program``; raises ``UnsupportedError`` when its shapes are dynamic."""
    from gristmill.compiler.module import HloModule

    if isinstance(program, HloModule):
        return program
    raise UnsupportedError(
        f"the program has dynamic shapes ({program}); gristmill.compile gives an executable that is "
        "compiled for each set of shapes it is called with"
    )


def load_file(path: str | Path) -> HloModule:
    """Import the program in the file ``path``, whatever its format.

    Raises ``ParseError`` when the file cannot be read or is not well formed, ``UnsupportedError`` when it
    uses something not implemented or has dynamic shapes.
    """
    return load_bytes(read_file(path), str(path))


def load_bytes(data: bytes, name: str = "module") -> HloModule:
    """Import a program from bytes; the format is recognised by its first bytes.

    ``name`` stands for the file name in locations and messages. Raises as :func:`load_file`.
    """
    return require_static(import_bytes(data, name))


def load_text(text: str, name: str = "module") -> HloModule:
    """Import StableHLO or HLO text. ``name`` as in :func:`load_bytes`; raises as :func:`load_file`."""
    return load_bytes(text.encode(), name)


def from_lowered(lowered: Lowered) -> HloModule:
    """Import what ``jax.jit(f).lower(...)`` returns; the object itself is left unchanged.

    Raises ``UnsupportedError`` as :func:`load_file`, and ``InputError`` for an object without
    ``compiler_ir``.
    """
    return require_static(import_lowered(lowered))
