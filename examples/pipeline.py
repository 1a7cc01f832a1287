# SPDX-License-Identifier: Apache-2.0
"""The pass pipeline as a Python object: look at it, time it, put a pass of your own into it.

python examples/pipeline.py [MODEL]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from gristmill.compiler.compile import compile_stages, import_source
from gristmill.compiler.module import HloModule, constant_value, elements_from_numpy
from gristmill.compiler.options import DEFAULT_PIPELINE, CompileOptions
from gristmill.compiler.passes.pipeline import Pipeline
from gristmill.dialects import hlo
from gristmill.runtime.types import element_type

MODEL = Path(__file__).parent / "models" / "transformer.mlir"


def histogram(module: HloModule) -> Counter[str]:
    """How often each operation occurs in ``@main``."""
    block = module.function("main").regions[0].blocks[0]
    return Counter(hlo.short_name(op) for op in block.operations)


def report(module: HloModule) -> None:
    """A pass may be any function of the module; this one only looks."""
    common = ", ".join(f"{count} {name}" for name, count in histogram(module).most_common(6))
    print(f"  {sum(histogram(module).values())} operations: {common}")


def smaller_epsilon(module: HloModule) -> None:
    """A pass that changes the program: every scalar constant 1e-5 becomes 1e-6."""
    block = module.function("main").regions[0].blocks[0]
    changed = 0
    for view in list(block.operations):
        op = view.operation
        if op.name == "hlo.constant" and str(op.results[0].type) == "tensor<f32>":
            value = constant_value(op, module.constants)
            if value == np.float32(1e-5):
                op.attributes["value"] = elements_from_numpy(np.float32(1e-6), element_type("f32"))
                changed += 1
    print(f"  {changed} constants changed")


def main() -> None:
    """Compile MODEL with passes inserted, and show what became of it."""
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    pipeline = Pipeline(DEFAULT_PIPELINE)
    pipeline.insert_before("fuse", smaller_epsilon)
    pipeline.insert_after("inline-calls", "symbol-dce")  # a pass of upstream MLIR, by its name
    pipeline.insert_before("canonicalize-hlo", report)
    pipeline.insert_before("fuse", report, name="report-after")
    print("pipeline:", " -> ".join(pipeline.names))
    options = CompileOptions(pipeline=pipeline, verify=True)
    compilation = compile_stages(import_source(model), options=options, keep_stages=True)
    fused = str(compilation.emit("fused"))
    print(
        "kernels by kind:",
        dict(Counter(part.split('"')[0] for part in fused.split('kind = "')[1:])),
    )
    for stage, seconds in compilation.timings:
        print(f"  {seconds * 1e3:8.1f} ms  {stage}")


if __name__ == "__main__":
    main()
