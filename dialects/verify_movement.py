# SPDX-License-Identifier: Apache-2.0
"""Verification of constants and data movement."""

from __future__ import annotations

from gristmill.dialects.types import parse_tensor
from gristmill.dialects.verify_rules import (
    OpView,
    Rule,
    Violation,
    check,
    check_dimensions,
    check_element,
    check_length,
    check_shape,
    check_type,
)


def _constant(view: OpView) -> None:
    value = view.op.attributes["value"]
    if value.type == view.op.results[0].type:
        return
    held = parse_tensor(str(value.type))
    if held is None:
        raise Violation("'value' must be a dense elements or dense_resource attribute")
    if view.result.is_complex and held.element == view.result.element[len("complex<") : -1]:
        check_shape("'value'", held, (*view.result.shape, 2))  # real and imaginary parts
        return
    check_type("result", view.result, held)


def _iota(view: OpView) -> None:
    check(view.result.rank > 0, "the result must have at least one dimension")
    check_dimensions("dimension", [view.integer("dimension")], view.result.rank)
    check(not view.result.is_pred, "the result must not be boolean")


def _broadcast_in_dim(view: OpView) -> None:
    operand, result = view.operands[0], view.result
    dimensions = view.dims("dimensions")
    check_element("result", result, operand.element)
    check_length("dimensions", dimensions, operand.rank)
    check_dimensions("dimensions", dimensions, result.rank)
    for source, target in enumerate(dimensions):
        size, wanted = operand.shape[source], result.shape[target]
        check(
            size in (1, wanted),
            f"operand dimension {source} of size {size} cannot become result dimension {target} "
            f"of size {wanted}",
        )


def _reshape(view: OpView) -> None:
    operand, result = view.operands[0], view.result
    check_element("result", result, operand.element)
    check(
        operand.size == result.size,
        f"the result must have the operand's {operand.size} elements, got {result}",
    )


def _transpose(view: OpView) -> None:
    operand, permutation = view.operands[0], view.dims("permutation")
    check_length("permutation", permutation, operand.rank)
    check_dimensions("permutation", permutation, operand.rank)
    shape = tuple(operand.shape[d] for d in permutation)
    check_type("result", view.result, operand.with_shape(shape))


def _slice(view: OpView) -> None:
    operand = view.operands[0]
    starts, limits = view.dims("start_indices"), view.dims("limit_indices")
    strides = view.dims("strides")
    for name, values in (
        ("start_indices", starts),
        ("limit_indices", limits),
        ("strides", strides),
    ):
        check_length(name, values, operand.rank)
    shape: list[int] = []
    for d, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        size = operand.shape[d]
        if not 0 <= start <= limit <= size:
            raise Violation(
                f"dimension {d} needs 0 <= start <= limit <= {size}, got start {start}, limit {limit}"
            )
        check(stride > 0, f"'strides' must be positive, got {stride} in dimension {d}")
        shape.append(-(-(limit - start) // stride))
    check_type("result", view.result, operand.with_shape(shape))


def _reverse(view: OpView) -> None:
    check_dimensions("dimensions", view.dims("dimensions"), view.operands[0].rank)
    check_type("result", view.result, view.operands[0])


def _pad(view: OpView) -> None:
    operand, value = view.operands
    check_type("operand 1", value, operand.with_shape(()))
    low, high, interior = view.dims("low"), view.dims("high"), view.dims("interior")
    for name, values in (("low", low), ("high", high), ("interior", interior)):
        check_length(name, values, operand.rank)
    check(all(gap >= 0 for gap in interior), f"'interior' must not be negative, got {interior}")
    shape = [
        lo + size + max(size - 1, 0) * gap + hi
        for size, lo, hi, gap in zip(operand.shape, low, high, interior, strict=True)
    ]
    check(min(shape, default=0) >= 0, f"the padding crops away more than there is: {shape}")
    check_type("result", view.result, operand.with_shape(shape))


def _concatenate(view: OpView) -> None:
    check(len(view.operands) > 0, "expects at least one operand")
    first, dimension = view.operands[0], view.integer("dimension")
    check_dimensions("dimension", [dimension], first.rank)
    total = 0
    for index, operand in enumerate(view.operands):
        check_element(f"operand {index}", operand, first.element)
        check(
            operand.rank == first.rank
            and all(
                size == first.shape[d] for d, size in enumerate(operand.shape) if d != dimension
            ),
            f"operand {index} may differ from operand 0 ({first}) in dimension {dimension} alone, "
            f"got {operand}",
        )
        total += operand.shape[dimension]
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    check_type("result", view.result, first.with_shape(shape))


def _check_starts(view: OpView, first: int, rank: int) -> None:
    starts = view.operands[first:]
    check(len(starts) == rank, f"expects {rank} start indices, got {len(starts)}")
    for index, start in enumerate(starts):
        check(
            start.rank == 0 and start.is_integer,
            f"operand {first + index} must be a scalar integer, got {start}",
        )


def _dynamic_slice(view: OpView) -> None:
    operand, sizes = view.operands[0], view.dims("slice_sizes")
    _check_starts(view, 1, operand.rank)
    check_length("slice_sizes", sizes, operand.rank)
    check(
        all(0 <= size <= extent for size, extent in zip(sizes, operand.shape, strict=True)),
        f"'slice_sizes' must lie within the operand {operand}, got {sizes}",
    )
    check_type("result", view.result, operand.with_shape(sizes))


def _dynamic_update_slice(view: OpView) -> None:
    operand, update = view.operands[0], view.operands[1]
    _check_starts(view, 2, operand.rank)
    check_element("operand 1", update, operand.element)
    fits = update.rank == operand.rank and all(
        size <= extent for size, extent in zip(update.shape, operand.shape, strict=True)
    )
    check(fits, f"operand 1 must fit into {operand}, got {update}")
    check_type("result", view.result, operand)


def _bitcast_convert(view: OpView) -> None:
    operand, result = view.operands[0], view.result
    if operand.bits == result.bits:
        check_shape("result", result, operand.shape)
        return
    narrow, wide = (operand, result) if operand.bits < result.bits else (result, operand)
    check(
        wide.bits % narrow.bits == 0,
        f"the bits of {operand.element} and {result.element} must divide each other",
    )
    what = "operand 0" if narrow is operand else "result"
    check_shape(what, narrow, (*wide.shape, wide.bits // narrow.bits))


def _fft(view: OpView) -> None:
    operand, result = view.operands[0], view.result
    kind, lengths = view.string("fft_type"), view.dims("fft_length")
    check(kind in ("FFT", "IFFT", "RFFT", "IRFFT"), f"'fft_type' {kind!r} is unknown")
    count = len(lengths)
    check(
        1 <= count <= 3 and count <= operand.rank,
        f"'fft_length' must have 1 to 3 entries within rank {operand.rank}, got {lengths}",
    )
    check(operand.is_complex == (kind != "RFFT"), f"operand 0 does not fit {kind}: {operand}")
    check(result.is_complex == (kind != "IRFFT"), f"the result does not fit {kind}: {result}")
    half = [*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0]
    outer = operand.shape[: operand.rank - count]
    check_shape("operand 0", operand, (*outer, *(half if kind == "IRFFT" else lengths)))
    check_shape("result", result, (*outer, *(half if kind == "RFFT" else lengths)))


def _optimization_barrier(view: OpView) -> None:
    check(view.operands == view.results, "results must have the operands' types")


def _rng_bit_generator(view: OpView) -> None:
    check_type("result 0", view.results[0], view.operands[0])
    check(not view.results[1].is_complex, f"result 1 must not be complex, got {view.results[1]}")


def _rng(view: OpView) -> None:
    low, high, shape = view.operands
    check_type("operand 1", high, low)
    check_type("operand 0", low, view.result.with_shape(()))
    check(
        shape.rank == 1 and shape.size == view.result.rank and shape.is_integer,
        f"operand 2 must hold the {view.result.rank} dimensions of the result, got {shape}",
    )
    kind = view.string("rng_distribution")
    check(kind in ("UNIFORM", "NORMAL"), f"'rng_distribution' {kind!r} is unknown")


def _nothing(view: OpView) -> None:
    """Operations that any operands and results fit."""


#: Rules of these operations.
RULES: dict[str, Rule] = {
    "bitcast_convert": _bitcast_convert,
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "constant": _constant,
    "custom_call": _nothing,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "fft": _fft,
    "iota": _iota,
    "lapack": _nothing,
    "optimization_barrier": _optimization_barrier,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "rng": _rng,
    "rng_bit_generator": _rng_bit_generator,
    "slice": _slice,
    "transpose": _transpose,
}
