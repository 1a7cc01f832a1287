# SPDX-License-Identifier: Apache-2.0
"""The body of one function: blocks, values, and regions that become functions of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir as source_ir
from mlir import ir
from mlir.dialects import func

from gristmill.compiler.frontends import views
from gristmill.compiler.frontends.importer import Importer
from gristmill.compiler.frontends.rules import RULES
from gristmill.compiler.frontends.signature import annotate
from gristmill.compiler.frontends.views import Value
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError


@dataclass
class Outlined:
    """Regions of one operation as functions: their symbols, and the values they captured."""

    symbols: list[str]
    captures: list[ir.Value] = field(default_factory=list[ir.Value])


class FunctionTranslator:
    """Translates the body of one function: maps its source values to target values."""

    def __init__(self, importer: Importer):
        self.importer = importer
        self.values: dict[Value, ir.Value] = {}

    # Functions and blocks

    def function(self, symbol: str, *, entry: bool) -> None:
        """Translate the source function ``symbol``; the entry becomes the public ``@main``."""
        importer = self.importer
        op = importer.source_function(symbol)
        blocks = views.blocks(views.regions(op)[0])
        if len(blocks) != 1:
            what = "has no body" if not blocks else "has more than one block"
            importer.report(op, f"@{symbol} {what}")
            return
        block = blocks[0]
        results = views.operands(_terminator(block))
        target = self._create("main" if entry else symbol, block, results, op.location)
        if entry:
            target.operation.attributes["sym_visibility"] = ir.StringAttr.get("public")
            annotate(op, target)

    def _create(
        self,
        symbol: str,
        block: source_ir.Block,
        results: Iterable[Value],
        location: source_ir.Location,
        *,
        captures: Sequence[Value] = (),
        constants: Sequence[source_ir.Operation] = (),
        forward_captures: bool = False,
    ) -> func.FuncOp:
        """A private function of ``block``; ``captures`` follow its arguments (and results, if forwarded)."""
        importer = self.importer
        parameters = [*views.arguments(block), *captures]
        passed: Sequence[Value] = captures if forward_captures else ()
        inputs = [self._type(value) for value in parameters]
        outputs = [self._type(value) for value in [*results, *passed]]
        with ir.InsertionPoint(importer.target.body):
            target = func.FuncOp(
                symbol,
                (inputs, outputs),
                visibility="private",
                loc=importer.location(location),
            )
        body = ir.Block.create_at_start(
            target.operation.regions[0],
            inputs,
            [importer.location(value.location) for value in parameters],
        )
        self.values.update(zip(parameters, body.arguments, strict=True))
        with ir.InsertionPoint(body):
            for constant in constants:
                self._operation(constant)
            self._block(block, passed)
        return target

    def _type(self, value: Value) -> ir.Type:
        try:
            return self.importer.type(value.type)
        except UnsupportedError as error:
            self.importer.report(views.value_op(value), error.message)
            return ir.NoneType.get()

    def _block(self, block: source_ir.Block, passed: Sequence[Value]) -> None:
        for op in views.operations(block):
            if op.name in ("stablehlo.return", "func.return"):
                values = [*self.operands(op), *(self.value(value) for value in passed)]
                func.ReturnOp(values, loc=self.importer.location(op.location))
            else:
                self._operation(op)

    def _operation(self, op: source_ir.Operation) -> None:
        try:
            rule = RULES.get(op.name)
            if rule is None:
                raise UnsupportedError("not supported yet")
            results = rule(self, op)  # pyright: ignore[reportArgumentType]  # same class, two paths
        except UnsupportedError as error:
            self.importer.report(op, error.message)
            results = self._placeholders(op)
        self.values.update(zip(views.results(op), results, strict=True))

    def _placeholders(self, op: source_ir.Operation) -> Sequence[ir.Value]:
        """Results for an operation already reported, so that the rest is checked too."""
        types: list[ir.Type] = []
        for result in views.results(op):
            try:
                types.append(self.importer.type(result.type))
            except UnsupportedError:
                types.append(ir.NoneType.get())
        return list(ir.Operation.create("gristmill.unsupported", results=types).results)

    # For the rules

    def value(self, value: Value) -> ir.Value:
        """The target value of a source value of this function."""
        return self.values[value]

    def operands(self, op: source_ir.Operation) -> list[ir.Value]:
        """The target values of ``op``'s operands."""
        return [self.values[value] for value in views.operands(op)]

    def result_types(self, op: source_ir.Operation) -> list[ir.Type]:
        """The target types of ``op``'s results; raises ``UnsupportedError``."""
        return [self.importer.type(result.type) for result in views.results(op)]

    def emit(
        self,
        op: source_ir.Operation,
        name: str,
        operands: Sequence[ir.Value] | None = None,
        results: Sequence[ir.Type] | None = None,
        /,
        **attributes: hlo.AttributeValue,
    ) -> Sequence[ir.Value]:
        """Build ``hlo`` op ``name`` at ``op``'s location; operands and results default to ``op``'s."""
        types = self.result_types(op) if results is None else results
        values = self.operands(op) if operands is None else operands
        location = self.importer.location(op.location)
        return list(hlo.build(name, types, values, loc=location, ip=None, **attributes).results)

    def outline(
        self, op: source_ir.Operation, roles: Sequence[str], *, forward: str | None = None
    ) -> Outlined:
        """Turn ``op``'s regions, one a role, into functions ``<op>_<role>_N``.

        Every function takes its block's arguments and then all values that any of the regions captured;
        the function of the role ``forward`` returns the captures after its own results. Captured
        constants are cloned into the functions instead.
        """
        regions = views.regions(op)
        captures: dict[Value, None] = {}
        constants: list[list[source_ir.Operation]] = []
        for region in regions:
            constants.append([])
            for value in _free_values(region):
                producer = views.defining_op(value)
                if producer is not None and producer.name == "stablehlo.constant":
                    constants[-1].append(producer)
                else:
                    captures[value] = None
        symbols: list[str] = []
        stem = op.name.partition(".")[2]
        for role, region, cloned in zip(roles, regions, constants, strict=True):
            symbol = self.importer.fresh_symbol(f"{stem}_{role}")
            block = region.blocks[0]
            FunctionTranslator(self.importer)._create(
                symbol,
                block,
                views.operands(_terminator(block)),
                op.location,
                captures=list(captures),
                constants=cloned,
                forward_captures=role == forward,
            )
            symbols.append(symbol)
        return Outlined(symbols, [self.value(value) for value in captures])


def _terminator(block: source_ir.Block) -> source_ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def _free_values(region: source_ir.Region) -> list[Value]:
    """Values that the region uses and does not define, in order of first use."""
    defined: set[Value] = set()
    free: dict[Value, None] = {}

    def visit(region: source_ir.Region) -> None:
        for block in views.blocks(region):
            defined.update(views.arguments(block))
            for op in views.operations(block):
                for value in views.operands(op):
                    if value not in defined:
                        free[value] = None
                for nested in views.regions(op):
                    visit(nested)
                defined.update(views.results(op))

    visit(region)
    return list(free)
