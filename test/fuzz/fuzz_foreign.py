# SPDX-License-Identifier: Apache-2.0
"""Operations of random programs that the reference interpreter does not evaluate: XLA's CPU client does instead.

They are only made at the top level of a program, where the oracle can take them out one at a time. ``rng`` has no
right numbers, so programs only see whether they are in its range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fuzz_algebra
import fuzz_chlo
from fuzz_indexing import compared
from fuzz_scope import Scope, dims
from fuzz_values import (
    FLOATS,
    INTEGERS,
    Value,
    width,
)


def random_bits(scope: Scope) -> list[Value]:
    """The new state and the bits of a generator, both specified to the bit."""
    kind = scope.choose.of(("THREE_FRY", "PHILOX"))
    words = 2 if kind == "THREE_FRY" else scope.choose.integer(2, 3)
    state = scope.fit(scope.of_type("ui64"), (words,))
    element = scope.choose.of([e for e in INTEGERS if width(e) >= 8])
    shape = scope.choose.shape((0, 3))
    text = f"rng_algorithm = #stablehlo<rng_algorithm {kind}>"
    return scope.op("rng_bit_generator", [state], [state, Value("", element, shape)], text)


def random_numbers(scope: Scope) -> list[Value]:
    """Whether random numbers are in their range."""
    element = scope.choose.of(("f32", "f64", "f16", "i32", "i64", "ui32"))
    shape = scope.choose.shape((1, 3))
    low, high = scope.constant(element, 1), scope.constant(element, 5)
    kind = Value("", "i64", (len(shape),))
    extents = scope.one("constant", [], kind, f"value = dense<{list(shape)}> : {kind.type}")
    normal = element in FLOATS and scope.choose.coin()
    text = f"rng_distribution = #stablehlo<rng_distribution {'NORMAL' if normal else 'UNIFORM'}>"
    made = scope.one("rng", [low, high, extents], Value("", element, shape), text)
    if normal:
        return [scope.one("is_finite", [made], Value("", "i1", shape))]
    above = compared(scope, "GE", made, scope.fit(low, shape))
    # The end is excluded, but a number just below it may round to it.
    below = compared(scope, "LE", made, scope.fit(high, shape))
    return [scope.one("and", [above, below], Value("", "i1", shape))]


def broadcast(scope: Scope) -> list[Value]:
    """New leading dimensions."""
    value = scope.find(lambda v: v.element in (*FLOATS, "i32", "i64", "ui8") and v.size < 100)
    if value is None:
        return []
    sizes = scope.choose.shape((1, 2), 6)
    result = replace(value, shape=(*sizes, *value.shape))
    return [scope.one("broadcast", [value], result, dims("broadcast_sizes", sizes))]


FAMILIES: tuple[Callable[[Scope], list[Value]], ...] = (
    *fuzz_algebra.FAMILIES,
    *fuzz_chlo.FAMILIES,
    random_bits,
    random_numbers,
    broadcast,
)

#: The operations that they are, without those of CHLO.
OPERATIONS = (
    "fft",
    "convolution",
    "cholesky",
    "triangular_solve",
    "batch_norm_inference",
    "batch_norm_training",
    "batch_norm_grad",
    "rng_bit_generator",
    "rng",
    "dot",
    "broadcast",
)
