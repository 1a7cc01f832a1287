# SPDX-License-Identifier: Apache-2.0
"""The elemental emitter: the scalar that a computation's value holds at one index.

``Elemental(graph, sources, functions).value(node, index)`` emits, at the current insertion point, whatever computes the
element of ``node`` at ``index``: loads from the sources for parameters, and for an operation the rule in :data:`RULES`
applied to its operands' elements. It is the one place that gives HLO operations their meaning; the loop, row, column
and other emitters only decide in which order elements are computed and where they are kept.

Values already emitted are reused while the insertion point stays inside the region they were emitted in:
:meth:`Elemental.scope` opens a region (a loop body, a branch) whose values are forgotten at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.elemental import (
    arithmetic,
    complex_arithmetic,
    cubics,
    magnitudes,
    ranges,
)
from gristmill.compiler.emitters.math import NONPOSITIVE_EXPONENTIAL, emit_logistic_of_cubic
from gristmill.compiler.graph import Graph, Node, is_uniform
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ElementType

#: Where a parameter's elements come from: called with an index, returns the element in register form.
Source = Callable[[Sequence[Index]], ir.Value]

Rule = Callable[["Elemental", Node, tuple[Index, ...]], ir.Value]

#: Operation kind to the function that emits one element of its result.
RULES: dict[str, Rule] = {}


def buffer_source(buffer: ir.Value, element: ElementType) -> Source:
    """Elements of a memref."""
    return lambda index: build.load(buffer, index, element)


def scalar_source(value: ir.Value) -> Source:
    """The same value at every index (a rank-0 parameter held in a register)."""
    return lambda index: value


class Elemental:
    """Emits elements of one computation's values; see the module docstring.

    Args:
        graph: the computation.
        sources: one :data:`Source` per parameter.
        functions: graphs of every function the computation refers to, by name.
        fastmath: flags put on floating-point ``add`` and ``multiply`` (for bodies of reductions, whose order
            StableHLO leaves open).
    """

    def __init__(
        self,
        graph: Graph,
        sources: Sequence[Source],
        functions: Mapping[str, Graph],
        fastmath: Any = None,
    ):
        self.graph = graph
        self.functions = functions
        self.fastmath = fastmath
        self.sources = list(sources)
        self._bindings: dict[Node, Source] = {}
        self._memo: list[dict[tuple[Node, tuple[Index, ...]], ir.Value]] = [{}]

    def bind(self, node: Node, source: Source) -> None:
        """Take ``node``'s elements from ``source`` from now on instead of computing them."""
        self._bindings[node] = source

    def is_bound(self, node: Node) -> bool:
        """Whether ``node``'s elements come from a source that :meth:`bind` or :meth:`bound` has given it."""
        return node in self._bindings

    @contextmanager
    def bound(self, sources: Mapping[Node, Source]) -> Generator[None]:
        """As :meth:`bind` for each of ``sources``, inside the ``with`` only, which is a scope too."""
        before = dict(self._bindings)
        self._bindings.update(sources)
        with self.scope():
            yield
        self._bindings = before

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget, at the end of the ``with``, the values emitted inside it."""
        self._memo.append({})
        try:
            yield
        finally:
            self._memo.pop()

    def value(self, node: Node, index: Sequence[Index]) -> ir.Value:
        """Emit the element of ``node`` at ``index`` (one component per dimension)."""
        at = tuple(index)
        known = self._known(node, at)
        if known is not None:
            return known
        for needed in self._elementwise_chain(node, at):
            self._memo[-1][needed, at] = self._emit(needed, at)
        return self._memo[-1][node, at]

    def _known(self, node: Node, index: tuple[Index, ...]) -> ir.Value | None:
        for layer in reversed(self._memo):
            if (node, index) in layer:
                return layer[node, index]
        return None

    def _elementwise_chain(self, node: Node, index: tuple[Index, ...]) -> list[Node]:
        """``node`` and what it needs at the same index through elementwise operations, operands first.

        Emitting in this order instead of recursively keeps long chains (hundreds of operations) off the Python stack.
        """
        chain: set[Node] = {node}
        stack = [node]
        while stack:
            current = stack.pop()
            if current in self._bindings or current.kind not in ELEMENTWISE:
                continue
            for operand in current.operands:
                same = operand.type.shape == current.type.shape
                if same and operand not in chain and self._known(operand, index) is None:
                    chain.add(operand)
                    stack.append(operand)
        return sorted(chain, key=lambda n: n.order)

    def remember(self, node: Node, index: tuple[Index, ...], value: ir.Value) -> None:
        """Record that ``value`` is the element of ``node`` at ``index`` in the current scope."""
        self._memo[-1][node, index] = value

    def _emit(self, node: Node, index: tuple[Index, ...]) -> ir.Value:
        source = self._bindings.get(node)
        if source is not None:
            return source(index)
        if node.kind == "parameter":
            return self.sources[node.result](index)
        rule = RULES.get(node.kind)
        if rule is None:
            raise UnsupportedError(
                f"no elemental rule for {node.kind}; add one under compiler/emitters/elemental",
                op=node.kind,
                location=node.location,
            )
        return rule(self, node, index)

    def call(
        self,
        function: str,
        arguments: Sequence[ir.Value],
        captures: Sequence[Node] = (),
        fastmath: Any = None,
    ) -> list[ir.Value]:
        """Emit a scalar computation inline: rank-0 ``arguments``, then captured values of this computation."""
        graph = self.functions[function]
        sources = [scalar_source(argument) for argument in arguments]
        sources += [self.source_of(capture) for capture in captures]
        inner = Elemental(graph, sources, self.functions, fastmath)
        return [inner.value(result, ()) for result in graph.results]

    def source_of(self, node: Node) -> Source:
        """``node`` as a :data:`Source`, for passing values into nested computations."""
        return lambda index: self.value(node, index)

    def index_of(self, node: Node) -> ir.Value:
        """A rank-0 integer value as an ``index`` (signed or unsigned by its type)."""
        return to_index(node.type.element, self.value(node, ()))


def to_index(element: ElementType, value: ir.Value) -> ir.Value:
    """An integer register value as ``index``."""
    cast = arith.IndexCastUIOp if element.is_unsigned else arith.IndexCastOp
    return cast(ir.IndexType.get(), value).result


def from_index(element: ElementType, index: Index) -> ir.Value:
    """An ``index`` converted to any real element type."""
    if isinstance(index, int):
        return build.constant(element, index)
    if element.is_float or element.kind == "complex":
        # 32-bit integers convert to floats in one vector instruction; 64-bit ones do not before AVX-512.
        wide = ir.IntegerType.get_signless(32)
        source = arithmetic.element_type("i32")
        value = arith.IndexCastOp(wide, index).result
        return arithmetic.convert(source, element, value)
    return arith.IndexCastOp(build.register_type(element), index).result


def _elementwise_index(operand: Node, node: Node, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """Rank-0 operands of ``select`` and ``clamp`` are read at ``()``."""
    return () if not operand.shape and node.shape else index


def _binary(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    lhs, rhs = (e.value(operand, index) for operand in node.operands)
    fastmath = e.fastmath if node.kind in ("add", "multiply") else None
    return arithmetic.binary(node.kind, node.type.element, lhs, rhs, fastmath)


def _unary(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    return arithmetic.unary(node.kind, operand.type.element, e.value(operand, index))


def _exponential(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    below = ranges.never_positive(operand, e.functions)
    kind = NONPOSITIVE_EXPONENTIAL if below else node.kind
    return arithmetic.unary(kind, operand.type.element, e.value(operand, index))


def _logistic(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    cubic = cubics.find(node.operands[0], e.is_bound)
    if cubic is None:
        return _unary(e, node, index)
    return emit_logistic_of_cubic(e.value(cubic.variable, index), cubic.linear, cubic.cubic)


def _complex(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    real, imaginary = (e.value(operand, index) for operand in node.operands)
    return complex_arithmetic.create(real, imaginary)


def _compare(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    bound = magnitudes.find(node, e.is_bound)
    if bound is not None:
        number = e.value(bound.number, index)
        return complex_arithmetic.within(number, bound.square, inclusive=bound.inclusive)
    lhs, rhs = (e.value(operand, index) for operand in node.operands)
    element = node.operands[0].type.element
    return arithmetic.compare(node.string("direction"), node.string("type"), element, lhs, rhs)


def _select(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    values = [e.value(x, _elementwise_index(x, node, index)) for x in node.operands]
    return arithmetic.select(*values)


def _clamp(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    low, value, high = (e.value(x, _elementwise_index(x, node, index)) for x in node.operands)
    return arithmetic.clamp(node.type.element, low, value, high)


def _convert(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    return arithmetic.convert(operand.type.element, node.type.element, e.value(operand, index))


def _is_finite(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    operand = node.operands[0]
    return arithmetic.is_finite(operand.type.element, e.value(operand, index))


def _reduce_precision(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return arithmetic.reduce_precision(
        node.type.element,
        e.value(node.operands[0], index),
        node.integer("exponent_bits"),
        node.integer("mantissa_bits"),
    )


def _identity(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    return e.value(node.operands[node.result], index)


def _constant(e: Elemental, node: Node, index: tuple[Index, ...]) -> ir.Value:
    data = node.constant
    if data is not None and is_uniform(data):
        return build.constant(node.type.element, data.flat[0])
    raise UnsupportedError(
        "a constant that is not a splat must be a kernel argument", op="constant"
    )


_UNARY = (
    "abs cbrt ceil cosine count_leading_zeros exponential exponential_minus_one floor log log_plus_one logistic "
    "negate not popcnt round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh erf erfc real imag"
).split()
_BINARY = (
    "add multiply maximum minimum and or xor subtract divide power remainder atan2 shift_left "
    "shift_right_logical shift_right_arithmetic"
).split()

#: Operations whose operands of the result's shape are all read at the result's index.
ELEMENTWISE = frozenset(
    [*_UNARY, *_BINARY, *"compare select clamp convert is_finite reduce_precision".split()]
)

RULES.update(dict.fromkeys(_UNARY, _unary))
RULES.update(dict.fromkeys(_BINARY, _binary))
RULES.update(
    {
        "compare": _compare,
        "exponential": _exponential,
        "complex": _complex,
        "select": _select,
        "clamp": _clamp,
        "convert": _convert,
        "is_finite": _is_finite,
        "logistic": _logistic,
        "reduce_precision": _reduce_precision,
        "optimization_barrier": _identity,
        "constant": _constant,
    }
)
