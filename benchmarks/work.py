# SPDX-License-Identifier: Apache-2.0
"""The least that a program has to do, from JAX's own description of it: bytes to move and flops.

An underestimate, so that the time it takes is a bound: what a program computes only to move data costs nothing here, a
product two flops a multiply-add, an operation on elements one flop each, a function such as ``exp`` ten, an FFT
of n points 5 n log2 n. Loops count as often as they run where that is known, once where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Array = np.ndarray[Any, Any]

_FUNCTIONS = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "erf_inv"),
        *("sin", "cos", "tan", "atan2", "pow", "cbrt", "rsqrt", "sqrt", "div"),
    }
)
_ELEMENTWISE = frozenset(
    {
        *("add", "sub", "mul", "max", "min", "neg", "abs", "square", "integer_pow", "add_any"),
        *("xor", "and", "or", "not", "shift_left", "shift_right_logical", "select_n", "clamp"),
    }
)
_REDUCTIONS = frozenset(
    {
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    }
)
_FUNCTION_FLOPS = 10


@dataclass(frozen=True)
class LeastWork:
    """Bytes of the inputs that are read and of the results, flops, and whether they are 64-bit."""

    read: int
    written: int
    flops: int
    double: bool


def least_work(function: Callable[..., Any], inputs: Sequence[Array]) -> LeastWork:
    """The least work of ``function`` on ``inputs``."""
    closed = jax.make_jaxpr(function)(*inputs)
    jaxpr = closed.jaxpr
    read = sum(_bytes_read(jaxpr, v) for v in jaxpr.invars)
    written = sum(_nbytes(v) for v in jaxpr.outvars)
    double = any(a.dtype in (np.float64, np.complex128) for a in inputs)
    return LeastWork(read, written, int(_flops(jaxpr)), double)


def _nbytes(variable: Any) -> int:
    return math.prod(variable.aval.shape) * np.dtype(variable.aval.dtype).itemsize


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """The computations that an equation calls."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(item, "jaxpr", item)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def _bytes_read(jaxpr: Any, variable: Any) -> int:
    """Bytes of a variable that are read at least: of a table that is only looked up in, the rows taken."""
    needed = 0
    for equation in jaxpr.eqns:
        for position, operand in enumerate(equation.invars):
            if operand is not variable:
                continue
            name = equation.primitive.name
            if name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
                (called,) = list(_inner(equation.params))[:1]
                needed += _bytes_read(called, called.invars[position])
            elif name in ("gather", "dynamic_slice", "slice") and position == 0:
                needed += _nbytes(equation.outvars[0])
            else:
                return _nbytes(variable)
    return min(needed, _nbytes(variable))


def _flops(jaxpr: Any) -> float:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return params["length"] * _flops(params["jaxpr"].jaxpr)
    if name == "cond":
        return min(map(_flops, _inner(params)))
    inner = list(_inner(params))
    if inner and name not in _REDUCTIONS:
        return sum(map(_flops, inner)) if name != "sort" else 0
    size = math.prod(equation.outvars[0].aval.shape)
    if name == "dot_general":
        lhs = equation.invars[0].aval.shape
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * size * math.prod(lhs[d] for d in contracted)
    if name == "conv_general_dilated":
        return 2 * _convolution_products(equation)
    if name == "fft":
        points = math.prod(params["fft_lengths"])
        operand = math.prod(equation.invars[0].aval.shape)
        halves = 0.5 if "RFFT" in str(params["fft_type"]).upper() else 1
        return halves * 5 * max(size, operand) * math.log2(max(points, 2))
    if name in _FUNCTIONS:
        return _FUNCTION_FLOPS * size
    if name in _ELEMENTWISE:
        return size
    if name in _REDUCTIONS:
        return math.prod(equation.invars[0].aval.shape)
    return 0


def _convolution_products(equation: Any) -> int:
    """Multiply-adds of a convolution, those with padding and with holes of a dilated input left out."""
    lhs, rhs = (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    numbers, params = equation.params["dimension_numbers"], equation.params
    products = out[numbers.out_spec[0]] * rhs[numbers.rhs_spec[0]] * rhs[numbers.rhs_spec[1]]
    for d, (low, _) in enumerate(params["padding"]):
        size, window = lhs[numbers.lhs_spec[2 + d]], rhs[numbers.rhs_spec[2 + d]]
        hole = params["lhs_dilation"][d]
        inside = 0
        for position in range(out[numbers.out_spec[2 + d]]):
            for tap in range(window):
                at = position * params["window_strides"][d] + tap * params["rhs_dilation"][d] - low
                inside += 0 <= at <= (size - 1) * hole and at % hole == 0
        products *= inside
    return products
