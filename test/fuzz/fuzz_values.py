# SPDX-License-Identifier: Apache-2.0
"""Typed values of random programs, each with what is known of its numbers.

Two right compilers may differ by rounding, and a comparison or a conversion to an integer turns a tiny difference into
a large one. So every floating-point value carries a bound of its magnitude and of its error, and operations that jump
are only applied to values without error: those whose arithmetic so far was exact, because all numbers are multiples
of a power of two (the grid) that are small enough for the mantissa.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

#: Bits of the significand, the leading one included.
MANTISSA = {
    "f64": 53,
    "f32": 24,
    "f16": 11,
    "bf16": 8,
    "f8E4M3FN": 4,
    "f8E5M2": 3,
    "f8E3M4": 5,
    "f8E4M3": 4,
    "f8E4M3FNUZ": 4,
    "f8E4M3B11FNUZ": 4,
    "f8E5M2FNUZ": 3,
    "f6E2M3FN": 4,
    "f6E3M2FN": 3,
    "f4E2M1FN": 2,
}
#: Real types of at most eight bits. ``f8E8M0FNU`` has neither sign nor zero: only :mod:`fuzz_bits` makes it.
NARROW = tuple(name for name, bits in MANTISSA.items() if bits < 6)
#: Types that the interpreter rounds to whole numbers wrongly: it adds a power of two that they do not have.
UNROUNDED = ("f6E2M3FN", "f8E3M4")
#: The exponent of the smallest positive number, of types whose range is smaller than that of programs.
SMALLEST = {"f8E3M4": -6, "f8E4M3B11FNUZ": -13, "f6E2M3FN": -3, "f6E3M2FN": -4, "f4E2M1FN": -1}
FLOATS = ("f32", "f64", "f16", "bf16")
SIGNED = ("i32", "i64", "i8", "i16", "i4", "i2")
UNSIGNED = ("ui32", "ui64", "ui8", "ui16", "ui4", "ui2")
INTEGERS = SIGNED + UNSIGNED
COMPLEX = ("complex<f32>", "complex<f64>")


@dataclass(frozen=True)
class Value:
    """An SSA value.

    Attributes:
        name: with the percent sign.
        element: StableHLO's name of the element type.
        shape: its dimensions.
        bound: no finite element is larger (of complex ones, no part); floating point only.
        error: by how much right compilers may differ, absolute; floating point only.
        grid: all finite elements are multiples of ``2 ** grid``; ``None`` when unknown.
        wild: may hold infinities, NaN and negative zero.
    """

    name: str
    element: str
    shape: tuple[int, ...]
    bound: float = 0.0
    error: float = 0.0
    grid: int | None = 0
    wild: bool = False

    @property
    def type(self) -> str:
        """The tensor type."""
        return tensor(self.element, self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return count(self.shape)

    @property
    def exact(self) -> bool:
        """Whether operations that jump may be applied: the same number everywhere, and finite."""
        return self.error == 0 and not self.wild


def tensor(element: str, shape: tuple[int, ...]) -> str:
    """``tensor<2x3xf32>``."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def count(shape: tuple[int, ...]) -> int:
    """The product of the dimensions."""
    product = 1
    for size in shape:
        product *= size
    return product


def part(element: str) -> str:
    """The type of a complex number's parts; any other type itself."""
    return element[len("complex<") : -1] if element.startswith("complex") else element


def is_float(element: str) -> bool:
    """Whether it is a real floating-point type."""
    return element in MANTISSA


def is_integer(element: str) -> bool:
    """Whether it is an integer of at least two bits."""
    return element in INTEGERS


def is_complex(element: str) -> bool:
    """Whether it is a complex type."""
    return element.startswith("complex")


def width(element: str) -> int:
    """Bits of an integer type."""
    return int(element.lstrip("ui"))


def epsilon(element: str) -> float:
    """The distance from 1 to the next number."""
    return 2.0 ** (1 - MANTISSA[part(element)])


def limit(element: str) -> float:
    """The largest bound that a value may have before it is clamped."""
    if element == "f4E2M1FN":
        return 6.0
    return 7.5 if element in NARROW else 1024.0


def rounded(element: str, bound: float, error: float, grid: int | None) -> tuple[float, int | None]:
    """Error and grid of a result of ``element`` whose exact value has this bound, error and grid."""
    fits = grid is not None and bound <= 2.0 ** (MANTISSA[part(element)] + grid)
    if fits and grid is not None and grid >= SMALLEST.get(element, grid) and error == 0:
        return 0.0, grid
    return error + 4 * epsilon(element) * max(bound, 2.0 ** SMALLEST.get(element, -6)), None


def dtype(element: str) -> np.dtype[Any]:
    """The numpy type of an element type."""
    if is_complex(element):
        return np.dtype(np.complex64 if part(element) == "f32" else np.complex128)
    if is_float(element):
        if element[1:].isdigit():
            return np.dtype(f"float{element[1:]}")
        name = "bfloat16" if element == "bf16" else f"float{element[1]}_{element[2:].lower()}"
        return np.dtype(getattr(ml_dtypes, name))
    if element == "i1":
        return np.dtype(np.bool_)
    if width(element) < 8:
        return np.dtype(
            getattr(ml_dtypes, f"{'uint' if element[0] == 'u' else 'int'}{width(element)}")
        )
    return np.dtype(f"{'uint' if element.startswith('u') else 'int'}{width(element)}")


def largest(element: str) -> float:
    """The largest finite number of a real type."""
    return float(ml_dtypes.finfo(dtype(element)).max)


def range_of(element: str) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    bits = width(element)
    return (
        (0, 2**bits - 1) if element.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def overflows(element: str, bound: float) -> bool:
    """Whether numbers of this bound are too large for a narrow type; the wide ones are clamped in time."""
    return element in NARROW and bound > largest(element)
