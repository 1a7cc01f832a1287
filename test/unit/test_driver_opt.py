# SPDX-License-Identifier: Apache-2.0
"""``gristmill-opt``: inputs it recognises, errors in one line, expected diagnostics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.compiler.driver.opt import main
from gristmill.compiler.passes import registry
from gristmill.compiler.text import parse_module, print_module
from gristmill.errors import ParseError

STABLEHLO = """
func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %r : tensor<f32>
}
"""

INVALID = """
func.func @main(%x: tensor<4xf32>) -> tensor<3xf32> {
  %0 = "hlo.negate"(%x) : (tensor<4xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""

RESOURCE = """
func.func @main() -> TYPE {
  %0 = "hlo.constant"() {value = dense_resource<w> : TYPE} : () -> TYPE
  return %0 : TYPE
}
{-# dialect_resources: { builtin: { w: "0x04000000BLOB" } } #-}
"""


def _file(folder: Path, text: str) -> str:
    path = folder / "input.mlir"
    path.write_text(text)
    return str(path)


def test_stablehlo_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_file(tmp_path, STABLEHLO), "--pass-pipeline=canonicalize-hlo"]) == 0
    printed = capsys.readouterr().out
    assert "hlov.reduce" in printed
    assert "stablehlo" not in printed


def test_output_file_and_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.mlir"
    assert (
        main([_file(tmp_path, STABLEHLO), "--pass-pipeline=dce-hlo", "--timing", "-o", str(out)])
        == 0
    )
    assert "hlov.reduce" in out.read_text()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dce-hlo" in captured.err


def test_printing_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [_file(tmp_path, STABLEHLO), "--pass-pipeline=dce-hlo,cse-hlo", "--print-after=cse-hlo"]
        )
        == 0
    )
    err = capsys.readouterr().err
    assert err.count("IR after") == 1
    assert "IR after cse-hlo" in err


def test_list_passes_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-passes"]) == 0
    out = capsys.readouterr().out
    for name in registry.PASSES:
        assert f"\n{name}\n" in f"\n{out}"
    assert "limit-bytes : int = 4096" in out


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            INVALID,
            ["--pass-pipeline=verify-hlo"],
            "input.mlir:3:8: hlo.negate: operand 0 must have",
        ),
        ("func.func @f(", [], "input.mlir:1:13: expected non-function type"),
        (STABLEHLO, ["--pass-pipeline=nonsense"], "'nonsense' is no pass of ours"),
        (
            STABLEHLO,
            ["--pass-pipeline=dce-hlo", "--print-after=x"],
            "the pipeline has no stage 'x'",
        ),
        (
            STABLEHLO,
            ["-o", "/nowhere/at/all.mlir"],
            "cannot write /nowhere/at/all.mlir: No such file",
        ),
    ],
)
def test_errors_are_one_line(
    text: str,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([_file(tmp_path, text), *arguments]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("gristmill-opt: error: ")
    assert message in err


def test_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no/such/file.mlir"]) == 1
    assert "cannot read no/such/file.mlir: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("comment", "status", "message"),
    [
        ("// expected-error {{hlo.negate}}", 0, ""),
        ("// expected-error {{something else}}", 1, "expected error 'something else', got"),
        ("", 1, "unexpected error: "),
    ],
)
def test_expected_errors(
    comment: str, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{comment}{INVALID}// -----\n{STABLEHLO}"
    flags = ["--split-input-file", "--verify-diagnostics", "--pass-pipeline=verify-hlo"]
    assert main([_file(tmp_path, text), *flags]) == status
    assert message in capsys.readouterr().err


def test_an_expected_error_that_does_not_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"// expected-error {{{{boom}}}}\n{STABLEHLO}"
    assert main([_file(tmp_path, text), "--verify-diagnostics"]) == 1
    assert "expected error 'boom', got 'none'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("tensor<3xf32>", np.array([1.0, -0.0, 3.5], np.float32)),
        ("tensor<2x2xui8>", np.array([[1, 2], [3, 255]], np.uint8)),
        ("tensor<3xi1>", np.array([True, False, True])),
        ("tensor<0xf64>", np.zeros(0)),
    ],
)
def test_resources_round_trip(kind: str, data: np.ndarray) -> None:
    module = parse_module(RESOURCE.replace("TYPE", kind).replace("BLOB", data.tobytes().hex()))
    np.testing.assert_array_equal(module.constants["w"], data)
    assert module.constants["w"].dtype == data.dtype
    text = print_module(module)
    again = parse_module(text)
    np.testing.assert_array_equal(again.constants["w"], data)
    assert print_module(again) == text
    assert "dialect_resources" not in print_module(module, resources=False)


def test_resource_of_the_wrong_size() -> None:
    with pytest.raises(ParseError, match="resource 'w' has 4 bytes but tensor<3xf32> needs 12"):
        parse_module(RESOURCE.replace("TYPE", "tensor<3xf32>").replace("BLOB", "0000803F"))
