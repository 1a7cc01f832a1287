# SPDX-License-Identifier: Apache-2.0
"""What the functions of one module share while they are translated: :class:`Importer`."""

from __future__ import annotations

from jaxlib.mlir import ir as source_ir
from mlir import ir

from gristmill.compiler.frontends.constants import ConstantImporter
from gristmill.compiler.frontends.source import short_location
from gristmill.compiler.frontends.views import walk
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ELEMENT_TYPES, ArrayType

#: How many unsupported things the text of the error lists (``items`` holds them all).
_LISTED_ITEMS = 10


class Importer:
    """State shared by the functions of one module: types, locations, names, constants, complaints."""

    def __init__(
        self,
        source: source_ir.Operation,
        name: str,
        functions: dict[str, source_ir.Operation],
        target: ir.Module,
    ):
        self.source = source
        self.name = name
        self.target = target
        self.constants = ConstantImporter()
        self._functions = functions
        self._symbols = {"main", *functions}
        self._next_index: dict[str, int] = {}
        self._types: dict[source_ir.Type, ir.Type] = {}
        self._arrays: dict[source_ir.Type, ArrayType] = {}
        self._locations: dict[str, ir.Location] = {}
        self._unsupported: dict[str, None] = {}

    def reachable(self, entry: str) -> list[str]:
        """``entry`` and every function it calls, in the source's order after ``entry``."""
        found: set[str] = set()
        path: set[str] = set()

        def visit(symbol: str) -> None:
            path.add(symbol)
            found.add(symbol)
            for call in _calls(self._functions[symbol]):
                callee = source_ir.FlatSymbolRefAttr(call.attributes["callee"]).value
                if callee in path:
                    self.report(call, f"recursive call of @{callee} is not supported")
                elif callee not in found:
                    visit(callee)
            path.remove(symbol)

        visit(entry)
        return [entry, *(name for name in self._functions if name in found and name != entry)]

    def source_function(self, symbol: str) -> source_ir.Operation:
        """The source's ``func.func`` called ``symbol``."""
        return self._functions[symbol]

    def fresh_symbol(self, stem: str) -> str:
        """``stem_N`` with the first N that no function has."""
        index = self._next_index.get(stem, 0)
        while f"{stem}_{index}" in self._symbols:
            index += 1
        self._next_index[stem] = index + 1
        self._symbols.add(f"{stem}_{index}")
        return f"{stem}_{index}"

    def array(self, kind: source_ir.Type) -> ArrayType:
        """The array type of a source tensor type, or of a token; raises ``UnsupportedError`` for any other.

        A token is a truth value: so loops and branches carry it, and what it orders depends on it.
        """
        known = self._arrays.get(kind)
        if known is None:
            known = _source_array(kind)
            self._arrays[kind] = known
        return known

    def type(self, kind: source_ir.Type) -> ir.Type:
        """The target type of a source type; raises ``UnsupportedError``."""
        known = self._types.get(kind)
        if known is None:
            known = ir.Type.parse(f"tensor<{self.array(kind)}>")
            self._types[kind] = known
        return known

    def location(self, location: source_ir.Location) -> ir.Location:
        """The same location in the target context."""
        text = str(location)
        known = self._locations.get(text)
        if known is None:
            parsed = ir.Attribute.parse(text.replace('"-":', f'"{_escape(self.name)}":'))
            known = ir.Location.from_attr(parsed)
            self._locations[text] = known
        return known

    def report(self, op: source_ir.Operation, message: str) -> None:
        """Note that ``op`` cannot be translated."""
        where = short_location(op.location, self.name)
        if where is None:  # HLO text gives instruction names but no positions
            location = op.location
            named = isinstance(location, source_ir.NameLoc)
            where = f"{self.name}: {location.name_str}" if named else self.name
        self._unsupported[f"{where}: {op.name}: {message}"] = None

    def raise_unsupported(self) -> None:
        """Raise one ``UnsupportedError`` for everything reported, if anything was."""
        items = tuple(self._unsupported)
        if not items:
            return
        shown = "\n  ".join(items[:_LISTED_ITEMS])
        more = len(items) - _LISTED_ITEMS
        rest = f"\n  and {more} more" if more > 0 else ""
        if len(items) == 1:
            raise UnsupportedError(items[0], items=items)
        raise UnsupportedError(
            f"the program uses {len(items)} things that are not supported:\n  {shown}{rest}",
            items=items,
        )


def _calls(function: source_ir.Operation) -> list[source_ir.Operation]:
    return [op for op in walk(function) if op.name == "func.call"]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _source_array(kind: source_ir.Type) -> ArrayType:
    if str(kind) == "!stablehlo.token":
        return ArrayType((), ELEMENT_TYPES["i1"])
    if not isinstance(kind, source_ir.RankedTensorType):
        raise UnsupportedError(f"type {kind} is not supported yet")
    if not kind.has_static_shape:
        raise UnsupportedError(
            f"type {kind} has dimensions that neither constants nor the shapes of the arguments determine"
        )
    element = ELEMENT_TYPES.get(str(kind.element_type))
    if element is None:
        raise UnsupportedError(f"element type {kind.element_type} is not supported yet")
    return ArrayType(tuple(kind.shape), element)
