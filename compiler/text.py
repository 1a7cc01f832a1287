# SPDX-License-Identifier: Apache-2.0
"""A module and its large constants as one text, in MLIR's own syntax.

``dense_resource<NAME>`` constants are printed in MLIR's trailing ``{-# dialect_resources … #-}``
section as hex blobs: four little-endian bytes of alignment, then the data. The section is read and
written here, so that the data never passes through an MLIR attribute and comes back as numpy arrays
of the right dtype.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.diagnostics import MLIRError, diagnostics_text, named_source
from gristmill.compiler.module import (
    HloModule,
    array_type,
    is_resource,
    make_context,
    resource_name,
)
from gristmill.errors import ParseError

_SECTION = re.compile(r"^\{-#(.*)#-\}\s*\Z", re.DOTALL | re.MULTILINE)
_BUILTIN_ONLY = re.compile(r"\s*dialect_resources:\s*\{\s*builtin:\s*\{(.*)\}\s*\}\s*", re.DOTALL)
_BLOB = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\w.$-]+)\s*:\s*"0x([0-9a-fA-F]*)"\s*(?:,|\Z)')
_ALIGNMENT = 64


def parse_module(
    text: str, *, name: str = "module", context: ir.Context | None = None
) -> HloModule:
    """Parse a module and its resource section.

    Args:
        text: MLIR assembly, generic or pretty, with or without a resource section.
        name: used for locations and messages.
        context: where to parse; a fresh one by default (resource names are unique to a context).

    Raises:
        ParseError: with MLIR's diagnostics, or when a resource's size does not fit its type.
    """
    text, blobs = _split_resources(text)
    context = context or make_context()
    with context:
        try:
            module = ir.Module.parse(text)
        except MLIRError as error:
            raise ParseError(named_source(diagnostics_text(error), name)) from None
        constants = {
            key: _decode(key, blobs[key], kind, name)
            for key, kind in _resource_types(module).items()
            if key in blobs
        }
    return HloModule(module, constants, name)


def print_module(
    module: HloModule,
    *,
    resources: bool = True,
    debug_info: bool = False,
    generic: bool = False,
    elide_elements: int | None = None,
) -> str:
    """The module as text that :func:`parse_module` reads back.

    Args:
        module: what to print.
        resources: append the data of the large constants in use, not their names alone.
        debug_info: print locations.
        generic: print every op in generic form.
        elide_elements: print ``dense_resource<__elided__>`` for inline constants of more elements.
    """
    text = str(
        module.module.operation.get_asm(
            large_elements_limit=elide_elements,
            enable_debug_info=debug_info,
            print_generic_op_form=generic,
        )
    ).rstrip()
    if not resources or not module.constants:
        return text + "\n"
    used = _resource_types(module.module)
    blobs = [
        f'      {key}: "0x{_ALIGNMENT.to_bytes(4, "little").hex()}{_encode(data)}"'
        for key, data in module.constants.items()
        if key in used
    ]
    if not blobs:
        return text + "\n"
    body = ",\n".join(blobs)
    return f"{text}\n\n{{-#\n  dialect_resources: {{\n    builtin: {{\n{body}\n    }}\n  }}\n#-}}\n"


def _split_resources(text: str) -> tuple[str, dict[str, str]]:
    section = _SECTION.search(text)
    if section is None:
        return text, {}
    builtin = _BUILTIN_ONLY.fullmatch(section.group(1))
    if builtin is None:  # reproducers and other dialects' resources: MLIR's business
        return text, {}
    blobs = {m.group(1).strip('"'): m.group(2) for m in _BLOB.finditer(builtin.group(1))}
    return text[: section.start()], blobs


def _resource_types(module: ir.Module) -> dict[str, ir.Type]:
    """The type of every resource that an ``hlo.constant`` of the module refers to."""
    found: dict[str, ir.Type] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "hlo.constant" and is_resource(op.attributes["value"]):
            found[resource_name(op.attributes["value"])] = op.results[0].type
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _decode(key: str, digits: str, kind: ir.Type, where: str) -> np.ndarray[Any, Any]:
    array = array_type(kind)
    data = bytes.fromhex(digits)[4:]
    packed = array.element.name == "i1" and len(data) == (array.size + 7) // 8 != array.nbytes
    if not packed and len(data) != array.nbytes:
        raise ParseError(
            f"resource {key!r} has {len(data)} bytes but {kind} needs {array.nbytes}",
            location=where,
        )
    if packed:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: array.size]
        values = bits.astype(np.bool_).reshape(array.shape)
    else:
        values = np.frombuffer(data, array.element.dtype).reshape(array.shape)
    values.flags.writeable = False
    return values


def _encode(data: np.ndarray[Any, Any]) -> str:
    return np.ascontiguousarray(data).tobytes().hex().upper()


def body_text(name: str, function: ir.Operation) -> str:
    """The text of the function called ``name`` without that name: equal functions have equal texts.

    The function must be valid. It is printed by itself: otherwise MLIR verifies it and numbers the whole module first.
    """
    text = str(function.get_asm(assume_verified=True, use_local_scope=True))
    return text.replace(f"@{name}(", "@(", 1)
