# SPDX-License-Identifier: Apache-2.0
"""Small discrete Fourier transforms on vectors held in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

#: Real and imaginary vectors.
Complex = tuple[ir.Value, ir.Value]
_FMA = arith.FastMathFlags.contract


def add(a: ir.Value, b: ir.Value) -> ir.Value:
    """``a + b``."""
    return arith.AddFOp(a, b, fastmath=_FMA).result


def sub(a: ir.Value, b: ir.Value) -> ir.Value:
    """``a - b``."""
    return arith.SubFOp(a, b, fastmath=_FMA).result


def mul(a: ir.Value, b: ir.Value) -> ir.Value:
    """``a * b``."""
    return arith.MulFOp(a, b, fastmath=_FMA).result


def multiply(a: Complex, b: Complex) -> Complex:
    """``a * b``."""
    return (
        sub(mul(a[0], b[0]), mul(a[1], b[1])),
        add(mul(a[0], b[1]), mul(a[1], b[0])),
    )


def plus(a: Complex, b: Complex) -> Complex:
    """``a + b``."""
    return add(a[0], b[0]), add(a[1], b[1])


def minus(a: Complex, b: Complex) -> Complex:
    """``a - b``."""
    return sub(a[0], b[0]), sub(a[1], b[1])


def scale(value: Complex, factor: float) -> Complex:
    """``value`` times a real number."""
    return _scale(value[0], factor), _scale(value[1], factor)


def splat(kind: ir.Type, value: float) -> ir.Value:
    """``value`` in every lane of a vector type."""
    element = ir.VectorType(kind).element_type
    attribute = ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(element, value))
    return arith.ConstantOp(kind, attribute).result


def _scale(a: ir.Value, factor: float) -> ir.Value:
    return mul(a, splat(a.type, factor))


def _rotate(value: Complex, numerator: int, size: int) -> Complex:
    """``value * exp(-2 pi i numerator / size)``."""
    eighth = numerator * 8 % (8 * size)
    if eighth == 0:
        return value
    if eighth == 2 * size:  # by -i
        return value[1], arith.NegFOp(value[0]).result
    half = math.sqrt(0.5)
    if eighth == size:  # by (1 - i) / sqrt(2)
        return _scale(add(value[0], value[1]), half), _scale(sub(value[1], value[0]), half)
    if eighth == 3 * size:  # by (-1 - i) / sqrt(2)
        return _scale(sub(value[1], value[0]), half), _scale(add(value[0], value[1]), -half)
    angle = -2 * math.pi * numerator / size
    kind = value[0].type
    return multiply(value, (splat(kind, math.cos(angle)), splat(kind, math.sin(angle))))


def transform(values: Sequence[Complex]) -> list[Complex]:
    """The discrete Fourier transform of a few vectors: halves recursively, then sums over an odd prime."""
    size = len(values)
    if size == 1:
        return list(values)
    if size % 2:
        return _odd(values)
    even, odd = transform(values[::2]), transform(values[1::2])
    turned = [_rotate(x, j, size) for j, x in enumerate(odd)]
    pairs = list(zip(even, turned, strict=True))
    return [plus(a, b) for a, b in pairs] + [minus(a, b) for a, b in pairs]


def _odd(values: Sequence[Complex]) -> list[Complex]:
    """An odd size: the inputs ``k`` and ``size - k`` meet conjugate factors."""
    size, half = len(values), len(values) // 2
    sums = [plus(values[k], values[size - k]) for k in range(1, half + 1)]
    differences = [minus(values[k], values[size - k]) for k in range(1, half + 1)]
    results: list[Complex] = [values[0]] * size
    total = values[0]
    for pair in sums:
        total = plus(total, pair)
    results[0] = total
    for j in range(1, half + 1):
        real, imaginary = values[0]
        cross: list[ir.Value] = []
        for part in (0, 1):
            terms = [
                _scale(differences[k - 1][part], math.sin(2 * math.pi * (j * k % size) / size))
                for k in range(1, half + 1)
            ]
            value = terms[0]
            for term in terms[1:]:
                value = add(value, term)
            cross.append(value)
        for k in range(1, half + 1):
            cosine = math.cos(2 * math.pi * (j * k % size) / size)
            real = add(real, _scale(sums[k - 1][0], cosine))
            imaginary = add(imaginary, _scale(sums[k - 1][1], cosine))
        results[j] = add(real, cross[1]), sub(imaginary, cross[0])
        results[size - j] = sub(real, cross[1]), add(imaginary, cross[0])
    return results


def untangle(a: Complex, b: Complex, factor: Complex) -> tuple[Complex, Complex]:
    """Points ``k`` and ``n - k`` of the transform of ``2 n`` real numbers.

    ``a`` and ``b`` are points ``k`` and ``n - k`` of the transform of its even points plus ``i`` times its odd ones,
    ``factor`` is ``exp(-pi i k / n)``.
    """
    even = add(a[0], b[0]), sub(a[1], b[1])
    odd = add(a[1], b[1]), sub(b[0], a[0])
    even, odd = scale(even, 0.5), multiply(scale(odd, 0.5), factor)
    real, imaginary = minus(even, odd)
    return plus(even, odd), (real, arith.NegFOp(imaginary).result)


def tangle(a: Complex, b: Complex, factor: Complex) -> tuple[Complex, Complex]:
    """Twice what :func:`untangle` takes, from what it gives."""
    even = add(a[0], b[0]), sub(a[1], b[1])
    odd = sub(a[0], b[0]), add(a[1], b[1])
    odd = multiply(odd, (factor[0], arith.NegFOp(factor[1]).result))
    first = sub(even[0], odd[1]), add(even[1], odd[0])
    return first, (add(even[0], odd[1]), sub(odd[0], even[1]))
