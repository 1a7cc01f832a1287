# SPDX-License-Identifier: Apache-2.0
"""Linear algebra, transforms, convolutions and normalisation in random programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_indexing import compared
from fuzz_reductions import precision, summed
from fuzz_scope import MOST_ELEMENTS, Scope, dims
from fuzz_values import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    Value,
    count,
    epsilon,
    is_complex,
    overflows,
    part,
    width,
)
from fuzz_windows import padding_text

WIDE = ("f32", "f64")
MATRICES = ("f32", "f64", "complex<f32>", "complex<f64>")


def fft(scope: Scope) -> list[Value]:
    """A Fourier transform of any kind along the last one to three dimensions."""
    value = scope.find(
        lambda v: v.element in MATRICES and v.shape != () and v.size > 0 and not v.wild
    )
    if value is None:
        return []
    rank = scope.choose.integer(1, min(3, len(value.shape)))
    lengths = list(value.shape[-rank:])
    element, shape = value.element, value.shape
    if not is_complex(element):
        kind, element = "RFFT", f"complex<{element}>"
        shape = (*shape[:-1], lengths[-1] // 2 + 1)
    else:
        kind = scope.choose.of(("FFT", "IFFT", "IRFFT"))
    if kind == "IRFFT":
        lengths[-1] = max(2 * (lengths[-1] - 1) + scope.choose.integer(0, 1), 1)
        if lengths[-1] // 2 + 1 != shape[-1]:
            return []
        shape, element = (*shape[:-1], lengths[-1]), part(element)
    terms = 2 * count(tuple(lengths)) if kind in ("FFT", "RFFT") else 4
    bound = terms * value.bound
    error = terms * value.error + 16 * epsilon(element) * max(bound, 1)
    text = f"fft_type = #stablehlo<fft_type {kind}>, {dims('fft_length', lengths)}"
    return [
        scope.arithmetic("fft", [value], element, shape, bound=bound, error=error, attributes=text)
    ]


def _diagonal(scope: Scope, shape: tuple[int, ...]) -> Value:
    """Where row and column of the matrices are the same."""
    rows, columns = (
        scope.one("iota", [], Value("", "i32", shape), f"iota_dimension = {axis} : i64")
        for axis in (len(shape) - 2, len(shape) - 1)
    )
    return compared(scope, "EQ", rows, columns)


def _matrices(scope: Scope, diagonal: float) -> Value | None:
    """Square matrices with a real diagonal, diagonally dominant by rows and by columns.

    Off the diagonal the sum of the magnitudes of a row or a column is at most 1.
    """
    value = scope.find(lambda v: v.element in MATRICES and not v.wild)
    if value is None:
        return None
    size = scope.choose.integer(1, 6)
    lead = scope.choose.shape((0, 2), 6)
    if 0 in lead:
        return None
    shape = (*lead, size, size)
    value = scope.fit(value, shape)
    if is_complex(value.element):
        scale = 2.0**-13
        bound = value.bound * scale
    else:
        value = scope.clamped(value, -1, 1)
        scale, bound = 2.0**-3, 0.125
    factor = scope.fit(scope.constant(value.element, scale), shape)
    value = scope.arithmetic(
        "multiply",
        [value, factor],
        value.element,
        shape,
        bound=bound,
        error=value.error * scale,
    )
    centre = scope.fit(scope.constant(value.element, diagonal), shape)
    chosen = _diagonal(scope, shape)
    result = replace(value, bound=max(bound, diagonal))
    return scope.one("select", [chosen, centre, value], result)


def cholesky(scope: Scope) -> list[Value]:
    """The factor of a positive definite matrix; the other triangle is nobody's business."""
    matrix = _matrices(scope, 2.0)
    if matrix is None:
        return []
    lower = scope.choose.coin()
    error = 8 * matrix.error + 64 * epsilon(matrix.element)
    result = replace(matrix, bound=2.0, error=error, grid=None)
    text = f"lower = {'true' if lower else 'false'}"
    factor = scope.one("cholesky", [matrix], result, text)
    rows, columns = (
        scope.one("iota", [], Value("", "i32", matrix.shape), f"iota_dimension = {axis} : i64")
        for axis in (len(matrix.shape) - 2, len(matrix.shape) - 1)
    )
    kept = compared(scope, "GE" if lower else "LE", rows, columns)
    zero = scope.fit(scope.constant(matrix.element, 0), matrix.shape)
    return [scope.one("select", [kept, factor, zero], result)]


def triangular_solve(scope: Scope) -> list[Value]:
    """The solution of a well-conditioned triangular system of any form."""
    matrix = _matrices(scope, 2.0)
    if matrix is None:
        return []
    size, lead = matrix.shape[-1], matrix.shape[:-2]
    left, lower, unit = scope.choose.coin(), scope.choose.coin(), scope.choose.coin()
    many = scope.choose.of((1, 3, 2, 0, 5))
    shape = (*lead, size, many) if left else (*lead, many, size)
    right = scope.of_type(matrix.element)
    if right.wild:
        return []
    right = scope.fit(right, shape)
    transpose = scope.choose.of(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
    flags = f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}".lower()
    bound = 8 * right.bound
    error = 8 * right.error + 64 * bound * (matrix.error + epsilon(matrix.element))
    return [
        scope.arithmetic(
            "triangular_solve",
            [matrix, right],
            matrix.element,
            shape,
            bound=bound,
            error=error,
            attributes=f"{flags}, transpose_a = #stablehlo<transpose {transpose}>",
        )
    ]


#: Of the narrow types XLA's convolutions round at other places.
CONVOLVED = (*FLOATS, *COMPLEX, *(name for name in INTEGERS if width(name) >= 8))


def _labels(order: list[int], first: str, second: str) -> tuple[str, list[int]]:
    """Text of a tensor's dimensions in an order, and which of (first, second, 0, 1 …) each is."""
    names = [first, second, *map(str, range(len(order) - 2))]
    return f"[{', '.join(names[index] for index in order)}]", order


def convolution(scope: Scope) -> list[Value]:
    """A convolution of any dimension orders, strides, dilations, padding, groups and reversal."""
    left = scope.find(
        lambda v: 2 <= len(v.shape) <= 5 and v.element in CONVOLVED and not v.wild and v.size > 0
    )
    if left is None:
        return []
    rank = len(left.shape)
    order = scope.choose.permutation(rank)  # of (batch, feature, space …) in the operand
    sizes = [left.shape[order.index(role)] for role in range(rank)]
    batch, features, space = sizes[0], sizes[1], sizes[2:]
    groups = scope.choose.of([n for n in range(1, features + 1) if features % n == 0])
    batches = 1
    if groups == 1:
        batches = scope.choose.of([n for n in range(1, batch + 1) if batch % n == 0])
    window = [scope.choose.integer(1, 3) for _ in space]
    made = groups * batches * scope.choose.integer(1, 3)
    strides = [scope.choose.integer(1, 2) for _ in space]
    base = [scope.choose.integer(1, 2) for _ in space]
    gaps = [scope.choose.integer(1, 2) for _ in space]
    padding = [(scope.choose.integer(-1, 2), scope.choose.integer(-1, 2)) for _ in space]
    result: list[int] = []
    for axis, size in enumerate(space):
        free = (size - 1) * base[axis] + 1 + sum(padding[axis])
        if free < 0:
            return []
        free -= (window[axis] - 1) * gaps[axis] + 1
        result.append(free // strides[axis] + 1 if free >= 0 else 0)
    times = count(tuple(window)) * (features // groups)
    out = (batch // batches, made, *result)
    if count(out) > MOST_ELEMENTS or count(out) * times > 20000:
        return []
    right_roles = (features // groups, made, *window)
    right_order = scope.choose.permutation(rank)
    out_order = scope.choose.permutation(rank)
    right = scope.of_type(left.element)
    if right.wild or count(right_roles) > MOST_ELEMENTS:
        return []
    right = scope.fit(right, tuple(right_roles[role] for role in right_order))
    factor = 2 if is_complex(left.element) else 1
    error = factor * (
        left.bound * right.error + right.bound * left.error + left.error * right.error
    )
    grid = None if left.grid is None or right.grid is None else left.grid + right.grid
    bound = left.bound * right.bound * factor
    info = summed(replace(left, bound=bound, error=error, grid=grid), times)
    if overflows(left.element, info.bound):
        return []
    numbers = (
        f"{_labels(order, 'b', 'f')[0]}x{_labels(right_order, 'i', 'o')[0]}->"
        f"{_labels(out_order, 'b', 'f')[0]}"
    )
    flags = ", ".join("true" if scope.choose.coin() else "false" for _ in space)
    text = (
        f"{dims('window_strides', strides)}, {padding_text(padding)}{dims('lhs_dilation', base)}, "
    )
    text += (
        f"{dims('rhs_dilation', gaps)}, window_reversal = array<i1{': ' if space else ''}{flags}>, "
    )
    text += f"dimension_numbers = #stablehlo.conv<{numbers}>, "
    text += f"feature_group_count = {groups} : i64, batch_group_count = {batches} : i64"
    text += precision(scope)
    shape = tuple(out[role] for role in out_order)
    return [
        scope.arithmetic(
            "convolution",
            [left, right],
            left.element,
            shape,
            bound=info.bound,
            error=info.error,
            grid=info.grid,
            attributes=text,
        )
    ]


def batch_norm(scope: Scope) -> list[Value]:
    """Normalisation, its statistics and its gradient, of values whose variance may be 0."""
    value = scope.find(lambda v: v.element in WIDE and v.shape != () and v.size > 0 and not v.wild)
    if value is None:
        return []
    axis = scope.choose.integer(0, len(value.shape) - 1)
    element = value.element
    value = scope.clamped(value, -2, 2)
    channel = (value.shape[axis],)

    def vector(low: float) -> Value:
        found = scope.of_type(element)
        return scope.clamped(scope.fit(found, channel), low, 2)

    kind = scope.choose.of(("inference", "training", "grad"))
    scale, offset, mean, variance = vector(-2), vector(-2), vector(-2), vector(0.25)
    text = f"epsilon = 5.0e-01 : f32, feature_index = {axis} : i64"
    error = value.error + scale.error + offset.error + mean.error + variance.error
    error = 256 * (error + 8 * epsilon(element))
    full = Value("", element, value.shape, bound=64.0, error=error, grid=None)
    row = replace(full, shape=channel)
    if kind == "inference":
        return scope.op(
            "batch_norm_inference", [value, scale, offset, mean, variance], [full], text
        )
    if kind == "training":
        return scope.op("batch_norm_training", [value, scale, offset], [full, row, row], text)
    other = scope.clamped(scope.fit(scope.of_type(element), value.shape), -2, 2)
    size = value.size
    error = 256 * size * (error + other.error)
    results = [replace(r, bound=64.0 * size, error=error) for r in (full, row, row)]
    operands = [value, scale, mean, variance, other]
    return [scope.tame(r) for r in scope.op("batch_norm_grad", operands, results, text)]


def dot(scope: Scope) -> list[Value]:
    """The product of vectors or matrices."""
    left = scope.find(
        lambda v: 1 <= len(v.shape) <= 2 and v.element in (*FLOATS, *INTEGERS) and not v.wild
    )
    if left is None or left.shape[-1] == 0 or left.element in ("i2", "ui2", "i4", "ui4"):
        return []
    inner = left.shape[-1]
    free = (scope.choose.integer(1, 5),) if scope.choose.coin() else ()
    right = scope.of_type(left.element)
    if right.wild:
        return []
    right = scope.fit(right, (inner, *free))
    error = left.bound * right.error + right.bound * left.error + left.error * right.error
    grid = None if left.grid is None or right.grid is None else left.grid + right.grid
    info = replace(left, bound=left.bound * right.bound, error=error, grid=grid)
    info = summed(info, inner)
    return [
        scope.arithmetic(
            "dot",
            [left, right],
            left.element,
            (*left.shape[:-1], *free),
            bound=info.bound,
            error=info.error,
            grid=info.grid,
        )
    ]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    fft,
    cholesky,
    triangular_solve,
    convolution,
    convolution,
    batch_norm,
    dot,
)
