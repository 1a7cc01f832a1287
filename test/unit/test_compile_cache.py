# SPDX-License-Identifier: Apache-2.0
"""Compiling through the cache on disk: what is a hit, what is not, and what goes wrong without harm."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import gristmill
from gristmill.compiler import cache, compile, frontends
from gristmill.compiler.codegen.host import host_target
from gristmill.compiler.compile import import_source
from gristmill.compiler.module import HloModule
from gristmill.compiler.options import DEFAULT_PIPELINE, CompileOptions
from gristmill.errors import CacheWarning
from gristmill.runtime import artifact, knobs

ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
ONES = np.ones(4, np.float32)


class Counter:
    """Counts the compilations while it stands in for the compiler."""

    def __init__(self) -> None:
        self.count = 0
        self.original = compile.compile_stages

    def __call__(self, *args: Any, **kwargs: Any) -> compile.Compilation:
        self.count += 1
        return self.original(*args, **kwargs)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    monkeypatch.setattr(compile, "compile_stages", counter)
    return counter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """A test that does not expect a ``CacheWarning`` fails when there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        yield


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gmill"))


def run(source: Any, folder: Path, **options: Any) -> Any:
    return gristmill.compile(source, options=CompileOptions(cache=folder, **options))(ONES)


def test_the_second_compilation_is_found(compilations: Counter, folder: Path) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(run(ADD, folder), 2 * ONES)
    assert (compilations.count, len(entries(folder))) == (1, 1)


def test_sources_of_the_same_content_share_an_entry(
    compilations: Counter, folder: Path, tmp_path: Path
) -> None:
    for place in ("a", "b"):
        path = tmp_path / place / "add.mlir"
        path.parent.mkdir()
        path.write_text(ADD)
        run(path, folder)
        run(str(path), folder)
    assert compilations.count == 1


def test_a_nameless_module_is_named_by_its_file(
    compilations: Counter, folder: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        path = tmp_path / f"{name}.mlir"
        path.write_text(ADD)
        for _ in range(2):
            with gristmill.compile(path, options=CompileOptions(cache=folder)) as executable:
                assert executable.name == name
    assert compilations.count == 2


def test_a_jax_lowered_is_found(compilations: Counter, folder: Path) -> None:
    for factor in (3, 3, 4):
        lowered = jax.jit(lambda x, k=factor: x * k).lower(ONES)
        np.testing.assert_array_equal(run(lowered, folder), factor * ONES)
    assert compilations.count == 2


def test_gristmill_jit_is_found(compilations: Counter, folder: Path) -> None:
    for _ in range(2):
        fast = gristmill.jit(lambda x: x + 1, options=CompileOptions(cache=folder))
        np.testing.assert_array_equal(fast(ONES), 2 * ONES)
    assert compilations.count == 1


def test_specialisations_are_entries(compilations: Counter, folder: Path) -> None:
    shape = export.symbolic_shape("b, 4")
    traced = export.export(jax.jit(lambda x: jnp.sum(x, 0)))(
        jax.ShapeDtypeStruct(shape, np.float32)
    )
    options = CompileOptions(cache=folder)
    for _ in range(2):
        executable = gristmill.compile(traced, options=options)
        for rows in (1, 2, 3):
            np.testing.assert_array_equal(
                executable(np.ones((rows, 4), np.float32)), np.full(4, rows)
            )
    assert (compilations.count, len(entries(folder))) == (3, 3)


def test_off_by_knob_and_option(compilations: Counter, folder: Path) -> None:
    with knobs.CACHE_DIR.scope(str(folder)):
        for setting, knob, used in (
            (None, "0", False),
            (False, "1", False),
            (None, "1", True),
            (True, "0", True),
        ):
            with knobs.CACHE.scope(knob):
                gristmill.compile(ADD, options=CompileOptions(cache=setting))
            assert len(entries(folder)) == used
            for path in entries(folder):
                path.unlink()
    assert compilations.count == 4


def double_add(module: HloModule) -> None:
    """A pass that is a Python function: the sources do not cover what it does."""


def test_what_cannot_be_cached_is_compiled(compilations: Counter, folder: Path) -> None:
    pipeline = gristmill.Pipeline(DEFAULT_PIPELINE)
    pipeline.append(double_add)
    for _ in range(2):
        run(import_source(ADD), folder)
        run(ADD, folder, pipeline=pipeline)
        run(ADD, folder, verify=True)
    assert compilations.count == 6
    assert not folder.exists()


def test_a_pipeline_and_its_text_share_an_entry(compilations: Counter, folder: Path) -> None:
    text = DEFAULT_PIPELINE.replace("cse-hlo", "canonicalize,cse-hlo")
    run(ADD, folder, pipeline=gristmill.Pipeline(text))
    run(ADD, folder, pipeline=gristmill.Pipeline(text))
    assert compilations.count == 1


CONTENT = frontends.Content(ADD.encode(), "add.mlir")


def key(content: frontends.Content = CONTENT, target: Any = None, **options: Any) -> str:
    slot = cache.slot_of(content, target or host_target(), CompileOptions(**options))
    assert slot is not None
    return slot.key


@pytest.fixture
def default_cache(folder: Path) -> Iterator[None]:
    with knobs.CACHE_DIR.scope(str(folder)), knobs.CACHE.scope("1"):
        yield


#: Another value for each field of CompileOptions that is part of the key.
OTHER_OPTIONS = {
    "pipeline": "dce-hlo,fuse",
    "fold_constants": False,
    "images": ("ptx",),
    "autotune": True,
}


@pytest.mark.usefixtures("default_cache")
def test_every_option_is_in_the_key() -> None:
    names = {field.name for field in dataclasses.fields(CompileOptions)}
    assert names == {*OTHER_OPTIONS, "verify", "jobs", "cache"}, "say here what a new option does"
    keys = [key(), *(key(**{name: value}) for name, value in OTHER_OPTIONS.items())]
    assert len(set(keys)) == len(keys)
    assert key() == key(jobs=1), "threads that compile do not matter"


@pytest.mark.usefixtures("default_cache")
def test_every_field_of_the_target_is_in_the_key() -> None:
    target = host_target()
    keys = {key()}
    for field in dataclasses.fields(target):
        old = getattr(target, field.name)
        new = not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}x"
        keys.add(key(target=dataclasses.replace(target, **{field.name: new})))
    assert len(keys) == 1 + len(dataclasses.fields(target))


@pytest.mark.usefixtures("default_cache")
def test_content_and_name_are_in_the_key() -> None:
    assert key() == key(frontends.Content(ADD.encode(), "elsewhere/add.mlir"))
    assert key() != key(frontends.Content(ADD.encode() + b"\n", "add.mlir"))
    assert key() != key(frontends.Content(ADD.encode(), "sub.mlir"))
    assert cache.digest([b"ab", b"c"]) != cache.digest([b"a", b"bc"])


@pytest.mark.usefixtures("default_cache")
def test_the_compiler_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(cache, "fingerprint", lambda: b"another compiler")
    assert key() != before


def test_sources_are_fingerprinted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gristmill_copy"
    (package / "inner").mkdir(parents=True)
    (package / "driver").mkdir()
    for name in ("__init__.py", "inner/a.py", "driver/b.py"):
        (package / name).write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cache, "_SOURCES", ("gristmill_copy",))
    fingerprint = cache.fingerprint.__wrapped__
    first = fingerprint()
    (package / "driver" / "b.py").write_text("x = 2\n")
    os.utime(package / "inner" / "a.py", (1, 1))
    assert fingerprint() == first, "times and the command line do not matter"
    (package / "inner" / "a.py").write_text("x = 2\n")
    second = fingerprint()
    (package / "inner" / "a.py").rename(package / "inner" / "c.py")
    assert len({first, second, fingerprint()}) == 3
    monkeypatch.setattr(cache, "find_package", lambda name: None)
    assert fingerprint() not in (first, second), "package versions matter"


def test_nothing_is_stored_when_the_sources_changed_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "fingerprint", lambda: b"what it was when the process started")
    run(ADD, folder)
    assert entries(folder) == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_entry_is_compiled_again(
    compilations: Counter, folder: Path, damage: str
) -> None:
    run(ADD, folder)
    (path,) = entries(folder)
    good = path.read_bytes()
    middle = good.index(b"\x7fELF") + 200
    path.write_bytes(
        {
            "truncated": good[: len(good) // 2],
            "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            "empty": b"",
            "text": b"hello",
        }[damage]
    )
    np.testing.assert_array_equal(run(ADD, folder), 2 * ONES)
    assert compilations.count == 2
    assert entries(folder) == [path]
    assert path.read_bytes() == good


def test_a_directory_that_cannot_be_used_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder, text in (
        (tmp_path / "file" / "cache", r"GRISTMILL_CACHE=0 turns it off\): .*Not a directory"),
        (open_to_all, r"others may write to"),
    ):
        with pytest.warns(CacheWarning, match=text):
            np.testing.assert_array_equal(run(ADD, folder), 2 * ONES)
    assert list(open_to_all.iterdir()) == []


def test_a_warning_names_the_line_that_compiles(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(CacheWarning) as caught:
        gristmill.compile(ADD, options=CompileOptions(cache=tmp_path))
    assert caught[0].filename == __file__


def test_an_entry_that_cannot_be_written_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(archive: object, name: str, chunks: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact, "_write_member", full)
    with pytest.warns(CacheWarning, match="No space left on device") as caught:
        executable = gristmill.compile(ADD, options=CompileOptions(cache=folder))
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(executable(ONES), 2 * ONES)
    assert list(folder.iterdir()) == []


def python(code: str, folder: Path) -> subprocess.Popen[str]:
    """A fresh process that uses the cache in ``folder``."""
    environment = {**os.environ, "GRISTMILL_CACHE": "1", "GRISTMILL_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


RUN = f"""
import sys, numpy, gristmill
result = gristmill.compile({ADD!r}, options=gristmill.CompileOptions(fold_constants=True))
assert list(result(numpy.ones(4, numpy.float32))) == [2, 2, 2, 2]
print(*sorted({{"mlir", "jaxlib", "jax"}} & {{name.partition(".")[0] for name in sys.modules}}))
"""


def test_a_found_program_needs_no_compiler(folder: Path) -> None:
    assert outcome(python(RUN, folder)) == "jaxlib mlir\n"
    assert outcome(python(RUN, folder)) == "\n"


def test_processes_that_race_for_an_entry_both_succeed(folder: Path) -> None:
    racers = [python(RUN, folder) for _ in range(3)]
    for racer in racers:
        assert "Warning" not in outcome(racer)
    assert [path.name for path in folder.iterdir()] == [entries(folder)[0].name]
    assert outcome(python(RUN, folder)) == "\n"


def test_a_file_that_the_system_cuts_short_is_a_warning(folder: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
    assert "CacheWarning" in outcome(python(limit + RUN, folder))
    assert list(folder.iterdir()) == []
