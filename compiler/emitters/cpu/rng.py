# SPDX-License-Identifier: Apache-2.0
"""Random bits: the ThreeFry-2x32 and Philox-4x32 counter generators, bit for bit as XLA computes them.

Both are pure functions of a key (``state[0]``) and a counter; the new state has the counter advanced. The
generators are those of J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011; the rest follows XLA:

* ThreeFry counts from ``state[1]``. 64-bit elements take one counter each, first word low. Narrower elements come in
  pairs: the two words of a counter are neighbours along one dimension, the first even one (else the longest).
* Philox counts from the 128-bit ``state[2] : state[1]`` (``state[0] : state[1]`` when there is no third word); its
  four words are consecutive elements, or the halves of two.
* Elements narrower than 32 bits are the low bits of a 32-bit word each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from gristmill.compiler.emitters import build
from gristmill.compiler.emitters.build import Index
from gristmill.compiler.emitters.cpu.frame import (
    FusionSource,
    KernelFrame,
    PhaseFrame,
    worth_splitting,
)
from gristmill.compiler.emitters.kernel import KernelDefinition
from gristmill.compiler.graph import Node
from gristmill.errors import UnsupportedError
from gristmill.runtime.types import ArrayType, ElementType, element_type

_I32, _I64 = element_type("i32"), element_type("i64")
#: Counters that one task computes, roughly.
_CHUNK = 4096

Words = tuple[ir.Value, ...]
WordsAt = Callable[[Index], list[ir.Value]]


def _c32(value: int) -> ir.Value:
    return build.constant(_I32, value)


def _c64(value: int) -> ir.Value:
    return build.constant(_I64, value)


def _add(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.AddIOp(a, b).result


def _xor(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.XOrIOp(a, b).result


def _low(value: ir.Value) -> ir.Value:
    return arith.TruncIOp(build.register_type(_I32), value).result


def _high(value: ir.Value) -> ir.Value:
    return _low(arith.ShRUIOp(value, _c64(32)).result)


def _wide(value: ir.Value) -> ir.Value:
    return arith.ExtUIOp(build.register_type(_I64), value).result


def join(low: ir.Value, high: ir.Value) -> ir.Value:
    """Two 32-bit words as one of 64 bits."""
    return arith.OrIOp(_wide(low), arith.ShLIOp(_wide(high), _c64(32)).result).result


def _rotate(value: ir.Value, by: int) -> ir.Value:
    left = arith.ShLIOp(value, _c32(by)).result
    return arith.OrIOp(left, arith.ShRUIOp(value, _c32(32 - by)).result).result


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: ir.Value, counter: ir.Value) -> Words:
    """ThreeFry-2x32 with 20 rounds: two 32-bit words of a 64-bit key and counter."""
    k0, k1 = _low(key), _high(key)
    keys = (k0, k1, _xor(_xor(k0, k1), _c32(0x1BD11BDA)))
    x0, x1 = _add(_low(counter), k0), _add(_high(counter), k1)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = _add(x0, x1)
            x1 = _xor(_rotate(x1, rotation), x0)
        x0 = _add(x0, keys[(group + 1) % 3])
        x1 = _add(_add(x1, keys[(group + 2) % 3]), _c32(group + 1))
    return x0, x1


def philox(key: ir.Value, counter: Words) -> Words:
    """Philox-4x32 with 10 rounds: four 32-bit words of a 64-bit key and a counter of two 64-bit words, low first."""
    k0, k1 = _low(key), _high(key)
    a, b, c, d = (half(word) for word in counter for half in (_low, _high))
    for _ in range(10):
        first = arith.MulIOp(_wide(a), _c64(0xD2511F53)).result
        second = arith.MulIOp(_wide(c), _c64(0xCD9E8D57)).result
        a, b = _xor(_xor(_high(second), b), k0), _low(second)
        c, d = _xor(_xor(_high(first), d), k1), _low(first)
        k0, k1 = _add(k0, _c32(0x9E3779B9)), _add(k1, _c32(0xBB67AE85))
    return a, b, c, d


@dataclass(frozen=True)
class Pairs:
    """How pairs of words lie in an array: ``outer`` blocks of ``extent`` rows of ``inner`` elements, words of one
    counter in neighbouring rows."""

    outer: int
    extent: int
    inner: int

    @staticmethod
    def of(shape: Sequence[int]) -> Pairs:
        """XLA's choice for ``shape``: the first even dimension, else the longest."""
        dims = list(shape) or [1]
        even = [d for d, size in enumerate(dims) if size % 2 == 0]
        split = even[0] if even else dims.index(max(dims))
        return Pairs(math.prod(dims[:split]), dims[split], math.prod(dims[split + 1 :]))

    @property
    def rows(self) -> int:
        """Rows of counters."""
        return self.outer * -(-self.extent // 2)


class RngBitGeneratorEmitter:
    """Compiles one ``rng_bit_generator``; a task computes roughly ``chunk`` counters, and one if that is 1."""

    def __init__(self, source: FusionSource, chunk: int = _CHUNK):
        self.source, self.chunk = source, chunk
        self.node: Node = source.graph.results[0]
        self.state = self.node.operands[0]
        self.bits: ArrayType = self.node.siblings[1].type
        algorithm = self.node.string("rng_algorithm")
        words = self.state.type.size
        if self.state.type.element.name != "ui64" or words not in (2, 3):
            raise UnsupportedError(
                f"a state of {self.state.type}; give tensor<2xui64> (or 3xui64 for PHILOX)",
                op="rng_bit_generator",
                location=self.node.location,
            )
        # XLA's default on CPUs is Philox.
        self.is_philox = algorithm != "THREE_FRY"

    def emit(self) -> KernelDefinition:
        """Emit the kernel."""
        frame = KernelFrame(self.source)
        tasks, counters = self._tasks()

        def body(phase: PhaseFrame) -> None:
            key, counter = self._key_and_counter(phase)
            with build.if_then(build.equal(phase.begin, 0)):
                self._put_state(phase, key, counter, counters)
            if self.bits.size and self._result(1) is not None:
                self._put_bits(phase, key, counter)

        frame.phase(body, max(1, tasks), worth_splitting(self.bits.size, 20))
        return frame.finish("rng_bit_generator", counters * 100)

    def _result(self, which: int) -> int | None:
        """The kernel's number of result ``which`` of the op, if anything reads it."""
        for number, root in enumerate(self.source.graph.results):
            if root.result == which:
                return number
        return None

    def _tasks(self) -> tuple[int, int]:
        """``(tasks, counters)``."""
        size, wide = self.bits.size, self.bits.element.bits == 64
        if self.is_philox:
            counters = -(-size // (2 if wide else 4))
        elif wide:
            counters = size
        else:
            pairs = Pairs.of(self.bits.shape)
            counters = pairs.rows * pairs.inner
            tasks = counters if self.chunk == 1 else -(-pairs.rows // self._rows_of(pairs))
            return tasks, counters
        return -(-counters // self.chunk), counters

    def _rows_of(self, pairs: Pairs) -> int:
        """Rows of counters that one task computes."""
        return max(1, self.chunk // max(1, pairs.inner))

    def _key_and_counter(self, phase: PhaseFrame) -> tuple[ir.Value, Words]:
        words = [phase.elemental.value(self.state, [i]) for i in range(self.state.type.size)]
        if not self.is_philox:
            return words[0], (words[1],)
        return words[0], (words[1], words[2] if len(words) > 2 else words[0])

    def _advanced(self, counter: Words, by: ir.Value) -> Words:
        low = _add(counter[0], by)
        if len(counter) == 1:
            return (low,)
        carry = arith.CmpIOp(arith.CmpIPredicate.ult, low, counter[0]).result
        return low, _add(counter[1], arith.ExtUIOp(build.register_type(_I64), carry).result)

    def _put_state(self, phase: PhaseFrame, key: ir.Value, counter: Words, counters: int) -> None:
        number = self._result(0)
        if number is None:
            return
        words = [key, *self._advanced(counter, _c64(counters))]
        words += (
            [phase.elemental.value(self.state, [2])] if self.state.type.size > len(words) else []
        )
        for i in range(self.state.type.size):
            phase.store(number, words[i], [i], self.state.type)

    def _put_bits(self, phase: PhaseFrame, key: ir.Value, counter: Words) -> None:
        number = self._result(1)
        assert number is not None, "asked for only where it is read"
        sink = _Sink(build.flatten(phase.results[number]), self.bits.element)
        wide = self.bits.element.bits == 64

        def words(at: Index) -> list[ir.Value]:
            by = arith.IndexCastOp(build.register_type(_I64), build.index_value(at)).result
            if self.is_philox:
                results = philox(key, self._advanced(counter, by))
            else:
                results = threefry(key, _add(counter[0], by))
            pairs = range(0, len(results), 2)
            return [join(results[i], results[i + 1]) for i in pairs] if wide else list(results)

        if self.is_philox or wide:
            self._put_consecutive(phase, sink, words, (4 if self.is_philox else 2) // (1 + wide))
        else:
            self._put_pairs(phase, sink, words)

    def _put_consecutive(
        self, phase: PhaseFrame, sink: _Sink, words: WordsAt, per_counter: int
    ) -> None:
        size = self.bits.size
        whole = size // per_counter

        def step(at: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            for i, word in enumerate(words(at)):
                sink.put(word, build.add(build.mul(at, per_counter), i))
            return []

        low, high = build.mul(phase.begin, self.chunk), build.mul(phase.end, self.chunk)
        build.for_loop(low, build.minimum(high, whole), step)
        rest = size - whole * per_counter
        if rest:
            with build.if_then(build.less(whole, high)), build.if_then(build.at_least(whole, low)):
                for i, word in enumerate(words(whole)[:rest]):
                    sink.put(word, whole * per_counter + i)

    def _put_pairs(self, phase: PhaseFrame, sink: _Sink, words: WordsAt) -> None:
        pairs = Pairs.of(self.bits.shape)
        half, inner = -(-pairs.extent // 2), pairs.inner
        chunk = self._rows_of(pairs)

        def put(row: Index, column: Index, is_last: bool) -> None:
            block, offset = (
                (0, row) if pairs.outer == 1 else (build.div(row, half), build.mod(row, half))
            )
            first, second = words(build.add(build.mul(row, inner), column))
            start = build.add(build.mul(block, pairs.extent), build.mul(offset, 2))
            at = build.add(build.mul(start, inner), column)
            sink.put(first, at)
            if is_last:
                return
            if pairs.extent % 2 == 0 or pairs.outer == 1:
                sink.put(second, build.add(at, inner))
            else:
                with build.if_then(build.less(offset, half - 1)):
                    sink.put(second, build.add(at, inner))

        def whole_row(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            put_row(row, False)
            return []

        def put_row(row: Index, is_last: bool) -> None:
            def element(column: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                put(row, column, is_last)
                return []

            if inner == 1:
                put(row, 0, is_last)
            else:
                build.for_loop(0, inner, element)

        def lonely_counter(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            put(last, build.sub(number, last * inner), True)
            return []

        def counter(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            put(build.div(number, inner), build.mod(number, inner), False)
            return []

        lonely = pairs.outer == 1 and pairs.extent % 2 == 1
        last = pairs.rows - 1 if lonely else pairs.rows
        if self.chunk == 1:
            build.for_loop(phase.begin, build.minimum(phase.end, last * inner), counter)
            if lonely:
                first = build.maximum(phase.begin, last * inner)
                build.for_loop(first, phase.end, lonely_counter)
            return
        low, high = build.mul(phase.begin, chunk), build.mul(phase.end, chunk)
        build.for_loop(low, build.minimum(high, last), whole_row)
        if lonely:  # the last row has no partner
            with build.if_then(build.less(last, high)), build.if_then(build.at_least(last, low)):
                put_row(last, True)


@dataclass(frozen=True)
class _Sink:
    """Where words go: a flat buffer of integers or floats, which take the low bits."""

    buffer: ir.Value
    element: ElementType

    def put(self, word: ir.Value, at: Index) -> None:
        """Store one word at linear position ``at``."""
        bits = self.element.bits
        if bits < 32:
            word = arith.TruncIOp(ir.IntegerType.get_signless(bits), word).result
        if self.element.is_float:
            word = arith.BitcastOp(build.register_type(self.element), word).result
        build.store(word, self.buffer, [at], self.element)
