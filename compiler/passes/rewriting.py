# SPDX-License-Identifier: Apache-2.0
"""What passes share: fast snapshots of a function's ops, def-use queries, replacing and erasing.

A :class:`Rewriter` walks a function once and keeps the producer of every value, which is many times faster
than asking the bindings again. Values are keyed by address: whatever is erased must be erased through it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, cast

import numpy as np
from mlir import ir

from gristmill.compiler.module import (
    HloModule,
    inline_constant,
    is_resource,
    resource_name,
)
from gristmill.dialects import builders, hlo
from gristmill.dialects.types import Tensor, tensor
from gristmill.runtime.types import ELEMENT_TYPES

Array = np.ndarray[Any, Any]

#: A rewrite rule: the values that replace the op's results, or ``None`` when it does not apply. A
#: rule builds ops only once it has decided to apply; they go in front of the op.
Rule = Callable[["Rewriter", ir.Operation], "Sequence[ir.Value] | None"]

_SYMBOL = re.compile(r'@([\w.$-]+|"[^"]*")')


def snapshot(function: ir.Operation) -> list[ir.Operation]:
    """Every op nested in ``function``, in program order."""
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        ops.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    return ops[1:]


def is_pure(op: ir.Operation, effectful: Set[str] = frozenset()) -> bool:
    """Whether an unused op may go: any ``hlo`` op but a ``custom_call`` with a side effect.

    Ops that refer to one of the ``effectful`` functions (see :func:`effectful_functions`) are not pure.
    """
    name = op.name
    if name == "hlov.custom_call":
        return not hlo.boolean(op, "has_side_effect")
    if not name.startswith(("hlo.", "hlov.")):
        return False
    return not effectful or effectful.isdisjoint(hlo.computations(op))


def effectful_functions(module: HloModule) -> set[str]:
    """Functions with a side effect of their own or of one they refer to."""
    functions = module.functions()
    found = {
        name
        for name, function in functions.items()
        for op in snapshot(function)
        if op.name == "hlov.custom_call" and not is_pure(op)
    }
    graph = call_graph(module) if found else {}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {name for name, callees in graph.items() if callees & found}
    return found


def has_uses(op: ir.Operation) -> bool:
    """Whether any result of ``op`` is read."""
    return any(next(result.uses, None) is not None for result in op.results)


def erase_dead(ops: Sequence[ir.Operation], effectful: Set[str] = frozenset()) -> None:
    """Erase the pure ops of a program-ordered list that nothing uses."""
    for op in reversed(ops):
        if not has_uses(op) and is_pure(op, effectful):
            op.erase()


def references(function: ir.Operation) -> set[str]:
    """Names of every symbol that the ops of ``function`` refer to."""
    found: set[str] = set()
    for op in snapshot(function):
        name = hlo.short_name(op)
        if name in hlo.OPS:
            if "computation" in hlo.OPS[name].traits:
                found.update(hlo.computations(op))
        elif name not in ("func.return",):
            for attribute in cast(list[ir.Attribute], op.attributes.values()):
                found.update(match.strip('"') for match in _SYMBOL.findall(str(attribute)))
    return found


def call_graph(module: HloModule) -> dict[str, set[str]]:
    """For every function, the functions it refers to."""
    functions = module.functions()
    return {name: references(function) & functions.keys() for name, function in functions.items()}


def is_private(function: ir.Operation) -> bool:
    """Whether the function is not an entry of the module."""
    attributes = function.attributes
    return (
        "sym_visibility" in attributes
        and ir.StringAttr(attributes["sym_visibility"]).value == "private"
    )


def erase_unreferenced(module: HloModule) -> None:
    """Erase the private functions that no public function reaches."""
    functions = module.functions()
    graph = call_graph(module)
    live: set[str] = set()
    pending = [name for name, function in functions.items() if not is_private(function)]
    while pending:
        name = pending.pop()
        if name not in live:
            live.add(name)
            pending.extend(graph[name])
    for name, function in functions.items():
        if name not in live:
            function.erase()


def fresh_name(taken: set[str] | dict[str, Any], base: str) -> str:
    """``base``, or ``base_1``, ``base_2``…: the first that is not taken."""
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


class Rewriter:
    """Def-use queries and edits over one single-block function.

    Attributes:
        module: the module being rewritten.
        function: the function.
        effectful: functions whose callers are not pure.
        ops: its ops in program order, as of the last :meth:`refresh`.
        changed: whether anything was replaced since the last :meth:`refresh`.
    """

    def __init__(
        self, module: HloModule, function: ir.Operation, effectful: Set[str] = frozenset()
    ):
        self.module = module
        self.function = function
        self.effectful = effectful
        self._types: dict[ir.Type, Tensor] = {}
        self.refresh()

    def refresh(self) -> None:
        """Walk the function again."""
        self.ops = snapshot(self.function)
        self.changed = False
        self._producers: dict[ir.Value, ir.Operation] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        for op in self.ops:
            for result in op.results:
                self._producers[result] = op
        self._arguments = set(self.function.regions[0].blocks[0].arguments)

    def type(self, value: ir.Value) -> Tensor:
        """The tensor type of a value."""
        kind = value.type
        found = self._types.get(kind)
        if found is None:
            found = self._types[kind] = tensor(kind)
        return found

    def producer(self, value: ir.Value, kind: str | None = None) -> ir.Operation | None:
        """The op that defines ``value``, if it is a ``kind``; ``None`` for arguments."""
        op = self._producers.get(value)
        if op is None:
            if value in self._arguments:
                return None
            owner = value.owner  # an op built since the last refresh
            if isinstance(owner, ir.Block):
                return None
            op = self._producers[value] = owner.operation
        return op if kind is None or hlo.short_name(op) == kind else None

    def operand(self, op: ir.Operation, index: int, kind: str) -> ir.Operation | None:
        """The op that defines an operand, if it is a ``kind``."""
        return self.producer(op.operands[index], kind)

    def only_use(self, value: ir.Value) -> bool:
        """Whether exactly one operand reads ``value``."""
        uses = value.uses
        return next(uses, None) is not None and next(uses, None) is None

    def splat(self, value: ir.Value) -> Any:
        """The numpy scalar that fills ``value`` (a constant, broadcast or not), or ``None``."""
        op = self.producer(value)
        if op is None:
            return None
        if op.name == "hlo.broadcast_in_dim":
            value = op.operands[0]
            op = self.producer(value, "constant")
        if op is None or op.name != "hlo.constant":
            return None
        if value not in self._constants:
            self._constants[value] = self._splat_of(op)
        filled = self._constants[value]
        return None if filled is None else filled[()]

    def constant(self, value: ir.Value, limit: int) -> Array | None:
        """The data of a ``constant`` of at most ``limit`` bytes, else ``None``."""
        op = self.producer(value, "constant")
        if op is None:
            return None
        kind = self.type(value)
        if kind.size * ((kind.bits + 7) // 8) > limit:
            return None
        attribute = op.attributes["value"]
        if is_resource(attribute):
            return self.module.constants.get(resource_name(attribute))
        return inline_constant(op)

    def replace(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        """Let ``values`` take the place of the op's results and erase the op."""
        for result, value in zip(op.results, values, strict=True):
            result.replace_all_uses_with(value)
        self.erase(op)

    def erase(self, op: ir.Operation) -> None:
        """Erase an op without uses."""
        for result in op.results:
            self._producers.pop(result, None)
            self._constants.pop(result, None)
        op.erase()
        self.changed = True

    def sweep(self, rules: dict[str, tuple[Rule, ...]]) -> bool:
        """Apply the first rule that fits to every op, in program order; whether anything changed.

        Ops that end up unused are erased, and the function is walked anew.
        """
        erased: set[int] = set()
        for index, op in enumerate(self.ops):
            for rule in rules.get(hlo.short_name(op), ()):
                with ir.InsertionPoint(op), op.location:
                    values = rule(self, op)
                if values is not None:
                    self.replace(op, values)
                    erased.add(index)
                    break
        changed = self.changed
        if changed:
            self.sweep_up()
        return changed

    def sweep_up(self) -> None:
        """Erase what is unused and walk the function again."""
        erase_dead(snapshot(self.function), self.effectful)
        self.refresh()

    def _splat_of(self, op: ir.Operation) -> Array | None:
        attribute = op.attributes["value"]
        kind = self.type(op.results[0])
        if is_resource(attribute) or kind.element not in ELEMENT_TYPES:
            return None
        if kind.size == 1 or ir.DenseElementsAttr(attribute).is_splat:
            data = inline_constant(op)
            return data.reshape(-1)[0:1].reshape(()) if data.size else None
        return None


def rewriters(module: HloModule) -> Iterator[Rewriter]:
    """A rewriter for every function with a body."""
    effectful = effectful_functions(module)
    for function in module.functions().values():
        if len(function.regions[0].blocks) == 1:
            yield Rewriter(module, function, effectful)


def simplify(
    module: HloModule, rules: dict[str, tuple[Rule, ...]], *, max_sweeps: int = 16
) -> None:
    """Sweep every function until no rule applies, at most ``max_sweeps`` times."""
    for rewriter in rewriters(module):
        for _ in range(max_sweeps):
            if not rewriter.sweep(rules):
                break


def filled(rewriter: Rewriter, value: float | bool, like: ir.Value) -> ir.Value:
    """``value`` in the type of ``like``."""
    return builders.splat(value, rewriter.type(like))
