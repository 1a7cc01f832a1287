# SPDX-License-Identifier: Apache-2.0
"""From a fused :class:`HloModule` to a :class:`Plan`.

In: ``@main`` and the computations that its ``while``, ``if`` and ``case`` ops refer to, made of ``constant``,
``fusion``, ``reshape`` and control flow. Out: launches and structured control flow over values; reshapes,
branch parameters and loop invariants have become aliases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlir import ir

from gristmill.compiler.emitters.kernel import KernelSpec
from gristmill.compiler.module import HloModule, array_type, constant_value
from gristmill.compiler.program.plan import (
    Block,
    BranchStep,
    LaunchStep,
    Plan,
    Root,
    Value,
    WhileStep,
)
from gristmill.dialects import hlo
from gristmill.dialects.locations import location_text
from gristmill.errors import LoweringError
from gristmill.runtime.program import Signature
from gristmill.runtime.types import ArrayType

_BYTES = ArrayType.parse("i8").element


@dataclass(frozen=True)
class Constant:
    """One entry of the program's constant table."""

    name: str
    type: ArrayType
    data: np.ndarray[Any, Any]


@dataclass
class _Op:
    """An hlo op, read once: operands and results are slots of the computation's value list."""

    name: str
    operands: list[int]
    results: list[int]
    op: ir.Operation


@dataclass
class _Computation:
    """A function, read once; parameters take the first slots."""

    types: list[ArrayType]
    parameters: int
    ops: list[_Op]
    returned: list[int]


class _Importer:
    def __init__(self, module: HloModule, specs: Mapping[str, KernelSpec]):
        self.module = module
        self.specs = specs
        self.functions = module.functions()
        self.computations: dict[str, _Computation] = {}
        self.constants: dict[tuple[ir.Attribute, ArrayType], Value] = {}
        self.data: list[Constant] = []
        self.count = 0

    def value(self, kind: ArrayType, root: Root = "arena", index: int = 0) -> Value:
        self.count += 1
        return Value(kind, self.count - 1, root, index)

    def computation(self, name: str) -> _Computation:
        known = self.computations.get(name)
        if known is None:
            known = self.computations[name] = _read(self.functions[name])
        return known

    def block(self, name: str, arguments: list[Value]) -> tuple[Block, list[Value]]:
        """Instantiate a computation; returns its block and the values it returns."""
        computation = self.computation(name)
        block = Block(name)
        values: list[Value | None] = [*arguments]
        values += [None] * (len(computation.types) - len(arguments))
        for op in computation.ops:
            operands = [values[slot] for slot in op.operands]
            kinds = [computation.types[slot] for slot in op.results]
            results = self.step(block, op, [v for v in operands if v is not None], kinds)
            for slot, result in zip(op.results, results, strict=True):
                values[slot] = result
        returned = [values[slot] for slot in computation.returned]
        return block, [value for value in returned if value is not None]

    def step(
        self, block: Block, op: _Op, operands: list[Value], kinds: list[ArrayType]
    ) -> list[Value]:
        """Add one op to ``block`` (aliases and constants add nothing); returns its results."""
        if op.name == "fusion":
            return self.launch(block, op, operands, kinds)
        if op.name == "constant":
            return [self.constant(op.op)]
        if op.name == "reshape":
            alias = self.value(kinds[0])
            alias.alias = operands[0]
            return [alias]
        if op.name == "while":
            return self.loop(block, op, operands, kinds)
        if op.name in ("if", "case"):
            return self.branch(block, op, operands, kinds)
        raise LoweringError(
            "only constants, fusions, reshapes and control flow can be scheduled; run the fuse pass first",
            location=location_text(op.op.location),
            op=op.op.name,
        )

    def launch(
        self, block: Block, op: _Op, operands: list[Value], kinds: list[ArrayType]
    ) -> list[Value]:
        calls = hlo.symbol(op.op, "calls")
        if calls not in self.specs:
            raise LoweringError(
                f"no kernel was emitted for @{calls}",
                location=location_text(op.op.location),
                op=op.op.name,
            )
        spec = self.specs[calls]
        _check_fits(spec, operands, kinds, op.op)
        results = [self.value(kind) for kind in kinds]
        step = LaunchStep(spec, operands, results)
        if spec.workspace_bytes:
            step.workspace = self.value(ArrayType((spec.workspace_bytes,), _BYTES))
        block.steps.append(step)
        return results

    def constant(self, op: ir.Operation) -> Value:
        attribute = op.attributes["value"]
        kind = array_type(op.results[0])
        known = self.constants.get((attribute, kind))
        if known is None:
            index = len(self.data)
            self.data.append(Constant(f"c{index}", kind, constant_value(op, self.module.constants)))
            known = self.constants[attribute, kind] = self.value(kind, "constant", index)
        return known

    def loop(
        self, block: Block, op: _Op, operands: list[Value], kinds: list[ArrayType]
    ) -> list[Value]:
        carried = [self.value(kind) for kind in kinds]
        cond, decided = self.block(hlo.symbol(op.op, "cond"), carried)
        body, yields = self.block(hlo.symbol(op.op, "body"), carried)
        for variable, operand, result in zip(carried, operands, yields, strict=True):
            if result.resolve() is variable:
                variable.alias = operand
        block.steps.append(WhileStep(operands, carried, cond, body, decided[0], yields))
        return carried

    def branch(
        self, block: Block, op: _Op, operands: list[Value], kinds: list[ArrayType]
    ) -> list[Value]:
        selector, *arguments = operands
        parts = [self.block(name, arguments) for name in hlo.symbols(op.op, "branches")]
        results = [self.value(kind) for kind in kinds]
        branches, yields = [part[0] for part in parts], [part[1] for part in parts]
        block.steps.append(BranchStep(selector, branches, yields, results))
        return results


def import_module(
    module: HloModule, specs: Mapping[str, KernelSpec]
) -> tuple[Plan, list[Constant]]:
    """The plan of ``module``'s ``@main`` in program order, and the constant table.

    Raises ``LoweringError`` for an op that has no place here or a fusion without a kernel.
    """
    importer = _Importer(module, specs)
    computation = importer.computation("main")
    kinds = computation.types[: computation.parameters]
    arguments = [importer.value(kind, "input", index) for index, kind in enumerate(kinds)]
    main, results = importer.block("main", arguments)
    outputs = [computation.types[slot] for slot in computation.returned]
    targets = [importer.value(kind, "output", index) for index, kind in enumerate(outputs)]
    inputs, signature = _signatures(importer.functions["main"], kinds, outputs)
    constants = list(importer.constants.values())
    plan = Plan(
        module.name, main, inputs, signature, arguments, results, targets, constants, importer.count
    )
    return plan, importer.data


def _check_fits(
    spec: KernelSpec, operands: list[Value], kinds: list[ArrayType], op: ir.Operation
) -> None:
    """A kernel may see another shape than the op, never another size."""
    wanted = [a.nbytes for a in (*spec.arguments, *spec.results)]
    given = [*(operand.nbytes for operand in operands), *(kind.nbytes for kind in kinds)]
    if wanted != given or len(spec.arguments) != len(operands):
        raise LoweringError(
            f"kernel {spec.name} does not fit the operands and results of the fusion",
            location=location_text(op.location),
            op=op.name,
        )


def _read(function: ir.Operation) -> _Computation:
    block = function.regions[0].blocks[0]
    slots: dict[ir.Value, int] = {}
    computation = _Computation([], len(block.arguments), [], [])

    def define(value: ir.Value) -> int:
        slots[value] = len(computation.types)
        computation.types.append(array_type(value))
        return slots[value]

    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        ops.append(op)
        return ir.WalkResult.ADVANCE

    for argument in block.arguments:
        define(argument)
    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    for op in ops[1:]:  # the first is the function itself
        operands = [slots[operand] for operand in op.operands]
        if op.name == "func.return":
            computation.returned = operands
        else:
            results = [define(result) for result in op.results]
            computation.ops.append(_Op(hlo.short_name(op), operands, results, op))
    return computation


def _attributes(function: ir.Operation, name: str, count: int) -> list[ir.DictAttr | None]:
    if name not in function.attributes:
        return [None] * count
    return [ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes[name])]


def _signatures(
    function: ir.Operation, inputs: list[ArrayType], outputs: list[ArrayType]
) -> tuple[tuple[Signature, ...], tuple[Signature, ...]]:
    arguments: list[Signature] = []
    aliases: dict[int, int] = {}
    for index, attributes in enumerate(_attributes(function, "arg_attrs", len(inputs))):
        name, donated, alias = f"input{index}", False, None
        if attributes is not None:
            name = _text(attributes, "gristmill.name", name)
            donated = "gristmill.donated" in attributes
            if donated and "gristmill.alias" in attributes:
                alias = ir.IntegerAttr(attributes["gristmill.alias"]).value
        if alias is not None and (
            alias in aliases
            or not 0 <= alias < len(outputs)
            or outputs[alias].nbytes != inputs[index].nbytes
        ):
            alias = None  # a pair that cannot share memory is no pair
        if alias is not None:
            aliases[alias] = index
        arguments.append(Signature(name, inputs[index], donated, alias))
    results: list[Signature] = []
    for index, attributes in enumerate(_attributes(function, "res_attrs", len(outputs))):
        name = f"output{index}"
        if attributes is not None:
            name = _text(attributes, "gristmill.name", name)
        results.append(Signature(name, outputs[index], alias=aliases.get(index)))
    return tuple(arguments), tuple(results)


def _text(attributes: ir.DictAttr, key: str, default: str) -> str:
    return ir.StringAttr(attributes[key]).value if key in attributes else default
