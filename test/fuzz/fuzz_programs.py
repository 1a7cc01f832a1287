# SPDX-License-Identifier: Apache-2.0
"""Random well-typed StableHLO programs, as a hypothesis strategy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_control import grow
from fuzz_scope import Chooser, Counter, Scope
from fuzz_values import Value, dtype, is_complex, is_float, part, width
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]

OPERATION = re.compile(r'"((?:stablehlo|chlo)\.\w+)"\(')
MOST_OPERATIONS = 30
MOST_RESULTS = 8


@dataclass(frozen=True, repr=False)
class RandomProgram:
    """A program and its inputs.

    Attributes:
        arguments: arguments of ``@main``, as values.
        inputs: arrays for them.
        lines: the body without its return.
        results: the values returned.
        known: every value that was made, by name.
        functions: the text of further functions, which the body calls.
        restated: lines that the reference interpreter does not know, and the same in words that it does.
    """

    arguments: list[Value]
    inputs: list[Array]
    lines: list[str]
    results: list[Value]
    known: dict[str, Value]
    functions: list[str]
    restated: dict[str, str]

    def operations(self) -> set[str]:
        """Names of the operations in it."""
        return set(OPERATION.findall("\n".join([*self.lines, *self.functions])))

    def text(self) -> str:
        """The module."""
        header = ", ".join(f"{a.name}: {a.type}" for a in self.arguments)
        return module(header, self.lines, self.results, self.functions)


def module(header: str, lines: list[str], results: list[Value], functions: list[str]) -> str:
    """A module with a function ``@main``, and others."""
    kinds = ", ".join(r.type for r in results)
    names = ", ".join(r.name for r in results)
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"module {{\n  func.func public @main({header}) -> ({kinds}) {{\n{body}\n"
        f'    "func.return"({names}) : ({kinds}) -> ()\n  }}\n{"".join(functions)}}}\n'
    )


def _numbers(choose: Chooser, value: Value, seed: int) -> tuple[Value, Array]:
    """An array for an argument, and the argument with what is known of it."""
    generator = np.random.default_rng(seed)
    element, shape = value.element, value.shape
    if element == "i1":
        return value, generator.integers(0, 2, shape).astype(np.bool_)
    if not is_float(part(element)):
        bits = width(element)
        low, high = (
            (0, 2**bits) if element.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        )
        if choose.coin():
            low, high = max(low, -5), min(high, 6)
        whole = generator.integers(low, high, shape, np.uint64 if low == 0 else np.int64)
        small = whole.astype(np.int8) if bits < 8 else whole
        return value, small.astype(dtype(element))
    floats = generator.integers(-8, 9, shape) / 2
    if is_complex(element):
        floats = floats + 1j * generator.integers(-8, 9, shape) / 2
    wild = element in ("f32", "f64", "bf16", "f16") and choose.integer(0, 7) == 7
    if wild:
        odd = generator.choice([np.inf, -np.inf, np.nan, 1.0], shape)
        floats = np.where(generator.random(shape) < 0.3, odd, floats)
    known = Value(value.name, element, shape, bound=4.0, grid=-1, wild=wild)
    return known, np.asarray(floats).astype(dtype(element))


def build(choose: Chooser) -> RandomProgram:
    """A program of these choices."""
    steps = choose.integer(1, MOST_OPERATIONS)
    counter = Counter(budget=steps)
    arguments: list[Value] = []
    inputs: list[Array] = []
    for index in range(choose.integer(1, 4)):
        value = Value(f"%arg{index}", choose.element(), choose.shape())
        value, array = _numbers(choose, value, choose.integer(0, 9))
        arguments.append(value)
        inputs.append(array)
    scope = Scope(choose, counter, list(arguments))
    grow(scope, steps)
    made = scope.values[len(arguments) :]
    leaves = [value for value in made if value.name not in counter.used] or scope.values[-1:]
    leaves = leaves[-MOST_RESULTS:]
    return RandomProgram(
        arguments,
        inputs,
        scope.lines,
        leaves,
        counter.made,
        counter.functions,
        counter.restated,
    )


@st.composite
def programs(draw: Callable[[Any], Any]) -> RandomProgram:
    """Random programs of up to :data:`MOST_OPERATIONS` operations."""
    return build(Chooser(lambda low, high: draw(st.integers(low, high))))
