# SPDX-License-Identifier: Apache-2.0
"""Artifacts of device programs: what is saved is loaded, what is wrong is refused, and what loading needs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_programs import CHOICE, DOUBLING, PRODUCTS, ROWS, device_program, random_array

import gristmill
from gristmill.errors import ArtifactError, InputError
from gristmill.runtime import artifact
from gristmill.runtime.device_program import DeviceProgram, Images

program = lru_cache(maxsize=None)(device_program)

LARGE = """
func.func @main(%x: tensor<512xf32>) -> tensor<512xf32> {
  %c = stablehlo.constant dense_resource<c> : tensor<512xf32>
  %r = stablehlo.add %x, %c : tensor<512xf32>
  return %r : tensor<512xf32>
}
"""


def with_constant(text: str) -> str:
    values = ", ".join(f"{v}.5" for v in range(512))
    return text.replace("dense_resource<c>", f"dense<[{values}]>")


@pytest.mark.parametrize("text", [ROWS, DOUBLING, CHOICE, PRODUCTS, with_constant(LARGE)])
def test_what_is_saved_is_loaded(text: str, tmp_path: Path) -> None:
    saved = program(text, ("ptx", "simulator"))
    artifact.save(saved, tmp_path / "a")
    loaded = artifact.load(tmp_path / "a")
    assert isinstance(loaded, DeviceProgram)
    for field in ("name", "chip", "inputs", "outputs", "arena_bytes", "kernels", "steps", "images"):
        assert getattr(loaded, field) == getattr(saved, field), field
    assert loaded.images.kinds == ("ptx", "simulator")
    for old, new in zip(saved.constants, loaded.constants, strict=True):
        np.testing.assert_array_equal(new, old)
        assert new.ctypes.data % 64 == 0
        assert not new.flags.writeable, "mapped from the file"
    artifact.save(loaded, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_loaded_program_runs(tmp_path: Path) -> None:
    artifact.save(program(with_constant(LARGE)), tmp_path / "a")
    x = random_array(512)
    with gristmill.load(tmp_path / "a", device="simulator") as executable:
        got = executable(x)
        executable.save(tmp_path / "b")
    np.testing.assert_array_equal(got, x + (np.arange(512, dtype=np.float32) + np.float32(0.5)))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_program_for_a_cpu_has_no_device(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with gristmill.compile(ROWS, options=gristmill.CompileOptions(cache=False)) as executable:
        executable.save(path)
    with pytest.raises(InputError, match="was compiled for a CPU; it cannot run on simulator"):
        gristmill.load(path, device="simulator")


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply ``change`` to the manifest."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            artifact._write_member(archive, name, [data])


def launch_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in manifest["steps"] if step["step"] == "launch")


def nest(manifest: dict[str, Any]) -> None:
    for _ in range(70):
        predicate = ["arena", 0, 0, 1]
        loop = {"step": "while", "predicate": predicate, "cond": [], "body": manifest["steps"]}
        manifest["steps"] = [loop]


def replace_range(key: str, place: list[Any]) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: launch_of(manifest)[key].__setitem__(0, place)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(abi=99), r"abi version 99 is not supported, only 1"),
        (lambda m: m.update(images=["kernels.exe"]), r"images .* are not among"),
        (lambda m: m.update(images=["kernels.cubin"]), r"no size and checksum for kernels.cubin"),
        (lambda m: m.update(arena_bytes=0), r"lies outside its 0 bytes"),
        (lambda m: launch_of(m).update(kernel=7), r"there is no kernel 7"),
        (lambda m: launch_of(m).update(kernel=-1), r"negative 'kernel'"),
        (lambda m: launch_of(m)["reads"].clear(), r"takes \d arguments, not \d"),
        (lambda m: launch_of(m).update(step="jump"), r"steps\[\d\] is a step of unknown kind"),
        (replace_range("reads", ["input", 9, 0, 4]), r"there is no input 9"),
        (replace_range("reads", ["attic", 0, 0, 4]), r"has no valid 'reads' \(a range expected\)"),
        (replace_range("reads", ["arena", 0, True, 4]), r"has no valid 'reads'"),
        (replace_range("reads", ["arena", 0, -64, 4]), r"lies outside"),
        (replace_range("reads", ["arena", 0, 4, 4]), r"is not aligned to 16"),
        (replace_range("writes", ["input", 0, 0, 4]), r"is written, but may only be read"),
        (replace_range("writes", ["output", 0, 0, 1 << 40]), r"lies outside its"),
        (lambda m: m["kernels"][0].update(grid=[0, 1, 1]), r"has launch extents"),
        (lambda m: m["kernels"][0].update(block=[64, 1]), r"no valid 'block' \(3 integers\)"),
        (nest, r"steps are nested more than 64 deep"),
        (lambda m: m["simulator"].update(objects=["ghost.o"]), r"no size and checksum for ghost.o"),
    ],
)
def test_bad_manifests(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    artifact.save(program(PRODUCTS, ("ptx", "simulator")), tmp_path / "a")
    rewrite(tmp_path / "a", change)
    with pytest.raises(ArtifactError, match=message):
        artifact.load(tmp_path / "a")


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    artifact.save(program(ROWS, ("ptx", "simulator")), tmp_path / "a")
    data = bytearray((tmp_path / "a").read_bytes())
    at = data.index(b".visible .entry")
    data[at] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"is corrupt|not an artifact"):
        artifact.load(tmp_path / "a")


def test_another_cpus_simulator_code_is_refused_where_it_would_run(tmp_path: Path) -> None:
    artifact.save(program(ROWS, ("ptx", "simulator")), tmp_path / "a")
    rewrite(tmp_path / "a", lambda m: m["simulator"].update(triple="pdp11-unix"))
    assert artifact.load(tmp_path / "a").images != Images()
    with pytest.raises(ArtifactError, match="compiled for pdp11-unix"):
        gristmill.load(tmp_path / "a", device="simulator")


def test_loading_needs_no_compiler_and_no_llvm(tmp_path: Path) -> None:
    artifact.save(program(ROWS, ("ptx",)), tmp_path / "a")
    script = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mlir", "llvm", "jax", "jaxlib", "scipy"):
            raise ImportError(name + " is not installed here")
sys.meta_path.insert(0, Block())
sys.path.insert(0, {str(Path(__file__).parents[1] / "cuda_driver")!r})
import software_driver
driver = software_driver.SoftwareDriver(software_driver.build())
import gristmill
with gristmill.load({str(tmp_path / "a")!r}, device="cuda") as executable:
    print(executable)
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "on cuda:0" in result.stdout
