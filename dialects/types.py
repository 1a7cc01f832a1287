# SPDX-License-Identifier: Apache-2.0
"""Tensor types as plain Python records, for the verifier, the builders and the passes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from mlir import ir

_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^,?*]+)>")
_MANTISSA = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A statically shaped tensor type: ``shape`` and the element type's MLIR spelling."""

    shape: tuple[int, ...]
    element: str

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether elements are real floating-point numbers (``f8E4M3FN`` … ``f64``, ``bf16``)."""
        return self.element[0] == "f" or self.element == "bf16" or self.element.startswith("tf")

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return self.element.startswith("complex<")

    @property
    def is_pred(self) -> bool:
        """Whether elements are booleans."""
        return self.element == "i1"

    @property
    def is_unsigned(self) -> bool:
        """Whether elements are unsigned integers (booleans excluded)."""
        return self.element.startswith("ui")

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, signed or not (booleans excluded)."""
        return self.element[0] in "iu" and self.element != "i1" and self.element != "index"

    @property
    def bits(self) -> int:
        """Bits of one element's value."""
        if self.is_complex:
            return 2 * Tensor((), self.element[len("complex<") : -1]).bits
        digits = re.search(r"\d+", self.element)
        return int(digits.group()) if digits else 64

    def with_shape(self, shape: tuple[int, ...] | list[int]) -> Tensor:
        """The same element type in another shape."""
        return Tensor(tuple(shape), self.element)

    def with_element(self, element: str) -> Tensor:
        """The same shape of another element type."""
        return Tensor(self.shape, element)

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{d}x' for d in self.shape)}{self.element}>"


@lru_cache(maxsize=8192)
def parse_tensor(text: str) -> Tensor | None:
    """The record of a printed type; ``None`` for what is no static ranked tensor."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return None
    return Tensor(tuple(int(d) for d in match.group(1).split("x")[:-1]), match.group(2))


def tensor(value: ir.Value | ir.Type) -> Tensor:
    """The record of a value's type or of a type; ``TypeError`` when it is no static tensor."""
    text = str(value if isinstance(value, ir.Type) else value.type)
    found = parse_tensor(text)
    if found is None:
        raise TypeError(f"{text} is not a statically shaped tensor type")
    return found


def mlir_type(record: Tensor) -> ir.Type:
    """The MLIR type of a record (current context)."""
    return ir.Type.parse(str(record))


def converts_exactly(source: str, target: str) -> bool:
    """Whether every value of element type ``source`` is a value of element type ``target``."""
    a, b = Tensor((), source), Tensor((), target)
    if source == target:
        return True
    if a.is_pred:
        return b.is_integer or target in _MANTISSA  # there are floats without a zero
    if b.is_pred or a.is_complex or b.is_complex:
        return False
    if a.is_float:
        if source not in _MANTISSA or target not in _MANTISSA:
            return False
        wider = {"bf16": ("f32", "f64"), "f16": ("f32", "f64"), "f32": ("f64",), "f64": ()}
        return target in wider[source]
    magnitude = a.bits if a.is_unsigned else a.bits - 1
    if b.is_float:  # f16 has the range of 16 bits; the others of far more
        return magnitude <= _MANTISSA.get(target, 0)
    if b.is_unsigned:
        return a.is_unsigned and b.bits >= a.bits
    return b.bits - 1 >= magnitude
