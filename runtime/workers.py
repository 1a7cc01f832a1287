# SPDX-License-Identifier: Apache-2.0
"""A few threads that run short functions, for streams, large copies and staging."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class WorkerPool:
    """Daemon threads that run functions first come, first served; started when first needed."""

    def __init__(self, size: int, name: str = "gristmill-worker") -> None:
        self.name = name
        self.size = size
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: Threads that wait or start, less what is queued for them. Counted when work is given, not when it
        #: is taken: until then a waiting thread would seem free for more.
        self._free = 0
        self._closed = False
        # Re-entrant: the garbage collector may submit while this thread is in here.
        self._lock = threading.RLock()

    def submit(self, function: Callable[[], None]) -> None:
        """Run ``function`` on a worker soon, or at once when the pool is closed; it must not raise."""
        with self._lock:
            if not self._closed:
                if self._free < 1 and len(self._threads) < self.size:
                    self._start()
                self._free -= 1
                self._queue.put(function)
                return
        function()

    def _start(self) -> None:
        name = f"{self.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        self._free += 1
        thread.start()

    def _run(self) -> None:
        while True:
            function = self._queue.get()
            if function is None:
                return
            function()
            del function  # its closure must not live until the next one comes
            with self._lock:
                self._free += 1

    def close(self, *, wait: bool = True) -> None:
        """End the threads after what was submitted; ``wait`` for them, except for the calling one."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()
