# SPDX-License-Identifier: Apache-2.0
"""A StableHLO module in jaxlib's MLIR to an ``HloModule`` in ours.

Here: the entry, the functions it reaches, and what they share (types, locations, names, complaints).
:mod:`gristmill.compiler.frontends.function` translates one function,
:mod:`gristmill.compiler.frontends.rules` one operation.
"""

from __future__ import annotations

from pathlib import Path

from jaxlib.mlir import ir as source_ir
from mlir import ir

from gristmill.compiler.diagnostics import MLIRError, diagnostics_text
from gristmill.compiler.frontends.function import FunctionTranslator
from gristmill.compiler.frontends.importer import Importer
from gristmill.compiler.frontends.views import first_block, operations
from gristmill.compiler.module import HloModule, make_context
from gristmill.errors import ParseError, VerifyError


def translate(module: source_ir.Operation, name: str) -> HloModule:
    """Translate a prepared source module.

    ``name`` is what positions of nameless input are reported against. Raises ``ParseError`` when the
    module has no entry function and ``UnsupportedError`` listing everything not implemented.
    """
    functions = functions_of(module)
    entry = entry_name(functions, name)
    with make_context(), ir.Location.unknown():
        importer = Importer(module, name, functions, ir.Module.create())
        order = importer.reachable(entry)
        for function in order:
            FunctionTranslator(importer).function(function, entry=function == entry)
        importer.raise_unsupported()
        _verify(importer.target)
        title = module_title(module, name)
        importer.target.operation.attributes["sym_name"] = ir.StringAttr.get(title)
    return HloModule(importer.target, importer.constants.arrays, title)


def module_title(module: source_ir.Operation, name: str) -> str:
    """The module's own name, else the file name without its folder and ending."""
    attributes = module.attributes
    if "sym_name" in attributes:
        return source_ir.StringAttr(attributes["sym_name"]).value
    return Path(name).stem


def functions_of(module: source_ir.Operation) -> dict[str, source_ir.Operation]:
    """The functions of a source module by name."""
    return {
        source_ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations(first_block(module))
        if op.name == "func.func"
    }


def entry_name(functions: dict[str, source_ir.Operation], name: str) -> str:
    """``main``, or else the only public function; raises ``ParseError`` when there is no such."""
    if "main" in functions:
        return "main"
    public = [symbol for symbol, op in functions.items() if _is_public(op)]
    if len(public) != 1:
        found = ", ".join(f"@{symbol}" for symbol in public) or "none"
        raise ParseError(
            "the module has no function @main and not exactly one public function "
            f"(found: {found}); name the entry @main",
            location=name,
        )
    return public[0]


def _is_public(op: source_ir.Operation) -> bool:
    attributes = op.attributes
    if "sym_visibility" not in attributes:
        return True
    return source_ir.StringAttr(attributes["sym_visibility"]).value == "public"


def _verify(module: ir.Module) -> None:
    try:
        module.operation.verify()
    except MLIRError as error:
        raise VerifyError(f"the imported module is not valid: {diagnostics_text(error)}") from None
