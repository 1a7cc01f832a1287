# SPDX-License-Identifier: Apache-2.0
"""Compiling without Python's collector of cyclic garbage.

While the compiler is loaded and its modules fill the heap, the collector walks all of it again and again and frees next
to nothing: a tenth of the time from the start of a process to its first result. A compilation leaves some thousands of
objects for it, a few MiB for a program of twelve transformer layers.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Pauses:
    """Counts the pauses under way, in all threads; the collector is switched on again after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0 and self._was_enabled:
                    gc.enable()


#: A ``with`` during which the collector does not run, unless somebody else switches it on.
paused = _Pauses()
