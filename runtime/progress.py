# SPDX-License-Identifier: Apache-2.0
"""Progress of uploads: what callbacks get, and a bar for terminals."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

#: Uploads from this size on show a bar by themselves when standard error is a terminal.
BAR_BYTES = 256 << 20
_WIDTH = 30
_SECONDS_BETWEEN = 0.1


@dataclass(frozen=True)
class Progress:
    """How far an upload is: bytes on the device, bytes in all, seconds since the first were given."""

    done_bytes: int
    total_bytes: int
    seconds: float

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def bytes_per_second(self) -> float:
        """The mean rate so far."""
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0


ProgressCallback = Callable[[Progress], None]


class ProgressBar:
    """A one-line bar, redrawn at most ten times a second; itself a progress callback.

    Args:
        label: what is uploaded.
        stream: where to draw; default: standard error.
    """

    def __init__(self, label: str = "upload", stream: TextIO | None = None) -> None:
        self.label = label
        self._stream = stream
        self._drawn = 0.0
        self._open = False

    def __call__(self, progress: Progress) -> None:
        """Draw ``progress``; the last one, complete, ends the line."""
        now = time.monotonic()
        last = progress.done_bytes >= progress.total_bytes
        if not last and now - self._drawn < _SECONDS_BETWEEN:
            return
        self._drawn = now
        filled = int(_WIDTH * progress.fraction)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        megabytes = f"{progress.done_bytes / 1e6:.0f}/{progress.total_bytes / 1e6:.0f} MB"
        self._write(
            f"\r{self.label} [{bar}] {megabytes} {progress.bytes_per_second / 1e6:.0f} MB/s"
        )
        self._open = True
        if last:
            self.close()

    def close(self) -> None:
        """End the line of an upload that stopped early; does nothing when it is ended already."""
        if self._open:
            self._open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(text)
        stream.flush()


class ProgressMeter:
    """Counts bytes that arrive on any thread and tells callbacks, one at a time, in rising order."""

    def __init__(self, total_bytes: int, callbacks: tuple[ProgressCallback, ...]) -> None:
        self._total = total_bytes
        self._callbacks = callbacks
        self._done = 0
        self._begun: float | None = None
        # Held while callbacks run, which may ask for the progress.
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Start the clock at the first call."""
        if self._begun is None:
            self._begun = time.monotonic()

    def add(self, nbytes: int) -> None:
        """``nbytes`` more have arrived. What a callback raises goes to ``sys.excepthook``."""
        with self._lock:
            self._done += nbytes
            progress = self.now()
            for callback in self._callbacks:
                try:
                    callback(progress)
                except Exception as error:  # a display's fault must not end the upload
                    sys.excepthook(type(error), error, error.__traceback__)

    def now(self) -> Progress:
        """The progress so far."""
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        return Progress(self._done, self._total, seconds)


def wants_bar(total_bytes: int) -> bool:
    """Whether an upload of this size shows a bar when nobody said."""
    return total_bytes >= BAR_BYTES and sys.stderr.isatty()
