# SPDX-License-Identifier: Apache-2.0
"""The suites on a real device, and the script that runs them where nothing but cuda-python is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from software_driver import build

SCRIPT = Path(__file__).parents[1] / "gpu" / "run_on_gpu.sh"

#: Lets a process import nothing that is installed, except what the script may need.
ONLY = """
import sys
from importlib.machinery import PathFinder

class Only(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = PathFinder.find_spec(name, path, target)
        origin = str(getattr(found, "origin", None) or "")
        top = name.partition(".")[0]
        if "site-packages" in origin and top not in ("numpy", "ml_dtypes", "cuda"):
            raise ModuleNotFoundError(f"{name} would not be installed there", name=name)
        return found

sys.meta_path[:] = [Only if f is PathFinder else f for f in sys.meta_path]
"""


def run_script(*arguments, **environment):
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.gpu
def test_the_suites_on_a_real_device():
    result = run_script()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Software CUDA device" not in result.stdout


def test_the_script_needs_nothing_else(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ONLY)
    driver = str(build().parent)
    result = run_script("--bytes", "100000", LD_LIBRARY_PATH=driver, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed, 0 failed in " in result.stdout
    assert int(result.stdout.split(" passed, ")[0].split()[-1]) > 100
    assert "not run: test_runtime" not in result.stdout
    for line in ("h2d pageable", "d2h pageable", "h2d pinned", "d2h pinned", "d2d", "launch"):
        assert f"\n{line}" in result.stdout


def test_the_script_tells_of_failures():
    driver = str(build().parent)
    result = run_script(LD_LIBRARY_PATH=driver, GM_SIM_FAIL="cuMemAllocAsync:9:999")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "FAILED test_runtime_devices::test_" in result.stdout
    assert "cuMemAllocAsync failed with CUDA_ERROR_UNKNOWN" in result.stderr


def test_the_script_needs_a_device():
    driver = str(build().parent)
    result = run_script(LD_LIBRARY_PATH=driver, GM_SIM_DEVICES="0")
    assert result.returncode == 1
    assert result.stdout.startswith("no CUDA device: cuInit failed with CUDA_ERROR_NO_DEVICE")
