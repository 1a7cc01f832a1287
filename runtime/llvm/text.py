# SPDX-License-Identifier: Apache-2.0
"""Text of LLVM functions written by Python: values, structured control flow, no phi nodes.

``O2`` turns the variables into registers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager


class FunctionText:
    """Writes the body of one function. Numbers are 64-bit integers; offsets count bytes."""

    def __init__(self) -> None:
        self.variables: list[str] = []
        self.body: list[str] = []
        self._count = 0

    def name(self) -> str:
        """A name not used before."""
        self._count += 1
        return f"%v{self._count}"

    def value(self, code: str) -> str:
        """The result of an instruction."""
        result = self.name()
        self.body.append(f"{result} = {code}")
        return result

    def add(self, a: str, b: str) -> str:
        """Sum."""
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """Difference."""
        return self.value(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        """Product."""
        return self.value(f"mul i64 {a}, {b}")

    def divide(self, a: str, b: str) -> str:
        """Quotient of numbers that are not negative."""
        return self.value(f"udiv i64 {a}, {b}")

    def minimum(self, a: str, b: str) -> str:
        """The less of two signed numbers."""
        return self.value(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def maximum(self, a: str, b: str) -> str:
        """The greater of two signed numbers."""
        return self.value(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def fetch_add(self, address: str, value: str) -> str:
        """Add to a number that threads share, and order other accesses around; what it was before."""
        return self.value(f"atomicrmw add ptr {address}, i64 {value} seq_cst, align 8")

    def test(self, predicate: str, a: str, b: str) -> str:
        """A comparison, ``slt`` for example."""
        return self.value(f"icmp {predicate} i64 {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """One of two numbers."""
        return self.value(f"select i1 {condition}, i64 {a}, i64 {b}")

    def load(self, kind: str, address: str, align: int) -> str:
        """What is in memory."""
        return self.value(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: str, address: str, align: int = 1, flags: str = "") -> None:
        """Put a value into memory."""
        self.body.append(f"store {kind} {value}, ptr {address}, align {align}{flags}")

    def copy(self, target: str, source: str, nbytes: str) -> None:
        """Copy bytes that do not overlap."""
        self.body.append(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)"
        )

    def prefetch(self, address: str) -> None:
        """Towards the second-level cache; any address will do."""
        self.body.append(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 2, i32 1)")

    def shuffle(self, vector: str, a: str, b: str, mask: Sequence[int]) -> str:
        """A vector of picked elements of two; those of ``b`` follow those of ``a``."""
        picks = ", ".join(f"i32 {n}" for n in mask)
        return self.value(
            f"shufflevector {vector} {a}, {vector} {b}, <{len(mask)} x i32> <{picks}>"
        )

    def at(self, base: str, offset: str) -> str:
        """An address further on."""
        return self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def buffer(self, nbytes: int, align: int) -> str:
        """Address of memory that the function has to itself."""
        place = self.name()
        self.variables.append(f"{place} = alloca [{nbytes} x i8], align {align}")
        return place

    def variable(self, kind: str, value: str) -> str:
        """Address of a variable that holds ``value`` now."""
        place = self.name()
        self.variables.append(f"{place} = alloca {kind}")
        self.store(kind, value, place, 8)
        return place

    @contextmanager
    def loop(self, start: str, stop: str, step: int = 1) -> Generator[str]:
        """``for i in range(start, stop, step)``; yields ``i``."""
        place = self.variable("i64", start)
        label = self.name()[1:]
        self.body += [f"br label %{label}.test", f"{label}.test:"]
        index = self.load("i64", place, 8)
        more = self.test("slt", index, stop)
        self.body += [f"br i1 {more}, label %{label}.body, label %{label}.end", f"{label}.body:"]
        yield index
        self.store("i64", self.add(index, str(step)), place, 8)
        self.body += [f"br label %{label}.test", f"{label}.end:"]

    @contextmanager
    def repeat(self) -> Generator[Callable[[str], None]]:
        """``while True``; what is yielded leaves the loop if its condition holds."""
        label = self.name()[1:]
        self.body += [f"br label %{label}.body", f"{label}.body:"]

        def leave(condition: str) -> None:
            stay = self.name()[1:]
            self.body += [f"br i1 {condition}, label %{label}.end, label %{stay}", f"{stay}:"]

        yield leave
        self.body += [f"br label %{label}.body", f"{label}.end:"]

    @contextmanager
    def branch(self, condition: str) -> Generator[Callable[[], None]]:
        """``if condition``; what is yielded begins its ``else``."""
        label = self.name()[1:]
        has_else = False
        self.body += [
            f"br i1 {condition}, label %{label}.then, label %{label}.else",
            f"{label}.then:",
        ]

        def otherwise() -> None:
            nonlocal has_else
            has_else = True
            self.body += [f"br label %{label}.end", f"{label}.else:"]

        yield otherwise
        if not has_else:
            otherwise()
        self.body += [f"br label %{label}.end", f"{label}.end:"]
