# SPDX-License-Identifier: Apache-2.0
"""The ``hlo`` verifier: shape, type and signature rules that IRDL cannot express.

One rule a table operation, in the ``verify_*`` modules beside this one; each follows the constraints that the
StableHLO specification gives for the operation. A rule reads an :class:`OpView` and raises :class:`Violation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from mlir import ir

from gristmill.dialects import hlo
from gristmill.dialects.locations import location_text
from gristmill.dialects.types import Tensor, parse_tensor
from gristmill.dialects.verify_computations import RULES as COMPUTATION_RULES
from gristmill.dialects.verify_elementwise import RULES as ELEMENTWISE_RULES
from gristmill.dialects.verify_indexing import RULES as INDEXING_RULES
from gristmill.dialects.verify_linear import RULES as LINEAR_RULES
from gristmill.dialects.verify_movement import RULES as MOVEMENT_RULES
from gristmill.dialects.verify_rules import OpView, Rule, Signature, Violation
from gristmill.errors import VerifyError

#: Operation name to its rule; every operation of the table has one.
RULES: dict[str, Rule] = {
    **ELEMENTWISE_RULES,
    **MOVEMENT_RULES,
    **INDEXING_RULES,
    **LINEAR_RULES,
    **COMPUTATION_RULES,
}


def verify_module(module: ir.Module) -> None:
    """Check every ``hlo`` op of ``module``; raises ``VerifyError`` listing all violations."""
    violations = _Verifier(module).run()
    if not violations:
        return
    if len(violations) == 1:
        location, name, message = violations[0]
        raise VerifyError(message, location=location, op=name)
    listed = "; ".join(f"{place}: {name}: {message}" for place, name, message in violations)
    raise VerifyError(f"{len(violations)} violations: {listed}")


class _Verifier:
    """One run over one module, with its caches of types and signatures."""

    def __init__(self, module: ir.Module):
        self._module = module
        self._types: dict[ir.Type, Tensor | None] = {}
        self._violations: list[tuple[str, str, str]] = []

    def run(self) -> list[tuple[str, str, str]]:
        """(location, op name, message) of every violation, in program order."""
        ops: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            ops.append(op)
            return ir.WalkResult.ADVANCE

        self._module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        self._signatures = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in ops
            if op.name == "func.func"
        }
        self._read: dict[str, Signature] = {}
        for op in ops:
            if op.name.startswith(("hlo.", "hlov.")):
                try:
                    self._verify(op)
                except Violation as violation:
                    place = location_text(op.location)
                    self._violations.append((place, op.name, str(violation)))
        return self._violations

    def signature(self, name: str) -> Signature | None:
        """Parameter and result types of a function of the module."""
        if name in self._read:
            return self._read[name]
        function = self._signatures.get(name)
        if function is None:
            return None
        kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        found = (
            tuple(self._tensor(t) for t in cast(list[ir.Type], kind.inputs)),
            tuple(self._tensor(t) for t in cast(list[ir.Type], kind.results)),
        )
        self._read[name] = found
        return found

    def _tensor(self, kind: ir.Type) -> Tensor:
        if kind not in self._types:
            self._types[kind] = parse_tensor(str(kind))
        found = self._types[kind]
        if found is None:
            raise Violation(f"{kind} is not a statically shaped tensor type")
        return found

    def _verify(self, op: ir.Operation) -> None:
        known = _KNOWN.get(op.name)
        if known is None:
            name = hlo.short_name(op)
            hint = f" (it is spelled {hlo.full_name(name)})" if name in hlo.OPS else ""
            raise Violation(f"the dialect has no such operation{hint}")
        attributes = op.attributes
        for attribute in known.attributes:
            if attribute not in attributes:
                raise Violation(f"attribute {attribute!r} is missing")
        operands = [self._tensor(value.type) for value in op.operands]
        results = [self._tensor(value.type) for value in op.results]
        if len(operands) < known.operands:
            raise Violation(f"expects at least {known.operands} operands, got {len(operands)}")
        if known.results >= 0 and len(results) != known.results:
            raise Violation(f"expects {known.results} results, got {len(results)}")
        known.rule(OpView(op, known.name, operands, results, self.signature))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is checked of one operation: its short name, rule, counts (-1: any) and attributes."""

    name: str
    rule: Rule
    operands: int
    results: int
    attributes: tuple[str, ...]


def _known(name: str) -> _Known:
    definition = hlo.OPS[name]
    fixed = sum(not operand.startswith("*") for operand in definition.operands)
    # IRDL has checked that the others are there
    attributes = tuple(definition.attributes) if hlo.is_mixed(name) else ()
    return _Known(name, RULES[name], fixed, definition.results, attributes)


_KNOWN = {hlo.full_name(name): _known(name) for name in hlo.OPS}
