# SPDX-License-Identifier: Apache-2.0
"""The text of a random program while it is built: choices, the values in scope, and how to fit them to an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fuzz_values import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NARROW,
    Value,
    count,
    is_complex,
    is_float,
    is_integer,
    limit,
    range_of,
    rounded,
)

T = TypeVar("T")
DIMENSIONS = (1, 2, 3, 5, 7, 4, 8, 17, 31, 3, 2, 1, 6, 0)
MOST_ELEMENTS = 600


@dataclass
class Chooser:
    """Random choices; the first alternatives are those that hypothesis shrinks to.

    Attributes:
        pick: a whole number between two, both included.
    """

    pick: Callable[[int, int], int]

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return self.pick(low, high) if high > low else low

    def of(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[self.integer(0, len(items) - 1)]

    def coin(self) -> bool:
        """Yes or no; shrinks to no."""
        return self.integer(0, 1) == 1

    def permutation(self, size: int) -> list[int]:
        """Of ``range(size)``."""
        left, out = list(range(size)), list[int]()
        while left:
            out.append(left.pop(self.integer(0, len(left) - 1)))
        return out

    def subset(self, size: int, least: int = 0) -> list[int]:
        """Of ``range(size)``, in order, of at least ``least`` members."""
        kept = [index for index in range(size) if self.coin()]
        return kept if len(kept) >= least else list(range(least))

    def shape(self, ranks: tuple[int, int] = (0, 4), most: int = MOST_ELEMENTS) -> tuple[int, ...]:
        """A shape of at most ``most`` elements."""
        shape: list[int] = []
        for _ in range(self.integer(*ranks)):
            size = self.of(DIMENSIONS)
            shape.append(size if count((*shape, size)) <= most else 1)
        return tuple(shape)

    def element(self) -> str:
        """An element type."""
        family = self.of((FLOATS, FLOATS, INTEGERS, INTEGERS, ("i1",), COMPLEX, NARROW))
        return self.of(family)


@dataclass
class Counter:
    """Fresh names and the operations still to be spent, shared by all scopes of a program."""

    names: int = 0
    budget: int = 30
    used: set[str] = field(default_factory=set[str])
    made: dict[str, Value] = field(default_factory=dict[str, Value])
    functions: list[str] = field(default_factory=list[str])
    restated: dict[str, str] = field(default_factory=dict[str, str])

    def fresh(self) -> str:
        """A new SSA name."""
        self.names += 1
        return f"%{self.names}"


@dataclass
class Scope:
    """A block that is being written: its lines and the values it sees."""

    choose: Chooser
    counter: Counter
    values: list[Value]
    depth: int = 0
    lines: list[str] = field(default_factory=list[str])

    def inner(self, values: Sequence[Value] = ()) -> Scope:
        """A block nested in this one, with block arguments ``values``."""
        return Scope(self.choose, self.counter, [*self.values, *values], self.depth + 1)

    # Writing operations

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attributes: str = "",
        regions: str = "",
    ) -> list[Value]:
        """Write one operation in generic form; returns ``results`` with their names."""
        named = [replace(result, name=self.counter.fresh()) for result in results]
        self.counter.made.update((value.name, value) for value in named)
        self.counter.used.update(operand.name for operand in operands)
        left = ", ".join(value.name for value in named)
        used = ", ".join(operand.name for operand in operands)
        kinds = ", ".join(operand.type for operand in operands)
        to = ", ".join(value.type for value in named)
        properties = f" <{{{attributes}}}>" if attributes else ""
        body = f" ({regions})" if regions else ""
        full = name if "." in name else f"stablehlo.{name}"
        self.lines.append(f'{left} = "{full}"({used}){properties}{body} : ({kinds}) -> ({to})')
        return named

    def one(
        self, name: str, operands: Sequence[Value], result: Value, attributes: str = ""
    ) -> Value:
        """As :meth:`op`, for one result."""
        return self.op(name, operands, [result], attributes)[0]

    def constant(self, element: str, value: float) -> Value:
        """A rank-0 constant."""
        if is_integer(element):
            value = min(max(value, range_of(element)[0]), range_of(element)[1])
        text = str(int(value))
        if element == "i1":
            text = "true" if value else "false"
        elif is_float(element):
            text = repr(float(value))
        elif is_complex(element):
            text = f"({float(value)!r}, 0.0)"
        grid = next((g for g in range(0, -8, -1) if value % 2.0**g == 0), None)
        result = Value("", element, (), abs(value), 0.0, grid)
        return self.one("constant", [], result, f"value = dense<{text}> : {result.type}")

    def arithmetic(
        self,
        name: str,
        operands: Sequence[Value],
        element: str,
        shape: tuple[int, ...],
        *,
        bound: float = 0.0,
        error: float = 0.0,
        grid: int | None = None,
        attributes: str = "",
    ) -> Value:
        """Write an operation and work out its rounding; a result that got too large is clamped."""
        wild = any(operand.wild for operand in operands)
        result = Value("", element, shape, wild=wild)
        if is_float(element) or is_complex(element):
            error, grid = rounded(element, bound, error, grid)
            result = replace(result, bound=bound, error=error, grid=grid)
        return self.tame(self.one(name, operands, result, attributes))

    def tame(self, value: Value) -> Value:
        """``value``, clamped when it is large."""
        if is_float(value.element) and value.bound > limit(value.element):
            return self.clamped(value, -4, 4)
        if is_complex(value.element) and value.bound > limit(value.element):
            scale = 2.0**-8
            grid = None if value.grid is None else value.grid - 8
            factor = self.fit(self.constant(value.element, scale), value.shape)
            error = value.error * scale
            return self.arithmetic(
                "multiply",
                [value, factor],
                value.element,
                value.shape,
                bound=value.bound * scale,
                error=error,
                grid=grid,
            )
        return value

    def clamped(self, value: Value, low: float, high: float) -> Value:
        """``value`` limited to ``low`` … ``high``."""
        ends = [self.constant(value.element, end) for end in (low, high)]
        result = replace(value, bound=min(value.bound, max(abs(low), abs(high))))
        return self.one("clamp", [ends[0], value, ends[1]], result)

    # Finding operands

    def find(self, accept: Callable[[Value], bool]) -> Value | None:
        """A value that ``accept`` takes, recent ones first, or ``None``."""
        found = [value for value in self.values if accept(value)]
        return self.choose.of(found[::-1]) if found else None

    def of_type(self, element: str, exact: bool = False) -> Value:
        """A value of an element type, made when there is none."""
        found = self.find(lambda v: v.element == element and (v.exact or not exact))
        return found or self.constant(element, self.choose.integer(0, 3) if element != "i1" else 1)

    def pair(self, value: Value, exact: bool = False) -> Value:
        """A value of the same type as ``value``."""
        return self.fit(self.of_type(value.element, exact), value.shape)

    def fit(self, value: Value, shape: tuple[int, ...]) -> Value:
        """``value``'s elements in another shape: broadcast, cut or padded with zeros."""
        if value.shape == shape:
            return value
        if value.shape == () or (value.size == 1 and count(shape) != 1):
            return self.broadcast(self.reshape(value, ()), shape)
        if value.size != count(shape):
            value = self.resized(self.reshape(value, (value.size,)), count(shape))
        return self.reshape(value, shape)

    def broadcast(self, value: Value, shape: tuple[int, ...]) -> Value:
        """A rank-0 value everywhere in ``shape``."""
        return self.one(
            "broadcast_in_dim",
            [value],
            replace(value, shape=shape),
            "broadcast_dimensions = array<i64>",
        )

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in a shape of as many."""
        if value.shape == shape:
            return value
        return self.one("reshape", [value], replace(value, shape=shape))

    def resized(self, value: Value, size: int) -> Value:
        """A vector cut or padded to ``size``."""
        zero = self.constant(value.element, 0)
        text = dims("edge_padding_low", [0]) + ", "
        text += (
            dims("edge_padding_high", [size - value.size]) + ", " + dims("interior_padding", [0])
        )
        return self.one("pad", [value, zero], replace(value, shape=(size,)), text)

    def indices(self, shape: tuple[int, ...], element: str = "i32") -> Value:
        """Small integers, some negative and some too large for most dimensions."""
        found = self.find(lambda v: is_integer(v.element)) or self.constant("i32", 1)
        value = self.converted(self.fit(found, shape), element)
        mask = self.fit(self.constant(element, 7), shape)
        value = self.one("and", [value, mask], value)
        if element.startswith("u"):
            return value
        return self.one("subtract", [value, self.fit(self.constant(element, 1), shape)], value)

    def converted(self, value: Value, element: str) -> Value:
        """``value`` as another type, for pairs that need no care with rounding."""
        if value.element == element:
            return value
        return self.one("convert", [value], Value("", element, value.shape))


def dims(name: str, values: Sequence[int]) -> str:
    """The text of an ``array<i64>`` attribute."""
    return f"{name} = array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def region(
    scope: Scope, arguments: Sequence[Value], results: Sequence[Value], lines: Sequence[str]
) -> str:
    """The text of a region of one block."""
    scope.counter.used.update(value.name for value in results)
    header = ", ".join(f"{a.name}: {a.type}" for a in arguments)
    names = ", ".join(r.name for r in results)
    kinds = ", ".join(r.type for r in results)
    indent = "  " * (scope.depth + 2)
    body = [f"{indent}{line}" for line in lines]
    label = [f"{indent[:-2]}^bb0({header}):"] if arguments else []
    end = f'{indent}"stablehlo.return"({names}) : ({kinds}) -> ()'
    return "\n".join(["{", *label, *body, end, f"{indent[:-2]}}}"])


def scalar_arguments(scope: Scope, elements: Sequence[str], **info: Any) -> list[Value]:
    """Fresh rank-0 block arguments."""
    return [Value(scope.counter.fresh(), element, (), **info) for element in elements]
