# SPDX-License-Identifier: Apache-2.0
"""Copies of a convolution's operands, in the form and the element type that its innermost loops read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlir import ir

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.control import both
from gristmill.compiler.emitters.cpu.conv_problem import ConvProblem
from gristmill.compiler.emitters.cpu.frame import PhaseFrame
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.runtime.types import ArrayType

#: Channels copied together where they lie apart: as many rows as a set of the first-level cache has ways, as rows of
#: a power of two meet in one set.
_CHANNELS_TOGETHER = 8


def copy_input(phase: PhaseFrame, problem: ConvProblem, array: ArrayType) -> None:
    """Copy the input to the start of the workspace; tasks are rows.

    Args:
        phase: the phase that does it.
        problem: the convolution.
        array: the copy, of batch, padded space and channels, those past the input's last one zero.
    """
    e, node = phase.elemental, problem.node
    lhs = node.operands[0]
    target = build.view(phase.workspace, 0, array)
    *outer, width, channels = array.shape
    begin = min(width, max(0, problem.padding[-1]))
    end = min(width, max(begin, problem.padding[-1] + problem.extents[-1]))
    is_minor = node.integer("input_feature_dimension") == len(lhs.shape) - 1
    together = problem.inputs if is_minor else _CHANNELS_TOGETHER

    def source(row: Sequence[Index]) -> tuple[list[Index], ir.Value]:
        """Where a row of the copy lies in the operand, and whether it does."""
        inside = build.constant(arithmetic.element_type("i1"), 1)
        result: list[Index] = []
        for at, before, extent in zip(row, problem.padding, problem.extents, strict=False):
            shifted = build.sub(at, before)
            inside = both(inside, build.at_least(shifted, 0))
            inside = both(inside, build.less(shifted, extent))
            result.append(shifted)
        return result, inside

    def copy(row: Sequence[Index], at: Sequence[Index], pixel: Index, channel: Index) -> None:
        position = [*at, build.sub(pixel, problem.padding[-1])]
        index = problem.input_index(row[0], channel, position)
        with e.scope():
            value = arithmetic.convert(lhs.type.element, problem.element, e.value(lhs, index))
        build.store(value, target, [*row, pixel, channel], problem.element)

    def clear(row: Sequence[Index], pixels: tuple[int, int], first: int) -> None:
        zero = build.constant(problem.element, 0)

        def store(pixel: ir.Value, channel: ir.Value) -> None:
            build.store(zero, target, [*row, pixel, channel], problem.element)

        _each(pixels, (first, channels), store)

    def step(task: ir.Value) -> None:
        row = build.delinearize(task, outer)
        at, inside = source(row[1:])

        def part(first: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            last = build.add(first, together)
            if problem.inputs % together:
                last = build.minimum(last, problem.inputs)
            _each((begin, end), (first, last), partial(copy, row, at))
            return []

        def copied() -> list[ir.Value]:
            clear(row, (0, begin), 0)
            build.for_loop(0, problem.inputs, part, step=together)
            clear(row, (begin, end), problem.inputs)
            clear(row, (end, width), 0)
            return []

        def cleared() -> list[ir.Value]:
            clear(row, (0, width), 0)
            return []

        build.if_else(inside, [], copied, cleared)

    phase.each_task(step)


def _each(
    pixels: tuple[Index, Index],
    channels: tuple[Index, Index],
    body: Callable[[ir.Value, ir.Value], None],
) -> None:
    """``body(pixel, channel)`` for those of two ranges."""
    if pixels[0] == pixels[1] or channels[0] == channels[1]:
        return

    def inner(pixel: ir.Value, channel: ir.Value) -> list[ir.Value]:
        body(pixel, channel)
        return []

    def outer(pixel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        build.for_loop(*channels, lambda channel, _: inner(pixel, channel))
        return []

    build.for_loop(*pixels, outer)


def copy_kernel(phase: PhaseFrame, problem: ConvProblem, array: ArrayType, offset: int) -> None:
    """Copy the weights into the workspace; tasks are rows of a block of features.

    Args:
        phase: the phase that does it.
        problem: the convolution.
        array: the copy, of group, block, window, channel and features of a block, those past the last one zero.
        offset: the byte of the workspace where it begins.
    """
    target = build.view(phase.workspace, offset, array)
    features = array.shape[-1]

    def row(task: ir.Value) -> None:
        group, block, tap, channel = build.delinearize(task, array.shape[:-1])
        first = build.mul(block, features)

        def copy(feature: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            value = _weight(phase, problem, group, tap, channel, build.add(first, feature))
            build.store(value, target, [group, block, tap, channel, feature], problem.element)
            return []

        def clear(feature: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            zero = build.constant(problem.element, 0)
            build.store(zero, target, [group, block, tap, channel, feature], problem.element)
            return []

        count: Index = features
        if problem.features % features:
            count = build.minimum(build.sub(problem.features, first), features)
        build.for_loop(0, count, copy)
        build.for_loop(count, features, clear)

    phase.each_task(row)


def copy_kernel_channels_last(
    phase: PhaseFrame, problem: ConvProblem, array: ArrayType, offset: int
) -> None:
    """As :func:`copy_kernel`, but of group, block, window, feature and channel; all features are one block."""
    target = build.view(phase.workspace, offset, array)

    def row(task: ir.Value) -> None:
        group, block, tap, feature = build.delinearize(task, array.shape[:-1])

        def copy(channel: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            value = _weight(phase, problem, group, tap, channel, feature)
            build.store(value, target, [group, block, tap, feature, channel], problem.element)
            return []

        build.for_loop(0, array.shape[-1], copy)

    phase.each_task(row)


def _weight(
    phase: PhaseFrame,
    problem: ConvProblem,
    group: Index,
    tap: Index,
    channel: Index,
    feature: Index,
) -> ir.Value:
    """The weight of a group's feature, in the type computed in."""
    rhs = problem.node.operands[1]
    window = build.delinearize(tap, problem.kernel)
    number = build.add(build.mul(group, problem.features), feature)
    index = problem.kernel_index(window, channel, number)
    with phase.elemental.scope():
        value = phase.elemental.value(rhs, index)
    return arithmetic.convert(rhs.type.element, problem.element, value)
