# SPDX-License-Identifier: Apache-2.0
"""What the verifier's rules are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlir import ir

from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor

#: Parameter and result types of a function.
Signature = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]

T = TypeVar("T")


class Violation(Exception):
    """An op breaks a rule; the text says which and how."""


@dataclass(slots=True)
class OpView:
    """One operation as a rule sees it.

    Attributes:
        op: the operation; ``name`` without its prefix.
        operands, results: their tensor types.
        signature: looks up the types of a function of the module.
    """

    op: ir.Operation
    name: str
    operands: list[Tensor]
    results: list[Tensor]
    signature: Callable[[str], Signature | None]

    @property
    def result(self) -> Tensor:
        """The type of the first result."""
        return self.results[0]

    def dims(self, name: str) -> list[int]:
        """An ``array<i64>`` attribute."""
        value = self.op.attributes[name]
        if isinstance(value, ir.DenseI64ArrayAttr):
            return [value[index] for index in range(len(value))]  # see hlo.dims
        raise Violation(f"attribute {name!r} must be array<i64: …>, got {value}")

    def integer(self, name: str) -> int:
        """An integer attribute."""
        return self._read(name, hlo.integer, "an integer")

    def string(self, name: str) -> str:
        """A string attribute."""
        return self._read(name, hlo.string, "a string")

    def boolean(self, name: str) -> bool:
        """A bool attribute."""
        return self._read(name, hlo.boolean, "a bool")

    def function(self, name: str) -> tuple[str, Signature]:
        """Name and signature of the function that a symbol attribute refers to."""
        return self._defined(self._read(name, hlo.symbol, "a function symbol"))

    def functions(self, name: str) -> list[tuple[str, Signature]]:
        """Names and signatures of the functions that an array of symbols refers to."""
        listed = self._read(name, hlo.symbols, "an array of function symbols")
        return [self._defined(function) for function in listed]

    def _defined(self, function: str) -> tuple[str, Signature]:
        found = self.signature(function)
        if found is None:
            raise Violation(f"function @{function} is not defined in the module")
        return function, found

    def _read(self, name: str, reader: Callable[[ir.Operation, str], T], kind: str) -> T:
        try:
            return reader(self.op, name)
        except (ValueError, TypeError):
            value = self.op.attributes[name]
            raise Violation(f"attribute {name!r} must be {kind}, got {value}") from None


#: Checks one op; raises :class:`Violation`.
Rule = Callable[[OpView], None]


def check(condition: bool, message: str) -> None:
    """Raise a :class:`Violation` with ``message`` unless ``condition``."""
    if not condition:
        raise Violation(message)


def check_type(what: str, got: Tensor, expected: Tensor) -> None:
    """The two types must be equal."""
    if got != expected:
        raise Violation(f"{what} must be {expected}, got {got}")


def check_shape(what: str, got: Tensor, expected: Sequence[int]) -> None:
    """The type must have the given shape."""
    if got.shape != tuple(expected):
        raise Violation(f"{what} must have shape {list(expected)}, got {got}")


def check_element(what: str, got: Tensor, expected: str) -> None:
    """The type must have the given element type."""
    if got.element != expected:
        raise Violation(f"{what} must have element type {expected}, got {got}")


def check_length(name: str, values: Sequence[int], length: int) -> None:
    """A list attribute must have one entry per dimension."""
    if len(values) != length:
        raise Violation(f"{name!r} must have {length} entries, got {len(values)}: {list(values)}")


def check_dimensions(
    name: str, values: Sequence[int], rank: int, *, increasing: bool = False
) -> None:
    """A list of distinct dimensions, each in ``[0, rank)``."""
    for value in values:
        if not 0 <= value < rank:
            raise Violation(f"{name!r} has dimension {value}, out of range [0, {rank})")
    if len(set(values)) != len(values):
        raise Violation(f"{name!r} has a dimension twice: {list(values)}")
    if increasing and list(values) != sorted(values):
        raise Violation(f"{name!r} must be increasing, got {list(values)}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """A string attribute must be one of ``choices``."""
    if value not in choices:
        raise Violation(f"{name!r} must be one of {', '.join(choices)}, got {value!r}")


def check_signature(
    function: tuple[str, Signature], parameters: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """A referenced function must have exactly these parameter and result types."""
    name, (got_parameters, got_results) = function
    for what, got, expected in (
        ("parameters", got_parameters, tuple(parameters)),
        ("results", got_results, tuple(results)),
    ):
        if got != expected:
            raise Violation(
                f"function @{name} must have {what} ({', '.join(map(str, expected))}), "
                f"got ({', '.join(map(str, got))})"
            )


def scalar(kind: Tensor) -> Tensor:
    """The rank-0 type of the same elements."""
    return kind.with_shape(())


#: A rank-0 boolean.
PRED = Tensor((), "i1")
