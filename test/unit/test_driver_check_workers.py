# SPDX-License-Identifier: Apache-2.0
"""Worker processes of ``gristmill check``: order, crashes and hangs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from gristmill.compiler.driver.check_runner import Outcome, generalise, unsupported_causes
from gristmill.compiler.driver.check_workers import CheckFunction, check_parallel
from gristmill.errors import UnsupportedError

FAKE = """
import os, signal, time
from gristmill.compiler.driver.check_runner import Outcome

def check(path):
    if path.name == "abort":
        os.abort()
    if path.name == "exit":
        os._exit(3)
    if path.name == "hang":
        time.sleep(60)
    return Outcome(str(path), () if path.name.startswith("good") else ("bad",))
"""


@pytest.fixture
def fake_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckFunction:
    """A stand-in that misbehaves by file name, importable by the workers."""
    (tmp_path / "fake_module_check.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("fake_module_check").check


def causes(outcomes: list[Outcome]) -> dict[str, tuple[str, ...]]:
    return {outcome.path: outcome.causes for outcome in outcomes}


def test_a_crash_costs_one_module(fake_check: CheckFunction) -> None:
    names = ["good1", "abort", "good2", "exit", "bad", "good3"]
    outcomes = list(check_parallel([Path(n) for n in names], 2, 30, fake_check))
    assert causes(outcomes) == {
        "good1": (),
        "good2": (),
        "good3": (),
        "bad": ("bad",),
        "abort": ("crash: died of SIGABRT",),
        "exit": ("crash: exited with code 3",),
    }


def test_a_hang_ends_at_the_timeout(fake_check: CheckFunction) -> None:
    outcomes = list(check_parallel([Path("hang"), Path("good")], 1, 3, fake_check))
    assert causes(outcomes) == {"hang": ("timeout",), "good": ()}


def test_unsupported_items_lose_place_and_shape() -> None:
    error = UnsupportedError(
        "2 things",
        items=(
            "m.mlir:3:5: stablehlo.fft: not supported for tensor<4x8xcomplex<f32>>",
            "m.mlir:9:1: stablehlo.fft: not supported for tensor<16xcomplex<f32>>",
        ),
    )
    assert unsupported_causes(error) == ["stablehlo.fft: not supported for tensor<complex<f32>>"]


def test_an_unsupported_element_type_is_one_cause_whatever_the_op() -> None:
    items = (
        "m.mlir:3:5: stablehlo.add: element type complex<f64> is not supported yet",
        "m.mlir:4:5: stablehlo.negate: element type complex<f64> is not supported yet",
    )
    error = UnsupportedError("2 things", items=items)
    assert unsupported_causes(error) == ["element type complex<f64>"]


def test_equal_faults_read_equal() -> None:
    a = generalise("%12 of 3x4xf32 at a.mlir:1:2 needs 17 bytes")
    assert a == generalise("%3 of 9xf32 at b.mlir:71:20 needs 4 bytes")
    assert a == "N of f32 at FILE needs N bytes"
