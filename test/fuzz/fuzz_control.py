# SPDX-License-Identifier: Apache-2.0
"""Control flow of random programs: nested blocks that use values from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fuzz_elementwise
import fuzz_movement
import fuzz_reductions
from fuzz_elementwise import merged
from fuzz_scope import Scope, region
from fuzz_values import Value, is_complex, is_float, is_integer


def grow(scope: Scope, steps: int) -> None:
    """Append up to ``steps`` operations of all families."""
    for _ in range(steps):
        if scope.counter.budget <= 0:
            return
        scope.counter.budget -= 1
        families = [
            fuzz_elementwise.FAMILIES,
            fuzz_elementwise.FAMILIES,
            fuzz_movement.FAMILIES,
            fuzz_movement.FAMILIES,
            fuzz_reductions.FAMILIES,
        ]
        if scope.depth < 2:
            families.append(FAMILIES)
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
    if not is_float(value.element) or not value.exact or is_complex(value.element):
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


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (branches, loop)
