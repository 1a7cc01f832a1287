# SPDX-License-Identifier: Apache-2.0
"""Random programs keep their results, bit for bit, through the simplifying passes.

The StableHLO reference interpreter gives the expected values; the transformed module is interpreted with the
evaluators that ``test_passes_evaluate`` checks against it, so a wrong rewrite shows as a different result.
"""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import interpreter
import numpy as np
import pytest
from mlir import ir

from gristmill.compiler.frontends import load_text
from gristmill.compiler.module import HloModule, constant_value
from gristmill.compiler.passes.evaluate import evaluate
from gristmill.compiler.passes.pipeline import Pipeline, RunOptions
from gristmill.compiler.passes.rewriting import Rewriter
from gristmill.dialects import hlo
from gristmill.dialects.types import Tensor

Array = np.ndarray[Any, Any]

PASSES = (
    "inline-calls,canonicalize-hlo,fold-constants,canonicalize-hlo{remove-barriers=true},cse-hlo,"
    "simplify-loops,dce-hlo"
)
SHAPES = [(), (3,), (1, 3), (2, 3), (3, 2), (2, 1, 3), (6,)]


class _Program:
    """A random StableHLO program on small integers, exact in f32 whatever the order of operations."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, tuple[int, ...], str]] = []
        self.arguments: list[Array] = []
        for index, (shape, element) in enumerate(
            [((2, 3), "i32"), ((3,), "i32"), ((2, 3), "f32"), ((3, 2), "f32")]
        ):
            rng = np.random.default_rng(seed * 10 + index)
            dtype = np.int32 if element == "i32" else np.float32
            self.arguments.append(rng.integers(-4, 5, shape).astype(dtype))
            self.values.append((f"%x{index}", shape, element))
        self.varying = {name for name, _, _ in self.values}  # depends on an argument
        self.used: set[str] = set()
        self.header = ", ".join(f"{name}: {_type(shape, e)}" for name, shape, e in self.values)
        for value in ("0", "1", "2", "-1"):
            for element in ("i32", "f32"):
                shape = self.random.choice(SHAPES)
                number = value if element == "i32" else f"{value}.0"
                self.emit(
                    f"stablehlo.constant dense<{number}> : {_type(shape, element)}", shape, element
                )
        for _ in range(30):
            self.step()
        results = [v for v in self.values if v[0] in self.varying and v[0] not in self.used]
        kinds = ", ".join(_type(shape, e) for _, shape, e in results)
        body = "\n  ".join(self.lines)
        names = ", ".join(name for name, _, _ in results)
        self.text = f"func.func @main({self.header}) -> ({kinds}) {{\n  {body}\n  return {names} : {kinds}\n}}"

    def emit(self, op: str, shape: tuple[int, ...], element: str) -> None:
        name = f"%v{len(self.lines)}"
        operands = re.findall(r"%\w+", op)
        self.used.update(operands)
        if self.varying & set(operands):
            self.varying.add(name)
        self.lines.append(f"{name} = {op}")
        self.values.append((name, shape, element))

    def step(self) -> None:
        varying = [value for value in self.values if value[0] in self.varying]
        name, shape, element = self.random.choice(
            varying if self.random.random() < 0.8 else self.values
        )
        kind = _type(shape, element)
        same = [v for v, s, e in self.values if s == shape and e == element]
        other = self.random.choice(same)
        choice = self.random.randrange(12)
        rank = len(shape)
        if choice in (0, 1, 2):
            integers = ["maximum", "minimum", "and", "or", "multiply"] if element == "i32" else []
            op = self.random.choice(["add", "subtract", *integers])
            self.emit(f"stablehlo.{op} {name}, {other} : {kind}", shape, element)
        elif choice == 3:
            op = self.random.choice(["negate", "abs", "optimization_barrier"])
            self.emit(f"stablehlo.{op} {name} : {kind}", shape, element)
        elif choice == 4:
            size = int(np.prod(shape))
            to = self.random.choice(
                [(size,), (1, size), *(s for s in SHAPES if np.prod(s) == size)]
            )
            self.emit(f"stablehlo.reshape {name} : ({kind}) -> {_type(to, element)}", to, element)
        elif choice == 5:
            to = "f32" if element == "i32" else "i32"
            self.emit(f"stablehlo.convert {name} : ({kind}) -> {_type(shape, to)}", shape, to)
        elif choice == 6 and rank >= 2:
            order = self.random.sample(range(rank), rank)
            to = tuple(shape[d] for d in order)
            self.emit(
                f"stablehlo.transpose {name}, dims = {order} : ({kind}) -> {_type(to, element)}",
                to,
                element,
            )
        elif choice == 7 and rank:
            dims = self.random.sample(range(rank), 1)
            self.emit(f"stablehlo.reverse {name}, dims = {dims} : {kind}", shape, element)
        elif choice == 8 and rank:
            low, high = (
                [self.random.randrange(2) for _ in shape],
                [self.random.randrange(2) for _ in shape],
            )
            to = tuple(lo + size + hi for lo, size, hi in zip(low, shape, high, strict=True))
            zero = self.random.choice(
                [v for v, s, e in self.values if s == () and e == element] or [""]
            )
            if zero:
                text = f"{name}, {zero}, low = {low}, high = {high}, interior = {[0] * rank}"
                scalar = _type((), element)
                self.emit(
                    f"stablehlo.pad {text} : ({kind}, {scalar}) -> {_type(to, element)}",
                    to,
                    element,
                )
        elif choice == 9 and rank and min(shape) > 1:
            bounds = [(self.random.randrange(size), size) for size in shape]
            to = tuple(b - a for a, b in bounds)
            text = ", ".join(f"{a}:{b}" for a, b in bounds)
            self.emit(
                f"stablehlo.slice {name} [{text}] : ({kind}) -> {_type(to, element)}", to, element
            )
        elif choice == 10 and rank <= 2:
            to = (*shape, 2) if self.random.random() < 0.5 else (2, *shape)
            dims = (
                list(range(rank)) if to[-1] == 2 and to[:-1] == shape else list(range(1, rank + 1))
            )
            text = f"{name}, dims = {dims} : ({kind}) -> {_type(to, element)}"
            self.emit(f"stablehlo.broadcast_in_dim {text}", to, element)
        elif choice == 11 and rank == 2 and element == "f32":
            partners = [
                (v, s) for v, s, e in self.values if e == "f32" and len(s) == 2 and s[0] == shape[1]
            ]
            if partners:
                rhs, to = self.random.choice(partners)
                out = (shape[0], to[1])
                types = f"({kind}, {_type(to, 'f32')}) -> {_type(out, 'f32')}"
                self.emit(
                    f"stablehlo.dot_general {name}, {rhs}, contracting_dims = [1] x [0] : {types}",
                    out,
                    "f32",
                )


def _type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{''.join(f'{d}x' for d in shape)}{element}>"


def _dot(op: ir.Operation, lhs: Array, rhs: Array) -> Array:
    """``dot_general`` as an einsum."""
    batch = list(
        zip(
            hlo.dims(op, "lhs_batching_dimensions"),
            hlo.dims(op, "rhs_batching_dimensions"),
            strict=True,
        )
    )
    left, right = (
        hlo.dims(op, "lhs_contracting_dimensions"),
        hlo.dims(op, "rhs_contracting_dimensions"),
    )
    first, second = list(range(lhs.ndim)), list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    for a, b in [*batch, *zip(left, right, strict=True)]:
        second[b] = first[a]
    out = [first[a] for a, _ in batch]
    out += [d for d in first if d not in second] + [d for d in second if d not in first]
    return np.einsum(lhs, first, rhs, second, out)


def _run(module: HloModule, arguments: list[Array]) -> list[Array]:
    rewriter = Rewriter(module, module.function("main"))
    block = rewriter.function.regions[0].blocks[0]
    values: dict[ir.Value, Array] = dict(zip(block.arguments, arguments, strict=True))
    for op in rewriter.ops:
        operands = [values[operand] for operand in op.operands]
        if op.name == "func.return":
            return operands
        result: Tensor = rewriter.type(op.results[0])
        value = (
            constant_value(op, module.constants)
            if op.name == "hlo.constant"
            else _dot(op, *operands)
            if op.name == "hlo.dot_general"
            else evaluate(op, result, operands)
        )
        assert value is not None, str(op)
        assert value.shape == result.shape
        values[op.results[0]] = value
    raise AssertionError("no return")


@pytest.mark.parametrize("seed", range(40))
def test_results_are_kept(seed: int) -> None:
    program = _Program(seed)
    expected = interpreter.evaluate(program.text, *program.arguments)
    module = load_text(program.text)
    Pipeline(PASSES).run(module, options=RunOptions(keep_repro=False))
    for got, want in zip(_run(module, program.arguments), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(4))))
def test_transposed_batched_dots(permutation: tuple[int, ...]) -> None:
    """A dot between transposes of its operands and of its result."""
    rng = np.random.default_rng(7)
    arrays = [
        rng.integers(-4, 5, shape).astype(np.float32) for shape in ((5, 3, 7, 2), (2, 3, 4, 5))
    ]
    dot = (2, 3, 7, 4)
    out = _type(tuple(dot[d] for d in permutation), "f32")
    text = f"""
func.func @main(%v: tensor<5x3x7x2xf32>, %p: tensor<2x3x4x5xf32>) -> {out} {{
  %0 = stablehlo.transpose %v, dims = [3, 0, 1, 2] : (tensor<5x3x7x2xf32>) -> tensor<2x5x3x7xf32>
  %1 = stablehlo.dot_general %0, %p, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3]
    : (tensor<2x5x3x7xf32>, tensor<2x3x4x5xf32>) -> {_type(dot, "f32")}
  %2 = stablehlo.transpose %1, dims = {list(permutation)} : ({_type(dot, "f32")}) -> {out}
  return %2 : {out}
}}"""
    module = load_text(text)
    Pipeline(PASSES).run(module)
    expected = interpreter.evaluate(text, *arrays)
    np.testing.assert_array_equal(_run(module, arrays)[0], expected[0])


def test_a_wrong_rewrite_would_show() -> None:
    def swap(current: HloModule) -> None:
        for op in Rewriter(current, current.function("main")).ops:
            if op.name == "hlo.subtract":
                lhs, rhs = list(op.operands)
                op.operands[0], op.operands[1] = rhs, lhs

    same: list[bool] = []
    for seed in range(10):
        program = _Program(seed)
        module = load_text(program.text)
        Pipeline([PASSES, swap]).run(module)
        expected = interpreter.evaluate(program.text, *program.arguments)
        results = _run(module, program.arguments)
        same += [np.array_equal(a, b) for a, b in zip(results, expected, strict=True)]
    assert not all(same)
