# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that see the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_scope import Scope
from fuzz_values import FLOATS, INTEGERS, MANTISSA, NARROW, Value, is_integer, width


def reduce_precision(scope: Scope) -> list[Value]:
    """Rounding to fewer bits, of the exponent too where nothing can jump."""
    value = scope.find(lambda v: v.element in FLOATS)
    if value is None:
        return []
    bits = scope.choose.integer(1, MANTISSA[value.element] - 1)
    if value.error == 0:
        exponent = scope.choose.integer(1, 9)
        text = f"exponent_bits = {exponent} : i32, mantissa_bits = {bits} : i32"
        wild = value.wild or exponent < 5
        result = replace(value, grid=None, wild=wild, bound=1.5 * value.bound)
        return [scope.one("reduce_precision", [value], result, text)]
    text = f"exponent_bits = 5 : i32, mantissa_bits = {bits} : i32"
    error = value.error + 2.0**-bits * value.bound * 2 + 2.0**-14
    result = replace(value, error=error, bound=value.bound * 1.5)
    return [scope.one("reduce_precision", [value], result, text)]


def bitcast(scope: Scope) -> list[Value]:
    """Bits of integers as integers of the same or another width."""
    value = scope.find(lambda v: is_integer(v.element))
    if value is None:
        return []
    element = scope.choose.of(INTEGERS)
    have, want = width(value.element), width(element)
    shape = value.shape
    if want < have:
        shape = (*shape, have // want)
    elif want > have:
        if not shape or shape[-1] != want // have:
            return []
        shape = shape[:-1]
    return [scope.one("bitcast_convert", [value], Value("", element, shape))]


#: Integer types as wide as a real one, and the bits of exponent and sign of 1 to 2.
SAME_WIDTH = {
    "f32": ("i32", "ui32"),
    "f64": ("i64", "ui64"),
    "f16": ("i16", "ui16"),
    "bf16": ("i16", "ui16"),
    **{name: ("i8", "ui8") for name in NARROW if name.startswith("f8")},
}
ONE = {"f32": 0x3F800000, "f64": 0x3FF0000000000000, "f16": 0x3C00, "bf16": 0x3F80}


def bits_of_numbers(scope: Scope) -> list[Value]:
    """Bits of real numbers as integers; of NaN they are not the same everywhere."""
    value = scope.find(lambda v: v.element in SAME_WIDTH and v.exact)
    if value is None:
        return []
    element = scope.choose.of(SAME_WIDTH[value.element])
    return [scope.one("bitcast_convert", [value], Value("", element, value.shape))]


def numbers_of_bits(scope: Scope) -> list[Value]:
    """Bits of integers as a real number from 1 to 2."""
    value = scope.find(lambda v: v.element in ("i32", "i64", "i16", "ui32", "ui64", "ui16"))
    if value is None:
        return []
    element = scope.choose.of([e for e in ONE if value.element in SAME_WIDTH[e]])
    mantissa = MANTISSA[element] - 1
    mask = scope.fit(scope.constant(value.element, 2**mantissa - 1), value.shape)
    one = scope.fit(scope.constant(value.element, ONE[element]), value.shape)
    value = scope.one("or", [scope.one("and", [value, mask], value), one], value)
    result = Value("", element, value.shape, bound=2.0, grid=-mantissa)
    return [scope.one("bitcast_convert", [value], result)]


def powers_of_two(scope: Scope) -> list[Value]:
    """Numbers of ``f8E8M0FNU``, which has neither sign nor zero, moved and made real ones."""
    value = scope.find(lambda v: v.element == "ui8")
    if value is None:
        return []
    seven = scope.fit(scope.constant("ui8", 7), value.shape)
    least = scope.fit(scope.constant("ui8", 124), value.shape)  # an eighth
    value = scope.one("add", [scope.one("and", [value, seven], value), least], value)
    value = scope.one("bitcast_convert", [value], replace(value, element="f8E8M0FNU"))
    if value.shape and scope.choose.coin():
        order = ", ".join(map(str, range(len(value.shape) - 1, -1, -1)))
        moved = replace(value, shape=value.shape[::-1])
        value = scope.one("transpose", [value], moved, f"permutation = array<i64: {order}>")
    result = Value("", scope.choose.of(FLOATS), value.shape, bound=16.0, grid=-3)
    return [scope.one("convert", [value], result)]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    reduce_precision,
    bitcast,
    bits_of_numbers,
    numbers_of_bits,
    powers_of_two,
)
