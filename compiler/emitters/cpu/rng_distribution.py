# SPDX-License-Identifier: Apache-2.0
"""``rng``: numbers of a distribution, different on every execution.

StableHLO leaves the generator open. Element ``i`` is made of the ThreeFry words of counter ``i`` under a key that every
thread takes from the processor's cycle counter. Uniform numbers are in ``[a, b)``; normal ones (mean ``a``, deviation
``b``) come from the Box-Muller transform.
"""

from __future__ import annotations

import math

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.cpu.rng import Words, join, threefry
from gristmill.compiler.emitters.elemental import arithmetic
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ElementType, element_type

_F64, _I64 = element_type("f64"), element_type("i64")
_CHUNK = 4096


class RngEmitter:
    """Compiles one ``rng``; a task computes ``chunk`` elements."""

    def __init__(self, source: FusionSource, chunk: int = _CHUNK):
        self.source, self.chunk = source, chunk
        self.node: Node = source.graph.results[0]
        self.element: ElementType = self.node.type.element
        self.is_normal = self.node.string("rng_distribution") == "NORMAL"
        if self.element.kind == "complex" or (self.is_normal and not self.element.is_float):
            raise UnsupportedError(
                f"random numbers of type {self.element.name}; draw real ones and convert",
                op="rng",
                location=self.node.location,
            )

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source)
        size = self.node.type.size
        tasks = max(1, -(-size // self.chunk))
        frame.phase(self._chunks, tasks, worth_splitting(size, 100))
        return frame.finish("rng", size * 100)

    def _chunks(self, phase: PhaseFrame) -> None:
        wide = build.register_type(_I64)
        key = _cycle_counter()
        e = phase.elemental
        low, high = (e.value(x, ()) for x in self.node.operands[:2])
        target = build.flatten(phase.results[0])

        def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            words = threefry(key, arith.IndexCastOp(wide, at).result)
            value = self._number(words, low, high)
            build.store(value, target, [at], self.element)
            return []

        begin = build.mul(phase.begin, self.chunk)
        end = build.minimum(build.mul(phase.end, self.chunk), self.node.type.size)
        build.for_loop(begin, end, step)

    def _number(self, words: Words, a: ir.Value, b: ir.Value) -> ir.Value:
        if not self.element.is_float:
            return self._integer(words, a, b)
        wide = _F64 if self.element.bits > 32 else arithmetic.F32
        low = arithmetic.convert(self.element, wide, a)
        high = arithmetic.convert(self.element, wide, b)
        if self.is_normal:
            value = _add(low, _mul(high, self._standard_normal(words, wide)))
            return arithmetic.convert(wide, self.element, value)
        span = arith.SubFOp(high, low).result
        value = _add(low, _mul(span, _fraction(words, wide)))
        rounded = arithmetic.convert(wide, self.element, value)
        # Rounding may reach the end, which is outside.
        inside = arithmetic.compare("LT", "FLOAT", self.element, rounded, b)
        return arithmetic.select(inside, rounded, a)

    def _standard_normal(self, words: Words, wide: ElementType) -> ir.Value:
        # 1 - u is never 0; the two factors take different words.
        one = build.constant(wide, 1.0)
        radius = arithmetic.unary(
            "log", wide, arith.SubFOp(one, _fraction(words, arithmetic.F32, wide)).result
        )
        radius = arithmetic.unary("sqrt", wide, _mul(build.constant(wide, -2.0), radius))
        angle = _mul(
            build.constant(wide, 2 * math.pi), _fraction(words[::-1], arithmetic.F32, wide)
        )
        return _mul(radius, arithmetic.unary("cosine", wide, angle))

    def _integer(self, words: Words, a: ir.Value, b: ir.Value) -> ir.Value:
        """``a`` plus a number below ``b - a``; ``a`` where that is not positive."""
        wide = build.register_type(_I64)
        kind = build.register_type(self.element)
        span = arith.SubIOp(b, a).result
        if self.element.bits < 64:
            span = arith.ExtUIOp(wide, span).result
        zero = build.constant(_I64, 0)
        is_empty = arith.CmpIOp(arith.CmpIPredicate.eq, span, zero).result
        divisor = arithmetic.select(is_empty, build.constant(_I64, 1), span)
        offset = arith.RemUIOp(join(words[0], words[1]), divisor).result
        if self.element.bits < 64:
            offset = arith.TruncIOp(kind, offset).result
        return arith.AddIOp(a, offset).result


def _cycle_counter() -> ir.Value:
    """The processor's cycle counter, 64 bits."""
    none = ir.DenseI32ArrayAttr.get([])
    attributes: dict[str, ir.Attribute] = {
        "intrin": ir.StringAttr.get("llvm.readcyclecounter"),
        "op_bundle_sizes": none,
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0]),
    }
    results: list[ir.Type] = [build.register_type(_I64)]
    return ir.Operation.create(
        "llvm.call_intrinsic", results=results, operands=[], attributes=attributes
    ).result


def _add(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.AddFOp(a, b).result


def _mul(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.MulFOp(a, b).result


def _fraction(words: Words, source: ElementType, target: ElementType | None = None) -> ir.Value:
    """A number in ``[0, 1)``: 24 bits of the first word for ``f32``, 53 bits of both for ``f64``; as ``target``."""
    target = target or source
    kind = build.register_type(target)
    if source.bits == 32:
        shift = build.constant(element_type("i32"), 8)
        bits = arith.ShRUIOp(words[0], shift).result
        scale = 2.0**-24
    else:
        bits = arith.ShRUIOp(join(words[0], words[1]), build.constant(_I64, 11)).result
        scale = 2.0**-53
    return _mul(arith.UIToFPOp(kind, bits).result, build.constant(target, scale))
