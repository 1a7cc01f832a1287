# SPDX-License-Identifier: Apache-2.0
"""Print the rt program (``rt``) or the entry function (``entry``) of a fused module.

Kernels are made up from the signatures of the fused computations, which may carry attributes: ``test.inplace``
(a flat list of argument, result pairs), ``test.kind``, ``test.tasks`` (one number per phase; negative: parallel)
and ``test.workspace`` (bytes).
"""

import sys
from pathlib import Path

from mlir import ir

from gristmill.compiler.emitters.kernel import KernelSpec, Phase
from gristmill.compiler.module import HloModule, array_type, make_context
from gristmill.compiler.program import build_program, lower_entry
from gristmill.compiler.target import Target


def spec_of(name: str, function: ir.Operation) -> KernelSpec:
    """The kernel of one fused computation."""
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    attributes = function.attributes

    def numbers(key: str, default: list[int]) -> list[int]:
        key = f"test.{key}"
        return list(ir.DenseI64ArrayAttr(attributes[key])) if key in attributes else default

    pairs = numbers("inplace", [])
    tasks = numbers("tasks", [1])
    names = [name] if len(tasks) == 1 else [f"{name}_{i}" for i in range(len(tasks))]
    text = "test.kind"
    return KernelSpec(
        name,
        tuple(Phase(n, abs(t), t < 0) for n, t in zip(names, tasks, strict=True)),
        tuple(array_type(t) for t in kind.inputs),
        tuple(array_type(t) for t in kind.results),
        workspace_bytes=numbers("workspace", [0])[0],
        inplace=tuple(zip(pairs[::2], pairs[1::2], strict=True)),
        kind=ir.StringAttr(attributes[text]).value if text in attributes else "loop",
    )


def main() -> None:
    """``emit.py rt|entry FILE``."""
    what, path = sys.argv[1:]
    with make_context(), ir.Location.unknown():
        module = HloModule(ir.Module.parse(Path(path).read_text()))
        specs = {
            name: spec_of(name, function)
            for name, function in module.functions().items()
            if name.startswith("k_")
        }
        program = build_program(module, specs, Target("x86_64-unknown-linux-gnu", "x86-64", ""))
        print(program.module if what == "rt" else lower_entry(program, specs))


main()
