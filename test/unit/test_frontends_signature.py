# SPDX-License-Identifier: Apache-2.0
"""Names, donation and aliasing of the entry function, from JAX objects and from text."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from gristmill.compiler.frontends import from_lowered, load_bytes, load_text
from gristmill.compiler.module import HloModule
from gristmill.errors import InputError


def step(params: dict, x: jax.Array) -> tuple[dict, jax.Array]:
    return {"out": x @ params["w"], "new": params["w"] * 2}, jnp.sum(x)


PARAMS = {"w": jnp.ones((8, 16))}
LOWERED = jax.jit(step, donate_argnums=0).lower(PARAMS, jnp.ones((4, 8)))


def header(module: HloModule) -> str:
    (line,) = re.findall(r"func\.func public @main.*", str(module.module))
    return line


def test_jax_names_and_donation():
    text = header(from_lowered(LOWERED))
    assert (
        "%arg0: tensor<8x16xf32> {gristmill.alias = 0 : i64, gristmill.donated, "
        "gristmill.name = \"params['w']\"}" in text
    )
    assert '%arg1: tensor<4x8xf32> {gristmill.name = "x"}' in text
    assert "tensor<8x16xf32> {gristmill.name = \"result[0]['new']\"}" in text
    assert 'tensor<f32> {gristmill.name = "result[1]"}' in text


def test_importing_leaves_the_lowered_object_alone():
    before = LOWERED.as_text(debug_info=True)
    from_lowered(LOWERED)
    assert LOWERED.as_text(debug_info=True) == before


def test_exported_programs_keep_the_names():
    exported = export.export(jax.jit(step))(PARAMS, jnp.ones((4, 8)))
    text = header(load_bytes(exported.mlir_module_serialized))
    assert "gristmill.name = \"params['w']\"" in text
    assert "gristmill.name = \"result[0]['out']\"" in text


def test_hlo_text_aliases():
    text = header(load_text(LOWERED.as_text(dialect="hlo")))
    assert "gristmill.alias = 0 : i64, gristmill.donated" in text


@pytest.mark.parametrize("attribute", ["jax.buffer_donor = true", "tf.aliasing_output = 0 : i32"])
def test_text_attributes(attribute: str):
    kind = "tensor<f32>"
    text = header(
        load_text(f"func.func @main(%x: {kind} {{{attribute}}}) -> {kind} {{ return %x : {kind} }}")
    )
    assert "gristmill.donated" in text
    assert ("gristmill.alias = 0 : i64" in text) == ("aliasing" in attribute)


def test_named_locations_are_names():
    text = header(load_text('func.func @main(%x: tensor<f32> loc("weight")) { return }'))
    assert 'gristmill.name = "weight"' in text


def test_plain_text_has_no_annotations():
    text = header(
        load_text("func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }")
    )
    assert "gristmill" not in text


def test_source_locations_of_a_jax_program():
    module = from_lowered(LOWERED)
    text = module.module.operation.get_asm(enable_debug_info=True)
    assert "jit(step)/dot_general" in text
    assert "test_frontends_signature.py" in text


def test_from_lowered_refuses_other_objects():
    with pytest.raises(InputError, match=r"expected what jax\.jit\(f\)\.lower.*got int"):
        from_lowered(3)
