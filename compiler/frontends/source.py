# SPDX-License-Identifier: Apache-2.0
"""Every input format to a StableHLO module in jaxlib's MLIR.

In: bytes or a JAX object. Out: a ``jaxlib.mlir`` module, as it was written.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

from jaxlib.mlir import ir

# Not ``jaxlib.mlir.dialects``: it takes 40 ms more, for classes of CHLO's, MHLO's and Shardy's operations.
from jaxlib.mlir._mlir_libs import (  # pyright: ignore[reportMissingModuleSource]
    _chlo as chlo,
)
from jaxlib.mlir._mlir_libs import (  # pyright: ignore[reportMissingModuleSource]
    _jax_mlir_ext,
)
from jaxlib.mlir._mlir_libs import (  # pyright: ignore[reportMissingModuleSource]
    _mlirHlo as mhlo,
)
from jaxlib.mlir._mlir_libs import (  # pyright: ignore[reportMissingModuleSource]
    _sdy as sdy,
)
from jaxlib.mlir._mlir_libs import (  # pyright: ignore[reportMissingModuleSource]
    _stablehlo as stablehlo,
)

from gristmill.errors import InputError, ParseError

_BYTECODE_MAGIC = b"ML\xefR"
_PORTABLE_PRODUCER = b"StableHLO_v"
_HLO_TEXT = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*HloModule\b", re.DOTALL)
_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_HLO_ENTRY = re.compile(r"^\s*ENTRY\b", re.MULTILINE)
_HLO_POSITION = re.compile(r"was parsing (\d+):(\d+): error: ([^\n]*)")
_UNTYPED_CONFIG = "backend_config for api_version API_VERSION_ORIGINAL must be a string"
_DICTIONARY_CONFIG = re.compile(r"\bbackend_config\s*=\s*\{")


class Lowered(Protocol):
    """The part of ``jax.stages.Lowered`` that the front end uses."""

    def compiler_ir(self, dialect: str | None = None) -> object:
        """The lowered module in the given dialect."""
        ...


class _Context(ir.Context):
    def __init__(self) -> None:
        # Not the immediate base class: its constructor loads every dialect linked into jaxlib.
        super(ir.Context, self).__init__()


@lru_cache(maxsize=1)
def _registry() -> ir.DialectRegistry:
    stablehlo.register_stablehlo_passes()
    mhlo.register_mhlo_passes()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


def make_source_context() -> ir.Context:
    """A context that can parse StableHLO, VHLO, CHLO, Shardy and the upstream dialects JAX uses."""
    registry = _registry()
    context = _Context()
    context.append_dialect_registry(registry)
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    context.load_all_available_dialects()
    return context


def parse_bytes(data: bytes, name: str) -> ir.Operation:
    """The ``builtin.module`` operation of ``data`` in any supported format; raises ``ParseError``."""
    with make_source_context() as context:
        return _parse(context, data, name).operation


def module_of_lowered(lowered: Lowered) -> ir.Operation:
    """A copy of a JAX lowered object's module operation, in JAX's context."""
    if not hasattr(lowered, "compiler_ir"):
        raise InputError(
            f"expected what jax.jit(f).lower(...) returns, got {type(lowered).__name__}"
        )
    original = lowered.compiler_ir("stablehlo")
    if not isinstance(original, ir.Module):
        raise InputError("the lowered object gives no StableHLO module")
    _registry()
    with original.context, ir.Location.unknown():
        return original.operation.clone().operation  # shares the constants with the original


def is_binary(data: bytes) -> bool:
    """Whether ``data`` is bytecode or an artifact rather than text."""
    if data.startswith(_BYTECODE_MAGIC) or b"\0" in data:
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _parse(context: ir.Context, data: bytes, name: str) -> ir.Module:
    if data.startswith(_BYTECODE_MAGIC):
        if _PORTABLE_PRODUCER in data[: data.find(b"\0") + 1]:
            return _parse_portable(context, data, name)
        return _parse_module(data, name)
    if is_binary(data):
        return _parse_portable(context, _exported_module(data, name), name)
    text = data.decode()
    if not text.strip():
        raise ParseError("the input is empty; expected a StableHLO or HLO module", location=name)
    if _HLO_TEXT.match(text):
        return _parse_hlo_text(text, name)
    module = _parse_text(text, name)
    if any(op.operation.name.startswith("vhlo.") for op in module.body):
        return _parse_portable(context, data, name)
    return module


def _parse_module(source: str | bytes, name: str) -> ir.Module:
    try:
        return ir.Module.parse(source)
    except ir.MLIRError as error:
        raise _parse_error(error, name) from None


def _parse_text(text: str, name: str) -> ir.Module:
    try:
        return _parse_module(text, name)
    except ParseError as error:
        if _UNTYPED_CONFIG not in error.message or "api_version" in text:
            raise
    # A dictionary can only be meant for the typed calling convention, whose version the text left out.
    return _parse_module(_DICTIONARY_CONFIG.sub(r"api_version = 4 : i32, \g<0>", text), name)


def _parse_portable(context: ir.Context, data: bytes, name: str) -> ir.Module:
    diagnostics: list[tuple[str, str | None]] = []

    def collect(diagnostic: ir.Diagnostic) -> bool:
        try:
            message, where = (
                _first_line(diagnostic.message),
                short_location(diagnostic.location, name),
            )
        except RuntimeError:  # the binding cannot decode a damaged name
            message, where = "it names something that is not text", None
        diagnostics.append((message, where))
        return True

    handler = cast("ir.DiagnosticHandler", context.attach_diagnostic_handler(collect))
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except (ValueError, ir.MLIRError) as error:
        current = stablehlo.get_current_version()
        message, where = diagnostics[0] if diagnostics else (_first_line(str(error)), None)
        raise ParseError(
            f"not a portable artifact that StableHLO {current} can read: {message}",
            location=where or name,
        ) from None
    finally:
        handler.detach()


def _parse_error(error: ir.MLIRError, name: str) -> ParseError:
    for diagnostic in error.error_diagnostics:
        location = short_location(diagnostic.location, name) or name
        return ParseError(_first_line(diagnostic.message), location=location)
    return ParseError(_first_line(str(error)), location=name)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def short_location(location: ir.Location, name: str) -> str | None:
    """``file:line:col`` of the innermost file position of ``location``; ``-`` is replaced by ``name``."""
    match = _FILE_LOCATION.search(str(location))
    if match is None:
        return None
    file, line, column = match.groups()
    file = name if file == "-" else file
    return file if line == "0" else f"{file}:{line}:{column}"  # bytecode has no lines


def _parse_hlo_text(text: str, name: str) -> ir.Module:
    hlo_parser, converter = import_module("jaxlib._hlo"), import_module("jaxlib._jax").mlir
    if not _HLO_ENTRY.search(text):
        raise ParseError("the HLO module has no ENTRY computation", location=name)
    try:
        proto: bytes = hlo_parser.hlo_module_from_text(
            _without_entry_layout(text)
        ).as_serialized_hlo_module_proto()
        bytecode: bytes = converter.hlo_to_stablehlo(proto)
    except RuntimeError as error:
        match = _HLO_POSITION.search(str(error))
        if match is None:
            raise ParseError(_first_line(str(error)), location=name) from None
        line, column, message = match.groups()
        raise ParseError(message, location=f"{name}:{line}:{column}") from None
    return _parse_module(bytecode, name)


def _without_entry_layout(text: str) -> str:
    """HLO text without ``entry_computation_layout={…}``.

    StableHLO has no layouts, and one that disagrees with the entry computation aborts XLA's importer.
    """
    match = re.search(r",?\s*entry_computation_layout=(?=\{)", text)
    if match is None:
        return text
    depth = 0
    for index in range(match.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[: match.start()] + text[index + 1 :]
    return text


def _exported_module(data: bytes, name: str) -> bytes:
    """The portable artifact inside the file that ``jax.export.Exported.serialize`` writes.

    That file is a flatbuffer; the artifact is the byte vector at virtual-table offset 30 of the root table.
    """
    field = 30
    try:
        (root,) = struct.unpack_from("<I", data, 0)
        (table_distance,) = struct.unpack_from("<i", data, root)
        (offset,) = struct.unpack_from("<H", data, root - table_distance + field)
        (relative,) = struct.unpack_from("<I", data, root + offset)
        start = root + offset + relative
        (length,) = struct.unpack_from("<I", data, start)
        artifact = data[start + 4 : start + 4 + length]
    except struct.error:
        artifact = b""
    if not artifact.startswith(_BYTECODE_MAGIC):
        raise ParseError(
            "unknown format; expected StableHLO text, MLIR bytecode, a StableHLO portable artifact, a "
            "file from jax.export, or HLO text",
            location=name,
        )
    return artifact
