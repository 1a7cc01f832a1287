# SPDX-License-Identifier: Apache-2.0
"""Turns a module's ``@check.expect_*`` calls into extra results that the host compares.

So a self-checking module is compiled like any other: the check itself never becomes code.
"""

from __future__ import annotations

from mlir import ir

from gristmill.compiler.diagnostics import location_text
from gristmill.compiler.driver.checks import DEFAULT_LIMITS, PREFIX, Array, Check
from gristmill.compiler.module import HloModule, constant_value
from gristmill.dialects import hlo
from gristmill.errors import UnsupportedError

_LIMIT_NAMES = {"close": "max_ulp_difference", "almost_eq": "tolerance"}


def extract_checks(module: HloModule) -> list[Check]:
    """Replace the checks in ``@main`` by results behind its own; call it after inlining.

    The computed value of each check becomes a result. A wanted value that is a constant is taken
    from the IR, so that no generated code touches it; any other becomes a result too.

    Raises:
        UnsupportedError: for a check that is not directly in ``@main``, or of an unknown kind.
    """
    with module.context:
        main = module.function("main")
        block = main.regions[0].blocks[0]
        calls = _check_calls(module, block)
        end = block.operations[len(block.operations) - 1]
        results = list(end.operands)
        checks = [_extract(call, results, module) for call in calls]
        for call in calls:
            call.erase()
        ir.Operation.create(
            "func.return", operands=results, loc=end.location, ip=ir.InsertionPoint(end)
        )
        end.erase()
        _retype(main, results)
    return checks


def _check_calls(module: HloModule, block: ir.Block) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if hlo.short_name(op) == "custom_call":
            target = hlo.string(op, "call_target_name")
            if target.startswith(PREFIX):
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in found:  # not inside the walk, which turns every exception into a RuntimeError
        _validate(op, hlo.string(op, "call_target_name").removeprefix(PREFIX), block)
    return found


def _validate(op: ir.Operation, kind: str, block: ir.Block) -> None:
    where = location_text(op.location)
    if kind not in DEFAULT_LIMITS:
        known = ", ".join(PREFIX + name for name in DEFAULT_LIMITS)
        raise UnsupportedError(
            f"no such check; known checks: {known}", location=where, op=PREFIX + kind
        )
    if op.block != block:
        raise UnsupportedError(
            "checks inside loops and branches are not supported; move it to @main",
            location=where,
            op=PREFIX + kind,
        )


def _extract(op: ir.Operation, results: list[ir.Value], module: HloModule) -> Check:
    kind = hlo.string(op, "call_target_name").removeprefix(PREFIX)
    got, want = list(op.operands)
    results.append(got)
    wanted: int | Array
    owner = want.owner
    if isinstance(owner, ir.Block) or hlo.short_name(owner) != "constant":
        results.append(want)
        wanted = len(results) - 1
        got_index = wanted - 1
    else:
        wanted = constant_value(owner, module.constants)
        got_index = len(results) - 1
    return Check(kind, _limit(op, kind), got_index, wanted, location_text(op.location))


def _limit(op: ir.Operation, kind: str) -> float:
    name = _LIMIT_NAMES.get(kind)
    if name is None or "backend_config" not in op.attributes:
        return DEFAULT_LIMITS[kind]
    config = op.attributes["backend_config"]
    if not isinstance(config, ir.DictAttr) or name not in config:
        return DEFAULT_LIMITS[kind]
    value = config[name]
    return float(value.value) if isinstance(value, ir.IntegerAttr | ir.FloatAttr) else 0.0


def _retype(function: ir.Operation, results: list[ir.Value]) -> None:
    """Set the result types of a function to those of ``results``; the new ones get no attributes."""
    inputs = [argument.type for argument in function.regions[0].blocks[0].arguments]
    new = ir.FunctionType.get(inputs, [value.type for value in results])
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    if "res_attrs" in function.attributes:
        attributes = list(ir.ArrayAttr(function.attributes["res_attrs"]))
        attributes += [ir.DictAttr.get({}) for _ in range(len(results) - len(attributes))]
        function.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)
