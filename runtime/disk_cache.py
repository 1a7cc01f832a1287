# SPDX-License-Identifier: Apache-2.0
"""``DiskCache``: a private directory of files by key, shared by all processes of one user.

What this promises:

- **Private.** The directory is created for its owner only (0700), and one that belongs to another user or that
  others may write to is refused: what lies in it will be run. Files are readable by their owner only.
- **Whole entries.** An entry is written beside its place and renamed into it, so no process sees half of one. Two
  processes that store the same entry both succeed; the later one's stays.
- **Bounded.** When the files outgrow the limit, those that were used longest ago go first. A file that another
  process still reads or maps lives on until that process lets go of it.
- **Harmless.** Only files whose names this module makes are ever removed, whatever else lies in the directory.

The cache does not know what its entries mean: who reads one checks it, and discards one that is damaged.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import CacheError, GristmillError
from gristmill.runtime import knobs

_ENTRY = re.compile(r"[0-9a-f]{64}\.[a-z]+")
#: What a writer that was killed leaves behind: an entry's name, a dot and a random ending.
_LEFTOVER = re.compile(r"[0-9a-f]{64}\.[a-z]+\.\w{8}")
#: Seconds after which nobody can still be writing a temporary file.
_LEFTOVER_SECONDS = 3600.0

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Entry:
    """One file of the cache.

    Attributes:
        name: its file name: 64 hexadecimal digits and a suffix.
        nbytes: its size.
        used: when it was stored or last found, in seconds since the epoch.
    """

    name: str
    nbytes: int
    used: float


class DiskCache:
    """The entries in ``folder``, ``limit`` bytes of them at most. Threads and processes may share it.

    Attributes:
        folder: the directory.
        limit: bytes that all entries together may take.
    """

    def __init__(self, folder: str | Path, limit: int) -> None:
        """Use ``folder``, which is created if it does not exist.

        Raises ``CacheError`` when it cannot be created, or is not private to the user of this process.
        """
        self.folder = Path(folder)
        self.limit = limit
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
        except OSError as error:
            raise CacheError(f"{self.folder}: {error.strerror or error}") from None
        if found.st_uid != os.geteuid():
            raise CacheError(
                f"{self.folder} belongs to user {found.st_uid}, not to the user of this process, "
                f"{os.geteuid()}: code from it is not run; choose another with {knobs.CACHE_DIR.name}"
            )
        if found.st_mode & _OTHERS_MAY_WRITE:
            raise CacheError(
                f"others may write to {self.folder}: code from it is not run; "
                f"take the right away (chmod go-w) or choose another with {knobs.CACHE_DIR.name}"
            )

    def find(self, name: str) -> Path | None:
        """The file of entry ``name``, which now counts as just used; ``None`` when there is none.

        A file of that name that another user could have written counts as none.
        """
        path = self._path(name)
        try:
            found = path.lstat()
            own = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
            if not (own and stat.S_ISREG(found.st_mode)):
                return None
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            pass  # a read-only file system: the entry is good, only its age is not kept
        return path

    def store(self, name: str, write: Callable[[Path], None]) -> bool:
        """Store what ``write`` writes to the path it is given, then evict what exceeds the limit.

        ``write`` must replace the file as a whole, as :func:`gristmill.runtime.atomic.replacing` does. Returns whether
        the entry was kept: one larger than the limit is not. Raises ``CacheError`` when it cannot be written.
        """
        path = self._path(name)
        try:
            write(path)
            kept = path.stat().st_size <= self.limit
            if not kept:
                path.unlink(missing_ok=True)
        except FileNotFoundError:  # another process has evicted or cleared it already
            return False
        except (OSError, GristmillError) as error:
            raise CacheError(f"{self.folder}: {error}") from None
        self.prune()
        return kept

    def discard(self, name: str) -> None:
        """Remove entry ``name`` if it is there and can be removed."""
        _remove(self._path(name))

    def entries(self, *, tidy: bool = False) -> list[Entry]:
        """All entries, the one used longest ago first; ``tidy`` removes what killed writers left behind."""
        found: list[Entry] = []
        for item, status in self._files():
            if _ENTRY.fullmatch(item.name):
                found.append(Entry(item.name, status.st_size, status.st_mtime))
            elif tidy and _is_leftover(item.name, status):
                _remove(Path(item.path))
        return sorted(found, key=lambda entry: (entry.used, entry.name))

    def prune(self, limit: int | None = None) -> list[Entry]:
        """Evict entries, those used longest ago first, until the rest fit into ``limit`` bytes.

        Also removes what killed writers left behind. Returns what was evicted. ``limit``: default: the cache's own.
        """
        limit = self.limit if limit is None else limit
        entries = self.entries(tidy=True)
        excess = sum(entry.nbytes for entry in entries) - limit
        evicted: list[Entry] = []
        for entry in entries:
            if excess <= 0:
                break
            self.discard(entry.name)
            excess -= entry.nbytes
            evicted.append(entry)
        return evicted

    def clear(self) -> list[Entry]:
        """Remove all entries and return them."""
        entries = self.entries()
        for entry in entries:
            self.discard(entry.name)
        return entries

    def _path(self, name: str) -> Path:
        assert _ENTRY.fullmatch(name), f"{name!r} is no entry's name"
        return self.folder / name

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """The directory's regular files; those that vanish meanwhile are left out."""
        try:
            with os.scandir(self.folder) as items:
                for item in items:
                    try:
                        if item.is_file(follow_symlinks=False):
                            yield item, item.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
        except OSError as error:
            raise CacheError(f"{self.folder}: {error.strerror or error}") from None


def _is_leftover(name: str, status: os.stat_result) -> bool:
    old = time.time() - status.st_mtime > _LEFTOVER_SECONDS
    return old and _LEFTOVER.fullmatch(name) is not None


def _remove(path: Path) -> None:
    with suppress(
        OSError
    ):  # it stays, and counts: nothing that reads the cache depends on its going
        path.unlink(missing_ok=True)


def default_folder() -> Path:
    """Where the cache lies: the ``GRISTMILL_CACHE_DIR`` knob, else ``gristmill`` in the user's cache directory.

    That is ``XDG_CACHE_HOME`` when it is an absolute path, else ``~/.cache``. Raises ``CacheError`` when the user has
    no home directory.
    """
    chosen = knobs.CACHE_DIR.get()
    if chosen:
        return Path(chosen).expanduser()
    root = Path(knobs.XDG_CACHE_HOME.get())
    if root.is_absolute():
        return root / "gristmill"
    try:
        return Path.home() / ".cache" / "gristmill"
    except RuntimeError:
        raise CacheError(
            f"this user has no home directory; name one with {knobs.CACHE_DIR.name}"
        ) from None


def open_cache(folder: str | Path | None = None) -> DiskCache:
    """The cache in ``folder`` (default: :func:`default_folder`), limited by the ``GRISTMILL_CACHE_SIZE`` knob.

    Raises ``CacheError`` when it cannot be used.
    """
    return DiskCache(folder or default_folder(), knobs.CACHE_SIZE.get())
