# SPDX-License-Identifier: Apache-2.0
"""``gristmill bench`` on real files: what it writes, and what a user sees when it cannot."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.compiler.driver.main import main

MODEL = """\
func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x80xf32>) -> tensor<64x80xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x96xf32>, tensor<96x80xf32>) -> tensor<64x80xf32>
  return %0 : tensor<64x80xf32>
}
"""
QUICK = ("--seconds", "0.01")

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    Path("model.mlir").write_text(MODEL)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["bench", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_files_for_programs(cli: Cli) -> None:
    files = ("--json", "t.json", "--chart", "t.svg")
    code, out, err = cli("model.mlir", "--threads", "1", *QUICK, *files)
    assert (code, err) == (0, "")
    assert "1 thread" in out
    data = json.loads(Path("t.json").read_text())
    kernels = {k["kind"]: k for k in data["kernels"]}
    assert kernels["dot"]["flops"] == 2 * 64 * 96 * 80
    assert kernels["dot"]["launches"] == 1
    assert 0 < kernels["dot"]["seconds"] < data["run_seconds"]["median"] * 50
    assert data["memory_bytes"]["inputs"] == 4 * (64 * 96 + 96 * 80)
    ElementTree.parse("t.svg")


def test_given_inputs_are_used(cli: Cli) -> None:
    np.savez("in.npz", arg0=np.ones((64, 96), np.float32), arg1=np.ones((96, 80), np.float32))
    assert cli("model.mlir", "--inputs", "in.npz", *QUICK)[0] == 0
    np.savez("in.npz", arg0=np.ones((64, 95), np.float32), arg1=np.ones((96, 80), np.float32))
    code, _, err = cli("model.mlir", "--inputs", "in.npz", *QUICK)
    assert code == 1
    assert "64x95" in err or "[64, 95]" in err or "(64, 95)" in err


def test_dynamic_shapes_are_made_concrete(cli: Cli) -> None:
    Path("any.mlir").write_text(
        "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n"
        "  %0 = stablehlo.exponential %x : tensor<?xf32>\n  return %0 : tensor<?xf32>\n}\n"
    )
    code, _, err = cli("any.mlir", *QUICK)
    assert code == 1
    assert "give --shape" in err
    code, out, _ = cli("any.mlir", "--shape", "0=5000", *QUICK)
    assert code == 0
    assert "exponential" in out


def test_other_signatures_cannot_be_compared(cli: Cli) -> None:
    Path("other.mlir").write_text(MODEL.replace("64x96", "32x96").replace("64x80", "32x80"))
    code, _, err = cli("model.mlir", "--compare", "other.mlir", *QUICK)
    assert code == 1
    assert "cannot be compared: their inputs are" in err


def test_an_artifact_has_no_chart(cli: Cli) -> None:
    assert main(["compile", "model.mlir", "-o", "model.gmill"]) == 0
    code, _, err = cli("model.gmill", "--chart", "t.svg", *QUICK)
    assert code == 1
    assert "no chart: model.gmill is an artifact" in err
    assert not Path("t.svg").exists()


@pytest.mark.parametrize("option", ["--threads=0", "--seconds=0", "--seconds=nan", "--top=-1"])
def test_impossible_numbers(cli: Cli, option: str) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli("model.mlir", option)
    assert exit_info.value.code == 2
