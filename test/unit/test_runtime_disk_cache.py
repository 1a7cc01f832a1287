# SPDX-License-Identifier: Apache-2.0
"""The cache directory: privacy, atomic entries, the limit, and what happens when something is in the way."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import pytest
from cache_support import content, hammer

from gristmill.errors import CacheError
from gristmill.runtime import disk_cache, knobs
from gristmill.runtime.atomic import replacing
from gristmill.runtime.disk_cache import DiskCache, default_folder, open_cache

A, B, C = (letter * 64 + ".bin" for letter in "abc")
LIMIT = 1000


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", LIMIT)


def age(cache: DiskCache, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(cache.folder / name, (then, then))


def names(cache: DiskCache) -> list[str]:
    return [entry.name for entry in cache.entries()]


def test_what_is_stored_is_found(cache: DiskCache) -> None:
    assert cache.find(A) is None
    assert cache.store(A, content(10))
    path = cache.find(A)
    assert path is not None
    assert path.read_bytes() == b"x" * 10
    cache.discard(A)
    assert cache.find(A) is None
    cache.discard(A)


def test_directory_and_files_are_private(cache: DiskCache) -> None:
    cache.store(A, content(10))
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert (cache.folder / A).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(CacheError, match=r"others may write to .*chmod go-w"):
        DiskCache(tmp_path, LIMIT)


def test_a_directory_others_may_read_is_accepted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    DiskCache(tmp_path, LIMIT)


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(CacheError, match=rf"belongs to user {me}, not .*, {me + 1}: code"):
        DiskCache(tmp_path, LIMIT)


def test_a_file_another_user_could_have_written_is_not_found(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(A, content(10))
    (cache.folder / A).chmod(0o666)
    assert cache.find(A) is None
    (cache.folder / A).chmod(0o600)
    assert cache.find(A) is not None
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cache.find(A) is None


def test_a_link_is_not_followed(cache: DiskCache, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"code")
    (cache.folder / A).symlink_to(tmp_path / "elsewhere")
    assert cache.find(A) is None


def test_what_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"file/cache: Not a directory"):
        DiskCache(tmp_path / "file" / "cache", LIMIT)
    with pytest.raises(CacheError, match=r"file: File exists"):
        DiskCache(tmp_path / "file", LIMIT)


def test_the_entry_used_longest_ago_goes_first(cache: DiskCache) -> None:
    for seconds, name in ((30, A), (20, B), (10, C)):
        cache.store(name, content(300))
        age(cache, name, seconds)
    assert cache.find(A) is not None  # now the last used
    assert cache.store("d" * 64 + ".bin", content(300))
    assert names(cache) == [C, A, "d" * 64 + ".bin"]


def test_an_entry_larger_than_the_limit_is_not_kept(cache: DiskCache) -> None:
    cache.store(A, content(400))
    assert not cache.store(B, content(LIMIT + 1))
    assert names(cache) == [A], "and evicts nothing"
    assert cache.store(B, content(LIMIT))
    assert names(cache) == [B]


def test_prune_and_clear_say_what_they_removed(cache: DiskCache) -> None:
    for seconds, name in ((30, A), (20, B), (10, C)):
        cache.store(name, content(300))
        age(cache, name, seconds)
    assert cache.prune() == []
    assert [entry.name for entry in cache.prune(400)] == [A, B]
    assert [(entry.name, entry.nbytes) for entry in cache.clear()] == [(C, 300)]
    assert cache.clear() == []


def test_other_files_are_left_alone(cache: DiskCache) -> None:
    for name in ("notes.txt", "a" * 63 + ".bin", A + ".backup"):
        (cache.folder / name).write_text("mine")
        age(cache, name, 1e6)
    (cache.folder / ("f" * 64 + ".dir")).mkdir()
    cache.store(A, content(10))
    cache.clear()
    cache.prune(1)
    assert len(list(cache.folder.iterdir())) == 4


def test_what_is_being_written_is_no_entry(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["letters"]))
    with replacing(cache.folder / A, durable=False):
        assert len(list(cache.folder.iterdir())) == 1
        assert names(cache) == []
        assert cache.clear() == cache.prune(1) == []


def test_what_a_killed_writer_left_goes_after_an_hour(cache: DiskCache) -> None:
    for name, seconds in ((A + ".k3_9x0ab", 4000.0), (B + ".k3_9x0ab", 10.0)):
        (cache.folder / name).write_text("half")
        age(cache, name, seconds)
    assert names(cache) == []
    cache.store(C, content(10))
    assert sorted(p.name for p in cache.folder.iterdir()) == [B + ".k3_9x0ab", C]


def test_a_writer_that_fails_leaves_nothing(cache: DiskCache) -> None:
    def fail(path: Path) -> None:
        with replacing(path, durable=False) as file:
            file.write(b"half")
            file.flush()
            raise OSError(28, "No space left on device")

    cache.store(A, content(10))
    with pytest.raises(CacheError, match=r"No space left on device"):
        cache.store(A, fail)
    assert (cache.folder / A).read_bytes() == b"x" * 10
    assert [p.name for p in cache.folder.iterdir()] == [A]


def test_a_directory_that_vanished_is_an_error_that_names_it(cache: DiskCache) -> None:
    cache.folder.rmdir()
    assert cache.find(A) is None
    with pytest.raises(CacheError, match=r"cache: No such file or directory"):
        cache.entries()


def test_an_entry_that_vanishes_while_it_is_stored_was_not_kept(cache: DiskCache) -> None:
    def write(path: Path) -> None:
        content(10)(path)
        path.unlink()  # another process pruned

    assert not cache.store(A, write)


def test_processes_share_a_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=hammer, args=(tmp_path, n, failures)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert failures.empty(), failures.get()
    cache = DiskCache(tmp_path, 20_000)
    assert sum(entry.nbytes for entry in cache.entries()) <= 20_000
    assert len(list(tmp_path.iterdir())) == len(cache.entries()), "no temporary file is left"


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRISTMILL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "gristmill"
    with knobs.XDG_CACHE_HOME.scope("relative/is/invalid"):
        assert default_folder() == tmp_path / ".cache" / "gristmill"
    with knobs.XDG_CACHE_HOME.scope(str(tmp_path / "xdg")):
        assert default_folder() == tmp_path / "xdg" / "gristmill"
        with knobs.CACHE_DIR.scope("~/mine"), knobs.CACHE_SIZE.scope("3M"):
            cache = open_cache()
            assert (cache.folder, cache.limit) == (tmp_path / "mine", 3 << 20)


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(disk_cache.Path, "home", homeless)
    with (
        knobs.XDG_CACHE_HOME.scope(""),
        knobs.CACHE_DIR.scope(""),
        pytest.raises(CacheError, match="no home directory; name one with GRISTMILL_CACHE_DIR"),
    ):
        default_folder()


@pytest.mark.parametrize("text", ["1Q", "G", "-5", "1.5G", "0", ""])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a number|at least 1"):
        knobs.parse_bytes(text)


def test_sizes() -> None:
    assert [knobs.parse_bytes(t) for t in ("7", "2k", "1M", "3G")] == [7, 2048, 1 << 20, 3 << 30]
