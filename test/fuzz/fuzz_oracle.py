# SPDX-License-Identifier: Apache-2.0
"""Runs a random program by gristmill and by others, and compares.

The oracle is the StableHLO reference interpreter. Operations that it does not evaluate (those of
:mod:`fuzz_foreign`) are evaluated by XLA's CPU client, each alone on the operands that the interpreter gives.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from fuzz_foreign import OPERATIONS
from fuzz_programs import Array, RandomProgram, module
from fuzz_values import NARROW, Value, dtype, epsilon, is_complex, is_float, is_integer, part, width
from jax.interpreters import mlir as jax_mlir
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import gristmill

NAME = re.compile(r"%\w+")
OPERATION = re.compile(r'^[^"]*"([\w.]+)"')


class Difference(AssertionError):
    """Gristmill and the interpreter disagree, or gristmill refused the program."""


def _literal(argument: Value, array: Array) -> list[str]:
    """A constant with an array's elements."""
    name, kind = argument.name, argument.type
    if argument.size == 0:
        text = "dense<>"
    elif argument.element == "i1":
        text = f"dense<{str(array.tolist()).lower()}>"
    elif is_integer(argument.element) and width(argument.element) < 8:
        text = f"dense<{[int(x) for x in array.reshape(-1)]}>".replace("'", "")
        flat = f"tensor<{argument.size}x{argument.element}>"
        return [
            f"%flat_{name[1:]} = stablehlo.constant {text} : {flat}",
            f"{name} = stablehlo.reshape %flat_{name[1:]} : ({flat}) -> {kind}",
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
    if element in (*NARROW, "bf16"):
        wider = "f32"
    elif is_integer(element) and width(element) < 8:
        wider = "ui8" if element.startswith("u") else "i8"
    else:
        return [], [value]
    made = replace(value, name=f"%r{index}", element=wider)
    return [f"{made.name} = stablehlo.convert {value.name} : ({value.type}) -> {made.type}"], [made]


def interpreted(program: RandomProgram) -> list[Array]:
    """Results of a program by the reference interpreter."""
    literals = [
        line
        for a, array in zip(program.arguments, program.inputs, strict=True)
        for line in _literal(a, array)
    ]
    casts: list[str] = []
    outputs: list[Value] = []
    groups: list[int] = []
    for index, value in enumerate(program.results):
        more, parts = _plain(value, index)
        casts += more
        outputs += parts
        groups.append(len(parts))
    text = module("", [*literals, *program.lines, *casts], outputs, program.functions)
    for line, other in program.restated.items():
        text = text.replace(line, other)
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        arrays = [np.array(result) for result in stablehlo.eval_module(ir.Module.parse(text), [])]
    made: list[Array] = []
    for value, size in zip(program.results, groups, strict=True):
        taken, arrays = arrays[:size], arrays[size:]
        whole = np.empty(taken[0].shape, np.complex128) if size == 2 else taken[0]
        if (
            size == 2
        ):  # not real + 1j * imaginary, whose real part is NaN where the imaginary one is infinite
            whole.real, whole.imag = taken
        made.append(np.asarray(whole).astype(dtype(value.element)))
    return made


def by_xla(
    line: str, operands: list[Value], inputs: list[Array], results: list[Value]
) -> list[Array]:
    """Results of one operation by XLA's CPU client."""
    header = ", ".join(f"{value.name}: {value.type}" for value in operands)
    device = jax.devices("cpu")[0]
    text = module(header, [line], results, [])
    with jax_mlir.make_ir_context(), ir.Location.unknown(), jax.enable_x64(True):
        bytecode = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(bytecode)
        program = device.client.compile_and_load(
            bytecode.getvalue(), _jax.DeviceList((device,)), _jax.CompileOptions()
        )
        buffers = [jax.device_put(array, device) for array in inputs]
        return [np.asarray(result) for result in program.execute(buffers)]


def is_foreign(line: str) -> bool:
    """Whether the interpreter does not evaluate the operation."""
    name = OPERATION.search(line)
    assert name is not None, "an operation in generic form"
    dialect, _, short = name[1].partition(".")
    return dialect == "chlo" or (dialect == "stablehlo" and short in OPERATIONS)


def reference(program: RandomProgram) -> list[Array]:
    """Results by the reference interpreter, the operations that it does not know by XLA, one at a time."""
    arguments, inputs = list(program.arguments), list(program.inputs)
    known = {**program.known, **{value.name: value for value in arguments}}
    lines: list[str] = []
    for line in program.lines:
        if not is_foreign(line):
            lines.append(line)
            continue
        left, _, right = line.partition(" = ")
        made = [known[name] for name in NAME.findall(left)]
        operands = [known[name] for name in dict.fromkeys(NAME.findall(right))]
        so_far = replace(program, arguments=arguments, inputs=inputs, lines=lines, results=operands)
        inputs = [*inputs, *by_xla(line, operands, interpreted(so_far), made)]
        arguments = [*arguments, *made]
    return interpreted(replace(program, arguments=arguments, inputs=inputs, lines=lines))


def compiled(program: RandomProgram, device: str | None = None) -> list[Array]:
    """Results by gristmill on ``device``, by default the CPU."""
    with gristmill.compile(program.text(), device=device) as executable:
        outputs: Any = executable(*program.inputs)
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    results: list[Array] = []
    for value, output in zip(program.results, outputs, strict=True):
        array = np.asarray(output)
        if array.dtype != dtype(value.element) or array.shape != value.shape:
            raise Difference(
                f"{value.name}: got {array.dtype}{list(array.shape)}, want {value.type}"
            )
        results.append(array)
    return results


def difference(value: Value, got: Array, want: Array) -> str | None:
    """How ``got`` differs from ``want`` by more than ``value`` allows, in either part of complex numbers."""
    if is_complex(value.element):
        got, want = (np.stack([array.real, array.imag], -1) for array in (got, want))
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


def check(program: RandomProgram, device: str | None = None) -> None:
    """Raise :class:`Difference` when the two disagree; ``device`` as in :func:`compiled`."""
    want = reference(program)
    try:
        got = compiled(program, device)
    except gristmill.GristmillError as error:
        raise Difference(f"refused: {error}") from error
    found = [
        difference(value, one, other)
        for value, one, other in zip(program.results, got, want, strict=True)
    ]
    messages = [message for message in found if message is not None]
    if messages:
        raise Difference("; ".join(messages))
