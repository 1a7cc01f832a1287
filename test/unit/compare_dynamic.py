# SPDX-License-Identifier: Apache-2.0
"""Compares programs of dynamic shapes with XLA's CPU backend, on random inputs: ``make dynamic DIR=path``.

Every ``*.mlir`` file of the folder is compiled twice: by ``gristmill.compile`` for the shapes of its inputs,
and by XLA after XLA's own refinement. Unknown extents become the same number each, and integer scalars, which
are the dimension variables, are that number too (constants for XLA, which could not do without).
"""

from __future__ import annotations

import argparse
import io
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxlib import _jax
from jaxlib.mlir import ir, passmanager

import gristmill
from gristmill.compiler.driver.arrays import listed
from gristmill.compiler.driver.check_runner import generalise, unsupported_causes
from gristmill.compiler.driver.checks import compare
from gristmill.compiler.frontends.polymorphic import PolymorphicArgument
from gristmill.compiler.frontends.source import make_source_context
from gristmill.compiler.polymorphic import PolymorphicExecutable
from gristmill.errors import GristmillError, UnsupportedError

Array = np.ndarray[Any, Any]


def is_variable(item: PolymorphicArgument) -> bool:
    """Whether the argument is a dimension variable."""
    return item.by_value or (item.shape == () and item.element.kind in ("int", "uint"))


def inputs_of(executable: PolymorphicExecutable, extent: int) -> list[Array]:
    """Random inputs, every unknown extent and every dimension variable being ``extent``."""
    random = np.random.default_rng(extent)
    arrays: list[Array] = []
    for item in executable.inputs:
        shape = [extent if size is None else size for size in item.shape]
        kind = item.element.kind
        if is_variable(item):
            values: Array = np.full(shape, extent)
        elif kind in ("float", "complex"):
            values = random.standard_normal(shape)
            if kind == "complex":
                values = values + 1j * random.standard_normal(shape)
        elif kind == "pred":
            values = random.integers(0, 2, shape)
        else:
            values = random.integers(0, 5, shape)
        arrays.append(np.asarray(values).astype(item.element.dtype))
    return arrays


def reference(text: str, arrays: list[Array], variables: list[int]) -> list[Array]:
    """The results by XLA, the arguments ``variables`` being constants."""
    with make_source_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main = next(
            op
            for op in module.body.operations
            if ir.StringAttr(op.operation.attributes["sym_name"]).value == "main"
        )
        block = main.operation.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            for index in variables:
                argument = block.arguments[index]
                value = ir.Attribute.parse(f"dense<{arrays[index].tolist()}> : {argument.type}")
                constant = ir.Operation.create(
                    "stablehlo.constant", results=[argument.type], attributes={"value": value}
                )
                argument.replace_all_uses_with(constant.results[0])
        types = [
            ir.RankedTensorType.get(array.shape, ir.RankedTensorType(argument.type).element_type)
            for array, argument in zip(arrays, block.arguments, strict=True)
        ]
        listed_types = ",".join(str(kind) for kind in types)
        pipeline = f"builtin.module(stablehlo-refine-arguments{{types={listed_types}}})"
        passmanager.PassManager.parse(pipeline).run(module.operation)
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
    refined: bytes = _jax.mlir.refine_polymorphic_shapes(bytecode.getvalue())
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(
        refined, _jax.DeviceList((device,)), _jax.CompileOptions()
    )
    buffers = [jax.device_put(array, device) for array in arrays]
    return [np.asarray(result) for result in program.execute(buffers)]


def outcome(path: Path, extent: int, tolerance: float) -> str:
    """``same``, or why not."""
    try:
        executable = gristmill.compile(path)
        assert isinstance(executable, PolymorphicExecutable)
        arrays = inputs_of(executable, extent)
        ours = listed(executable(*arrays))
    except UnsupportedError as error:
        return "unsupported: " + "; ".join(unsupported_causes(error))
    except GristmillError as error:
        return f"{type(error).__name__}: {generalise(str(error))}"
    except Exception as error:  # a fault of ours in one module must not end the run
        return f"internal error: {type(error).__name__}: {generalise(str(error))}"
    variables = [index for index, item in enumerate(executable.inputs) if is_variable(item)]
    try:
        wanted = reference(path.read_text(), arrays, variables)
    except (RuntimeError, ValueError, ir.MLIRError) as error:
        return f"the reference refuses it: {generalise(str(error))}"
    problems: list[str] = []
    for got, want in zip(ours, wanted, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"type {got.dtype}{got.shape}, wanted {want.dtype}{want.shape}"
        allowed = max(tolerance, 2 * epsilon(got.dtype))
        problem = compare(got, want, "almost_eq", allowed)
        if problem is not None:
            problems.append(problem)
    return "wrong value: " + "; ".join(problems) if problems else "same"


def epsilon(dtype: np.dtype[Any]) -> float:
    """The relative spacing of the type's numbers; 0 for integers."""
    return float(jax.numpy.finfo(dtype).eps) if jax.numpy.issubdtype(dtype, np.inexact) else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extent", type=int, default=8, help="what unknown extents become")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    files = sorted(args.folder.glob("*.mlir"))
    causes: Counter[str] = Counter()
    for path in files:
        cause = outcome(path, args.extent, args.tolerance)
        causes[cause.partition(";")[0] if cause.startswith("wrong") else cause] += 1
        if cause != "same":
            print(f"{path.name}: {cause}")
    print(
        f"{causes['same']} of {len(files)} modules agree with the reference (extent {args.extent})"
    )
    for cause, count in causes.most_common():
        print(f"  {count:4} {cause}")
    return int(causes["same"] != len(files))


if __name__ == "__main__":
    sys.exit(main())
