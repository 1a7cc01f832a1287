# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program small after hypothesis has: one result, no dead code, and inputs in place of computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzz_oracle import NAME, reference
from fuzz_programs import RandomProgram


def _made(line: str) -> list[str]:
    """Names of the results of an operation."""
    return NAME.findall(line.partition(" = ")[0])


def without_dead_code(program: RandomProgram) -> RandomProgram:
    """Only the lines and arguments that the results need."""
    needed = {value.name for value in program.results}
    lines: list[str] = []
    for line in reversed(program.lines):
        if needed & set(_made(line)):
            needed |= set(NAME.findall(line))
            lines.append(line)
    kept = [
        (value, array)
        for value, array in zip(program.arguments, program.inputs, strict=True)
        if value.name in needed
    ]
    return replace(
        program, arguments=[k[0] for k in kept], inputs=[k[1] for k in kept], lines=lines[::-1]
    )


def cut(program: RandomProgram, line: str) -> RandomProgram | None:
    """``program`` with the results of one operation given as inputs; ``None`` for a constant or a tuple."""
    values = [program.known[name] for name in _made(line) if name in program.known]
    if '"stablehlo.constant"' in line.partition("(")[0] or not values:
        return None
    given = reference(replace(program, results=values))
    lines = [other for other in program.lines if other is not line]
    return without_dead_code(
        replace(
            program,
            arguments=[*program.arguments, *values],
            inputs=[*program.inputs, *given],
            lines=lines,
        )
    )


def smaller(program: RandomProgram, fails: Callable[[RandomProgram], bool]) -> RandomProgram:
    """A smaller program that still ``fails``."""
    for value in program.results:
        attempt = without_dead_code(replace(program, results=[value]))
        if fails(attempt):
            program = attempt
            break
    else:
        attempt = without_dead_code(program)
        program = attempt if fails(attempt) else program
    index = len(program.lines) - 1
    while index >= 0:
        attempt = cut(program, program.lines[index])
        if attempt is not None and fails(attempt):
            program = attempt
        index = min(index, len(program.lines)) - 1
    return program
