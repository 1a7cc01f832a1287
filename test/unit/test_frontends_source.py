# SPDX-License-Identifier: Apache-2.0
"""Formats and their recognition, malformed input, and what is legalised before translation."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jaxlib.mlir import ir as source_ir
from jaxlib.mlir.dialects import stablehlo

import gristmill
from gristmill.compiler.frontends import load_bytes, load_file, load_text
from gristmill.compiler.frontends.source import make_source_context
from gristmill.errors import ParseError, UnsupportedError

STABLEHLO = """
module @doubling {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""

HLO = """// a comment
HloModule doubling, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT sum = f32[4]{0} add(x, x)
}
"""


def bytecode() -> bytes:
    stream = io.BytesIO()
    with make_source_context():
        source_ir.Module.parse(STABLEHLO).operation.write_bytecode(stream)
    return stream.getvalue()


def portable() -> bytes:
    return stablehlo.serialize_portable_artifact_str(STABLEHLO, stablehlo.get_current_version())


def exported() -> bytes:
    """A flatbuffer whose root table has one field, a byte vector at virtual-table offset 30."""
    artifact = portable()
    fields = 14  # offsets 4, 6, … 30
    table_bytes = 4 + 2 * fields
    root = 4 + table_bytes
    slots = [0] * (fields - 1) + [4]
    table = struct.pack(f"<{2 + fields}H", table_bytes, 8, *slots)
    vector = struct.pack("<I", len(artifact)) + artifact
    return struct.pack("<I", root) + table + struct.pack("<iI", root - 4, 4) + vector


FORMATS = {
    "text": STABLEHLO.encode(),
    "bytecode": bytecode(),
    "portable": portable(),
    "exported": exported(),
    "hlo": HLO.encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_program(name: str):
    module = load_bytes(FORMATS[name], f"doubling.{name}")
    text = str(module.module)
    assert module.name == "doubling"
    assert "func.func public @main(%arg0: tensor<4xf32>" in text
    assert '"hlo.add"(%arg0, %arg0)' in text
    assert list(module.functions()) == ["main"]


def test_a_file_is_read(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(STABLEHLO)
    assert load_file(path).name == "doubling"
    assert load_file(str(path)).name == "doubling"


def test_a_missing_file_is_a_parse_error(tmp_path):
    with pytest.raises(ParseError, match=r"none\.mlir: cannot read the file: No such file"):
        load_file(tmp_path / "none.mlir")


def test_a_module_without_a_name_is_called_after_the_file():
    assert load_text("func.func @main() { return }", "folder/nameless.mlir").name == "nameless"


MALFORMED = [
    ("func.func @main( {", r"^in\.mlir:1:17: expected non-function type$"),
    ("", r"^in\.mlir: the input is empty"),
    (" \n", r"^in\.mlir: the input is empty"),
    ("garbage", r"^in\.mlir:1:1: custom op 'garbage' is unknown"),
    (
        "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  return %x : tensor<2xf32>\n}",
        r"^in\.mlir:2:3: type of return operand 0",
    ),
    ("HloModule x\nENTRY a { ROOT f = f32[] foo() }", r"^in\.mlir:2:26: .*foo"),
    ("HloModule x\na { ROOT f = f32[] parameter(0) }", r"^in\.mlir: .* no ENTRY computation"),
    (b"\x00\x01\x02\xff", r"^in\.mlir: unknown format; expected StableHLO text"),
    (b"text with a \x00 byte", r"^in\.mlir: unknown format"),
    (b"ML\xefR", r"^in\.mlir: "),
    (bytecode()[:100], r"^in\.mlir: "),
    (portable()[:100], r"^in\.mlir: not a portable artifact that StableHLO [\d.]+ can read: \S"),
    ("func.func private @a() { return }", r"^in\.mlir: the module has no function @main .*none"),
    (
        "func.func @a() { return } func.func @b() { return }",
        r"^in\.mlir: the module has no function @main .*\(found: @a, @b\); name the entry @main$",
    ),
]


@pytest.mark.parametrize(("data", "message"), MALFORMED)
def test_malformed_input_is_one_line(data: str | bytes, message: str):
    raw = data.encode() if isinstance(data, str) else data
    with pytest.raises(ParseError, match=message) as caught:
        load_bytes(raw, "in.mlir")
    assert "\n" not in str(caught.value)


def test_truncated_input_never_crashes():
    for data in FORMATS.values():
        for end in range(1, len(data) - 1, max(1, len(data) // 40)):
            with pytest.raises(ParseError):
                load_bytes(data[:end], "in.mlir")


def test_an_hlo_layout_that_disagrees_with_the_entry_does_not_abort():
    text = HLO.replace("(f32[4]{0})->f32[4]{0}", "()->(f32[4]{0}, f32[])")
    assert '"hlo.add"' in str(load_text(text).module)


def test_hlo_operations_without_a_stablehlo_form():
    text = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  e = f32[4] erf(x)
  ROOT t = (f32[2], s32[2]) topk(e), k=2, largest=true
}
"""
    printed = str(load_text(text).module)
    assert '"hlo.erf"(%arg0)' in printed
    assert '"hlov.sort"' in printed
    with pytest.raises(UnsupportedError, match=r"mhlo\.topk: not supported yet"):
        load_text(text.replace("largest=true", "largest=false"))


def test_a_single_public_function_becomes_main():
    module = load_text("func.func @f() { return } func.func private @g() { return }")
    assert list(module.functions()) == ["main"]


def test_main_wins_over_other_public_functions():
    module = load_text(
        """func.func @other() { return }
        func.func @main() { call @other() : () -> () return }"""
    )
    assert list(module.functions()) == ["main", "other"]
    assert "func.func private @other" in str(module.module)


UNSUPPORTED = """
func.func @main(%c: tensor<4xindex>, %d: tensor<4xf32>) {
  %0 = "stablehlo.collective_permute"(%d) {source_target_pairs = dense<[[0, 3]]> : tensor<1x2xi64>}
    : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "stablehlo.all_reduce"(%d) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %x : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
"""


ONE_DEVICE = "but a program runs on one device, number 0; export it for one device"


def test_all_unsupported_things_are_reported_at_once():
    with pytest.raises(UnsupportedError) as caught:
        load_text(UNSUPPORTED, "in.mlir")
    assert caught.value.items == (
        "in.mlir:2:1: func.func: element type index is not supported yet",
        "in.mlir:3:8: stablehlo.collective_permute: source_target_pairs names device 3, "
        + ONE_DEVICE,
        "in.mlir:5:8: stablehlo.all_reduce: replica_groups names device 1, " + ONE_DEVICE,
    )
    assert str(caught.value).startswith("the program uses 3 things that are not supported:\n")


def test_a_dynamic_program_is_refused_with_what_to_do():
    text = "func.func @main(%x: tensor<?x4xf32>) { return }"
    message = r"dynamic shapes \(arg0: f32\[\?, 4\]\); gristmill.compile gives"
    with pytest.raises(UnsupportedError, match=message):
        load_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @main() { call @main() : () -> () return }", "recursive call of @main"),
        ("func.func @main() { cf.br ^a\n^a: return }", "more than one block"),
        ("module { func.func private @main() }", "@main has no body"),
    ],
)
def test_unsupported_functions(text: str, message: str):
    with pytest.raises(UnsupportedError, match=message):
        load_text(text)


def test_a_dictionary_config_means_the_typed_calling_convention():
    call = "stablehlo.custom_call @acme.f() {backend_config = {a = 1 : i64}} : () -> ()"
    module = load_text(f"func.func @main() {{ {call} return }}")
    assert "backend_config = {a = 1 : i64}" in str(module.module)


def test_locations_are_kept():
    located = load_text(STABLEHLO, "in.mlir").module.operation.get_asm(enable_debug_info=True)
    assert 'loc("in.mlir":4:10)' in located


def test_importing_the_package_and_a_program_does_not_import_jax():
    code = (
        "import sys\n"
        "from gristmill.compiler import frontends\n"
        "assert not any(name.startswith('jaxlib') for name in sys.modules)\n"
        f"frontends.load_text({STABLEHLO!r})\n"
        "assert 'jax' not in sys.modules and 'jaxlib' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_custom_calls_of_hlo_return_their_parts():
    text = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  c = (f32[4], s32[]) custom-call(x), custom_call_target="acme.f"
  ROOT second = s32[] get-tuple-element(c), index=1
}
"""
    printed = str(load_text(text).module)
    assert '%0:2 = "hlov.custom_call"(%arg0) {' in printed
    assert "(tensor<4xf32>) -> (tensor<4xf32>, tensor<i32>)" in printed
    assert "return %0#1 : tensor<i32>" in printed


def test_unsupported_hlo_instructions_are_named():
    text = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  ROOT odd = f32[4] collective-permute(x), source_target_pairs={{0,1}}
}
"""
    with pytest.raises(UnsupportedError) as caught:
        load_text(text, "in.hlo")
    assert caught.value.items[-1].startswith("in.hlo: odd: stablehlo.collective_permute: source")


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"model\xff.mlir")
    path.write_text(
        "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n  return %x : tensor<f32>\n}\n"
    )
    with gristmill.compile(path, options=gristmill.CompileOptions(cache=tmp_path)) as program:
        assert program(np.float32(3)) == 3
    with pytest.raises(ParseError, match="cannot read the file"):
        gristmill.compile("a\0b.mlir")
