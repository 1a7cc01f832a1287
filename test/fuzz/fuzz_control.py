# SPDX-License-Identifier: Apache-2.0
"""Control flow of random programs: nested blocks that use values from outside, and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fuzz_bits
import fuzz_complex
import fuzz_dynamic
import fuzz_elementwise
import fuzz_foreign
import fuzz_indexing
import fuzz_movement
import fuzz_reductions
import fuzz_windows
from fuzz_elementwise import merged
from fuzz_scope import Scope, dims, region
from fuzz_values import UNROUNDED, Value, is_float, is_integer

COMMON = (
    fuzz_elementwise.FAMILIES,
    fuzz_elementwise.FAMILIES,
    fuzz_movement.FAMILIES,
    fuzz_movement.FAMILIES,
    fuzz_reductions.FAMILIES,
    fuzz_indexing.FAMILIES,
    fuzz_windows.FAMILIES,
    fuzz_complex.FAMILIES,
    fuzz_bits.FAMILIES,
    fuzz_dynamic.FAMILIES,
)


def grow(scope: Scope, steps: int) -> None:
    """Append up to ``steps`` operations of all families."""
    for _ in range(steps):
        if scope.counter.budget <= 0:
            return
        scope.counter.budget -= 1
        families = [*COMMON]
        if scope.depth < 2:
            families.append(FAMILIES)
        if scope.depth == 0:
            families.append(fuzz_foreign.FAMILIES)
        family = scope.choose.of(scope.choose.of(families))
        scope.values.extend(family(scope))


def branches(scope: Scope) -> list[Value]:
    """An ``if`` or a ``case``."""
    number = 2 if scope.choose.coin() else scope.choose.integer(1, 3)
    is_if = number == 2 and scope.choose.coin()
    index = scope.of_type("i1") if is_if else scope.indices(())
    index = scope.fit(index, ())
    wanted = [scope.choose.of(scope.values[::-1]) for _ in range(scope.choose.integer(1, 2))]
    regions: list[str] = []
    infos = list(wanted)
    for _ in range(number):
        inner = scope.inner()
        grow(inner, scope.choose.integer(0, 4))
        results: list[Value] = []
        for at, value in enumerate(wanted):
            result = inner.find(lambda v, e=value.element: v.element == e) or value
            results.append(inner.fit(result, value.shape))
            infos[at] = merged(infos[at], results[-1])
        regions.append(region(inner, (), results, inner.lines))
    return scope.op("if" if is_if else "case", [index], infos, "", ", ".join(regions))


def settled(scope: Scope, value: Value) -> Value | None:
    """``value`` made small whole numbers, which loops may carry for ever; ``None`` when that would jump."""
    if is_integer(value.element) or value.element == "i1":
        return value
    if not is_float(value.element) or not value.exact or value.element in UNROUNDED:
        return None
    value = scope.clamped(value, -4, 4)
    return scope.one("round_nearest_even", [value], replace(value, bound=4.0, grid=0))


def loop(scope: Scope) -> list[Value]:
    """A ``while`` of a few turns that carries a counter and up to three values."""
    carried = [settled(scope, scope.choose.of(scope.values[::-1])) for _ in range(3)]
    initial = [value for value in carried if value is not None][: scope.choose.integer(1, 3)]
    turns = scope.constant("i32", scope.choose.integer(0, 4))
    start = scope.constant("i32", 0)
    count = Value(scope.counter.fresh(), "i32", ())
    arguments = [count, *(replace(v, name=scope.counter.fresh()) for v in initial)]
    test = scope.inner(arguments)
    text = "comparison_direction = #stablehlo<comparison_direction LT>, "
    text += "compare_type = #stablehlo<comparison_type SIGNED>"
    going = test.one("compare", [count, turns], Value("", "i1", ()), text)
    condition = region(test, arguments, [going], test.lines)
    again = [replace(value, name=scope.counter.fresh()) for value in arguments]
    body = scope.inner(again[1:])
    grow(body, scope.choose.integer(0, 5))
    results = [body.one("add", [again[0], body.constant("i32", 1)], again[0])]
    for value in again[1:]:
        found = body.find(lambda v, e=value.element: v.element == e)
        result = settled(body, found) if found is not None else None
        results.append(value if result is None else body.fit(result, value.shape))
    inside = region(body, again, results, body.lines)
    return scope.op("while", [start, *initial], arguments, "", f"{condition}, {inside}")[1:]


def _function(scope: Scope, results: int) -> tuple[str, list[Value], list[Value]]:
    """A further function: its name, the operands to call it with, and what it returns."""
    operands = [scope.choose.of(scope.values[::-1]) for _ in range(scope.choose.integer(1, 2))]
    arguments = [replace(value, name=scope.counter.fresh()) for value in operands]
    inner = Scope(scope.choose, scope.counter, list(arguments), scope.depth + 1)
    grow(inner, scope.choose.integer(0, 4))
    returned = inner.values[-results:]
    name = f"@f{len(scope.counter.functions)}"
    header = ", ".join(f"{a.name}: {a.type}" for a in arguments)
    kinds = ", ".join(r.type for r in returned)
    names = ", ".join(r.name for r in returned)
    body = "".join(f"    {line}\n" for line in inner.lines)
    scope.counter.functions.append(
        f"  func.func private {name}({header}) -> ({kinds}) {{\n{body}"
        f'    "func.return"({names}) : ({kinds}) -> ()\n  }}\n'
    )
    scope.counter.used.update(value.name for value in returned)
    return name, operands, returned


def call(scope: Scope) -> list[Value]:
    """A call of a function."""
    name, operands, results = _function(scope, scope.choose.integer(1, 2))
    return scope.op("func.call", operands, results, f"callee = {name}")


def composite(scope: Scope) -> list[Value]:
    """An operation that a function is the meaning of."""
    name, operands, results = _function(scope, scope.choose.integer(1, 2))
    text = f'name = "fuzz.any", decomposition = {name}, composite_attributes = {{n = 1 : i32}}'
    return scope.op("composite", operands, results, text)


def mapped(scope: Scope) -> list[Value]:
    """A ``map`` of a few elementwise operations over one or two values."""
    first = scope.choose.of(scope.values[::-1])
    values = [first]
    if scope.choose.coin():
        values.append(scope.fit(scope.choose.of(scope.values[::-1]), first.shape))
    arguments = [replace(value, name=scope.counter.fresh(), shape=()) for value in values]
    body = Scope(scope.choose, scope.counter, list(arguments), 2)
    for _ in range(scope.choose.integer(1, 4)):
        body.values.extend(scope.choose.of(fuzz_elementwise.FAMILIES)(body))
    result = body.values[-1]
    inside = region(body, arguments, [result], body.lines)
    text = dims("dimensions", range(len(first.shape)))
    return scope.op("map", values, [replace(result, shape=first.shape)], text, inside)


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (branches, loop, call, composite, mapped)
