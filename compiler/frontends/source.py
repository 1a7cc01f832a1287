# SPDX-License-Identifier: Apache-2.0
"""Every input format to a StableHLO module in jaxlib's MLIR, made ready for translation.

In: bytes or a JAX object. Out: a ``jaxlib.mlir`` module with composites expanded into calls, CHLO
legalised (``erf`` and ``erfc`` excepted, see :data:`KEPT_CHLO`) and removable dynamism removed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # pyright: ignore[reportMissingModuleSource]
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from gristmill.compiler.frontends.views import defining_op, operands, results, walk
from gristmill.errors import InputError, ParseError

_BYTECODE_MAGIC = b"ML\xefR"
_PORTABLE_PRODUCER = b"StableHLO_v"
_HLO_TEXT = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*HloModule\b", re.DOTALL)
_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_HLO_ENTRY = re.compile(r"^\s*ENTRY\b", re.MULTILINE)
_HLO_POSITION = re.compile(r"was parsing (\d+):(\d+): error: ([^\n]*)")

#: CHLO operations that the ``hlo`` dialect has: kept as custom calls of this prefix while CHLO is legalised.
KEPT_CHLO = ("chlo.erf", "chlo.erfc")
KEPT_PREFIX = "gristmill."
_UNTYPED_CONFIG = "backend_config for api_version API_VERSION_ORIGINAL must be a string"
_DICTIONARY_CONFIG = re.compile(r"\bbackend_config\s*=\s*\{")
#: Operations that importing HLO text leaves in MHLO, and their CHLO names.
_MHLO_TO_CHLO = {
    "mhlo.topk": "chlo.top_k",
    **{
        f"mhlo.{name}": f"chlo.{name}"
        for name in "acos acosh asin asinh atan atanh cosh erf sinh".split()
    },
}

_DYNAMIC_OPS = {
    f"stablehlo.{name}"
    for name in (
        "dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape "
        "real_dynamic_slice"
    ).split()
}
_TUPLE_OPS = ("stablehlo.get_tuple_element", "stablehlo.tuple")
_DEPRECATED_OPS = {
    f"stablehlo.{name}"
    for name in "broadcast create_token cross-replica-sum dot einsum unary_einsum".split()
}


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
    """Parse ``data`` in any supported format and prepare it; raises ``ParseError``.

    The result is the ``builtin.module`` operation.
    """
    with make_source_context() as context:
        module = _parse(context, data, name).operation
        _prepare(module)
    return module


def module_of_lowered(lowered: Lowered) -> ir.Operation:
    """A prepared copy of a JAX lowered object's module operation, in JAX's context."""
    if not hasattr(lowered, "compiler_ir"):
        raise InputError(
            f"expected what jax.jit(f).lower(...) returns, got {type(lowered).__name__}"
        )
    original = lowered.compiler_ir("stablehlo")
    if not isinstance(original, ir.Module):
        raise InputError("the lowered object gives no StableHLO module")
    _registry()
    with original.context, ir.Location.unknown():
        module = original.operation.clone().operation  # shares the constants with the original
        _prepare(module)
    return module


def _parse(context: ir.Context, data: bytes, name: str) -> ir.Module:
    if data.startswith(_BYTECODE_MAGIC):
        if _PORTABLE_PRODUCER in data[: data.find(b"\0") + 1]:
            return _parse_portable(context, data, name)
        return _parse_module(data, name)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return _parse_portable(context, _exported_module(data, name), name)
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
        where = short_location(diagnostic.location, name)
        diagnostics.append((_first_line(diagnostic.message), where))
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


def _prepare(module: ir.Operation) -> None:
    names = _names(module)
    if names & _MHLO_TO_CHLO.keys():
        for op in walk(module):
            if op.name in _MHLO_TO_CHLO:
                _to_chlo(op)
        names = _names(module)
    if "stablehlo.composite" in names:
        _run(module, "func.func(stablehlo-legalize-composite-to-call)")
    if any(name.startswith("chlo.") for name in names):
        for op in walk(module):
            if op.name in KEPT_CHLO:
                _keep(op)
        _run(module, "func.func(chlo-legalize-to-stablehlo)")
        names = _names(module)
    if names & _DEPRECATED_OPS:
        _run(module, "func.func(stablehlo-legalize-deprecated-ops)")
    if names & _DYNAMIC_OPS:
        _run(module, "func.func(stablehlo-canonicalize-dynamism)")
        _run(module, "stablehlo-refine-shapes")
    if "stablehlo.tuple" in names:
        _fold_tuples(module)


def _names(module: ir.Operation) -> set[str]:
    return {op.name for op in walk(module)}


def _keep(op: ir.Operation) -> None:
    target = KEPT_PREFIX + op.name.partition(".")[2]
    attributes = {"call_target_name": ir.StringAttr.get(target)}
    _replace(op, "stablehlo.custom_call", attributes)


def _to_chlo(op: ir.Operation) -> None:
    attributes: dict[str, ir.Attribute] = {}
    if op.name == "mhlo.topk":
        if "largest" in op.attributes and not ir.BoolAttr(op.attributes["largest"]).value:
            return  # CHLO has no form for the smallest; reported by the translation
        attributes["k"] = op.attributes["k"]
    _replace(op, _MHLO_TO_CHLO[op.name], attributes)


def _replace(op: ir.Operation, name: str, attributes: Mapping[str, ir.Attribute]) -> None:
    new = ir.Operation.create(
        name,
        results=[result.type for result in results(op)],
        operands=operands(op),
        attributes=dict(attributes),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, result in zip(results(op), results(new), strict=True):
        old.replace_all_uses_with(result)
    op.erase()


def _fold_tuples(module: ir.Operation) -> None:
    """Replace elements of tuples made in the same function by what the tuple was made of."""
    operations = walk(module)
    for op in operations:
        if op.name == "stablehlo.get_tuple_element":
            maker = defining_op(operands(op)[0])
            if maker is not None and maker.name == "stablehlo.tuple":
                index = ir.IntegerAttr(op.attributes["index"]).value
                results(op)[0].replace_all_uses_with(operands(maker)[index])
    for op in reversed(operations):
        unused = op.name in _TUPLE_OPS and not list(results(op)[0].uses)
        if unused:
            op.erase()


def _run(module: ir.Operation, pipeline: str) -> None:
    manager = passmanager.PassManager.parse(f"builtin.module({pipeline})")
    try:
        manager.run(module)
    except ir.MLIRError:
        # What a pass cannot convert stays as it was and is reported, with its location, by the translation.
        return
