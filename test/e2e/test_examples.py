# SPDX-License-Identifier: Apache-2.0
"""The examples run, and the wheel holds all that is needed to import the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np

import gristmill

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "examples" / "models"


def test_the_recorded_model_gives_the_recorded_results() -> None:
    with np.load(MODELS / "transformer.in.npz") as arrays:
        inputs = [arrays[f"arg{i}"] for i in range(len(arrays.files))]
    with np.load(MODELS / "transformer.out.npz") as arrays:
        probabilities, tokens = arrays["out0"], arrays["out1"]
    got = gristmill.compile(MODELS / "transformer.mlir")(*inputs)
    assert isinstance(got, tuple)
    np.testing.assert_allclose(got[0], probabilities, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got[1], tokens)


def test_the_pipeline_example_runs() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "pipeline.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "inline-calls -> symbol-dce ->" in result.stdout
    assert "1 constants changed" in result.stdout
    assert "kernels by kind:" in result.stdout


def test_the_custom_call_example_runs() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "custom_call.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rows: [[3.0, 2.0, 1.0, 0.0], [9.0, 7.0, 5.0, 1.0]]\nfirst: [3.0, 2.0" in result.stdout
    assert "error: custom call @acme.sort_rows: result 0" in result.stdout


def test_the_wheel_imports_outside_the_checkout(tmp_path: Path) -> None:
    """Built from a copy of the sources, unpacked where only the dependencies are, every module imported."""
    source = tmp_path / "source"
    for folder in ("gristmill", "compiler", "dialects", "runtime"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gristmill/py.typed", "gristmill/runtime/custom_call.h"} <= set(names)
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a pure wheel, scripts aside
        archive.extractall(site)
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.endswith(".py") and not name.endswith("__main__.py")
    ]
    assert len(modules) > 50
    others = [p for p in sys.path if p.endswith("site-packages")]
    program = (
        f"import sys\nsys.path += {others!r}\nimport importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import gristmill\nprint(gristmill.__file__)"
    )
    python = environment / "bin" / "python"
    result = subprocess.run(
        [python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(site / "gristmill" / "__init__.py")
