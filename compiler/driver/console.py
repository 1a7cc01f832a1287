# SPDX-License-Identifier: Apache-2.0
"""What the subcommands share: safe writing of files, tables, and progress on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from gristmill.errors import InputError

#: Progress is drawn only when a task takes longer than this, in seconds.
QUIET_SECONDS = 1.0
REDRAW_SECONDS = 0.2


_QUANTITY = re.compile(r"[\d.]+( ?[A-Za-z%]+)?")


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    So ``path`` holds either its old content or all of the new one. Raises ``InputError`` when the
    folder does not exist or may not be written.
    """
    try:
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path``, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def seconds(value: float) -> str:
    """A duration for people: three digits and a fitting unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def file_size(nbytes: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; those that hold nothing but quantities are right-aligned."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    right = [
        bool(rows) and all(_QUANTITY.fullmatch(row[i]) for row in rows) for i in range(len(header))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


class Progress:
    """One line on a terminal that shows how far a task is; silent elsewhere and for short tasks.

    A thread redraws it, so that a step that takes long does not look like a standstill.
    """

    def __init__(self, total: int, stream: TextIO | None = None):
        self._total = total
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._state = (0, "")
        self._drawn = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if self._stream.isatty():
            threading.Thread(target=self._redraw, daemon=True).start()

    def update(self, done: int, text: str) -> None:
        """Note that ``done`` of the total steps are finished and what is being done now."""
        self._state = (done, text)
        self.draw()

    def draw(self) -> None:
        """Draw the line, if it is to be seen at all."""
        elapsed = time.monotonic() - self._start
        if not self._stream.isatty() or elapsed < QUIET_SECONDS:
            return
        done, text = self._state
        width = 24
        filled = width * done // max(1, self._total)
        bar = "#" * filled + "-" * (width - filled)
        line = f"[{bar}] {done}/{self._total} {text} ({elapsed:.0f} s)"
        with self._lock:
            if not self._closed.is_set():
                columns = shutil.get_terminal_size().columns
                self._stream.write("\r\x1b[K" + line[: columns - 1])
                self._stream.flush()
                self._drawn = True

    def clear(self) -> None:
        """Remove the line until it is drawn again, to print something else."""
        with self._lock:
            if self._drawn:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._drawn = False

    def close(self) -> None:
        """Remove the line for good."""
        self._closed.set()
        self.clear()

    def _redraw(self) -> None:
        while not self._closed.wait(REDRAW_SECONDS):
            self.draw()
