# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import add_program, arena_program

from gristmill.errors import ArtifactError, GristmillError
from gristmill.runtime import artifact
from gristmill.runtime.load import load
from gristmill.runtime.program import Program


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.grist"
    artifact.save(arena_program(), path)
    return path


def rewrite(
    path: Path,
    *,
    manifest: Callable[[dict[str, Any]], None] | None = None,
    members: Callable[[dict[str, bytes]], None] | None = None,
    compress: bool = False,
) -> None:
    """Change an artifact's manifest or members in place."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    if members:
        members(content)
    if manifest:
        fields = json.loads(content["manifest.json"])
        manifest(fields)
        content["manifest.json"] = json.dumps(fields).encode()
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def test_round_trip(saved: Path) -> None:
    program, back = arena_program(), artifact.load(saved)
    for field in ("name", "inputs", "outputs", "arena_bytes", "scratch_bytes", "entry", "parallel"):
        assert getattr(back, field) == getattr(program, field)
    assert list(back.objects) == list(program.objects)
    for old, new in zip(program.constants, back.constants, strict=True):
        np.testing.assert_array_equal(new, old)
        assert new.dtype == old.dtype
        assert new.ctypes.data % 64 == 0, "constants are used in place"
        assert not new.flags.writeable
    with load(saved) as executable:
        assert [float(r) for r in executable(np.float32(1), threads=3)] == [3.5, 3.0]


def test_signature_survives(tmp_path: Path) -> None:
    artifact.save(add_program(alias=True), tmp_path / "a")
    back = artifact.load(tmp_path / "a")
    assert (back.inputs[0].donated, back.inputs[0].alias, back.outputs[0].alias) == (True, 0, 0)
    assert str(back.inputs[1].type) == "8xf32"


def test_members_are_stored_and_aligned_and_files_reproducible(tmp_path: Path) -> None:
    artifact.save(arena_program(), tmp_path / "a")
    artifact.save(arena_program(), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert archive.testzip() is None
        assert all(i.compress_type == zipfile.ZIP_STORED for i in archive.infolist())
        manifest = json.loads(archive.read("manifest.json"))
        for name, member in manifest["members"].items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == member["sha256"]


def test_saving_is_atomic(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(archive: object, name: str, chunks: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact, "_write_member", fail)
    with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device"):
        artifact.save(add_program(), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_unwritable_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write .*No such file or directory"):
        artifact.save(add_program(), tmp_path / "no" / "such" / "folder")
    with pytest.raises(ArtifactError, match=r"cannot read .*No such file or directory"):
        load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ArtifactError, match="is not an artifact, or truncated"):
        load(tmp_path / "text")


def test_every_truncation_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for length in range(0, len(data), 97):
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            load(saved)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    damaged = bytearray(SAVED)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        program = artifact.load(path)
    except GristmillError:
        return
    # Padding and dates of the archive may change; what is used may not.
    assert list(program.objects) == list(REFERENCE.objects)
    for old, new in zip(REFERENCE.constants, program.constants, strict=True):
        np.testing.assert_array_equal(new, old)


def set_field(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_field("format", 99), r"format version 99 is not supported, only 2"),
        (set_field("kind", "abacus"), r"programs of kind 'abacus' are not known"),
        (set_field("abi", 0), r"abi version 0 is not supported"),
        (set_field("name", 3), r"manifest has no valid 'name' \(str expected\)"),
        (set_field("parallel", 1), r"no valid 'parallel' \(bool expected\)"),
        (set_field("arena_bytes", True), r"no valid 'arena_bytes'"),
        (set_field("arena_bytes", -64), r"negative 'arena_bytes'"),
        (set_field("objects", [1]), r"objects holds more than strings"),
        (set_field("objects", ["ghost.o"]), r"no size and checksum for ghost.o"),
        (set_field("inputs", [{}]), r"inputs\[0\] has no valid 'name'"),
        (lambda f: f["inputs"][0].update(type="3xf99"), r"element type 'f99' is not supported"),
        (lambda f: f["inputs"][0].update(type="-3xf32"), r"'-3xf32' is malformed"),
        (lambda f: f["inputs"][0].update(alias=7), r"x aliases something that cannot fit"),
        (lambda f: f["constants"][1].update(offset=32), r"constant 1 lies outside"),
        (lambda f: f["constants"][1].update(offset=1 << 40), r"constant 1 lies outside"),
        (lambda f: f["constants"][0].update(size=8), r"size that is not its type's"),
        (lambda f: f["members"]["object0.o"].update(size=1), r"object0.o is corrupt"),
        (lambda f: f["target"].update(triple="pdp11-unix"), r"compiled for pdp11-unix"),
        (
            lambda f: f["target"].update(features="+sse,+avx9000,-avx2"),
            r"lacks: avx9000; compile it with GRISTMILL_CPU",
        ),
    ],
)
def test_bad_manifests(saved: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    rewrite(saved, manifest=change)
    with pytest.raises(ArtifactError, match=message):
        load(saved)


@pytest.mark.parametrize("member", ["manifest.json", "object0.o", "constants.bin"])
def test_missing_members(saved: Path, member: str) -> None:
    rewrite(saved, members=lambda content: content.pop(member))
    with pytest.raises(ArtifactError, match=f"has no {member}; it is incomplete"):
        load(saved)


def test_compressed_members_are_refused(saved: Path) -> None:
    rewrite(saved, compress=True)
    with pytest.raises(ArtifactError, match=r"manifest\.json is corrupt \(compressed or encrypted"):
        load(saved)


@pytest.mark.parametrize("member", ["manifest.json", "object0.o", "constants.bin"])
@pytest.mark.parametrize(("offset", "bit"), [(8, 1), (10, 8), (10, 12), (10, 14), (46, 0x80)])
def test_a_flipped_bit_in_the_directory_is_refused(
    saved: Path, member: str, offset: int, bit: int
) -> None:
    """Encrypted; deflate, bzip2, LZMA, which may not even be there; a name that is no text."""
    data = bytearray(saved.read_bytes())
    entry = data.rindex(b"PK\1\2", 0, data.rindex(member.encode()))
    data[entry + offset] ^= bit
    if offset == 46:
        data[entry + 9] ^= 8  # names are UTF-8
    saved.write_bytes(data)
    with pytest.raises(ArtifactError):
        load(saved)


def test_unneeded_cpu_features_do_not_matter(saved: Path) -> None:
    program = artifact.load(saved)
    program.target_features = "+sse2,+rtm-of-another-machine"
    artifact.save(program, saved)
    load(saved).close()


def test_loading_imports_no_compiler(saved: Path) -> None:
    script = (
        "import sys\n"
        "from gristmill.runtime.load import load\n"
        "import numpy as np\n"
        f"assert float(load({str(saved)!r})(np.float32(1))[0]) == 3.5\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('mlir', 'jaxlib', 'jax')"
        " or m.startswith(('gristmill.compiler', 'gristmill.dialects'))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def _saved_bytes() -> tuple[Program, bytes]:
    program = arena_program()
    with tempfile.TemporaryDirectory() as folder:
        artifact.save(program, Path(folder) / "a")
        return program, (Path(folder) / "a").read_bytes()


REFERENCE, SAVED = _saved_bytes()
