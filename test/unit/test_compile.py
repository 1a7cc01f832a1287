# SPDX-License-Identifier: Apache-2.0
"""The programmatic API: compile, stages, pipelines, errors, jit."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gristmill
from gristmill.compiler.compile import STAGES, compile_stages, import_source
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import DEFAULT_PIPELINE
from gristmill.compiler.target import gpu_target
from gristmill.errors import GristmillError, InputError, UnsupportedError

ADD = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


def test_compile_takes_every_source_form(tmp_path: Path) -> None:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    ones = np.ones(8, np.float32)
    lowered = jax.jit(lambda x, y: x + y).lower(ones, ones)
    exported = jax.export.export(jax.jit(lambda x, y: x + y))(ones, ones)
    for source in (path, str(path), ADD, lowered, exported.mlir_module_serialized):
        np.testing.assert_array_equal(gristmill.compile(source)(ones, ones), 2 * ones)


def test_compile_names_what_it_cannot_take() -> None:
    with pytest.raises(InputError, match="cannot compile a int"):
        gristmill.compile(3)
    with pytest.raises(GristmillError, match=r"nowhere\.mlir"):
        gristmill.compile("nowhere.mlir")


def test_every_stage_can_be_shown() -> None:
    compilation = compile_stages(import_source(ADD), keep_stages=True)
    shown = {stage: compilation.emit(stage) for stage in STAGES}
    assert "hlo.add" in shown["hlo"]
    assert "hlov.fusion" in shown["fused"]
    assert "rtv.launch" in shown["rt"]
    assert "scf.for" in shown["kernels"]
    assert "llvm.func" in shown["llvm"]
    assert "define void @gristmill_main" in shown["ll"]
    assert "gristmill_main:" in shown["asm"]
    assert shown["obj"][:4] == b"\x7fELF"
    assert shown["artifact"][:2] == b"PK"
    with pytest.raises(InputError, match="there is no stage 'nowhere'"):
        compilation.emit("nowhere")


def test_a_stage_that_was_not_kept_says_so() -> None:
    compilation = compile_stages(import_source(ADD), stop_after="fused")
    with pytest.raises(InputError, match="keep_stages"):
        compilation.emit("llvm")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("jobs", -1, "at least 1"),
        ("jobs", 0, "at least 1"),
        ("jobs", True, "at least 1"),
        ("jobs", "2", "at least 1"),
        ("pipeline", 3, "a Pipeline, its text, or None"),
        ("cache", 3, "a directory, True, False or None"),
        ("images", "ptx", "a tuple of ptx, cubin, simulator"),
        ("images", ("ptx", "exe"), "a tuple of ptx, cubin, simulator"),
        ("verify", 2, "True or False"),
        ("autotune", "no", "True or False"),
        ("fold_constants", None, "True or False"),
    ],
)
def test_an_option_says_what_it_can_be(option: str, value: Any, allowed: str) -> None:
    wrong = re.escape(f"the option {option} cannot be {value!r}; give")
    with pytest.raises(InputError, match=f"{wrong}.*{allowed}"):
        gristmill.CompileOptions(**{option: value})


@pytest.mark.parametrize(
    "wrong", [{"options": {"jobs": 1}}, {"target": 3}, {"device": 3}, {"target": "cpu:9"}]
)
def test_compile_names_the_argument_that_does_not_fit(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=rf"{name} .*{re.escape(repr(value))}"):
        gristmill.compile(ADD, **wrong)


def test_stages_take_what_compile_takes(tmp_path: Path) -> None:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    ones = np.ones(8, np.float32)
    for source in (ADD, path, str(path), ADD.encode(), import_source(ADD)):
        with gristmill.compile_stages(source).executable() as executable:
            np.testing.assert_array_equal(executable(ones, ones), 2 * ones)
    with pytest.raises(InputError, match="cannot compile a int; give a path, text"):
        gristmill.compile_stages(3)
    with pytest.raises(InputError, match="for CPUs, not for sm_80"):
        gristmill.compile_stages(ADD, gpu_target())


def test_a_pipeline_can_be_extended_with_python_and_upstream_passes() -> None:
    seen: list[int] = []

    def count(module: HloModule) -> None:
        seen.append(len(module.functions()))

    pipeline = gristmill.Pipeline(DEFAULT_PIPELINE)
    pipeline.insert_before("fuse", count, name="count")
    pipeline.insert_after("count", "canonicalize")
    options = gristmill.CompileOptions(pipeline=pipeline)
    ones = np.ones(8, np.float32)
    np.testing.assert_array_equal(gristmill.compile(ADD, options=options)(ones, ones), 2 * ones)
    assert seen == [1]


def test_unsupported_operations_are_reported_all_at_once() -> None:
    text = """
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.custom_call @somewhere(%a) : (tensor<8xf32>) -> tensor<8xf32>
      %1 = stablehlo.custom_call @elsewhere(%0) : (tensor<8xf32>) -> tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    with pytest.raises(UnsupportedError) as caught:
        gristmill.compile(text)
    assert len(caught.value.items) == 2
    assert "somewhere" in caught.value.items[0]
    assert ":3:" in caught.value.items[0]
    assert "elsewhere" in caught.value.items[1]


def test_names_survive_to_the_signature() -> None:
    def model(weights: jax.Array, inputs: jax.Array) -> dict[str, jax.Array]:
        return {"logits": inputs @ weights}

    lowered = jax.jit(model).lower(jnp.ones((4, 3)), jnp.ones((2, 4)))
    executable = gristmill.compile(lowered)
    assert [s.name for s in executable.inputs] == ["weights", "inputs"]
    assert "logits" in executable.outputs[0].name


def test_jit_keeps_the_functions_structure_and_compiles_once_per_shape() -> None:
    traces: list[tuple[int, ...]] = []

    def model(parameters: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        traces.append(x.shape)
        return {"y": jnp.tanh(x @ parameters["w"]), "x": x}

    fast = gristmill.jit(model)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3)).astype(np.float32)
    for rows in (2, 2, 5):
        x = rng.standard_normal((rows, 4)).astype(np.float32)
        result = fast({"w": w}, x)
        np.testing.assert_allclose(result["y"], np.tanh(x @ w), rtol=1e-5)
        np.testing.assert_array_equal(result["x"], x)
    assert traces == [(2, 4), (5, 4)]


def test_identical_computations_share_a_kernel() -> None:
    layer = "\n".join(
        f"%d{i} = stablehlo.dot_general %h{i}, %w, contracting_dims = [1] x [0]"
        " : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>\n"
        f"%h{i + 1} = stablehlo.tanh %d{i} : tensor<8x8xf32>"
        for i in range(4)
    )
    text = (
        "func.func @main(%h0: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        f"{layer}\nreturn %h4 : tensor<8x8xf32>\n}}"
    )
    compilation = compile_stages(import_source(text), keep_stages=True)
    assert str(compilation.emit("rt")).count("rtv.launch") == 4
    names = {
        line.split("(")[0]
        for line in str(compilation.emit("kernels")).splitlines()
        if "func.func" in line
    }
    assert all("kernel_0" in name for name in names)


def test_one_executable_runs_from_several_threads() -> None:
    lowered = jax.jit(lambda x: jax.nn.softmax(x @ x, axis=-1)).lower(jnp.ones((64, 64)))
    executable = gristmill.compile(lowered)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(4)]
    wanted = [executable(x).copy() for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if not np.array_equal(executable(inputs[number]), wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_jit_tells_numbers_from_arrays() -> None:
    """A Python number takes an array's type, an array of no dimensions has one of its own."""
    fast = gristmill.jit(lambda x, s: x * s)
    x = np.ones(3, np.float16)
    for scale, dtype in ((2.0, np.float16), (np.float32(2), np.float32), (2.0, np.float16)):
        result = np.asarray(fast(x, scale))
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, np.full(3, 2, dtype))


def test_jit_traces_again_when_settings_of_jax_change() -> None:
    def settings(x: jax.Array) -> jax.Array:
        return x + jnp.arange(2).dtype.itemsize

    fast = gristmill.jit(settings)
    ones = np.ones(2, np.float32)
    np.testing.assert_array_equal(fast(ones), [5, 5])
    with jax.enable_x64(True):
        np.testing.assert_array_equal(fast(ones), [9, 9])
    np.testing.assert_array_equal(fast(ones), [5, 5])


def test_jit_goes_by_the_precision_of_products() -> None:
    seen: list[str] = []

    def product(x: jax.Array) -> jax.Array:
        seen.append(str(jax.config.jax_default_matmul_precision))
        return x @ x

    fast = gristmill.jit(product)
    x = np.ones((2, 2), np.float32)
    for precision in ("float32", "tensorfloat32", "float32"):
        with jax.default_matmul_precision(precision):
            fast(x)
    assert seen == ["float32", "tensorfloat32"]
