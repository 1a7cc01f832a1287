# SPDX-License-Identifier: Apache-2.0
"""Elemental rules that loop: reductions, windows, dot products and convolutions, one result element at a time.

These are the reference forms, right for every shape and type; the row, column, dot and other emitters replace them
where a whole tensor can be computed better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.elemental.core import RULES, Elemental
from gristmill.compiler.graph import Graph, Node
from gristmill.runtime.types import ElementType

REASSOCIATE = arith.FastMathFlags.reassoc


def simple_reducer(graph: Graph) -> str | None:
    """The op of a reducer that is one binary op on its two parameters (``add``, ``maximum``, …), else ``None``."""
    if len(graph.parameters) != 2 or len(graph.results) != 1:
        return None
    node = graph.results[0]
    if len(node.operands) != 2 or set(node.operands) != set(graph.parameters):
        return None
    return (
        node.kind if node.kind in ("add", "multiply", "maximum", "minimum", "and", "or") else None
    )


class Reducer:
    """The body of a ``reduce``-like op on scalars, accumulating narrow floats in ``f32`` where that is exact enough.

    A simple float reducer (``add``, …) over ``bf16`` or ``f16`` keeps an ``f32`` accumulator and rounds once at the
    end; any other body is evaluated as written.

    Args:
        e: the computation that the op is part of (its captures are read through it).
        function: the body.
        elements: element type of each accumulated value.
        captures: nodes passed to the body after the accumulators and elements.
    """

    def __init__(
        self, e: Elemental, function: str, elements: Sequence[ElementType], captures: Sequence[Node]
    ):
        self._e, self._function, self._captures = e, function, captures
        self._elements = list(elements)
        self._simple = simple_reducer(e.functions[function])
        self._wide = [arithmetic.F32 if self._widens(x) else x for x in elements]

    def _widens(self, element: ElementType) -> bool:
        return self._simple is not None and element.is_float and element.bits < 32

    @property
    def accumulators(self) -> list[ElementType]:
        """Element types of the running values."""
        return self._wide

    def enter(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Values of the op's element types as accumulators."""
        return [
            arithmetic.convert(element, wide, value)
            for element, wide, value in zip(self._elements, self._wide, values, strict=True)
        ]

    def leave(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Accumulators as values of the op's element types."""
        return [
            arithmetic.convert(wide, element, value)
            for element, wide, value in zip(self._elements, self._wide, values, strict=True)
        ]

    def combine(self, lhs: Sequence[ir.Value], rhs: Sequence[ir.Value]) -> list[ir.Value]:
        """One application of the body to accumulators."""
        if self._simple is not None:
            fastmath = REASSOCIATE if self._simple in ("add", "multiply") else None
            return [arithmetic.binary(self._simple, self._wide[0], lhs[0], rhs[0], fastmath)]
        return self._e.call(self._function, [*lhs, *rhs], self._captures, REASSOCIATE)


def loop_nest(
    e: Elemental,
    extents: Sequence[int],
    carried: Sequence[ir.Value],
    body: Callable[[list[Index], list[ir.Value]], Sequence[ir.Value]],
    *,
    unroll: int = 0,
    interleave: int = 1,
) -> list[ir.Value]:
    """Nested loops over ``extents`` carrying values; unit extents make no loop.

    ``unroll`` and ``interleave`` are said of the innermost, see :func:`build.for_loop`.
    """

    def level(dimension: int, index: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        if dimension == len(extents):
            return list(body(index, values))
        if extents[dimension] == 1:
            return level(dimension + 1, [*index, 0], values)

        def inner(iv: ir.Value, inner_values: list[ir.Value]) -> list[ir.Value]:
            with e.scope():
                return level(dimension + 1, [*index, iv], inner_values)

        if dimension < len(extents) - 1:
            return build.for_loop(0, extents[dimension], inner, values)
        return build.for_loop(
            0, extents[dimension], inner, values, unroll=unroll, interleave=interleave
        )

    return level(0, [], list(carried))


def reduce_operands(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """``(inputs, initial values, captures)`` of a ``reduce`` or ``reduce_window``."""
    count = len(node.siblings)
    return node.operands[:count], node.operands[count : 2 * count], node.operands[2 * count :]


def _finish(
    e: Elemental, node: Node, index: tuple[Index, ...], results: list[ir.Value]
) -> ir.Value:
    for sibling, value in zip(node.siblings, results, strict=True):
        e.remember(sibling, index, value)
    return results[node.result]


def reducer_of(e: Elemental, node: Node) -> Reducer:
    """The :class:`Reducer` of a ``reduce`` or ``reduce_window`` node."""
    inputs, _, captures = reduce_operands(node)
    return Reducer(e, node.symbol("to_apply"), [x.type.element for x in inputs], captures)


def _reduce(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    inputs, initial, _ = reduce_operands(node)
    reducer = reducer_of(e, node)
    dimensions = node.dims("dimensions")
    shape = inputs[0].shape
    start = reducer.enter([e.value(x, ()) for x in initial])

    def body(reduced: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        kept, inner = iter(index), iter(reduced)
        full = [next(inner) if d in dimensions else next(kept) for d in range(len(shape))]
        elements = reducer.enter([e.value(x, full) for x in inputs])
        return reducer.combine(values, elements)

    results = loop_nest(e, [shape[d] for d in sorted(dimensions)], start, body)
    return _finish(e, node, index, reducer.leave(results))


def window_position(
    index: Sequence[Index],
    window: Sequence[Index],
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    base: Sequence[int],
    shape: Sequence[int],
    sizes: Sequence[int],
    counts: Sequence[int],
) -> tuple[list[Index], list[ir.Value]]:
    """Where a window element lies in the operand, and the conditions under which it is inside it.

    Args:
        index: position of the window.
        window: position inside the window.
        strides, dilations: of the window; ``low`` is the low padding; ``base`` the operand's dilation.
        shape: the operand's extent; ``sizes`` the window's; ``counts`` of windows (all per dimension).
    """
    result: list[Index] = []
    conditions: list[ir.Value] = []
    for d, extent in enumerate(shape):
        position = build.sub(
            build.add(build.mul(index[d], strides[d]), build.mul(window[d], dilations[d])), low[d]
        )
        unpadded = low[d] <= 0 and not isinstance(position, ir.Value)
        plain = sizes[d] == 1 and strides[d] == 1 and low[d] == 0 and base[d] == 1
        if plain and counts[d] <= extent:  # no padding at the end either
            result.append(position)
            continue
        if not unpadded:
            conditions.append(build.at_least(position, 0))
        if base[d] > 1:
            safe = build.maximum(position, 0)
            conditions.append(build.equal(build.mod(safe, base[d]), 0))
            position = build.div(safe, base[d])
        conditions.append(build.less(position, extent))
        result.append(build.clamp(position, 0, extent - 1))
    return result, conditions


def _reduce_window(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    inputs, initial, _ = reduce_operands(node)
    reducer = reducer_of(e, node)
    sizes = node.dims("window_dimensions")
    start = reducer.enter([e.value(x, ()) for x in initial])
    if inputs[0].type.size == 0:
        return _finish(e, node, index, reducer.leave(start))

    def body(window: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        at, conditions = window_position(
            index,
            window,
            node.dims("window_strides"),
            node.dims("window_dilations"),
            node.dims("padding_low"),
            node.dims("base_dilations"),
            inputs[0].shape,
            sizes,
            node.shape,
        )
        elements = reducer.enter([e.value(x, at) for x in inputs])
        combined = reducer.combine(values, elements)
        for condition in conditions:
            combined = [
                arithmetic.select(condition, new, old)
                for new, old in zip(combined, values, strict=True)
            ]
        return combined

    return _finish(e, node, index, reducer.leave(loop_nest(e, sizes, start, body)))


def accumulator_type(*elements: ElementType) -> ElementType:
    """The type dot products accumulate in: ``f32`` at least for floats, the result type for integers."""
    result = elements[-1]
    return arithmetic.F32 if result.is_float and result.bits < 32 else result


def multiply_add(
    element: ElementType, accumulator: ir.Value, lhs: ir.Value, rhs: ir.Value
) -> ir.Value:
    """``accumulator + lhs * rhs``, each operation rounded, in written order: this is the reference form."""
    product = arithmetic.binary("multiply", element, lhs, rhs)
    return arithmetic.binary("add", element, accumulator, product)


def _dot_general(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    lhs, rhs = node.operands
    lhs_batch, rhs_batch = (
        node.dims("lhs_batching_dimensions"),
        node.dims("rhs_batching_dimensions"),
    )
    lhs_contract = node.dims("lhs_contracting_dimensions")
    rhs_contract = node.dims("rhs_contracting_dimensions")
    lhs_free = [d for d in range(len(lhs.shape)) if d not in (*lhs_batch, *lhs_contract)]
    rhs_free = [d for d in range(len(rhs.shape)) if d not in (*rhs_batch, *rhs_contract)]
    wide = accumulator_type(lhs.type.element, rhs.type.element, node.type.element)

    def body(contracted: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        lhs_index = _place(len(lhs.shape), (lhs_batch, index), (lhs_contract, contracted))
        rhs_index = _place(len(rhs.shape), (rhs_batch, index), (rhs_contract, contracted))
        offset = len(lhs_batch)
        for position, d in enumerate(lhs_free):
            lhs_index[d] = index[offset + position]
        for position, d in enumerate(rhs_free):
            rhs_index[d] = index[offset + len(lhs_free) + position]
        a = arithmetic.convert(lhs.type.element, wide, e.value(lhs, lhs_index))
        b = arithmetic.convert(rhs.type.element, wide, e.value(rhs, rhs_index))
        return [multiply_add(wide, values[0], a, b)]

    extents = [lhs.shape[d] for d in lhs_contract]
    total = loop_nest(e, extents, [build.constant(wide, 0)], body)[0]
    return arithmetic.convert(wide, node.type.element, total)


def _place(rank: int, *groups: tuple[Sequence[int], Sequence[Index]]) -> list[Index]:
    result: list[Index] = [0] * rank
    for dimensions, values in groups:
        for d, value in zip(dimensions, values, strict=False):
            result[d] = value
    return result


def _convolution(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    lhs, rhs = node.operands
    wide = accumulator_type(lhs.type.element, rhs.type.element, node.type.element)
    spatial = node.dims("kernel_spatial_dimensions")
    sizes = [rhs.shape[d] for d in spatial]
    channels = rhs.shape[node.integer("kernel_input_feature_dimension")]
    batch = index[node.integer("output_batch_dimension")]
    feature = index[node.integer("output_feature_dimension")]
    position = [index[d] for d in node.dims("output_spatial_dimensions")]
    group = _group_offset(node, feature, channels)
    start = _batch_group_offset(node, batch, feature)
    start_value = build.constant(wide, 0)
    if lhs.type.size == 0:
        return arithmetic.convert(wide, node.type.element, start_value)
    reversal = node.dims("window_reversal")

    def body(loop: list[Index], values: list[ir.Value]) -> list[ir.Value]:
        *window, channel = loop
        at, conditions = window_position(
            position,
            window,
            node.dims("window_strides"),
            node.dims("rhs_dilation"),
            node.dims("padding_low"),
            node.dims("lhs_dilation"),
            [lhs.shape[d] for d in node.dims("input_spatial_dimensions")],
            sizes,
            [node.shape[d] for d in node.dims("output_spatial_dimensions")],
        )
        tap = [
            build.sub(size - 1, w) if flip else w
            for w, size, flip in zip(window, sizes, reversal, strict=True)
        ]
        lhs_index = _place(len(lhs.shape), (node.dims("input_spatial_dimensions"), at))
        lhs_index[node.integer("input_batch_dimension")] = start
        lhs_index[node.integer("input_feature_dimension")] = build.add(group, channel)
        rhs_index = _place(len(rhs.shape), (spatial, tap))
        rhs_index[node.integer("kernel_input_feature_dimension")] = channel
        rhs_index[node.integer("kernel_output_feature_dimension")] = feature
        a = arithmetic.convert(lhs.type.element, wide, e.value(lhs, lhs_index))
        b = arithmetic.convert(rhs.type.element, wide, e.value(rhs, rhs_index))
        total = multiply_add(wide, values[0], a, b)
        for condition in conditions:
            total = arithmetic.select(condition, total, values[0])
        return [total]

    total = loop_nest(e, [*sizes, channels], [start_value], body)[0]
    return arithmetic.convert(wide, node.type.element, total)


def _group_offset(node: Node, feature: Index, channels: int) -> Index:
    """First input channel that output ``feature`` reads (``feature_group_count`` groups)."""
    groups = node.integer("feature_group_count")
    if groups == 1:
        return 0
    per_group = node.shape[node.integer("output_feature_dimension")] // groups
    return build.mul(build.div(feature, per_group), channels)


def _batch_group_offset(node: Node, batch: Index, feature: Index) -> Index:
    """Input batch of output ``batch`` (``batch_group_count`` groups)."""
    groups = node.integer("batch_group_count")
    if groups == 1:
        return batch
    per_group = node.shape[node.integer("output_feature_dimension")] // groups
    size = node.shape[node.integer("output_batch_dimension")]
    return build.add(build.mul(build.div(feature, per_group), size), batch)


def _map(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    count = node.integer("num_inputs")
    arguments = [e.value(x, index) for x in node.operands[:count]]
    return e.call(node.symbol("to_apply"), arguments, node.operands[count:])[0]


def _call(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    graph = e.functions[node.symbol("callee")]
    inner = Elemental(graph, [e.source_of(x) for x in node.operands], e.functions, e.fastmath)
    return inner.value(graph.results[node.result], index)


RULES.update(
    {
        "reduce": _reduce,
        "reduce_window": _reduce_window,
        "dot_general": _dot_general,
        "convolution": _convolution,
        "map": _map,
        "func.call": _call,
    }
)
