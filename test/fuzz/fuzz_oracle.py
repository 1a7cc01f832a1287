# SPDX-License-Identifier: Apache-2.0
"""Runs a random program by gristmill and by the StableHLO reference interpreter, and compares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from fuzz_programs import Array, RandomProgram, dtype, module
from fuzz_values import Value, epsilon, is_complex, is_float, part
from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import gristmill


class Difference(AssertionError):
    """Gristmill and the interpreter disagree, or gristmill refused the program."""


def _literal(argument: Value, array: Array) -> list[str]:
    """A constant with an array's elements."""
    name, kind = argument.name, argument.type
    if argument.size == 0:
        text = "dense<>"
    elif argument.element == "i1":
        text = f"dense<{str(array.tolist()).lower()}>"
    elif array.dtype.itemsize == 1 and argument.element in ("i4", "ui4"):
        text = f"dense<{[int(x) for x in array.reshape(-1)]}>".replace("'", "")
        flat = f"tensor<{argument.size}x{argument.element}>"
        return [
            f"{name}_flat = stablehlo.constant {text} : {flat}",
            f"{name} = stablehlo.reshape {name}_flat : ({flat}) -> {kind}",
        ]
    else:
        text = f'dense<"0x{np.ascontiguousarray(array).tobytes().hex().upper()}">'
    return [f"{name} = stablehlo.constant {text} : {kind}"]


def _plain(value: Value, index: int) -> tuple[list[str], list[Value]]:
    """Lines that turn a result into types that the bindings hand to numpy."""
    element = value.element
    if is_complex(element):
        parts = [
            replace(value, name=f"%r{index}_{side}", element=part(element)) for side in range(2)
        ]
        lines = [
            f"{made.name} = stablehlo.{name} {value.name} : ({value.type}) -> {made.type}"
            for made, name in zip(parts, ("real", "imag"), strict=True)
        ]
        return lines, parts
    wider = {"bf16": "f32", "f8E4M3FN": "f32", "f8E5M2": "f32", "i4": "i8", "ui4": "ui8"}
    if element not in wider:
        return [], [value]
    made = replace(value, name=f"%r{index}", element=wider[element])
    return [f"{made.name} = stablehlo.convert {value.name} : ({value.type}) -> {made.type}"], [made]


def reference(program: RandomProgram) -> list[Array]:
    """Results by the reference interpreter; complex numbers as a pair of parts on a new last axis."""
    lines: list[str] = []
    for argument, array in zip(program.arguments, program.inputs, strict=True):
        lines += _literal(argument, array)
    lines += program.lines
    outputs: list[Value] = []
    groups: list[int] = []
    for index, value in enumerate(program.results):
        more, parts = _plain(value, index)
        lines += more
        outputs += parts
        groups.append(len(parts))
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module("", lines, outputs))
        arrays = [np.array(result) for result in stablehlo.eval_module(parsed, [])]
    results: list[Array] = []
    for size in groups:
        taken, arrays = arrays[:size], arrays[size:]
        results.append(taken[0] if size == 1 else np.stack(taken, -1))
    return results


def compiled(program: RandomProgram) -> list[Array]:
    """Results by gristmill, in the form of :func:`reference`."""
    outputs: Any = gristmill.compile(program.text())(*program.inputs)
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    results: list[Array] = []
    for value, output in zip(program.results, outputs, strict=True):
        array = np.asarray(output)
        if array.dtype != dtype(value.element) or array.shape != value.shape:
            raise Difference(
                f"{value.name}: got {array.dtype}{list(array.shape)}, want {value.type}"
            )
        if is_complex(value.element):
            array = np.stack([array.real, array.imag], -1)
        results.append(array)
    return results


def difference(value: Value, got: Array, want: Array) -> str | None:
    """How ``got`` differs from ``want`` by more than ``value`` allows."""
    if not is_float(part(value.element)):
        bad = got.astype(want.dtype) != want
    else:
        got, want = got.astype(np.float64), want.astype(np.float64)
        allowed = 2 * value.error + (0 if value.error == 0 else epsilon(value.element))
        with np.errstate(all="ignore"):
            close = np.abs(got - want) <= allowed
        bad = ~((got == want) | (np.isnan(got) & np.isnan(want)) | close)
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{value.name}: {value.type}: {int(bad.sum())} of {bad.size} elements differ; first at "
        f"{list(first)}: got {got[first]}, want {want[first]} (allowed {value.error:g})"
    )


def check(program: RandomProgram) -> None:
    """Raise :class:`Difference` when the two disagree."""
    want = reference(program)
    try:
        got = compiled(program)
    except gristmill.GristmillError as error:
        raise Difference(f"refused: {error}") from error
    found = [
        difference(value, one, other)
        for value, one, other in zip(program.results, got, want, strict=True)
    ]
    messages = [message for message in found if message is not None]
    if messages:
        raise Difference("; ".join(messages))
